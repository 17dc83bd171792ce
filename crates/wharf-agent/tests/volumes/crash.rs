//! The agent is killed at every step of a mount and of an unmount.

use std::{
    fs::{self, File},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    fs::inotify::{self, CreateFlags, Reader, WatchFlags},
    process::{Pid, Signal, kill_process},
};
use serde_json::json;

use wharf_testbed::devices::processes;

use crate::{
    proxy::BlockServer,
    world::{Pod, World, is_mounted},
};

/// Right after a step was noted, and into it.
const DELAYS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(4), Duration::from_millis(12)];
/// In the middle of the start of a proxy's processes.
const DELAYS_OF_PROXY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(40)];
/// More steps than a mount or an unmount has.
const MOST_STEPS: usize = 20;
const VOLUME: &str = "pv-1";
const IMAGE: &str = "one";

#[test]
fn a_killed_agent_goes_on_from_every_step_and_leaves_nothing() {
    let mut world = World::new();
    world.volume(VOLUME, IMAGE, &json!({}));
    let blank = |world: &World| {
        let image = world.path("images/one.img");
        let _ = fs::remove_file(&image);
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
    };
    let points = world.sweep("main", &DELAYS, blank);
    assert!(points[0] >= 12 && points[1] >= 12, "{points:?}");
}

/// Here a device is made in many small steps, with processes that outlive the agent.
#[test]
fn a_killed_agent_goes_on_from_every_step_with_a_block_server_and_leaves_no_process() {
    let mut world = World::new();
    let server = BlockServer::start(&world);
    server.volume(&world, VOLUME, IMAGE);
    let points = world.sweep("net", &DELAYS_OF_PROXY, |_| {});
    assert!(points[0] >= 8 && points[1] >= 8, "{points:?}");
    let here = world.path("state").display().to_string();
    assert_eq!(processes(&here, &["\0hold\0", "\0work\0"]), [], "no process is left");
}

/// At which step to kill, and how long after it was noted.
type Point = Option<(usize, Duration)>;

impl World {
    /// Kills the agent at every step of mounts and of unmounts, so long after each. Says at how many.
    fn sweep(
        &mut self,
        cluster: &str,
        delays: &[Duration],
        prepare: impl Fn(&World),
    ) -> [usize; 2] {
        let pod = self.pod("a");
        let before = self.leftovers();
        let mut points = [0, 0];
        for delay in delays {
            for call in [0, 1] {
                for step in 1..MOST_STEPS {
                    let mut kills = [None, None];
                    kills[call] = Some((step, *delay));
                    prepare(self);
                    if !self.trial(cluster, &pod, kills)[call] {
                        break;
                    }
                    points[call] += 1;
                    assert_eq!(self.leftovers(), before, "{kills:?}");
                }
            }
        }
        eprintln!("killed at {} points of mounts and {} of unmounts", points[0], points[1]);
        points
    }

    /// A mount and an unmount, with a kill in one of them; as kubelet does, each is asked for again.
    /// Says where the agent was killed.
    fn trial(&mut self, cluster: &str, pod: &Pod, [mount, unmount]: [Point; 2]) -> [bool; 2] {
        let dir = self.dir_of(pod, VOLUME);
        let mounted = |world: &World| world.mount_of(cluster, pod, VOLUME, IMAGE);
        let in_mount = self.killing(mount, mounted);
        assert_eq!(mounted(self), Ok(()), "{mount:?}");
        assert!(is_mounted(&dir), "{mount:?}");
        assert_eq!(self.devices().len(), 1, "{mount:?}");
        fs::write(dir.join("file"), "kept").unwrap();
        let in_unmount = self.killing(unmount, |world| world.unmount(pod, VOLUME));
        assert_eq!(self.unmount(pod, VOLUME), Ok(()), "{unmount:?}");
        self.wait_until("nothing to be left", |world| {
            world.record(VOLUME).is_none() && world.devices().is_empty()
        });
        self.wait_until("the journal to go", |world| {
            !world.path("state/journals").join(format!("{VOLUME}.json")).exists()
        });
        [in_mount, in_unmount]
    }

    /// Calls, and kills the agent at the point; then starts it again. Says whether it was killed.
    fn killing(&mut self, point: Point, call: impl Fn(&Self) -> Result<(), String> + Sync) -> bool {
        let Some((step, delay)) = point else { return false };
        let agent = Pid::from_raw(self.agent.process().id().try_into().unwrap()).unwrap();
        let watch = watch(&self.path("state/journals"));
        let world = &*self;
        let killed = thread::scope(|scope| {
            let calling = scope.spawn(|| call(world));
            let killed = wait_for_step(&watch, step, || calling.is_finished());
            if killed {
                thread::sleep(delay);
                kill_process(agent, Signal::KILL).unwrap();
            }
            let answer = calling.join().unwrap();
            if !killed {
                assert_eq!(answer, Ok(()));
            }
            killed
        });
        if killed {
            self.agent.restart();
            self.wait_ready();
        }
        killed
    }
}

fn watch(dir: &Path) -> OwnedFd {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    // A journal is renamed into its place, or removed.
    inotify::add_watch(&watch, dir, WatchFlags::MOVED_TO | WatchFlags::DELETE).unwrap();
    watch
}

/// Waits until so many steps were noted; false when the call ends before.
fn wait_for_step(watch: &OwnedFd, step: usize, is_over: impl Fn() -> bool) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut seen = 0;
    loop {
        let over = is_over();
        let mut events = Reader::new(watch, &mut buffer);
        while let Ok(event) = events.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            seen += usize::from(name.as_deref() == Some("pv-1.json"));
        }
        if seen >= step {
            return !over;
        }
        if over {
            return false;
        }
        thread::sleep(Duration::from_micros(200));
    }
}
