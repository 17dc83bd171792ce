//! The bare disk: what a log costs at least.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::drive::Figures;

/// About the size at which the store's own log begins anew.
const FILE_BYTES: u64 = 16 << 20;

/// A file that was written before and is written over again, as a recycled log is: then a sync
/// has no new blocks to note.
pub struct Raw {
    file: File,
    offset: u64,
}

impl Raw {
    pub fn make(dir: &Path) -> Result<Raw> {
        let path = dir.join("raw");
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
        file.write_all_at(&vec![0x55; FILE_BYTES as usize], 0)
            .with_context(|| format!("cannot write {}", path.display()))?;
        file.sync_all()?;
        Ok(Raw { file, offset: 0 })
    }

    pub fn round(&mut self, bytes: usize, time: Duration, figures: &mut Figures) -> Result<()> {
        let data = vec![0xAA; bytes];
        let begin = Instant::now();
        let mut latencies = Vec::new();
        let mut before = begin;
        while before < begin + time {
            if self.offset + bytes as u64 > FILE_BYTES {
                self.offset = 0;
            }
            self.file.write_all_at(&data, self.offset)?;
            // Straight to the kernel: what turns the syncs of a library off does not reach it.
            rustix::fs::fdatasync(&self.file)?;
            self.offset += bytes as u64;
            let after = Instant::now();
            latencies.push(after - before);
            before = after;
        }
        figures.add_round(begin.elapsed(), &latencies);
        Ok(())
    }
}
