//! The node agent's decisions: when the node may be taken out of service, and what is said of the
//! node, its cluster and its applications.
//!
//! Every module is one question with its facts and its answer. The agent reads the facts from
//! files, from the kernel and from the cluster, and carries the answers out.
//!
//! Start reading at [`gate`], then [`requester`], which is the other side of it.

pub mod app_reports;
pub mod apps;
pub mod clock;
pub mod cluster_status;
pub mod console;
pub mod firewall;
pub mod gate;
pub mod join;
pub mod leader;
pub mod logs;
pub mod names;
pub mod passthrough;
pub mod requester;
pub mod serve;
pub mod stats;
pub mod status;
pub mod tracker;

#[cfg(test)]
mod world;
