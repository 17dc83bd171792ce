//! What kubelet and the container runtime rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const DEADLINE: Duration = Duration::from_secs(20);

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running one that has its signal handlers.
fn pause() -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_wharf-pause")).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait_for("handling SIGTERM", || {
        let text = std::fs::read_to_string(&status).unwrap();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim();
        let caught = u64::from_str_radix(caught, 16).unwrap();
        let term = 1 << (Signal::TERM.as_raw() - 1);
        (caught & term != 0).then_some(())
    });
    child
}

fn end_by(signal: Signal) -> ExitStatus {
    let mut child = pause();
    kill_process(Pid::from_child(&child), signal).unwrap();
    wait_for("the end", || child.try_wait().unwrap())
}

#[test]
fn it_ends_well_when_it_is_asked_to() {
    for signal in [Signal::TERM, Signal::INT] {
        assert_eq!(end_by(signal).code(), Some(0), "{signal:?}");
    }
    assert_eq!(end_by(Signal::KILL).signal(), Some(Signal::KILL.as_raw()));
}
