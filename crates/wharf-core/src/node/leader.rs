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
/// Nobody is waited for longer, whatever the lease says: other makes of agents ask for this, and a
/// number that somebody mistyped must not end the election.
const LONGEST: Duration = Duration::from_secs(300);
/// With no holder it says that the lease was given back. A lease that lost its holder in another way
/// was bent by somebody, and its holder does not know yet.
pub const RELEASED: Duration = Duration::from_secs(1);

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

/// The lease as it is there. The default stands for one that is not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    /// Empty for nobody.
    pub holder: String,
    /// Differs after every write; empty for a lease that is not there.
    pub version: String,
    pub duration: Duration,
}

/// What is remembered between looks; nothing of it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Election {
    /// The lease as it was last seen, and when it was first seen so.
    seen: Option<(Lease, Timestamp)>,
    /// When this node last wrote its name with success: it leads from then on, for a while.
    renewed: Option<Timestamp>,
    tried: Option<Timestamp>,
    /// The name in the lease is this node's by its own doing, now or before its agent was started.
    own: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub action: Option<Action>,
    pub report: Report,
    /// The report is true until then, whatever comes of the action.
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The controller is reached.
    pub in_election: bool,
    /// The cluster is reached too.
    pub running: bool,
    pub is_leader: bool,
    /// Who is, for all that is known here.
    pub leader: String,
}

/// Decides whether to stand, to go on or to leave, and notes what was seen.
pub fn decide_leader(election: &mut Election, facts: &Facts, now: Timestamp) -> Decision {
    election.note(facts, now);
    let eligible = facts.config.is_eligible();
    let leads = eligible && election.is_fresh(now);
    let due = election.tried.is_none_or(|tried| is_over(tried, RETRY, now));
    let action = match &facts.lease {
        None => None,
        Some(lease) if !eligible => (lease.holder == facts.node).then_some(Action::Release),
        Some(_) if !due => None,
        // Also one that somebody deleted: whoever waits for it waits longer than we are fresh.
        Some(lease) if leads || election.own && lease.holder == facts.node => Some(Action::Renew),
        Some(lease) => election.is_free(lease, now).then_some(Action::Take),
    };
    if action.is_some() {
        election.tried = Some(now);
    }
    let leader = election.seen.as_ref().map(|(lease, _)| lease.holder.clone());
    let report = Report {
        in_election: eligible,
        running: eligible && facts.lease.is_some(),
        is_leader: leads,
        leader: leader.unwrap_or_default(),
    };
    let retry = later(now, RETRY);
    let wake_at = election.leads_until().filter(|_| leads).map_or(retry, |until| until.min(retry));
    Decision { action, report, wake_at }
}

/// Notes that this node wrote the lease. `sent` is before the request left: whoever sees it written
/// sees it later, and waits longer than we lead.
pub fn note_written(election: &mut Election, action: Action, written: Lease, sent: Timestamp) {
    let ours = match action {
        Action::Take | Action::Renew => true,
        Action::Release => false,
    };
    election.own = ours;
    election.renewed = ours.then_some(sent);
    election.seen = Some((written, sent));
}

impl Election {
    /// Until when this node leads, if it does not get to renew its lease. Nothing may be waited for
    /// longer without another decision.
    pub fn leads_until(&self) -> Option<Timestamp> {
        self.renewed.map(|renewed| later(renewed, RENEW))
    }

    fn note(&mut self, facts: &Facts, now: Timestamp) {
        let Some(lease) = &facts.lease else { return };
        let known = self.seen.as_ref().map(|(known, _)| known);
        let ours = lease.holder == facts.node;
        if known.is_none() {
            self.own = ours;
        }
        if known != Some(lease) {
            self.seen = Some((lease.clone(), now));
        }
        let gone = lease.version.is_empty();
        if !ours && !gone {
            (self.renewed, self.own) = (None, false);
        }
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        self.renewed.is_some_and(|renewed| !is_over(renewed, RENEW, now))
    }

    /// It was given back, or nobody has renewed it while we looked. One that is not there may have
    /// been deleted a moment ago, under a leader that does not know it yet.
    fn is_free(&self, lease: &Lease, now: Timestamp) -> bool {
        let given_back = lease.holder.is_empty() && lease.duration == RELEASED;
        let patience = lease.duration.clamp(LEASE, LONGEST);
        let since = self.seen.as_ref().map(|(_, since)| *since);
        given_back || since.is_some_and(|since| now >= later(since, patience))
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
                self.look(number, second);
            }
            self.check(second);
        }

        fn look(&mut self, number: usize, second: i64) {
            let (election, config, reached) = &mut self.nodes[number];
            let facts = Facts {
                node: format!("n{number}"),
                config: *config,
                lease: reached.then(|| self.lease.clone()),
            };
            let decision = decide_leader(election, &facts, at(second));
            self.leads[number] = decision.report.is_leader;
            let Some(action) = decision.action else { return };
            let (holder, duration) = match action {
                Action::Take | Action::Renew => (facts.node, LEASE),
                Action::Release => (String::new(), RELEASED),
            };
            self.writes += 1;
            self.lease = Lease { holder, duration, version: self.writes.to_string() };
            note_written(&mut self.nodes[number].0, action, self.lease.clone(), at(second));
        }

        /// Somebody else writes into it.
        fn bend(&mut self, holder: &str, duration: Duration) {
            self.writes += 1;
            let version = self.writes.to_string();
            self.lease = Lease { holder: holder.to_owned(), duration, version };
        }

        fn check(&self, second: i64) {
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
        (0..15).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), None, "a lease that is not there may just have been deleted");
        (15..20).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(0));
        world.nodes[0].1 = ConfigGet::TemporaryFail;
        (20..25).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(1), "it was released, nobody had to wait");
        world.nodes[1].2 = false;
        (25..37).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), None, "it stops before the lease is over");
        (37..47).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(2), "the first is not eligible, the second is cut off");
        world.nodes[2].1 = ConfigGet::Fail;
        (47..75).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), None, "nobody reaches the controller");
        world.nodes[1].2 = true;
        (75..85).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(1));
    }

    #[test]
    fn whatever_is_done_to_the_lease_nobody_leads_beside_the_leader_and_soon_one_leads_again() {
        let long = Duration::from_secs(1_000_000);
        let bent: [(&str, Duration); 5] = [
            ("", LEASE),
            ("", Duration::ZERO),
            ("nobody", long),
            ("nobody", RELEASED),
            ("n1", LEASE),
        ];
        for case in 0..=bent.len() {
            let mut world = World::new(3);
            (0..20).for_each(|second| world.tick(second));
            assert_eq!(world.leader(), Some(0));
            match bent.get(case) {
                Some((holder, duration)) => world.bend(holder, *duration),
                None => world.lease = Lease::default(),
            }
            // The leader is the last to look.
            world.look(2, 20);
            world.look(1, 20);
            world.check(20);
            (21..27).for_each(|second| world.tick(second));
            let patience = if case == 2 { 300 } else { 15 };
            (27..40 + patience).for_each(|second| world.tick(second));
            assert!(world.leader().is_some(), "case {case}");
        }
    }

    #[test]
    fn a_leader_goes_on_when_its_lease_is_deleted_or_its_agent_is_started_again() {
        let mut world = World::new(2);
        (0..20).for_each(|second| world.tick(second));
        world.lease = Lease::default();
        (20..22).for_each(|second| world.tick(second));
        assert_eq!((world.leader(), world.lease.holder.as_str()), (Some(0), "n0"));
        world.nodes[0].0 = Election::default();
        (22..25).for_each(|second| world.tick(second));
        assert_eq!(world.leader(), Some(0), "it finds its own name there");
    }

    #[test]
    fn a_report_is_looked_at_again_before_it_is_untrue() {
        let facts = |lease| Facts { node: "n0".to_owned(), config: ConfigGet::Success, lease };
        let mut election = Election::default();
        let ours = Lease { holder: "n0".to_owned(), version: "1".to_owned(), duration: LEASE };
        let first = decide_leader(&mut election, &facts(Some(ours.clone())), at(0));
        assert_eq!((first.action, first.report.is_leader), (Some(Action::Renew), false));
        note_written(&mut election, Action::Renew, ours, at(0));
        assert_eq!(decide_leader(&mut election, &facts(None), at(3)).wake_at, at(5));
        let late = decide_leader(&mut election, &facts(None), at(9));
        assert_eq!((late.report.is_leader, late.wake_at), (true, at(10)));
        assert_eq!((late.report.in_election, late.report.running), (true, false));
        let over = decide_leader(&mut election, &facts(None), at(10));
        assert_eq!((over.report.is_leader, over.wake_at), (false, at(12)));
        assert_eq!(election.leads_until(), Some(at(10)));
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
                    2 => {
                        world.nodes[number].0 = Election::default();
                        world.leads[number] = false;
                    }
                    3 if below(4) == 0 => world.lease = Lease::default(),
                    4 if below(4) == 0 => world.bend(["", "nobody"][below(2) as usize], LEASE),
                    _ => {}
                }
                // In any order, and not all of them each second.
                let first = below(4) as usize;
                for step in 0..4 {
                    if below(3) > 0 {
                        world.look((first + step) % 4, second);
                    }
                }
                world.check(second);
                changes.extend(world.leader());
            }
            assert!(changes.len() > 1, "seed {seed}: the worlds are too calm");
        }
    }
}
