//! `cargo xtask assets` as a user sees it, on a small mirror and with a stand-in for Go.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use sha2::Digest;
use wharf_bundle::catalogue::this_arch;

const DEADLINE: Duration = Duration::from_secs(20);

fn assets(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("assets").env("WHARF_CACHE", cache).stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A mirror that holds runc, which is one file and its sum.
fn runc_mirror(root: &Path) -> PathBuf {
    let dir = root.join("runc/v1.4.3");
    let name = format!("runc.{}", this_arch());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(&name), "a runc").unwrap();
    let sum = hex::encode(sha2::Sha256::digest("a runc"));
    fs::write(dir.join("runc.sha256sum"), format!("{sum}  {name}\n")).unwrap();
    dir.join(name)
}

#[test]
fn a_second_run_changes_nothing_and_a_damaged_file_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, mirror) = (dir.path().join("cache"), dir.path().join("mirror"));
    runc_mirror(&mirror);
    let run = || assets(&cache).args(["--only", "runc", "--from"]).arg(&mirror).output().unwrap();

    let first = run();
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(stderr(&first).contains("[1/1] runc 1.4.3 … 0 s"), "{}", stderr(&first));
    let made = PathBuf::from(String::from_utf8(first.stdout).unwrap().trim());
    let runc = made.join("bin/runc");
    assert_eq!(fs::read(&runc).unwrap(), b"a runc");
    assert_eq!(runc.metadata().unwrap().permissions().mode() & 0o7777, 0o755);

    let begun = Instant::now();
    let second = run();
    assert!(second.status.success());
    assert_eq!(stderr(&second), "");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());

    fs::write(&runc, "another").unwrap();
    let third = run();
    assert!(third.status.success(), "{}", stderr(&third));
    assert!(stderr(&third).contains("bin/runc is damaged"), "{}", stderr(&third));
    assert_eq!(fs::read(&runc).unwrap(), b"a runc");
}

#[test]
fn a_file_with_a_wrong_checksum_never_gets_into_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, mirror) = (dir.path().join("cache"), dir.path().join("mirror"));
    fs::write(runc_mirror(&mirror), "evil").unwrap();
    let base = format!("runc={}", mirror.join("runc").display());
    let output = assets(&cache).args(["--only", "runc", "--from", &base]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    for part in ["error: ", "runc.", "expected sha256", "found", "hint: "] {
        assert!(text.contains(part), "{text}");
    }
    let left: Vec<_> = fs::read_dir(cache.join("assets")).unwrap().map(|e| e.unwrap()).collect();
    assert!(left.iter().all(|e| e.file_name() == ".lock"), "{left:?}");
}

#[test]
fn wrong_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (args, told) in [
        (["--only", "rnc"], "no component named rnc; there are etcd, kubernetes"),
        (["--kubernetes", "../../x"], "is not a version like 1.36.3"),
        (["--from", "ftp://127.0.0.1/"], "neither a directory nor an http"),
    ] {
        let output = assets(dir.path()).args(args).output().unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

/// A `go` that answers what is asked first and then starts a child and hangs with it.
const HANGING_GO: &str = r#"#!/bin/sh
case "$1" in
  version) exit 0 ;;
  env) printf 'go1.99.0\nlocal\n' ;;
  mod) exit 0 ;;
  get) sleep 600 & echo "$$ $!" > "$PIDS.new"; mv "$PIDS.new" "$PIDS"; wait ;;
esac
"#;

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_gone(pid: Pid) -> bool {
    // A dead child that nobody has waited for is gone as well.
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_err() || stat.is_ok_and(|s| s.contains(") Z "))
}

#[test]
fn an_interrupt_ends_go_and_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, pids, bin) =
        (dir.path().join("cache"), dir.path().join("pids"), dir.path().join("bin"));
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("go"), HANGING_GO).unwrap();
    fs::set_permissions(bin.join("go"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let child = assets(&cache)
        .args(["--only", "kwok"])
        .env("PATH", path)
        .env("PIDS", &pids)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = wait_for("the build", || fs::read_to_string(&pids).ok());
    let started: Vec<Pid> = started
        .split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap())
        .collect();
    assert_eq!(started.len(), 2);

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    for pid in started {
        wait_for("the end of a child", || is_gone(pid).then_some(()));
    }
    let left: Vec<_> = fs::read_dir(cache.join("assets")).unwrap().map(|e| e.unwrap()).collect();
    assert!(left.iter().all(|e| e.file_name() == ".lock"), "{left:?}");
}
