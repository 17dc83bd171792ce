//! Measurements that run in a process of their own. Of the embedded store: so its memory and
//! processor time are known, and its end is the restart after which everything must still be there.
//! Of certificates and drains: because the peer is a process too.

pub mod certificates;
mod raw;
mod reads;
mod watch;
mod writes;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use serde::Serialize;
use wharf_store::{Store, StoreLocation, StoreOptions};

pub use raw::Raw;
pub use reads::Read;
pub use watch::Watched;
pub use writes::{Keys, ROUNDS, Synced, VALUE_BYTES, Written};

use crate::{agent, drain, drive};

#[derive(Debug, clap::Subcommand)]
pub enum Worker {
    /// Durable commits, and bare writes of the same bytes in turn with them
    Writes(Load),
    /// A fixed number of commits, one after the other
    Synced {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        commits: u64,
    },
    /// Reads of single keys
    Reads(Load),
    /// One writer, many watchers
    Watch(Load),
    /// All certificates and kubeconfigs of a new cluster, as files
    Certificates(certificates::Certificates),
    /// Drains of nodes, all at once
    Drain(drain::Drain),
    /// API calls on a node, directly and through its balancer
    AgentCalls(agent::Calls),
    /// Many connections through a node's balancer
    AgentHold(agent::Hold),
    /// Many connections through the balancer of an agent that is started for them
    AgentConnections(agent::Connections),
}

#[derive(Debug, clap::Args)]
pub struct Load {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    clients: usize,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value = "ordered")]
    keys: Keys,
    /// Also measure the bare disk
    #[arg(long)]
    raw: bool,
}

impl Load {
    fn round_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / ROUNDS as f64)
    }
}

pub fn run(worker: &Worker) -> Result<()> {
    match worker {
        Worker::Certificates(args) => return certificates::run(args),
        Worker::Drain(args) => return drain::work(args),
        Worker::AgentCalls(args) => return agent::work_calls(args),
        Worker::AgentHold(args) => return agent::work_hold(args),
        Worker::AgentConnections(args) => return agent::work_connections(args),
        Worker::Writes(_) | Worker::Synced { .. } | Worker::Reads(_) | Worker::Watch(_) => {}
    }
    let runtime = drive::runtime()?;
    match worker {
        // Done above: they need no store.
        Worker::Certificates(_)
        | Worker::Drain(_)
        | Worker::AgentCalls(_)
        | Worker::AgentHold(_)
        | Worker::AgentConnections(_) => {}
        Worker::Writes(load) => print(&runtime.block_on(writes::run(load))?)?,
        Worker::Synced { dir, commits } => {
            print(&runtime.block_on(writes::synced(dir, *commits))?)?;
        }
        Worker::Reads(load) => print(&runtime.block_on(reads::run(load))?)?,
        Worker::Watch(load) => print(&runtime.block_on(watch::run(load))?)?,
    }
    // Not closed in order, as a crash would not: the next to open the store finds it so.
    std::process::exit(0)
}

/// The last line of the output is the result.
fn print(result: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}

pub async fn open(dir: &std::path::Path) -> Result<Store> {
    let location = StoreLocation::Embedded { data_dir: dir.to_owned() };
    Ok(Store::open(&StoreOptions { location }).await?)
}
