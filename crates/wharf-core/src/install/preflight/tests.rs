use std::net::{Ipv4Addr, SocketAddrV4};

use super::*;

/// A controlplane and two workers.
fn spec() -> ClusterSpec {
    let mut spec = ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), "1.36.3");
    "ops".clone_into(&mut spec.ssh.user);
    spec.nodes = vec![
        node(1, &[NodeRole::Controlplane, NodeRole::Etcd]),
        node(2, &[NodeRole::Worker]),
        node(3, &[NodeRole::Worker]),
    ];
    spec
}

fn node(n: u8, roles: &[NodeRole]) -> NodeSpec {
    let address = Ipv4Addr::new(10, 0, 0, n);
    NodeSpec { name: format!("n{n}"), address, roles: roles.to_vec(), host_key: None }
}

/// A host about which nothing can be said.
fn good(n: u8) -> HostFacts {
    HostFacts {
        hostname: format!("host{n}"),
        machine_id: format!("id{n}"),
        os: "debian".to_owned(),
        os_version: "12".to_owned(),
        arch: "x86_64".to_owned(),
        kernel: "6.1.0-25-amd64".to_owned(),
        boot_id: format!("boot{n}"),
        systemd: true,
        root: true,
        cgroup_version: 2,
        sys_resource: true,
        cpus: 2,
        memory_mib: 4096,
        free_data_mib: 40_000,
        free_programs_mib: 40_000,
        data_filesystem: "ext2/ext3".to_owned(),
        containerd_filesystem: "ext2/ext3".to_owned(),
        clock_seconds: 1000,
        asked_at_seconds: 1000,
        addresses: vec![Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, n)],
        interface: "eth0".to_owned(),
        mtu: 1500,
        listening: vec![(22, "sshd".to_owned())],
        resolv_conf: "/etc/resolv.conf".to_owned(),
        resolves_outside: true,
        kernel_modules: ["overlay", "br_netfilter", "nf_conntrack", "nf_tables", "vxlan"]
            .map(str::to_owned)
            .to_vec(),
        ..HostFacts::default()
    }
}

fn judge(spec: &ClusterSpec, change: impl Fn(u8, &mut HostFacts)) -> Vec<Finding> {
    let mut facts = BTreeMap::new();
    for n in 1..=3 {
        let mut host = good(n);
        change(n, &mut host);
        facts.insert(format!("n{n}"), host);
    }
    decide_preflight(spec, &facts, Some("ours"), "amd64")
}

/// What is found when the hosts `n1` (controlplane) or `n2` (worker) are changed.
fn findings(spec: &ClusterSpec, n: u8, change: impl Fn(&mut HostFacts)) -> Vec<(Check, Severity)> {
    let found = judge(spec, |host, facts| {
        if host == n {
            change(facts);
        }
    });
    for finding in &found {
        assert_eq!(finding.node, format!("n{n}"), "{finding:?}");
        assert!(!finding.message.is_empty() && !finding.hint.is_empty(), "{finding:?}");
    }
    found.into_iter().map(|finding| (finding.check, finding.severity)).collect()
}

#[test]
fn good_hosts_have_no_findings() {
    assert_eq!(judge(&spec(), |_, _| {}), []);
}

#[test]
fn each_fault_of_a_host_is_one_finding() {
    use Severity::{Error, Warning};
    type Change = fn(&mut HostFacts);
    let cases: &[(u8, Change, (Check, Severity))] = &[
        (2, |f| f.root = false, (Check::Root, Error)),
        (2, |f| f.systemd = false, (Check::Systemd, Error)),
        (2, |f| f.arch = "aarch64".to_owned(), (Check::Arch, Error)),
        (2, |f| f.kernel = "5.10.0-28-amd64".to_owned(), (Check::Kernel, Error)),
        (2, |f| f.kernel = "unknown".to_owned(), (Check::Kernel, Error)),
        (2, |f| f.kernel_modules.retain(|m| m != "overlay"), (Check::Modules, Error)),
        (2, |f| f.kernel_modules.retain(|m| m != "br_netfilter"), (Check::Modules, Warning)),
        (2, |f| f.missing_tools = vec!["nft".to_owned()], (Check::Tools, Error)),
        (2, |f| f.cgroup_version = 1, (Check::Cgroup, Warning)),
        (1, |f| f.memory_mib = 999, (Check::Memory, Error)),
        (1, |f| f.memory_mib = 1699, (Check::Memory, Warning)),
        (2, |f| f.memory_mib = 899, (Check::Memory, Warning)),
        (2, |f| f.memory_mib = 499, (Check::Memory, Error)),
        (2, |f| f.free_data_mib = 4095, (Check::Disk, Error)),
        (2, |f| f.free_data_mib = 4096, (Check::Disk, Warning)),
        (2, |f| f.free_programs_mib = 1000, (Check::Disk, Error)),
        (2, |f| f.swap = true, (Check::Swap, Warning)),
        (2, |f| f.clock_seconds += 3600, (Check::Clock, Error)),
        (2, |f| f.clock_seconds -= 31, (Check::Clock, Error)),
        (2, |f| f.addresses = vec![Ipv4Addr::new(10, 9, 9, 9)], (Check::Address, Error)),
        (1, |f| f.listening.push((6443, "haproxy".to_owned())), (Check::Ports, Error)),
        (1, |f| f.listening.push((2379, String::new())), (Check::Ports, Error)),
        (2, |f| f.listening.push((10250, "kubelet".to_owned())), (Check::Ports, Error)),
        (2, |f| f.cluster = Some("other".to_owned()), (Check::Cluster, Error)),
        (2, |f| f.leftovers = vec!["/var/lib/kubelet".to_owned()], (Check::Leftovers, Error)),
        (2, |f| f.unreachable = vec![Ipv4Addr::new(10, 0, 0, 3)], (Check::Reachability, Error)),
        (2, |f| f.resolv_conf.clear(), (Check::Resolver, Warning)),
        (2, |f| f.forward_drops = vec!["ip filter FORWARD".to_owned()], (Check::Firewall, Warning)),
    ];
    for (number, (n, change, expected)) in cases.iter().enumerate() {
        assert_eq!(findings(&spec(), *n, change), [*expected], "case {number}");
    }
}

#[test]
fn what_only_looks_like_a_fault_is_none() {
    type Change = fn(&mut HostFacts);
    let cases: &[(u8, Change)] = &[
        (2, |f| f.memory_mib = 900),
        (2, |f| f.clock_seconds += 30),
        // A worker needs none of these.
        (2, |f| f.listening.extend([(6443, String::new()), (2379, String::new())])),
        // Our own units listen, on a host that is part of this cluster.
        (1, |f| {
            f.cluster = Some("demo".to_owned());
            f.identity = "ours".to_owned();
            (f.free_data_mib, f.free_programs_mib) = (100, 100);
            f.listening.extend([(6443, String::new()), (10250, String::new())]);
        }),
        (2, |f| f.kernel_modules.retain(|m| m != "vxlan")),
    ];
    for (number, (n, change)) in cases.iter().enumerate() {
        assert_eq!(findings(&spec(), *n, change), [], "case {number}");
    }
}

#[test]
fn ports_are_not_looked_at_if_the_wish_says_so() {
    let spec = ClusterSpec { disable_port_check: true, ..spec() };
    assert_eq!(findings(&spec, 1, |f| f.listening.push((6443, String::new()))), []);
}

#[test]
fn all_faults_of_all_hosts_come_at_once_and_are_told_in_words() {
    let found = judge(&spec(), |n, facts| {
        if n == 1 {
            facts.listening.push((6443, "haproxy".to_owned()));
            facts.listening.push((10250, String::new()));
            facts.clock_seconds -= 3600;
        }
        if n == 3 {
            facts.cluster = Some("other".to_owned());
            facts.unreachable = vec![Ipv4Addr::new(10, 0, 0, 1)];
        }
    });
    let told: Vec<String> = found.iter().map(|f| format!("{}: {}", f.node, f.message)).collect();
    assert_eq!(
        told,
        [
            "n1: the clock is 3600 s behind the server's",
            "n1: ports in use that Kubernetes needs: 6443 (by haproxy), 10250",
            "n3: n1 (10.0.0.1) cannot be reached from this host",
            "n3: the host belongs to cluster other",
        ]
    );
}

#[test]
fn a_clock_that_differs_from_the_others_is_found_although_the_server_is_between_them() {
    let found = judge(&spec(), |n, facts| facts.clock_seconds += if n == 3 { -20 } else { 20 });
    let told: Vec<String> = found.iter().map(|f| format!("{}: {}", f.node, f.message)).collect();
    assert_eq!(told, ["n3: the clock is 40 s behind most other hosts'"]);
}

#[test]
fn clones_are_told_apart_by_nobody_so_both_are_named() {
    let found = judge(&spec(), |n, facts| {
        if n > 1 {
            "same".clone_into(&mut facts.machine_id);
            "same".clone_into(&mut facts.hostname);
        }
    });
    let told: Vec<(String, Check)> = found.into_iter().map(|f| (f.node, f.check)).collect();
    let both = |n: &str| [(n.to_owned(), Check::MachineId), (n.to_owned(), Check::Hostname)];
    assert_eq!(told, [both("n2"), both("n3")].concat());
}

#[test]
fn hosts_that_did_not_answer_are_not_judged() {
    let facts = BTreeMap::from([("n1".to_owned(), good(1)), ("stranger".to_owned(), good(1))]);
    let found = decide_preflight(&spec(), &facts, None, "amd64");
    // The stranger is only somebody to compare with.
    assert!(found.iter().all(|finding| finding.node == "n1"), "{found:?}");
}

#[test]
fn another_cluster_of_the_same_name_is_told_and_how_to_clean_the_host() {
    for identity in [Some("ours"), None] {
        let mut facts = BTreeMap::from([("n2".to_owned(), good(2))]);
        let host = facts.get_mut("n2").unwrap();
        host.cluster = Some("demo".to_owned());
        "theirs".clone_into(&mut host.identity);
        let found = decide_preflight(&spec(), &facts, identity, "amd64");
        let told: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(told, ["the host holds another cluster that is named demo too"]);
        assert!(found[0].hint.contains("wharf agent host remove"), "{}", found[0].hint);
    }
}
