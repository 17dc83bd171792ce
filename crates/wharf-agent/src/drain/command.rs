//! Programs that the agent runs: what takes the node down, and what puts an update in place.

use std::{
    ffi::OsStr,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};
use wharf_core::node::requester::Power;

/// It only hands the order to systemd.
const ORDER: Duration = Duration::from_secs(60);
/// An image of some gigabytes is written to a slow disk by then.
const UPDATE: Duration = Duration::from_secs(3600);
/// So much of what a program printed is kept, from its end.
const TAIL: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("no command is configured")]
    Missing,
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
    pub async fn give(&self, power: Power) -> Result<(), CommandError> {
        let order = match power {
            Power::Reboot => &self.reboot,
            Power::Shutdown => &self.shutdown,
        };
        run(order, &[], ORDER).await
    }
}

/// Puts an image in place: its path is the last argument.
pub async fn update(command: &[String], image: &Path) -> Result<(), CommandError> {
    run(command, &[image.as_os_str()], UPDATE).await
}

async fn run(command: &[String], more: &[&OsStr], within: Duration) -> Result<(), CommandError> {
    let [program, arguments @ ..] = command else { return Err(CommandError::Missing) };
    let mut child = Command::new(program)
        .args(arguments)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // With all that it starts, so that nothing is left of it.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| CommandError::Start { program: program.clone(), source })?;
    let group = child.id();
    let mut output = Vec::new();
    let ended = timeout(within, wait(&mut child, &mut output)).await;
    let program = program.clone();
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(CommandError::Failed { program, status, output: text(&output) }),
        Ok(Err(source)) => Err(CommandError::Start { program, source }),
        Err(_) => {
            let pid = group.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
            if let Some(pid) = pid {
                // It may have ended just now.
                let _ = kill_process_group(pid, Signal::KILL);
            }
            // One that hangs in the kernel dies when the kernel lets it; nobody waits for that.
            let _ = timeout(BURIED, child.wait()).await;
            Err(CommandError::TimedOut { program, within, output: text(&output) })
        }
    }
}

/// A process that was killed is gone at once, if it can be.
const BURIED: Duration = Duration::from_secs(5);

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
        update(&shell(&copy), &image).await.unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("copy")).unwrap(), "new");
        let error = update(&shell("echo first; echo worse >&2; exit 3"), &image).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("first\nworse"), "{text}");
        assert!(matches!(update(&[], &image).await, Err(CommandError::Missing)));
        let nothing = update(&["/nowhere/program".to_owned()], &image).await.unwrap_err();
        assert_eq!(nothing.to_string(), "cannot run /nowhere/program");
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! >{}; wait", pid.display());
        let error = run(&shell(&script), &[], Duration::from_secs(2)).await.unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
        let pid = std::fs::read_to_string(&pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // Killed, if perhaps not buried yet.
        let is_dead = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let dies = async {
            while !is_dead() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), dies).await.unwrap();
    }
}
