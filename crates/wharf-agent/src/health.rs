//! How the agent is: each task says what keeps it from its work, and `wharf agent status` shows it.
//!
//! It is published as `wharf/AgentHealth/global.json` whenever it changes. The command asks the
//! agent itself, through a socket beside that file ([`server`]): that still works when nothing more
//! can be written, and tells an agent that is gone from one that is well.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use tokio::sync::watch;
use wharf_api::node_files::{AgentCondition, AgentFault, AgentHealth, TaskHealth};

mod server;

pub use server::{AskError, HealthError, ask, serve};

/// The folder of what the agent publishes in its own name.
pub const AGENT: &str = "wharf";
/// A person reads them; who has more learns that there are more.
const MOST_FAULTS: usize = 32;
/// A path or an address and a sentence: what is longer was made by somebody else.
const LONGEST_SUBJECT: usize = 300;
const LONGEST_REASON: usize = 500;
/// Under this subject stands what befell the task itself.
const ITSELF: &str = "";

/// All clones are the same health.
#[derive(Debug, Clone)]
pub struct Health {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    version: String,
    node_name: String,
    started: Timestamp,
    tasks: Mutex<BTreeMap<&'static str, Task>>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Task {
    working: bool,
    restarts: u32,
    faults: BTreeMap<String, (String, Timestamp)>,
    conditions: BTreeMap<&'static str, (String, Timestamp)>,
    tallies: BTreeMap<&'static str, Tally>,
    more: bool,
}

/// How often something happened, and the last of it.
#[derive(Debug)]
struct Tally {
    count: u64,
    last: String,
    at: Timestamp,
}

impl Health {
    pub fn new(node_name: &str) -> Self {
        let inner = Inner {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: node_name.to_owned(),
            started: Timestamp::now(),
            tasks: Mutex::default(),
            changes: watch::Sender::new(()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The voice of one task. From now on it is listed.
    pub fn task(&self, name: &'static str) -> Reporter {
        self.change(|tasks| {
            let known = tasks.contains_key(name);
            tasks.entry(name).or_default();
            !known
        });
        Reporter { health: self.clone(), name }
    }

    pub fn snapshot(&self) -> AgentHealth {
        let tasks = self.tasks().iter().map(|(name, task)| task.show(name)).collect::<Vec<_>>();
        AgentHealth {
            version: self.inner.version.clone(),
            node_name: self.inner.node_name.clone(),
            started: self.inner.started.into(),
            tasks: tasks.into(),
        }
    }

    /// Tells of each change, and may leave out those that came quickly after another.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changes.subscribe()
    }

    fn tasks(&self) -> MutexGuard<'_, BTreeMap<&'static str, Task>> {
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only what `act` says it changed is told on.
    fn change(&self, act: impl FnOnce(&mut BTreeMap<&'static str, Task>) -> bool) {
        let changed = act(&mut self.tasks());
        if changed {
            self.inner.changes.send_replace(());
        }
    }
}

/// Speaks for one task.
#[derive(Debug, Clone)]
pub struct Reporter {
    health: Health,
    name: &'static str,
}

impl Reporter {
    /// The task does its work. What it said of subjects stays until each is cleared.
    pub fn ok(&self) {
        self.change(|task| {
            let news = !task.working || task.faults.contains_key(ITSELF);
            task.working = true;
            task.faults.remove(ITSELF);
            news
        });
    }

    /// Something does not work. Who goes on having the fault may say so again at any time: only the
    /// first time, and another reason, are news.
    pub fn fault(&self, subject: &str, reason: &str) {
        let (subject, reason) = (cut(subject, LONGEST_SUBJECT), cut(reason, LONGEST_REASON));
        let news = self.change(|task| task.add(&subject, &reason));
        if news {
            tracing::warn!(task = self.name, subject, reason, "something does not work");
        }
    }

    /// Something worth knowing that is no fault, with the time at which it came about.
    pub fn condition(&self, name: &'static str, text: &str) {
        let text = cut(text, LONGEST_REASON);
        self.change(|task| {
            task.conditions.insert(name, (text, Timestamp::now()));
            true
        });
    }

    /// Counts what somebody else did wrong and what keeps nobody from anything; of each kind the last
    /// is kept. Only the first is news: whoever does it all the time does not keep the log and the disk
    /// busy. Who asks for the health gets the latest.
    pub fn tally(&self, name: &'static str, last: &str) {
        let last = cut(last, LONGEST_REASON);
        let news = self.change(|task| task.count(name, &last));
        if news {
            tracing::info!(task = self.name, name, last, "from now on this is counted");
        }
    }

    pub fn clear(&self, subject: &str) {
        let subject = cut(subject, LONGEST_SUBJECT);
        let news = self.change(|task| {
            let known = task.faults.remove(&subject).is_some();
            task.more &= !known;
            known
        });
        if news {
            tracing::info!(task = self.name, subject, "it works again");
        }
    }

    /// The task itself failed, and is begun anew: what it said of subjects is forgotten with it.
    pub(crate) fn failed(&self, reason: &str) {
        let reason = cut(reason, LONGEST_REASON);
        self.change(|task| {
            let (restarts, tallies) =
                (task.restarts.saturating_add(1), std::mem::take(&mut task.tallies));
            *task = Task { restarts, tallies, ..Task::default() };
            task.add(ITSELF, &reason)
        });
        tracing::error!(task = self.name, reason, "a task failed and is begun anew");
    }

    fn change(&self, act: impl FnOnce(&mut Task) -> bool) -> bool {
        let mut news = false;
        self.health.change(|tasks| {
            news = act(tasks.entry(self.name).or_default());
            news
        });
        news
    }
}

impl Task {
    fn add(&mut self, subject: &str, reason: &str) -> bool {
        if let Some((known, _)) = self.faults.get_mut(subject) {
            let news = known != reason;
            reason.clone_into(known);
            return news;
        }
        if self.faults.len() >= MOST_FAULTS {
            return !std::mem::replace(&mut self.more, true);
        }
        self.faults.insert(subject.to_owned(), (reason.to_owned(), Timestamp::now()));
        true
    }

    fn count(&mut self, name: &'static str, last: &str) -> bool {
        let before = self.tallies.get(name).map_or(0, |tally| tally.count);
        let (count, last, at) = (before.saturating_add(1), last.to_owned(), Timestamp::now());
        self.tallies.insert(name, Tally { count, last, at });
        before == 0
    }

    fn show(&self, name: &str) -> TaskHealth {
        let faults = self.faults.iter().map(|(subject, (reason, since))| AgentFault {
            subject: subject.clone(),
            reason: reason.clone(),
            since: (*since).into(),
        });
        let conditions = self.conditions.iter().map(|(name, (text, since))| AgentCondition {
            name: (*name).to_owned(),
            text: text.clone(),
            since: (*since).into(),
        });
        let tallies = self.tallies.iter().map(|(name, tally)| AgentCondition {
            name: (*name).to_owned(),
            text: format!("{} since the agent began; the last: {}", tally.count, tally.last),
            since: tally.at.into(),
        });
        TaskHealth {
            name: name.to_owned(),
            conditions: conditions.chain(tallies).collect::<Vec<_>>().into(),
            working: self.working,
            restarts: self.restarts,
            faults: faults.collect::<Vec<_>>().into(),
            more: self.more,
        }
    }
}

/// At most so many characters, and none that would disturb a terminal.
fn cut(text: &str, most: usize) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    if text.chars().nth(most).is_none() {
        return shown.collect();
    }
    shown.take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(health: &Health) -> Vec<(String, String)> {
        let tasks = health.snapshot().tasks;
        let faults = tasks.iter().flat_map(|task| task.faults.iter());
        faults.map(|fault| (fault.subject.clone(), fault.reason.clone())).collect()
    }

    #[test]
    fn only_news_are_told() {
        let health = Health::new("n1");
        let reporter = health.task("gate");
        let mut changes = health.changes();
        let mut told = || {
            let changed = changes.has_changed().unwrap();
            changes.mark_unchanged();
            changed
        };
        reporter.ok();
        assert!(told());
        reporter.ok();
        assert!(!told());
        reporter.fault("a", "is away");
        assert!(told());
        reporter.fault("a", "is away");
        assert!(!told());
        reporter.fault("a", "is slow");
        assert!(told());
        assert_eq!(faults(&health), [("a".to_owned(), "is slow".to_owned())]);
        assert!(!health.snapshot().is_healthy());
        reporter.clear("b");
        assert!(!told());
        reporter.clear("a");
        assert!(told());
        assert!(health.snapshot().is_healthy());
    }

    #[test]
    fn what_is_counted_is_no_fault_and_shows_the_last() {
        let health = Health::new("n1");
        let reporter = health.task("server");
        let mut changes = health.changes();
        let mut told = || {
            let changed = changes.has_changed().unwrap();
            changes.mark_unchanged();
            changed
        };
        let shown = || {
            let tasks = health.snapshot().tasks;
            tasks[0].conditions.iter().map(|note| note.text.clone()).collect::<Vec<_>>()
        };
        reporter.tally("refused", "a");
        assert!(told());
        assert_eq!(shown(), ["1 since the agent began; the last: a"]);
        for _ in 0..1000 {
            reporter.tally("refused", "b");
        }
        assert!(!told());
        assert_eq!(shown(), ["1001 since the agent began; the last: b"]);
        assert!(health.snapshot().is_healthy());
    }

    #[test]
    fn a_task_that_failed_is_a_fault_until_it_works_again() {
        let health = Health::new("n1");
        let reporter = health.task("gate");
        reporter.fault("a", "is away");
        reporter.failed("it broke");
        assert_eq!(faults(&health), [(String::new(), "it broke".to_owned())]);
        reporter.ok();
        assert!(health.snapshot().is_healthy());
        assert_eq!(health.snapshot().tasks[0].restarts, 1);
    }

    #[test]
    fn number_and_size_are_bounded() {
        let health = Health::new("n1");
        let reporter = health.task("files");
        for number in 0..100 {
            reporter.fault(&format!("{number}{}", "s".repeat(1000)), &"\u{1b}é".repeat(1000));
        }
        let snapshot = health.snapshot();
        let task = &snapshot.tasks[0];
        assert_eq!((task.faults.len(), task.more), (MOST_FAULTS, true));
        assert_eq!(task.faults[0].subject.chars().count(), LONGEST_SUBJECT);
        assert_eq!(task.faults[0].reason.chars().count(), LONGEST_REASON);
        assert!(!task.faults[0].reason.contains('\u{1b}'));
        reporter.clear(&format!("{}{}", 0, "s".repeat(1000)));
        assert!(!health.snapshot().tasks[0].more, "who is left says so again");
    }
}
