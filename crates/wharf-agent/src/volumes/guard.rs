//! The guard: a process of its own that cuts self-fencing volumes off when the agent's lease ends,
//! also when the agent was killed or hangs.
//!
//! It reads the end of the tenure from the disk and looks every second. Each cut has a thread of its
//! own ([`cuts`]), so that one that hangs keeps neither another nor the guard. What it says about itself
//! is in [`pulse`]: the agent renews its lease only while it hears that.
//!
//! Others take over when the lease has ended. What is not known to be cut off then, because its storage
//! does not answer or its journal cannot be read, is reported; and the machine is forced down, if that is
//! wanted. Nothing is written back before: that is what must not happen.

mod cuts;
mod pulse;

use std::{collections::BTreeSet, fs, io, path::Path, thread, time::Duration};

use tracing::{error, info};
use wharf_core::{
    volume::{
        guard::{BEAT_EVERY, BEAT_STALE, Duty, Watch, decide_duty, is_open},
        journal::Journal,
        lease::SinceBoot,
    },
    words::chain,
};

use super::{
    Places, boot_id,
    journals::Journals,
    since_boot,
    storage::{self, Hints, StorageError},
    tenure::Kept,
    unread::Unread,
    work::use_of,
};
use cuts::{Cut, Cuts};
pub use pulse::ensure;

/// Between two tries to cut what could not be cut.
const RETRY: Duration = Duration::from_millis(500);

/// Runs until the machine stops, or ends at once if another one does its work.
pub fn run(places: &Places) -> io::Result<()> {
    let own = pulse::Own::new(places)?;
    let Some(_lock) = own.begin(places)? else { return Ok(()) };
    let mut guard = Guard::new(places, boot_id()?)?;
    let heart = own.beat(places)?;
    info!("the guard of volumes runs");
    loop {
        let pause = guard.turn();
        if !guard.is_blind {
            heart.turned(since_boot());
        }
        thread::sleep(pause.min(BEAT_EVERY));
    }
}

struct Guard {
    places: Places,
    journals: Journals,
    boot: String,
    cuts: Cuts,
    /// The end of the tenure as last read; `None` when there is none in this boot.
    watch: Option<Watch>,
    /// It cannot be read. The agent does not renew then, because nothing is heard of us.
    is_blind: bool,
    /// What was said of the tenure that is over, to say it once.
    told: BTreeSet<String>,
}

impl Guard {
    fn new(places: &Places, boot: String) -> io::Result<Self> {
        Ok(Self {
            places: places.clone(),
            journals: Journals::open(places)?,
            boot,
            cuts: Cuts::default(),
            watch: None,
            is_blind: false,
            told: BTreeSet::new(),
        })
    }

    /// Does what is due, and says for how long nothing is.
    fn turn(&mut self) -> Duration {
        // Read before the file: what an agent writes there before its old end is seen, and one that writes
        // it later knows that it may be too late.
        let now = since_boot();
        self.look();
        let Some(watch) = self.watch else { return BEAT_EVERY };
        if let Duty::Rest(left) = decide_duty(&watch, now) {
            self.cuts.rest();
            self.told.clear();
            return left;
        }
        let (is_clean, overdue) = self.cut_all();
        // The time has gone on meanwhile.
        if decide_duty(&watch, since_boot()) == Duty::LastCall && !overdue.is_empty() {
            self.escalate(&overdue);
        }
        if is_clean { BEAT_EVERY } else { RETRY }
    }

    /// Reads the end of the tenure. Where it cannot be read the last known one counts; and where none is
    /// known, the agent has renewed for the last time within what it takes a beat to be stale.
    fn look(&mut self) {
        match Kept::load(&self.places.state_dir) {
            Ok(kept) => {
                self.watch = kept.filter(|it| it.boot_id == self.boot).map(|it| it.watch());
                self.is_blind = false;
            }
            Err(error) => {
                self.tell(&format!("the end of the lease cannot be read: {error}"));
                self.is_blind = true;
                let cut_at = since_boot().after(BEAT_STALE);
                self.watch.get_or_insert(Watch { cut_at, ends_at: cut_at.after(BEAT_STALE) });
            }
        }
    }

    /// Cuts everything that promised it. Says whether nothing is left, and what should have been cut off
    /// by now.
    fn cut_all(&mut self) -> (bool, Vec<String>) {
        let names = match self.journals.names() {
            Ok(names) => names,
            Err(error) => {
                let reason = format!("the journals of volumes cannot be read: {error}");
                self.tell(&reason);
                return (false, vec![reason]);
            }
        };
        let mut open: Vec<(String, Cut)> = Vec::new();
        for name in names {
            match self.journals.load(&name) {
                Ok(Some(journal)) if is_open(&journal, &self.boot) => {
                    open.push(cut_known(&self.places, &self.boot, journal));
                }
                Ok(_) => {}
                Err(error) => {
                    let reason = chain(&error);
                    self.tell(&format!("{name}: its journal cannot be read: {reason}"));
                    open.push(cut_unread(&self.places, &self.boot, name));
                }
            }
        }
        self.cuts.round(open)
    }

    /// Others take over from now on. Whoever cannot be sure that nothing is written here ends all of it.
    fn escalate(&mut self, overdue: &[String]) {
        let volumes = overdue.join(", ");
        self.tell(&format!("others may take over what is not known to be cut off: {volumes}"));
        let Some(trigger) = self.places.reboot.clone() else { return };
        self.tell("this machine is forced down");
        if let Err(error) = force_down(&trigger) {
            self.tell(&format!("{}: {error}", trigger.display()));
        }
    }

    fn tell(&mut self, reason: &str) {
        if self.told.insert(reason.to_owned()) {
            error!(reason, "volumes may still be written to");
        }
    }
}

/// The kernel starts the machine anew at once: nothing is written back, and nothing is unmounted.
fn force_down(trigger: &Path) -> io::Result<()> {
    fs::write(trigger, "b")
}

fn cut_known(places: &Places, boot: &str, journal: Journal) -> (String, Cut) {
    let (places, used) = (places.clone(), use_of(&journal, boot, places));
    let name = format!("{}@{}", journal.volume, used.generation);
    let cut = move || {
        let storage =
            storage::open(journal.backend, &journal.parameters, &places, &Hints::default())?;
        match storage.find(&used) {
            Ok(None) => Ok(false),
            Ok(Some(device)) => storage.cut(&used, Some(&device)).map(|()| true),
            // What does not answer may come loose by it, and can at least not be written to anew.
            Err(StorageError::Silent) => storage.cut(&used, None).map(|()| true),
            Err(error) => Err(error),
        }
    };
    (name, Box::new(cut))
}

/// What cannot be read may have promised it.
fn cut_unread(places: &Places, boot: &str, volume: String) -> (String, Cut) {
    let (places, boot_id, name) = (places.clone(), boot.to_owned(), volume.clone());
    let cut = move || Unread { places: &places, boot_id: &boot_id, volume: &volume }.cut();
    (name, Box::new(cut))
}

impl Kept {
    fn watch(&self) -> Watch {
        let at = |millis: u64| SinceBoot(Duration::from_millis(millis));
        Watch { cut_at: at(self.cut_at), ends_at: at(self.ends_at.max(self.cut_at)) }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::journals, *};

    #[test]
    fn journals_that_cannot_be_listed_are_not_taken_for_volumes_that_are_cut_off() {
        let state = tempfile::tempdir().unwrap();
        let kubelet = state.path().join("kubelet");
        let trigger = state.path().join("trigger");
        let places = Places::of_guard(state.path().to_owned(), kubelet, Some(trigger.clone()));
        let mut guard = Guard::new(&places, "boot".to_owned()).unwrap();
        assert_eq!(guard.cut_all(), (true, vec![]));
        let directory = state.path().join(journals::DIRECTORY);
        // Nothing of it is there, which the kernel says.
        fs::write(directory.join("pvc-1.json"), "{").unwrap();
        assert!(guard.cut_all().0);
        assert!(guard.told.iter().any(|told| told.starts_with("pvc-1: ")), "{:?}", guard.told);
        fs::remove_dir_all(&directory).unwrap();
        let (is_clean, overdue) = guard.cut_all();
        assert!(!is_clean && overdue.len() == 1, "{overdue:?}");
        let over = SinceBoot::default();
        let kept = Kept { boot_id: "boot".to_owned(), ..Kept::default() };
        fs::write(state.path().join("tenure.json"), serde_json::to_vec(&kept).unwrap()).unwrap();
        guard.turn();
        assert_eq!(guard.watch, Some(Watch { cut_at: over, ends_at: over }));
        assert_eq!(fs::read_to_string(&trigger).unwrap(), "b");
        fs::create_dir(&directory).unwrap();
        assert_eq!(guard.cut_all(), (true, vec![]));
    }

    #[test]
    fn a_guard_that_cannot_read_the_end_of_the_lease_is_silent_and_cuts_soon() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::of_guard(state.path().to_owned(), state.path().join("kubelet"), None);
        let mut guard = Guard::new(&places, "boot".to_owned()).unwrap();
        guard.turn();
        assert!(!guard.is_blind && guard.watch.is_none());
        fs::write(state.path().join("tenure.json"), "{").unwrap();
        guard.turn();
        let end = guard.watch.unwrap().cut_at;
        assert!(guard.is_blind && end <= since_boot().after(BEAT_STALE));
        guard.turn();
        assert_eq!(guard.watch.unwrap().cut_at, end, "it does not go on and on");
    }
}
