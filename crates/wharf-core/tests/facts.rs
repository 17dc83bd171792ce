//! The facts script on real machines: this one, and hosts of the test bed.
//!
//! The second needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// The crate does no I/O; its script is nothing else.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use wharf_core::cluster::{ClusterSpec, NodeRole, NodeSpec};
use wharf_core::install::facts::HostFacts;
use wharf_core::install::preflight::{Check, Severity, decide_preflight};
use wharf_core::install::script::{FACTS_SCRIPT, parse_facts};
use wharf_testbed::TestBed;

fn now_seconds() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

/// Runs the script as the server does: on standard input of a shell.
fn ask(mut shell: Command, arguments: &[String]) -> HostFacts {
    let mut child = shell
        .args(["sh", "-s", "--"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(FACTS_SCRIPT.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    parse_facts(&text, now_seconds()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn the_script_finds_the_facts_of_this_machine() {
    // Nothing listens on this port, so the one way to reach it is to see that it is not there.
    let port = wharf_testbed::process::free_port().unwrap().to_string();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listening = listener.local_addr().unwrap().port();
    let arguments = words(&["127.0.0.1", &port, "127.0.0.1"]);
    let facts = ask(Command::new("env"), &arguments);
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    assert_eq!(facts.hostname, read("/proc/sys/kernel/hostname"));
    assert_eq!(facts.boot_id, read("/proc/sys/kernel/random/boot_id"));
    assert_eq!(facts.kernel, read("/proc/sys/kernel/osrelease"));
    assert_eq!(facts.arch, std::env::consts::ARCH);
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(usize::try_from(facts.cpus).unwrap() >= cpus, "{facts:?}");
    assert!(facts.memory_mib > 256 && facts.free_data_mib > 0, "{facts:?}");
    assert!(facts.cgroup_version == 1 || facts.cgroup_version == 2);
    assert!((facts.clock_seconds - facts.asked_at_seconds).abs() <= 5, "{facts:?}");
    assert!(facts.addresses.contains(&Ipv4Addr::LOCALHOST));
    assert_eq!(facts.interface, "lo");
    assert!(facts.mtu >= 1500);
    assert!(facts.listening.iter().any(|(port, _)| *port == listening), "{facts:?}");
    assert_eq!(facts.unreachable, [Ipv4Addr::LOCALHOST]);
    drop(listener);
    let arguments = words(&["127.0.0.1", &port]);
    assert_eq!(ask(Command::new("env"), &arguments).unreachable, Vec::<Ipv4Addr>::new());
}

#[test]
fn the_script_does_without_the_tools_it_would_like() {
    // Only what every system has: no ip, ss, nft, bash, systemctl.
    let tools = tempfile::tempdir().unwrap();
    for tool in
        ["sh", "cat", "sed", "tr", "head", "df", "uname", "stat", "grep", "wc", "id", "date", "ls"]
    {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join(tool))
            .find(|path| path.exists())
            .unwrap();
        std::os::unix::fs::symlink(found, tools.path().join(tool)).unwrap();
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = FACTS_SCRIPT.replace(":/usr/local/sbin:/usr/sbin:/sbin", "");
    let output = Command::new("/bin/sh")
        .args(["-c", &script, "facts", "127.0.0.1", "22", "127.0.0.1"])
        .env("PATH", tools.path())
        .output()
        .unwrap();
    let facts = parse_facts(&String::from_utf8(output.stdout).unwrap(), now_seconds()).unwrap();
    assert_eq!(facts.missing_tools, ["ip", "mount", "nft", "systemctl"]);
    assert!(facts.memory_mib > 0 && !facts.kernel.is_empty());
    assert!(facts.listening.contains(&(port, String::new())), "{facts:?}");
}

#[test]
fn a_record_that_appears_while_the_script_looks_is_no_leftover_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let script = FACTS_SCRIPT.replace("/var/lib/wharf", place);
    let mut facts = Vec::new();
    // Looking makes what is seen, as an installation does that goes on meanwhile.
    for record in ["", r#"{"cluster": "demo", "identity": "one"}"#] {
        let ls = format!("ls() {{ echo found; printf %s '{record}' >{place}/made.json; }}\n");
        let output = Command::new("/bin/sh")
            .args(["-c", &format!("{ls}{script}"), "facts", "127.0.0.1", "22"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        facts.push(parse_facts(&text, now_seconds()).unwrap());
    }
    assert_eq!(facts[0].cluster, None);
    assert!(facts[0].leftovers.contains(&format!("{place}/state")), "{facts:?}");
    assert!(facts[1].holds("demo", Some("one")), "{facts:?}");
    assert_eq!(facts[1].leftovers, Vec::<String>::new());
}

#[test]
fn hosts_of_the_test_bed_are_recognised_as_what_they_are() {
    let bed = TestBed::start("facts", 2).unwrap();
    let [one, two] = bed.hosts() else { panic!("there are two hosts") };
    let nobody = Ipv4Addr::from(u32::from(two.address()) + 100);
    let mut facts = BTreeMap::new();
    for (host, others) in [(one, vec![two.address()]), (two, vec![one.address(), nobody])] {
        let mut arguments = vec![host.address().to_string(), "22".to_owned()];
        arguments.extend(others.iter().map(ToString::to_string));
        let found = ask(host.ssh_command(), &arguments);
        facts.insert(host.name().to_owned(), found);
    }
    let found = &facts[one.name()];
    assert!(found.root && found.systemd && found.container, "{found:?}");
    assert_eq!((found.os.as_str(), found.os_version.as_str()), ("debian", "12"));
    assert_eq!((found.cgroup_version, found.sys_resource), (1, false), "{found:?}");
    assert_eq!(found.data_filesystem, "overlayfs");
    assert_ne!(found.containerd_filesystem, "overlayfs");
    assert!(found.addresses.contains(&one.address()), "{found:?}");
    assert_eq!((found.interface.as_str(), found.mtu), ("host0", 1500));
    assert!(found.listening.contains(&(22, "sshd".to_owned())), "{found:?}");
    assert_eq!(found.boot_id, one.boot_id().unwrap());
    for module in ["overlay", "nf_tables", "nf_conntrack"] {
        assert!(found.kernel_modules.contains(&module.to_owned()), "{found:?}");
    }
    assert_eq!((&found.missing_tools, &found.leftovers), (&Vec::new(), &Vec::new()));
    assert_eq!(found.cluster, None);
    assert_eq!(found.unreachable, Vec::<Ipv4Addr>::new());
    assert_eq!(facts[two.name()].unreachable, [nobody]);

    let mut spec = ClusterSpec::new("demo", SocketAddrV4::new(nobody, 443), "1.36.3");
    spec.nodes = vec![
        node(one.name(), one.address(), &[NodeRole::Controlplane, NodeRole::Etcd]),
        node(two.name(), two.address(), &[NodeRole::Worker]),
    ];
    let errors: Vec<_> = decide_preflight(&spec, &facts, None, "amd64")
        .into_iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| (finding.node, finding.check))
        .collect();
    assert_eq!(errors, [(two.name().to_owned(), Check::Reachability)]);
    bed.down().unwrap();
}

fn node(name: &str, address: Ipv4Addr, roles: &[NodeRole]) -> NodeSpec {
    NodeSpec { name: name.to_owned(), address, roles: roles.to_vec(), host_key: None }
}
