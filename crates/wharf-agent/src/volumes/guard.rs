//! The guard: a process of its own that cuts self-fencing volumes off when the agent's lease ends,
//! also when the agent was killed or hangs.
//!
//! It reads the end of the tenure from the disk and sleeps until then. If the agent has renewed
//! meanwhile, it sleeps on. One runs on a node: whoever holds the lock.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tracing::{error, info, warn};
use wharf_core::{
    volume::journal::{DeviceStage, Journal},
    words::chain,
};

use super::{
    Places, boot_id,
    journals::Journals,
    since_boot,
    storage::{self, Hints},
    tenure::Kept,
    work::use_of,
};

/// Between two looks while there is nothing to wait for.
const IDLE: Duration = Duration::from_secs(2);
/// Between two tries to cut what could not be cut.
const RETRY: Duration = Duration::from_millis(500);

/// Runs until the machine stops, or ends at once if another one runs.
pub fn run(places: &Places) -> io::Result<()> {
    let Some(_lock) = lock(places)? else { return Ok(()) };
    let boot = boot_id()?;
    let journals = Journals::open(places)?;
    info!("the guard of volumes runs");
    let mut unread = BTreeSet::new();
    loop {
        let kept = Kept::load(&places.state_dir).unwrap_or_else(|error| {
            error!(%error, "the end of the lease cannot be read");
            None
        });
        let Some(kept) = kept.filter(|kept| kept.boot_id == boot) else {
            thread::sleep(IDLE);
            continue;
        };
        let end = Duration::from_millis(kept.cut_at);
        let left = end.saturating_sub(since_boot().0);
        if !left.is_zero() {
            thread::sleep(left);
            continue;
        }
        let is_clean = cut_all(places, &journals, &boot, &mut unread);
        thread::sleep(if is_clean { IDLE } else { RETRY });
    }
}

/// Cuts everything that promised it, side by side. True when nothing is left, as far as all journals
/// could be read; `unread` keeps why one could not, so that it is said once.
fn cut_all(
    places: &Places,
    journals: &Journals,
    boot: &str,
    unread: &mut BTreeSet<String>,
) -> bool {
    let (all, reasons) = load_all(journals);
    for reason in reasons.difference(unread) {
        error!(reason, "a volume may still be written to: its journal cannot be read");
    }
    let are_known = reasons.is_empty();
    *unread = reasons;
    let open: Vec<Journal> = all.into_iter().filter(|journal| is_open(journal, boot)).collect();
    let are_cut = thread::scope(|scope| {
        let cuts: Vec<_> =
            open.iter().map(|journal| scope.spawn(move || cut(places, journal, boot))).collect();
        cuts.into_iter().all(|cut| cut.join().unwrap_or(false))
    });
    are_cut && are_known
}

/// The journals that can be read, and why others cannot.
fn load_all(journals: &Journals) -> (Vec<Journal>, BTreeSet<String>) {
    let names = match journals.names() {
        Ok(names) => names,
        Err(error) => return (Vec::new(), BTreeSet::from([chain(&error)])),
    };
    let (mut all, mut reasons) = (Vec::new(), BTreeSet::new());
    for name in names {
        match journals.load(&name) {
            Ok(journal) => all.extend(journal),
            Err(error) => {
                reasons.insert(format!("{name}: {}", chain(&error)));
            }
        }
    }
    (all, reasons)
}

fn cut(places: &Places, journal: &Journal, boot: &str) -> bool {
    let used = use_of(journal, boot, places);
    let done = storage::open(journal.backend, &journal.parameters, places, &Hints::default())
        .and_then(|storage| match storage.find(&used)? {
            Some(device) => storage.cut(&used, Some(&device)).map(|()| true),
            None => Ok(false),
        });
    match done {
        Ok(true) => warn!(volume = journal.volume, "cut off: the agent's lease has ended"),
        Ok(false) => {}
        Err(error) => {
            error!(volume = journal.volume, reason = chain(&error), "could not be cut off");
            return false;
        }
    }
    true
}

/// Whether a volume promised to be cut off, and may still be written to.
pub fn is_open(journal: &Journal, boot: &str) -> bool {
    let mut grants = journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
    grants.any(|entry| entry.self_fence)
        && journal.boot_id == boot
        && journal.device != DeviceStage::Absent
        && !journal.cut
}

/// Starts the guard if none runs.
pub fn ensure(places: &Places) -> io::Result<()> {
    let Some(free) = lock(places)? else { return Ok(()) };
    drop(free);
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["agent", "volume-guard", "--state-dir"])
        .arg(&places.state_dir)
        .arg("--kubelet-root")
        .arg(places.kubelet_root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log(places)?)
        // Signals to the agent's group are not for it.
        .process_group(0);
    command.spawn()?;
    // It takes the lock in a moment; until then nothing is held that it had to cut.
    for _ in 0..200 {
        if lock(places)?.is_none() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("the guard of volumes does not start"))
}

/// The lock of the guard; `None` while one runs.
fn lock(places: &Places) -> io::Result<Option<File>> {
    std::fs::create_dir_all(&places.state_dir)?;
    let path = places.state_dir.join("guard.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the guard says goes to a file, because it outlives whoever started it.
fn log(places: &Places) -> io::Result<File> {
    let path = places.state_dir.join("guard.log");
    if path.metadata().is_ok_and(|found| found.len() > MOST_LOG) {
        std::fs::remove_file(&path)?;
    }
    append(&path)
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// A guard that says more than a line for each volume it cuts has nothing more to say.
const MOST_LOG: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::{super::journals, *};

    #[test]
    fn a_journal_that_cannot_be_read_is_not_taken_for_a_volume_that_is_cut_off() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::of_guard(state.path().to_owned(), state.path().join("kubelet"));
        let journals = Journals::open(&places).unwrap();
        let mut unread = BTreeSet::new();
        assert!(cut_all(&places, &journals, "boot", &mut unread));
        let directory = state.path().join(journals::DIRECTORY);
        std::fs::write(directory.join("pvc-1.json"), "{").unwrap();
        assert!(!cut_all(&places, &journals, "boot", &mut unread));
        assert!(unread.iter().all(|reason| reason.starts_with("pvc-1: ")), "{unread:?}");
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(!cut_all(&places, &journals, "boot", &mut unread), "nor are all of them");
        std::fs::create_dir(&directory).unwrap();
        assert!(cut_all(&places, &journals, "boot", &mut unread) && unread.is_empty());
    }
}
