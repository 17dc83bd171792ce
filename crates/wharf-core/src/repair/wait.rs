//! Why an entry does not go on. Its text is a sentence.

use std::fmt;

use jiff::Timestamp;

use crate::disruption::Refusal;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// The queue is disabled.
    Disabled,
    /// Another entry for the same machine comes first.
    SameMachine(u64),
    Backoff(Timestamp),
    /// The machine, or a person on its Node, is excluded from repairs.
    OptedOut,
    /// It was repaired so often in the window of the flap guard.
    Flapping(u64),
    OutsideWindows,
    Storm {
        unhealthy: usize,
        machines: usize,
    },
    Cooldown(Timestamp),
    EtcdUnknown,
    EtcdWithoutQuorum,
    /// This other member is ill.
    EtcdMember(String),
    Guard(Refusal),
    /// For the answer of the health check.
    HealthCheck,
    /// Healthy, but not for long enough.
    Stabilising(Timestamp),
    Drain,
    /// The Node is still marked as out of service.
    Fenced,
    /// The node's volumes are taken from it, at the longest until then.
    Volumes(Timestamp),
    Command,
    /// Healthy, but as many success commands run as may.
    Hooks,
    /// Before another attempt of the command.
    Pause(Timestamp),
    Watching(Timestamp),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Disabled => f.write_str("the repair queue is disabled"),
            Wait::SameMachine(index) => {
                write!(f, "entry {index} for the same machine comes first")
            }
            Wait::Backoff(until) => write!(f, "the next drain is tried at {until:.0}"),
            Wait::OptedOut => f.write_str("the machine is excluded from repairs"),
            Wait::Flapping(times) => write!(
                f,
                "the machine was repaired {times} times in a short time and needs a person; \
                 reset-backoff lets it go on"
            ),
            Wait::OutsideWindows => f.write_str("no maintenance window is open"),
            Wait::Storm { unhealthy, machines } => write!(
                f,
                "{unhealthy} of {machines} machines are unhealthy, which is more than single \
                 machines failing"
            ),
            Wait::Cooldown(until) => {
                write!(
                    f,
                    "many machines were unhealthy a while ago; nothing begins until {until:.0}"
                )
            }
            Wait::EtcdUnknown => f.write_str("the state of etcd is not known"),
            Wait::EtcdWithoutQuorum => f.write_str("etcd has no quorum"),
            Wait::EtcdMember(machine) => write!(f, "the etcd member on {machine} is not healthy"),
            Wait::Guard(refusal) => refusal.fmt(f),
            Wait::HealthCheck => f.write_str("the health check is awaited"),
            Wait::Stabilising(until) => {
                write!(f, "the machine is healthy and must stay so until {until:.0}")
            }
            Wait::Drain => f.write_str("the node is being drained"),
            Wait::Fenced => f.write_str("the Node is still tainted as out of service"),
            Wait::Volumes(until) => {
                write!(f, "the node's volumes are taken from it, at the longest until {until:.0}")
            }
            Wait::Command => f.write_str("the command runs"),
            Wait::Hooks => f.write_str("the machine is healthy; other success commands run"),
            Wait::Pause(until) => write!(f, "the command is tried again at {until:.0}"),
            Wait::Watching(until) => {
                write!(f, "the machine is watched until {until:.0}")
            }
        }
    }
}
