//! What a drain that runs says of itself: to the store, to the Node, to the metrics.
//!
//! Flow: the drain changes what is said in memory; one future writes it down, about once a second,
//! and leaves the events. So a slow store or a slow cluster holds no eviction up.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{sync::Notify, time::Instant};
use wharf_core::drain::{Ages, DrainRecord, Progress, Report, Stage, Waiting};
use wharf_kube::Cluster;

use crate::{
    app::AppState,
    engine::{Fenced, FencedError},
    metrics::Metrics,
};

/// A person sees no difference below this, and the disk does.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Kubernetes keeps an hour of events: those of a drain that is blocked in turns should not fill it.
const BLOCKED_EVERY: Duration = Duration::from_secs(60);
/// So many blockers are named in an event, which is cut at a kilobyte.
const NAMED: usize = 5;
/// Events that wait for a cluster that does not answer.
const EVENTS: usize = 8;

pub struct Teller {
    key: String,
    id: String,
    node: String,
    said: Mutex<Said>,
    changed: Notify,
}

#[derive(Default)]
struct Said {
    progress: Progress,
    ages: Ages,
    reason: Option<String>,
    api: Option<Cluster>,
    events: VecDeque<Event>,
    /// The last event about what blocks.
    blocked: Option<(String, Instant)>,
    /// There as long as the drain runs.
    counted: Option<Counted>,
}

struct Event {
    warning: bool,
    reason: &'static str,
    text: String,
}

impl Teller {
    pub fn new(app: &AppState, record: &DrainRecord) -> Self {
        let counted = record.is_running().then(|| Counted::new(&app.metrics));
        let said = Said { progress: record.progress.clone(), counted, ..Said::default() };
        Self {
            key: DrainRecord::key(&record.cluster, &record.node),
            id: record.id.clone(),
            node: record.node.clone(),
            said: Mutex::new(said),
            changed: Notify::new(),
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        // It is whole after every change, also after one in a task that panicked.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It does not run any more.
    pub fn close(&self) {
        self.said().counted = None;
    }

    /// Where events are left.
    pub fn speak_through(&self, api: &Cluster) {
        self.said().api = Some(api.clone());
        self.changed.notify_one();
    }

    pub fn api(&self) -> Option<Cluster> {
        self.said().api.clone()
    }

    pub fn progress(&self) -> Progress {
        self.said().progress.clone()
    }

    pub fn stage(&self) -> Option<Stage> {
        self.said().progress.stage
    }

    /// The stage before this report.
    pub fn report(&self, report: &Report) -> Option<Stage> {
        let mut said = self.said();
        let before = said.progress.stage;
        let Said { progress, ages, .. } = &mut *said;
        said.reason = progress.note(report, ages, Timestamp::now());
        if let Some(counted) = &mut said.counted {
            counted.set(report.left);
        }
        said.tell_of_blockers(report);
        drop(said);
        self.changed.notify_one();
        before
    }

    /// It does not go on, for another reason than its pods.
    pub fn wait(&self, reason: String) {
        self.said().reason = Some(reason);
        self.changed.notify_one();
    }

    pub fn event(&self, warning: bool, reason: &'static str, text: String) {
        self.said().push(Event { warning, reason, text });
        self.changed.notify_one();
    }

    /// Writes down what is said whenever that changed; returns when it is not ours to write any
    /// more.
    pub async fn write_for_ever(&self, fenced: &Fenced) {
        loop {
            self.changed.notified().await;
            let (progress, reason) = {
                let said = self.said();
                (said.progress.clone(), said.reason.clone())
            };
            let change = |old: &DrainRecord| {
                let is_new = old.progress != progress || old.reason != reason;
                let (progress, reason) = (progress.clone(), reason.clone());
                (old.id == self.id && old.is_running() && is_new).then(|| DrainRecord {
                    progress,
                    reason,
                    ..old.clone()
                })
            };
            match fenced.change(&self.key, change).await {
                Ok(_) => {}
                Err(FencedError::Fenced { .. } | FencedError::Gone { .. }) => return,
                // The drain goes on; the next change is written.
                Err(error @ (FencedError::Store(_) | FencedError::Contended { .. })) => {
                    tracing::warn!(?error, drain = self.key, "its progress was not written");
                }
            }
            self.leave_events().await;
            tokio::time::sleep(WRITE_EVERY).await;
        }
    }

    async fn leave_events(&self) {
        let Some(api) = self.api() else { return };
        let events = std::mem::take(&mut self.said().events);
        for Event { warning, reason, text } in events {
            if let Err(error) = api.emit(&self.node, warning, reason, &text).await {
                tracing::debug!(?error, node = self.node, reason, "an event was not left");
            }
        }
    }
}

impl Said {
    fn push(&mut self, event: Event) {
        self.events.push_back(event);
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Says what blocks when that is new, and not too often.
    fn tell_of_blockers(&mut self, report: &Report) {
        let blocking = report.waiting.iter().filter(|waiting| waiting.blocks());
        let sentences: Vec<String> = blocking.take(NAMED).map(Waiting::to_string).collect();
        let text = sentences.join("; ");
        let is_new = match &self.blocked {
            _ if text.is_empty() => false,
            Some((told, at)) => *told != text && at.elapsed() >= BLOCKED_EVERY,
            None => true,
        };
        if is_new {
            self.push(Event { warning: true, reason: "DrainBlocked", text: text.clone() });
            self.blocked = Some((text, Instant::now()));
        }
    }
}

/// A running drain in the metrics; out of them when it is dropped.
struct Counted {
    running: Gauge,
    waiting: Gauge,
    left: i64,
}

impl Counted {
    fn new(metrics: &Metrics) -> Self {
        metrics.drains_running.inc();
        let (running, waiting) =
            (metrics.drains_running.clone(), metrics.drain_pods_waiting.clone());
        Self { running, waiting, left: 0 }
    }

    fn set(&mut self, left: usize) {
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        self.waiting.inc_by(left - self.left);
        self.left = left;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.running.dec();
        self.waiting.dec_by(self.left);
    }
}
