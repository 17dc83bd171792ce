//! The drain gate and its requesters against a real API server, with the controller that keeps
//! budgets. There are no kubelets: Nodes and pods are made by hand. The agent's tasks run in the
//! test, and what they order instead of a reboot is written to a file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod agent;
mod draining;
mod operations;
#[path = "../../../wharf-kube/tests/cluster/passage.rs"]
#[allow(dead_code)]
mod passage;
#[path = "../../../wharf-kube/tests/cluster/world.rs"]
#[allow(dead_code)]
mod world;

use std::time::Duration;

/// A machine that builds other things at the same time takes long for what takes seconds.
const DEADLINE: Duration = Duration::from_secs(120);
