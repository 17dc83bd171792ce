//! The JSON of an entry.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BlockingPod, Entry, Phase, Status, StepStatus, Transition};

/// Every field of the schema is always there. Ours follow; readers of the schema pass them over.
#[derive(Serialize, Deserialize)]
pub(super) struct Wire {
    index: String,
    address: String,
    nodename: String,
    machine_type: String,
    operation: String,
    status: Status,
    step: usize,
    step_status: StepStatus,
    last_transition_time: Time,
    #[serde(default)]
    drain_backoff_count: u32,
    #[serde(default)]
    drain_backoff_expire: Time,
    #[serde(default)]
    serial: String,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    history: Vec<Transition>,
    #[serde(default)]
    last_exit_code: Option<i32>,
    #[serde(default)]
    stdout_tail: String,
    #[serde(default)]
    stderr_tail: String,
    #[serde(default)]
    blocking_pods: Vec<BlockingPod>,
    /// Not there in a queue of the schema's alone.
    phase: Option<Phase>,
    #[serde(default)]
    added: Time,
    #[serde(default)]
    started: Time,
    #[serde(default)]
    commands_begun: u32,
    #[serde(default)]
    fenced: bool,
    #[serde(default)]
    volumes_fenced: bool,
    #[serde(default)]
    flap_cleared: bool,
}

impl From<Entry> for Wire {
    fn from(entry: Entry) -> Self {
        Self {
            index: entry.index.to_string(),
            status: entry.status(),
            step: entry.step,
            step_status: entry.phase.step_status(),
            phase: Some(entry.phase),
            address: entry.address,
            nodename: entry.nodename,
            machine_type: entry.machine_type,
            operation: entry.operation,
            last_transition_time: Time(Some(entry.last_transition)),
            drain_backoff_count: entry.drain_backoff_count,
            drain_backoff_expire: Time(entry.drain_backoff_expire),
            serial: entry.serial,
            deleted: entry.deleted,
            reason: entry.reason,
            history: entry.history,
            last_exit_code: entry.last_exit_code,
            stdout_tail: entry.stdout_tail,
            stderr_tail: entry.stderr_tail,
            blocking_pods: entry.blocking_pods,
            added: Time(Some(entry.added)),
            started: Time(entry.started),
            commands_begun: entry.commands_begun,
            fenced: entry.fenced,
            volumes_fenced: entry.volumes_fenced,
            flap_cleared: entry.flap_cleared,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the index {0:?} of an entry is not a number")]
pub(super) struct BadIndex(String);

impl TryFrom<Wire> for Entry {
    type Error = BadIndex;

    fn try_from(wire: Wire) -> Result<Self, BadIndex> {
        let since = wire.last_transition_time.0.unwrap_or(Timestamp::UNIX_EPOCH);
        let phase = wire.phase.unwrap_or_else(|| guess(wire.status, wire.step_status, since));
        Ok(Self {
            index: wire.index.parse().map_err(|_| BadIndex(wire.index))?,
            address: wire.address,
            nodename: wire.nodename,
            machine_type: wire.machine_type,
            operation: wire.operation,
            serial: wire.serial,
            step: wire.step,
            phase,
            last_transition: since,
            drain_backoff_count: wire.drain_backoff_count,
            drain_backoff_expire: wire.drain_backoff_expire.0,
            reason: wire.reason,
            history: wire.history,
            last_exit_code: wire.last_exit_code,
            stdout_tail: wire.stdout_tail,
            stderr_tail: wire.stderr_tail,
            blocking_pods: wire.blocking_pods,
            deleted: wire.deleted,
            added: wire.added.0.unwrap_or(since),
            started: wire.started.0,
            commands_begun: wire.commands_begun,
            fenced: wire.fenced,
            volumes_fenced: wire.volumes_fenced,
            flap_cleared: wire.flap_cleared,
        })
    }
}

/// The phase that the schema's words stand for. A command is never begun twice by a guess.
fn guess(status: Status, step_status: StepStatus, since: Timestamp) -> Phase {
    match (status, step_status) {
        (Status::Queued, _) => Phase::Queued,
        (Status::Processing, StepStatus::Waiting) => Phase::Waiting,
        (Status::Processing, StepStatus::Draining) => Phase::Draining { since },
        (Status::Processing, StepStatus::Watching) => Phase::Watching { since },
        (Status::Succeeded, step_status) => Phase::Succeeded { step_status },
        (Status::Failed, step_status) => Phase::Failed { step_status },
    }
}

/// A time that may never have been set; the schema then has the first moment of year 1, which no
/// entry of ours can reach.
#[derive(Default)]
struct Time(Option<Timestamp>);

const NEVER: &str = "0001-01-01T00:00:00Z";

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(time) => serializer.collect_str(time),
            None => serializer.serialize_str(NEVER),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == NEVER {
            return Ok(Time(None));
        }
        text.parse().map(|time| Time(Some(time))).map_err(serde::de::Error::custom)
    }
}
