//! What agents leave below a directory when they are killed: processes, mounts, loop devices.

use std::{fs, path::Path, process::Command, thread, time::Duration};

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

/// What agents and proxies are started as. Those that outlive whoever started them are called by the
/// kernel's name for their program (`/proc/self/exe`), so that they are known by their words alone.
const ROLES: [&str; 6] = ["agent", "serve", "start", "launch", "hold", "work"];
/// Programs that need no such word.
const PROGRAMS: [&str; 2] = ["node_agent", "qemu-storage-daemon"];

/// The processes of ours that were told to work below a directory: a role, and a path there.
pub fn workers(directory: &Path) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<&str> =
            line.split(|byte| *byte == 0).filter_map(|word| str::from_utf8(word).ok()).collect();
        let pid = Pid::from_raw(process.file_name().to_str()?.parse().ok()?)?;
        works_below(&words, directory).then_some(pid)
    });
    all.collect()
}

fn works_below(words: &[&str], directory: &Path) -> bool {
    let has_role = words.get(1).is_some_and(|word| ROLES.contains(word));
    let program = words.first().and_then(|word| Path::new(word).file_name()?.to_str());
    let is_program = program.is_some_and(|program| PROGRAMS.contains(&program));
    let is_below = |word: &&str| {
        // Of an option like `--pidfile=PATH`, or `id=x,path=PATH,…`, too.
        word.split(['=', ',']).any(|part| Path::new(part).starts_with(directory))
    };
    (has_role || is_program) && words.iter().skip(1).any(is_below)
}

/// How long killed processes may take to end, and how often they are looked for: who holds a device starts
/// another worker for one that was killed.
const END_TURNS: u32 = 100;
const END_PAUSE: Duration = Duration::from_millis(50);

/// Takes all of it away. The directory is a test's own, so that nobody else has anything there.
pub fn remove_below(directory: &Path) {
    for _ in 0..END_TURNS {
        let left = workers(directory);
        if left.is_empty() {
            break;
        }
        for process in left {
            // It may have ended meanwhile.
            let _ = kill_process(process, Signal::KILL);
        }
        thread::sleep(END_PAUSE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_ours_are_known_by_their_role_and_a_path_below_the_directory() {
        let place = Path::new("/tmp/place-1");
        for (line, is_it) in [
            ("/proc/self/exe hold /tmp/place-1/state/proxies/pv-1", true),
            ("/proc/self/exe work /tmp/place-1/state/proxies/pv-1", true),
            ("/bin/wharf-block serve /tmp/place-1/images 127.0.0.1:1", true),
            ("/bin/wharf agent volume-guard --state-dir /tmp/place-1/state", true),
            ("/bin/wharf agent --config /tmp/place-1/agent.toml", true),
            ("/target/node_agent /tmp/place-1/.tmp/agent.toml", true),
            ("/bin/qemu-storage-daemon --pidfile=/tmp/place-1/rbd/pv/pid --daemonize", true),
            ("/proc/self/exe hold /tmp/place-10/state/proxies/pv-1", false),
            ("/proc/self/exe hold /tmp/place-2/tmp/place-1", false),
            // Somebody who looks.
            ("tail -f /tmp/place-1/state/guard.log", false),
            ("less /tmp/place-1/agent", false),
            ("", false),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(works_below(&words, place), is_it, "{line}");
        }
    }
}
