//! What the gate says: its status file, the log with the words that people search for, the health
//! of its task, and the time that a drain took.

use std::{path::PathBuf, time::Duration};

use tracing::{info, warn};
use wharf_api::node_files::{GLOBAL, NodeDrainStatus};
use wharf_core::{
    node::{
        gate::{Phase, Requests, Wait, completion_line},
        status::Requester,
    },
    words::chain,
};

use super::{Said, Word, worker::Progress};
use crate::{
    aside::aside,
    files::Files,
    health::{AGENT, Reporter},
    host,
};

/// The agent whose part the gate plays.
const GATE_AGENT: &str = "zedkube";
/// Under this subject a drain that does not go on is a fault of the task.
const SUBJECT: &str = "drain";
/// For everybody to read.
const METRICS_MODE: u32 = 0o644;
const METRIC: &str = "kubevirt_node_drain_completion_time_seconds";

pub struct Publisher {
    files: Files,
    reporter: Reporter,
    word: Word,
    metrics: PathBuf,
    last: Option<NodeDrainStatus>,
    /// The last one is in its file.
    written: bool,
    requests: Option<Requests>,
}

impl Publisher {
    pub fn new(files: Files, reporter: Reporter, word: Word, run_dir: &std::path::Path) -> Self {
        let metrics = run_dir.join(AGENT).join("metrics.prom");
        Self { files, reporter, word, metrics, last: None, written: false, requests: None }
    }

    /// Publishes what is new. Whether all of it is in its file.
    pub fn tell(&mut self, said: Said, blocking: &[String], wait: Option<&Wait>) -> bool {
        self.log_requests(&said.requests);
        let status = NodeDrainStatus {
            status: said.published.status.number(),
            requested_by: said.published.requested_by.number(),
            reason: said.reason.clone(),
            blocking: blocking.to_vec(),
        };
        if self.last.as_ref() != Some(&status) {
            self.log(&said, &status);
            self.report(&status, wait);
            self.written = false;
        }
        if !self.written {
            self.written = self.files.publish(GATE_AGENT, GLOBAL, &status).is_ok();
        }
        self.last = Some(status);
        let said = Some(said);
        self.word.send_if_modified(|known| {
            let news = *known != said;
            *known = said;
            news
        });
        self.written
    }

    /// Forgets that the file is there: others may have removed it.
    pub fn write_again(&mut self) {
        self.written = false;
    }

    /// How long a drain took that has just ended.
    pub fn tell_completion(&self, took: Duration) {
        info!("{}", completion_line(took));
        self.publish_took(took);
    }

    /// The same for whoever collects numbers.
    pub fn publish_took(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let text = format!(
            "# HELP {METRIC} How long the last drain of this node took.\n\
             # TYPE {METRIC} gauge\n{METRIC} {seconds:.6}\n"
        );
        let written = aside(|| {
            self.metrics.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            host::files::write(&self.metrics, METRICS_MODE, text.as_bytes())
        });
        let subject = self.metrics.display().to_string();
        match written {
            Ok(()) => self.reporter.clear(&subject),
            Err(error) => self.reporter.fault(&subject, &chain(&error)),
        }
    }

    fn log_requests(&mut self, requests: &Requests) {
        if self.requests.as_ref() == Some(requests) {
            return;
        }
        for requester in [Requester::DeviceOperation, Requester::Update] {
            let before = self.requests.as_ref().and_then(|known| known.get(requester));
            match (before, requests.get(requester)) {
                (before, Some(now)) if before != Some(now) => {
                    info!(
                        by = requester.number(),
                        "nodedrain-step: NodeDrainRequest for {}", now.context
                    );
                }
                (Some(before), None) => {
                    let by = requester.number();
                    info!(by, "nodedrain-step: NodeDrainRequest for {} is gone", before.context);
                }
                _ => {}
            }
        }
        self.requests = Some(requests.clone());
    }

    fn log(&self, said: &Said, status: &NodeDrainStatus) {
        let (name, by, reason) =
            (said.published.status.name(), status.requested_by, &status.reason);
        if status.blocking.is_empty() {
            info!(by, reason, "nodedrain-step: NodeDrainStatus is {name}");
        } else {
            warn!(
                by,
                reason, "nodedrain-step: NodeDrainStatus is {name}, cordonAndDrainNode waits"
            );
        }
    }

    fn report(&self, status: &NodeDrainStatus, wait: Option<&Wait>) {
        match wait {
            Some(
                Wait::Forced
                | Wait::Guard(_)
                | Wait::Api { .. }
                | Wait::CordonedBy(_)
                | Wait::CordonRetry { .. }
                | Wait::DrainRetry { .. }
                | Wait::Failed(_),
            ) => self.reporter.fault(SUBJECT, &status.reason),
            Some(Wait::Drain) if !status.blocking.is_empty() => {
                self.reporter.fault(SUBJECT, &status.reason);
            }
            Some(Wait::Uncordon | Wait::Cordon | Wait::Drain | Wait::NodeNotReady) | None => {
                self.reporter.clear(SUBJECT);
            }
        }
    }
}

/// Why the gate does not go on, with all that blocks it, or how it ended.
pub fn reason(phase: &Phase, wait: Option<&Wait>, progress: &Progress) -> String {
    match (wait, phase) {
        (Some(wait @ Wait::Drain), _) => {
            let left = format!("{wait}, {} pods are left", progress.left);
            let sentences = std::iter::once(&left).chain(&progress.blocking);
            sentences.map(String::as_str).collect::<Vec<_>>().join("; ")
        }
        (Some(wait), _) => wait.to_string(),
        (None, Phase::Failed { end, .. } | Phase::Complete { end, .. }) => end.reason.clone(),
        (
            None,
            Phase::Idle
            | Phase::Requested { .. }
            | Phase::Starting(_)
            | Phase::Draining { .. }
            | Phase::Pausing(_),
        ) => String::new(),
    }
}
