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
        files,
        units::{self, Activity},
    },
    volumes::{self, Places},
};

/// Until the agent says that it is ready, or has ended.
const START_DEADLINE: Duration = Duration::from_secs(90);

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
fn refuse_installed(root: &Root) -> Result<(), HostFailure> {
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
pub fn has_volumes(root: &Root) -> bool {
    volumes::are_in_use(&root.path(place::VOLUMES))
}

/// Takes everything away that [`ensure`] and the agent have made.
pub fn remove(root: &Root) -> Result<(), HostFailure> {
    // Where kubelet looks for the driver is asked while kubelet can be asked.
    let config = Config::load(&root.path(place::CONFIG)).unwrap_or_default();
    let places = Places::new(place::VOLUMES.into(), &config.volumes);
    systemctl(root, "stop", START_DEADLINE)?;
    end_guards(root, place::VOLUMES);
    let told = |error: io::Error| failure("remove the agent's files", error.to_string());
    files::remove_file(&root.path(place::UNIT_FILE)).map_err(told)?;
    units::forget(root, &[place::UNIT])?;
    volumes::remove_driver(&places).map_err(told)?;
    for path in [place::STATE, place::RUN, place::PROGRAMS] {
        match fs::remove_dir_all(root.path(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(told(error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
