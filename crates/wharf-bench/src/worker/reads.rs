//! Reads of single keys that exist.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use wharf_store::{Store, Txn};

use super::{Keys, Load, ROUNDS, VALUE_BYTES, open};
use crate::{
    drive::{self, Client, Figures},
    usage::Usage,
};

const KEYS: u64 = 10_000;
/// Well below the store's limit for one transaction.
const KEYS_IN_A_COMMIT: u64 = 100;
/// A prime, so that neighbours in time are no neighbours in the store, and every key gets its turn.
const STRIDE: u64 = 7919;

#[derive(Debug, Serialize, Deserialize)]
pub struct Read {
    pub figures: Figures,
    pub usage: Usage,
}

struct Reader {
    store: Store,
    next: u64,
}

impl Client for Reader {
    async fn step(&mut self) -> Result<()> {
        let key = Keys::Ordered.key_of(0, self.next % KEYS);
        let entry = self.store.get(&key).await?;
        let entry = entry.with_context(|| format!("{key} is gone"))?;
        anyhow::ensure!(entry.value.len() == VALUE_BYTES, "{key} has another value");
        self.next += STRIDE;
        // Reads never wait; without this one task would keep a thread for the whole round.
        tokio::task::consume_budget().await;
        Ok(())
    }
}

pub async fn run(load: &Load) -> Result<Read> {
    let store = open(&load.dir).await?;
    for first in (0..KEYS).step_by(KEYS_IN_A_COMMIT as usize) {
        let keys = first..first + KEYS_IN_A_COMMIT;
        let txn = keys.fold(Txn::new(), |txn, n| {
            txn.put(Keys::Ordered.key_of(0, n), vec![b'x'; VALUE_BYTES])
        });
        let _ = store.commit(txn).await?;
    }
    let reader = |n: usize| Reader { store: store.clone(), next: n as u64 };
    let mut readers: Vec<Reader> = (0..load.clients).map(reader).collect();
    let mut figures = Figures::default();
    let before = Usage::own()?;
    for _ in 0..ROUNDS {
        readers = drive::round(readers, load.round_time(), &mut figures).await?;
    }
    Ok(Read { figures, usage: Usage::own()?.since(before) })
}
