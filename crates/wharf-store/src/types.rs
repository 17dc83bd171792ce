//! The words of the store: keys, revisions, transactions and changes.

use serde::{Deserialize, Serialize};

/// The store's logical clock: every commit that writes raises it by one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease that was granted by the store; keys bound to it vanish when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

/// One key with its value as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// The revision that created the key (anew, if it was deleted before). As it only ever grows
    /// from one holder of a key to the next, it serves as the epoch of a lease.
    pub created: Revision,
    /// The revision of the last write.
    pub modified: Revision,
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The key exists and was last written at this revision.
    ModifiedAt(String, Revision),
    /// The key exists and has not been deleted since this revision created it.
    CreatedAt(String, Revision),
}

/// A write of a transaction. A key may be written once in a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Put { key: String, value: Vec<u8>, lease: Option<LeaseId> },
    Delete { key: String },
}

/// Writes that happen together, if every condition holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a transaction does nothing until it is committed"]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

impl Txn {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    pub fn put(self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.op(Op::Put { key: key.into(), value: value.into(), lease: None })
    }

    pub fn put_leased(
        self,
        key: impl Into<String>,
        value: impl Into<Vec<u8>>,
        lease: LeaseId,
    ) -> Self {
        self.op(Op::Put { key: key.into(), value: value.into(), lease: Some(lease) })
    }

    pub fn delete(self, key: impl Into<String>) -> Self {
        self.op(Op::Delete { key: key.into() })
    }

    pub fn op(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a refused transaction wrote nothing"]
pub enum Outcome {
    /// All writes are durable under this revision.
    Committed(Revision),
    /// A condition did not hold; nothing was written.
    Refused,
}

/// One key's change, as a watch reports it. Changes of one transaction share their revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Entry),
    Deleted { key: String, revision: Revision },
}

impl Change {
    pub fn key(&self) -> &str {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Deleted { key, .. } => key,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Change::Put(entry) => entry.modified,
            Change::Deleted { revision, .. } => *revision,
        }
    }
}

/// Which part of a list to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Only keys greater than this one.
    pub after: Option<String>,
    pub limit: usize,
    /// Newest keys first; then `after` means "only keys less than this one".
    pub descending: bool,
}

impl Page {
    /// Everything, however much it is; collections without bounds (audit) are read in parts.
    pub const ALL: Page = Page { after: None, limit: usize::MAX, descending: false };

    /// The first part of everything.
    pub(crate) fn first(limit: usize) -> Page {
        Page { after: None, limit, descending: false }
    }

    /// The page after the one that gave this listing; `None` if that was the last.
    pub(crate) fn next(&self, listing: &RawListing) -> Option<Page> {
        let last = listing.entries.last().filter(|_| listing.more)?;
        Some(Page { after: Some(last.entry.key.clone()), ..*self })
    }
}

/// Keys below a prefix, in key order, as they all stood at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub revision: Revision,
    /// There are more keys after the last one.
    pub more: bool,
}

/// A listing that also tells which keys are bound to a lease, for back-ups and migrations.
pub(crate) struct RawListing {
    pub(crate) entries: Vec<RawEntry>,
    pub(crate) revision: Revision,
    pub(crate) more: bool,
}

pub(crate) struct RawEntry {
    pub(crate) entry: Entry,
    pub(crate) leased: bool,
}

impl From<RawListing> for Listing {
    fn from(raw: RawListing) -> Listing {
        let entries = raw.entries.into_iter().map(|raw| raw.entry).collect();
        Listing { entries, revision: raw.revision, more: raw.more }
    }
}
