//! The node's network: pod routes, the tunnel, the rules of nft and the balancer before the API
//! servers.
//!
//! All of it follows from one file that the installer writes ([`file`]). What the kernel needs is
//! decided in `wharf-core` (`install::network`); here the facts are observed and the actions
//! carried out ([`kernel`], [`nft`]), at each change of the file and again every few seconds,
//! because others may remove what is ours. The [`balancer`] stands for itself: it works as long as
//! any API server does, whatever the state of routes.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::info;
use wharf_core::{
    install::network::{NetworkFile, decide_network},
    words::chain,
};

use crate::{
    config::Config,
    health::{Health, Reporter},
};

pub mod balancer;
mod file;
pub(crate) mod kernel;
pub(crate) mod nft;

use balancer::Wish;
use file::{FileSource, Seen};
use kernel::Kernel;
use nft::Table;

/// How soon a change of the file is noticed. Looking costs one system call.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long something of ours may be missing after others removed it.
const RECONCILE_EVERY: Duration = Duration::from_secs(10);
const KERNEL: &str = "routes and rules";

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("cannot open a netlink socket")]
    Socket(#[source] std::io::Error),
    #[error("the kernel refused to {what}")]
    Refused {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the kernel's answer was not understood while asked to {what}")]
    Netlink {
        what: String,
        #[source]
        source: Box<rtnetlink::Error>,
    },
    #[error("cannot run nft")]
    NftMissing(#[source] std::io::Error),
    #[error("nft failed: {stderr}")]
    Nft { stderr: String },
    #[error("nft did not end within {0:?}")]
    NftTimedOut(Duration),
    #[error("the balancer ended, and nobody told it to")]
    BalancerEnded(#[source] Option<tokio::task::JoinError>),
}

/// Keeps the network until `stop`. Calls `ready` once, when the file was carried out without a
/// fault and the balancer listens.
///
/// # Errors
/// The balancer ended by a defect: whoever started the agent must begin it anew, since without the
/// balancer the node has no API.
pub async fn keep(
    config: &Config,
    health: &Health,
    ready: impl FnOnce(),
    stop: CancellationToken,
) -> Result<(), NetworkError> {
    let (wishes, wished) = watch::channel(None);
    let (listening, mut listens) = watch::channel(false);
    let balancer = balancer::run(wished, listening, health.task("balancer"), stop.clone());
    let mut balancer = AbortOnDropHandle::new(tokio::spawn(balancer));
    let mut keeper = Keeper::new(config, health.task("network"));
    let mut ready = Some(ready);
    while !stop.is_cancelled() {
        if let Some(file) = keeper.look() {
            wishes.send_replace(Some(Wish::of(file)));
        }
        keeper.reconcile_if_due().await;
        if keeper.settled
            && *listens.borrow_and_update()
            && let Some(ready) = ready.take()
        {
            ready();
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            ended = &mut balancer => return Err(NetworkError::BalancerEnded(ended.err())),
            // The balancer's first word is worth waking up for.
            Ok(()) = listens.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    balancer.await.map_err(|error| NetworkError::BalancerEnded(Some(error)))
}

struct Keeper {
    reporter: Reporter,
    source: FileSource,
    file: Option<NetworkFile>,
    table: Table,
    next: Instant,
    /// Nothing is missing.
    settled: bool,
}

impl Keeper {
    fn new(config: &Config, reporter: Reporter) -> Self {
        Self {
            reporter,
            source: FileSource::new(config.network_file.clone(), config.node_name.clone()),
            file: None,
            table: Table::default(),
            next: Instant::now(),
            settled: false,
        }
    }

    /// The file, if it changed. One that cannot be read changes nothing.
    fn look(&mut self) -> Option<&NetworkFile> {
        let subject = self.source.path().display().to_string();
        match self.source.look() {
            Seen::Same => None,
            Seen::Bad(reason) => {
                self.reporter.fault(&subject, &format!("it cannot be used: {reason}"));
                None
            }
            Seen::New(file) => {
                self.reporter.clear(&subject);
                info!(node = file.node.name, peers = file.peers.len(), "read the network file");
                self.next = Instant::now();
                self.settled = false;
                self.file = Some(file);
                self.file.as_ref()
            }
        }
    }

    async fn reconcile_if_due(&mut self) {
        let Some(file) = &self.file else { return };
        if Instant::now() < self.next {
            return;
        }
        let done = reconcile(file, &mut self.table).await;
        self.settled = done.is_ok();
        match done {
            Ok(()) => {
                self.reporter.clear(KERNEL);
                self.reporter.ok();
            }
            Err(reason) => self.reporter.fault(KERNEL, &reason),
        }
        // Whatever is missing is worth a look every second.
        self.next = Instant::now() + if self.settled { RECONCILE_EVERY } else { LOOK_EVERY };
    }
}

/// Makes the kernel hold what the file says. One peer's fault does not keep another's route away.
async fn reconcile(file: &NetworkFile, table: &mut Table) -> Result<(), String> {
    let mut kernel = Kernel::open().map_err(|error| chain(&error))?;
    let observed = kernel.observe(file, table).await.map_err(|error| chain(&error))?;
    let decision = decide_network(file, &observed);
    let mut faults: Vec<String> = decision.waiting.into_iter().collect();
    for action in &decision.actions {
        match kernel.carry_out(action, table).await {
            Ok(()) => info!(%action, "changed the network"),
            Err(error) => faults.push(chain(&error)),
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_used_is_a_fault_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("network.json");
        let health = Health::new("n1");
        let config = Config { network_file: path.clone(), ..Config::default() };
        let mut keeper = Keeper::new(&config, health.task("network"));
        let fault = || {
            let tasks = health.snapshot().tasks;
            tasks[0].faults.first().map(|fault| (fault.subject.clone(), fault.reason.clone()))
        };
        assert!(keeper.look().is_none());
        let (subject, reason) = fault().unwrap();
        assert_eq!(subject, path.display().to_string());
        assert!(reason.starts_with("it cannot be used: No such file"), "{reason}");
        let text = r#"{"node":{"name":"a","address":"10.0.0.1","podCidr":"10.42.0.0/24"},
            "clusterCidr":"10.42.0.0/16","serviceCidr":"10.43.0.0/16","mode":"routed",
            "interface":null,"peers":[],
            "balancer":{"listen":"127.0.0.1:6444","servers":[],"authorityFile":"/ca"}}"#;
        std::fs::write(&path, text).unwrap();
        assert!(keeper.look().is_some());
        assert_eq!(fault(), None);
        std::fs::write(&path, "{").unwrap();
        assert!(keeper.look().is_none());
        assert!(fault().is_some());
        assert!(keeper.look().is_none());
        assert!(fault().is_some(), "looked at once, and still so");
    }
}
