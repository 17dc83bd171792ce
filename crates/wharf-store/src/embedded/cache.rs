//! Values of keys that are read again and again, in memory.
//!
//! A request to the server reads its user and its token; through SQLite that costs more than the
//! rest of the request, because every commit throws the readers' pages away.
//!
//! Guarantees: a read is never older than one through SQLite would be. The writer takes a key out
//! before the commit that changes it ([`Cache::begin_commit`]), and nobody puts back what was read
//! before that commit's end: a part of the cache that a commit has touched meanwhile takes nothing.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard},
};

use crate::types::{Change, Entry};

/// Many parts, so that neither readers nor the commits of others often meet in one.
const PARTS: usize = 256;
/// Together with the number of parts this bounds the memory, to 16 MiB.
const PART_BYTES: usize = 64 << 10;
/// Larger values are read too rarely to push others out.
const MAX_ENTRY_BYTES: usize = 8 << 10;

pub(super) struct Cache {
    hasher: RandomState,
    parts: Vec<Mutex<Part>>,
}

#[derive(Default)]
struct Part {
    entries: HashMap<String, Entry>,
    bytes: usize,
    /// How many commits have touched this part.
    touched: u64,
    /// Changes of a commit that is under way.
    under_way: usize,
}

/// What a reader found.
pub(super) enum Found {
    Here(Entry),
    /// Read it, and give it to [`Cache::put`] with this ticket.
    Absent(Ticket),
}

pub(super) struct Ticket {
    touched: u64,
}

impl Cache {
    pub(super) fn new() -> Cache {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Cache { hasher: RandomState::new(), parts }
    }

    fn part(&self, key: &str) -> Option<MutexGuard<'_, Part>> {
        let place = self.hasher.hash_one(key) as usize % PARTS;
        let part = self.parts.get(place)?;
        Some(part.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    pub(super) fn get(&self, key: &str) -> Found {
        let Some(part) = self.part(key) else { return Found::Absent(Ticket { touched: 0 }) };
        match part.entries.get(key) {
            Some(entry) => Found::Here(entry.clone()),
            None => Found::Absent(Ticket { touched: part.touched }),
        }
    }

    /// Keeps what was read after [`Cache::get`] gave the ticket, unless it may have changed since.
    pub(super) fn put(&self, ticket: &Ticket, entry: &Entry) {
        let bytes = entry.key.len() + entry.value.len();
        let Some(mut part) = self.part(&entry.key) else { return };
        if bytes > MAX_ENTRY_BYTES || part.under_way > 0 || part.touched != ticket.touched {
            return;
        }
        if part.bytes + bytes > PART_BYTES {
            part.clear();
        }
        if part.entries.insert(entry.key.clone(), entry.clone()).is_none() {
            part.bytes += bytes;
        }
    }

    /// To be called right before the changes become visible in SQLite.
    pub(super) fn begin_commit(&self, changes: &[Change]) {
        for change in changes {
            let Some(mut part) = self.part(change.key()) else { continue };
            part.touched += 1;
            part.under_way += 1;
            if let Some(old) = part.entries.remove(change.key()) {
                part.bytes -= old.key.len() + old.value.len();
            }
        }
    }

    /// To be called with the same changes once they are visible, or given up.
    pub(super) fn end_commit(&self, changes: &[Change]) {
        for change in changes {
            let Some(mut part) = self.part(change.key()) else { continue };
            part.touched += 1;
            part.under_way -= 1;
        }
    }

    pub(super) fn clear(&self) {
        for part in &self.parts {
            part.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
        }
    }
}

impl Part {
    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Revision;

    fn entry(key: &str, value: &str) -> Entry {
        let (key, value) = (key.to_owned(), value.as_bytes().to_vec());
        Entry { key, value, created: Revision(1), modified: Revision(1) }
    }

    fn ticket(cache: &Cache, key: &str) -> Ticket {
        match cache.get(key) {
            Found::Absent(ticket) => ticket,
            Found::Here(entry) => panic!("{key} is here: {entry:?}"),
        }
    }

    fn holds(cache: &Cache, key: &str) -> bool {
        matches!(cache.get(key), Found::Here(_))
    }

    #[test]
    fn what_was_read_is_kept() {
        let cache = Cache::new();
        cache.put(&ticket(&cache, "a"), &entry("a", "1"));
        assert!(matches!(cache.get("a"), Found::Here(found) if found == entry("a", "1")));
        cache.clear();
        assert!(!holds(&cache, "a"));
    }

    #[test]
    fn a_commit_takes_its_keys_out_before_it_happens() {
        let cache = Cache::new();
        cache.put(&ticket(&cache, "a"), &entry("a", "1"));
        let changes = [Change::Put(entry("a", "2"))];
        cache.begin_commit(&changes);
        assert!(!holds(&cache, "a"));
        cache.end_commit(&changes);
        assert!(!holds(&cache, "a"));
    }

    #[test]
    fn what_was_read_before_or_during_a_commit_is_not_kept() {
        let cache = Cache::new();
        let changes = [Change::Deleted { key: "a".to_owned(), revision: Revision(2) }];
        let before = ticket(&cache, "a");
        cache.begin_commit(&changes);
        let during = ticket(&cache, "a");
        cache.put(&before, &entry("a", "1"));
        cache.put(&during, &entry("a", "1"));
        cache.end_commit(&changes);
        cache.put(&before, &entry("a", "1"));
        cache.put(&during, &entry("a", "1"));
        assert!(!holds(&cache, "a"));
        cache.put(&ticket(&cache, "a"), &entry("a", "3"));
        assert!(holds(&cache, "a"));
    }

    #[test]
    fn memory_is_bounded() {
        let cache = Cache::new();
        let large = "x".repeat(MAX_ENTRY_BYTES);
        cache.put(&ticket(&cache, "a"), &entry("a", &large));
        assert!(!holds(&cache, "a"));
        let medium = "x".repeat(MAX_ENTRY_BYTES / 2);
        for number in 0..20_000 {
            let key = format!("k{number}");
            cache.put(&ticket(&cache, &key), &entry(&key, &medium));
        }
        let bytes = |part: &Mutex<Part>| {
            let part = part.lock().unwrap();
            let held: usize = part.entries.values().map(|e| e.key.len() + e.value.len()).sum();
            assert_eq!(held, part.bytes);
            held
        };
        let all: usize = cache.parts.iter().map(bytes).sum();
        assert!(all > 0 && all <= PARTS * PART_BYTES, "{all}");
    }
}
