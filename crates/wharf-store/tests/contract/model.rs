//! The store against the simplest thing that could be right.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use wharf_store::{Change, Compare, Entry, Outcome, Page, Revision, Store, Txn};

use crate::{take, within};

const STEPS: usize = 300;
const KEYS: u32 = 12;

#[derive(Default)]
struct Model {
    entries: BTreeMap<String, Entry>,
    revision: Revision,
    changes: Vec<Change>,
}

impl Model {
    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Absent(key) => !self.entries.contains_key(key),
            Compare::ModifiedAt(key, at) => {
                self.entries.get(key).is_some_and(|e| e.modified == *at)
            }
            Compare::CreatedAt(key, at) => self.entries.get(key).is_some_and(|e| e.created == *at),
        }
    }

    fn commit(&mut self, txn: &Txn) -> Outcome {
        if !txn.compares.iter().all(|compare| self.holds(compare)) {
            return Outcome::Refused;
        }
        let revision = Revision(self.revision.0 + 1);
        let before = self.changes.len();
        for op in &txn.ops {
            match op.clone() {
                wharf_store::Op::Put { key, value, .. } => {
                    let created = self.entries.get(&key).map_or(revision, |old| old.created);
                    let entry = Entry { key: key.clone(), value, created, modified: revision };
                    self.changes.push(Change::Put(entry.clone()));
                    self.entries.insert(key, entry);
                }
                wharf_store::Op::Delete { key } => {
                    if self.entries.remove(&key).is_some() {
                        self.changes.push(Change::Deleted { key, revision });
                    }
                }
            }
        }
        if self.changes.len() > before {
            self.revision = revision;
        }
        Outcome::Committed(self.revision)
    }
}

fn random_txn(random: &mut StdRng, model: &Model) -> Txn {
    let mut txn = Txn::new();
    for _ in 0..random.random_range(0..3) {
        let key = format!("k/{}", random.random_range(0..KEYS));
        let known = model.entries.get(&key);
        let at = |known: Option<Revision>, random: &mut StdRng| {
            known
                .filter(|_| random.random_bool(0.7))
                .unwrap_or(Revision(random.random_range(0..50)))
        };
        let compare = match random.random_range(0..3) {
            0 => Compare::Absent(key),
            1 => Compare::ModifiedAt(key, at(known.map(|e| e.modified), random)),
            _ => Compare::CreatedAt(key, at(known.map(|e| e.created), random)),
        };
        txn = txn.when(compare);
    }
    let first = random.random_range(0..KEYS);
    for i in 0..random.random_range(0..5) {
        let key = format!("k/{}", (first + i * 2) % KEYS);
        if txn.ops.iter().any(|op| matches!(op, wharf_store::Op::Put { key: k, .. } | wharf_store::Op::Delete { key: k } if *k == key)) {
            continue;
        }
        txn = if random.random_bool(0.3) {
            txn.delete(key)
        } else {
            txn.put(key, random.random_range(0..1000).to_string())
        };
    }
    txn
}

pub async fn random_transactions_agree_with_a_simple_model(store: &Store) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let start = store.revision().await.unwrap();
    let mut model = Model { revision: start, ..Model::default() };
    for step in 0..STEPS {
        let txn = random_txn(&mut random, &model);
        let outcome = within(store.commit(txn.clone())).await.unwrap();
        assert_eq!(outcome, model.commit(&txn), "step {step}: {txn:?}");
    }
    let listing = store.list("k/", Page::ALL).await.unwrap();
    assert_eq!(listing.entries, model.entries.into_values().collect::<Vec<_>>());
    assert_eq!(listing.revision, model.revision);
    let mut watch = store.watch("k/", start).await.unwrap();
    assert_eq!(
        by_revision(take(&mut watch, model.changes.len()).await),
        by_revision(model.changes)
    );
}

/// Within a revision, the order of keys is not part of the contract.
fn by_revision(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by(|a, b| (a.revision(), a.key()).cmp(&(b.revision(), b.key())));
    changes
}
