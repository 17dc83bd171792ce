//! What people do to the queue: add, delete, reset, enable and disable.
//!
//! None of it waits for a repair that is under way. A deletion is a mark on the entry, which the
//! engine acts on in its next pass.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    config::{FlapGuard, RepairConfig},
    entry::{Entry, Phase, Status},
};
use crate::cluster::validate::{Fault, FaultCode};

/// Entries stay until they are deleted; a queue that nobody empties must end somewhere.
pub const MAX_ENTRIES: usize = 20_000;
/// Of the past of a machine; no flap guard looks further.
const MAX_PAST: usize = 100;
/// Of the past of all machines: it lies in the head, which must stay far below what a transaction
/// can hold.
const MAX_PAST_OF_ALL: usize = 8000;
/// One word; hardware makers use about 20 characters.
const MAX_SERIAL: usize = 256;

/// The whole queue of a cluster, as it was read from the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    pub head: QueueHead,
    pub entries: BTreeMap<u64, Entry>,
}

/// What is kept of a queue beside its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueHead {
    /// A word that no other queue has, by which it knows its cordons.
    #[serde(default)]
    pub id: String,
    pub enabled: bool,
    /// Never given twice.
    pub next_index: u64,
    /// How many entries there are, so that adding one need not read them all.
    #[serde(default)]
    pub count: usize,
    /// When repairs of a machine began whose entries are gone, by address.
    #[serde(default)]
    pub past: BTreeMap<String, Vec<Timestamp>>,
}

impl crate::record::Kind for QueueHead {
    const KIND: &'static str = "repair";
}

impl Default for QueueHead {
    fn default() -> Self {
        Self { id: String::new(), enabled: true, next_index: 0, count: 0, past: BTreeMap::new() }
    }
}

/// A wish to have a machine repaired, as it was typed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    pub operation: String,
    pub machine_type: String,
    pub address: String,
    pub serial: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    #[error("{}", .0.iter().map(|fault| fault.message.as_str()).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Fault>),
    #[error("the queue is full: it holds {MAX_ENTRIES} entries; delete finished ones")]
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no entry {0:?} in the repair queue")]
pub struct NoSuchEntry(pub String);

impl QueueHead {
    /// Makes an entry. One for a machine that has an unfinished entry is made too; it waits for
    /// the other. `nodename` is that of the machine, empty if it is no node.
    ///
    /// Store the entry and the head in one transaction.
    pub fn add(
        &mut self,
        config: &RepairConfig,
        request: &Request,
        nodename: &str,
        now: Timestamp,
    ) -> Result<Entry, AddError> {
        let address = check(config, request).map_err(AddError::Invalid)?;
        if self.count >= MAX_ENTRIES {
            return Err(AddError::Full);
        }
        let Request { operation, machine_type, serial, .. } = request;
        let mut entry = Entry::new(self.next_index, &address, machine_type, operation, now);
        entry.serial.clone_from(serial);
        nodename.clone_into(&mut entry.nodename);
        entry.move_to(Phase::Queued, "added", now);
        self.next_index += 1;
        self.count += 1;
        Ok(entry)
    }

    /// Takes note that an entry leaves the queue, and remembers that its machine was repaired.
    pub fn remove(&mut self, entry: &Entry) {
        self.count = self.count.saturating_sub(1);
        let Some(started) = entry.started.filter(|_| entry.commands_begun > 0) else { return };
        let past = self.past.entry(entry.address.clone()).or_default();
        past.push(started);
        let surplus = past.len().saturating_sub(MAX_PAST);
        past.drain(..surplus);
        if self.past.values().map(Vec::len).sum::<usize>() > MAX_PAST_OF_ALL {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let firsts =
            self.past.iter().filter_map(|(address, times)| Some((*times.first()?, address)));
        let Some((_, oldest)) = firsts.min() else { return };
        let oldest = oldest.clone();
        let Some(times) = self.past.get_mut(&oldest) else { return };
        times.remove(0);
        if times.is_empty() {
            self.past.remove(&oldest);
        }
    }

    /// Forgets repairs that the flap guard does not look at any more; whether anything changed.
    pub fn forget(&mut self, guard: Option<FlapGuard>, now: Timestamp) -> bool {
        let before = self.past.len();
        match guard {
            None => self.past.clear(),
            Some(guard) => self.past.retain(|_, times| {
                times.retain(|time| is_within(*time, guard.window_seconds, now));
                !times.is_empty()
            }),
        }
        before != self.past.len()
    }
}

impl Queue {
    /// Appends an entry, see [`QueueHead::add`].
    pub fn add(
        &mut self,
        config: &RepairConfig,
        request: &Request,
        nodename: &str,
        now: Timestamp,
    ) -> Result<&Entry, AddError> {
        let entry = self.head.add(config, request, nodename, now)?;
        Ok(self.entries.entry(entry.index).or_insert(entry))
    }

    /// Marks an entry for removal. A second time changes nothing.
    pub fn delete(&mut self, index: &str) -> Result<u64, NoSuchEntry> {
        let number = index.parse().ok().filter(|number: &u64| number.to_string() == index);
        let entry = number.and_then(|number| self.entries.get_mut(&number));
        let Some(entry) = entry else { return Err(NoSuchEntry(index.to_owned())) };
        entry.deleted = true;
        Ok(entry.index)
    }

    /// Marks all finished entries for removal, and says which were not marked before.
    pub fn delete_finished(&mut self) -> Vec<u64> {
        self.delete_all(Entry::is_finished)
    }

    pub fn delete_unfinished(&mut self) -> Vec<u64> {
        self.delete_all(|entry| !entry.is_finished())
    }

    fn delete_all(&mut self, meant: impl Fn(&Entry) -> bool) -> Vec<u64> {
        let entries = self.entries.values_mut().filter(|entry| !entry.deleted && meant(entry));
        let marked = entries.map(|entry| {
            entry.deleted = true;
            entry.index
        });
        marked.collect()
    }

    /// Lets all unfinished entries be tried again now; says which changed.
    pub fn reset_backoff(&mut self) -> Vec<u64> {
        let entries = self.entries.values_mut().filter(|entry| !entry.is_finished());
        let changed = entries.filter_map(|entry| {
            let before =
                (entry.drain_backoff_count, entry.drain_backoff_expire, entry.flap_cleared);
            entry.drain_backoff_count = 0;
            entry.drain_backoff_expire = None;
            entry.flap_cleared = true;
            let after = (entry.drain_backoff_count, entry.drain_backoff_expire, entry.flap_cleared);
            (before != after).then_some(entry.index)
        });
        changed.collect()
    }

    /// Takes an entry out, see [`QueueHead::remove`].
    pub fn remove(&mut self, index: u64) -> Option<Entry> {
        let entry = self.entries.remove(&index)?;
        self.head.remove(&entry);
        Some(entry)
    }

    /// How many entries have each status.
    pub fn count(&self, status: Status) -> usize {
        self.entries.values().filter(|entry| entry.status() == status).count()
    }

    /// Whether nothing is left to do.
    pub fn is_settled(&self) -> bool {
        self.entries.values().all(Entry::is_finished)
    }
}

pub(super) fn is_within(time: Timestamp, seconds: u64, now: Timestamp) -> bool {
    super::config::later(time, seconds) > now
}

fn check(config: &RepairConfig, request: &Request) -> Result<String, Vec<Fault>> {
    let mut faults = Vec::new();
    let mut add = |field: &str, code, message: String| {
        faults.push(Fault { field: field.to_owned(), code, message });
    };
    let Request { operation, machine_type, address, serial } = request;
    match config.procedure(machine_type) {
        None => {
            let procedures = config.repair_procedures.iter();
            let known = procedures.flat_map(|procedure| &procedure.machine_types);
            let message = format!("there is no machine type {machine_type:?}{}", listed(known));
            add("machine_type", FaultCode::InvalidOption, message);
        }
        Some(procedure) if procedure.operation(operation).is_none() => {
            let known = procedure.repair_operations.iter().map(|one| &one.operation);
            let known = listed(known);
            let message =
                format!("machine type {machine_type} has no operation {operation:?}{known}");
            add("operation", FaultCode::InvalidOption, message);
        }
        Some(_) => {}
    }
    let parsed: Option<IpAddr> = address.parse().ok();
    if parsed.is_none() {
        let message = format!("{address:?} is not an IP address");
        add("address", FaultCode::InvalidFormat, message);
    }
    if serial.len() > MAX_SERIAL {
        let message = format!("serial must have at most {MAX_SERIAL} bytes");
        add("serial", FaultCode::MaxLengthExceeded, message);
    } else if serial.chars().any(|c| c.is_whitespace() || c.is_control()) {
        add("serial", FaultCode::InvalidFormat, "serial must be one word".to_owned());
    }
    match parsed {
        Some(address) if faults.is_empty() => Ok(address.to_string()),
        _ => Err(faults),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    match names.as_slice() {
        [] => "; the repair configuration has none".to_owned(),
        names => format!("; there are {}", names.join(", ")),
    }
}
