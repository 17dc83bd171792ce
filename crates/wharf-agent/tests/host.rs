//! Documents on a real host: systemd, a kernel's settings, mounts, cgroups and links. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use wharf_core::install::host::{
    Action, Content, Directory, File, Grown, HostDocument, HostReport, Link, RemovalReport, Unit,
    Wanted,
};
use wharf_testbed::process::example;
use wharf_testbed::{Host, TestBed, wait_for};

const PROGRAM: &str = "/srv/host_apply";
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const SOON: Duration = Duration::from_secs(20);

fn call<R: DeserializeOwned>(host: &Host, arguments: &[&str], input: &str) -> R {
    let mut command = host.ssh_command();
    command.arg(PROGRAM).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "a report is one line: {text:?} ({})", output.status);
    serde_json::from_str(&text).unwrap()
}

fn apply(host: &Host, document: &HostDocument) -> HostReport {
    call(host, &["apply"], &serde_json::to_string(document).unwrap())
}

fn shell(host: &Host, script: &str) -> String {
    host.run(&["bash", "-c", script]).unwrap()
}

fn text_file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), mode: 0o600, content: Content::Text(text.to_owned()) }
}

fn service(name: &str, command: &str, inputs: &[&str]) -> Unit {
    let text = format!("[Service]\nExecStart={command}\n[Install]\nWantedBy=multi-user.target\n");
    let inputs = inputs.iter().map(|path| (*path).to_owned()).collect();
    Unit { name: name.to_owned(), text, wanted: Wanted::Started, inputs }
}

fn document() -> HostDocument {
    let range = ("net.ipv4.ip_local_port_range".to_owned(), "20000 50000".to_owned());
    HostDocument {
        cluster: "one".to_owned(),
        modules: vec!["overlay".to_owned()],
        sysctls: BTreeMap::from([range]),
        directories: vec![Directory { path: "/etc/wharf".to_owned(), mode: 0o700 }],
        files: vec![
            text_file("/etc/wharf/one.conf", "1"),
            text_file("/etc/wharf/two.conf", "2"),
            text_file("/etc/sysctl.d/90-wharf.conf", "# ours"),
        ],
        links: vec![Link { path: "/etc/wharf/latest".to_owned(), target: "two.conf".to_owned() }],
        units: vec![
            service("wharf-one.service", "/bin/sleep infinity", &["/etc/wharf/one.conf"]),
            service("wharf-two.service", "/bin/sleep infinity", &["/etc/wharf/two.conf"]),
        ],
        grown: Grown {
            directories: ["/var/lib/kubelet", "/var/log/pods", "/run/wharf/containerd"]
                .map(str::to_owned)
                .to_vec(),
            links: vec!["wharf0".to_owned()],
            nft_tables: vec!["ip wharf".to_owned(), "ip kube-proxy".to_owned()],
            cgroups: vec!["kubepods".to_owned()],
            netns_prefixes: vec!["cni-".to_owned()],
            shared: vec!["/var/lib/cni/results".to_owned(), "/var/lib/cni".to_owned()],
        },
        ..HostDocument::default()
    }
}

/// Everything on the host that an install could change.
fn world(host: &Host) -> Vec<String> {
    let script = "find /etc /opt /usr/local /var/lib /var/log /srv -xdev \
            -not -path '/var/log/journal*' -not -path '/var/lib/systemd/*' -printf '%p %m %y %l\\n'; \
        ls -1 -I 'agetty*' /run /run/netns; ls -1d /sys/fs/cgroup/*/kubepods* /sys/fs/cgroup/kubepods*; \
        systemctl list-unit-files --no-legend --plain; systemctl list-units --all --plain --no-legend 'wharf*'; \
        ip -br link | cut -d' ' -f1; ip route show table all; nft list tables; \
        cut -d' ' -f5 /proc/self/mountinfo; cat /proc/sys/net/ipv4/ip_local_port_range";
    let text = shell(host, &format!("{{ {script}; }} 2>/dev/null; true"));
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines: Vec<String> = text.lines().map(plain).collect();
    lines.sort();
    lines
}

/// What pods and components make by themselves.
fn grow(host: &Host) {
    shell(
        host,
        "set -e
        mkdir -p /var/lib/kubelet/pods/1/volume /var/log/pods/1 /run/wharf/containerd
        touch /var/log/pods/1/0.log '/var/lib/kubelet/pods/1/a b'
        mount -t tmpfs tmpfs /var/lib/kubelet/pods/1/volume
        mount -t tmpfs tmpfs /run/wharf/containerd
        ip netns add cni-ours
        ip link add wharf0 type bridge
        ip link set wharf0 up
        ip link add vethours type veth peer name eth0 netns cni-ours
        ip link set vethours master wharf0
        ip address add 10.99.0.1/24 dev wharf0
        ip route add 10.98.0.0/24 dev host0 proto 117
        nft add table ip wharf
        nft add table ip cni_hostport
        mkdir -p /var/lib/cni/results
        touch /var/lib/cni/results/wharf-1-eth0
        for c in /sys/fs/cgroup/*/; do mkdir -p $c/kubepods/pod1; done",
    );
    start_process(
        host,
        "for c in /sys/fs/cgroup/*/; do echo $$ > $c/kubepods/pod1/cgroup.procs; done; \
         exec -a our-pod sleep 1000",
    );
    start_process(host, &shim("/run/wharf/containerd/containerd.sock"));
    wait_for("our processes", SOON, || Ok((our_processes(host) == "2").then_some(()))).unwrap();
}

/// What somebody else has on the host, with names like ours.
fn grow_somebody_elses(host: &Host) {
    shell(
        host,
        "set -e
        ip netns add cni-theirs
        ip link add docker0 type bridge
        nft add table ip docker
        mkdir -p /etc/cni/net.d /etc/containerd
        echo theirs > /etc/cni/net.d/10-theirs.conf
        echo theirs > /etc/containerd/config.toml",
    );
    start_process(host, "exec ip netns exec cni-theirs sleep 1000");
    start_process(host, &shim("/run/containerd/containerd.sock"));
    let both = || Ok((their_processes(host) == "2").then_some(()));
    wait_for("somebody else's processes", SOON, both).unwrap();
}

/// A process that looks like one that watches over a container.
fn shim(address: &str) -> String {
    format!("exec -a containerd-shim-runc-v2 perl -e 'sleep 1000' -- -address {address}")
}

/// It outlives the connection that started it.
fn start_process(host: &Host, script: &str) {
    let arguments = ["setsid", "-f", "bash", "-c", script];
    let quoted = arguments.map(|word| format!("'{}'", word.replace('\'', "'\\''")));
    shell(host, &format!("{} >/dev/null 2>&1 </dev/null", quoted.join(" ")));
}

// The brackets keep the shell that runs this from finding itself.
fn our_processes(host: &Host) -> String {
    shell(host, "pgrep -fc '[o]ur-pod|/run/[w]harf/containerd' || true")
}

fn their_processes(host: &Host) -> String {
    let in_namespace = "ip netns pids cni-theirs | wc -l";
    let shims = "pgrep -fc '/run/[c]ontainerd/containerd.sock'";
    shell(host, &format!("echo $(( $({in_namespace}) + $({shims}) ))"))
}

fn subjects(report: &HostReport) -> Vec<(Action, &str)> {
    report.changes.iter().map(|change| (change.action, change.subject.as_str())).collect()
}

fn start() -> TestBed {
    let bed = TestBed::start("agent-host", 1).unwrap();
    let host = &bed.hosts()[0];
    // What a boot still does would be taken for ours.
    host.ssh(&["systemctl", "is-system-running", "--wait"]).unwrap();
    // So would the route that the kernel adds once it knows that nobody else has the address.
    wait_for("the host's own IPv6 address", SOON, || {
        let settled = shell(host, "ip -6 -o addr show dev host0 tentative").is_empty()
            && !shell(host, "ip -6 -o addr show dev host0 -tentative").is_empty();
        Ok(settled.then_some(()))
    })
    .unwrap();
    std::fs::copy(example("host_apply").unwrap(), host.root().join("srv/host_apply")).unwrap();
    bed
}

#[test]
fn a_host_follows_its_document_and_is_as_before_after_the_removal() {
    let bed = start();
    let host = &bed.hosts()[0];
    grow_somebody_elses(host);
    let before = world(host);

    let report = apply(host, &document());
    assert_eq!(report.failure, None);
    assert_eq!(
        report.running.keys().collect::<Vec<_>>(),
        ["wharf-one.service", "wharf-two.service"]
    );
    for (unit, pid) in &report.running {
        assert_eq!(
            host.run(&["systemctl", "show", "-P", "MainPID", unit]).unwrap(),
            pid.to_string()
        );
        assert_eq!(host.run(&["systemctl", "is-enabled", unit]).unwrap(), "enabled");
    }
    assert_eq!(shell(host, &format!("cat {RANGE}")), "20000\t50000");

    nothing_changes_the_second_time(host, &report);
    let later = only_what_changed_is_restarted(host, &report);
    a_dropped_unit_is_removed(host, &later);

    grow(host);
    assert_is_seen(&world(host));
    removal_restores(host, &before);
}

fn nothing_changes_the_second_time(host: &Host, first: &HostReport) {
    let written = "find / -xdev -newer /srv/moment -type f -not -path '/proc/*' -not -path '/sys/*' \
        -not -path '/var/log/journal/*' -not -path '/run/*' -not -path '/var/lib/systemd/*'";
    shell(host, "touch /srv/moment");
    let again = apply(host, &document());
    assert_eq!((again.failure.as_ref(), subjects(&again)), (None, vec![]));
    assert_eq!(again.running, first.running, "the same processes");
    assert_eq!(shell(host, written), "", "nothing was written");
    shell(host, "rm /srv/moment");
}

fn only_what_changed_is_restarted(host: &Host, first: &HostReport) -> HostDocument {
    let mut later = document();
    later.files[1] = text_file("/etc/wharf/two.conf", "3");
    let report = apply(host, &later);
    assert_eq!(report.failure, None);
    let expected =
        [(Action::WriteFile, "/etc/wharf/two.conf"), (Action::RestartUnit, "wharf-two.service")];
    assert_eq!(subjects(&report), expected);
    assert_eq!(report.running["wharf-one.service"], first.running["wharf-one.service"]);
    assert_ne!(report.running["wharf-two.service"], first.running["wharf-two.service"]);
    assert_eq!(subjects(&apply(host, &later)), []);
    later
}

fn a_dropped_unit_is_removed(host: &Host, document: &HostDocument) {
    let mut later = document.clone();
    later.units.remove(0);
    let report = apply(host, &later);
    assert_eq!(report.failure, None);
    let expected = [
        (Action::StopUnit, "wharf-one.service"),
        (Action::Remove, "/etc/systemd/system/wharf-one.service"),
    ];
    assert_eq!(subjects(&report), expected);
    assert_eq!(report.running.keys().collect::<Vec<_>>(), ["wharf-two.service"]);
    let known = shell(host, "systemctl list-unit-files --no-legend 'wharf*'");
    assert!(known.starts_with("wharf-two.service") && known.lines().count() == 1, "{known}");
}

/// A comparison before and after means something only if it sees every kind of thing.
fn assert_is_seen(world: &[String]) {
    for (kind, sign) in [
        ("file", "/etc/wharf/two.conf 600"),
        ("link", "/etc/wharf/latest"),
        ("mount", "/var/lib/kubelet/pods/1/volume"),
        ("bridge", "wharf0"),
        ("pair", "vethours"),
        ("cgroup", "/kubepods"),
        ("table", "table ip wharf"),
        ("route", "proto 117"),
        ("namespace", "cni-ours"),
        ("unit file", "wharf-two.service enabled"),
        ("unit", "wharf-two.service loaded active"),
        ("setting", "20000 50000"),
        ("place", "wharf"),
    ] {
        assert!(world.iter().any(|line| line.contains(sign)), "no {kind} is seen");
    }
}

fn assert_same(before: &[String], after: &[String]) {
    let gone: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    let left: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    assert!(gone.is_empty() && left.is_empty(), "gone: {gone:#?}\nleft: {left:#?}");
}

fn removal_restores(host: &Host, before: &[String]) {
    let said: RemovalReport = call(host, &["remove", "--dry-run"], "");
    assert!(!said.changes.is_empty());
    assert_eq!(our_processes(host), "2", "a dry run ends nothing");
    let report: RemovalReport = call(host, &["remove"], "");
    assert_eq!(report.leftovers, [], "{:#?}", report.changes);
    assert_same(before, &world(host));
    assert_eq!((our_processes(host), their_processes(host)), ("0".to_owned(), "2".to_owned()));
    assert_eq!(shell(host, "cat /etc/cni/net.d/10-theirs.conf"), "theirs");
    let again: RemovalReport = call(host, &["remove"], "");
    assert_eq!((again.changes, again.leftovers), (vec![], vec![]));
}

#[test]
fn a_unit_that_does_not_come_up_is_reported_with_its_last_words() {
    let bed = start();
    let host = &bed.hosts()[0];
    let mut document = document();
    let script = "/bin/sh -c 'echo the disk is full; exit 3'";
    let mut bad = service("wharf-bad.service", script, &[]);
    bad.text = bad.text.replace("[Service]\n", "[Service]\nType=notify\nRestart=always\n");
    document.units.insert(0, bad);
    let report = apply(host, &document);
    let failure = report.failure.unwrap();
    assert_eq!(failure.step, "start wharf-bad.service");
    assert!(failure.detail.contains("the disk is full"), "{failure:#?}");
    assert!(failure.hint.is_some());
    let state = host.run(&["systemctl", "is-active", "wharf-one.service"]).unwrap();
    assert_eq!(state, "active", "others came up all the same");

    // The document is put right: the bad one runs, and the others are left alone.
    document.units[0].text = service("wharf-bad.service", "/bin/sleep infinity", &[]).text;
    let report = apply(host, &document);
    assert_eq!(report.failure, None);
    let started = subjects(&report);
    assert!(started.iter().all(|(_, subject)| *subject == "wharf-bad.service"), "{started:?}");
    let removed: RemovalReport = call(host, &["remove"], "");
    assert_eq!(removed.leftovers, []);
}

/// Kills the program after that many milliseconds, which may be before, in or after its work.
fn killed_after(host: &Host, milliseconds: u32, arguments: &str, input: &str) {
    let seconds = format!("{:.3}", f64::from(milliseconds) / 1000.0);
    let script = format!("timeout -s KILL {seconds} {PROGRAM} {arguments}; true");
    let mut command = host.ssh_command();
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // It may be dead before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait().unwrap();
}

#[test]
fn what_a_killed_program_has_begun_is_finished_by_the_next() {
    let bed = start();
    let host = &bed.hosts()[0];
    let before = world(host);
    let document = document();
    let text = serde_json::to_string(&document).unwrap();
    for milliseconds in [5, 10, 20, 40, 80, 160] {
        killed_after(host, milliseconds, "apply", &text);
    }
    let report = apply(host, &document);
    assert_eq!((report.failure, report.running.len()), (None, 2));
    assert_eq!(subjects(&apply(host, &document)), []);
    grow(host);
    for milliseconds in [10, 20, 40, 80, 160, 320] {
        killed_after(host, milliseconds, "remove", "");
    }
    let report: RemovalReport = call(host, &["remove"], "");
    assert_eq!(report.leftovers, []);
    assert_same(&before, &world(host));
}
