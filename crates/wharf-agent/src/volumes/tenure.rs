//! The agent's lease: as long as it is renewed, this node may hold volumes.
//!
//! Guarantees: the number of the tenure is on the disk before the lease has it, and never falls. A new
//! tenure begins only after everything that promised to be cut off with the old one is known to be, and
//! after one of somebody else has ended. While there is no guard that can be relied on nothing is
//! renewed.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};
use wharf_core::{
    volume::{
        guard::is_open,
        journal::Journal,
        lease::{Keep, SinceBoot, Tenure, decide_keep},
    },
    words::chain,
};
use wharf_kube::{
    KubeError,
    volumes::{AgentLease, Written},
};

use super::{Shared, Volumes, boot_id, guard, since_boot, unread::Unread, work::VolumeError};
use crate::{
    device,
    health::Reporter,
    host::files,
    tasks::{Context, Ended},
};

/// For one question or one write.
const CALL: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(1);
const SUBJECT: &str = "the lease for volumes";

/// What is kept on the disk, for the next start and for the guard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Kept {
    pub number: u64,
    pub boot_id: String,
    /// When the last renewal was sent, and when the guard has to act: milliseconds since boot.
    pub renewed: u64,
    pub cut_at: u64,
    /// When the lease ends, and others count on the cut.
    #[serde(default)]
    pub ends_at: u64,
}

impl Kept {
    pub fn load(state_dir: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(path(state_dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice(&text?)?)),
        }
    }

    fn store(&self, state_dir: &Path) -> io::Result<()> {
        files::write_durably(&path(state_dir), 0o600, &serde_json::to_vec(self)?)
    }
}

fn path(state_dir: &Path) -> std::path::PathBuf {
    state_dir.join("tenure.json")
}

/// The tenure of an agent that was started anew in the same boot. It goes on as if nothing had happened,
/// if it has not ended meanwhile: nobody else writes this lease.
pub fn resumed(state_dir: &Path) -> Option<Tenure> {
    let kept = Kept::load(state_dir).ok().flatten()?;
    let renewed = SinceBoot(Duration::from_millis(kept.renewed));
    (kept.boot_id == boot_id().ok()?).then_some(Tenure { number: kept.number, renewed })
}

#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("there is no way to the cluster yet")]
    NoWay,
    #[error("no answer within {} s", CALL.as_secs())]
    Late,
    #[error(
        "of the last tenure these volumes are not known to be cut off: {}; until they are, this \
         node holds none", .0.join(", ")
    )]
    NotCut(Vec<String>),
    #[error(
        "the lease of this node is of somebody else, another machine of the same name or one whose \
         state directory was lost; it is waited for until {0:.0}, if it is not renewed"
    )]
    Foreign(Timestamp),
    #[error("the lease was renewed too late, when volumes may have been cut off; a new one begins")]
    TooLate,
    #[error("there is no guard of volumes that can be relied on")]
    NoGuard(#[source] io::Error),
    #[error("the tenure cannot be kept on the disk")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Kube(#[from] KubeError),
}

pub async fn run(
    context: Context,
    reporter: Reporter,
    shared: Shared,
    held: watch::Sender<Option<Tenure>>,
) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let kept = Kept::load(&volumes.places.state_dir)?.unwrap_or_default();
    let mut keeper = Keeper { volumes, kept, lease: None, held };
    loop {
        let pause = match keeper.turn().await {
            Ok(pause) => {
                reporter.clear(SUBJECT);
                reporter.ok();
                pause
            }
            Err(error) => {
                keeper.lease = None;
                reporter.fault(SUBJECT, &chain(&error));
                RETRY
            }
        };
        // The lease is left to run out: what is mounted stays mounted while the agent is upgraded.
        if context.stop.run_until_cancelled(sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}

struct Keeper {
    volumes: Arc<Volumes>,
    kept: Kept,
    /// As last read or written.
    lease: Option<Option<AgentLease>>,
    held: watch::Sender<Option<Tenure>>,
}

impl Keeper {
    /// Renews or takes the lease if it is time, and says when to look again.
    async fn turn(&mut self) -> Result<Duration, LeaseError> {
        let places = self.volumes.places.clone();
        let ensured = tokio::task::spawn_blocking(move || guard::ensure(&places)).await;
        ensured
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(LeaseError::NoGuard)?;
        // One of somebody else is never kept from an earlier turn.
        let asked = Instant::now();
        if self.lease.is_none() {
            let api = self.volumes.way_of_lease().ok_or(LeaseError::NoWay)?;
            let asked = timeout(CALL, api.agent_lease(&self.volumes.node)).await;
            let lease = asked.map_err(|_| LeaseError::Late)??;
            self.lease = Some(lease);
        }
        let terms = self.volumes.terms;
        let lease = self.lease.as_ref().and_then(Option::as_ref);
        let lease = lease.map(|lease| self.volumes.sight(&self.volumes.node, lease, asked));
        let held = *self.held.borrow();
        let (kept, now) = (self.kept.number, Timestamp::now());
        match decide_keep(held, kept, lease.as_ref(), since_boot(), now, &terms) {
            Keep::Rest { renew_at } => return Ok(renew_at.0.saturating_sub(since_boot().0)),
            Keep::Renew { number } => self.renew(number).await?,
            Keep::Begin { number } => {
                self.leave_nothing().await?;
                self.keep_number(number)?;
                self.renew(number).await?;
            }
            Keep::Foreign { until } => {
                self.held.send_replace(None);
                self.leave_nothing().await?;
                return Err(LeaseError::Foreign(until));
            }
        }
        Ok(terms.renew_every)
    }

    /// What was held in the old tenure is cut off.
    async fn leave_nothing(&self) -> Result<(), LeaseError> {
        let left = self.volumes.cut_lapsed().await?;
        if left.is_empty() { Ok(()) } else { Err(LeaseError::NotCut(left)) }
    }

    /// Notes a new tenure before the lease has it.
    fn keep_number(&mut self, number: u64) -> Result<(), LeaseError> {
        let boot_id = self.volumes.boot_id.clone();
        let now = millis(since_boot());
        // Nothing is held in it yet, so that the guard has nothing to do.
        let kept = Kept { number, boot_id, renewed: 0, cut_at: now, ends_at: now };
        kept.store(&self.volumes.places.state_dir)?;
        self.kept = kept;
        Ok(())
    }

    async fn renew(&mut self, number: u64) -> Result<(), LeaseError> {
        let volumes = &self.volumes;
        let api = volumes.way_of_lease().ok_or(LeaseError::NoWay)?;
        // This clock is read first: others count from a later moment.
        let sent = since_boot();
        let duration = volumes.terms.duration;
        let seen = self.lease.as_ref().and_then(Option::as_ref);
        let now = Timestamp::now();
        let write = api.write_agent_lease(&volumes.node, seen, number, duration, now);
        let written = timeout(CALL, write).await.map_err(|_| LeaseError::Late)??;
        let Written::Is(lease) = written else {
            // A write of ours that came late, or another agent of the same name.
            self.lease = None;
            return Ok(());
        };
        self.lease = Some(Some(lease));
        let tenure = Tenure { number, renewed: sent };
        let kept = Kept {
            number,
            boot_id: volumes.boot_id.clone(),
            renewed: millis(sent),
            cut_at: millis(tenure.cut_at(&volumes.terms)),
            ends_at: millis(sent.after(duration)),
        };
        let held = self.held.borrow().filter(|held| held.number == number);
        let is_late = || held.is_some_and(|held| !held.goes_on(since_boot(), &volumes.terms));
        self.kept = kept;
        if !is_late() {
            self.kept.store(&volumes.places.state_dir)?;
        }
        if is_late() {
            // The guard may have acted before it could see the new end. Nobody goes on with this tenure,
            // nor does an agent that is started anew.
            self.kept = Kept { renewed: 0, cut_at: millis(since_boot()), ..self.kept.clone() };
            self.kept.store(&volumes.places.state_dir)?;
            return Err(LeaseError::TooLate);
        }
        if held.is_none() {
            info!(tenure = number, "this node may hold volumes");
        }
        self.held.send_replace(Some(tenure));
        Ok(())
    }
}

fn millis(time: SinceBoot) -> u64 {
    u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX)
}

impl Volumes {
    /// The volumes that promised to be cut off with their tenure, and are not; and those of which nobody
    /// knows, because their journals cannot be read.
    fn open_volumes(&self) -> io::Result<(Vec<Journal>, Vec<String>)> {
        let (mut open, mut unread) = (Vec::new(), Vec::new());
        for name in self.journals.names()? {
            match self.journals.load(&name) {
                Ok(journal) => {
                    open.extend(journal.filter(|it| is_open(it, &self.boot_id)));
                }
                Err(error) => {
                    warn!(volume = name, %error, "its journal cannot be read");
                    unread.push(name);
                }
            }
        }
        Ok((open, unread))
    }

    /// Cuts off and takes away what was held in a tenure that has ended, side by side: one that hangs
    /// keeps no other from it. Says what is not known to be cut off after that.
    async fn cut_lapsed(&self) -> io::Result<Vec<String>> {
        let (open, unread) = self.open_volumes()?;
        let cut = |journal: Journal| async move {
            if let Err(error) = self.cut_one(&journal).await {
                warn!(volume = journal.volume, reason = chain(&error), "not all is taken away yet");
            }
        };
        let settle = |volume: String| async move {
            let reason = self.settle_unread(&volume).await.err().map(|error| chain(&error))?;
            warn!(volume, reason, "a volume whose journal cannot be read is not cut off");
            Some(volume)
        };
        let (_, left) = tokio::join!(
            join_all(open.into_iter().map(cut)),
            join_all(unread.into_iter().map(settle)),
        );
        let (open, _) = self.open_volumes()?;
        let open = open.into_iter().map(|journal| journal.volume);
        Ok(open.chain(left.into_iter().flatten()).collect())
    }

    async fn settle_unread(&self, volume: &str) -> Result<(), VolumeError> {
        let (places, boot_id, name) =
            (self.places.clone(), self.boot_id.clone(), volume.to_owned());
        let settle =
            move || Ok(Unread { places: &places, boot_id: &boot_id, volume: &name }.settle()?);
        self.by_force(volume, "cut off a volume without a journal", settle).await
    }

    async fn cut_one(&self, journal: &Journal) -> Result<(), VolumeError> {
        let _held = self.lock_by_force(journal).await?;
        self.tidy_locked(&journal.volume, BTreeSet::new()).await
    }
}
