//! One drain, from its record to its end.
//!
//! Flow: wait until the guard lets the machine go out of service; write that down; drain; give the
//! cordon to the person who asked, or take it back; write down the end.
//!
//! Guarantees: nothing is done to the node before `admitted` is stored, so that after a crash the
//! next owner knows which machines are out. Whatever happens, the record ends in a state with a
//! reason, or waits with one.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use wharf_core::{
    cluster::ClusterRecord,
    disruption::{Disruption, Kind},
    drain::{DrainRecord, Failure, Policy, Report, Stage},
    operation::OperationState,
};
use wharf_kube::{Cluster, KubeError, drain::DrainError};

use super::{CORDON_OWNER, tell::Teller};
use crate::{
    app::{App, AppState},
    clusters,
    disruptions::Claim,
    engine::{Fenced, FencedError},
    error::chain,
};

/// How long to wait before trying again after the store or the cluster failed.
const RETRY: Duration = Duration::from_secs(2);
/// Between two tries to take a cordon back, at first and in the end.
pub const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A cluster that answers at all does so in this time.
const PROBE: Duration = Duration::from_secs(5);
/// Nothing depends on an event.
const EVENT: Duration = Duration::from_secs(5);

pub struct Carry {
    app: App,
    fenced: Fenced,
    record: DrainRecord,
    cancel: CancellationToken,
    teller: Teller,
}

enum End {
    Succeeded {
        reason: Option<String>,
    },
    Failed {
        reason: String,
        timed_out: bool,
        cordon_left: bool,
    },
    Canceled,
    /// It is another's to carry out, or nobody's.
    Lost,
}

impl Carry {
    pub fn new(app: App, fenced: Fenced, record: DrainRecord, cancel: CancellationToken) -> Self {
        let teller = Teller::new(&app, &record);
        Self { app, fenced, record, cancel, teller }
    }

    pub fn node(&self) -> &str {
        &self.record.node
    }

    /// `claim`: the guard let it in before this server took the cluster over.
    pub async fn carry_out(self: Arc<Self>, claim: Option<Claim>) {
        if !self.record.is_running() {
            return self.give_cordon_back().await;
        }
        let mut held = claim;
        let end = tokio::select! {
            biased;
            () = self.cancel.cancelled() => End::Canceled,
            () = self.teller.write_for_ever(&self.fenced) => End::Lost,
            end = self.run(&mut held) => end,
        };
        let may_be_cordoned = match &end {
            End::Succeeded { .. } => false,
            End::Failed { cordon_left, .. } => *cordon_left,
            End::Canceled => held.is_some(),
            End::Lost => return,
        };
        let mut cordon_left = false;
        if may_be_cordoned || self.record.cordon_left {
            let given_back = self.uncordon().await;
            cordon_left = given_back.is_err();
        }
        if !self.settle(&end, cordon_left).await {
            return;
        }
        drop(held);
        self.tell_end(&end).await;
        if cordon_left {
            self.give_cordon_back().await;
        }
    }

    /// The end of a drain whose work panicked.
    pub async fn give_up(&self) {
        let cordon_left = self.uncordon().await.is_err();
        let reason = "the server made a mistake in this drain; its log says more".to_owned();
        let end = End::Failed { reason, timed_out: false, cordon_left };
        if self.settle(&end, cordon_left).await {
            self.tell_end(&end).await;
        }
        if cordon_left {
            self.give_cordon_back().await;
        }
    }

    async fn run(&self, held: &mut Option<Claim>) -> End {
        if held.is_none() {
            match self.claim().await {
                Ok(claim) => *held = Some(claim),
                Err(reason) => return self.late(&reason, false),
            }
            let admitted = |old: &DrainRecord| DrainRecord { admitted: true, ..old.clone() };
            if !self.change(admitted).await {
                return End::Lost;
            }
            let user = &self.record.requested_by;
            self.teller.event(false, "DrainStarted", format!("a drain that {user} asked for"));
        }
        self.drain().await
    }

    /// Waits until the machine may go out of service. At the deadline: why it may not.
    async fn claim(&self) -> Result<Claim, String> {
        let (guard, cluster) = (&self.app.disruptions, &self.record.cluster);
        let wanted = Disruption { kind: Kind::Drain, critical: self.record.critical };
        let left = self.record.deadline().duration_since(Timestamp::now());
        let deadline = Instant::now() + Duration::try_from(left).unwrap_or_default();
        let mut changed = guard.changed(cluster);
        if guard.opened(cluster).now_or_never().is_none() {
            let unknown = "what else is out of service in the cluster is not known yet".to_owned();
            self.teller.wait(unknown.clone());
            timeout_at(deadline, guard.opened(cluster)).await.map_err(|_| unknown)?;
        }
        loop {
            changed.mark_unchanged();
            let reason = match guard.claim(cluster, &self.record.machine, wanted) {
                Ok(claim) => return Ok(claim),
                Err(refusal) => refusal.to_string(),
            };
            self.teller.wait(reason.clone());
            timeout_at(deadline, changed.changed()).await.map_err(|_| reason)?.ok();
        }
    }

    /// Drains until there is an end. A cluster that cannot be asked is asked again.
    async fn drain(&self) -> End {
        let policy = self.record.policy(CORDON_OWNER);
        loop {
            let trouble = match self.try_once(&policy).await {
                Ok(end) => return end,
                Err(trouble) => trouble,
            };
            if !trouble.passes {
                let Trouble { reason, cordon_left, .. } = trouble;
                return End::Failed { reason, timed_out: false, cordon_left };
            }
            if Timestamp::now() >= self.record.deadline() {
                return self.late(&trouble.reason, trouble.cordon_left);
            }
            self.teller.wait(trouble.reason);
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_once(&self, policy: &Policy) -> Result<End, Trouble> {
        let api = self.connect().await;
        let api = api.map_err(|reason| Trouble { reason, passes: true, cordon_left: true })?;
        // A cluster that is silent from the start is said to be so; later the drain says it itself.
        api.probe(PROBE).await.map_err(|error| Trouble::of(&error, true))?;
        self.teller.speak_through(&api);
        let report = |report: &Report| {
            // The list of nodes should show that it is cordoned now.
            if self.teller.report(report) != Some(report.stage) {
                self.app.nudge(&self.record.cluster);
            }
        };
        match wharf_kube::drain::run(&api, self.node(), policy, report).await {
            Ok(drained) => {
                self.app.metrics.drain_pods_evicted.inc_by(drained.evicted as u64);
                let kept = api.keep_cordon(self.node(), CORDON_OWNER).await;
                kept.map(|()| self.success()).map_err(|error| Trouble::of(&error, true))
            }
            Err(DrainError::Failed { failure, uncordon, .. }) => {
                Ok(failed(&failure, uncordon.is_some()))
            }
            Err(DrainError::Kube { source, uncordon, .. }) => {
                Err(Trouble::of(&source, uncordon.is_some()))
            }
        }
    }

    fn success(&self) -> End {
        let gone = self.teller.stage() == Some(Stage::Gone);
        End::Succeeded { reason: gone.then(|| "there is no such node any more".to_owned()) }
    }

    fn late(&self, reason: &str, cordon_left: bool) -> End {
        let reason = format!("the deadline passed: {reason}");
        End::Failed { reason, timed_out: true, cordon_left }
    }

    async fn connect(&self) -> Result<Cluster, String> {
        connect(&self.app, &self.record.cluster).await
    }

    async fn uncordon(&self) -> Result<(), String> {
        uncordon(&self.app, &self.record.cluster, self.node(), CORDON_OWNER).await
    }

    /// Takes back what a drain that is over left on the node, however long that takes.
    async fn give_cordon_back(&self) {
        let mut pause = FIRST_PAUSE;
        while let Err(reason) = self.uncordon().await {
            let (cluster, node) = (&self.record.cluster, self.node());
            tracing::warn!(cluster, node, reason, "the cordon of a drain is still there");
            tokio::time::sleep(pause).await;
            pause = longer(pause);
        }
        self.app.nudge(&self.record.cluster);
        let is_ours = |old: &DrainRecord| old.id == self.record.id;
        let given_back = |old: &DrainRecord| DrainRecord { cordon_left: false, ..old.clone() };
        self.write(|old| is_ours(old).then(|| given_back(old))).await;
    }

    /// Writes down the end; false when that is not ours to do any more.
    async fn settle(&self, end: &End, cordon_left: bool) -> bool {
        let (state, reason, timed_out) = match end {
            End::Succeeded { reason } => (OperationState::Succeeded, reason.clone(), false),
            End::Failed { reason, timed_out, .. } => {
                (OperationState::Failed, Some(reason.clone()), *timed_out)
            }
            End::Canceled => (OperationState::Canceled, Some("canceled".to_owned()), false),
            End::Lost => return false,
        };
        let progress = self.teller.progress();
        self.change(|old| DrainRecord {
            state,
            ended_at: Some(Timestamp::now()),
            timed_out,
            cordon_left,
            reason: reason.clone(),
            progress: progress.clone(),
            ..old.clone()
        })
        .await
    }

    async fn tell_end(&self, end: &End) {
        let (state, warning, reason, text) = match end {
            End::Succeeded { .. } => {
                (OperationState::Succeeded, false, "DrainSucceeded", "all pods have left")
            }
            End::Failed { reason, .. } => {
                (OperationState::Failed, true, "DrainFailed", reason.as_str())
            }
            End::Canceled => (OperationState::Canceled, false, "DrainCanceled", "canceled"),
            End::Lost => return,
        };
        self.teller.close();
        self.app.metrics.drain_ended(state, self.record.started_at);
        self.app.nudge(&self.record.cluster);
        let (cluster, node) = (&self.record.cluster, self.node());
        tracing::info!(cluster, node, state = state.name(), text, "a drain ended");
        if let Some(api) = self.teller.api() {
            let event = api.emit(node, warning, reason, text);
            let _ = tokio::time::timeout(EVENT, event).await;
        }
    }

    /// Changes the record of this drain while it runs; false when it is not ours any more.
    async fn change(&self, change: impl Fn(&DrainRecord) -> DrainRecord) -> bool {
        let is_ours = |old: &DrainRecord| old.id == self.record.id && old.is_running();
        self.write(|old| is_ours(old).then(|| change(old))).await
    }

    async fn write(&self, change: impl Fn(&DrainRecord) -> Option<DrainRecord>) -> bool {
        let key = DrainRecord::key(&self.record.cluster, self.node());
        loop {
            match self.fenced.change(&key, &change).await {
                Ok(changed) => return changed,
                Err(FencedError::Fenced { .. } | FencedError::Gone { .. }) => return false,
                Err(error @ (FencedError::Store(_) | FencedError::Contended { .. })) => {
                    tracing::warn!(?error, key, "the record of a drain was not written");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Why a drain did not come to an end by itself.
struct Trouble {
    reason: String,
    /// It may be over a moment later.
    passes: bool,
    cordon_left: bool,
}

impl Trouble {
    fn of(error: &KubeError, cordon_left: bool) -> Self {
        Self { reason: chain(error), passes: error.is_transient(), cordon_left }
    }
}

fn failed(failure: &Failure, cordon_left: bool) -> End {
    let timed_out = matches!(failure, Failure::Deadline { .. });
    End::Failed { reason: failure.to_string(), timed_out, cordon_left }
}

/// A connection to the cluster as its record is now.
async fn connect(app: &AppState, cluster: &str) -> Result<Cluster, String> {
    let record = app.store.read::<ClusterRecord>(cluster).await.map_err(|error| chain(&error))?;
    let record = record.ok_or_else(|| "the cluster is gone".to_owned())?;
    clusters::connect(app, &record.value).await
}

/// Takes back the cordon of an owner; that there is none is as good.
pub async fn uncordon(
    app: &AppState,
    cluster: &str,
    node: &str,
    owner: &str,
) -> Result<(), String> {
    let api = connect(app, cluster).await?;
    api.uncordon(node, owner).await.map(drop).map_err(|error| chain(&error))
}

/// The pause after this one.
pub fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}
