//! The agent on the host of a pod: put there, started, and taken away.

use std::{fs, io, path::Path, time::Duration};

use wharf_core::install::{
    host::{HostFailure, place as installed},
    pod_agent::{PROGRAMS, place, render_unit},
};

use super::Container;
use crate::{
    config::Config,
    host::{
        Root, end_guards,
        failure::{Telling, failure, succeeded},
        files, remove_tree,
        units::{self, Activity},
    },
    volumes::{self, Places},
};

/// Until the agent says that it is ready, or has ended. Nothing keeps it waiting: somebody else keeps
/// the network here.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// The unit itself has the agent killed long before.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// What became of the agent that should leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Gone,
    /// Volumes came into use until it was stopped: it runs again.
    InUse,
}

/// Makes the host have the programs of the container and this configuration, and the unit run with
/// them. Says whether it had to be started.
pub fn ensure(root: &Root, container: &Container, config: &str) -> Result<bool, HostFailure> {
    refuse_installed(root)?;
    let mut parts = Vec::new();
    make_directories(root)?;
    for name in PROGRAMS {
        parts.push(ensure_program(root, name, &container.path(&format!("/{name}")))?);
    }
    let unit = render_unit();
    for (path, text) in [(place::CONFIG, config), (place::UNIT_FILE, &unit)] {
        parts.push(ensure_text(root, path, text)?);
    }
    let fingerprint = files::sha256(parts.join(" ").as_bytes());
    start(root, &fingerprint)
}

/// An agent that an installer put there belongs to another cluster, or to this one by other means.
pub fn refuse_installed(root: &Root) -> Result<(), HostFailure> {
    let unit = format!("{}/{}", installed::UNITS, place::UNIT);
    if !root.path(&unit).exists() {
        return Ok(());
    }
    Err(failure("look at the host", format!("it has an agent already: {unit} is there"))
        .hint("its cluster was installed by Wharf; delete that first, or choose other nodes"))
}

fn make_directories(root: &Root) -> Result<(), HostFailure> {
    for path in [place::PROGRAMS, place::RUN, place::STATE] {
        let told = |error: io::Error| failure(format!("make {path}"), error.to_string());
        let path = root.path(path);
        // /opt and the like may be missing on a small system.
        fs::create_dir_all(&path).and_then(|()| files::directory(&path, 0o755)).map_err(told)?;
    }
    Ok(())
}

/// Puts a program in its place in one step; answers its checksum.
fn ensure_program(root: &Root, name: &str, from: &Path) -> Result<String, HostFailure> {
    let path = root.path(&format!("{}/{name}", place::PROGRAMS));
    let told = |error: io::Error| failure(format!("put {name} on the host"), error.to_string());
    let wanted = files::file_sha256(from).map_err(told)?;
    // What is there may be the program of an agent that runs: it is replaced, never written to.
    if !files::file_sha256(&path).is_ok_and(|found| found == wanted) {
        let content = fs::read(from).map_err(told)?;
        files::write(&path, 0o755, &content).map_err(told)?;
    }
    Ok(wanted)
}

fn ensure_text(root: &Root, path: &str, text: &str) -> Result<String, HostFailure> {
    let place = root.path(path);
    let told = |error: io::Error| failure(format!("write {path}"), error.to_string());
    if !fs::read(&place).is_ok_and(|found| found == text.as_bytes()) {
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(told)?;
        }
        files::write(&place, 0o644, text.as_bytes()).map_err(told)?;
    }
    Ok(files::sha256(text.as_bytes()))
}

/// Starts the unit, anew if it runs with something else.
fn start(root: &Root, fingerprint: &str) -> Result<bool, HostFailure> {
    units::reload(root, &[]).map_err(|failed| failed.hint("the host must have systemd"))?;
    let started = root.path(place::STARTED);
    let is_same = fs::read_to_string(&started).is_ok_and(|found| found == fingerprint);
    if is_same && activity(root)? == Activity::Active {
        return Ok(false);
    }
    systemctl(root, "restart", START_DEADLINE)?;
    // Only after the start: a crash in between costs one start more, never one less.
    let told = |error: io::Error| failure("remember the start", error.to_string());
    files::write(&started, 0o600, fingerprint.as_bytes()).map_err(told)?;
    Ok(true)
}

/// Starts the unit if somebody stopped it.
pub fn ensure_runs(root: &Root) -> Result<(), HostFailure> {
    match activity(root)? {
        Activity::Active | Activity::Changing => Ok(()),
        Activity::Inactive | Activity::Failed => systemctl(root, "start", START_DEADLINE),
    }
}

fn activity(root: &Root) -> Result<Activity, HostFailure> {
    let states = units::observe(root, &[place::UNIT])?;
    Ok(states.get(place::UNIT).map(|state| state.active).unwrap_or_default())
}

fn systemctl(root: &Root, verb: &str, within: Duration) -> Result<(), HostFailure> {
    let ran = root.run("systemctl", &[verb, place::UNIT], within);
    let step = format!("{verb} {}", place::UNIT);
    let done = succeeded(&step, ran).map(drop);
    done.map_err(|failed| failed.hint(format!("see `journalctl -u {}` on the host", place::UNIT)))
}

/// Whether something of a volume is on the host.
pub fn has_volumes(root: &Root) -> Result<bool, HostFailure> {
    let looked = volumes::are_in_use(&root.path(place::VOLUMES));
    looked.map_err(|error| failure("look for volumes in use", error.to_string()))
}

/// Takes everything away that [`ensure`] and the agent have made. After an error it goes on, and
/// answers all of them.
///
/// Guarantees: guard and journals go only when no agent runs and no volume is in use. If that cannot
/// be made sure of, the agent runs again and nothing is taken away.
pub fn remove(root: &Root) -> Result<Removal, Vec<HostFailure>> {
    // The unit of an installer has the same name.
    refuse_installed(root).map_err(|refused| vec![refused])?;
    // Where kubelet looks for the driver is asked while kubelet can be asked.
    let config = Config::load(&root.path(place::CONFIG)).unwrap_or_default();
    let places = Places::new(place::VOLUMES.into(), &config.volumes);
    // Until it is stopped it may grant more.
    match stop(root).and_then(|()| has_volumes(root)) {
        Ok(false) => {}
        looked => {
            let started = systemctl(root, "start", START_DEADLINE);
            return all_done(Removal::InUse, [looked.err(), started.err()].into_iter().flatten());
        }
    }
    end_guards(root, place::VOLUMES);
    all_done(Removal::Gone, remove_files(root, &places))
}

fn all_done(
    done: Removal,
    failures: impl IntoIterator<Item = HostFailure>,
) -> Result<Removal, Vec<HostFailure>> {
    let failures: Vec<HostFailure> = failures.into_iter().collect();
    if failures.is_empty() { Ok(done) } else { Err(failures) }
}

/// A unit that systemd does not know is stopped already.
fn stop(root: &Root) -> Result<(), HostFailure> {
    let stopped = systemctl(root, "stop", STOP_DEADLINE);
    match stopped {
        Err(_) if activity(root)? == Activity::Inactive => Ok(()),
        stopped => stopped,
    }
}

fn remove_files(root: &Root, places: &Places) -> Vec<HostFailure> {
    let told = |what: &str| {
        let step = format!("remove {what}");
        move |error: io::Error| failure(step, error.to_string())
    };
    let unit = files::remove_file(&root.path(place::UNIT_FILE)).map(drop);
    let steps = [
        unit.map_err(told(place::UNIT_FILE)),
        units::forget(root, &[place::UNIT]),
        volumes::remove_driver(places).map_err(told("the driver of volumes")),
    ];
    let mut failures: Vec<HostFailure> = steps.into_iter().filter_map(Result::err).collect();
    for path in [place::STATE, place::RUN, place::PROGRAMS] {
        let left = remove_tree(root, path).into_iter();
        failures.extend(
            left.map(|(path, reason)| failure(format!("remove {}", root.on_host(&path)), reason)),
        );
    }
    failures
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::{Arc, Mutex},
    };

    use wharf_core::install::pod_agent::GRACE;

    use super::*;
    use crate::{
        host::{
            Commands, Ran,
            testing::{answering, fake_root, put},
        },
        launch::PATIENCE,
    };

    /// A host with an agent from a pod; kubelet's directories are in it too.
    fn host() -> tempfile::TempDir {
        let (directory, _root) = fake_root();
        let base = directory.path();
        let config = format!(
            "[volumes]\nplugin_dir = \"{0}/plugins\"\nkubelet_root = \"{0}/kubelet\"\n",
            base.display()
        );
        put(base, place::CONFIG, &config);
        put(base, place::UNIT_FILE, "[Service]\n");
        put(base, &format!("{}/wharf", place::PROGRAMS), "program");
        put(base, &format!("{}/tenure.json", place::VOLUMES), "{}");
        directory
    }

    fn is_there(root: &Root, path: &str) -> bool {
        root.path(path).exists()
    }

    const ALL: [&str; 4] = [place::UNIT_FILE, place::PROGRAMS, place::RUN, place::STATE];

    #[test]
    fn a_removal_leaves_nothing_and_goes_on_after_errors() {
        let directory = host();
        let root = answering(&directory, Vec::new());
        assert_eq!(remove(&root), Ok(Removal::Gone));
        assert_eq!(ALL.map(|path| is_there(&root, path)), [false; 4]);

        let directory = host();
        let root = answering(&directory, vec![("systemctl daemon-reload", Err("no bus"))]);
        let failures = remove(&root).unwrap_err();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!(failures[0].message, "no bus");
        assert_eq!(ALL.map(|path| is_there(&root, path)), [false; 4]);
    }

    /// A machine whose agent grants a volume at the last moment.
    struct Granting {
        journal: PathBuf,
        commands: Arc<Mutex<Vec<String>>>,
    }

    impl Commands for Granting {
        fn run(&self, program: &str, arguments: &[&str], _deadline: Duration) -> io::Result<Ran> {
            if arguments.first() == Some(&"stop") {
                fs::create_dir_all(self.journal.parent().unwrap())?;
                fs::write(&self.journal, "{}")?;
            }
            self.commands.lock().unwrap().push(format!("{program} {}", arguments.join(" ")));
            Ok(Ran { success: true, ..Ran::default() })
        }
    }

    #[test]
    fn a_volume_that_is_granted_at_the_last_moment_keeps_its_agent() {
        let directory = host();
        let journal = directory.path().join("var/lib/wharf-agent/volumes/journals/pvc-1.json");
        let commands = Arc::new(Mutex::new(Vec::new()));
        let granting = Granting { journal: journal.clone(), commands: commands.clone() };
        let root = Root::new(directory.path(), Box::new(granting));
        assert_eq!(has_volumes(&root), Ok(false));
        assert_eq!(remove(&root), Ok(Removal::InUse));
        assert_eq!(ALL.map(|path| is_there(&root, path)), [true; 4]);
        assert!(journal.exists());
        let commands = commands.lock().unwrap().clone();
        let expected = ["stop", "start"].map(|verb| format!("systemctl {verb} {}", place::UNIT));
        assert_eq!(commands, expected);
    }

    #[test]
    fn an_agent_that_may_still_run_keeps_its_guard_and_its_journals() {
        let directory = host();
        let stop = ("systemctl stop", Err("it hangs"));
        let runs = ("systemctl show", Ok("Id=wharf-agent.service\nActiveState=deactivating\n"));
        let root = answering(&directory, vec![stop, runs]);
        let failures = remove(&root).unwrap_err();
        assert_eq!(failures[0].message, "it hangs");
        assert_eq!(ALL.map(|path| is_there(&root, path)), [true; 4]);
        // A pod that was told to end before it had started anything.
        let ended = ("systemctl show", Ok("Id=wharf-agent.service\nActiveState=inactive\n"));
        let root = answering(&directory, vec![("systemctl stop", Err("not loaded")), ended]);
        assert_eq!(remove(&root), Ok(Removal::Gone));
    }

    #[test]
    fn an_installers_agent_is_neither_replaced_nor_stopped() {
        let directory = host();
        put(directory.path(), "/etc/systemd/system/wharf-agent.service", "[Service]\n");
        let root = answering(&directory, vec![("systemctl", Err("nobody should ask"))]);
        let refused = refuse_installed(&root).unwrap_err();
        assert!(refused.hint.is_some(), "{refused:?}");
        assert_eq!(remove(&root), Err(vec![refused]));
        assert_eq!(ALL.map(|path| is_there(&root, path)), [true; 4]);
    }

    #[test]
    fn all_that_a_pod_does_at_its_end_fits_into_its_grace() {
        let systemctl = units::SYSTEMCTL_DEADLINE;
        // What was begun when it was told to end: reload, look, start.
        let begun = systemctl * 2 + START_DEADLINE;
        // The DaemonSet and the node are asked for, then it is stopped and forgotten, or started.
        let asked = PATIENCE * 2;
        let end = STOP_DEADLINE + systemctl + (systemctl * 2).max(START_DEADLINE);
        assert!(begun + asked + end < GRACE);
    }
}
