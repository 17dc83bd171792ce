//! Nodes of a real Kubernetes API, drained by the command line.

use std::{process::Stdio, time::Instant};

use wharf_testbed::process::{Process, Signal};

use crate::{
    apiserver::{World as Kubernetes, half_blocked, labelled},
    world::{DEADLINE, Ran, World},
};

/// A server that knows the cluster as `demo`.
pub fn world(kubernetes: &Kubernetes) -> World {
    let world = World::with_server();
    let file = world.path("kubeconfig");
    std::fs::write(&file, kubernetes.server.kubeconfig()).unwrap();
    let file = file.display().to_string();
    world.local(&["cluster", "import", "demo", "--kubeconfig", &file]).ok();
    world
}

fn drain(world: &World, node: &str, more: &[&str]) -> Ran {
    world.local(&[&["node", "drain", "demo", node], more].concat())
}

/// The drain in the background.
fn begin(world: &World, node: &str) -> Process {
    let dir = world.data_dir().display().to_string();
    let mut command = world.command(&["node", "drain", "demo", node, "--data-dir", &dir]);
    command.stdin(Stdio::null());
    Process::spawn(command).unwrap()
}

#[test]
fn a_node_is_planned_cordoned_drained_and_given_back() {
    let kubernetes = Kubernetes::start();
    for (node, address, role) in
        [("m1", "192.0.2.1", "control-plane"), ("w1", "192.0.2.2", "worker")]
    {
        kubernetes.node(node, address, role);
    }
    half_blocked(&kubernetes, "w1");
    let world = world(&kubernetes);
    let list = world.local(&["node", "list", "demo"]).ok().stdout;
    let head = list.lines().next().unwrap();
    assert!(head.starts_with("NAME") && head.contains("DRAIN"), "{list}");
    assert!(list.lines().any(|line| line.starts_with("w1") && line.contains("worker")), "{list}");

    let plan = drain(&world, "w1", &["--plan"]).ok();
    let lines: Vec<&str> = plan.stdout.lines().collect();
    for column in ["POD", "CLASS", "ACTION", "BUDGET", "WHY", "HINT"] {
        assert!(lines[0].contains(column), "{plan:?}");
    }
    assert!(
        lines[1].starts_with("default/w1-0") && lines[1].contains("w1 (1 allowed)"),
        "{plan:?}"
    );
    assert_eq!(
        lines.last(),
        Some(&"inTurns: the pods may leave in turns, as their budgets free up")
    );
    let plan = drain(&world, "w1", &["--plan", "-o", "json"]).json();
    assert_eq!(
        (plan["type"].as_str(), plan["verdict"].as_str()),
        (Some("drainPlan"), Some("inTurns"))
    );
    assert!(!kubernetes.is_unschedulable("w1"));

    // Its time is over: exit code 6, the pod by name, and the node as before.
    let late = drain(&world, "w1", &["--timeout", "3s"]).fails(6, "--plan");
    assert!(late.stderr.contains("is protected by budget w1, 0 allowed"), "{late:?}");
    assert!(late.stderr.contains("node w1 was not drained: the deadline passed"), "{late:?}");
    assert!(!late.stderr.contains('\u{1b}'), "no colour in a pipe: {late:?}");
    assert!(!kubernetes.is_unschedulable("w1"));

    drain(&world, "w1", &["--cancel"]).fails(4, "nothing to cancel");
    drain(&world, "nobody", &[]).fails(3, "");
    world.local(&["node", "drain", "nowhere", "w1"]).fails(3, "");
    let begun = drain(&world, "w1", &["--no-wait", "-o", "json"]).json();
    assert_eq!((begun["state"].as_str(), begun["node"].as_str()), (Some("running"), Some("w1")));
    let canceled = drain(&world, "w1", &["--cancel"]).ok();
    assert!(canceled.stderr.contains("is being canceled"), "{canceled:?}");

    world.local(&["node", "cordon", "demo", "m1"]).ok();
    assert!(kubernetes.is_unschedulable("m1"));
    let node = world.local(&["node", "uncordon", "demo", "m1", "-o", "json"]).json();
    assert_eq!(node["cordoned"], false);
    assert!(!kubernetes.is_unschedulable("m1"));
}

#[test]
fn whoever_stops_waiting_leaves_the_drain_running_and_a_killed_server_goes_on_with_it() {
    let kubernetes = Kubernetes::start();
    kubernetes.node("w1", "192.0.2.2", "worker");
    kubernetes.node("w2", "192.0.2.3", "worker");
    half_blocked(&kubernetes, "w1");
    let mut world = world(&kubernetes);
    let mut waiting = begin(&world, "w1");
    waiting.wait_for_output("is protected by budget w1, 0 allowed", DEADLINE).unwrap();
    waiting.signal(Signal::INT).unwrap();
    let status = waiting.wait(DEADLINE).unwrap();
    assert_eq!(status.code(), Some(1), "{}", waiting.output());
    let said = waiting.output();
    assert!(said.contains("the drain of w1 goes on"), "{said}");
    assert!(said.contains("`wharf node drain demo w1 --cancel` stops it"), "{said}");

    // Another joins, the server dies and comes back, and both see the end.
    let mut joined = begin(&world, "w1");
    joined.wait_for_output("is protected by budget w1, 0 allowed", DEADLINE).unwrap();
    world.kill_server();
    assert!(kubernetes.is_unschedulable("w1"));
    world.start("127.0.0.1:0", &[]);
    kubernetes.pod("w2", "w1-2", &labelled("w1"));
    let begun = Instant::now();
    let status = joined.wait(DEADLINE).unwrap();
    let said = joined.output();
    assert_eq!(status.code(), Some(0), "after {:?}: {said}", begun.elapsed());
    assert!(said.contains("node w1 is drained and stays cordoned"), "{said}");
    assert!(kubernetes.is_unschedulable("w1") && kubernetes.owner("w1").is_none());
}
