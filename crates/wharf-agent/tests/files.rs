//! The node's files: written so that nobody sees half, followed by the kernel's notices, and whatever
//! somebody else writes there harms nobody. The test of a full disk needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};
use wharf_agent::{
    config::Config,
    files::{Files, Subscription},
    health::{self, Health},
    tasks::{Context, Tasks},
};
use wharf_api::node_files::{
    AgentHealth, AppInstanceConfig, EdgeNodeClusterConfig, EdgeNodeClusterStatus, EdgeNodeInfo,
    GLOBAL, MAX_BYTES, NodeDrainStatus,
};
use wharf_testbed::{disk::SmallDisk, wait_for};

/// The slow look comes every 30 seconds: what is seen sooner, the kernel has told.
const TOLD: Duration = Duration::from_secs(15);
/// With the slow look and a busy machine.
const LOOKED: Duration = Duration::from_secs(90);

struct World {
    dir: TempDir,
    files: Files,
    health: Health,
    _stop: DropGuard,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let health = Health::new("n1");
        let stop = CancellationToken::new();
        let persist = dir.path().join("persist");
        let files = Files::open(&dir.path().join("run"), &persist, &health, stop.clone());
        Self { dir, files, health, _stop: stop.drop_guard() }
    }

    fn folder(&self, agent: &str, kind: &str) -> PathBuf {
        self.dir.path().join("run").join(agent).join(kind)
    }

    fn put(&self, agent: &str, kind: &str, name: &str, content: &[u8]) -> PathBuf {
        let folder = self.folder(agent, kind);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn app(&self, key: &str, name: &str) -> PathBuf {
        let content = json!({ "DisplayName": name }).to_string();
        self.put("zedagent", "AppInstanceConfig", &format!("{key}.json"), content.as_bytes())
    }

    fn fault(&self, subject: &Path) -> Option<String> {
        fault_of(&self.health.snapshot(), &subject.display().to_string())
    }
}

fn fault_of(health: &AgentHealth, subject: &str) -> Option<String> {
    let mut faults = health.tasks.iter().flat_map(|task| task.faults.iter());
    faults.find(|fault| fault.subject == subject).map(|fault| fault.reason.clone())
}

fn apps(subscription: &Subscription<AppInstanceConfig>) -> Option<Vec<(String, String)>> {
    let values = subscription.current()?;
    Some(values.iter().map(|(key, app)| (key.clone(), app.display_name.clone())).collect())
}

fn expect_apps(
    subscription: &Subscription<AppInstanceConfig>,
    within: Duration,
    expected: &[(&str, &str)],
) {
    let own = |(key, name): &(&str, &str)| ((*key).to_owned(), (*name).to_owned());
    let expected: Vec<_> = expected.iter().map(own).collect();
    let mut last = None;
    let came = wait_for("the applications", within, || {
        last = apps(subscription);
        Ok((last.as_ref() == Some(&expected)).then_some(()))
    });
    assert!(came.is_ok(), "{last:?} instead of {expected:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_is_written_once_and_read_back() {
    let world = World::new();
    let status = NodeDrainStatus { status: 5, requested_by: 2, ..NodeDrainStatus::default() };
    assert!(world.files.publish("zedkube", GLOBAL, &status).unwrap());
    let path = world.folder("zedkube", "NodeDrainStatus").join("global.json");
    let inode = fs::metadata(&path).unwrap().ino();
    assert!(!world.files.publish("zedkube", GLOBAL, &status).unwrap(), "it says the same");
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(world.files.read("zedkube", GLOBAL).unwrap(), Some(status));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside");

    assert!(world.files.unpublish::<NodeDrainStatus>("zedkube", GLOBAL).unwrap());
    assert!(!world.files.unpublish::<NodeDrainStatus>("zedkube", GLOBAL).unwrap());
    assert_eq!(world.files.read::<NodeDrainStatus>("zedkube", GLOBAL).unwrap(), None);
    for key in ["", "a/b", "../x", ".x", &"k".repeat(300)] {
        assert!(world.files.publish("zedkube", key, &NodeDrainStatus::default()).is_err(), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_for_their_owner_and_what_lasts_has_a_place_of_its_own() {
    let world = World::new();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    world.files.publish("zedkube", GLOBAL, &EdgeNodeClusterStatus::default()).unwrap();
    let secret = world.folder("zedkube", "EdgeNodeClusterStatus").join("global.json");
    assert_eq!(mode(&secret), 0o600);
    let app = AppInstanceConfig::default();
    world.files.publish("zedagent", "a", &app).unwrap();
    let secret = world.folder("zedagent", "AppInstanceConfig").join("a.json");
    assert_eq!(mode(&secret), 0o600, "a password may be in it");
    // As a version before this one wrote it.
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(world.files.publish("zedagent", "a", &app).unwrap());
    assert_eq!(mode(&secret), 0o600);
    assert!(!world.files.publish("zedagent", "a", &app).unwrap(), "it says the same");
    let info = EdgeNodeInfo { device_name: "n1".to_owned(), ..EdgeNodeInfo::default() };
    let lasting = world.files.persistent();
    lasting.publish("zedagent", GLOBAL, &info).unwrap();
    let path = world.dir.path().join("persist/status/zedagent/EdgeNodeInfo/global.json");
    assert_eq!(mode(&path), 0o644);
    assert_eq!(lasting.read("zedagent", GLOBAL).unwrap(), Some(info));
    assert_eq!(world.files.read::<EdgeNodeInfo>("zedagent", GLOBAL).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_come_change_and_go_also_in_folders_that_do_not_exist_yet() {
    let world = World::new();
    let mut apps = world.files.watch::<AppInstanceConfig>("zedagent");
    assert!(apps.complete().await.is_empty());
    let path = world.app("a", "first");
    expect_apps(&apps, TOLD, &[("a", "first")]);
    // In place and of the same length, as some write.
    fs::write(&path, json!({ "DisplayName": "FIRST" }).to_string()).unwrap();
    expect_apps(&apps, TOLD, &[("a", "FIRST")]);
    // By renaming, as agents do.
    let new = path.with_extension("tmp");
    fs::write(&new, json!({ "DisplayName": "renamed" }).to_string()).unwrap();
    fs::rename(&new, &path).unwrap();
    world.app("b", "second");
    expect_apps(&apps, TOLD, &[("a", "renamed"), ("b", "second")]);
    fs::remove_file(&path).unwrap();
    expect_apps(&apps, TOLD, &[("b", "second")]);

    // The whole folder goes, and another comes in its place.
    let folder = world.folder("zedagent", "AppInstanceConfig");
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    expect_apps(&apps, TOLD, &[]);
    world.app("c", "third");
    expect_apps(&apps, TOLD, &[("c", "third")]);
    let aside = world.dir.path().join("aside");
    fs::rename(&folder, &aside).unwrap();
    expect_apps(&apps, TOLD, &[]);
    fs::rename(&aside, &folder).unwrap();
    expect_apps(&apps, TOLD, &[("c", "third")]);
    assert!(world.health.snapshot().is_healthy());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_concluded_before_everything_was_read_once() {
    let world = World::new();
    world.app("a", "first");
    let mut apps = world.files.watch::<AppInstanceConfig>("zedagent");
    assert_eq!(apps.complete().await.len(), 1);
    // A file that was never understood is not known to be absent.
    world.put("zedagent", "EdgeNodeClusterConfig", "global.json", b"{");
    let mut config = world.files.watch::<EdgeNodeClusterConfig>("zedagent");
    assert!(config.complete().await.is_empty());
    assert_eq!(config.get(GLOBAL), None);
    assert_eq!(config.get("other"), Some(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn junk_is_a_fault_by_its_path_and_what_was_known_stays() {
    let world = World::new();
    let apps = world.files.watch::<AppInstanceConfig>("zedagent");
    let path = world.app("a", "first");
    world.app("b", "second");
    let good = [("a", "first"), ("b", "second")];
    expect_apps(&apps, TOLD, &good);
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let huge = [b"{\"DisplayName\":\"".as_slice(), &b"x".repeat(MAX_BYTES), b"\"}"].concat();
    let rows: [(&[u8], &str); 8] = [
        (b"", "it cannot be read"),
        (b"{\"DisplayName\":\"fir", "it cannot be read"),
        (b"{\"DisplayName\":\"\xff\xfe\"}", "it cannot be read"),
        (b"{\"DisplayName\":7}", "invalid type: integer `7`"),
        (b"[1,2]", "it is no JSON object"),
        (b"null", "it is no JSON object"),
        (&deep, "recursion limit exceeded"),
        (&huge, "at most 1048576 are read"),
    ];
    for (content, reason) in rows {
        fs::write(&path, content).unwrap();
        let fault = wait_for("the fault", TOLD, || {
            Ok(world.fault(&path).filter(|fault| fault.contains(reason)))
        });
        let fault = fault.unwrap_or_else(|_| panic!("{reason}: {:?}", world.health.snapshot()));
        assert!(fault.ends_with("what it said before still holds"), "{fault}");
        expect_apps(&apps, TOLD, &good);
    }
    world.app("a", "mended");
    expect_apps(&apps, TOLD, &[("a", "mended"), ("b", "second")]);
    assert!(world.health.snapshot().is_healthy());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_file_or_has_no_name_keeps_nobody_waiting() {
    let world = World::new();
    let folder = world.folder("zedagent", "AppInstanceConfig");
    fs::create_dir_all(folder.join("folder.json")).unwrap();
    let pipe = folder.join("pipe.json");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    fs::write(folder.join(std::ffi::OsStr::from_bytes(b"\xff.json")), "{}").unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("endless.json")).unwrap();
    world.app("a", "first");
    let apps = world.files.watch::<AppInstanceConfig>("zedagent");
    expect_apps(&apps, TOLD, &[("a", "first")]);
    for name in ["folder.json", "pipe.json", "endless.json"] {
        assert_eq!(world.fault(&folder.join(name)).as_deref(), Some("it is no regular file"));
    }
    assert_eq!(world.fault(&folder).as_deref(), Some("a name in it is no text"));
    for name in ["pipe.json", "endless.json"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    fs::remove_dir(folder.join("folder.json")).unwrap();
    fs::remove_file(folder.join(std::ffi::OsStr::from_bytes(b"\xff.json"))).unwrap();
    wait_for("the faults to go", TOLD, || Ok(world.health.snapshot().is_healthy().then_some(())))
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_files_are_bounded_and_the_list_of_faults_too() {
    let world = World::new();
    let folder = world.folder("zedagent", "AppInstanceConfig");
    fs::create_dir_all(&folder).unwrap();
    for number in 0..5000 {
        fs::write(folder.join(format!("{number:05}.json")), "junk").unwrap();
    }
    let apps = world.files.watch::<AppInstanceConfig>("zedagent");
    expect_apps(&apps, LOOKED, &[]);
    let reason = world.fault(&folder);
    assert_eq!(reason.as_deref(), Some("it has more than 4096 files"));
    let snapshot = world.health.snapshot();
    let task = snapshot.tasks.iter().find(|task| task.name == "files").unwrap();
    assert_eq!((task.faults.len(), task.more), (32, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_run_directory_is_a_fault_that_is_still_told_and_goes_with_the_space() {
    let disk = SmallDisk::new(1).unwrap();
    let health = Health::new("n1");
    let stop = CancellationToken::new();
    let files = Files::open(disk.path(), disk.path(), &health, stop.clone());
    let telling = health::serve(health.clone(), files.clone(), disk.path(), stop.clone());
    let telling = tokio::spawn(telling.await.unwrap());
    let published = disk.path().join("wharf/AgentHealth/global.json");
    wait_for("the first file", TOLD, || Ok(published.exists().then_some(()))).unwrap();
    let filler = disk.fill().unwrap();
    let info = EdgeNodeInfo { device_name: "x".repeat(9000), ..EdgeNodeInfo::default() };
    let error = files.publish("zedkube", GLOBAL, &info).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
    let subject = format!("publishing {}/zedkube/EdgeNodeInfo/global.json", disk.path().display());
    let asked = health::ask(disk.path()).await.unwrap();
    let reason = fault_of(&asked, &subject).unwrap();
    assert!(reason.contains("No space left on device"), "{reason}");

    // The last word on a path counts, whatever kept the ones before from it.
    files.publish("zedagent", GLOBAL, &info).unwrap_err();
    files.unpublish::<EdgeNodeInfo>("zedagent", GLOBAL).unwrap();
    files.publish("nim", GLOBAL, &info).unwrap_err();
    let last = EdgeNodeInfo { device_id: "y".repeat(9000), ..EdgeNodeInfo::default() };
    files.publish("nim", GLOBAL, &last).unwrap_err();

    fs::remove_file(filler).unwrap();
    // They come in the order in which they were said.
    let came =
        wait_for("the last of them", TOLD, || Ok(files.read::<EdgeNodeInfo>("nim", GLOBAL)?));
    assert_eq!(came.unwrap(), last);
    assert_eq!(files.read::<EdgeNodeInfo>("zedagent", GLOBAL).unwrap(), None);
    assert_eq!(files.read("zedkube", GLOBAL).unwrap(), Some(info));
    wait_for("the file to say that all is well", TOLD, || {
        let health: AgentHealth = files.read("wharf", GLOBAL)?.unwrap_or_default();
        Ok((!health.tasks.is_empty() && health.is_healthy()).then_some(()))
    })
    .unwrap();
    stop.cancel();
    telling.await.unwrap();
    assert!(health::ask(disk.path()).await.is_err(), "nobody listens any more");
}

/// Whoever writes this file hangs as long as the value is there: it is written beside its place first.
fn hang(path: &Path) -> File {
    let name = path.file_name().unwrap().to_string_lossy();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let beside = File::create(path.with_file_name(format!(".{name}.wharf-new"))).unwrap();
    beside.lock().unwrap();
    beside
}

fn waits_for(beside: &File) -> bool {
    let inode = format!(":{} ", beside.metadata().unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_holds_up_only_who_waits_for_it() {
    let world = World::new();
    let lasting = world.dir.path().join("persist/status");
    let agents = ["zedagent", "nim", "zedkube", "baseosmgr"];
    let path = |agent: &str| lasting.join(agent).join("EdgeNodeInfo/global.json");
    let hanging = agents.map(|agent| hang(&path(agent)));
    // More tasks than there are threads.
    let publishing = agents.map(|agent| {
        let files = world.files.persistent();
        tokio::spawn(async move { files.publish(agent, GLOBAL, &EdgeNodeInfo::default()) })
    });
    let files = world.files.clone();
    let other = tokio::spawn(async move {
        files.publish("zedkube", GLOBAL, &NodeDrainStatus::default()).unwrap();
        let mut seen = files.watch::<NodeDrainStatus>("zedkube");
        seen.complete().await.len()
    });
    // By hand: without a thread that is free there is no clock either.
    wait_for("the other one", TOLD, || Ok(other.is_finished().then_some(()))).unwrap();
    assert_eq!(other.await.unwrap(), 1);
    wait_for("all to hang", TOLD, || Ok(hanging.iter().all(waits_for).then_some(()))).unwrap();
    assert!(!publishing.iter().any(|one| one.is_finished()));
    drop(hanging);
    for one in publishing {
        assert!(one.await.unwrap().unwrap());
    }
    assert!(agents.iter().all(|agent| path(agent).exists()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_owed_to_a_disk_that_hangs_holds_up_no_other_word_and_the_newest_one_wins() {
    let world = World::new();
    let info = |name: &str| EdgeNodeInfo { device_name: name.to_owned(), ..Default::default() };
    let (run, aside) = (world.dir.path().join("run"), world.dir.path().join("aside"));
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("nim"), "in the way").unwrap();
    world.files.publish("nim", GLOBAL, &info("first")).unwrap_err();
    world.files.publish("nim", GLOBAL, &info("second")).unwrap_err();
    let hanging = hang(&aside.join("EdgeNodeInfo/global.json"));
    renameat_with(CWD, &aside, CWD, run.join("nim"), RenameFlags::EXCHANGE).unwrap();
    wait_for("a try", LOOKED, || Ok(waits_for(&hanging).then_some(()))).unwrap();
    let publish = |agent: &'static str, name: &'static str| {
        let (files, info) = (world.files.clone(), info(name));
        tokio::spawn(async move { files.publish(agent, GLOBAL, &info) })
    };
    let newest = [publish("nim", "third"), publish("zedkube", "other")];
    let other = run.join("zedkube/EdgeNodeInfo/global.json");
    wait_for("the other one", TOLD, || Ok(other.exists().then_some(()))).unwrap();
    assert!(!newest[0].is_finished());
    drop(hanging);
    for one in newest {
        assert!(one.await.unwrap().unwrap());
    }
    assert_eq!(world.files.read("nim", GLOBAL).unwrap(), Some(info("third")));
    assert!(world.health.snapshot().is_healthy(), "nothing is owed any more");
}

/// As on a /run that has no room for another name from the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_place_for_its_socket_the_agent_goes_on_and_opens_it_later() {
    let dir = tempfile::tempdir().unwrap();
    let in_the_way = dir.path().join("wharf");
    fs::write(&in_the_way, "").unwrap();
    let health = Health::new("n1");
    let stop = CancellationToken::new();
    let files = Files::open(dir.path(), dir.path(), &health, stop.clone());
    let telling = health::serve(health.clone(), files, dir.path(), stop.clone());
    let telling = tokio::spawn(telling.await.unwrap());
    let reason = fault_of(&health.snapshot(), "socket").unwrap();
    assert!(reason.starts_with("cannot listen at"), "{reason}");

    fs::remove_file(in_the_way).unwrap();
    wait_for("health", TOLD, || Ok(health.snapshot().is_healthy().then_some(()))).unwrap();
    assert_eq!(health::ask(dir.path()).await.unwrap().node_name, "n1");
    stop.cancel();
    telling.await.unwrap();
    assert!(!dir.path().join("wharf/agent.sock").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_do_not_share_a_folder_and_a_killed_one_leaves_it() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let health = Health::new("n1");
        let stop = CancellationToken::new();
        let files = Files::open(dir.path(), dir.path(), &health, stop.clone());
        async { health::serve(health, files, dir.path(), stop).await.map(Box::pin) }
    };
    let first = start().await.unwrap();
    let Err(error) = start().await else { panic!("the second one started") };
    assert!(error.to_string().starts_with("another agent runs"), "{error}");
    // Its socket stays behind, as after `kill -9`.
    drop(first);
    let socket = dir.path().join("wharf/agent.sock");
    assert!(socket.exists());
    drop(start().await.unwrap());
    // A program that it was just about to start still has it.
    fs::remove_file(&socket).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let gone = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(listener);
    });
    drop(start().await.unwrap());
    gone.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_or_breaks_is_begun_anew_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let health = Health::new("n1");
    let stop = CancellationToken::new();
    let files = Files::open(dir.path(), dir.path(), &health, stop.clone());
    let config = Arc::new(Config::default());
    let context = Context { config, files, health: health.clone(), stop: stop.clone() };
    let mut tasks = Tasks::new(context);
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    tasks.start("shaky", move |context, reporter| {
        let turn = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match turn {
                0 => return Err("it is out of order".into()),
                1 => panic!("a defect"),
                _ => reporter.ok(),
            }
            context.stop.cancelled().await;
            Ok(())
        }
    });
    tasks.start("steady", |context, reporter| async move {
        reporter.ok();
        context.stop.cancelled().await;
        Ok(())
    });
    let shaky = || {
        let tasks = health.snapshot().tasks;
        tasks.iter().find(|task| task.name == "shaky").unwrap().clone()
    };
    for reason in ["it is out of order", "it broke by a defect: a defect"] {
        wait_for(reason, TOLD, || {
            Ok(shaky().faults.iter().any(|fault| fault.reason == reason).then_some(()))
        })
        .unwrap();
    }
    wait_for("it to work", TOLD, || Ok(shaky().working.then_some(()))).unwrap();
    assert_eq!((shaky().restarts, shaky().faults.len()), (2, 0));
    let steady = health.snapshot().tasks.iter().find(|task| task.name == "steady").cloned();
    assert!(steady.is_some_and(|task| task.working && task.restarts == 0));
    stop.cancel();
    tasks.ended().await;
    assert_eq!(begun.load(Ordering::SeqCst), 3);
}
