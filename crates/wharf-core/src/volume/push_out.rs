//! Pushing holders out of a record, once there is proof.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    attach::Step,
    backend::Backend,
    fence::{HolderNode, Proof},
    garbage::GarbageEntry,
    record::{Entry, EntryKey, Generation, Phase, Record},
};

/// A holder that is pushed out, and why it may be.
pub(super) type Pushed<'a> = (&'a Entry, Proof);

/// What the steps are decided on.
pub(super) struct PushOut<'a> {
    pub volume: &'a str,
    pub backend: Backend,
    pub record: Option<&'a Record>,
    pub nodes: &'a BTreeMap<String, HolderNode>,
    /// On the PV. `None` when that is gone: nobody can be granted the volume any more.
    pub generation: Option<Generation>,
    /// The highest that the storage has seen, as far as it was asked.
    pub epoch: Generation,
    pub raised: Option<Generation>,
    pub fenced: &'a [EntryKey],
    /// Whether its storage cluster is being deleted, or gone: nobody can be granted the volume, so that nobody
    /// has to be shut out for another. Whoever gets it by a storage cluster that is made anew has a
    /// generation above all that the storage has let in, which shuts them out then. A holder that
    /// was never let in finds its lease over before it could mount.
    pub is_over: bool,
}

impl<'a> PushOut<'a> {
    /// Whether the data path is told. Where it cannot be, the proof stands for itself.
    pub fn fences(&self, pushed: &[Pushed<'_>]) -> bool {
        self.backend.refuses_old_clients() && !self.is_over && !pushed.is_empty()
    }

    /// The next step until the holders may be taken out of the record; `None` then.
    pub fn next_step(&self, pushed: &[Pushed<'_>], now: Timestamp) -> Option<Step> {
        if self.fences(pushed)
            && let Some(step) = self.fence(pushed)
        {
            return Some(step);
        }
        self.note_garbage(pushed, now)
    }

    /// The entries that are not pushed out.
    pub fn staying(&self, pushed: &[Pushed<'_>]) -> impl Iterator<Item = &'a Entry> {
        let out: Vec<EntryKey> = pushed.iter().map(|(entry, _)| entry.key()).collect();
        self.entries().filter(move |entry| !out.contains(&entry.key()))
    }

    /// A PV that was deleted and made anew begins at nothing, where its image does not.
    pub fn raise(&self, from: Generation) -> Step {
        let held = self.entries().map(|entry| entry.generation).max().unwrap_or_default();
        Step::Raise { from, to: from.max(self.epoch).max(held).next() }
    }

    pub fn write(&self, entries: Vec<Entry>) -> Step {
        let version = self.record.map(|record| record.version.clone());
        Step::Write { version, entries }
    }

    fn entries(&self) -> impl Iterator<Item = &'a Entry> + use<'a> {
        self.record.into_iter().flat_map(|record| &record.entries)
    }

    /// Marked first, so that nobody else comes into the record between the proof and the fence.
    fn fence(&self, pushed: &[Pushed<'_>]) -> Option<Step> {
        // What was raised before may have been passed meanwhile; it would shut out nobody.
        let raised =
            self.raised.filter(|raised| pushed.iter().all(|(entry, _)| entry.generation < *raised));
        let generation = match (raised, self.generation) {
            (Some(raised), _) => raised,
            (None, Some(from)) => return Some(self.raise(from)),
            (None, None) => pushed.iter().map(|(entry, _)| entry.generation.next()).max()?,
        };
        let is_out = |entry: &Entry| pushed.iter().any(|(out, _)| out.key() == entry.key());
        if pushed.iter().any(|(entry, _)| entry.phase != Phase::Fencing) {
            let mut entries: Vec<Entry> = self.entries().cloned().collect();
            for entry in entries.iter_mut().filter(|entry| is_out(entry)) {
                entry.phase = Phase::Fencing;
            }
            return Some(self.write(entries));
        }
        let is_open = |entry: &Entry| !self.fenced.contains(&entry.key());
        let open = pushed.iter().map(|(entry, _)| *entry).filter(|entry| is_open(entry));
        let holders: Vec<Entry> = open.cloned().collect();
        (!holders.is_empty()).then_some(Step::Fence { holders, generation })
    }

    /// Noted before the entry leaves the record, or a crash in between would lose it. What is
    /// noted too much does no harm: an agent never cleans what it holds by right.
    fn note_garbage(&self, pushed: &[Pushed<'_>], now: Timestamp) -> Option<Step> {
        let is_noted = |entry: &Entry| {
            let node = self.nodes.get(&entry.node);
            let mut noted = node.into_iter().flat_map(|node| &node.garbage);
            noted.any(|known| known.is_of(self.volume, entry))
        };
        let mut open = pushed.iter().filter(|(entry, _)| !is_noted(entry)).peekable();
        let node = open.peek()?.0.node.clone();
        let entries = open
            .filter(|(entry, _)| entry.node == node)
            .map(|(entry, proof)| GarbageEntry::new(self.volume, entry, now, proof.to_string()))
            .collect();
        Some(Step::NoteGarbage { node, entries })
    }
}
