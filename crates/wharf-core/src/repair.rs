//! Repair: a queue of machines, each with an operation of steps that are tried until it is healthy.
//!
//! The engine reads the queue and looks at the world, lets [`decide`] say what is next, stores
//! what it says, begins the effects, and writes what comes of them into the entries by [`apply`].
//! People change the queue by the functions of [`Queue`]. Nothing is remembered outside of the
//! store that cannot be looked at again.
//!
//! **Guarantee:** a command is begun only after the entry says so. One that a crash cut off is found
//! as begun with nobody running it, and is not repeated unless its step says so.
//!
//! **Assumption:** one engine at a time works on a queue, and what it begins is in the
//! [`Observation`] of its next pass.

mod apply;
mod command;
mod config;
mod decide;
mod entry;
mod observation;
mod queue;
mod volumes;
mod wait;

#[cfg(test)]
mod tests;

pub use apply::{Outcome, apply};
pub use command::{Command, CommandKind, End, Exit};
pub use config::{
    Breaker, Day, EvictRule, FlapGuard, InvalidConfig, JobPolicy, OnFailure, OnRestart, Operation,
    Procedure, RepairConfig, Step, TimeOfDay, UtcOffset, Window,
};
pub use decide::{
    Action, BACKGROUND_HOOKS, BACKGROUND_PROBES, Decision, Effect, NodeAction, Write, cordon_owner,
    decide, note_repairs,
};
pub use entry::{
    BLOCKING_PODS, BlockingPod, Entry, HISTORY, Phase, Status, StepStatus, TAIL, Transition,
};
pub use observation::{Etcd, Fleet, Machine, Machines, Observation, Probe, Probed, is_healthy};
pub use queue::{AddError, MAX_ENTRIES, NoSuchEntry, Queue, QueueHead, Request};
pub use volumes::{Fencing, HeldVolume, decide_fencing};
pub use wait::Wait;
