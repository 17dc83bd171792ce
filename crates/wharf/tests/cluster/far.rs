//! Machines that are far away: on another network, and reached over another machine.

use std::{net::Ipv4Addr, path::PathBuf, process::Command};

use serde_json::json;
use wharf_bundle::{Bundle, catalogue::compare_versions};
use wharf_testbed::{Host, HostOptions, Options, TestBed};

use crate::{CONTROL, WORKER, bed::Bed, nodes_ready};

/// Two bridges with different subnets and a router between them, which is the jump host too: the
/// nodes take SSH from nobody else.
#[test]
fn a_cluster_spans_two_networks_and_is_installed_over_a_jump_host() {
    let bed = Bed::start("far", 2);
    let far = TestBed::start_with(
        &TestBed::unique_name("far-there"),
        &Options { hosts: vec![HostOptions::named("far1").with_bundle().unwrap()], keep: false },
    )
    .unwrap();
    let (near, router) = (bed.host("node1"), bed.host("node2"));
    let there = far.host("far1").unwrap();
    let keys = |host: &Host| host.root().join("root/.ssh/authorized_keys");
    let both = [keys(near), keys(there)].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(keys(there), both.concat()).unwrap();
    let networks = [Network::of(near), Network::of(there)];
    let far_side = join(router, &far.bridge(), there);
    networks[0].run(&["ip", "route", "add", &subnet(there), "via", &router.address().to_string()]);
    networks[1].run(&["ip", "route", "add", &subnet(near), "via", &far_side.to_string()]);
    for (network, gateway) in networks.iter().zip([bed.machines.gateway(), far.gateway()]) {
        let refuse = format!(
            "table ip refuse {{\n chain input {{\n type filter hook input priority 0;\n \
             ip saddr {gateway} tcp dport 22 drop\n }}\n }}"
        );
        network.run(&["nft", &refuse]);
    }

    let mut wish = bed.wish("far", &[("node1", CONTROL)]);
    // Where the cache has several versions, the oldest: its programs did not come with the machines
    // and are uploaded.
    let version = oldest_version();
    wish["kubernetesVersion"] = json!(version);
    let node = json!({"name": "far1", "address": there.address().to_string(), "roles": WORKER});
    wish["nodes"].as_array_mut().unwrap().push(node);
    let refused = bed.send(&["create"], &wish).exits(1);
    assert!(refused.stderr.contains("node1") && refused.stderr.contains("far1"), "{refused:?}");

    wish["sshJumpHost"] = json!(format!("root@{}", router.address()));
    bed.send(&["update", "far"], &wish).ok();
    // The proof at the end of an installation is that pods reach each other; here is the way.
    assert_eq!((bed.status("far").as_str(), nodes_ready(&bed, "far")), ("Running", 2));
    let kubelets = "jsonpath={.items[*].status.nodeInfo.kubeletVersion}";
    let kubelets = bed.kubectl("far", &["get", "nodes", "-o", kubelets]).unwrap();
    assert_eq!(kubelets, format!("v{version} v{version}"));
    for network in &networks {
        let routes = network.run(&["ip", "route"]);
        assert!(routes.contains("dev wharf-vx"), "{routes}");
    }
    bed.world.local(&["cluster", "delete", "far", "--yes"]).ok();
    for host in [near, there] {
        assert!(!host.root().join("opt/wharf").exists(), "{}", host.name());
    }
}

fn oldest_version() -> String {
    let bundles = wharf_testbed::cache_dir().unwrap().join("bundles");
    let bundles = std::fs::read_dir(bundles).unwrap().flatten();
    let bundles = bundles.filter_map(|entry| Bundle::open(&entry.path()).ok());
    let versions = bundles.map(|bundle| bundle.manifest().kubernetes.clone());
    versions.min_by(|a, b| compare_versions(a, b)).unwrap()
}

/// A host's network, entered from outside.
struct Network(PathBuf);

impl Network {
    fn of(host: &Host) -> Self {
        let namespace = host.run(&["readlink", "/proc/self/ns/net"]).unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut networks = processes.map(|process| process.path().join("ns/net"));
        let same = |network: &PathBuf| {
            std::fs::read_link(network).is_ok_and(|link| link.to_string_lossy() == namespace)
        };
        Self(networks.find(same).expect("the host runs"))
    }

    fn run(&self, argv: &[&str]) -> String {
        run(Command::new("nsenter").arg(format!("--net={}", self.0.display())).args(argv))
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn subnet(host: &Host) -> String {
    let [a, b, c, _] = host.address().octets();
    format!("{}/24", Ipv4Addr::new(a, b, c, 0))
}

/// Gives a host a second leg on another bed's bridge, with an address beside `neighbour`. It goes
/// with the host's network.
fn join(host: &Host, bridge: &str, neighbour: &Host) -> Ipv4Addr {
    let [a, b, c, _] = neighbour.address().octets();
    let address = Ipv4Addr::new(a, b, c, 250);
    let network = Network::of(host);
    let process = network.0.iter().nth(2).unwrap().to_string_lossy().into_owned();
    // Unique on the machine, as the bridge is.
    let leg = format!("leg-{bridge}");
    run(Command::new("ip")
        .args(["link", "add", &leg, "master", bridge, "type", "veth"])
        .args(["peer", "name", "leg1", "netns", &process]));
    run(Command::new("ip").args(["link", "set", &leg, "up"]));
    network.run(&["ip", "address", "add", &format!("{address}/24"), "dev", "leg1"]);
    network.run(&["ip", "link", "set", "leg1", "up"]);
    address
}
