//! What runs on a host: the part that makes it hold what a document says, and the agent that
//! keeps a node's network.
//!
//! Start reading at [`host::apply`] for installing and removing, at [`network`] for the agent that
//! runs as long as the node does.
//!
//! **Invariant:** nothing here decides what a cluster looks like. The server decides, in
//! `wharf-core`, and sends documents; this crate compares them with the machine and acts.

pub mod config;
pub mod host;
pub mod network;
mod run;

pub use run::{AgentError, run};
