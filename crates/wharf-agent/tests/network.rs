//! The agent's network on real hosts, with pods that the real CNI plugins plug in. These tests
//! need root, and the plugins in the cache (`cargo xtask assets`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use wharf_core::install::network::{
    BALANCER, Balancer, NetworkFile, NetworkMode, NetworkNode, pod_mtu, render_conflist,
};
use wharf_testbed::process::example;
use wharf_testbed::{Bind, Host, Options, TestBed, wait_for};

/// The agent looks again every ten seconds; the machine may be busy.
const SOON: Duration = Duration::from_secs(40);
const AGENT: &str = "/usr/local/bin/node_agent";
const PLUGINS: &str = "/opt/cni";
/// A port of each host that leads to its pod.
const HOST_PORT: u16 = 8080;
/// An address of the range of Services.
const SERVICE: &str = "10.43.0.10";
/// Much more than one packet, to find packets that are too large.
const BLOB_BYTES: usize = 300_000;

fn start_bed(prefix: &str, hosts: usize) -> TestBed {
    let plugin = wharf_bundle::cache::find("bridge").expect("the CNI plugins are in the cache");
    let mut options = Options::hosts(hosts);
    for host in &mut options.hosts {
        let bind = |source: &Path, target: &str| Bind {
            source: source.to_owned(),
            target: target.into(),
            read_only: true,
        };
        host.binds.push(bind(&example("node_agent").unwrap(), AGENT));
        host.binds.push(bind(plugin.parent().unwrap(), PLUGINS));
    }
    TestBed::start_with(&TestBed::unique_name(prefix), &options).unwrap()
}

/// A node and the one pod on it.
struct Node<'a> {
    host: &'a Host,
    file: NetworkFile,
    pod: Ipv4Addr,
}

impl<'a> Node<'a> {
    /// Starts the agent as a unit that counts as started when the agent says that it is ready, and
    /// plugs in a pod. Peers are told later.
    fn start(host: &'a Host, number: u8, mode: NetworkMode) -> Self {
        let file = NetworkFile {
            node: NetworkNode {
                name: host.name().to_owned(),
                address: host.address(),
                pod_cidr: format!("10.42.{number}.0/24").parse().unwrap(),
            },
            cluster_cidr: "10.42.0.0/16".parse().unwrap(),
            service_cidr: "10.43.0.0/16".parse().unwrap(),
            mode,
            interface: None,
            peers: Vec::new(),
            balancer: Balancer {
                listen: BALANCER,
                servers: Vec::new(),
                authority_file: "/etc/wharf/pki/ca.crt".to_owned(),
            },
        };
        let mut node = Self { host, file, pod: Ipv4Addr::UNSPECIFIED };
        node.write_file();
        let config = format!("node_name = '{}'\n", host.name());
        fs::write(host.root().join("etc/wharf/agent/agent.toml"), config).unwrap();
        sh(host, "sysctl -qw net.ipv4.ip_forward=1");
        serve(
            host,
            "wharf-agent",
            &["-p", "Type=notify"],
            &format!("{AGENT} /etc/wharf/agent/agent.toml"),
        );
        node.pod = node.plug_pod();
        let server = |unit, port, what: &str| {
            let command =
                format!("ip netns exec pod socat TCP-LISTEN:{port},fork,reuseaddr {what}");
            serve(host, unit, &[], &command);
        };
        sh(host, &format!("head -c {BLOB_BYTES} /dev/urandom > /run/blob"));
        server("who", 80, "SYSTEM:'echo $SOCAT_PEERADDR'");
        server("blob", 81, "OPEN:/run/blob,rdonly");
        node
    }

    fn write_file(&self) {
        let path = self.host.root().join("etc/wharf/agent/network.json");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(&self.file).unwrap()).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn set(&mut self, mode: NetworkMode, peers: &[NetworkNode]) {
        self.file.mode = mode;
        self.file.peers = peers.to_vec();
        self.write_file();
    }

    /// What containerd does with the configuration for a pod that asks for a port of its host.
    fn plug_pod(&self) -> Ipv4Addr {
        let list = render_conflist(&self.file, pod_mtu(self.file.mode, 1500));
        let list: Value = serde_json::from_str(&list).unwrap();
        sh(self.host, "ip netns add pod");
        let mut answer = Value::Null;
        for plugin in list["plugins"].as_array().unwrap() {
            let mut config = plugin.clone();
            config["cniVersion"] = list["cniVersion"].clone();
            config["name"] = list["name"].clone();
            if plugin["capabilities"]["portMappings"] == true {
                config["prevResult"] = answer;
                let port = json!({ "hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp" });
                config["runtimeConfig"] = json!({ "portMappings": [port] });
            }
            let name = plugin["type"].as_str().unwrap();
            fs::write(self.host.root().join("etc/plugin.json"), config.to_string()).unwrap();
            let run = format!(
                "CNI_COMMAND=ADD CNI_CONTAINERID=pod CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod \
                 CNI_PATH={PLUGINS} {PLUGINS}/{name} < /etc/plugin.json"
            );
            answer = serde_json::from_str(&sh(self.host, &run)).unwrap();
        }
        let address = answer["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap().parse().unwrap()
    }

    /// Whom the pod at `to` sees when this node's pod connects to it.
    fn seen_by(&self, to: Ipv4Addr) -> Option<String> {
        let command =
            format!("ip netns exec pod timeout 3 socat -u TCP:{to}:80,connect-timeout=2 -");
        let output = self.host.ssh(&["sh", "-c", &command]).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Pods see each other by their own addresses, in packets of every size.
    fn reaches(&self, other: &Node<'_>) {
        wait_for(&format!("pod {} to reach {}", self.pod, other.pod), SOON, || {
            let own = self.pod.to_string();
            Ok((self.seen_by(other.pod).as_ref() == Some(&own)).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", self.state(), other.state()));
        let fetch = format!(
            "ip netns exec pod timeout 20 socat -u TCP:{}:81,connect-timeout=5 - | wc -c",
            other.pod
        );
        assert_eq!(sh(self.host, &fetch), BLOB_BYTES.to_string());
    }

    fn routes(&self) -> String {
        sh(self.host, "ip route show proto 117")
    }

    fn wait_for_routes(&self, what: &str, wanted: impl Fn(&str) -> bool) {
        wait_for(what, SOON, || Ok(wanted(&self.routes()).then_some(())))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.state()));
    }

    /// What kube-proxy does on this node for a Service with one pod: packets of the node itself get the
    /// pod's address on their way out, and that of the device through which they leave.
    fn set_service(&self, pod: Ipv4Addr) {
        let rules = format!(
            "table ip proxy {{
                chain output {{
                    type nat hook output priority -100;
                    ip daddr {SERVICE} meta mark set 0x4000 dnat to {pod}
                }}
                chain postrouting {{
                    type nat hook postrouting priority 100;
                    meta mark 0x4000 masquerade
                }}
            }}"
        );
        fs::write(self.host.root().join("etc/service.nft"), rules).unwrap();
        sh(self.host, "nft delete table ip proxy 2>/dev/null; nft -f /etc/service.nft");
    }

    /// The node itself reaches the Service; its pod sees the node at this address.
    fn reaches_service_as(&self, seen: Ipv4Addr) {
        let ask = format!("timeout 3 socat -u TCP:{SERVICE}:80,connect-timeout=2 - || true");
        wait_for("the node to reach the Service", SOON, || {
            Ok((sh(self.host, &ask) == seen.to_string()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.state()));
        let fetch = format!("timeout 20 socat -u TCP:{SERVICE}:81,connect-timeout=5 - | wc -c");
        assert_eq!(sh(self.host, &fetch), BLOB_BYTES.to_string());
    }

    /// The agent's route to Services, as `ip route` shows it.
    fn service_route(&self) -> String {
        let range = self.file.service_cidr;
        format!("{range} dev host0 scope link src {} metric", self.host.address())
    }

    /// For the message of a failure.
    fn state(&self) -> String {
        let look = "hostname; ip -d addr; ip route; ip neigh; bridge fdb show dev wharf-vx; \
                    nft list ruleset; journalctl -u wharf-agent --no-pager | tail -20";
        sh(self.host, &format!("({look}) 2>&1 || true"))
    }
}

fn sh(host: &Host, script: &str) -> String {
    host.run(&["sh", "-c", script]).unwrap()
}

/// Runs a command as a unit and returns when it counts as started.
fn serve(host: &Host, unit: &str, options: &[&str], command: &str) {
    let unit = format!("--unit={unit}");
    let mut words = vec!["systemd-run", "--quiet", &unit];
    words.extend(options);
    words.extend(["sh", "-c"]);
    let command = format!("exec {command}");
    words.push(&command);
    host.run(&words).unwrap();
}

fn introduce(nodes: &mut [Node<'_>], mode: NetworkMode) {
    let all: Vec<NetworkNode> = nodes.iter().map(|node| node.file.node.clone()).collect();
    for node in nodes {
        let others = |peer: &&NetworkNode| peer.address != node.file.node.address;
        let peers: Vec<_> = all.iter().filter(others).cloned().collect();
        node.set(mode, &peers);
    }
}

#[test]
fn pods_reach_each_other_and_what_others_remove_comes_back() {
    let bed = start_bed("agent-net", 3);
    let [a, b, outside] = bed.hosts() else { panic!("three hosts were asked for") };
    let mut nodes = [a, b].map(|host| {
        let number = host.address().octets()[3];
        Node::start(host, number, NetworkMode::Routed)
    });
    introduce(&mut nodes, NetworkMode::Routed);
    let [a, b] = &nodes;
    a.reaches(b);
    b.reaches(a);
    let direct = format!("{} via {} dev host0", b.file.node.pod_cidr, b.host.address());
    assert!(a.routes().contains(&direct), "{}", a.routes());
    assert!(!a.state().contains("wharf-vx:"), "no tunnel is needed");

    // A node reaches pods of the other, and pods reach the outside under the node's address.
    let from_node = format!("timeout 3 socat -u TCP:{}:80 -", b.pod);
    assert_eq!(sh(a.host, &from_node), a.host.address().to_string());
    serve(outside, "who", &[], "socat TCP-LISTEN:80,fork,reuseaddr SYSTEM:'echo $SOCAT_PEERADDR'");
    wait_for("the outside to answer", SOON, || Ok(a.seen_by(outside.address()))).unwrap();
    assert_eq!(a.seen_by(outside.address()).unwrap(), a.host.address().to_string());

    let knock = format!("timeout 3 socat -u TCP:{}:{HOST_PORT} -", a.host.address());
    assert_eq!(sh(outside, &knock), outside.address().to_string());

    removed_comes_back(a, &direct);
    a.reaches(b);
    services_are_reached_by_whatever_route_there_is(a, b);

    mode_changes_while_pods_run(&mut nodes);
    a_peer_leaves(&mut nodes);
    a_stopped_agent_leaves_pods_connected(&nodes);
    bed.down().unwrap();
}

fn removed_comes_back(a: &Node<'_>, direct: &str) {
    // It stands still meanwhile: it is quicker than who looks.
    sh(a.host, "systemctl kill -s STOP wharf-agent");
    sh(a.host, "ip route flush proto 117 && nft delete table ip wharf");
    assert_eq!(a.routes(), "");
    sh(a.host, "systemctl kill -s CONT wharf-agent");
    a.wait_for_routes("the routes to come back", |routes| {
        routes.contains(direct) && routes.contains(&a.service_route())
    });
    let table = wait_for("the table to come back", SOON, || {
        let tables = sh(a.host, "nft list ruleset");
        Ok(tables.contains("table ip wharf").then_some(tables))
    })
    .unwrap();
    assert!(table.contains("masquerade"), "{table}");
    // A rule that somebody adds or removes there counts as well.
    sh(a.host, "nft flush table ip wharf");
    wait_for("the rule to come back", SOON, || {
        Ok(sh(a.host, "nft list table ip wharf").contains("masquerade").then_some(()))
    })
    .unwrap();
    assert_settled(a);
}

/// A new agent finds all as it should be; only the rules' text it has to set once to know it.
fn assert_settled(node: &Node<'_>) {
    let restart = "systemctl restart wharf-agent && journalctl -o cat --since=-1m \
                   _PID=$(systemctl show -P MainPID wharf-agent)";
    let log = sh(node.host, restart);
    let changes: Vec<&str> = log.lines().filter(|line| line.contains("changed")).collect();
    assert!(matches!(changes[..], [one] if one.contains("hide")), "{log}");
}

/// These hosts have no default route. One that comes is used, and when it goes, ours is there again.
fn services_are_reached_by_whatever_route_there_is(a: &Node<'_>, b: &Node<'_>) {
    a.set_service(b.pod);
    a.wait_for_routes("the route to Services", |routes| routes.contains(&a.service_route()));
    a.reaches_service_as(a.host.address());
    let ours = a.file.service_cidr.to_string();
    for way in ["default", &ours] {
        let other = format!("{way} via {}", b.host.address());
        sh(a.host, &format!("ip route add {other}"));
        a.wait_for_routes("the route to Services to go", |routes| !routes.contains(&ours));
        a.reaches_service_as(a.host.address());
        sh(a.host, &format!("ip route delete {other}"));
        a.wait_for_routes("it to come back", |routes| routes.contains(&a.service_route()));
    }
    a.reaches_service_as(a.host.address());
    // One that refuses is no way.
    sh(a.host, "ip route add unreachable default");
    assert_settled(a);
    a.reaches_service_as(a.host.address());
    sh(a.host, "ip route delete unreachable default");
}

fn mode_changes_while_pods_run(nodes: &mut [Node<'_>; 2]) {
    introduce(nodes, NetworkMode::Vxlan);
    let [a, b] = &*nodes;
    for node in [a, b] {
        node.wait_for_routes("routes through the tunnel", |r| r.contains("dev wharf-vx onlink"));
    }
    a.reaches(b);
    b.reaches(a);
    let from_node = format!("timeout 3 socat -u TCP:{}:80 -", b.pod);
    assert_eq!(sh(a.host, &from_node), a.file.node.pod_cidr.network().to_string());
    // To Services as well, although the way to them begins elsewhere.
    a.reaches_service_as(a.file.node.pod_cidr.network());
    // Whatever happens to the device, it is there again.
    sh(a.host, "ip link delete wharf-vx");
    a.reaches(b);
    sh(a.host, "ip link set wharf-vx down");
    a.reaches(b);
    sh(a.host, "ip neigh flush dev wharf-vx nud permanent; bridge fdb flush dev wharf-vx || true");
    a.reaches(b);
    assert_settled(a);
    a_peer_behind_the_tunnel_leaves(&mut nodes[0]);
    introduce(nodes, NetworkMode::Routed);
    for node in &*nodes {
        node.wait_for_routes("direct routes", |routes| routes.contains("dev host0"));
    }
    nodes[0].reaches(&nodes[1]);
    assert!(!nodes[0].state().contains("wharf-vx:"));
}

fn a_peer_behind_the_tunnel_leaves(node: &mut Node<'_>) {
    let known = |node: &Node<'_>| {
        sh(node.host, "ip neigh show dev wharf-vx; bridge fdb show dev wharf-vx; ip route")
    };
    let mut peers = node.file.peers.clone();
    let ghost = NetworkNode {
        name: "ghost".to_owned(),
        address: Ipv4Addr::new(192, 0, 2, 200),
        pod_cidr: "10.42.200.0/24".parse().unwrap(),
    };
    peers.push(ghost);
    node.set(NetworkMode::Vxlan, &peers);
    node.wait_for_routes("the new peer's route", |routes| routes.contains("10.42.200.0"));
    assert_eq!(known(node).matches("02:77:c0:00:02:c8").count(), 2, "{}", known(node));
    peers.pop();
    node.set(NetworkMode::Vxlan, &peers);
    wait_for("all of the peer to go", SOON, || {
        let known = known(node);
        Ok((!known.contains("02:77:c0") && !known.contains("10.42.200")).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", node.state()));
    assert!(node.routes().contains("wharf-vx"), "the other peer stays");
}

fn a_peer_leaves(nodes: &mut [Node<'_>; 2]) {
    let [a, b] = nodes;
    a.set(NetworkMode::Routed, &[]);
    let pods = b.file.node.pod_cidr.to_string();
    a.wait_for_routes("the route to go", |routes| !routes.contains(&pods));
    assert_eq!(b.seen_by(a.pod), None);
    introduce(nodes, NetworkMode::None);
    for node in &*nodes {
        wait_for("nothing to be left", SOON, || {
            let tables = sh(node.host, "nft list tables");
            Ok((node.routes().is_empty() && !tables.contains("ip wharf")).then_some(()))
        })
        .unwrap();
    }
    introduce(nodes, NetworkMode::Vxlan);
    nodes[0].reaches(&nodes[1]);
}

fn a_stopped_agent_leaves_pods_connected(nodes: &[Node<'_>; 2]) {
    for node in nodes {
        sh(node.host, "systemctl stop wharf-agent");
    }
    nodes[0].reaches(&nodes[1]);
}

/// Two bridges with different subnets, and a host on both that forwards between them.
#[test]
fn pods_reach_each_other_across_two_bridges_through_the_tunnel() {
    let (here, there) = (start_bed("agent-here", 2), start_bed("agent-there", 1));
    let [a, router] = here.hosts() else { panic!("two hosts were asked for") };
    let [b] = there.hosts() else { panic!("one host was asked for") };
    let [first, second, third, _] = b.address().octets();
    let far_side = Ipv4Addr::new(first, second, third, 250);
    join(router, &there.bridge(), far_side).unwrap();
    sh(router, "sysctl -qw net.ipv4.ip_forward=1");
    sh(a, &format!("ip route add {}/32 via {}", b.address(), router.address()));
    sh(b, &format!("ip route add {}/32 via {far_side}", a.address()));

    let mut nodes = [(a, 1), (b, 2)].map(|(h, n)| Node::start(h, n, NetworkMode::Routed));
    introduce(&mut nodes, NetworkMode::Routed);
    let [a, b] = &nodes;
    a.reaches(b);
    b.reaches(a);
    assert!(a.routes().contains("dev wharf-vx onlink"), "{}", a.routes());
    a.set_service(b.pod);
    a.reaches_service_as(a.file.node.pod_cidr.network());
    // It is the router that carries it, and nothing else.
    sh(router, "sysctl -qw net.ipv4.ip_forward=0");
    assert_eq!(a.seen_by(b.pod), None);
    sh(router, "sysctl -qw net.ipv4.ip_forward=1");
    a.reaches(b);
    here.down().unwrap();
    there.down().unwrap();
}

/// Gives a host a second leg on another bed's bridge. It goes with the host's network.
fn join(host: &Host, bridge: &str, address: Ipv4Addr) -> Result<()> {
    let namespace = host.run(&["readlink", "/proc/self/ns/net"])?;
    let process = fs::read_dir("/proc")?
        .flatten()
        .map(|entry| entry.path())
        .find(|process| {
            let link = fs::read_link(process.join("ns/net"));
            link.is_ok_and(|link| link.to_string_lossy() == namespace)
        })
        .expect("the host runs");
    let process = process.file_name().unwrap().to_string_lossy().into_owned();
    // Unique on the machine, as the bridge is.
    let leg = format!("leg-{bridge}");
    for words in [
        vec![
            "link", "add", &leg, "master", bridge, "type", "veth", "peer", "name", "leg1", "netns",
            &process,
        ],
        vec!["link", "set", &leg, "up"],
    ] {
        let output = Command::new("ip").args(&words).output()?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    host.run(&["sh", "-c", &format!("ip addr add {address}/24 dev leg1 && ip link set leg1 up")])?;
    Ok(())
}
