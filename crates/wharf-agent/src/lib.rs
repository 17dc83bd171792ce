//! What runs on a host: the part that makes it hold what a document says, and the agent that
//! runs as long as the node does.
//!
//! Start reading at [`host::apply`] for installing and removing, at [`run()`] for the agent: it keeps
//! the node's network ([`network`]) and does everything else in tasks ([`tasks`]) that speak with the
//! node's other agents through files ([`files`]) and tell how they are ([`health`]).
//!
//! **Invariant:** nothing here decides what a cluster looks like. The server decides, in
//! `wharf-core`, and sends documents; this crate compares them with the machine and acts.

pub mod apps;
mod aside;
pub mod config;
pub mod console;
mod device;
pub mod drain;
pub mod files;
pub mod health;
pub mod host;
pub mod kube;
pub mod launch;
pub mod leader;
pub mod link;
pub mod logs;
pub mod network;
pub mod passthrough;
mod programs;
mod run;
pub mod stats;
pub mod status;
mod store;
pub mod tasks;
pub mod tracker;
pub mod volumes;
mod web;

pub use run::{AgentError, run};
