//! Durable commits of one key each.

use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use wharf_store::{Outcome, Store, Txn};

use super::{Load, Raw, open};
use crate::{
    drive::{self, Client, Figures},
    usage::Usage,
};

pub const VALUE_BYTES: usize = 1024;
/// Short rounds of what is compared take turns, so that a disturbance hits all of them.
pub const ROUNDS: u32 = 10;
/// Enough to know how many bytes a commit adds to the log, and too few for it to begin anew.
const PROBES: u64 = 100;
/// A page of SQLite's with its head.
const FRAME_BYTES: usize = 4096 + 24;

#[derive(Debug, Serialize, Deserialize)]
pub struct Written {
    pub store: Figures,
    /// The bare disk with the bytes of a record, and with the bytes that the store's log gets.
    pub raw_record: Figures,
    pub raw_log: Figures,
    pub log_bytes: usize,
    /// How many commits each writer was told to be durable.
    pub acknowledged: Vec<u64>,
    pub usage: Usage,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Synced {
    pub acknowledged: u64,
}

/// Records of one kind come in the order of time (operations, audit), or anywhere (users, nodes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Keys {
    Ordered,
    /// Each writer's keys lie together, apart from those of the others.
    Scattered,
}

impl Keys {
    pub fn key_of(self, writer: usize, number: u64) -> String {
        match self {
            Keys::Ordered => format!("bench/{number:08}/{writer:03}"),
            Keys::Scattered => format!("bench/{writer:03}/{number:08}"),
        }
    }
}

struct Writer {
    store: Store,
    keys: Keys,
    number: usize,
    written: u64,
}

impl Client for Writer {
    async fn step(&mut self) -> Result<()> {
        let txn =
            Txn::new().put(self.keys.key_of(self.number, self.written), vec![b'x'; VALUE_BYTES]);
        let Outcome::Committed(_) = self.store.commit(txn).await? else {
            bail!("a write without conditions was refused");
        };
        self.written += 1;
        Ok(())
    }
}

fn writers(store: &Store, keys: Keys, count: usize) -> Vec<Writer> {
    (0..count).map(|number| Writer { store: store.clone(), keys, number, written: 0 }).collect()
}

pub async fn run(load: &Load) -> Result<Written> {
    let store = open(&load.dir).await?;
    let mut writers = writers(&store, load.keys, load.clients);
    let log_bytes = if load.raw { probe(&load.dir, &mut writers).await? } else { 0 };
    let mut raw = load.raw.then(|| Raw::make(&load.dir)).transpose()?;
    let (mut raw_record, mut raw_log) = (Figures::default(), Figures::default());
    let mut figures = Figures::default();
    let mut usage = Usage::default();
    for _ in 0..ROUNDS {
        if let Some(raw) = &mut raw {
            let record_bytes = load.keys.key_of(0, 0).len() + VALUE_BYTES;
            raw.round(record_bytes, load.round_time(), &mut raw_record)?;
            raw.round(log_bytes, load.round_time(), &mut raw_log)?;
        }
        let before = Usage::own()?;
        writers = drive::round(writers, load.round_time(), &mut figures).await?;
        let round = Usage::own()?.since(before);
        usage = Usage { cpu: usage.cpu + round.cpu, ..round };
    }
    writers.sort_by_key(|writer| writer.number);
    let acknowledged = writers.iter().map(|writer| writer.written).collect();
    Ok(Written { store: figures, raw_record, raw_log, log_bytes, acknowledged, usage })
}

/// How many bytes one commit adds to the store's log.
async fn probe(dir: &Path, writers: &mut [Writer]) -> Result<usize> {
    let log = dir.join("wharf.db-wal");
    let Some(writer) = writers.first_mut() else { bail!("there is no writer") };
    writer.step().await?;
    let before = count_frames(&std::fs::read(&log)?);
    for _ in 0..PROBES {
        writer.step().await?;
    }
    let frames = count_frames(&std::fs::read(&log)?) - before;
    Ok(frames * FRAME_BYTES / PROBES as usize)
}

/// The pages in a write-ahead log of SQLite: each repeats the salt in the log's head.
fn count_frames(log: &[u8]) -> usize {
    const HEAD: usize = 32;
    let Some(salt) = log.get(16..24) else { return 0 };
    let frames = log.get(HEAD..).unwrap_or_default().chunks(FRAME_BYTES);
    frames.take_while(|frame| frame.get(8..16) == Some(salt)).count()
}

pub async fn synced(dir: &Path, commits: u64) -> Result<Synced> {
    let store = open(dir).await?;
    let mut writers = writers(&store, Keys::Ordered, 1);
    for writer in &mut writers {
        while writer.written < commits {
            writer.step().await?;
        }
    }
    Ok(Synced { acknowledged: commits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_up_to_what_is_not_of_this_log() {
        let mut log = vec![0; 32 + 3 * FRAME_BYTES];
        log[16..24].copy_from_slice(b"saltsalt");
        assert_eq!(count_frames(&log), 0);
        for frame in 0..2 {
            let salt = 32 + frame * FRAME_BYTES + 8;
            log[salt..salt + 8].copy_from_slice(b"saltsalt");
        }
        assert_eq!(count_frames(&log), 2);
        assert_eq!(count_frames(&[]), 0);
    }
}
