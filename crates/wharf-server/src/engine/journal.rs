//! The journal of an operation that runs: what is shown of it, written as it goes.
//!
//! Flow: the work changes the journal in memory; one task writes the record when it changed, a few
//! times a second at most. The end is written by whoever ends the operation, together with the
//! cluster's new state.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::Notify;
use wharf_core::operation::{OperationRecord, Phase, Progress, Step};
use wharf_store::Txn;

use super::{Fenced, FencedError};
use crate::installer::{Failure, Outcome};

/// A person sees no difference below this, and the disk does.
const WRITE_EVERY: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    id: String,
    record: Mutex<OperationRecord>,
    changed: Notify,
}

impl Journal {
    pub fn new(id: &str, record: OperationRecord) -> Self {
        let (record, changed) = (Mutex::new(record), Notify::new());
        Self { inner: Arc::new(Inner { id: id.to_owned(), record, changed }) }
    }

    pub fn id(&self) -> &str {
        &self.inner.id
    }

    pub fn snapshot(&self) -> OperationRecord {
        self.record().clone()
    }

    fn record(&self) -> MutexGuard<'_, OperationRecord> {
        // The record is whole after every change, also after one in a task that panicked.
        self.inner.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the record; what changed is written soon.
    pub fn change<T>(&self, change: impl FnOnce(&mut OperationRecord, Timestamp) -> T) -> T {
        let result = change(&mut self.record(), Timestamp::now());
        self.inner.changed.notify_one();
        result
    }

    pub fn log(&self, text: impl Into<String>) {
        self.log_on("", text);
    }

    /// What concerns one host alone, which the text names for those who read the log of all.
    pub fn log_on(&self, host: &str, text: impl Into<String>) {
        let text = text.into();
        tracing::info!(operation = self.inner.id, "{text}");
        self.change(|record, now| record.log_on(host, now, text));
    }

    /// Says which phases there will be. A run that goes on after a restart begins them anew.
    pub fn plan(&self, names: &[&str]) {
        self.change(|record, _| {
            record.steps.clear();
            record.phases = names
                .iter()
                .map(|name| Phase {
                    name: (*name).to_owned(),
                    state: Progress::Waiting,
                    started_at: None,
                    ended_at: None,
                })
                .collect();
        });
    }

    /// Runs a phase and records how it went.
    pub async fn phase<T>(&self, name: &str, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        self.change(|record, now| {
            if let Some(phase) = record.phases.iter_mut().find(|phase| phase.name == name) {
                phase.state = Progress::Running;
                phase.started_at = Some(now);
            }
            record.log(now, format!("{name} …"));
        });
        let result = work.await;
        self.change(|record, now| {
            if let Some(phase) = record.phases.iter_mut().find(|phase| phase.name == name) {
                phase.state = if result.is_ok() { Progress::Done } else { Progress::Failed };
                phase.ended_at = Some(now);
            }
        });
        result
    }

    /// Runs a step on a host (empty: on the server) and records how it went.
    pub async fn step<T>(
        &self,
        phase: &str,
        host: &str,
        name: &str,
        work: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        self.change(|record, now| {
            record.steps.push(Step {
                phase: phase.to_owned(),
                host: host.to_owned(),
                name: name.to_owned(),
                state: Progress::Running,
                started_at: Some(now),
                ended_at: None,
                exit_code: None,
                stderr_tail: None,
                hint: None,
            });
        });
        let result = work.await;
        self.change(|record, now| {
            let same = |s: &&mut Step| s.phase == phase && s.host == host && s.name == name;
            if let Some(step) = record.steps.iter_mut().rev().find(same) {
                end(step, result.as_ref().err(), now);
            }
            if let Err(failure) = &result {
                // What the server does for all may fail because of one.
                let host = if host.is_empty() { failure.host.as_str() } else { host };
                record.log_on(host, now, format!("failed: {}", failure.sentence()));
            }
        });
        result
    }

    /// Writes the record whenever it changed, for as long as the server owns the cluster.
    pub async fn write_for_ever(&self, fenced: &Fenced) -> FencedError {
        loop {
            self.inner.changed.notified().await;
            tokio::time::sleep(WRITE_EVERY).await;
            let record = self.snapshot();
            let write = |_: &_| Txn::new().write(self.id(), &record, Timestamp::now(), None);
            match fenced.commit(write).await {
                Ok(_) => {}
                // The store is away for a moment: the work goes on, and the next change is written.
                Err(FencedError::Store(error)) => {
                    tracing::warn!(?error, operation = self.id(), "the journal was not written");
                }
                Err(error) => return error,
            }
        }
    }
}

fn end(step: &mut Step, failure: Option<&Failure>, now: Timestamp) {
    step.ended_at = Some(now);
    step.state = if failure.is_some() { Progress::Failed } else { Progress::Done };
    if let Some(failure) = failure {
        step.exit_code = failure.exit_code;
        step.stderr_tail = failure.stderr_tail.clone().or_else(|| Some(failure.message.clone()));
        step.hint.clone_from(&failure.hint);
    }
}
