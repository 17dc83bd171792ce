//! Whether a guard can be relied on, and how another takes its place.
//!
//! The guard writes its last turn into a file. The agent looks at that before it renews, and starts
//! another guard when there is none, when it hangs, or when it is of another version or was started with
//! something else. The new one ends the old one itself, so that there is no moment in which an agent that
//! is killed leaves its volumes unguarded. Two of them side by side do no harm.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::{
        fs::{FileExt, MetadataExt},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};
use tracing::{info, warn};
use wharf_core::volume::{
    guard::{BEAT_EVERY, Beat, Pulse, decide_pulse},
    lease::SinceBoot,
};

use super::super::{Places, boot_id, since_boot};
use crate::host::files;

/// A guard that is killed ends at once, unless it hangs in the kernel; then the new one goes on beside it.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// A guard that is started says its first word in milliseconds; the machine may be busy, and an older
/// one may have to be waited for.
const STARTS_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
/// The word of a guard is always as long, so that it is written in its place: on a full disk, too.
const BEAT_BYTES: usize = 512;
/// A guard that says more than a few lines for each volume has nothing more to say.
const MOST_LOG: u64 = 1024 * 1024;

/// The guard that this program is, or would start.
pub struct Own {
    name: String,
    boot_id: String,
}

impl Own {
    pub fn new(places: &Places) -> io::Result<Self> {
        let program = fs::metadata("/proc/self/exe")?;
        let (file, time) = ((program.dev(), program.ino(), program.len()), program.mtime());
        let started = (places.kubelet_root(), &places.reboot);
        let sum = files::sha256(format!("{file:?} {time} {started:?}").as_bytes());
        let sum = sum.get(..16).unwrap_or_default();
        Ok(Self { name: format!("{} {sum}", env!("CARGO_PKG_VERSION")), boot_id: boot_id()? })
    }

    fn pulse(&self, places: &Places) -> Pulse {
        let beat = fs::read(path(places)).ok();
        let beat: Option<Beat> = beat.and_then(|text| serde_json::from_slice(&text).ok());
        decide_pulse(beat.as_ref(), &self.name, &self.boot_id, since_boot())
    }

    /// Takes the place of whoever cannot be relied on. `None` when another one does our work.
    pub fn begin(&self, places: &Places) -> io::Result<Option<Option<File>>> {
        let end = Instant::now() + ENDS_WITHIN;
        loop {
            if let Some(lock) = lock(places)? {
                end_others(&places.state_dir);
                return Ok(Some(Some(lock)));
            }
            let pulse = self.pulse(places);
            if pulse == Pulse::Well {
                return Ok(None);
            }
            end_others(&places.state_dir);
            if Instant::now() >= end {
                warn!(%pulse, "the guard before this one does not end");
                return Ok(Some(None));
            }
            thread::sleep(POLL);
        }
    }

    /// Says every second when the guard had its last turn. A thread of its own waits for the disk, so that
    /// the guard does not; and while it waits, the agent hears nothing and does not renew.
    pub fn beat(self, places: &Places) -> io::Result<Heart> {
        let options = || OpenOptions::new();
        let file = options().create(true).truncate(false).write(true).open(path(places))?;
        let turned = Arc::new(AtomicU64::new(0));
        let seen = turned.clone();
        let beating = move || {
            loop {
                thread::park_timeout(BEAT_EVERY);
                let turned = seen.load(Ordering::SeqCst);
                if turned > 0
                    && let Err(error) = self.write(&file, turned)
                {
                    warn!(%error, "the agent does not hear of the guard");
                }
            }
        };
        let heart = thread::Builder::new().name("heart".to_owned()).spawn(beating)?;
        Ok(Heart { turned, thread: heart.thread().clone() })
    }

    fn write(&self, file: &File, turned: u64) -> io::Result<()> {
        let beat = Beat { guard: self.name.clone(), boot_id: self.boot_id.clone(), turned };
        let mut text = serde_json::to_vec(&beat)?;
        text.resize(BEAT_BYTES, b' ');
        file.write_all_at(&text, 0)
    }
}

pub struct Heart {
    turned: Arc<AtomicU64>,
    thread: Thread,
}

impl Heart {
    pub fn turned(&self, now: SinceBoot) {
        let millis = u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX);
        self.turned.store(millis, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Starts a guard if there is none that can be relied on. When this succeeds there is one.
pub fn ensure(places: &Places) -> io::Result<()> {
    let own = Own::new(places)?;
    let pulse = own.pulse(places);
    if pulse == Pulse::Well {
        return Ok(());
    }
    info!(%pulse, "a guard of volumes is started");
    fs::create_dir_all(&places.state_dir)?;
    start(places)?;
    let end = Instant::now() + STARTS_WITHIN;
    while own.pulse(places) != Pulse::Well {
        if Instant::now() >= end {
            return Err(io::Error::other(format!("it does not start; {pulse}")));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn start(places: &Places) -> io::Result<()> {
    // Its file may have been replaced by that of a later version: it is this very program.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(std::env::current_exe()?)
        .args(["agent", "volume-guard", "--state-dir"])
        .arg(&places.state_dir)
        .arg("--kubelet-root")
        .arg(places.kubelet_root());
    if let Some(trigger) = &places.reboot {
        command.arg("--reboot-through").arg(trigger);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log(places)?)
        // Signals to the agent's group are not for it.
        .process_group(0);
    let mut guard = command.spawn()?;
    // Somebody has to take note of its end.
    thread::Builder::new().name("guard".to_owned()).spawn(move || guard.wait())?;
    Ok(())
}

/// The lock of the guard; `None` while another process has it.
fn lock(places: &Places) -> io::Result<Option<File>> {
    fs::create_dir_all(&places.state_dir)?;
    let path = places.state_dir.join("guard.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends the other guards of this agent. Those of other machines have mounts of their own: a host sees the
/// processes of the machines in its containers, whose directories have the same names.
fn end_others(state_dir: &Path) {
    let mounts = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let ours = mounts(Path::new("/proc/self"));
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw).filter(|pid| *pid != getpid()) else {
            continue;
        };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let at = process.path();
        if is_guard(&fs::read(at.join("cmdline")).unwrap_or_default(), state_dir)
            && ours.is_some()
            && mounts(&at) == ours
        {
            // By the handle, so that nobody else gets what is meant for it; one that ended is well.
            let _ended = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

fn is_guard(line: &[u8], state_dir: &Path) -> bool {
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).skip(1).take(4).collect();
    let state_dir = state_dir.as_os_str().as_encoded_bytes();
    words == [b"agent".as_slice(), b"volume-guard", b"--state-dir", state_dir]
}

fn path(places: &Places) -> std::path::PathBuf {
    places.state_dir.join("guard.json")
}

/// What the guard says goes to a file, because it outlives whoever started it.
fn log(places: &Places) -> io::Result<File> {
    let path = places.state_dir.join("guard.log");
    if path.metadata().is_ok_and(|found| found.len() > MOST_LOG) {
        fs::remove_file(&path)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guard_says_of_itself_is_heard_and_what_it_was_started_with_counts() {
        let state = tempfile::tempdir().unwrap();
        let of = |reboot: Option<&str>| {
            let (state, root) = (state.path().to_owned(), state.path().join("kubelet"));
            Places::of_guard(state, root, reboot.map(Into::into))
        };
        let places = of(None);
        let own = || Own::new(&places).unwrap();
        assert_eq!(own().pulse(&places), Pulse::None);
        let heart = own().beat(&places).unwrap();
        heart.turned(since_boot());
        let end = Instant::now() + Duration::from_secs(20);
        while own().pulse(&places) != Pulse::Well {
            assert!(Instant::now() < end);
            thread::sleep(POLL);
        }
        assert_eq!(Own::new(&of(Some("/trigger"))).unwrap().pulse(&places), Pulse::Other);
        assert!(own().begin(&places).unwrap().is_some(), "it has no lock: nobody is there");
        let _held = lock(&places).unwrap().unwrap();
        assert!(own().begin(&places).unwrap().is_none(), "another one does our work");
    }

    #[test]
    fn only_guards_of_the_same_agent_are_ended() {
        let state = Path::new("/var/lib/x");
        let line = |words: &str| words.replace(' ', "\0").into_bytes();
        assert!(is_guard(&line("/wharf agent volume-guard --state-dir /var/lib/x --more"), state));
        for other in ["/wharf agent volume-guard --state-dir /var/lib/y", "/wharf agent", ""] {
            assert!(!is_guard(&line(other), state), "{other}");
        }
    }
}
