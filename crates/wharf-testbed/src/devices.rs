//! What agents leave below a directory when they are killed: processes, mounts, loop devices.

use std::{fs, path::Path, process::Command};

use rustix::process::{Pid, Signal, kill_process};

/// The processes whose command line has the one word and any of the others.
pub fn processes(word: &str, any: &[&str]) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|process| {
        let line = fs::read_to_string(process.path().join("cmdline")).ok()?;
        let is_it = line.contains(word) && any.iter().any(|one| line.contains(one));
        if is_it { Pid::from_raw(process.file_name().to_str()?.parse().ok()?) } else { None }
    });
    all.collect()
}

/// The loop devices of files below a directory, by the kernel's names.
pub fn loop_devices(below: &Path) -> Vec<String> {
    let below = below.to_string_lossy();
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        file.contains(&*below).then(|| device.file_name().to_string_lossy().into_owned())
    });
    devices.collect()
}

/// Where something is mounted below a directory, in the order of mounting.
pub fn mounts(below: &Path) -> Vec<String> {
    let below = below.to_string_lossy();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| point.contains(&*below)).map(str::to_owned).collect()
}

/// Takes all of it away. The directory is a test's own, so that nobody else has anything there.
pub fn remove_below(directory: &Path) {
    for process in processes(&directory.to_string_lossy(), &["volume-guard", "wharf-block"]) {
        // It may have ended meanwhile.
        let _ = kill_process(process, Signal::KILL);
    }
    // Once nothing is mounted any more, the kernel does not say whose they were.
    let devices = loop_devices(directory);
    for point in mounts(directory).iter().rev() {
        let _ = Command::new("umount").args(["-l", point]).output();
    }
    for device in devices {
        let _ = Command::new("losetup").args(["-d", &format!("/dev/{device}")]).output();
    }
}
