//! The program that serves a console, as long as it is wanted.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStderr, Command},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};
use wharf_core::node::console::Console;

use crate::{
    config::Config,
    programs::{Group, Mark, ProgramsError},
};

/// What ended sooner has not served.
const STEADY: Duration = Duration::from_secs(10);
/// Between the polite word and the end.
const GRACE: Duration = Duration::from_secs(3);
/// Of what a program says on its standard error, the end counts.
const LONGEST_WORD: usize = 400;
/// What it said last may come after the news of its end.
const LAST_WORD: Duration = Duration::from_millis(200);

/// At most one program at a time.
pub struct Served {
    command: Vec<String>,
    namespace: String,
    kubeconfig: Option<PathBuf>,
    mark: Mark,
    /// An agent that was killed may have left a program, which holds its port and shows the screen.
    left: bool,
    running: Option<Running>,
    /// Nothing is begun before.
    not_before: Instant,
    /// Why the last one did not serve, until one does.
    fault: Option<String>,
}

struct Running {
    console: Console,
    /// With all that it started, so that nothing is left of it.
    group: Group,
    child: Child,
    begun: Instant,
    said: Said,
}

/// The end of what a program says on its standard error.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    async fn hear(self, mut stderr: ChildStderr) {
        let mut piece = [0; LONGEST_WORD];
        while let Ok(count @ 1..) = stderr.read(&mut piece).await {
            let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            said.extend(piece.iter().take(count));
            let excess = said.len().saturating_sub(LONGEST_WORD);
            said.drain(..excess);
        }
    }

    fn last_line(&self) -> String {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&said);
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }
}

impl Served {
    pub fn new(config: &Config) -> Self {
        Self {
            command: config.console_command.clone(),
            namespace: config.app_namespace.clone(),
            kubeconfig: config.kubeconfig.clone(),
            mark: Mark::new(&config.run_dir, "console"),
            left: true,
            running: None,
            not_before: Instant::now(),
            fault: None,
        }
    }

    /// Ends what an agent before this one left, once.
    pub async fn end_left(&mut self) -> Result<(), ProgramsError> {
        if self.left {
            self.mark.end_all().await?;
            self.left = false;
        }
        Ok(())
    }

    pub fn may_have_left(&self) -> bool {
        self.left
    }

    /// Makes the program serve this console and no other. Says what keeps it from that.
    pub async fn serve(&mut self, console: Option<&Console>) -> Option<&str> {
        self.ensure(console).await;
        let steady = |running: &Running| running.begun.elapsed() >= STEADY;
        if console.is_none() || self.running.as_ref().is_some_and(steady) {
            self.fault = None;
        }
        self.fault.as_deref()
    }

    async fn ensure(&mut self, console: Option<&Console>) {
        if self.running.as_ref().map(|running| &running.console) == console {
            return;
        }
        self.end().await;
        let Some(console) = console else { return };
        if self.left || self.command.is_empty() || Instant::now() < self.not_before {
            return;
        }
        self.not_before = Instant::now() + STEADY;
        match self.start(console) {
            Ok(mut child) => {
                info!(vmi = console.vmi, port = console.port, "the console's program was started");
                let (console, group, said) = (console.clone(), Group::of(&child), Said::default());
                // Ends with the program, and whoever else has its standard error.
                child.stderr.take().map(|stderr| tokio::spawn(said.clone().hear(stderr)));
                self.running = Some(Running { console, child, group, begun: Instant::now(), said });
            }
            Err(error) => {
                let program = self.command.first().map(String::as_str).unwrap_or_default();
                self.fault = Some(format!("{program} cannot be started: {error}"));
            }
        }
    }

    fn start(&self, console: &Console) -> std::io::Result<Child> {
        let fill = |part: &String| {
            part.replace("{vmi}", &console.vmi)
                .replace("{port}", &console.port.to_string())
                .replace("{namespace}", &self.namespace)
        };
        let mut parts = self.command.iter().map(fill);
        let mut command = Command::new(parts.next().unwrap_or_default());
        command.args(parts);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        self.mark.put_on(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    }

    /// Returns when the program ended by itself; never while there is none.
    pub async fn ended(&mut self) {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = running.child.wait().await;
        sleep(LAST_WORD).await;
        let said = running.said.last_line();
        let said = if said.is_empty() { said } else { format!(": {said}") };
        self.running = None;
        self.fault = Some(match ended {
            Ok(status) => format!("it ended by itself ({status}){said}; it is started again"),
            Err(error) => format!("it is lost: {error}"),
        });
    }

    /// Ends the program, if there is one.
    pub async fn end(&mut self) {
        let Some(Running { mut child, group, .. }) = self.running.take() else { return };
        for signal in [Signal::TERM, Signal::KILL] {
            if let Err(error) = group.signal(signal) {
                warn!(%error, "the console's program cannot be told to end");
            }
            if timeout(GRACE, child.wait()).await.is_ok() {
                return;
            }
        }
    }
}
