//! The guard that ends a test's processes.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use wharf_testbed::process::{Process, Signal, free_port};
use wharf_testbed::wait_for;

const SOON: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Process::spawn(command).unwrap()
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn child_of(process: &mut Process) -> String {
    process.wait_for_output("\n", SOON).unwrap();
    process.output().trim().to_owned()
}

#[test]
fn dropping_ends_the_process_and_what_it_started() {
    let mut process = shell("sleep 600 & echo $!; wait");
    let child = child_of(&mut process);
    let leader = process.id().to_string();
    assert!(is_alive(&child) && is_alive(&leader));
    drop(process);
    wait_for("both to end", SOON, || Ok((!is_alive(&child) && !is_alive(&leader)).then_some(())))
        .unwrap();
}

#[test]
fn what_a_finished_process_left_behind_ends_too() {
    let mut process = shell("sleep 600 & echo $!");
    let child = child_of(&mut process);
    assert!(process.wait(SOON).unwrap().success());
    wait_for("the orphan to end", SOON, || Ok((!is_alive(&child)).then_some(()))).unwrap();
}

#[test]
fn both_streams_are_kept_and_a_signal_arrives() {
    let mut process = shell(
        "trap 'echo asked; exit 7' TERM; echo out; echo err >&2; \
        while :; do sleep 0.05; done",
    );
    process.wait_for_output("err", SOON).unwrap();
    process.signal(Signal::TERM).unwrap();
    assert_eq!(process.wait(SOON).unwrap().code(), Some(7));
    assert_eq!(process.output(), "out\nerr\nasked\n");
}

#[test]
fn waiting_for_output_of_a_dead_process_fails_at_once_and_shows_what_it_printed() {
    let mut process = shell("echo something else");
    let error = process.wait_for_output("ready", SOON).unwrap_err();
    assert!(format!("{error:#}").contains("something else"), "{error:#}");
}

#[test]
fn a_free_port_can_be_bound_and_is_given_once() {
    let (one, other) = (free_port().unwrap(), free_port().unwrap());
    assert_ne!(one, other);
    std::net::TcpListener::bind(("127.0.0.1", one)).unwrap();
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    assert!(one < first, "outgoing connections may take {one}");
}
