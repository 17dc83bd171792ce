//! Long-running children that never outlive us: each leads a process group of its own, and the
//! whole group ends when we are interrupted.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Short against any build, long against the cost of looking.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Go removes its temporary files when asked politely; after this it is made to end.
const GRACE: Duration = Duration::from_secs(3);
/// Enough of a log to show the error of a compiler.
const TAIL_LINES: usize = 20;

/// Says whether the user wants us to stop.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// The first Ctrl-C (or SIGTERM, SIGHUP) asks for an orderly end; the second ends us at once.
    pub fn on_signals() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Self(flag))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Prints from time to time that a step is still busy.
#[derive(Debug)]
pub struct Progress {
    title: String,
    every: Duration,
    begun: Instant,
    next: Duration,
}

impl Progress {
    pub fn new(title: &str, every: Duration) -> Self {
        Self { title: title.to_owned(), every, begun: Instant::now(), next: every }
    }

    fn tick(&mut self) {
        let elapsed = self.begun.elapsed();
        if elapsed >= self.next {
            eprintln!("{} … busy for {:.0} s", self.title, elapsed.as_secs_f64());
            self.next = elapsed + self.every;
        }
    }
}

/// Runs a command to its end with its output in `log`. A failure shows the end of that.
pub fn run(
    command: &mut Command,
    log: &Path,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = File::options().append(true).create(true).open(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let mut group = Group(command.spawn().with_context(|| format!("{name} cannot be started"))?);
    let status = loop {
        if let Some(status) = group.0.try_wait()? {
            break status;
        }
        if interrupt.is_set() {
            group.end();
            bail!("{name} was interrupted");
        }
        progress.tick();
        std::thread::sleep(LOOK_EVERY);
    };
    if status.success() {
        return Ok(());
    }
    bail!("{name} failed ({}):\n{}", in_words(status), tail(log));
}

fn in_words(status: ExitStatus) -> String {
    status.code().map_or_else(|| "ended by a signal".to_owned(), |code| format!("exit code {code}"))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// A child and all that it started.
struct Group(Child);

impl Group {
    fn end(&mut self) {
        self.signal(Signal::INT);
        let begun = Instant::now();
        while begun.elapsed() < GRACE && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
        self.signal(Signal::KILL);
        _ = self.0.wait();
    }

    fn signal(&self, signal: Signal) {
        // It fails when the group is gone already.
        _ = kill_process_group(Pid::from_child(&self.0), signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}
