//! Cuts side by side, each in a thread of its own: what hangs in the kernel keeps nobody else.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracing::{error, warn};
use wharf_core::words::chain;

use super::super::storage::StorageError;

/// A round waits so long for its cuts: most take milliseconds.
const QUICK: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(10);
/// A cut that was begun gets so long, also by a guard that was started when the lease had long ended.
const GRACE: Duration = Duration::from_secs(2);

/// Says whether there was something to cut.
pub type Cut = Box<dyn FnOnce() -> Result<bool, StorageError> + Send>;

/// The cuts of a tenure that is over, by volume and grant. One at a time is under way for each.
#[derive(Default)]
pub struct Cuts(BTreeMap<String, Try>);

struct Try {
    begun: Instant,
    running: Option<JoinHandle<Result<bool, StorageError>>>,
    /// It is known that nothing can be written any more.
    is_cut: bool,
    /// Something was there, and was cut off. What fails later makes it no less so: its storage may have gone
    /// away meanwhile. Where nothing was there, an agent that was stopped may have gone on since.
    was_there: bool,
    /// What was said last, to say it once.
    told: String,
}

impl Cuts {
    /// Begins a cut of each that is open. Says whether all are cut off, and which of the others should be.
    pub fn round(&mut self, open: Vec<(String, Cut)>) -> (bool, Vec<String>) {
        let names: BTreeSet<String> = open.iter().map(|(name, _)| name.clone()).collect();
        self.0.retain(|name, one| names.contains(name) || one.is_running());
        for (name, cut) in open {
            self.0.entry(name.clone()).or_insert_with(Try::new).begin(&name, cut);
        }
        let end = Instant::now() + QUICK;
        while self.0.values().any(Try::is_running) && Instant::now() < end {
            thread::sleep(POLL);
        }
        for (name, one) in &mut self.0 {
            one.reap(name);
        }
        let mut left = self.0.iter().filter(|(name, one)| !one.is_cut && names.contains(*name));
        let is_clean = left.clone().next().is_none();
        let overdue = left.by_ref().filter(|(_, one)| one.begun.elapsed() >= GRACE);
        (is_clean, overdue.map(|(name, _)| name.clone()).collect())
    }

    /// A new tenure has begun. What hangs is remembered: it is not begun a second time.
    pub fn rest(&mut self) {
        self.0.retain(|_, one| one.is_running());
    }
}

impl Try {
    fn new() -> Self {
        let (is_cut, was_there) = (false, false);
        Self { begun: Instant::now(), running: None, is_cut, was_there, told: String::new() }
    }

    fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.is_finished())
    }

    fn begin(&mut self, name: &str, cut: Cut) {
        self.reap(name);
        if self.running.is_some() {
            return;
        }
        let begun = thread::Builder::new().name("cut".to_owned()).spawn(cut);
        match begun {
            Ok(running) => self.running = Some(running),
            Err(error) => self.tell(name, &error.to_string()),
        }
    }

    /// Takes what a cut has come to.
    fn reap(&mut self, name: &str) {
        let Some(running) = self.running.take_if(|running| running.is_finished()) else {
            if self.running.is_some() && self.begun.elapsed() >= GRACE {
                self.tell(name, "it hangs");
            }
            return;
        };
        match running.join() {
            Ok(Ok(was_there)) => {
                if was_there && !self.was_there {
                    warn!(volume = name, "cut off: the agent's lease has ended");
                }
                self.was_there |= was_there;
                self.is_cut = true;
            }
            Ok(Err(error)) => self.failed(name, &chain(&error)),
            Err(_) => self.failed(name, "it panicked"),
        }
    }

    fn failed(&mut self, name: &str, reason: &str) {
        self.is_cut = self.was_there;
        self.tell(name, reason);
    }

    fn tell(&mut self, name: &str, reason: &str) {
        if self.told != reason {
            reason.clone_into(&mut self.told);
            error!(volume = name, reason, "could not be cut off");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn cut(
        name: &str,
        act: impl FnOnce() -> Result<bool, StorageError> + Send + 'static,
    ) -> (String, Cut) {
        (name.to_owned(), Box::new(act))
    }

    /// Waits for what was begun: a busy machine takes longer than a round does.
    fn wait(cuts: &mut Cuts, name: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while cuts.0[name].is_running() {
            assert!(Instant::now() < end, "{name}");
            thread::sleep(POLL);
        }
        cuts.0.get_mut(name).unwrap().reap(name);
    }

    #[test]
    fn a_cut_that_hangs_delays_no_other_and_is_not_begun_twice() {
        let mut cuts = Cuts::default();
        let (free, hang) = mpsc::channel::<()>();
        let hanging = cut("a", move || {
            let _freed = hang.recv();
            Ok(true)
        });
        let (is_clean, overdue) = cuts.round(vec![hanging, cut("b", || Ok(true))]);
        assert!(!is_clean);
        wait(&mut cuts, "b");
        assert!(cuts.0["b"].is_cut && !cuts.0["a"].is_cut);
        assert!(overdue.is_empty(), "it has just been begun");
        let twice = || cut("a", || panic!("it is begun twice"));
        cuts.0.get_mut("a").unwrap().begun -= GRACE;
        // What is cut off stays so, whatever becomes of its storage.
        let silent = || cut("b", || Err(StorageError::Silent));
        assert_eq!(cuts.round(vec![twice(), silent()]), (false, vec!["a".to_owned()]));
        cuts.rest();
        drop(free);
        let end = Instant::now() + Duration::from_secs(20);
        while !cuts.round(vec![cut("a", || Ok(true))]).0 {
            assert!(Instant::now() < end);
        }
    }

    #[test]
    fn what_cannot_be_verified_is_not_cut_off() {
        let mut cuts = Cuts::default();
        assert!(!cuts.round(vec![cut("a", || Err(StorageError::Silent))]).0);
        wait(&mut cuts, "a");
        assert!(!cuts.round(vec![cut("a", || panic!("on purpose"))]).0);
        wait(&mut cuts, "a");
        assert!(!cuts.0["a"].is_cut);
        cuts.round(vec![cut("a", || Ok(false))]);
        wait(&mut cuts, "a");
        assert_eq!(cuts.round(vec![cut("a", || Ok(false))]), (true, vec![]));
        assert_eq!(cuts.round(vec![]), (true, vec![]));
    }

    /// An agent that was stopped goes on with a mount after the guard found nothing.
    #[test]
    fn what_comes_after_nothing_was_there_is_not_cut_off_by_that() {
        let mut cuts = Cuts::default();
        cuts.round(vec![cut("a", || Ok(false))]);
        wait(&mut cuts, "a");
        assert!(cuts.0["a"].is_cut);
        cuts.round(vec![cut("a", || Err(StorageError::Silent))]);
        wait(&mut cuts, "a");
        assert!(!cuts.0["a"].is_cut);
        cuts.round(vec![cut("a", || Ok(true))]);
        wait(&mut cuts, "a");
        cuts.round(vec![cut("a", || Err(StorageError::Silent))]);
        wait(&mut cuts, "a");
        assert!(cuts.0["a"].is_cut, "what is cut off stays so");
    }
}
