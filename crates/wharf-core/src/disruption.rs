//! The disruption guard: what may be taken out of service beside what is out already.
//!
//! There is one for a cluster. Repairs, drains, reboots, shutdowns, updates and removals count
//! together, and never are two controlplane or etcd machines out at once, whoever asks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quick::QuickMap;

/// What takes a machine out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Repair,
    Drain,
    Reboot,
    Shutdown,
    Update,
    Removal,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Repair, Kind::Drain, Kind::Reboot, Kind::Shutdown, Kind::Update, Kind::Removal];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Repair => "repair",
            Kind::Drain => "drain",
            Kind::Reboot => "reboot",
            Kind::Shutdown => "shutdown",
            Kind::Update => "update",
            Kind::Removal => "removal",
        }
    }
}

/// A machine that is out of service, or about to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disruption {
    pub kind: Kind,
    /// It is a controlplane or an etcd machine.
    pub critical: bool,
}

/// What is out of service in one cluster, by the address of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guard {
    out: QuickMap<String, Disruption>,
    /// How many of them are critical, kept so that asking costs nothing.
    critical: usize,
}

/// Why a machine must stay in service for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// This very machine is out already, for another purpose.
    SameMachine(Kind),
    /// Another controlplane or etcd machine is out.
    Critical { machine: String, kind: Kind },
    /// So many machines are out already.
    Limit(usize),
}

impl Guard {
    /// Notes a machine as out. The first purpose stays until it ends.
    pub fn begin(&mut self, machine: &str, disruption: Disruption) {
        if self.out.contains_key(machine) {
            return;
        }
        self.critical += usize::from(disruption.critical);
        self.out.insert(machine.to_owned(), disruption);
    }

    pub fn end(&mut self, machine: &str) {
        if let Some(disruption) = self.out.remove(machine) {
            self.critical -= usize::from(disruption.critical);
        }
    }

    /// How many machines are out.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    pub fn get(&self, machine: &str) -> Option<Disruption> {
        self.out.get(machine).copied()
    }

    /// May this machine be taken out, when at most `limit` may be out at once? One that is out for
    /// the same purpose already may go on.
    pub fn admit(&self, machine: &str, wanted: Disruption, limit: usize) -> Result<(), Refusal> {
        match self.get(machine) {
            Some(known) if known.kind == wanted.kind => return Ok(()),
            Some(known) => return Err(Refusal::SameMachine(known.kind)),
            None => {}
        }
        if wanted.critical && self.critical > 0 {
            let critical = self.out.iter().filter(|(_, disruption)| disruption.critical);
            let other = critical.min_by_key(|(name, _)| *name);
            let (machine, kind) =
                other.map_or((String::new(), wanted.kind), |(name, one)| (name.clone(), one.kind));
            return Err(Refusal::Critical { machine, kind });
        }
        if self.len() >= limit {
            return Err(Refusal::Limit(self.len()));
        }
        Ok(())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SameMachine(kind) => {
                write!(f, "the machine is out of service already, by {}", kind.name())
            }
            Refusal::Critical { machine, kind } => write!(
                f,
                "the controlplane or etcd machine {machine} is out of service ({}), and only one \
                 may be at a time",
                kind.name()
            ),
            Refusal::Limit(out) => {
                write!(f, "as many machines are out of service as may be ({out})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All purposes beside all purposes, critical or not, with every number of machines out.
    #[test]
    fn never_are_two_critical_machines_out_and_all_purposes_count_together() {
        for first in Kind::ALL {
            for second in Kind::ALL {
                for flags in 0..4 {
                    let (known, wanted) = (
                        Disruption { kind: first, critical: flags & 1 != 0 },
                        Disruption { kind: second, critical: flags & 2 != 0 },
                    );
                    let mut guard = Guard::default();
                    guard.begin("a", known);
                    let answer = guard.admit("b", wanted, 2);
                    assert_eq!(answer.is_err(), known.critical && wanted.critical);
                    assert!(guard.admit("b", wanted, 1).is_err(), "{first:?} counts");
                    let same = guard.admit("a", wanted, 9);
                    assert_eq!(same.is_ok(), first == second, "{first:?} {second:?}");
                    guard.end("a");
                    assert!(guard.is_empty() && guard.admit("b", wanted, 1).is_ok());
                }
            }
        }
    }

    #[test]
    fn a_machine_counts_once_and_its_end_frees_it() {
        let mut guard = Guard::default();
        let critical = Disruption { kind: Kind::Drain, critical: true };
        guard.begin("a", critical);
        guard.begin("a", Disruption { kind: Kind::Reboot, critical: true });
        assert_eq!((guard.len(), guard.get("a")), (1, Some(critical)));
        let text = guard.admit("b", critical, 9).unwrap_err().to_string();
        assert!(text.contains("machine a is out of service (drain)"), "{text}");
        guard.end("a");
        guard.end("a");
        assert_eq!(guard.admit("b", critical, 1), Ok(()));
    }
}
