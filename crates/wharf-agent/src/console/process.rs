//! The program that serves a console, as long as it is wanted.

use std::{path::PathBuf, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{
    process::{Child, Command},
    time::{Instant, timeout},
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
            Ok(child) => {
                info!(vmi = console.vmi, port = console.port, "the console's program was started");
                let (console, group) = (console.clone(), Group::of(&child));
                self.running = Some(Running { console, child, group, begun: Instant::now() });
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
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }

    /// Returns when the program ended by itself; never while there is none.
    pub async fn ended(&mut self) {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = running.child.wait().await;
        self.running = None;
        self.fault = Some(match ended {
            Ok(status) => format!("it ended by itself ({status}) and is started again"),
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
