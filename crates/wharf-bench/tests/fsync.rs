//! The embedded part of the benchmark, run for real: with syncs it passes, without it fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    path::Path,
    process::{Command, Output},
};

fn bench(dir: &Path, options: &[&str]) -> Output {
    let needs = [("strace", "strace"), ("eatmydata", "eatmydata")];
    wharf_testbed::debian::ensure("the benchmarks", &needs).unwrap();
    Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .args(["store", "--only", "embedded", "--seconds", "0.3", "--json", "--out"])
        .arg(dir.join("out"))
        .args(options)
        .env("TMPDIR", dir)
        .output()
        .unwrap()
}

#[test]
fn synced_writes_are_measured_and_found_again() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = bench(dir.path(), &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let one = rows.iter().find(|row| row["name"] == "commits, 1 writer").unwrap();
    assert!(one["ours"].as_f64().unwrap() > 0.0 && one["ratio"].as_f64().unwrap() > 0.0, "{one}");
    for file in ["store.json", "store.svg"] {
        assert!(dir.path().join("out").join(file).is_file(), "{file}");
    }
}

#[test]
fn a_run_with_fsync_off_fails() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = bench(dir.path(), &["--fsync-off"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "a run without syncs passed");
    assert!(errors.contains("synced"), "{errors}");
    assert!(output.stdout.is_empty(), "figures of an unsynced run were reported");
}

#[test]
fn a_disk_in_memory_is_refused() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        eprintln!("skipped: there is no /dev/shm here");
        return;
    }
    let dir = tempfile::tempdir_in(memory).unwrap();
    let output = bench(dir.path(), &[]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("lies in memory"));
}
