//! A big file, in a process of its own, so that its memory can be looked at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs::{self, File};
use std::io::Write;
use std::time::Instant;

use sha2::{Digest, Sha256};
use wharf_ssh::UploadSpec;

#[path = "ssh/server.rs"]
#[allow(dead_code)]
mod server;

const SIZE: u64 = 100_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_big_file_is_streamed_without_being_held_in_memory() {
    let server = server::Server::start();
    let session = server.connect().await;
    let source = server.dir().join("source");
    let sha256 = write_source(&source);
    let remote = server.dir().join("remote").to_str().unwrap().to_owned();
    let spec = UploadSpec { remote, sha256, size: SIZE, mode: 0o644 };
    let before = resident_kib();
    for _ in 0..3 {
        let _ = fs::remove_file(&spec.remote);
        let begin = Instant::now();
        session.upload(&source, &spec, |_| ()).await.unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        println!("100 MB with checksum and sync: {:.0} MB/s", SIZE as f64 / 1e6 / seconds);
    }
    let grown = resident_kib().saturating_sub(before);
    println!("memory grew by {grown} KiB");
    assert!(grown < 32 * 1024, "{grown} KiB");
    assert_eq!(session.present(&[spec]).await.unwrap(), [true]);
}

fn write_source(path: &std::path::Path) -> String {
    let mut file = File::create(path).unwrap();
    let mut hash = Sha256::new();
    let mut block = vec![0_u8; 1_000_000];
    for number in 0..SIZE / 1_000_000 {
        block.fill(number as u8);
        hash.update(&block);
        file.write_all(&block).unwrap();
    }
    hex::encode(hash.finalize())
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
