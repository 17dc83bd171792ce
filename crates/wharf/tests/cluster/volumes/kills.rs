//! A volume that goes to and fro between two nodes whose agents are killed at any moment.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use wharf_testbed::{Host, wait_for};

use super::{NAME, Trial};
use crate::bed::DEADLINE;

const BETWEEN: [&str; 2] = ["node2", "node3"];
const MOVES: usize = 6;
const CLAIM: &str = "to-and-fro";
const SEED: u64 = 7;
/// Between two kills, of either agent. One that is killed before it has done anything delays a move, and
/// kubelet more and more: it doubles its wait after every try that fails.
const PAUSE_MILLISECONDS: std::ops::Range<u64> = 1_500..5_000;
/// Fewer would prove little.
const LEAST_KILLS: u64 = 4;

impl Trial<'_> {
    pub fn a_volume_moves_while_the_agents_of_both_nodes_are_killed(&self) {
        let volume = self.claim_of(CLAIM, "main");
        let before = BETWEEN.map(|node| self.restarts(node));
        let killer = Killer::start(BETWEEN.map(|node| self.bed.host(node).clone()));
        let nodes: Vec<&str> = BETWEEN.into_iter().cycle().take(MOVES + 1).collect();
        for (turn, node) in nodes.iter().enumerate() {
            let pod = format!("mover-{turn}");
            self.start(&pod, node, CLAIM);
            self.wait_for_stamps(&pod, node);
            assert_eq!(self.holders_of(&volume), [*node]);
            // The next one is there at once, and waits until this one has let go.
            self.bed.kubectl(NAME, &["delete", "pod", &pod, "--wait=false"]).unwrap();
        }
        wait_for("the volume to be given up", DEADLINE, || {
            Ok(self.holders_of(&volume).is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        drop(killer);
        for (node, before) in BETWEEN.into_iter().zip(before) {
            let kills = self.restarts(node) - before;
            assert!(kills >= LEAST_KILLS, "the agent of {node} was killed {kills} times");
            self.wait_for_nothing_left(node);
        }
        self.assert_stamps(&self.image_of(CLAIM), &nodes);
        self.claim_takes_its_image_with_it(CLAIM);
        self.bed.wait_for_links(NAME, super::NODES.len());
    }

    /// How often systemd has started the agent of a node again.
    fn restarts(&self, node: &str) -> u64 {
        let show = ["systemctl", "show", "-p", "NRestarts", "--value", "wharf-agent"];
        self.bed.host(node).run(&show).unwrap().parse().unwrap()
    }
}

/// Kills one of the agents again and again, until it is dropped.
struct Killer {
    /// Taken when it is to end.
    goes_on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Killer {
    fn start(hosts: [Host; 2]) -> Self {
        let (goes_on, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut draw = Draw(SEED);
            let width = PAUSE_MILLISECONDS.end - PAUSE_MILLISECONDS.start;
            loop {
                let pause = PAUSE_MILLISECONDS.start + draw.below(width);
                let host = if draw.below(2) == 0 { &hosts[0] } else { &hosts[1] };
                match told.recv_timeout(Duration::from_millis(pause)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
                // There is none while systemd waits to start the next one.
                let main = ["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "wharf-agent"];
                let _ = host.run(&main);
            }
        });
        Self { goes_on: Some(goes_on), thread: Some(thread) }
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        drop(self.goes_on.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Numbers that are the same in every run (Knuth's generator; the upper bits are the good ones).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
