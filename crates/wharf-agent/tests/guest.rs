//! What this machine's kernel does not let its root do, on a machine with a kernel of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{process::Command, time::Duration};

use wharf_testbed::{
    balancer,
    guest::{self, Guest},
    process::example,
};

/// An emulated processor is several times slower, and others use the real one as well.
const DEADLINE: Duration = Duration::from_secs(900);
const CONNECTIONS: usize = 10_000;
/// Longer than anything that the balancer may take for a sign that a peer is gone.
const SILENCE: Duration = Duration::from_secs(45);

/// Each takes two open files of the agent, and the machine of a test may allow fewer.
#[test]
fn the_balancer_holds_ten_thousand_connections() {
    let agent = example("node_agent").unwrap();
    if !guest::is_here() {
        let guest = Guest::new().unwrap().program(&agent).unwrap();
        let name = "the_balancer_holds_ten_thousand_connections";
        let ended = guest.run_test(name, DEADLINE).unwrap();
        println!("booted in {:?}\n{}", ended.boot, ended.output);
        return;
    }
    let held = balancer::hold(Command::new(agent), CONNECTIONS, SILENCE).unwrap();
    println!("{held:?}");
    assert_eq!((held.connections, held.fault), (CONNECTIONS, None));
}
