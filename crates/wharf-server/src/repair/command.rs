//! Runs a command to its end, or ends it.
//!
//! Guarantees: it returns within its time-out and two seconds, also when the command ignores
//! signals, or leaves a child behind that holds its output. A call that is dropped kills the
//! command with all its children. Whatever the command writes is read, so that it never waits for
//! us, and no more than the end of it is kept.
//!
//! Assumption: children that shall outlive a command leave its process group and its output
//! (`setsid`, and output elsewhere).

use std::{convert::Infallible, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, ChildStderr, ChildStdout},
    time::{Instant, timeout, timeout_at},
};
use wharf_core::repair::{Command, End, Exit};

/// Between asking a command to end and killing it.
const GRACE: Duration = Duration::from_secs(2);
/// How long output is waited for once the command itself has ended: what a child of it writes later
/// is not the command's.
const LATE_OUTPUT: Duration = Duration::from_secs(1);
/// Of each stream: more than an entry keeps, so that a character cut in half is not in it.
const KEPT: usize = 4096;

pub(super) async fn run(command: &Command) -> End {
    let begun = Instant::now();
    let mut process = match start(command) {
        Ok(process) => process,
        Err(error) => return not_started(command, &error),
    };
    let group = Group(process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let mut output =
        Output { stdout: Tail::of(process.stdout.take()), stderr: Tail::of(process.stderr.take()) };
    // Reading goes on all the time, so that the command never waits for us.
    let ended = async {
        tokio::select! {
            status = process.wait() => status,
            never = output.read_for_ever() => match never {},
        }
    };
    let status = match command.timeout {
        None => Some(ended.await),
        Some(limit) => timeout_at(begun + limit, ended).await.ok(),
    };
    let exit = match status {
        Some(status) => {
            if timeout(LATE_OUTPUT, output.read()).await.is_err() {
                group.signal(Signal::KILL);
            }
            // Nobody else waits for our children, so that there is always a status.
            status.map_or_else(|error| Exit::NotStarted(error.to_string()), exit_of)
        }
        None => {
            group.signal(Signal::TERM);
            let both = async { tokio::join!(process.wait(), output.read()) };
            let _ = timeout(GRACE, both).await;
            group.signal(Signal::KILL);
            Exit::TimedOut
        }
    };
    group.leave();
    End { exit, stdout: output.stdout.text(), stderr: output.stderr.text() }
}

fn start(command: &Command) -> std::io::Result<Child> {
    let (program, arguments) = match command.argv.split_first() {
        Some((program, arguments)) => (program.as_str(), arguments),
        None => ("", Default::default()),
    };
    tokio::process::Command::new(program)
        .args(arguments)
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

fn not_started(command: &Command, error: &std::io::Error) -> End {
    let program = command.argv.first().map(String::as_str).unwrap_or_default();
    let exit = Exit::NotStarted(format!("{program}: {error}"));
    End { exit, stdout: String::new(), stderr: String::new() }
}

fn exit_of(status: std::process::ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

/// The command and all its children that have not left it; they are killed when this is dropped.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // An error means that nobody is left.
            let _ = kill_process_group(leader, signal);
        }
    }

    fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// What a command writes.
struct Output {
    stdout: Tail<ChildStdout>,
    stderr: Tail<ChildStderr>,
}

impl Output {
    /// Reads until nobody can write any more. It may be dropped and begun again.
    async fn read(&mut self) {
        tokio::join!(self.stdout.read(), self.stderr.read());
    }

    async fn read_for_ever(&mut self) -> Infallible {
        self.read().await;
        std::future::pending().await
    }
}

/// The end of one stream.
struct Tail<S> {
    stream: Option<S>,
    bytes: Vec<u8>,
    /// There was more before.
    cut: bool,
}

impl<S: AsyncRead + Unpin> Tail<S> {
    fn of(stream: Option<S>) -> Self {
        Self { stream, bytes: Vec::new(), cut: false }
    }

    async fn read(&mut self) {
        let mut buffer = [0; KEPT];
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => self.stream = None,
                Ok(count) => self.push(buffer.get(..count).unwrap_or_default()),
            }
        }
    }

    fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
        let surplus = self.bytes.len().saturating_sub(KEPT);
        self.cut |= surplus > 0;
        self.bytes.drain(..surplus);
    }

    /// A beginning that is missing shows: the rest must not pass for the whole.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        if self.cut { format!("…{text}") } else { text.into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::Timestamp;
    use wharf_core::repair::CommandKind;

    use super::*;

    /// These machines are noisy; what takes so much longer than it should is wrong all the same.
    const NOISE: Duration = Duration::from_secs(20);

    fn command(script: &str, timeout_millis: u64) -> Command {
        Command {
            kind: CommandKind::Repair { attempt: 1 },
            argv: ["sh", "-c", script, "name", "10.0.0.7"].map(str::to_owned).to_vec(),
            env: vec![("WHARF_REPAIR_INDEX", "42".to_owned())],
            timeout: (timeout_millis > 0).then(|| Duration::from_millis(timeout_millis)),
            begun: Timestamp::UNIX_EPOCH,
        }
    }

    async fn timed(command: &Command) -> (End, Duration) {
        let begun = Instant::now();
        let end = run(command).await;
        (end, begun.elapsed())
    }

    /// Waits until the process that wrote its id into a file is gone.
    async fn is_gone(file: &Path) {
        let wait = async {
            loop {
                let id: Option<i32> =
                    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
                let pid = id.and_then(Pid::from_raw);
                // A zombie of another parent counts as there until that one reaps it.
                if pid.is_some_and(|pid| {
                    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
                    stat.map_or(true, |stat| stat.contains(") Z "))
                }) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(NOISE, wait).await.unwrap();
    }

    #[tokio::test]
    async fn a_command_gets_the_address_and_the_environment_and_no_input() {
        let script = "read line; echo \"$1 $WHARF_REPAIR_INDEX [$line]\"; echo bad >&2; exit 3";
        let end = run(&command(script, 10_000)).await;
        assert_eq!(end.exit, Exit::Code(3));
        assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("10.0.0.7 42 []\n", "bad\n"));
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_asked_and_one_that_does_not_listen_is_killed() {
        let (end, took) = timed(&command("echo begun; sleep 600", 300)).await;
        assert_eq!((end.exit, end.stdout.as_str()), (Exit::TimedOut, "begun\n"));
        assert!(took < GRACE, "it ended when it was asked: {took:?}");
        let (end, took) = timed(&command("trap '' TERM; while :; do sleep 1; done", 300)).await;
        assert_eq!(end.exit, Exit::TimedOut);
        assert!(took >= GRACE && took < GRACE + NOISE, "{took:?}");
    }

    #[tokio::test]
    async fn children_that_hold_the_output_neither_delay_the_end_nor_live_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let child = format!("sh -c 'echo $$ > {}; exec sleep 600' &", file.display());
        // The command ends well, its child stays.
        let (end, took) = timed(&command(&format!("{child} sleep 0.2; echo done"), 60_000)).await;
        assert_eq!((end.exit, end.stdout.as_str()), (Exit::Code(0), "done\n"));
        assert!(took < NOISE, "{took:?}");
        is_gone(&file).await;
        // Both hang, and the child does not listen.
        let deaf = format!("(trap '' TERM; {child} wait) & wait");
        let (end, took) = timed(&command(&deaf, 300)).await;
        assert_eq!(end.exit, Exit::TimedOut);
        assert!(took < GRACE + NOISE, "{took:?}");
        is_gone(&file).await;
    }

    #[tokio::test]
    async fn a_flood_is_read_to_its_end_and_only_its_tail_is_kept() {
        let script = "head -c 100000000 /dev/zero | tr '\\0' x; printf 'the end'";
        let end = run(&command(script, 60_000)).await;
        assert_eq!(end.exit, Exit::Code(0));
        assert_eq!(end.stdout.len(), KEPT + "…".len());
        assert!(end.stdout.starts_with('…') && end.stdout.ends_with("xthe end"));
        let blanks = "head -c 100000 /dev/zero | tr '\\0' ' '; echo true";
        let end = run(&command(blanks, 60_000)).await;
        let healthy = wharf_core::repair::is_healthy(Some(0), &end.stdout);
        assert!(!healthy, "the end of a flood is not the whole answer");
    }

    #[tokio::test]
    async fn how_it_ended_is_told_in_every_case() {
        assert_eq!(run(&command("kill -9 $$", 10_000)).await.exit, Exit::Signal(9));
        assert_eq!(run(&command("exit 0", 0)).await.exit, Exit::Code(0));
        let mut missing = command("", 10_000);
        missing.argv = vec!["/nowhere/at-all".to_owned(), "10.0.0.7".to_owned()];
        let Exit::NotStarted(why) = run(&missing).await.exit else { panic!("it was started") };
        assert_eq!(why, "/nowhere/at-all: No such file or directory (os error 2)");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("no-program");
        std::fs::write(&file, "").unwrap();
        missing.argv[0] = file.display().to_string();
        let Exit::NotStarted(why) = run(&missing).await.exit else { panic!("it was started") };
        assert!(why.contains("Permission denied"), "{why}");
    }

    #[tokio::test]
    async fn one_that_is_dropped_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sh -c 'echo $$ > {}; exec sleep 600'", file.display());
        let task = tokio::spawn(async move { run(&command(&script, 0)).await });
        let written = async {
            while std::fs::read_to_string(&file).unwrap_or_default().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(NOISE, written).await.unwrap();
        task.abort();
        is_gone(&file).await;
    }
}
