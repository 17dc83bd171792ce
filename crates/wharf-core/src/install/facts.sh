# Asks a host for its facts and changes nothing. POSIX sh, also without the tools it would like.
#
# Arguments: the node's own address, the SSH port, the other nodes' addresses.
# Prints key=value lines; what cannot be found out is left out; the last line is end=facts.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL

say() {
    printf '%s=%s\n' "$1" "$2"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

as_root() {
    if [ "$uid" = 0 ]; then "$@" 2>/dev/null; else sudo -n "$@" 2>/dev/null; fi
}

# The value of a shell-like assignment in a file, without its quotes.
assigned() {
    sed -n "s/^$1=//p" "$2" 2>/dev/null | tr -d "\"'" | head -n 1
}

# A path, or the nearest directory above it that exists.
nearest() {
    path=$1
    while [ ! -e "$path" ]; do path=${path%/*} && path=${path:-/}; done
    printf '%s' "$path"
}

free_mib() {
    df -Pk "$(nearest "$1")" 2>/dev/null | {
        read -r _
        read -r _ _ _ free _
        [ -n "$free" ] && say "$2" $((free / 1024))
    }
}

# Each probe runs in the background and speaks only of a failure, so that all of them together
# take as long as the slowest.
reach_others() {
    port=$1
    shift
    for other in "$@"; do
        if has bash; then
            timeout 3 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$other" "$port" 2>/dev/null ||
                say unreachable "$other" &
        elif has nc; then
            timeout 3 nc -z -w 3 "$other" "$port" 2>/dev/null || say unreachable "$other" &
        fi
    done
}

identity() {
    say hostname "$(cat /proc/sys/kernel/hostname)"
    say machine_id "$(cat /etc/machine-id 2>/dev/null)"
    say boot_id "$(cat /proc/sys/kernel/random/boot_id)"
    say os "$(assigned ID /etc/os-release)"
    say os_version "$(assigned VERSION_ID /etc/os-release)"
    say arch "$(uname -m)"
    say kernel "$(uname -r)"
    if [ -d /run/systemd/system ]; then say systemd true; fi
    if as_root true; then say root true; fi
}

# A container is one as systemd sees it, or has told its children.
is_container() {
    if has systemd-detect-virt; then systemd-detect-virt -c -q; else [ -e /run/systemd/container ]; fi
}

confinement() {
    if is_container; then say container true; fi
    case $(stat -fc %T /sys/fs/cgroup 2>/dev/null) in
    cgroup2fs) say cgroup_version 2 ;;
    *) say cgroup_version 1 ;;
    esac
    # The only sure way to know is to try, on a process that ends at once.
    if as_root sh -c 'echo -900 >/proc/self/oom_score_adj'; then say sys_resource true; fi
}

size() {
    say cpus "$(grep -c ^processor /proc/cpuinfo)"
    while read -r key value _; do
        if [ "$key" = MemTotal: ]; then say memory_mib $((value / 1024)); fi
    done </proc/meminfo
    # The first line is the table's head.
    if [ "$(wc -l </proc/swaps 2>/dev/null || echo 1)" -gt 1 ]; then say swap true; fi
    free_mib /var/lib/wharf free_data_mib
    free_mib /opt/wharf free_programs_mib
    say data_filesystem "$(stat -fc %T "$(nearest /var/lib/wharf)")"
    say containerd_filesystem "$(stat -fc %T "$(nearest /var/lib/containerd)")"
}

addresses() {
    if ! has ip; then
        for address in $(hostname -I 2>/dev/null); do say address "$address"; done
        return
    fi
    ip -4 -o addr show | while read -r _ device _ cidr _; do
        say address "${cidr%%/*}"
        if [ "${cidr%%/*}" = "$1" ]; then
            device=${device%%@*}
            say interface "$device"
            say mtu "$(cat "/sys/class/net/$device/mtu")"
        fi
    done
}

# With `ss` the program is known; without it the kernel's tables still name the ports, in hex.
listening() {
    if has ss; then
        as_root ss -Hltnp | while read -r _ _ _ local _ users; do
            program=${users#*\"}
            say listening "${local##*:} ${program%%\"*}"
        done
        return
    fi
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ local _ state _; do
        if [ "$state" = 0A ]; then say listening $((0x${local##*:})); fi
    done
}

# A text of the record of what was made here.
recorded() {
    as_root cat /var/lib/wharf/made.json |
        sed -n "s/.*\"$1\"[[:space:]]*:[[:space:]]*\"\([^\"]*\)\".*/\1/p" | head -n 1
}

# Says to which cluster the host belongs; fails if to none.
owner() {
    cluster=$(recorded cluster)
    if [ -z "$cluster" ]; then return 1; fi
    say cluster "$cluster"
    say identity "$(recorded identity)"
}

belongings() {
    if owner; then return; fi
    leftovers=
    # A server of ours may have its own configuration and store beside these.
    for directory in /etc/kubernetes/manifests /etc/wharf/pki /var/lib/kubelet \
        /var/lib/wharf/cni /var/lib/wharf/containerd /var/lib/wharf/etcd /var/lib/wharf/state; do
        # A file system of its own has a lost+found from the start.
        case $(as_root ls -A "$directory") in
        '' | lost+found) ;;
        *) leftovers="$leftovers $directory" ;;
        esac
    done
    # What a killed server has begun may go on here: its record is made before all the rest.
    if [ -n "$leftovers" ] && owner; then return; fi
    for directory in $leftovers; do say leftover "$directory"; done
}

# Chains that drop forwarded packets unless a rule of theirs says otherwise, as those of Docker and
# ufw do; one that speaks of our bridge has such a rule.
forwarding() {
    as_root nft list chains | while read -r word name rest; do
        case $word in
        table) table="$name ${rest% *}" ;;
        chain) chain=$name ;;
        type)
            case $rest in
            *'hook forward '*'policy drop;'*)
                if ! as_root nft list chain $table "$chain" </dev/null | grep -q wharf0; then
                    say forward_drop "$table $chain"
                fi
                ;;
            esac
            ;;
        esac
    done
    # The older iptables keeps rules that nft does not see.
    if grep -qsx filter /proc/net/ip_tables_names && has iptables-legacy; then
        rules=$(as_root iptables-legacy -S FORWARD)
        case $rules in
        *wharf0*) ;;
        *'-P FORWARD DROP'*) say forward_drop 'iptables-legacy FORWARD' ;;
        esac
    fi
}

names() {
    file=/etc/resolv.conf
    # The stub of systemd-resolved answers on loopback, where pods cannot reach it.
    if grep -qs '^nameserver 127\.0\.0\.53' $file && [ -s /run/systemd/resolve/resolv.conf ]; then
        file=/run/systemd/resolve/resolv.conf
    fi
    if [ ! -s $file ]; then return; fi
    say resolv_conf $file
    if grep '^nameserver' $file | grep -qv '[[:space:]]\(127\.\|::1\)'; then
        say resolves_outside true
    fi
}

# Built-in modules leave other traces than loaded ones, and a container sees no module files.
has_module() {
    [ -d "/sys/module/$1" ] && return
    grep -qs "/$1\.ko" "/lib/modules/$(uname -r)/modules.builtin" && return
    modprobe -n -q "$1" 2>/dev/null && return
    case $1 in
    overlay) grep -qsw overlay /proc/filesystems ;;
    nf_conntrack) [ -e /proc/sys/net/netfilter/nf_conntrack_max ] ;;
    br_netfilter) [ -d /proc/sys/net/bridge ] ;;
    nf_tables) as_root nft list tables >/dev/null ;;
    *) false ;;
    esac
}

kernel_and_tools() {
    for module in overlay br_netfilter nf_conntrack nf_tables vxlan; do
        if has_module $module; then say kernel_module $module; fi
    done
    for tool in ip mount nft systemctl; do
        if ! has $tool; then say missing_tool $tool; fi
    done
}

main() {
    uid=$(id -u)
    own=$1
    port=$2
    shift 2
    say clock_seconds "$(date +%s)"
    reach_others "$port" "$@"
    identity
    confinement
    size
    addresses "$own"
    listening
    belongings
    forwarding
    names
    kernel_and_tools
    wait
    say end facts
}

# The script itself may be what stands on standard input: nothing below may read from it.
main "$@" </dev/null
