//! Operations: one recorded run of create, update or delete, with its phases, steps and log.
//!
//! The record is the journal. It says what is under way, so that another start of the server goes
//! on with it, and it stays after the cluster is gone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::Kind;

/// What is kept of an operation. The id sorts by time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRecord {
    pub cluster: String,
    pub kind: OperationKind,
    pub state: OperationState,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// In sentences, with the host, the command and the last lines of its output.
    pub error: Option<String>,
    pub hint: Option<String>,
    pub phases: Vec<Phase>,
    pub steps: Vec<Step>,
    /// What a delete could not remove.
    pub leftovers: Vec<Leftover>,
    /// The last lines of the log, oldest first; `log_start` is the number of the first.
    pub log: Vec<LogLine>,
    pub log_start: u64,
}

impl Kind for OperationRecord {
    const KIND: &'static str = "operation";
}

/// Says that a cluster has an operation: `<cluster>/<operation>`. Without it, what happened to one
/// cluster would be looked for among the operations of all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationOf {}

impl OperationOf {
    pub fn id(cluster: &str, operation: &str) -> String {
        format!("{cluster}/{operation}")
    }
}

impl Kind for OperationOf {
    const KIND: &'static str = "operationof";
}

/// So many lines of the log are kept; a late joiner of the log gets them first.
pub const LOG_LINES: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    Create,
    Update,
    Delete,
    /// Of one node, as the next two.
    Reboot,
    Shutdown,
    NodeUpdate,
}

impl OperationKind {
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Create => "create",
            OperationKind::Update => "update",
            OperationKind::Delete => "delete",
            OperationKind::Reboot => "reboot",
            OperationKind::Shutdown => "shutdown",
            OperationKind::NodeUpdate => "nodeupdate",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    Running,
    Succeeded,
    Failed,
    Canceled,
}

impl OperationState {
    pub fn name(self) -> &'static str {
        match self {
            OperationState::Running => "running",
            OperationState::Succeeded => "succeeded",
            OperationState::Failed => "failed",
            OperationState::Canceled => "canceled",
        }
    }
}

/// Where a phase or a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    Waiting,
    Running,
    Done,
    Failed,
    Skipped,
}

impl Progress {
    pub fn name(self) -> &'static str {
        match self {
            Progress::Waiting => "waiting",
            Progress::Running => "running",
            Progress::Done => "done",
            Progress::Failed => "failed",
            Progress::Skipped => "skipped",
        }
    }

    pub fn is_over(self) -> bool {
        match self {
            Progress::Waiting | Progress::Running => false,
            Progress::Done | Progress::Failed | Progress::Skipped => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub state: Progress,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// What is done on one host, or by the server itself (`host` empty), in one phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub phase: String,
    pub host: String,
    pub name: String,
    pub state: Progress,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub stderr_tail: Option<String>,
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    pub host: String,
    pub reason: String,
    pub items: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub at: Timestamp,
    /// Whom it concerns; empty for the whole cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    pub text: String,
}

impl OperationRecord {
    pub fn new(cluster: &str, kind: OperationKind, now: Timestamp) -> Self {
        Self {
            cluster: cluster.to_owned(),
            kind,
            state: OperationState::Running,
            started_at: now,
            ended_at: None,
            error: None,
            hint: None,
            phases: Vec::new(),
            steps: Vec::new(),
            leftovers: Vec::new(),
            log: Vec::new(),
            log_start: 0,
        }
    }

    /// How much is done, from 0 to 100: phases count alike, and within one its steps.
    pub fn percent(&self) -> u8 {
        if self.state == OperationState::Succeeded {
            return 100;
        }
        let share = |phase: &Phase| {
            match phase.state {
                Progress::Done => return 100,
                Progress::Skipped => return 0,
                Progress::Waiting | Progress::Running | Progress::Failed => {}
            }
            let steps: Vec<_> = self.steps.iter().filter(|s| s.phase == phase.name).collect();
            let over = steps.iter().filter(|step| step.state == Progress::Done).count();
            over * 100 / steps.len().max(1)
        };
        let sum: usize = self.phases.iter().map(share).sum();
        // A run that is not over is never shown as complete.
        u8::try_from(sum / self.phases.len().max(1)).unwrap_or(100).min(99)
    }

    /// Adds a line to the log that concerns the whole cluster.
    pub fn log(&mut self, at: Timestamp, text: impl Into<String>) {
        self.log_on("", at, text);
    }

    /// Adds a line to the log that concerns a host, and forgets the oldest beyond [`LOG_LINES`].
    pub fn log_on(&mut self, host: &str, at: Timestamp, text: impl Into<String>) {
        self.log.push(LogLine { at, host: host.to_owned(), text: text.into() });
        let surplus = self.log.len().saturating_sub(LOG_LINES);
        self.log.drain(..surplus);
        self.log_start += surplus as u64;
    }

    /// The log as a host should keep it: what concerns it, and what concerns the whole cluster.
    pub fn render_log_of(&self, host: &str) -> String {
        let concerns = |line: &&LogLine| line.host.is_empty() || line.host == host;
        let lines = self.log.iter().filter(concerns);
        lines.map(|line| format!("{} {}\n", line.at, line.text)).collect()
    }

    /// Adds why the run failed, for all hosts. What a step said that failed is in the log of its host
    /// already: the others need to know no more than that.
    pub fn log_failure(&mut self, at: Timestamp, sentence: &str) {
        let broke = |phase: &&Phase| phase.state == Progress::Failed;
        let is_told = self.phases.iter().filter(broke).any(|phase| {
            let mut steps = self.steps.iter().filter(|step| step.phase == phase.name);
            steps.any(|step| step.state == Progress::Failed)
        });
        let first = sentence.lines().next().unwrap_or_default();
        self.log(at, format!("failed: {}", if is_told { first } else { sentence }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn phase(name: &str, state: Progress) -> Phase {
        Phase { name: name.to_owned(), state, started_at: None, ended_at: None }
    }

    fn step(phase: &str, host: &str, state: Progress) -> Step {
        Step {
            phase: phase.to_owned(),
            host: host.to_owned(),
            name: phase.to_owned(),
            state,
            started_at: None,
            ended_at: None,
            exit_code: None,
            stderr_tail: None,
            hint: None,
        }
    }

    #[test]
    fn percent_counts_phases_and_the_steps_of_the_running_one() {
        let mut run = OperationRecord::new("demo", OperationKind::Create, NOW);
        assert_eq!(run.percent(), 0);
        run.phases = vec![phase("a", Progress::Done), phase("b", Progress::Running)];
        assert_eq!(run.percent(), 50);
        run.steps = vec![step("b", "n1", Progress::Done), step("b", "n2", Progress::Running)];
        assert_eq!(run.percent(), 75);
        run.phases = vec![phase("a", Progress::Done), phase("b", Progress::Done)];
        assert_eq!(run.percent(), 99);
        run.state = OperationState::Succeeded;
        assert_eq!(run.percent(), 100);
    }

    #[test]
    fn the_log_keeps_its_last_lines_and_their_numbers() {
        let mut run = OperationRecord::new("demo", OperationKind::Create, NOW);
        for number in 0..LOG_LINES + 7 {
            run.log(NOW, format!("line {number}"));
        }
        assert_eq!(run.log.len(), LOG_LINES);
        assert_eq!(run.log_start, 7);
        assert_eq!(run.log.first().map(|line| line.text.as_str()), Some("line 7"));
    }

    #[test]
    fn a_host_keeps_its_own_lines_and_those_of_the_whole_cluster() {
        let mut run = OperationRecord::new("demo", OperationKind::Create, NOW);
        run.log(NOW, "prepare …");
        run.log_on("n1", NOW, "n1: prepare: 3 changes");
        run.log_on("n10", NOW, "failed: host n10: start wharf-agent\nno space left");
        let at = "1970-01-01T00:00:00Z";
        let whole = format!("{at} prepare …\n");
        assert_eq!(run.render_log_of("n1"), format!("{whole}{at} n1: prepare: 3 changes\n"));
        let failed = format!("{at} failed: host n10: start wharf-agent\nno space left\n");
        assert_eq!(run.render_log_of("n10"), format!("{whole}{failed}"));
        assert_eq!(run.render_log_of("n2"), whole);
    }

    #[test]
    fn why_a_run_failed_is_told_to_all_hosts_and_in_full_where_no_step_has_told_it() {
        let sentence = "host n1: start wharf-agent\nno space left";
        let mut run = OperationRecord::new("demo", OperationKind::Create, NOW);
        run.log_failure(NOW, sentence);
        assert_eq!(run.render_log_of("n2"), format!("1970-01-01T00:00:00Z failed: {sentence}\n"));
        let in_full = run.render_log_of("n2");
        let first = "1970-01-01T00:00:00Z failed: host n1: start wharf-agent\n";
        // That a machine is away, which the connecting found, is not why the run failed.
        for (phase_state, expected) in
            [(Progress::Done, in_full.as_str()), (Progress::Failed, first)]
        {
            run.log.clear();
            run.phases = vec![phase("connect", phase_state)];
            run.steps = vec![step("connect", "n1", Progress::Failed)];
            run.log_failure(NOW, sentence);
            assert_eq!(run.render_log_of("n2"), expected, "{phase_state:?}");
        }
    }
}
