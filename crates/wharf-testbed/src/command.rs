//! Running the machine's own tools.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait::{wait, wait_for};

/// How long a tool may take to end after it was asked to (SIGTERM), before it is killed.
const ASKED_TO_END: Duration = Duration::from_secs(10);

/// A command that also finds tools in the system directories, which are not on everyone's PATH.
pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path());
    command
}

pub(crate) fn find_tool(program: &str) -> Option<PathBuf> {
    let path = search_path();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
    path
}

/// Runs a short command in a process group of its own (a Ctrl-C in the terminal must not strike
/// half of a step) and gives its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .process_group(0)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", in_words(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed ({}): {}",
            in_words(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that may take minutes, with its output in `log`. An interrupt ends it too.
pub(crate) fn run_long(command: &mut Command, log: &Path, deadline: Duration) -> Result<()> {
    let file = std::fs::File::create(log).with_context(|| format!("cannot write {log:?}"))?;
    let words = in_words(command);
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {words}"))?;
    let status = match wait_for(&words, deadline, || Ok(child.try_wait()?)) {
        Ok(status) => status,
        Err(error) => {
            end(&mut child)?;
            return Err(error);
        }
    };
    if !status.success() {
        bail!("{words} failed ({status}):\n{}", tail(log));
    }
    Ok(())
}

fn end(child: &mut std::process::Child) -> Result<()> {
    use rustix::process::{Pid, Signal, kill_process_group};
    let group = Pid::from_child(child);
    // An error here means that the group is gone, which is what we want.
    let _ = kill_process_group(group, Signal::TERM);
    if wait(ASKED_TO_END, || Ok(child.try_wait()?))?.is_none() {
        let _ = kill_process_group(group, Signal::KILL);
        child.wait()?;
    }
    Ok(())
}

/// The end of a log file, for an error message.
pub(crate) fn tail(log: &Path) -> String {
    const LINES: usize = 20;
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
}

fn in_words(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    // Enough to know it again: a whole script as an argument would bury the message.
    for argument in command.get_args().take(8) {
        let word = argument.to_string_lossy();
        words.push(word.lines().next().unwrap_or_default().to_owned());
    }
    words.join(" ")
}
