//! Mounts through kubelet's call, beside the same steps by hand.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};

use super::world::{Pod, World, run as program, volume};
use crate::{
    fleet::limit,
    install::{machines::load, median},
    report::{Report, Row},
};

const VOLUMES: usize = 50;
const ROUNDS: usize = 3;
const ADDED_MILLISECONDS: f64 = 20.0;
const OF_BY_HAND: f64 = 1.3;

pub fn run(world: &World, report: &mut Report) -> Result<()> {
    eprintln!("volumes: {VOLUMES} mounts, one by one and at once, {ROUNDS} times");
    let names: Vec<String> = (0..VOLUMES).map(|number| format!("pv-{number}")).collect();
    let by_hand: Result<Vec<ByHand>> = names.iter().map(|name| ByHand::new(world, name)).collect();
    let by_hand = by_hand?;
    names.iter().try_for_each(|name| world.formatted(name).map(drop))?;
    world.create(&names.iter().map(|name| volume("main", name)).collect::<Vec<_>>())?;
    let pod = world.pod(&world.node, "bench")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut all, mut all_by_hand) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (name, hand) in names.iter().zip(&by_hand) {
            ours.push(milliseconds(world.node.mount("main", &pod, name)?));
            theirs.push(milliseconds(hand.mount()?));
        }
        check(world, &pod, &names)?;
        unmount_all(world, &pod, &names, &by_hand)?;
        all.push(milliseconds(at_once(&names, |name| world.node.mount("main", &pod, name))?));
        all_by_hand.push(milliseconds(at_once(&by_hand, ByHand::mount)?));
        check(world, &pod, &names)?;
        unmount_all(world, &pod, &names, &by_hand)?;
    }
    let added = median(ours.clone()) - median(theirs.clone());
    let detail = format!(
        "median {:.1} ms against {:.1} ms with losetup and mount; load {}",
        median(ours),
        median(theirs),
        load()
    );
    let name = "added to a mount by driver, agent and claim";
    report.add(limit(name, added, ADDED_MILLISECONDS, "ms").detail(detail));
    let (all, by_hand) = (median(all), median(all_by_hand));
    let name = format!("{VOLUMES} mounts at once");
    report.add(Row::cost(&name, all, "losetup and mount", by_hand, "ms").goal(OF_BY_HAND));
    Ok(())
}

/// Every volume is there, with what was written to it before.
fn check(world: &World, pod: &Pod, names: &[String]) -> Result<()> {
    for name in names {
        let file = world.node.dir_of(pod, name).join("name");
        if file.exists() {
            ensure!(fs::read_to_string(&file)? == *name, "{name} has the content of another");
        } else {
            fs::write(&file, name)?;
        }
    }
    Ok(())
}

fn unmount_all(world: &World, pod: &Pod, names: &[String], by_hand: &[ByHand]) -> Result<()> {
    for name in names {
        world.node.unmount(pod, name)?;
    }
    by_hand.iter().try_for_each(ByHand::unmount)
}

/// How long all of them take that begin together.
fn at_once<T: Sync>(
    items: &[T],
    mount: impl Fn(&T) -> Result<Duration> + Sync,
) -> Result<Duration> {
    let begin = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let calls: Vec<_> = items.iter().map(|item| scope.spawn(|| mount(item))).collect();
        for call in calls {
            call.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    Ok(begin.elapsed())
}

/// What a person would do for a pod.
struct ByHand {
    image: PathBuf,
    staged: PathBuf,
    bound: PathBuf,
}

impl ByHand {
    fn new(world: &World, name: &str) -> Result<ByHand> {
        let place = |kind: &str| -> Result<PathBuf> {
            let dir = world.dir.path().join(kind).join(name);
            fs::create_dir_all(&dir)?;
            Ok(dir)
        };
        let image = world.formatted(&format!("{name}-by-hand"))?;
        Ok(ByHand { image, staged: place("staged")?, bound: place("bound")? })
    }

    fn mount(&self) -> Result<Duration> {
        let (image, staged, bound) = (text(&self.image), text(&self.staged), text(&self.bound));
        let begin = Instant::now();
        let device = program("losetup", &["--find", "--show", "--direct-io=on", &image])?;
        program("mount", &[&device, &staged])?;
        program("mount", &["--bind", &staged, &bound])?;
        Ok(begin.elapsed())
    }

    fn unmount(&self) -> Result<()> {
        program("umount", &[&text(&self.bound)])?;
        // mount does not know of the device that it has to be detached.
        let device = program("findmnt", &["-n", "-o", "SOURCE", &text(&self.staged)])?;
        program("umount", &[&text(&self.staged)])?;
        program("losetup", &["-d", &device])?;
        Ok(())
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
