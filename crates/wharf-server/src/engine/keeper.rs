//! One task for each cluster that this server owns: it carries out what the record says is under
//! way, and watches over a cluster that runs.
//!
//! Flow: read the record; do what its state asks for; write the transition; look again. A crash
//! anywhere is a new look at the record: an operation that was under way is run again, and finds
//! done what was done.
//!
//! Guarantees: every write is fenced. A cancel belongs to one operation, so it cannot hit the next.
//! An operation that panics ends as failed; it cannot leave a cluster in Creating for ever.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterState, Reason, Work,
        life::{ClusterEvent, Life, Refused, decide_transition},
    },
    operation::{OperationKind, OperationRecord, OperationState, Progress},
};
use wharf_store::{Revision, Store, StoreError, Stored, Txn, typed::key_of};

use super::{Fenced, FencedError, Journal, OwnedCluster};
use crate::{
    agents,
    app::App,
    apps, drains,
    installer::{self, Done, Failure, Job, Outcome},
    probe, repair,
};

/// How long to wait before trying again after the store failed.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps a task for each owned cluster until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let mut owned = app.owned.clone();
    let mut tasks = JoinSet::new();
    let mut keepers: HashMap<String, (u64, CancellationToken)> = HashMap::new();
    loop {
        let wish = owned.borrow_and_update().clone();
        keepers.retain(|cluster, (epoch, token)| {
            let stays = wish.get(cluster) == Some(epoch);
            if !stays {
                token.cancel();
                app.disruptions.disown(cluster, *epoch);
            }
            stays
        });
        for (cluster, epoch) in wish {
            keepers.entry(cluster.clone()).or_insert_with(|| {
                let token = stop.child_token();
                app.disruptions.own(&cluster, epoch);
                let owned = OwnedCluster { app: app.clone(), cluster, epoch };
                let stop = token.clone();
                tasks.spawn(async move {
                    let OwnedCluster { cluster, .. } = &owned;
                    tokio::join!(
                        begin_again(cluster, &stop, || drains::keep(owned.clone(), stop.clone())),
                        begin_again(cluster, &stop, || agents::keep(owned.clone(), stop.clone())),
                        begin_again(cluster, &stop, || apps::keep(owned.clone(), stop.clone())),
                        begin_again(cluster, &stop, || repair::keep(owned.clone(), stop.clone())),
                        begin_again(cluster, &stop, || keep(owned.clone(), stop.clone())),
                    );
                });
                (epoch, token)
            });
        }
        tokio::select! {
            () = stop.cancelled() => break,
            changed = owned.changed() => {
                if changed.is_err() {
                    break;
                }
            }
            // It was told to end. Its successor has the place in the map meanwhile.
            Some(_) = tasks.join_next() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Begins a task anew whenever it ends, also by a panic, until the cluster is no longer ours. One
/// that ended by itself found the cluster gone: its name may be a new cluster's before anybody
/// says that it was taken from us.
async fn begin_again<F>(cluster: &str, stop: &CancellationToken, begin: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while !stop.is_cancelled() {
        if let Err(error) = AbortOnDropHandle::new(tokio::spawn(begin())).await {
            tracing::error!(?error, cluster, "the cluster's task failed; it begins anew");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Returns once there is nothing left to do for the cluster under this epoch.
async fn keep(owned: OwnedCluster, stop: CancellationToken) {
    let fenced = owned.fenced();
    let OwnedCluster { app, cluster, .. } = owned.clone();
    let keeper = Keeper { app, cluster, fenced };
    let mut first = true;
    while !stop.is_cancelled() {
        let turn = tokio::select! {
            () = stop.cancelled() => break,
            turn = keeper.turn(first) => turn,
        };
        first = false;
        match turn {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                if !owned.goes_on(error, "work on it", &stop).await {
                    break;
                }
            }
        }
    }
}

struct Keeper {
    app: App,
    cluster: String,
    fenced: Fenced,
}

impl Keeper {
    /// Does what the record asks for now; false when the cluster is gone.
    async fn turn(&self, first: bool) -> Result<bool, FencedError> {
        let Some(record) = self.app.store.read::<ClusterRecord>(&self.cluster).await? else {
            return Ok(false);
        };
        match (record.value.state, &record.value.work) {
            (ClusterState::CreateFailed, _) => self.wait_for_change(record.revision).await?,
            (ClusterState::Running | ClusterState::Unreachable, _) => {
                self.watch_over(&record, first).await?;
            }
            (ClusterState::Creating, Some(work))
                if first && !self.app.config.resume_on_start && self.is_old(work).await? =>
            {
                let why = "this server took the cluster over, after a start or from another, \
                           while it was created";
                let why =
                    Failure::new(why).hint("send the cluster again to go on with it, or delete it");
                let journal = self.journal(work, OperationKind::Create).await?;
                self.settle(&journal, Ended::Failed(why)).await?;
            }
            (ClusterState::Creating, Some(work)) => {
                self.carry_out(&record, work, OperationKind::Create).await?;
            }
            (ClusterState::Updating, Some(work)) => {
                self.carry_out(&record, work, OperationKind::Update).await?;
            }
            (ClusterState::Deleting, Some(work)) => {
                self.carry_out(&record, work, OperationKind::Delete).await?;
            }
            (ClusterState::Creating | ClusterState::Updating | ClusterState::Deleting, None) => {
                tracing::error!(cluster = self.cluster, "nothing is under way for its state");
                self.wait_for_change(record.revision).await?;
            }
        }
        Ok(true)
    }

    /// Whether the operation was begun by an earlier owner: then it has phases already.
    async fn is_old(&self, work: &Work) -> Result<bool, StoreError> {
        let operation = self.app.store.read::<OperationRecord>(&work.operation).await?;
        Ok(operation.is_some_and(|operation| !operation.value.phases.is_empty()))
    }

    async fn journal(&self, work: &Work, kind: OperationKind) -> Result<Journal, StoreError> {
        let stored = self.app.store.read::<OperationRecord>(&work.operation).await?;
        let now = Timestamp::now();
        let record = stored.map(|stored| stored.value);
        let record = record.unwrap_or_else(|| OperationRecord::new(&self.cluster, kind, now));
        let goes_on = !record.phases.is_empty();
        let journal = Journal::new(&work.operation, record);
        if goes_on {
            journal.log("taken over from an earlier run; going on");
        }
        Ok(journal)
    }

    /// Runs the operation to its end, or to the cancel that a user asks for.
    async fn carry_out(
        &self,
        record: &Stored<ClusterRecord>,
        work: &Work,
        kind: OperationKind,
    ) -> Result<(), FencedError> {
        let journal = self.journal(work, kind).await?;
        let job = Job {
            app: self.app.clone(),
            fenced: self.fenced.clone(),
            journal: journal.clone(),
            cluster: self.cluster.clone(),
            delete: work.delete.unwrap_or_default(),
        };
        // A task of its own: a panic in it ends it, not us. It is aborted when we leave.
        let mut task = AbortOnDropHandle::new(tokio::spawn(installer::run(job.clone(), kind)));
        let ended = tokio::select! {
            done = &mut task => Ended::of(done),
            () = self.canceled(record, work) => {
                task.abort();
                // Nothing of it may happen after what follows.
                let _ = task.await;
                Ended::Canceled
            }
            lost = journal.write_for_ever(&self.fenced) => return Err(lost),
        };
        if kind == OperationKind::Update && !matches!(ended, Ended::Done(_)) {
            let given_back = installer::give_back(&job).await;
            if let Err(failure) = given_back {
                journal.log(format!("nodes may stay cordoned: {}", failure.sentence()));
            }
        }
        self.settle(&journal, ended).await
    }

    /// Returns once the operation shall stop. A store that is away for a moment is asked again: it
    /// is no reason to drop work that goes well.
    async fn canceled(&self, record: &Stored<ClusterRecord>, work: &Work) {
        let mut seen = record.revision;
        let mut canceled = work.canceled;
        while !canceled {
            match self.look_for_cancel(seen, work).await {
                Ok(found) => (seen, canceled) = found,
                Err(error) => {
                    tracing::warn!(?error, cluster = self.cluster, "will look again for a cancel");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn look_for_cancel(
        &self,
        seen: Revision,
        work: &Work,
    ) -> Result<(Revision, bool), StoreError> {
        let seen = next_change::<ClusterRecord>(&self.app.store, &self.cluster, seen).await?;
        let now = self.app.store.read::<ClusterRecord>(&self.cluster).await?;
        let now = now.and_then(|record| record.value.work);
        let canceled = now.is_some_and(|now| now.operation == work.operation && now.canceled);
        Ok((seen, canceled))
    }

    /// Writes how the operation ended and where the cluster is now, in one transaction.
    async fn settle(&self, journal: &Journal, ended: Ended) -> Result<(), FencedError> {
        let kind = journal.snapshot().kind;
        if kind == OperationKind::Delete {
            repair::give_all_back(&self.app, &self.cluster).await?;
            repair::empty_fenced(&self.app.store, &self.cluster, &self.fenced).await?;
            drains::give_all_back(&self.app, &self.cluster).await?;
            let (store, cluster) = (&self.app.store, &self.cluster);
            while let Some(txn) = drains::removal(store, cluster).await? {
                self.fenced.commit(|_| Ok(txn.clone())).await?;
            }
            while let Some(txn) = agents::removal(store, cluster).await? {
                self.fenced.commit(|_| Ok(txn.clone())).await?;
            }
            while let Some(txn) = apps::removal(store, cluster).await? {
                self.fenced.commit(|_| Ok(txn.clone())).await?;
            }
        }
        let event = ended.event(kind);
        journal.change(|record, now| ended.record_in(record, now));
        let operation = journal.snapshot();
        let settled = self.fenced.commit(|stored| {
            let now = Timestamp::now();
            let txn = Txn::new().write(journal.id(), &operation, now, None)?;
            match settled_record(&stored.value, event, &ended, now) {
                Ok(Some((record, event))) => txn.write(&stored.id, &record, now, event),
                Ok(None) => Ok(crate::clusters::forget(txn, stored)),
                Err(refused) => {
                    tracing::error!(%refused, cluster = stored.id, "the end does not fit");
                    Ok(txn)
                }
            }
        });
        settled.await.map(|_| ())
    }

    async fn wait_for_change(&self, seen: Revision) -> Result<(), StoreError> {
        next_change::<ClusterRecord>(&self.app.store, &self.cluster, seen).await.map(|_| ())
    }

    /// Probes the cluster until its record changes. `first`: it was only just taken over.
    async fn watch_over(
        &self,
        record: &Stored<ClusterRecord>,
        first: bool,
    ) -> Result<(), FencedError> {
        tokio::select! {
            changed = self.wait_for_change(record.revision) => changed.map_err(FencedError::from),
            ended = probe::run(&self.app, &self.fenced, record, first) => ended,
        }
    }
}

/// The revision of the next change of one record after `seen`.
async fn next_change<T: wharf_store::typed::Kind>(
    store: &Store,
    id: &str,
    seen: Revision,
) -> Result<Revision, StoreError> {
    let key = key_of::<T>(id);
    let mut watch = match store.watch(&key, seen).await {
        // So much was written that the past is gone: whoever asked looks at the record anyway.
        Err(StoreError::Compacted { .. }) => return store.revision().await,
        watch => watch?,
    };
    loop {
        let changes = watch.next().await?;
        if let Some(change) = changes.iter().find(|change| change.key() == key) {
            return Ok(change.revision());
        }
    }
}

/// How an operation ended.
enum Ended {
    Done(Done),
    Failed(Failure),
    Canceled,
}

impl Ended {
    fn of(task: Result<Outcome<Done>, tokio::task::JoinError>) -> Self {
        match task {
            Ok(Ok(done)) => Ended::Done(done),
            Ok(Err(failure)) => Ended::Failed(failure),
            Err(error) => {
                tracing::error!(?error, "an operation panicked");
                let message = "the server made a mistake in this operation; its log says more";
                Ended::Failed(Failure::new(message).hint("try again, and report the log"))
            }
        }
    }

    fn event(&self, kind: OperationKind) -> ClusterEvent {
        match (kind, self) {
            (OperationKind::Create, Ended::Done(_)) => ClusterEvent::CreateSucceed,
            (OperationKind::Create, Ended::Failed(_)) => ClusterEvent::CreateFailed,
            (OperationKind::Create, Ended::Canceled) => ClusterEvent::CreateCanceled,
            (OperationKind::Update, Ended::Done(_) | Ended::Failed(_))
            // Those of nodes are not the installer's, and change no cluster.
            | (
                OperationKind::Reboot | OperationKind::Shutdown | OperationKind::NodeUpdate,
                _,
            ) => ClusterEvent::UpdateCompleted,
            (OperationKind::Update, Ended::Canceled) => ClusterEvent::UpdateCanceled,
            (OperationKind::Delete, _) => ClusterEvent::DeleteCompleted,
        }
    }

    fn record_in(&self, record: &mut OperationRecord, now: Timestamp) {
        record.ended_at = Some(now);
        match self {
            Ended::Done(done) => {
                record.state = OperationState::Succeeded;
                record.leftovers.clone_from(&done.leftovers);
                record.log(now, "done");
            }
            Ended::Failed(failure) => {
                record.state = OperationState::Failed;
                record.error = Some(failure.sentence());
                record.hint = failure.hint.clone().or_else(|| next_step(record));
                record.log(now, format!("failed: {}", failure.sentence()));
            }
            Ended::Canceled => {
                record.state = OperationState::Canceled;
                record.log(now, "canceled");
            }
        }
        let over = |state: &mut Progress| match state {
            Progress::Running => *state = Progress::Failed,
            Progress::Waiting => *state = Progress::Skipped,
            Progress::Done | Progress::Failed | Progress::Skipped => {}
        };
        record.phases.iter_mut().for_each(|phase| over(&mut phase.state));
        record.steps.iter_mut().for_each(|step| over(&mut step.state));
    }
}

/// What to do about a failure that says no more than what happened.
fn next_step(record: &OperationRecord) -> Option<String> {
    let cluster = &record.cluster;
    let again = format!("mend what is said here, then go on with `wharf cluster update {cluster}`");
    match record.kind {
        OperationKind::Create => Some(format!("{again}, or delete the cluster")),
        OperationKind::Update => Some(again),
        OperationKind::Delete
        | OperationKind::Reboot
        | OperationKind::Shutdown
        | OperationKind::NodeUpdate => None,
    }
}

/// The cluster's record after the end, with the event to publish; `None` when it is to go.
fn settled_record(
    record: &ClusterRecord,
    event: ClusterEvent,
    ended: &Ended,
    now: Timestamp,
) -> Result<Option<(ClusterRecord, Option<&'static str>)>, Refused> {
    let state = match decide_transition(Life::Recorded(record.state), event)? {
        Life::Recorded(state) => state,
        Life::Init | Life::Deleted => return Ok(None),
    };
    let mut settled = record.clone();
    settled.state = state;
    settled.work = None;
    settled.reason = match ended {
        Ended::Done(_) => None,
        Ended::Failed(failure) => Some(Reason { text: failure.sentence(), since: now }),
        Ended::Canceled => Some(Reason { text: "canceled".to_owned(), since: now }),
    };
    let is_new = state == ClusterState::Running && !record.created;
    settled.created |= is_new;
    Ok(Some((settled, is_new.then_some("cluster.created"))))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_or_ends_is_begun_anew_until_the_cluster_is_no_longer_ours() {
        let stop = CancellationToken::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let begin = || {
            let (stop, run) = (stop.clone(), runs.fetch_add(1, Ordering::Relaxed));
            async move {
                match run {
                    0 => panic!("a defect"),
                    1 => {}
                    _ => stop.cancel(),
                }
            }
        };
        let begun = std::time::Instant::now();
        begin_again("demo", &stop, begin).await;
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        assert!(begun.elapsed() >= 2 * RETRY, "there is a pause between two");
    }
}
