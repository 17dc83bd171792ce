//! What an agent looks through now and then: its garbage, entries that nothing knows of, and, as
//! the elected one does, entries that are stale.

use wharf_core::volume::{
    attach::Step,
    garbage::{Clean, Left, Scan, Scanned, decide_garbage, decide_stale, is_stray},
    record::{Change, Entry, EntryKey, Generation},
};

use super::{
    Agent, Machine, Shared,
    work::{Doing, Work},
};
use crate::volumes::{
    network::TICK,
    server::{Answer, Ask, Facts, Survey, volume_name},
};

/// How far the sweep of a volume is.
#[derive(Debug, Default)]
pub struct Sweep {
    raised: Option<Generation>,
    fenced: Vec<EntryKey>,
}

impl Agent {
    /// Does the first thing that is to be done.
    pub(super) fn look_through(
        &mut self,
        work: &mut Work,
        survey: &Survey,
        machine: &mut Machine,
        shared: &mut Shared,
    ) {
        let node = machine.node;
        if let Some(ask) = self.clean(survey, machine, shared) {
            work.doing = Doing::Sweeping(shared.ask(node, ask), None);
            self.survey_at = shared.now + TICK;
            return;
        }
        for (volume, facts) in &survey.volumes {
            self.watch_leases(facts, shared.now);
            let step = match self.sweep(*volume, facts, machine, shared) {
                Scan::Do(step) => step,
                Scan::TakeOut(change) => {
                    let ask = Ask::Change { volume: *volume, change };
                    work.doing = Doing::Sweeping(shared.ask(node, ask), None);
                    self.sweeps.remove(volume);
                    return;
                }
                Scan::Stuck(_) | Scan::Clean => continue,
            };
            let waiting = Self::send_step(*volume, &step, machine, shared);
            work.doing = Doing::Sweeping(waiting, Some((*volume, step)));
            self.survey_at = shared.now + TICK;
            return;
        }
    }

    /// Strikes off what is done, and takes out what nothing here knows of.
    fn clean(
        &mut self,
        survey: &Survey,
        machine: &mut Machine,
        shared: &mut Shared,
    ) -> Option<Ask> {
        let own = machine.own();
        for entry in &survey.garbage {
            let volume: usize = entry.volume.trim_start_matches("pv").parse().ok()?;
            let facts = survey.volumes.get(&volume);
            let journal = machine.journals.get(&volume);
            let grants = journal.into_iter().flat_map(|journal| &journal.pods);
            let device = machine.devices.get(&volume).map(|device| device.generation);
            let left = Left {
                devices: Some(device.into_iter().collect()),
                journal: grants.filter_map(|pod| Some(pod.entry.as_ref()?.generation)).max(),
                record: facts.map(|facts| facts.record.clone()),
            };
            match decide_garbage(entry, &left, &own) {
                Clean::Keep => {}
                Clean::Tidy => drop(self.tidy_at.insert(volume, shared.now)),
                // One that does not answer cannot be taken away.
                Clean::Detach(_) if machine.devices.get(&volume).is_some_and(|it| it.queued) => {}
                Clean::Detach(_) => {
                    shared.network.end_data(machine.node, Some(volume));
                    machine.devices.remove(&volume);
                }
                Clean::Drop(_) => {
                    return Some(Ask::DropGarbage { node: machine.node, entry: entry.clone() });
                }
            }
        }
        survey.volumes.iter().find_map(|(volume, facts)| {
            let record = facts.record.as_ref()?;
            let journal = machine.journals.get(volume);
            let device = Some(machine.devices.contains_key(volume));
            let mut entries = record.entries.iter();
            let stray = entries.find(|entry| is_stray(entry, &own, journal, device))?;
            let change: Change = record.without(&stray.key())?;
            Some(Ask::Change { volume: *volume, change })
        })
    }

    fn sweep(&mut self, volume: usize, facts: &Facts, machine: &Machine, shared: &Shared) -> Scan {
        let Some(record) = &facts.record else {
            self.sweeps.remove(&volume);
            return Scan::Clean;
        };
        let nodes = self.holders(facts, shared);
        let sweep = self.sweeps.entry(volume).or_default();
        let scanned = Scanned {
            volume: volume_name(volume),
            backend: shared.images[volume].backend,
            record: record.clone(),
            nodes,
            generation: Some(facts.generation),
            raised: sweep.raised,
            fenced: sweep.fenced.clone(),
        };
        decide_stale(&scanned, machine.clock(shared.now), &shared.policy())
    }

    pub(super) fn take_sweep(&mut self, step: Option<(usize, Step)>, answer: Option<&Answer>) {
        let (Some((volume, step)), Some(Answer::Done)) = (step, answer) else { return };
        let sweep = self.sweeps.entry(volume).or_default();
        match step {
            Step::Raise { to, .. } => sweep.raised = Some(to),
            Step::Fence { holders, .. } => sweep.fenced.extend(holders.iter().map(Entry::key)),
            Step::Write { .. } | Step::NoteGarbage { .. } => {}
        }
    }
}
