//! The election of the reporter, by real agents before a real API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "../../wharf-kube/tests/cluster/passage.rs"]
#[allow(dead_code)]
mod passage;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use common::{Agent, kubectl, put};
use passage::Passage;
use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_testbed::{apiserver::ApiServer, process::Signal, wait_for};

const NAMESPACE: &str = "eve-kube-app";
const LEASE: &str = "eve-kube-stats-leader";
const INFO: &str = "zedkube/KubeLeaseInfo/global.json";
const STATS: &str = "zedkube/KubeClusterInfo/global.json";
/// A lease ends after 15 seconds, and the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// A node's agent with a kubeconfig of its own.
struct Node {
    agent: Agent,
    kubeconfig: PathBuf,
    /// What is in its files is its own word.
    speaks: Arc<AtomicBool>,
}

struct World {
    server: ApiServer,
    dir: TempDir,
    nodes: Vec<Node>,
}

impl World {
    fn new() -> Self {
        let server = ApiServer::start().unwrap();
        Self { server, dir: tempfile::tempdir().unwrap(), nodes: Vec::new() }
    }

    /// Starts the agent of the next node, which reaches its controller. `port` is where it finds the
    /// API server.
    fn add(&mut self, port: u16) {
        let name = format!("n{}", self.nodes.len());
        let kubeconfig = self.dir.path().join(&name);
        put(&kubeconfig, self.kubeconfig(port).as_bytes());
        let more = format!("node_name = '{name}'\nkubeconfig = '{}'", kubeconfig.display());
        let agent = Agent::start(None, &more);
        self.nodes.push(Node { agent, kubeconfig, speaks: Arc::new(AtomicBool::new(true)) });
        self.controller(self.nodes.len() - 1, 1);
    }

    fn kubeconfig(&self, port: u16) -> String {
        let own = format!(":{}'", self.server.port());
        self.server.kubeconfig().replace(&own, &format!(":{port}'"))
    }

    fn create_namespace(&self) {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        });
        kubectl(&self.server, &["create", "-f", "-"], &namespace);
    }

    /// How the node's last question to its controller ended.
    fn controller(&self, node: usize, status: u8) {
        self.nodes[node].agent.publish(
            "zedagent/ZedAgentStatus/zedagent.json",
            &json!({ "Name": "zedagent", "ConfigGetStatus": status }),
        );
    }

    fn info(&self, node: usize) -> Value {
        self.nodes[node].agent.read(INFO).unwrap_or_default()
    }

    fn leads(&self, node: usize) -> bool {
        self.info(node)["IsStatsLeader"] == true
    }

    fn has_stats(&self, node: usize) -> bool {
        self.nodes[node].agent.path(STATS).exists()
    }

    /// The holder in the lease; empty where there is none.
    fn holder(&self) -> String {
        let path = "-o=jsonpath={.spec.holderIdentity}";
        let words = ["get", "lease", "-n", NAMESPACE, LEASE, path, "--ignore-not-found"];
        kubectl(&self.server, &words, &Value::Null)
    }

    fn given_back(&self) -> bool {
        let path = "-o=jsonpath={.spec.holderIdentity},{.spec.leaseDurationSeconds}";
        kubectl(&self.server, &["get", "lease", "-n", NAMESPACE, LEASE, path], &Value::Null) == ",1"
    }

    fn bend(&self, spec: &Value) {
        let patch = json!({ "spec": spec }).to_string();
        let words = ["patch", "lease", "-n", NAMESPACE, LEASE, "--type=merge", "-p", &patch];
        kubectl(&self.server, &words, &Value::Null);
    }

    /// Waits until a node other than `not` leads, its statistics are there and the others know it.
    fn wait_for_leader(&self, not: Option<usize>) -> usize {
        let speaks = |node: &usize| self.nodes[*node].speaks.load(Ordering::SeqCst);
        let all: Vec<usize> = (0..self.nodes.len()).filter(speaks).collect();
        let found = wait_for("a leader", DEADLINE, || {
            let leader = all.iter().copied().find(|node| self.leads(*node) && Some(*node) != not);
            let Some(leader) = leader.filter(|leader| self.has_stats(*leader)) else {
                return Ok(None);
            };
            let name = format!("n{leader}");
            let known = all.iter().all(|node| self.info(*node)["LeaderIdentity"] == *name);
            Ok(known.then_some(leader))
        });
        let infos: Vec<Value> = (0..self.nodes.len()).map(|node| self.info(node)).collect();
        let leader = found.unwrap_or_else(|error| panic!("{error}: {infos:?}"));
        for other in all.iter().filter(|node| **node != leader) {
            assert!(!self.has_stats(*other), "n{other} has statistics beside n{leader}");
        }
        leader
    }

    /// While the other one cannot know.
    fn wait_for_leader_of(&self, leader: usize, blind: usize) -> usize {
        self.wait_until("the other leads", || self.leads(leader) && self.has_stats(leader));
        assert!(!self.leads(blind) && !self.has_stats(blind));
        leader
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let came = wait_for(what, DEADLINE, || Ok(is_so().then_some(())));
        let infos: Vec<Value> = (0..self.nodes.len()).map(|node| self.info(node)).collect();
        assert!(came.is_ok(), "{what}: {infos:?}");
    }
}

/// Looks all the time whether two say at once that they lead, or report at once.
struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Watcher {
    fn start(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let witness = |node: &Node| Witness {
            info: node.agent.path(INFO),
            stats: node.agent.path(STATS),
            speaks: node.speaks.clone(),
        };
        let witnesses: Vec<Witness> = world.nodes.iter().map(witness).collect();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut looks = 0;
            while !stopped.load(Ordering::SeqCst) {
                for (place, one) in witnesses.iter().enumerate() {
                    for other in witnesses.iter().skip(place + 1) {
                        one.contradicts(other)?;
                    }
                }
                looks += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(looks)
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        let looks = self.thread.join().unwrap().unwrap();
        assert!(looks > 1000, "only {looks} looks");
    }
}

/// What a node says, in its files.
struct Witness {
    info: PathBuf,
    stats: PathBuf,
    speaks: Arc<AtomicBool>,
}

impl Witness {
    fn leads(&self) -> bool {
        let text = fs::read_to_string(&self.info).unwrap_or_default();
        text.contains("\"IsStatsLeader\":true")
    }

    fn reports(&self) -> bool {
        self.stats.exists()
    }

    fn contradicts(&self, other: &Self) -> Result<(), String> {
        for says in [Self::leads, Self::reports] {
            let said = |one: &Self| says(one) && one.speaks.load(Ordering::SeqCst);
            // Who says so before and after the other one did said so at the same time.
            if said(self) && said(other) && said(self) {
                return Err(format!("{} and {}", self.info.display(), other.info.display()));
            }
        }
        Ok(())
    }
}

#[test]
fn there_is_one_leader_and_another_follows_whatever_happens_to_it() {
    let mut world = World::new();
    let port = world.server.port();
    (0..3).for_each(|_| world.add(port));
    let watcher = Watcher::start(&world);

    // The namespace may come later than the agents.
    world.wait_until("a fault without the namespace", || {
        let fault = world.nodes[0].agent.fault("the lease");
        fault.is_some_and(|fault| fault.contains("namespaces \"eve-kube-app\" not found"))
    });
    world.create_namespace();
    let first = world.wait_for_leader(None);
    assert_eq!(world.holder(), format!("n{first}"));
    for node in &world.nodes {
        assert!(node.agent.works("leader"), "{:?}", node.agent.health());
    }

    // All lose their controller: the lease is given back, and nobody takes it.
    (0..3).for_each(|node| world.controller(node, 3));
    world.wait_until("the lease given back", || world.given_back());
    assert!(!world.leads(first) && !world.has_stats(first));
    assert_eq!(world.info(first)["InLeaseElection"], false);
    (0..3).filter(|node| *node != first).for_each(|node| world.controller(node, 1));
    let second = world.wait_for_leader(Some(first));
    // What was saved is a configuration too.
    world.controller(first, 4);
    world.wait_until("the first in the election again", || {
        world.info(first)["InLeaseElection"] == true
    });
    assert!(world.leads(second), "it is back, and does not take what another has");

    // It is killed without a warning.
    let speaks = world.nodes[second].speaks.clone();
    speaks.store(false, Ordering::SeqCst);
    world.nodes[second].agent.process().kill().unwrap();
    let third = world.wait_for_leader(Some(second));
    assert_eq!(world.holder(), format!("n{third}"));
    world.nodes[second].agent.restart();
    world.wait_until("the word of the one that was killed", || {
        let info = world.info(second);
        let known = info["LeaderIdentity"] == *format!("n{third}");
        known && info["IsStatsLeader"] == false && !world.has_stats(second)
    });
    speaks.store(true, Ordering::SeqCst);

    // It is stopped: it gives the lease back.
    world.nodes[third].speaks.store(false, Ordering::SeqCst);
    world.nodes[third].agent.process().signal(Signal::TERM).unwrap();
    world.nodes[third].agent.process().wait(DEADLINE).unwrap();
    assert!(!world.leads(third) && !world.has_stats(third));
    assert_ne!(world.holder(), format!("n{third}"), "it gave the lease back");
    world.wait_for_leader(Some(third));
    watcher.end();
}

#[test]
fn a_replaced_kubeconfig_loses_the_lease_and_gets_it_back() {
    let mut world = World::new();
    world.create_namespace();
    let port = world.server.port();
    (0..2).for_each(|_| world.add(port));
    let watcher = Watcher::start(&world);
    let first = world.wait_for_leader(None);
    let other = 1 - first;

    // An identity that nobody knows.
    let good = world.kubeconfig(port);
    let token = world.server.kubeconfig_with_token().replace(world.server.token(), "unknown");
    put(&world.nodes[first].kubeconfig, token.as_bytes());
    assert_eq!(world.wait_for_leader_of(other, first), other);
    let fault = world.nodes[first].agent.fault("the lease").unwrap();
    assert!(fault.contains("401"), "{fault}");
    assert_eq!(world.info(first)["ElectionRunning"], false);

    put(&world.nodes[first].kubeconfig, good.as_bytes());
    world.wait_until("the way back to the cluster", || {
        world.info(first)["LeaderIdentity"] == *format!("n{other}")
            && world.info(first)["ElectionRunning"] == true
    });
    world.controller(other, 2);
    assert_eq!(world.wait_for_leader(Some(other)), first);
    // Rotated, and as good as before: nothing changes.
    let since = world.info(first)["LatestChange"].clone();
    put(&world.nodes[first].kubeconfig, world.server.kubeconfig_with_token().as_bytes());
    let rotated = Instant::now();
    world.wait_until("some renewals", || {
        assert!(world.leads(first) && world.has_stats(first));
        rotated.elapsed() > Duration::from_secs(14)
    });
    assert_eq!(world.info(first)["LatestChange"], since);
    watcher.end();
}

#[test]
fn a_lease_that_is_bent_deleted_or_cannot_be_reached_makes_no_second_leader() {
    let mut world = World::new();
    world.create_namespace();
    let passages = [0, 1].map(|_| Passage::to(world.server.port()));
    passages.iter().for_each(|passage| world.add(passage.port));
    let watcher = Watcher::start(&world);
    let first = world.wait_for_leader(None);
    let name = format!("n{first}");

    // Deleted: whoever leads makes it again, and goes on.
    kubectl(&world.server, &["delete", "lease", "-n", NAMESPACE, LEASE], &Value::Null);
    world.wait_until("the lease again", || {
        assert!(world.leads(first));
        world.holder() == name
    });

    // A name that nobody has, and a time that would never end.
    let spec = json!({ "holderIdentity": "nobody", "leaseDurationSeconds": 20 });
    world.bend(&spec);
    world.wait_until("nobody leads", || !world.leads(first));
    let second = world.wait_for_leader(None);
    assert_ne!(world.holder(), "nobody");

    // Nothing in it.
    world.bend(&json!({ "holderIdentity": null, "leaseDurationSeconds": null, "renewTime": null }));
    let third = world.wait_for_leader(None);
    assert!(world.leads(third), "{second} {third}");

    // The API server hangs for the leader alone, under its open connections.
    passages[third].freeze(true);
    world.wait_until("the end of its time", || !world.leads(third));
    assert!(!world.has_stats(third));
    let fourth = world.wait_for_leader_of(1 - third, third);
    assert!(passages[third].swallowed() > 0);
    let fault = world.nodes[third].agent.fault("the lease").unwrap();
    assert!(fault.contains("no answer within"), "{fault}");

    passages[third].freeze(false);
    world.wait_until("its sight again", || {
        world.info(third)["LeaderIdentity"] == *format!("n{fourth}")
            && world.nodes[third].agent.works("leader")
    });
    watcher.end();
}

#[test]
fn an_agent_that_stops_before_a_slow_cluster_does_not_leave_its_tasks_behind() {
    let mut world = World::new();
    world.create_namespace();
    let passage = Passage::to(world.server.port());
    world.add(passage.port);
    let leader = world.wait_for_leader(None);
    // The lease could be read and given back in five seconds. Tasks have four.
    passage.slow_down(Duration::from_millis(1250));
    let process = world.nodes[leader].agent.process();
    process.signal(Signal::TERM).unwrap();
    process.wait(DEADLINE).unwrap();
    let said = process.output();
    assert!(said.contains("the lease was not given back"), "{said}");
    assert!(!said.contains("tasks did not end in time"), "{said}");
    assert!(!world.leads(leader) && !world.has_stats(leader));
}
