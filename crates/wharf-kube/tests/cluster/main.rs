//! Against a real API server on a real etcd, with the controller that keeps budgets. There are no
//! kubelets: the tests make Nodes and pods by hand, and look at the outcome with kubectl.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod access;
mod apply;
mod disturbed;
mod drain;
mod machines;
mod moving;
mod nodes;
#[allow(dead_code, reason = "other programs use more of it")]
mod passage;
mod pods;
mod policies;
mod world;

use std::time::Duration;

pub use world::{World, held, labelled, merge, owned_by, world};

const DEADLINE: Duration = Duration::from_secs(60);
