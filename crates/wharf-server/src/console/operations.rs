//! Operations on a page: phases, hosts, errors and the log.

use std::collections::BTreeMap;

use askama::Template;
use axum::{extract::State, http::StatusCode};
use jiff::Timestamp;
use wharf_core::operation::{Leftover, OperationRecord, OperationState, Progress, Step};
use wharf_store::Stored;

use super::{Page, PageResult, Session, fragment, render};
use crate::{
    access::Caller,
    app::App,
    clusters::{
        self,
        operations::{self, Filter},
    },
    http::extract::Path,
};

/// A page's worth of operations.
const LISTED: usize = 50;
/// More hosts than this make a page that nobody reads; those that need a look come first.
const HOSTS_SHOWN: usize = 50;

#[derive(Template)]
#[template(path = "console/operations.html")]
struct ListBody {
    rows: Vec<Row>,
    more: bool,
}

struct Row {
    id: String,
    kind: String,
    cluster: String,
    state: &'static str,
    tone: &'static str,
    started: String,
    lasted: String,
    leftovers: usize,
}

/// `GET /console/operations`: the newest, also of clusters that are gone.
pub async fn list(State(app): State<App>, caller: Caller, session: Session) -> PageResult {
    let filter = Filter { cluster: None, before: None, limit: LISTED };
    let (found, more) = operations::list(&app, &caller, &filter).await?;
    let now = Timestamp::now();
    let row = |stored: Stored<OperationRecord>| Row {
        kind: render::capital(stored.value.kind.name()),
        state: stored.value.state.name(),
        tone: render::tone(stored.value.state.name()),
        started: render::time(stored.value.started_at),
        lasted: render::lasted(Some(stored.value.started_at), stored.value.ended_at, now),
        leftovers: stored.value.leftovers.len(),
        cluster: stored.value.cluster,
        id: stored.id,
    };
    let body = ListBody { rows: found.into_iter().map(row).collect(), more };
    let page = Page { title: "Operations", session: Some((&caller, &session)), busy: false };
    page.show(StatusCode::OK, &body)
}

#[derive(Template)]
#[template(path = "console/operation_page.html")]
struct OnePage {
    cluster: String,
    /// The cluster is still there to be looked at.
    is_there: bool,
    operation: Shown,
}

/// `GET /console/operations/{id}`
pub async fn page(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Path(id): Path<String>,
) -> PageResult {
    let body = one(&app, &caller, &id).await?;
    let title = format!("{} {}", body.operation.kind, body.cluster);
    let busy = body.operation.is_running;
    Page { title: &title, session: Some((&caller, &session)), busy }.show(StatusCode::OK, &body)
}

/// `GET /console/operations/{id}/live`
pub async fn live(State(app): State<App>, caller: Caller, Path(id): Path<String>) -> PageResult {
    fragment(&one(&app, &caller, &id).await?)
}

async fn one(app: &App, caller: &Caller, id: &str) -> Result<OnePage, super::PageError> {
    let stored = operations::get(app, caller, id).await?;
    let cluster = stored.value.cluster.clone();
    let is_there = clusters::get(app, caller, &cluster).await.is_ok();
    Ok(OnePage { cluster, is_there, operation: Shown::of(&stored, Timestamp::now()) })
}

/// An operation as a part of a page.
#[derive(Template)]
#[template(path = "console/operation.html")]
pub(super) struct Shown {
    pub id: String,
    pub kind: String,
    pub state: &'static str,
    pub is_running: bool,
    pub percent: u8,
    /// What is being done, in a few words: for those who hear the page.
    pub doing: String,
    tone: &'static str,
    started: String,
    lasted: String,
    error: Option<(String, String)>,
    hint: Option<String>,
    failures: Vec<Failure>,
    phases: Vec<Phase>,
    /// The phases in which a host had something to do.
    columns: Vec<String>,
    hosts: Vec<Host>,
    hidden_hosts: usize,
    /// Some host is at something, or stopped at something.
    has_current: bool,
    leftovers: Vec<Leftover>,
    log: Vec<Line>,
}

struct Phase {
    name: String,
    state: &'static str,
    lasted: String,
}

struct Host {
    name: String,
    doing: String,
    /// One for each column.
    cells: Vec<Cell>,
}

struct Cell {
    state: &'static str,
    /// What stands behind the sign, for those who hover or hear.
    label: String,
}

struct Failure {
    host: String,
    phase: String,
    name: String,
    exit_code: Option<i32>,
    stderr: Option<String>,
    hint: Option<String>,
}

struct Line {
    at: String,
    text: String,
}

impl Shown {
    pub fn of(stored: &Stored<OperationRecord>, now: Timestamp) -> Self {
        let record = &stored.value;
        let columns = columns(record);
        let (hosts, hidden_hosts) = hosts(record, &columns);
        Self {
            id: stored.id.clone(),
            kind: render::capital(record.kind.name()),
            state: record.state.name(),
            is_running: record.state == OperationState::Running,
            percent: record.percent(),
            doing: doing(record),
            tone: render::tone(record.state.name()),
            started: render::time(record.started_at),
            lasted: render::lasted(Some(record.started_at), record.ended_at, now),
            error: record.error.as_deref().map(headline),
            hint: record.hint.clone(),
            failures: failures(record),
            phases: phases(record, now),
            has_current: hosts.iter().any(|host| !host.doing.is_empty()),
            columns,
            hosts,
            hidden_hosts,
            leftovers: record.leftovers.clone(),
            log: record.log.iter().map(line).collect(),
        }
    }
}

fn doing(record: &OperationRecord) -> String {
    let running = record.phases.iter().find(|phase| phase.state == Progress::Running);
    match (record.state, running, &record.error) {
        (OperationState::Running, Some(phase), _) => phase.name.clone(),
        (OperationState::Running, None, _) => "waiting".to_owned(),
        (OperationState::Failed, _, Some(error)) => format!("failed: {}", headline(error).0),
        (state, _, _) => state.name().to_owned(),
    }
}

fn phases(record: &OperationRecord, now: Timestamp) -> Vec<Phase> {
    let is_over = record.state != OperationState::Running;
    let phase = |phase: &wharf_core::operation::Phase| Phase {
        name: phase.name.clone(),
        state: phase.state.name(),
        // A phase that broke off with its operation ended with it.
        lasted: render::lasted(
            phase.started_at,
            phase.ended_at.or(record.ended_at.filter(|_| is_over)),
            now,
        ),
    };
    record.phases.iter().map(phase).collect()
}

fn line(line: &wharf_core::operation::LogLine) -> Line {
    Line { at: render::clock(line.at), text: line.text.clone() }
}

/// What the hosts said, where that is more than the operation's own error says already.
fn failures(record: &OperationRecord) -> Vec<Failure> {
    let said = record.error.as_deref().unwrap_or_default();
    let failed = record.steps.iter().filter(|step| step.state == Progress::Failed);
    let failure = |step: &Step| Failure {
        host: host_name(step).to_owned(),
        phase: step.phase.clone(),
        name: step.name.clone(),
        exit_code: step.exit_code,
        stderr: step.stderr_tail.clone().filter(|text| !said.contains(text.trim())),
        hint: step.hint.clone().filter(|hint| Some(hint) != record.hint.as_ref()),
    };
    let says_more =
        |failure: &Failure| said.is_empty() || failure.stderr.is_some() || failure.hint.is_some();
    failed.map(failure).filter(says_more).take(HOSTS_SHOWN).collect()
}

/// The first line of an error, and the lines of output that follow it.
fn headline(error: &str) -> (String, String) {
    let (first, rest) = error.split_once('\n').unwrap_or((error, ""));
    (first.to_owned(), rest.trim_end().to_owned())
}

/// What the server does itself has no host.
fn host_name(step: &Step) -> &str {
    if step.host.is_empty() { "server" } else { &step.host }
}

fn columns(record: &OperationRecord) -> Vec<String> {
    let used = |phase: &&str| record.steps.iter().any(|step| step.phase == *phase);
    let phases = record.phases.iter().map(|phase| phase.name.as_str());
    phases.filter(used).map(str::to_owned).collect()
}

/// The hosts by phase, and how many more there are.
fn hosts(record: &OperationRecord, columns: &[String]) -> (Vec<Host>, usize) {
    let is_over = record.state != OperationState::Running;
    let mut by_host: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in &record.steps {
        by_host.entry(host_name(step)).or_default().push(step);
    }
    let mut all: Vec<_> = by_host.into_iter().collect();
    if all.len() > HOSTS_SHOWN {
        all.sort_by_key(|(_, steps)| steps.iter().map(|step| urgency(step.state)).min());
    }
    let hidden = all.len().saturating_sub(HOSTS_SHOWN);
    let host = |(name, steps): (&str, Vec<&Step>)| Host {
        name: name.to_owned(),
        doing: current(&steps, is_over),
        cells: columns.iter().map(|phase| cell(phase, &steps, is_over)).collect(),
    };
    (all.into_iter().take(HOSTS_SHOWN).map(host).collect(), hidden)
}

/// What needs a look comes first.
fn urgency(state: Progress) -> u8 {
    match state {
        Progress::Failed => 0,
        Progress::Running => 1,
        Progress::Waiting => 2,
        Progress::Skipped | Progress::Done => 3,
    }
}

/// What a host is doing, or where it failed.
fn current(steps: &[&Step], is_over: bool) -> String {
    let is_shown = |step: &&&Step| match step.state {
        Progress::Failed => true,
        Progress::Running => !is_over,
        Progress::Waiting | Progress::Skipped | Progress::Done => false,
    };
    let step = steps.iter().filter(is_shown).min_by_key(|step| urgency(step.state));
    step.map(|step| step.name.clone()).unwrap_or_default()
}

/// A host's state in a phase: the most urgent of its steps. What was running when the operation
/// ended runs no more.
fn cell(phase: &str, steps: &[&Step], is_over: bool) -> Cell {
    let step = steps.iter().filter(|step| step.phase == phase).min_by_key(|s| urgency(s.state));
    let Some(step) = step else {
        return Cell { state: "none", label: format!("{phase}: nothing to do here") };
    };
    let (state, word) = match step.state {
        Progress::Running if is_over => (Progress::Skipped.name(), "broken off"),
        state => (state.name(), state.name()),
    };
    match step.name == phase {
        true => Cell { state, label: format!("{phase}: {word}") },
        false => Cell { state, label: format!("{phase}: {}, {word}", step.name) },
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::operation::OperationKind;

    use super::*;

    fn step(host: &str, state: Progress) -> Step {
        Step {
            phase: "prepare".to_owned(),
            host: host.to_owned(),
            name: "start containerd".to_owned(),
            state,
            started_at: None,
            ended_at: None,
            exit_code: Some(1),
            stderr_tail: None,
            hint: None,
        }
    }

    fn run(steps: Vec<Step>) -> OperationRecord {
        let mut run = OperationRecord::new("demo", OperationKind::Create, Timestamp::UNIX_EPOCH);
        let (name, state) = ("prepare".to_owned(), Progress::Running);
        run.phases =
            vec![wharf_core::operation::Phase { name, state, started_at: None, ended_at: None }];
        run.steps = steps;
        run
    }

    #[test]
    fn of_many_hosts_those_that_need_a_look_are_shown() {
        let mut steps: Vec<Step> =
            (0..200).map(|i| step(&format!("a{i:03}"), Progress::Done)).collect();
        steps.push(step("z", Progress::Failed));
        let run = run(steps);
        let (hosts, hidden) = hosts(&run, &columns(&run));
        assert_eq!((hosts.len(), hidden), (HOSTS_SHOWN, 201 - HOSTS_SHOWN));
        assert_eq!((hosts[0].name.as_str(), hosts[0].cells[0].state), ("z", "failed"));
    }

    #[test]
    fn nothing_runs_in_an_operation_that_is_over() {
        let mut run = run(vec![step("a", Progress::Running)]);
        assert_eq!(hosts(&run, &columns(&run)).0[0].cells[0].state, "running");
        run.state = OperationState::Failed;
        let (hosts, _) = hosts(&run, &columns(&run));
        assert_eq!((hosts[0].cells[0].state, hosts[0].doing.as_str()), ("skipped", ""));
    }

    #[test]
    fn what_the_error_says_already_is_not_said_twice() {
        let mut failed = step("a", Progress::Failed);
        failed.stderr_tail = Some("no space left\n".to_owned());
        let mut run = run(vec![failed]);
        assert_eq!(failures(&run).len(), 1);
        run.error = Some("host a: start containerd: it failed\nno space left".to_owned());
        assert!(failures(&run).is_empty());
        let (first, rest) = headline(run.error.as_deref().unwrap());
        assert_eq!(
            (first.as_str(), rest.as_str()),
            ("host a: start containerd: it failed", "no space left")
        );
    }
}
