//! The election of the node that reports for the cluster.
//!
//! Only a node that reaches both the cluster and the controller stands for election: what it reports
//! goes to the controller. The lease is judged by when this node saw it change, never by the times in
//! it, so that clocks of nodes may differ.

use std::time::Duration;

use jiff::Timestamp;

use super::gate::{is_over, later};

/// Who does not renew for so long is replaced.
pub const LEASE: Duration = Duration::from_secs(15);
/// Who could not renew for so long leads no more; it is shorter than the lease, so that nobody leads
/// beside the next leader.
const RENEW: Duration = Duration::from_secs(10);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// How the last question to the controller ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigGet {
    Unset,
    Success,
    Fail,
    TemporaryFail,
    /// Read from what was saved.
    ReadSaved,
}

impl ConfigGet {
    /// A number that nobody knows is no success.
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => ConfigGet::Success,
            2 => ConfigGet::Fail,
            3 => ConfigGet::TemporaryFail,
            4 => ConfigGet::ReadSaved,
            _ => ConfigGet::Unset,
        }
    }

    pub fn number(self) -> u8 {
        match self {
            ConfigGet::Unset => 0,
            ConfigGet::Success => 1,
            ConfigGet::Fail => 2,
            ConfigGet::TemporaryFail => 3,
            ConfigGet::ReadSaved => 4,
        }
    }

    pub fn is_eligible(self) -> bool {
        matches!(self, ConfigGet::Success | ConfigGet::ReadSaved)
    }
}

/// What is known at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub node: String,
    pub config: ConfigGet,
    /// `None` while the cluster does not answer.
    pub lease: Option<Lease>,
}

/// The lease as it is there; an empty holder stands for none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    pub holder: String,
    /// Differs after every write.
    pub version: String,
    pub duration: Duration,
}

/// What is remembered between looks; nothing of it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Election {
    /// The lease as it was last seen, and when it was first seen so.
    pub seen: Option<(Lease, Timestamp)>,
    /// When this node last wrote it with success.
    pub renewed: Option<Timestamp>,
    pub tried: Option<Timestamp>,
    /// When the leader last changed, for all that is known here.
    pub changed: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub action: Option<Action>,
    pub report: Report,
    pub wake_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Write this node into the lease, if it is still as it was seen.
    Take,
    Renew,
    /// Give it back, so that the next one need not wait.
    Release,
}

/// What is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub in_election: bool,
    pub is_leader: bool,
    pub leader: String,
    pub latest_change: Option<Timestamp>,
}

/// Decides whether to stand, to go on or to leave, and notes what was seen.
pub fn decide_leader(election: &mut Election, facts: &Facts, now: Timestamp) -> Decision {
    election.note(facts, now);
    let eligible = facts.config.is_eligible();
    let held = facts.lease.as_ref().is_some_and(|lease| lease.holder == facts.node);
    let leads = held_by_us(election, facts) && eligible && election.is_fresh(now);
    let due = election.tried.is_none_or(|tried| is_over(tried, RETRY, now));
    let action = match &facts.lease {
        None => None,
        Some(_) if held && !eligible => Some(Action::Release),
        Some(_) if !eligible => None,
        Some(_) if held => Some(Action::Renew),
        Some(lease) => election.is_free(lease, now).then_some(Action::Take),
    };
    let action = action.filter(|_| due);
    if action.is_some() {
        election.tried = Some(now);
    }
    let leader = election.seen.as_ref().map(|(lease, _)| lease.holder.clone());
    let report = Report {
        in_election: eligible,
        is_leader: leads,
        leader: leader.unwrap_or_default(),
        latest_change: election.changed,
    };
    Decision { action, report, wake_at: later(now, RETRY) }
}

/// Notes that this node wrote the lease.
pub fn note_written(election: &mut Election, action: Action, now: Timestamp) {
    election.renewed = match action {
        Action::Take | Action::Renew => Some(now),
        Action::Release => None,
    };
}

/// Also while the cluster is silent: the lease was ours when it was last seen.
fn held_by_us(election: &Election, facts: &Facts) -> bool {
    let seen = election.seen.as_ref();
    seen.is_some_and(|(lease, _)| lease.holder == facts.node)
}

impl Election {
    fn note(&mut self, facts: &Facts, now: Timestamp) {
        let Some(lease) = &facts.lease else { return };
        let known = self.seen.as_ref().map(|(known, _)| known);
        if known.map(|known| &known.holder) != Some(&lease.holder) {
            self.changed = Some(now);
        }
        if known != Some(lease) {
            self.seen = Some((lease.clone(), now));
        }
        if lease.holder != facts.node {
            self.renewed = None;
        }
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        self.renewed.is_some_and(|renewed| !is_over(renewed, RENEW, now))
    }

    /// Nobody holds it, or whoever does has not renewed it while we looked.
    fn is_free(&self, lease: &Lease, now: Timestamp) -> bool {
        let duration = if lease.duration.is_zero() { LEASE } else { lease.duration };
        let since = self.seen.as_ref().map(|(_, since)| *since);
        lease.holder.is_empty() || since.is_some_and(|since| now >= later(since, duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn only_who_has_its_configuration_stands_for_election() {
        let eligible: Vec<u8> =
            (0..=9).filter(|number| ConfigGet::from_number(*number).is_eligible()).collect();
        assert_eq!(eligible, [1, 4]);
    }

    /// A few nodes around one lease.
    struct World {
        lease: Lease,
        writes: u32,
        nodes: Vec<(Election, ConfigGet, bool)>,
        leads: Vec<bool>,
    }

    impl World {
        fn new(nodes: usize) -> Self {
            let node = (Election::default(), ConfigGet::Success, true);
            Self {
                lease: Lease::default(),
                writes: 0,
                nodes: vec![node; nodes],
                leads: vec![false; nodes],
            }
        }

        fn tick(&mut self, second: i64) {
            for number in 0..self.nodes.len() {
                let (election, config, reached) = &mut self.nodes[number];
                let facts = Facts {
                    node: format!("n{number}"),
                    config: *config,
                    lease: reached.then(|| self.lease.clone()),
                };
                let decision = decide_leader(election, &facts, at(second));
                self.leads[number] = decision.report.is_leader;
                if let Some(action) = decision.action {
                    self.writes += 1;
                    self.lease.version = self.writes.to_string();
                    self.lease.duration = LEASE;
                    self.lease.holder = match action {
                        Action::Take | Action::Renew => facts.node,
                        Action::Release => String::new(),
                    };
                    note_written(election, action, at(second));
                }
            }
            let leaders = self.leads.iter().filter(|leads| **leads).count();
            assert!(leaders <= 1, "two leaders at {second}: {:?}", self.leads);
        }

        fn leader(&self) -> Option<usize> {
            self.leads.iter().position(|leads| *leads)
        }
    }

    #[test]
    fn one_node_leads_and_another_follows_when_it_loses_the_controller_or_the_cluster() {
        let mut world = World::new(3);
        (0..5).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(0));
        world.nodes[0].1 = ConfigGet::TemporaryFail;
        (5..10).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(1), "it was released, nobody had to wait");
        world.nodes[1].2 = false;
        (10..22).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), None, "it stops before the lease is over");
        (22..32).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(2), "the first is not eligible, the second is cut off");
        world.nodes[2].1 = ConfigGet::Fail;
        (32..60).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), None, "nobody reaches the controller");
        world.nodes[1].2 = true;
        (60..70).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(1));
    }

    #[test]
    fn never_do_two_lead_in_generated_worlds() {
        for seed in 1..60_u64 {
            let mut state = seed;
            let mut below = |limit: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                (state >> 33) % limit
            };
            let mut world = World::new(4);
            let mut changes = std::collections::BTreeSet::new();
            for second in 0..2000 {
                let number = below(4) as usize;
                match below(30) {
                    0 => world.nodes[number].2 = below(2) == 0,
                    1 => world.nodes[number].1 = ConfigGet::from_number(below(5) as u8),
                    // Its agent is started again.
                    2 => world.nodes[number].0 = Election::default(),
                    _ => {}
                }
                world.tick(second);
                changes.extend(world.leader());
            }
            assert!(changes.len() > 1, "seed {seed}: the worlds are too calm");
        }
    }
}
