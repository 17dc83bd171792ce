//! The one thread that writes.
//!
//! Flow: wait for a request, take what else has queued up, run it all inside one SQLite
//! transaction, commit (one fdatasync), publish the changes, answer. Writers that come while the
//! disk is busy form the next batch, so the rate grows with their number.
//!
//! Guarantees: nobody is answered before the commit; watchers see a change no later than the
//! writer learns of it; a failed commit leaves memory and disk as they were, everyone in the
//! batch gets the reason, and the next batch is tried afresh.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, hooks::Wal, wal::CheckpointMode};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::{
    apply::{Draft, Verdict},
    cache::Cache,
    history::{Batch, History},
    layout::classify_shared,
    leases::{self, Leases},
    lock::DirLock,
};
use crate::{
    error::{StoreError, StoreResult},
    store::HISTORY_REVISIONS,
    types::{LeaseId, Op, Outcome, Txn},
};

/// A batch stays small enough that its first writer does not wait for long.
const MAX_BATCH_REQUESTS: usize = 1024;
const MAX_BATCH_BYTES: usize = 8 << 20;

/// History is trimmed in steps of this many revisions; a step is a fraction of a batch's work.
const TRIM_STEP: u64 = 1000;
/// With requests waiting, trimming is put off until this much is kept.
const TRIM_AT_LATEST: u64 = 5 * HISTORY_REVISIONS;

/// The write-ahead log is copied into the database when nobody has asked for anything for a moment
/// and it holds this many pages, and whatever is going on when it holds many more. The file keeps its size: overwriting
/// it syncs faster than growing it.
const CHECKPOINT_WHEN_IDLE_PAGES: usize = 1000;
const CHECKPOINT_AT_LATEST_PAGES: usize = 8000;
const IDLE_AFTER: Duration = Duration::from_millis(20);

/// How soon the end of a lease is tried again when it could not be written.
const RETRY_EXPIRY: Duration = Duration::from_millis(500);

pub(super) type Reply<T> = oneshot::Sender<StoreResult<T>>;

pub(super) enum Request {
    Commit { txn: Txn, reply: Reply<Outcome> },
    Grant { ttl: Duration, reply: Reply<LeaseId> },
    Revoke { lease: LeaseId, reply: Reply<()> },
    EndOldLeases { reply: Reply<()> },
    Compact { keep: u64, reply: Reply<()> },
    Close { reply: Reply<()> },
}

/// A request and its place in the queue.
pub(super) struct Queued {
    pub(super) request: Request,
    pub(super) _place: OwnedSemaphorePermit,
}

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) requests: mpsc::Receiver<Queued>,
    pub(super) cache: Arc<Cache>,
    pub(super) history: Arc<History>,
    pub(super) latest: watch::Sender<u64>,
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) leases: Arc<Mutex<Leases>>,
    pub(super) retry_expiry_at: Option<Instant>,
    /// Pages in the write-ahead log, told by SQLite at each commit.
    pub(super) wal_pages: Arc<AtomicUsize>,
    pub(super) lock: DirLock,
}

/// Who waits for the batch to be on disk, and what it then is told.
enum Answer {
    Outcome(Reply<Outcome>, StoreResult<Outcome>),
    Done(Reply<()>),
}

impl Answer {
    fn send(self) {
        // Whoever stopped waiting needs no answer.
        match self {
            Answer::Outcome(reply, outcome) => reply.send(outcome).map_err(drop),
            Answer::Done(reply) => reply.send(Ok(())).map_err(drop),
        }
        .ok();
    }

    fn fail(self, error: StoreError) {
        match self {
            Answer::Outcome(reply, _) => reply.send(Err(error)).map_err(drop),
            Answer::Done(reply) => reply.send(Err(error)).map_err(drop),
        }
        .ok();
    }
}

impl Writer {
    /// Serves until it is told to close, or until nobody is left who could ask.
    pub(super) fn run(mut self) {
        let closing = loop {
            let first = match self.wait() {
                Ok(first) => Some(first),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => break None,
            };
            let idle = first.is_none();
            let (requests, closing) = self.drain(first);
            self.run_batch(requests);
            if closing.is_some() {
                break closing;
            }
            self.checkpoint_if_due(idle);
        };
        // The last connection to go folds the write-ahead log into the database.
        drop(self.conn);
        drop(self.lock);
        drop(self.latest);
        if let Some(reply) = closing {
            reply.send(Ok(())).ok();
        }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        leases::lock(&self.leases)
    }

    fn wait(&self) -> Result<Queued, mpsc::RecvTimeoutError> {
        let wake_at = match (self.leases().next_deadline(), self.retry_expiry_at) {
            (Some(deadline), Some(retry)) => Some(deadline.max(retry)),
            (deadline, _) => deadline,
        };
        let idle_at = (self.wal_pages.load(Ordering::Relaxed) >= CHECKPOINT_WHEN_IDLE_PAGES)
            .then(|| Instant::now() + IDLE_AFTER);
        match wake_at.into_iter().chain(idle_at).min() {
            None => self.requests.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(at) => self.requests.recv_timeout(at.saturating_duration_since(Instant::now())),
        }
    }

    /// Takes what has queued up, up to a batch's limits or to the request to close.
    fn drain(&self, first: Option<Queued>) -> (Vec<Request>, Option<Reply<()>>) {
        let mut taken = Vec::new();
        let mut bytes = 0;
        let mut next = first;
        while let Some(Queued { request, .. }) = next {
            match request {
                Request::Close { reply } => return (taken, Some(reply)),
                request => {
                    bytes += request.bytes();
                    taken.push(request);
                }
            }
            if taken.len() >= MAX_BATCH_REQUESTS || bytes >= MAX_BATCH_BYTES {
                break;
            }
            next = self.requests.try_recv().ok();
        }
        (taken, None)
    }

    fn run_batch(&mut self, requests: Vec<Request>) {
        let now = Instant::now();
        let expired = match self.retry_expiry_at {
            Some(at) if now < at => Vec::new(),
            Some(_) | None => self.leases().begin_end_of_expired(now),
        };
        let waiting = self.answer_without_disk(requests, now);
        if waiting.is_empty() && expired.is_empty() {
            return;
        }
        let mut draft = Draft::new(self.revision, self.compacted);
        let mut answers = Vec::with_capacity(waiting.len());
        match self.write_batch(&mut draft, waiting, &expired, &mut answers, now) {
            Ok(()) => {
                self.leases().forget_ended();
                self.retry_expiry_at = None;
                let changed = self.publish(draft);
                // First those who wait for the disk, then those who merely watch: a watcher that
                // asks sees the change already, and one that sleeps can be woken a moment later.
                answers.into_iter().for_each(Answer::send);
                self.latest.send_if_modified(|_| changed);
            }
            Err(error) => {
                let error = Arc::new(error);
                tracing::warn!(%error, waiting = answers.len(), "the store could not write a batch");
                self.conn.execute_batch("ROLLBACK").ok();
                self.leases().undo_end();
                self.retry_expiry_at = (!expired.is_empty()).then(|| now + RETRY_EXPIRY);
                for answer in answers {
                    answer.fail(classify_shared(&self.path, &error));
                }
            }
        }
    }

    /// Leases are granted in memory, so that a full disk is no obstacle. It takes the writer all the
    /// same, which has to know when to wake up next.
    fn answer_without_disk(&self, requests: Vec<Request>, now: Instant) -> Vec<Request> {
        let mut waiting = Vec::with_capacity(requests.len());
        for request in requests {
            match request {
                Request::Grant { ttl, reply } => {
                    reply.send(Ok(self.leases().grant(ttl, now))).ok();
                }
                request => waiting.push(request),
            }
        }
        waiting
    }

    /// Runs the whole batch up to and including COMMIT. Every request gets its place in `answers`,
    /// also those that come after an error.
    fn write_batch(
        &mut self,
        draft: &mut Draft,
        requests: Vec<Request>,
        expired: &[LeaseId],
        answers: &mut Vec<Answer>,
        now: Instant,
    ) -> rusqlite::Result<()> {
        let mut result = run(&self.conn, "BEGIN IMMEDIATE");
        for lease in expired {
            result = result.and_then(|()| draft.end_lease(&self.conn, *lease));
        }
        for request in requests {
            let ready = result.is_ok();
            let step = self.take_up(draft, request, answers, now, ready);
            result = result.and(step);
        }
        result?;
        self.trim(draft)?;
        self.cache.begin_commit(&draft.changes);
        let committed = run(&self.conn, "COMMIT");
        self.cache.end_commit(&draft.changes);
        committed
    }

    /// Applies one request, if `ready`, and notes who waits for it.
    fn take_up(
        &mut self,
        draft: &mut Draft,
        request: Request,
        answers: &mut Vec<Answer>,
        now: Instant,
        ready: bool,
    ) -> rusqlite::Result<()> {
        let (reply, result) = match request {
            Request::Commit { txn, reply } => {
                let verdict = if ready {
                    draft.apply(&self.conn, txn, |lease| self.leases().is_live(lease, now))
                } else {
                    Ok(Verdict::Refused)
                };
                let (outcome, result) = match verdict {
                    Ok(Verdict::Committed(revision)) => (Ok(Outcome::Committed(revision)), Ok(())),
                    Ok(Verdict::Refused) => (Ok(Outcome::Refused), Ok(())),
                    Ok(Verdict::LeaseGone) => (Err(StoreError::LeaseGone), Ok(())),
                    Err(error) => (Ok(Outcome::Refused), Err(error)),
                };
                answers.push(Answer::Outcome(reply, outcome));
                return result;
            }
            Request::Revoke { lease, reply } if ready && self.leases().begin_end(lease) => {
                (reply, draft.end_lease(&self.conn, lease))
            }
            Request::EndOldLeases { reply } if ready => (reply, draft.end_all_leases(&self.conn)),
            Request::Compact { keep, reply } if ready => {
                let upto = draft.revision.saturating_sub(keep);
                (
                    reply,
                    if upto > draft.compacted { draft.compact(&self.conn, upto) } else { Ok(()) },
                )
            }
            Request::Revoke { reply, .. }
            | Request::EndOldLeases { reply }
            | Request::Compact { reply, .. }
            | Request::Close { reply } => (reply, Ok(())),
            Request::Grant { .. } => return Ok(()),
        };
        answers.push(Answer::Done(reply));
        result
    }

    /// Forgets a step of old history when there is enough of it.
    fn trim(&self, draft: &mut Draft) -> rusqlite::Result<()> {
        let kept = draft.revision.saturating_sub(draft.compacted);
        let quiet = draft.revision.saturating_sub(self.revision) <= 1;
        let limit = if quiet { HISTORY_REVISIONS + TRIM_STEP } else { TRIM_AT_LATEST };
        if kept <= limit {
            return Ok(());
        }
        let upto = (draft.compacted + TRIM_STEP).min(draft.revision - HISTORY_REVISIONS);
        draft.compact(&self.conn, upto)
    }

    /// Makes what is on disk visible to watchers, without waking those that sleep; whether there
    /// is anything to see.
    fn publish(&mut self, draft: Draft) -> bool {
        self.compacted = draft.compacted;
        self.history.set_compacted(draft.compacted);
        if draft.changes.is_empty() {
            return false;
        }
        self.revision = draft.revision;
        let Draft { revision: last, changes, bytes, .. } = draft;
        self.history.push(Batch { last, changes, bytes });
        self.latest.send_if_modified(|latest| {
            *latest = last;
            false
        });
        true
    }

    fn checkpoint_if_due(&self, idle: bool) {
        let pages = self.wal_pages.load(Ordering::Relaxed);
        let limit = if idle { CHECKPOINT_WHEN_IDLE_PAGES } else { CHECKPOINT_AT_LATEST_PAGES };
        if pages < limit {
            return;
        }
        // A long reader (a backup) or a full disk can hold it up. The log keeps everything, and the
        // next commit tells its length again: then the rest is tried.
        self.wal_pages.store(0, Ordering::Relaxed);
        if let Err(error) = self.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            tracing::debug!(%error, "the write-ahead log cannot be checkpointed yet");
        }
    }
}

impl Request {
    /// What the request adds to its batch, roughly.
    fn bytes(&self) -> usize {
        match self {
            Request::Commit { txn, .. } => txn
                .ops
                .iter()
                .map(|op| match op {
                    Op::Put { key, value, .. } => key.len() + value.len(),
                    Op::Delete { key } => key.len(),
                })
                .sum(),
            _ => 0,
        }
    }
}

/// Lets SQLite tell how long the write-ahead log is.
pub(super) fn count_wal_pages(conn: &mut Connection) -> rusqlite::Result<Arc<AtomicUsize>> {
    let pages = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&pages);
    conn.wal_hook(Some(move |_: &mut Wal, count: std::ffi::c_int| {
        told.store(usize::try_from(count).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(pages)
}

fn run(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(|_| ())
}
