# Keeps one host of a test bed running, or clears away what a host left behind.
#
#   supervise run COMMAND...   start the host; start it again whenever it reboots
#   supervise release          end what is left of it; remove its cgroups and loop devices
#
# TESTBED_DISK     directory that holds everything the host writes
# TESTBED_ROOT     mount point of its overlay
# TESTBED_CGROUPS  the host's cgroup in each hierarchy, separated by spaces
#
# It is a script because the machine then needs no program of ours to keep a host running, and
# because it stays outside of the host's cgroups while the host itself is put inside.

# systemd-nspawn ends with this status when the host asked for a reboot.
reboot=133

processes() {
    for cgroup in $TESTBED_CGROUPS; do
        if [ -d "$cgroup" ]; then
            find "$cgroup" -name cgroup.procs -exec cat {} +
        fi
    done 2>/dev/null | sort -u
}

# A frozen process cannot die.
thaw() {
    for cgroup in $TESTBED_CGROUPS; do
        find "$cgroup" -name freezer.state 2>/dev/null | while read -r file; do
            echo THAWED >"$file"
        done
    done
}

end_processes() {
    tries=0
    while left=$(processes) && [ -n "$left" ]; do
        if [ "$tries" -ge 200 ]; then
            echo "processes will not end:" $left >&2
            return 1
        fi
        [ "$tries" -gt 0 ] || thaw
        kill -9 $left 2>/dev/null
        tries=$((tries + 1))
        sleep 0.05
    done
}

# Left-over cgroups make pods ten times slower at the next start.
remove_cgroups() {
    for cgroup in $TESTBED_CGROUPS; do
        tries=0
        while [ -d "$cgroup" ]; do
            find "$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null
            [ -d "$cgroup" ] || break
            if [ "$tries" -ge 100 ]; then
                echo "cannot remove the cgroup $cgroup" >&2
                return 1
            fi
            tries=$((tries + 1))
            sleep 0.05
        done
    done
}

# A machine that lost its power has no loop devices; here the one kernel keeps them attached. Their
# paths are broken by then, so they are known by device and inode.
detach_loops() {
    overlay=$(mountpoint -d "$TESTBED_ROOT" 2>/dev/null)
    disk=$(stat -c '%Hd:%Ld' "$TESTBED_DISK")
    losetup --list --noheadings --output NAME,BACK-MAJ:MIN,BACK-INO |
        while read -r loop device inode; do
            case "$device" in
                "$overlay") losetup --detach "$loop" ;;
                "$disk")
                    if [ -n "$(find "$TESTBED_DISK" -xdev -inum "$inode" -print -quit)" ]; then
                        losetup --detach "$loop"
                    fi
                    ;;
            esac
        done
}

release() {
    end_processes && remove_cgroups && detach_loops
}

enter_cgroups() {
    for cgroup in $TESTBED_CGROUPS; do
        mkdir -p "$cgroup" || return 1
        # A new v1 cpuset is empty and takes no process until it is told what it may use.
        if [ -e "$cgroup/cpuset.cpus" ] && [ -e "$cgroup/tasks" ]; then
            cat "$cgroup/../cpuset.cpus" >"$cgroup/cpuset.cpus"
            cat "$cgroup/../cpuset.mems" >"$cgroup/cpuset.mems"
        fi
        echo 0 >"$cgroup/cgroup.procs" || return 1
    done
}

run() {
    # The starter says "go" after it has recorded this process. If it dies before that, the read
    # fails and nothing was started that nobody knows of.
    read -r go && [ "$go" = go ] || exit 0
    exec </dev/null
    while release; do
        (enter_cgroups && exec "$@")
        status=$?
        if [ "$status" -ne "$reboot" ]; then
            echo "the host ended with status $status"
            break
        fi
    done
    release
}

verb=$1
shift
case "$verb" in
    run) run "$@" ;;
    release) release ;;
esac
