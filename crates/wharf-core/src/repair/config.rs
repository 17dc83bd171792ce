//! How machines are repaired: procedures by machine type, their steps, and the limits.
//!
//! A configuration is read from a JSON value (YAML becomes one first) by [`RepairConfig::read`],
//! which finds all faults at once. What is stored and sent back is read in the same strict way.

mod read;
mod window;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{cluster::validate::Fault, drain, selector::Selector};

pub use window::{Day, TimeOfDay, UtcOffset, Window};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct RepairConfig {
    pub repair_procedures: Vec<Procedure>,
    pub max_concurrent_repairs: usize,
    /// The namespaces whose pods leave by eviction alone; not given, or empty: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protected_namespaces: Option<Selector>,
    /// The pods of Jobs that `job_policy` is about; not given, or empty: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protected_job_pods: Option<Selector>,
    pub job_policy: JobPolicy,
    pub evict_retries: u32,
    pub evict_interval: u64,
    pub eviction_timeout_seconds: u64,
    pub max_concurrent_evictions: usize,
    /// Pods of lower priority leave before the others.
    pub evict_by_priority: bool,
    pub evict_rules: Vec<EvictRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_unready_after_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_after_seconds: Option<u64>,
    /// Takes the place of the pods' own grace periods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
    /// How long volumes of drained pods are waited for; 0: not at all.
    pub volume_timeout_seconds: u64,
    /// How long a step with `fence_volumes` waits until the node's volumes are taken from it.
    pub fence_timeout_seconds: u64,
    /// A node that has been silent for so long is not waited for; 0: it always is.
    pub unreachable_seconds: u64,
    pub backoff_base_seconds: u64,
    /// Cordon before anything is asked.
    pub cordon_first: bool,
    pub keep_cordon_on_failure: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<Breaker>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flap_guard: Option<FlapGuard>,
    /// Addresses of machines that nothing is to be done to.
    pub excluded_machines: Vec<String>,
    /// When repairs may begin; none: always.
    pub windows: Vec<Window>,
}

impl crate::record::Kind for RepairConfig {
    const KIND: &'static str = "repair";
}

/// What is done to machines of some types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Procedure {
    pub machine_types: Vec<String>,
    pub repair_operations: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    pub operation: String,
    pub repair_steps: Vec<Step>,
    pub health_check_command: Vec<String>,
    /// Of the health check; 0: no limit.
    pub command_timeout_seconds: u64,
    /// How often a machine in hand is looked at.
    pub health_check_interval_seconds: u64,
    /// A machine must have been healthy for so long without a break.
    pub stable_seconds: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success_command: Vec<String>,
    pub success_command_timeout: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_command: Vec<String>,
    pub failure_command_timeout: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub need_drain: bool,
    pub repair_command: Vec<String>,
    /// 0: no limit.
    pub command_timeout_seconds: u64,
    pub command_retries: u32,
    pub command_interval: u64,
    /// Counted from the end of the command.
    pub watch_seconds: u64,
    pub on_failure: OnFailure,
    pub on_restart: OnRestart,
    /// The node's volumes are taken from it before the command, as far as their storage can. Once
    /// the command has succeeded the machine is known to be off, so that all may be taken from it
    /// (the out-of-service taint).
    pub fence_volumes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPolicy {
    /// The node is given back and drained another time.
    Block,
    /// They may finish within the time of the drain.
    Wait,
    Delete,
}

/// What a command's last failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The entry has failed.
    Stop,
    /// The machine is watched as after a success.
    Continue,
}

/// What happens when the server stopped while the command ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRestart {
    /// It is not repeated; the machine is watched.
    Watch,
    Rerun,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EvictRule {
    pub selector: Selector,
    /// Smaller ones leave first; pods that no rule selects have 0.
    pub order: i32,
}

/// Nothing is begun while more machines than this are unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Breaker {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unhealthy_percent: Option<u64>,
    /// Nothing is begun for so long after the storm either.
    pub cooldown_seconds: u64,
}

impl Breaker {
    /// Whether so many unhealthy machines are a storm. A percentage is rounded down, but one
    /// machine is never a storm by it: small clusters must be repairable.
    pub fn is_storm(&self, unhealthy: usize, machines: usize) -> bool {
        let (unhealthy, machines) = (unhealthy as u64, machines as u64);
        let share = |percent: u64| (machines.saturating_mul(percent) / 100).max(1);
        self.max_unhealthy.is_some_and(|limit| unhealthy > limit)
            || self.max_unhealthy_percent.is_some_and(|percent| unhealthy > share(percent))
    }
}

/// A machine that was repaired so often in so short a time needs a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FlapGuard {
    pub max_repairs: u64,
    pub window_seconds: u64,
}

impl Default for RepairConfig {
    fn default() -> Self {
        Self {
            repair_procedures: Vec::new(),
            max_concurrent_repairs: 1,
            protected_namespaces: None,
            protected_job_pods: None,
            job_policy: JobPolicy::Block,
            evict_retries: 0,
            evict_interval: 0,
            eviction_timeout_seconds: 600,
            max_concurrent_evictions: drain::PARALLEL,
            evict_by_priority: false,
            evict_rules: Vec::new(),
            delete_unready_after_seconds: None,
            delete_after_seconds: None,
            grace_seconds: None,
            volume_timeout_seconds: 60,
            fence_timeout_seconds: 60,
            unreachable_seconds: 300,
            backoff_base_seconds: 300,
            cordon_first: false,
            keep_cordon_on_failure: false,
            breaker: None,
            flap_guard: None,
            excluded_machines: Vec::new(),
            windows: Vec::new(),
        }
    }
}

impl RepairConfig {
    /// Reads a configuration, or says all that is wrong with it.
    pub fn read(value: &Value) -> Result<Self, Vec<Fault>> {
        read::config(value)
    }

    /// The first procedure for a machine type; no later one is looked at.
    pub fn procedure(&self, machine_type: &str) -> Option<&Procedure> {
        let meant =
            |procedure: &&Procedure| procedure.machine_types.iter().any(|one| one == machine_type);
        self.repair_procedures.iter().find(meant)
    }

    pub fn operation(&self, machine_type: &str, operation: &str) -> Option<&Operation> {
        self.procedure(machine_type)?.operation(operation)
    }

    /// Whether repairs may begin at this time.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|window| window.is_open(now))
    }

    /// How a node is drained for a repair that began to drain it at `since`.
    pub fn drain_policy(&self, owner: &str, since: Timestamp) -> drain::Policy {
        let seconds = Duration::from_secs;
        let deadline = later(since, self.eviction_timeout_seconds);
        let rules = self
            .evict_rules
            .iter()
            .map(|rule| drain::Rule { selector: rule.selector.clone(), place: rule.order });
        let ladder = drain::Ladder {
            begun: since,
            unready_after: self.delete_unready_after_seconds.map(seconds),
            any_after: self.delete_after_seconds.map(seconds),
        };
        let climbs = ladder.unready_after.is_some() || ladder.any_after.is_some();
        let given = |value: u64| (value > 0).then(|| seconds(value));
        drain::Policy {
            order: if self.cordon_first {
                drain::Order::CordonFirst
            } else {
                drain::Order::RehearseFirst
            },
            jobs: match self.job_policy {
                JobPolicy::Block => drain::Jobs::Block,
                JobPolicy::Wait => drain::Jobs::Wait,
                JobPolicy::Delete => drain::Jobs::Delete,
            },
            job_pods: self.protected_job_pods.clone(),
            protected: self.protected_namespaces.clone(),
            retry: seconds(self.evict_interval).max(drain::RETRY),
            attempts: Some(self.evict_retries.saturating_add(1)),
            parallel: self.max_concurrent_evictions,
            sequence: drain::Sequence {
                rules: rules.collect(),
                by_priority: self.evict_by_priority,
            },
            ladder: climbs.then_some(ladder),
            grace_seconds: self.grace_seconds,
            volumes: given(self.volume_timeout_seconds),
            held_volumes: Some(seconds(self.volume_timeout_seconds)),
            lost_after: given(self.unreachable_seconds),
            ..drain::Policy::removal(owner, deadline)
        }
    }
}

impl Procedure {
    pub fn operation(&self, name: &str) -> Option<&Operation> {
        self.repair_operations.iter().find(|operation| operation.operation == name)
    }
}

/// A time so many seconds later; what lies beyond the calendar is its end.
pub(super) fn later(from: Timestamp, seconds: u64) -> Timestamp {
    from.saturating_add(Duration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// A stored or sent configuration that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(|fault| fault.message.as_str()).collect::<Vec<_>>().join("; "))]
pub struct InvalidConfig(pub Vec<Fault>);

impl TryFrom<Value> for RepairConfig {
    type Error = InvalidConfig;

    fn try_from(value: Value) -> Result<Self, InvalidConfig> {
        Self::read(&value).map_err(InvalidConfig)
    }
}
