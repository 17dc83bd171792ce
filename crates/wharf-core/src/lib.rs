//! The domain of Wharf: what is recorded, which states there are, and what to do next.
//!
//! **Invariant:** everything here is pure. No clock, no I/O, no randomness, no async, no wire
//! format and no Kubernetes type; `clippy.toml` beside this crate bans the ways out.
//!
//! Start reading at [`cluster`], then [`access`].

pub mod access;
pub mod agents;
pub mod app;
pub mod cluster;
pub mod disruption;
pub mod drain;
pub mod install;
pub mod name;
pub mod node;
pub mod operation;
pub mod quick;
pub mod record;
pub mod repair;
pub mod selector;
pub mod volume;
pub mod words;
