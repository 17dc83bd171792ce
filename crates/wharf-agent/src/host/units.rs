//! Units of systemd: their state, their start and their end.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use wharf_core::install::host::{HostFailure, Unit, place};

use super::bundled::STATE;
use super::failure::{Telling, failure, succeeded, tail};
use super::files;
use super::root::{Root, wait_until};

/// For what systemd answers at once, even on a machine with much to do.
pub(crate) const SYSTEMCTL_DEADLINE: Duration = Duration::from_secs(60);
/// Until a unit says that it is ready; etcd's waits for a majority of its members.
const START_DEADLINE: Duration = Duration::from_secs(90);
/// What is taken away need not end in good order: its data goes too. An API server whose etcd went
/// first would wait for it for half a minute.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// A unit that systemd had to start again this often will not come up by waiting.
const RESTARTS_LIMIT: u32 = 3;
const JOURNAL_LINES: &str = "20";

/// What systemd knows of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitState {
    pub active: Activity,
    /// Whether it is started at boot, or cannot be.
    pub enabled: bool,
    /// Whether systemd has yet to read the unit's file again.
    pub stale: bool,
    pub main_pid: u32,
    /// A start or stop that is under way.
    pub job: bool,
    /// How often systemd started it again by itself since the last start by hand.
    pub restarts: u32,
    /// Of what it was last started with, if it was us.
    pub fingerprint: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activity {
    Active,
    /// On its way up or down.
    Changing,
    #[default]
    Inactive,
    Failed,
}

/// The state of each unit. With no names systemd is not asked.
pub fn observe(root: &Root, names: &[&str]) -> Result<BTreeMap<String, UnitState>, HostFailure> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let properties =
        "--property=Id,ActiveState,UnitFileState,NeedDaemonReload,MainPID,Job,NRestarts";
    let mut arguments = vec!["show", properties, "--"];
    arguments.extend(names);
    let ran = root.run("systemctl", &arguments, SYSTEMCTL_DEADLINE);
    let text = succeeded("ask systemd for its units", ran)?;
    let mut states = parse_states(&text);
    for (name, state) in &mut states {
        state.fingerprint = fs::read_to_string(fingerprint_path(root, name)).ok();
    }
    Ok(states)
}

/// `systemctl show` prints a block of `key=value` lines for each unit.
fn parse_states(text: &str) -> BTreeMap<String, UnitState> {
    let mut states = BTreeMap::new();
    for block in text.split("\n\n") {
        let (mut name, mut state) = (String::new(), UnitState::default());
        for (key, value) in block.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "Id" => value.clone_into(&mut name),
                "ActiveState" => state.active = activity(value),
                "UnitFileState" => state.enabled = value == "enabled",
                "NeedDaemonReload" => state.stale = value == "yes",
                "MainPID" => state.main_pid = value.parse().unwrap_or(0),
                "Job" => state.job = !matches!(value, "" | "0"),
                "NRestarts" => state.restarts = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        if !name.is_empty() {
            states.insert(name, state);
        }
    }
    states
}

fn activity(word: &str) -> Activity {
    match word {
        "active" | "reloading" => Activity::Active,
        "activating" | "deactivating" => Activity::Changing,
        "failed" => Activity::Failed,
        _ => Activity::Inactive,
    }
}

pub fn unit_path(name: &str) -> String {
    format!("{}/{name}", place::UNITS)
}

/// Makes systemd read unit files again, and start these at boot.
pub fn reload(root: &Root, enable: &[&str]) -> Result<(), HostFailure> {
    if !enable.is_empty() {
        let mut arguments = vec!["--no-reload", "--quiet", "enable", "--"];
        arguments.extend(enable);
        succeeded("enable units", root.run("systemctl", &arguments, SYSTEMCTL_DEADLINE))?;
    }
    let ran = root.run("systemctl", &["daemon-reload"], SYSTEMCTL_DEADLINE);
    succeeded("reload systemd", ran).map(drop)
}

/// One that is to be started, or started anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start<'a> {
    pub unit: &'a Unit,
    pub restart: bool,
    pub fingerprint: String,
}

/// Starts all of them at once and waits until each runs; systemd orders them where their files
/// say so. Gives the first failure, after all others have come to an end.
pub fn start(root: &Root, starts: &[Start<'_>]) -> Result<(), HostFailure> {
    for restart in [false, true] {
        let chosen = starts.iter().filter(|start| start.restart == restart);
        let names: Vec<&str> = chosen.map(|start| start.unit.name.as_str()).collect();
        if names.is_empty() {
            continue;
        }
        let verb = if restart { "restart" } else { "start" };
        // One that failed too often before would be refused without this.
        let mut reset = vec!["reset-failed", "--"];
        reset.extend(&names);
        // It fails for units that were never loaded, which have nothing to forget.
        let _ = root.run("systemctl", &reset, SYSTEMCTL_DEADLINE);
        let mut arguments = vec!["--no-block", verb, "--"];
        arguments.extend(&names);
        let step = format!("{verb} {}", names.join(", "));
        succeeded(&step, root.run("systemctl", &arguments, SYSTEMCTL_DEADLINE))?;
    }
    let names: Vec<&str> = starts.iter().map(|start| start.unit.name.as_str()).collect();
    let settled = wait_until(START_DEADLINE, || {
        let states = observe(root, &names)?;
        Ok(states.values().all(is_settled).then_some(()))
    })?;
    let states = observe(root, &names)?;
    let mut result = Ok(());
    for start in starts {
        let state = states.get(&start.unit.name).cloned().unwrap_or_default();
        if state.active == Activity::Active && !state.job {
            remember(root, &start.unit.name, &start.fingerprint)?;
        } else if result.is_ok() {
            result = Err(not_started(root, &start.unit.name, &state, settled.is_none()));
        }
    }
    result
}

fn is_settled(state: &UnitState) -> bool {
    match state.active {
        Activity::Changing => state.restarts >= RESTARTS_LIMIT,
        Activity::Active | Activity::Inactive | Activity::Failed => !state.job,
    }
}

fn not_started(root: &Root, name: &str, state: &UnitState, late: bool) -> HostFailure {
    let message = match state.active {
        Activity::Failed => format!("{name} has failed"),
        Activity::Inactive => format!("{name} has ended at once"),
        Activity::Changing | Activity::Active if state.restarts >= RESTARTS_LIMIT => {
            format!("{name} dies again and again ({} times)", state.restarts)
        }
        Activity::Changing | Activity::Active if late => {
            format!("{name} is not ready after {} s", START_DEADLINE.as_secs())
        }
        Activity::Changing | Activity::Active => format!("{name} is not ready"),
    };
    failure(format!("start {name}"), message)
        .detail(journal(root, name))
        .hint(format!("see `journalctl -u {name}` on the host"))
}

fn journal(root: &Root, name: &str) -> String {
    let arguments = ["-u", name, "-n", JOURNAL_LINES, "--no-pager", "-o", "cat"];
    match root.run("journalctl", &arguments, SYSTEMCTL_DEADLINE) {
        Ok(ran) => tail(&ran.stdout),
        Err(error) => format!("the journal cannot be read: {error}"),
    }
}

fn fingerprint_path(root: &Root, name: &str) -> std::path::PathBuf {
    root.path(&format!("{STATE}/units/{name}"))
}

/// Written only after the start: a crash in between costs one start more, never one less.
fn remember(root: &Root, name: &str, fingerprint: &str) -> Result<(), HostFailure> {
    let told = |error: io::Error| failure(format!("remember {name}'s start"), error.to_string());
    fs::create_dir_all(root.path(&format!("{STATE}/units"))).map_err(told)?;
    files::write(&fingerprint_path(root, name), 0o600, fingerprint.as_bytes()).map_err(told)
}

/// Stops units, first those that came last, and starts them no more at boot.
pub fn stop(root: &Root, names: &[&str]) -> Result<(), HostFailure> {
    if names.is_empty() {
        return Ok(());
    }
    let last_first = names.iter().rev().copied();
    let with = |words: &[&'static str]| {
        words.iter().copied().chain(last_first.clone()).collect::<Vec<&str>>()
    };
    let step = format!("stop {}", names.join(", "));
    let stopped = root.run("systemctl", &with(&["stop", "--"]), STOP_DEADLINE);
    if !stopped.as_ref().is_ok_and(|ran| ran.success) {
        // A unit may sit in its stop for minutes; then its processes are ended at once. What is
        // not loaded cannot be stopped, which is what we want.
        let _ = root.run("systemctl", &with(&["kill", "--signal=KILL", "--"]), SYSTEMCTL_DEADLINE);
    }
    let states = wait_until(SYSTEMCTL_DEADLINE, || {
        let states = observe(root, names)?;
        let down =
            |state: &UnitState| matches!(state.active, Activity::Inactive | Activity::Failed);
        Ok(states.values().all(down).then_some(()))
    })?;
    if states.is_none() {
        return Err(
            failure(step, "a unit does not stop").hint("see `systemctl status` on the host")
        );
    }
    disable(root, names)?;
    for name in names {
        let told = |error: io::Error| failure(format!("forget {name}'s start"), error.to_string());
        files::remove_file(&fingerprint_path(root, name)).map_err(told)?;
    }
    Ok(())
}

/// Takes units out of the boot. systemd refuses all if one of them has no file, as on a host that
/// was installed only in part; so those are left out, and links without a file are taken away.
fn disable(root: &Root, names: &[&str]) -> Result<(), HostFailure> {
    let has_file = |name: &&str| root.path(&unit_path(name)).exists();
    let with_file: Vec<&str> = names.iter().copied().filter(has_file).collect();
    if !with_file.is_empty() {
        let mut arguments = vec!["--no-reload", "--quiet", "disable", "--"];
        arguments.extend(with_file);
        // What it did not do, the loop below does.
        let _ = root.run("systemctl", &arguments, SYSTEMCTL_DEADLINE);
    }
    for entry in fs::read_dir(root.path(place::UNITS)).into_iter().flatten().flatten() {
        let target = entry.path();
        if !target.extension().is_some_and(|kind| kind == "wants" || kind == "requires") {
            continue;
        }
        for link in names.iter().map(|name| target.join(name)).filter(|link| link.is_symlink()) {
            fs::remove_file(&link).map_err(|error| {
                let step = format!("remove {}", root.on_host(&link));
                failure(step, error.to_string()).hint("the unit would be started at the next boot")
            })?;
        }
    }
    Ok(())
}

/// After the files of these units are gone.
pub fn forget(root: &Root, names: &[&str]) -> Result<(), HostFailure> {
    reload(root, &[])?;
    let mut arguments = vec!["reset-failed", "--"];
    arguments.extend(names);
    // It fails for units that systemd does not remember, which is what we want.
    let _ = root.run("systemctl", &arguments, SYSTEMCTL_DEADLINE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_from_what_systemctl_shows() {
        let text = "MainPID=17\nNRestarts=2\nId=a.service\nActiveState=active\nUnitFileState=enabled\n\
            NeedDaemonReload=no\n\nMainPID=0\nId=b.service\nActiveState=activating\nJob=9\n\
            UnitFileState=\nNeedDaemonReload=yes\n";
        let states = parse_states(text);
        let a = UnitState {
            active: Activity::Active,
            enabled: true,
            main_pid: 17,
            restarts: 2,
            ..UnitState::default()
        };
        assert_eq!(states["a.service"], a);
        let b = UnitState {
            active: Activity::Changing,
            stale: true,
            job: true,
            ..UnitState::default()
        };
        assert_eq!(states["b.service"], b);
    }

    #[test]
    fn a_unit_that_dies_again_and_again_is_not_waited_for() {
        let dying =
            |restarts| UnitState { active: Activity::Changing, restarts, ..Default::default() };
        assert!(!is_settled(&dying(RESTARTS_LIMIT - 1)));
        assert!(is_settled(&dying(RESTARTS_LIMIT)));
        assert!(!is_settled(&UnitState {
            active: Activity::Active,
            job: true,
            ..Default::default()
        }));
    }
}
