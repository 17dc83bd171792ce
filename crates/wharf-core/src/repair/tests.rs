//! Tables of single decisions, the words of entries and configurations, and whole queues against a
//! small model of a cluster.

mod config;
mod decide;
mod entry;
mod gate;
mod queue;
mod world;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn config_of(value: &Value) -> RepairConfig {
    RepairConfig::read(value).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Two types: `plain` has one step without a drain, `drained` two with.
fn config() -> RepairConfig {
    config_of(&base())
}

fn base() -> Value {
    json!({
        "max_concurrent_repairs": 2,
        "repair_procedures": [
            { "machine_types": ["plain"], "repair_operations": [{
                "operation": "fix",
                "health_check_command": ["check"],
                "repair_steps": [{ "repair_command": ["reset", "-f"], "watch_seconds": 60 }],
            }]},
            { "machine_types": ["drained"], "repair_operations": [{
                "operation": "fix",
                "health_check_command": ["check"],
                "success_command": ["hurray"],
                "failure_command": ["alas"],
                "repair_steps": [
                    { "need_drain": true, "repair_command": ["reset"], "watch_seconds": 60,
                      "command_retries": 1, "command_interval": 5 },
                    { "need_drain": true, "repair_command": ["cycle"], "on_restart": "rerun" },
                ],
            }]},
        ],
    })
}

fn queue_of(entries: Vec<Entry>) -> Queue {
    let next_index = entries.len() as u64;
    let entries: BTreeMap<u64, Entry> = entries.into_iter().map(|one| (one.index, one)).collect();
    let count = entries.len();
    Queue { head: QueueHead { next_index, count, ..QueueHead::default() }, entries }
}

fn entry(index: u64, machine_type: &str, phase: Phase) -> Entry {
    Entry { phase, ..Entry::new(index, &address(index), machine_type, "fix", at(0)) }
}

fn address(number: u64) -> String {
    format!("10.0.{}.{}", number / 250, number % 250 + 1)
}

fn machine(node: &str) -> Machine {
    Machine { node: node.to_owned(), ..Machine::default() }
}

fn controlplane(node: &str) -> Machine {
    Machine { controlplane: true, etcd: true, ..machine(node) }
}

/// A healthy etcd, and a node for each of these entries.
fn seen(nodes: &[u64]) -> Observation {
    Observation {
        machines: nodes.iter().map(|n| (address(*n), machine(&format!("n{n}")))).collect(),
        etcd: Etcd::Members(BTreeMap::from([("10.9.9.9".to_owned(), true)])),
        ..Observation::default()
    }
}

fn probed(begun: Timestamp, healthy: bool) -> Probe {
    let mut probe = Probe::default();
    probe.note(Probed { begun, healthy });
    probe
}

/// All of these entries were just found ill.
fn ill(mut seen: Observation, entries: &[u64], now: Timestamp) -> Observation {
    seen.probes.extend(entries.iter().map(|index| (*index, probed(now, false))));
    seen
}

/// A decision as short words, one for each action, in order.
fn words(decision: &Decision) -> Vec<String> {
    let action = |action: &Action| {
        let write = match &action.write {
            Write::Nothing => String::new(),
            Write::Remove => " remove".to_owned(),
            Write::Put(entry) => {
                let status = entry.status().name();
                format!(" {status}/{}/{}", entry.step, step_word(entry))
            }
        };
        let effect = match &action.effect {
            None => String::new(),
            Some(Effect::Probe(_)) => " probe".to_owned(),
            Some(Effect::StartDrain { node, .. }) => format!(" drain {node}"),
            Some(Effect::StopDrain) => " stop-drain".to_owned(),
            Some(Effect::FenceVolumes { node, .. }) => format!(" fence-volumes {node}"),
            Some(Effect::Run(command)) => format!(" run {}", command.argv.join(" ")),
        };
        format!("{}:{write}{effect}", action.index)
    };
    decision.actions.iter().map(action).collect()
}

fn step_word(entry: &Entry) -> &'static str {
    match entry.phase.step_status() {
        StepStatus::Waiting => "waiting",
        StepStatus::Draining => "draining",
        StepStatus::Watching => "watching",
    }
}

fn waits(decision: &Decision) -> Vec<String> {
    decision.waits.iter().map(|(index, wait)| format!("{index}: {wait}")).collect()
}

/// The entry that an action stores.
fn stored(decision: &Decision, index: u64) -> Entry {
    let puts = decision.actions.iter().filter(|action| action.index == index);
    let mut puts = puts.filter_map(|action| match &action.write {
        Write::Put(entry) => Some(entry.as_ref().clone()),
        Write::Nothing | Write::Remove => None,
    });
    puts.next().unwrap_or_else(|| panic!("nothing is stored for {index}: {decision:?}"))
}

fn ended(code: i32) -> End {
    let (stdout, stderr) = ("out".to_owned(), "err".to_owned());
    End { exit: Exit::Code(code), stdout, stderr }
}
