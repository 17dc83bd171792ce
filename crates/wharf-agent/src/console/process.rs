//! The program that serves a console, as long as it is wanted.

use std::{path::PathBuf, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::{Instant, timeout},
};
use tracing::info;
use wharf_core::node::console::Console;

use crate::config::Config;

/// What ended sooner has not served.
const STEADY: Duration = Duration::from_secs(10);
/// Between the polite word and the end.
const GRACE: Duration = Duration::from_secs(3);

/// At most one program at a time.
pub struct Served {
    command: Vec<String>,
    namespace: String,
    kubeconfig: Option<PathBuf>,
    running: Option<Running>,
    /// Nothing is begun before.
    not_before: Instant,
    /// Why the last one did not serve, until one does.
    fault: Option<String>,
}

struct Running {
    console: Console,
    child: Child,
    begun: Instant,
}

impl Served {
    pub fn new(config: &Config) -> Self {
        Self {
            command: config.console_command.clone(),
            namespace: config.app_namespace.clone(),
            kubeconfig: config.kubeconfig.clone(),
            running: None,
            not_before: Instant::now(),
            fault: None,
        }
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
        if self.command.is_empty() || Instant::now() < self.not_before {
            return;
        }
        self.not_before = Instant::now() + STEADY;
        match self.start(console) {
            Ok(child) => {
                info!(vmi = console.vmi, port = console.port, "the console's program was started");
                self.running =
                    Some(Running { console: console.clone(), child, begun: Instant::now() });
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
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // With all that it starts, so that nothing is left of it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
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
        let Some(Running { mut child, .. }) = self.running.take() else { return };
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        for signal in [Signal::TERM, Signal::KILL] {
            if let Some(group) = group {
                // It may have ended just now.
                let _ = kill_process_group(group, signal);
            }
            if timeout(GRACE, child.wait()).await.is_ok() {
                return;
            }
        }
    }
}
