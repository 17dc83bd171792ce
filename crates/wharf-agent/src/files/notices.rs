//! Learning of changes: the kernel's notices, and a slow look at everything beside them.
//!
//! Where a folder does not exist yet, the nearest one above it is watched. A notice says only that
//! it is worth looking; what is true is found by looking.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};
use tokio::{
    net::unix::pipe,
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::folder::Followed;
use crate::{aside::aside, health::Reporter, tasks::panic_text};

/// Finds what was never told: notices can be lost, and the kernel has limits.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The same where the kernel tells nothing.
const LOOK_OFTEN: Duration = Duration::from_secs(2);
/// A file that is written all the time does not keep the machine busy.
const PAUSE: Duration = Duration::from_millis(20);

/// Some thousand small files are read by then, unless the disk hangs.
const SLOW: Duration = Duration::from_secs(30);

const BROKEN: &str = "looking at";
const HANGS: &str = "the disk hangs; what was known before still holds";

/// Follows the folders that are asked for below `root`, until `stop` or until nobody can ask any more.
pub async fn follow(
    root: PathBuf,
    mut asked: mpsc::UnboundedReceiver<Box<dyn Followed>>,
    reporter: Reporter,
    stop: CancellationToken,
) {
    let mut watcher = Watcher::open(&root, reporter.clone());
    let slow = format!("the files in {}", root.display());
    let mut places: Vec<Place> = Vec::new();
    let mut full = Instant::now();
    loop {
        let mut news = News::default();
        tokio::select! {
            () = stop.cancelled() => return,
            folder = asked.recv() => match folder {
                Some(folder) => places.push(Place { folder, watch: None, looked: false }),
                None => return,
            },
            told = watcher.next() => news = told,
            () = sleep_until(full) => news.all = true,
        }
        if news.all {
            full = Instant::now() + watcher.look_every();
        }
        aside(|| watcher.ensure(&mut places));
        let told = reporter.clone();
        let mut looking = tokio::task::spawn_blocking(move || look(places, &news, &told));
        let looked = loop {
            match timeout(SLOW, &mut looking).await {
                Ok(looked) => break looked,
                Err(_) => reporter.fault(&slow, HANGS),
            }
        };
        // Else the agent stops.
        let Ok(looked) = looked else { return };
        places = looked;
        reporter.clear(&slow);
        reporter.ok();
        sleep(PAUSE).await;
    }
}

/// A folder, and what is watched for it.
struct Place {
    folder: Box<dyn Followed>,
    watch: Option<i32>,
    looked: bool,
}

/// Where it is worth looking.
#[derive(Debug, Default)]
struct News {
    all: bool,
    /// Names of files, by the watch that told of them.
    touched: HashMap<i32, HashSet<OsString>>,
}

/// Reading may wait for a disk, so it is done aside. A folder at which a look breaks by a defect is
/// looked at again with all others.
fn look(mut places: Vec<Place>, news: &News, reporter: &Reporter) -> Vec<Place> {
    let nothing = HashSet::new();
    for place in &mut places {
        let touched = place.watch.and_then(|watch| news.touched.get(&watch));
        if !news.all && touched.is_none() && place.looked {
            continue;
        }
        place.looked = true;
        let subject = format!("{BROKEN} {}", place.folder.path().display());
        // What it had learned before it broke is true, and the rest is learned by the next look.
        let look = AssertUnwindSafe(|| place.folder.look(touched.unwrap_or(&nothing)));
        match catch_unwind(look) {
            Ok(()) => reporter.clear(&subject),
            Err(panic) => reporter.fault(&subject, &panic_text(panic.as_ref())),
        }
    }
    places
}

struct Watcher {
    /// It is no pipe, but like one it is read when it is ready; that is all this type does.
    inotify: Option<pipe::Receiver>,
    watched: HashSet<i32>,
    subject: String,
    reporter: Reporter,
}

impl Watcher {
    fn open(root: &Path, reporter: Reporter) -> Self {
        let subject = format!("notices of changes in {}", root.display());
        let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .and_then(pipe::Receiver::from_owned_fd_unchecked);
        if let Err(error) = &opened {
            reporter.fault(&subject, &format!("the kernel gives none: {error}; files are polled"));
        }
        Self { inotify: opened.ok(), watched: HashSet::new(), subject, reporter }
    }

    fn look_every(&self) -> Duration {
        if self.inotify.is_some() { LOOK_EVERY } else { LOOK_OFTEN }
    }

    /// Waits for notices.
    async fn next(&mut self) -> News {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        match inotify.readable().await {
            Ok(()) => {
                let news = read(inotify.as_fd());
                // It finds nothing more, and is ready no longer.
                let _ = inotify.try_read(&mut [0]);
                news
            }
            Err(error) => {
                let fault = format!("they ended: {error}; files are polled");
                self.reporter.fault(&self.subject, &fault);
                self.inotify = None;
                News { all: true, ..News::default() }
            }
        }
    }

    /// Watches each folder, or the nearest one above it; where that is another than before, it is
    /// worth looking.
    fn ensure(&mut self, places: &mut [Place]) {
        let Some(inotify) = &self.inotify else { return };
        let mut fault = None;
        for place in places.iter_mut() {
            let watch = nearest(inotify.as_fd(), place.folder.path());
            let watch = watch.inspect_err(|error| fault = Some(*error)).ok();
            place.looked &= place.watch == watch;
            place.watch = watch;
        }
        let needed: HashSet<i32> = places.iter().filter_map(|place| place.watch).collect();
        for watch in self.watched.difference(&needed) {
            // The kernel has forgotten those whose folder is gone.
            let _ = inotify::remove_watch(inotify.as_fd(), *watch);
        }
        self.watched = needed;
        match fault {
            Some(error) => {
                let fault = format!("a folder cannot be watched: {error}");
                self.reporter.fault(&self.subject, &fault);
            }
            None => self.reporter.clear(&self.subject),
        }
    }
}

/// Watches the folder at this path, or the nearest one above it that exists.
fn nearest(inotify: BorrowedFd<'_>, path: &Path) -> Result<i32, Errno> {
    let flags = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    // A folder may come while the one above it is put under watch: then it is tried once more.
    for _ in path.ancestors() {
        let mut missing = None;
        for folder in path.ancestors() {
            match inotify::add_watch(inotify, folder, flags) {
                Ok(watch) if missing.is_none_or(|missing: &Path| !missing.is_dir()) => {
                    return Ok(watch);
                }
                Ok(_) => break,
                Err(Errno::NOENT | Errno::NOTDIR) => missing = Some(folder),
                Err(error) => return Err(error),
            }
        }
    }
    Err(Errno::NOENT)
}

/// All notices that wait. Too many make the kernel lose some: then everything is looked at.
fn read(inotify: BorrowedFd<'_>) -> News {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut news = News::default();
    loop {
        match reader.next() {
            Ok(event) => {
                news.all |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                let touched = news.touched.entry(event.wd()).or_default();
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                touched.extend(name.map(OsStr::to_owned));
            }
            Err(Errno::INTR) => {}
            Err(_) => return news,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::health::Health;

    /// Breaks at its first look, and counts them.
    struct Shaky {
        path: PathBuf,
        looks: Arc<AtomicUsize>,
    }

    impl Followed for Shaky {
        fn path(&self) -> &Path {
            &self.path
        }

        fn look(&mut self, _: &HashSet<OsString>) {
            assert!(self.looks.fetch_add(1, Ordering::SeqCst) > 0, "a defect");
        }
    }

    #[tokio::test]
    async fn a_look_that_breaks_by_a_defect_is_told_and_the_folder_is_followed_on() {
        let dir = tempfile::tempdir().unwrap();
        let health = Health::new("n1");
        let (ask, asked) = mpsc::unbounded_channel::<Box<dyn Followed>>();
        let stop = CancellationToken::new();
        let root = dir.path().to_owned();
        let following = tokio::spawn(follow(root, asked, health.task("files"), stop.clone()));
        let looks = Arc::new(AtomicUsize::new(0));
        ask.send(Box::new(Shaky { path: dir.path().to_owned(), looks: looks.clone() })).unwrap();
        let fault = || {
            let tasks = health.snapshot().tasks;
            tasks.first().and_then(|task| task.faults.first().map(|fault| fault.reason.clone()))
        };
        let wait = async |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let minute = Duration::from_secs(60);
        timeout(minute, wait(&|| fault().is_some())).await.unwrap();
        assert_eq!(fault().as_deref(), Some("it broke by a defect: a defect"));
        std::fs::write(dir.path().join("new.json"), "{}").unwrap();
        let again = || looks.load(Ordering::SeqCst) > 1 && fault().is_none();
        timeout(minute, wait(&again)).await.unwrap();
        stop.cancel();
        following.await.unwrap();
    }
}
