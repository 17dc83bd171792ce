//! Programs that the agent runs: what takes the node down, and what puts an update in place.

use std::{
    ffi::OsStr,
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};
use wharf_core::node::requester::Power;

use crate::programs::{Group, Mark, ProgramsError};

/// It only hands the order to systemd.
const ORDER: Duration = Duration::from_secs(60);
/// An image of some gigabytes is written to a slow disk by then.
const UPDATE: Duration = Duration::from_secs(3600);
/// So much of what a program printed is kept, from its end.
const TAIL: usize = 2000;
/// By whomever.
const EXECUTABLE: u32 = 0o111;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("no command is configured")]
    Missing,
    #[error("{program} does not exist")]
    Absent { program: String },
    #[error("{program} is no file that can be run")]
    NotAProgram { program: String },
    #[error("cannot run {program}")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} failed ({status}){}", said(output))]
    Failed { program: String, status: ExitStatus, output: String },
    #[error("{program} did not end within {} s and was killed{}", within.as_secs(), said(output))]
    TimedOut { program: String, within: Duration, output: String },
    #[error("{program} did not end within {} s and may still be running", within.as_secs())]
    Stuck {
        program: String,
        within: Duration,
        #[source]
        source: ProgramsError,
    },
}

fn said(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(": {output}") }
}

/// Programs with their arguments that take the node down.
#[derive(Debug, Clone)]
pub struct Orders {
    pub reboot: Vec<String>,
    pub shutdown: Vec<String>,
}

impl Default for Orders {
    fn default() -> Self {
        let systemctl = |verb: &str| vec!["systemctl".to_owned(), verb.to_owned()];
        Self { reboot: systemctl("reboot"), shutdown: systemctl("poweroff") }
    }
}

impl Orders {
    /// Tells the node to go down. It is still up when this returns.
    pub async fn give(&self, power: Power, mark: &Mark) -> Result<(), CommandError> {
        let order = match power {
            Power::Reboot => &self.reboot,
            Power::Shutdown => &self.shutdown,
        };
        run(order, &[], ORDER, mark).await
    }
}

/// Whether a command could be run now. It is not run, so that it may still fail.
pub fn check(command: &[String]) -> Result<(), CommandError> {
    let [program, ..] = command else { return Err(CommandError::Missing) };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = match program.contains('/') {
        true => vec![program.into()],
        false => std::env::split_paths(&search).map(|folder| folder.join(program)).collect(),
    };
    let found: Vec<Metadata> = places.iter().filter_map(|place| place.metadata().ok()).collect();
    let can_run = |found: &Metadata| found.is_file() && found.mode() & EXECUTABLE != 0;
    match found.iter().any(can_run) {
        true => Ok(()),
        false if found.is_empty() => Err(CommandError::Absent { program: program.clone() }),
        false => Err(CommandError::NotAProgram { program: program.clone() }),
    }
}

/// Puts an image in place: its path is the last argument.
pub async fn update(command: &[String], image: &Path, mark: &Mark) -> Result<(), CommandError> {
    run(command, &[image.as_os_str()], UPDATE, mark).await
}

/// Whoever gives it up ends it, with all that it started.
async fn run(
    command: &[String],
    more: &[&OsStr],
    within: Duration,
    mark: &Mark,
) -> Result<(), CommandError> {
    let [program, arguments @ ..] = command else { return Err(CommandError::Missing) };
    let program = program.clone();
    let mut command = Command::new(&program);
    mark.put_on(&mut command);
    command.args(arguments).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(source) => return Err(CommandError::Start { program, source }),
    };
    let mut group = Group::of(&child);
    let mut output = Vec::new();
    let ended = timeout(within, wait(&mut child, &mut output)).await;
    match ended {
        Ok(Ok(status)) if status.success() => {
            group.let_go();
            Ok(())
        }
        Ok(Ok(status)) => Err(CommandError::Failed { program, status, output: text(&output) }),
        Ok(Err(source)) => Err(CommandError::Start { program, source }),
        Err(_) => match mark.end_all().await {
            Ok(()) => Err(CommandError::TimedOut { program, within, output: text(&output) }),
            Err(source) => Err(CommandError::Stuck { program, within, source }),
        },
    }
}

/// Whatever the program left running in the background does not hold this up.
async fn wait(child: &mut Child, output: &mut Vec<u8>) -> std::io::Result<ExitStatus> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = {
        let reading =
            async { tokio::join!(keep_tail(stdout, &mut out), keep_tail(stderr, &mut err)) };
        tokio::pin!(reading);
        tokio::select! {
            status = child.wait() => {
                // What it printed last is on its way; more than that need not come.
                let _ = timeout(Duration::from_millis(200), &mut reading).await;
                status
            }
            _ = &mut reading => child.wait().await,
        }
    };
    output.append(&mut out);
    output.append(&mut err);
    status
}

async fn keep_tail(from: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let surplus = kept.len().saturating_sub(TAIL);
        kept.drain(..surplus);
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script, "sh"].map(str::to_owned).into()
    }

    #[tokio::test]
    async fn a_command_gets_the_image_and_its_failure_says_what_it_printed() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, "new").unwrap();
        let copy = format!("cp \"$1\" {}", dir.path().join("copy").display());
        let mark = Mark::new(dir.path(), "test");
        let update = async |command: &[String]| super::update(command, &image, &mark).await;
        update(&shell(&copy)).await.unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("copy")).unwrap(), "new");
        let error = update(&shell("echo first; echo worse >&2; exit 3")).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("first\nworse"), "{text}");
        assert!(matches!(update(&[]).await, Err(CommandError::Missing)));
        let nothing = update(&["/nowhere/program".to_owned()]).await.unwrap_err();
        assert_eq!(nothing.to_string(), "cannot run /nowhere/program");
    }

    #[test]
    fn a_command_is_known_to_be_one_before_it_is_run() {
        use std::{fs, os::unix::fs::PermissionsExt};

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("update");
        let command = vec![path.display().to_string(), "--now".to_owned()];
        let said = |command: &[String]| check(command).map_err(|error| error.to_string());
        assert_eq!(said(&[]), Err("no command is configured".to_owned()));
        assert_eq!(said(&command), Err(format!("{} does not exist", path.display())));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        let no_program = Err(format!("{} is no file that can be run", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(said(&command), no_program);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(said(&command), Ok(()));
        let folder = Err(format!("{} is no file that can be run", dir.path().display()));
        assert_eq!(said(&[dir.path().display().to_string()]), folder);
        assert_eq!(said(&["sh".to_owned()]), Ok(()));
        assert!(said(&["no-such-program".to_owned()]).is_err());
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let (mark, pid) = (Mark::new(dir.path(), "test"), dir.path().join("pid"));
        let script = format!("sleep 600 & echo $! >{}; wait", pid.display());
        let error = run(&shell(&script), &[], Duration::from_secs(2), &mark).await.unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
        assert!(is_dead(&std::fs::read_to_string(&pid).unwrap()));
    }

    #[tokio::test]
    async fn a_command_that_is_given_up_ends_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let (mark, pid) = (Mark::new(dir.path(), "test"), dir.path().join("pid"));
        let script = format!("sleep 600 & echo $! >{0}.new; mv {0}.new {0}; wait", pid.display());
        let command = shell(&script);
        let begun = async {
            while !pid.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            ended = run(&command, &[], Duration::from_secs(600), &mark) => panic!("{ended:?}"),
            () = begun => {}
        }
        let pid = std::fs::read_to_string(&pid).unwrap();
        let dies = async {
            while !is_dead(&pid) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), dies).await.unwrap();
    }

    /// Killed, if perhaps not buried yet.
    fn is_dead(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }
}
