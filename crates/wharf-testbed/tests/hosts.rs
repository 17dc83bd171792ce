//! The test bed on the real machine. These tests need root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use wharf_testbed::process::{Process, Signal, example};
use wharf_testbed::{BedStatus, Bind, HostOptions, Options, Power, TestBed, wait_for};

const SOON: Duration = Duration::from_secs(60);

fn reaches(from: &wharf_testbed::Host, to: &wharf_testbed::Host) -> bool {
    // Debian's minimal root has no ping.
    let probe = format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{}/22'", to.address());
    from.ssh(&["sh", "-c", &probe]).unwrap().status.success()
}

/// Everything on the machine that carries the bed's name or lies on its bridge.
fn traces(bed: &str, bridge: &str) -> Vec<String> {
    let mut traces = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    traces.extend(mounts.lines().filter(|line| line.contains(bed)).map(str::to_owned));
    for directory in
        ["/run/wharf-testbed", "/var/lib/wharf-testbed", "/run/systemd/nspawn/propagate"]
    {
        traces.extend(entries(directory).into_iter().filter(|path| path.contains(bed)));
    }
    for hierarchy in entries("/sys/fs/cgroup").into_iter().chain(["/sys/fs/cgroup".to_owned()]) {
        let cgroup = format!("{hierarchy}/wharf-testbed/{bed}");
        traces.extend(Path::new(&cgroup).exists().then_some(cgroup));
    }
    for process in entries("/proc") {
        // A zombie holds nothing; how soon the machine's init takes it away is not ours to say.
        if fs::read_to_string(format!("{process}/stat")).is_ok_and(|stat| stat.contains(") Z ")) {
            continue;
        }
        // Arguments and environment of supervisors and of systemd-nspawn name the bed.
        let line = fs::read(format!("{process}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        traces.extend(line.contains(&format!("/{bed}/")).then_some(line));
        let cgroup = fs::read_to_string(format!("{process}/cgroup")).unwrap_or_default();
        traces.extend(cgroup.contains(&format!("/{bed}/")).then(|| format!("{process} in cgroup")));
    }
    let links = output("ip", &["-o", "link"]);
    // The bridge itself, and what is plugged into it.
    let [own, port] = [format!(" {bridge}: "), format!(" master {bridge} ")];
    let ours = |line: &&str| line.contains(&own) || line.contains(&port);
    traces.extend(links.lines().filter(ours).map(str::to_owned));
    let subnet = bridge.trim_start_matches("wharf");
    let table = format!("table bridge wharf_testbed_{subnet}");
    let tables = output("nft", &["list", "tables"]);
    traces.extend(tables.lines().filter(|line| **line == table).map(str::to_owned));
    let loops = output("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    traces.extend(loops.lines().filter(|line| line.contains(bed)).map(str::to_owned));
    traces
}

fn entries(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().to_string_lossy().into_owned()).collect()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Also proves that `traces` can see: a living bed must have some of every kind.
fn assert_leaves_nothing(bed: TestBed) {
    let (name, bridge) = (bed.name().to_owned(), bed.bridge());
    let alive = traces(&name, &bridge);
    for kind in ["overlay", "cgroup", "/run/wharf-testbed", "/var/lib/", "nspawn", &bridge, "table"]
    {
        assert!(alive.iter().any(|trace| trace.contains(kind)), "no {kind} in {alive:#?}");
    }
    bed.down().unwrap();
    assert_eq!(traces(&name, &bridge), Vec::<String>::new());
}

fn assert_like_a_machine_of_ones_own(host: &wharf_testbed::Host) {
    assert_eq!(host.run(&["hostname"]).unwrap(), host.name());
    let running = host.ssh(&["systemctl", "is-system-running", "--wait"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&running.stdout).trim(), "running", "{}", host.console());
    let routes = host.run(&["ip", "route", "show", "default"]).unwrap();
    assert_eq!(routes, "", "a host must not reach the outside");
    // What kubelet does at its start.
    let make_cgroups = "for c in /sys/fs/cgroup/*/; do mkdir $c/kubepods || exit 1; done";
    host.run(&["sh", "-c", make_cgroups]).unwrap();
    let data = host.run(&["findmnt", "-no", "FSTYPE", "/var/lib/containerd"]).unwrap();
    assert_ne!(data, "overlay");
    assert_eq!(host.run(&["cat", "/mnt/shared/greeting"]).unwrap(), "hello");
}

fn assert_reboots(host: &wharf_testbed::Host) {
    let (boot, machine) = (host.boot_id().unwrap(), host.run(&["cat", "/etc/machine-id"]).unwrap());
    host.reboot().unwrap();
    assert_ne!(host.boot_id().unwrap(), boot);
    assert_eq!(host.run(&["cat", "/etc/machine-id"]).unwrap(), machine);
}

fn assert_survives_a_power_cut(host: &wharf_testbed::Host) {
    let boot = host.boot_id().unwrap();
    let attach = "dd if=/dev/zero of=/var/lib/kubelet/disk bs=1M count=1 status=none && sync && \
        n=$(losetup -f | tr -dc 0-9) && { test -e /dev/loop$n || mknod /dev/loop$n b 7 $n; } && \
        losetup /dev/loop$n /var/lib/kubelet/disk && echo /dev/loop$n";
    let device = host.run(&["sh", "-c", attach]).unwrap();
    assert!(output("losetup", &["--list", "--output", "NAME"]).contains(&device));
    host.power_cut().unwrap();
    assert_eq!(host.power().unwrap(), Power::Off);
    assert!(host.ssh(&["true"]).is_err());
    assert!(!output("losetup", &["--list", "--output", "NAME"]).contains(&device));
    host.start().unwrap();
    assert_ne!(host.boot_id().unwrap(), boot);
    assert_eq!(host.run(&["stat", "-c", "%s", "/var/lib/kubelet/disk"]).unwrap(), "1048576");
}

fn assert_pauses(host: &wharf_testbed::Host) {
    let boot = host.boot_id().unwrap();
    host.pause().unwrap();
    assert!(host.ssh(&["true"]).is_err());
    assert_eq!(host.power().unwrap(), Power::On);
    host.resume().unwrap();
    assert_eq!(host.boot_id().unwrap(), boot);
    // A paused host must not be in the way of its own end.
    host.pause().unwrap();
    host.power_cut().unwrap();
    host.start().unwrap();
}

#[test]
fn three_hosts_are_machines_that_reboot_lose_power_and_are_cut_off() {
    let shared = tempfile::tempdir().unwrap();
    fs::write(shared.path().join("greeting"), "hello").unwrap();
    let mut options = Options::hosts(3);
    for host in &mut options.hosts {
        let (source, target) = (shared.path().to_owned(), "/mnt/shared".into());
        host.binds.push(Bind { source, target, read_only: true });
    }
    let bed = TestBed::start_with(&TestBed::unique_name("three"), &options).unwrap();
    let [a, b, c] = bed.hosts() else { panic!("three hosts were asked for") };
    for host in [a, b, c] {
        assert_like_a_machine_of_ones_own(host);
    }
    assert_ne!(a.host_key().unwrap(), b.host_key().unwrap());
    assert!(reaches(a, b) && reaches(b, c) && reaches(c, a));

    bed.cut(a, b).unwrap();
    assert!(!reaches(a, b) && !reaches(b, a), "the cut lets packets through");
    assert!(reaches(a, c) && reaches(c, b), "the cut hits others");
    bed.heal().unwrap();
    assert!(reaches(a, b) && reaches(b, a));
    bed.isolate(c).unwrap();
    assert!(c.ssh(&["true"]).is_err() && !reaches(a, c));
    bed.heal().unwrap();
    assert!(reaches(a, c));

    thread::scope(|scope| {
        scope.spawn(|| assert_reboots(a));
        scope.spawn(|| assert_survives_a_power_cut(b));
        scope.spawn(|| assert_pauses(c));
    });
    assert!(reaches(a, b));
    assert_leaves_nothing(bed);
}

#[test]
fn two_beds_live_side_by_side_with_hosts_of_the_same_name() {
    let one = TestBed::start("side", 1).unwrap();
    let other = TestBed::start("side", 1).unwrap();
    assert_eq!(one.hosts()[0].name(), other.hosts()[0].name());
    assert_ne!(one.hosts()[0].address(), other.hosts()[0].address());
    assert_ne!(one.hosts()[0].boot_id().unwrap(), other.hosts()[0].boot_id().unwrap());
    assert_leaves_nothing(other);
    assert_eq!(one.hosts()[0].run(&["hostname"]).unwrap(), "node1");
    assert_leaves_nothing(one);
}

/// An owner of beds in a process of its own, which may be killed.
fn bed_owner(end: &str) -> Process {
    let mut command = Command::new(example("bed_owner").unwrap());
    command.arg(end);
    Process::spawn(command).unwrap()
}

#[test]
fn a_bed_whose_owner_was_killed_is_removed_by_the_next_start() {
    let mut owner = bed_owner("hold");
    owner.wait_for_output("holding.", 2 * SOON).unwrap();
    let line = owner.output();
    let words: Vec<&str> =
        line.lines().find(|line| line.ends_with("holding.")).unwrap().split(' ').collect();
    let (name, bridge) = (words[0].to_owned(), words[1].to_owned());
    owner.kill().unwrap();
    assert!(traces(&name, &bridge).iter().any(|trace| trace.contains("nspawn")));

    // Nothing may be left of it once the next bed is there, although that one may by then use
    // the same subnet: so the next bed is one without hosts, removed at once.
    let none = Options { hosts: Vec::<HostOptions>::new(), keep: false };
    TestBed::start_with(&TestBed::unique_name("next"), &none).unwrap().down().unwrap();
    wait_for("the dead owner's bed to be gone", SOON, || {
        Ok(wharf_testbed::list()?.iter().all(|bed| bed.name != name).then_some(()))
    })
    .unwrap();
    let left: Vec<String> = traces(&name, "no bridge of this name");
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn an_interrupted_start_leaves_nothing() {
    let mut starter = bed_owner("interrupted");
    let name = format!("interrupted-{}-0", starter.id());
    wait_for("the first host to be started", SOON, || {
        let on = |bed: &BedStatus| bed.name == name && bed.hosts.iter().any(|(_, _, on)| *on);
        Ok(wharf_testbed::list()?.iter().any(on).then_some(()))
    })
    .unwrap();
    starter.signal(Signal::INT).unwrap();
    let status = starter.wait(SOON).unwrap();
    let output = starter.output();
    assert!(status.success() && output.contains("interrupted while waiting"), "{status}: {output}");
    assert_eq!(traces(&name, "no bridge of this name"), Vec::<String>::new());
}

#[test]
fn a_failed_start_leaves_nothing() {
    let name = TestBed::unique_name("fails");
    let mut options = Options::hosts(2);
    let (source, target) = ("/no/such/directory".into(), "/mnt/shared".into());
    options.hosts[1].binds.push(Bind { source, target, read_only: true });
    let error = format!("{:#}", TestBed::start_with(&name, &options).unwrap_err());
    assert!(error.contains("/no/such/directory"), "{error}");
    assert_eq!(traces(&name, "no bridge of this name"), Vec::<String>::new());
}
