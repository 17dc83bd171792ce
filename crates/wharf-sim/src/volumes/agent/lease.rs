//! How an agent keeps its lease.

use std::time::Duration;

use wharf_core::volume::lease::{Keep, Sighting, SinceBoot, Tenure, decide_keep};

use super::{Agent, Machine, Shared, Waiting};
use crate::volumes::{
    Plant,
    server::{Answer, Ask, Lease},
};

/// The calls for the lease, beside those of the work.
#[derive(Default)]
pub struct Lane {
    waiting: Option<Waiting>,
    answer: Option<Answer>,
    /// What is being written, and when it was sent.
    writing: Option<(Lease, SinceBoot)>,
    /// The lease as last read or written; unknown at first and after a failure.
    known: Option<Option<Lease>>,
}

impl Lane {
    pub fn receive(&mut self, id: u64, answer: &Answer) {
        if self.waiting.is_some_and(|waiting| waiting.id == id) {
            self.answer = Some(answer.clone());
        }
    }
}

impl Agent {
    pub(super) fn keep_lease(&mut self, machine: &mut Machine, shared: &mut Shared) {
        if let Some(waiting) = self.lease.waiting {
            match self.lease.answer.take() {
                Some(answer) => self.take_lease_answer(&answer, machine, shared),
                None if shared.now >= waiting.until => self.lease.known = None,
                None => return,
            }
            self.lease.waiting = None;
            self.lease.writing = None;
        }
        let now = machine.since_boot(shared.now);
        let Some(known) = self.lease.known else {
            self.lease.waiting =
                Some(shared.ask(machine.node, Ask::ReadLease { node: machine.node }));
            return;
        };
        let sighting = known.map(|lease| Sighting {
            tenure: lease.tenure,
            renewed: lease.renewed,
            duration: lease.duration,
            unchanged_for: Duration::ZERO,
        });
        let (kept, clock) = (machine.kept, machine.clock(shared.now));
        let number =
            match decide_keep(self.tenure, kept, sighting.as_ref(), now, clock, &shared.terms) {
                Keep::Rest { .. } | Keep::Foreign { .. } => return,
                Keep::Renew { number } => number,
                Keep::Begin { .. }
                    if self.tenure.is_some() && shared.plant == Some(Plant::NoSelfFencing) =>
                {
                    machine.tenure
                }
                // Nothing of the old tenure may reach the storage when the new one begins.
                Keep::Begin { .. } if !machine.is_cut_off() => return,
                Keep::Begin { number } => {
                    machine.kept = number;
                    number
                }
            };
        let lease = Lease {
            tenure: number,
            renewed: machine.clock(shared.now),
            duration: shared.terms.duration,
        };
        self.lease.writing = Some((lease, now));
        let ask = Ask::Renew { node: machine.node, seen: known, lease };
        self.lease.waiting = Some(shared.ask(machine.node, ask));
    }

    fn take_lease_answer(&mut self, answer: &Answer, machine: &mut Machine, shared: &Shared) {
        match (answer, self.lease.writing) {
            (Answer::Lease(lease), _) => {
                self.lease.known = Some(*lease);
                self.resume_tenure(*lease, machine);
            }
            (Answer::Done, Some((lease, sent))) => {
                self.lease.known = Some(Some(lease));
                let now = machine.since_boot(shared.now);
                // The guard may have acted before it could see the new end.
                let is_late =
                    |held: Tenure| held.number == lease.tenure && !held.goes_on(now, &shared.terms);
                if self.tenure.is_some_and(is_late) && shared.plant != Some(Plant::LateRenewal) {
                    return;
                }
                machine.tenure = lease.tenure;
                machine.renewed = Some(sent);
                self.tenure = Some(Tenure { number: lease.tenure, renewed: sent });
            }
            _ => self.lease.known = None,
        }
    }

    /// After a start the tenure goes on, if it is this boot's and the guard has not ended it.
    fn resume_tenure(&mut self, lease: Option<Lease>, machine: &Machine) {
        if let (None, Some(lease), Some(renewed)) = (self.tenure, lease, machine.renewed)
            && lease.tenure == machine.tenure
        {
            self.tenure = Some(Tenure { number: lease.tenure, renewed });
        }
    }
}
