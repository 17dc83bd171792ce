//! The remote console of a virtual machine: the file that asks for it, and the program that serves it.
//!
//! Who has the console is decided in `wharf-core` (`node::console`). The file is for whoever watches
//! it on a device; the program ([`process`]) is started, watched over and ended here, unless none is
//! configured.

use std::{collections::BTreeSet, io, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::info;
use wharf_api::node_files::AppInstanceConfig;
use wharf_core::{
    node::{
        console::{App, Console, Decision, decide_console, may_be_for, render_run_file},
        names::app_name,
    },
    words::chain,
};

use crate::{
    aside::aside,
    files::Known,
    health::Reporter,
    host,
    kube::Kube,
    tasks::{Context, Ended},
};

mod process;

use process::Served;

const FILE: &str = "zedkube/vmiVNC.run";
const MODE: u32 = 0o644;
/// How soon a machine that came, went or moved is noticed while a console is wanted.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const MACHINES: &str = "virtual machines";
const PROGRAM: &str = "the console's program";
const LEFT: &str = "a program of an earlier agent";
const UNREADABLE: &str = "it stays, since the application that it is for cannot be read";

pub async fn run(context: Context, reporter: Reporter, kube: Kube) -> Ended {
    let mut apps = context.files.watch::<AppInstanceConfig>("zedagent");
    if context.stop.run_until_cancelled(apps.complete()).await.is_none() {
        return Ok(());
    }
    let mut desk = Desk {
        kube,
        namespace: context.config.app_namespace.clone(),
        path: context.config.run_dir.join(FILE),
        served: Served::new(&context.config),
        current: None,
        waiting: Vec::new(),
    };
    loop {
        let known = apps.known();
        let wanted = consoles(&known);
        let look = desk.look(&wanted, &known.junk, &reporter);
        if context.stop.run_until_cancelled(look).await.is_none() {
            break;
        }
        let busy = wanted.iter().any(|app| app.wanted);
        tokio::select! {
            () = context.stop.cancelled() => break,
            () = apps.changed() => {}
            () = desk.served.ended() => {}
            () = sleep(LOOK_EVERY), if busy || desk.served.may_have_left() => {}
        }
    }
    // The file stays: the next agent goes on with the same console.
    desk.served.end().await;
    Ok(())
}

fn consoles(known: &Known<AppInstanceConfig>) -> Vec<App> {
    let app = |(uuid, app): (&String, &Arc<AppInstanceConfig>)| App {
        uuid: uuid.clone(),
        kube_name: app_name(&app.display_name, uuid),
        wanted: app.remote_console,
        vnc_display: app.fixed_resources.vnc_display,
    };
    known.values.iter().flat_map(|apps| apps.iter()).map(app).collect()
}

struct Desk {
    kube: Kube,
    namespace: String,
    path: PathBuf,
    served: Served,
    current: Option<Console>,
    /// Applications that wait for the console.
    waiting: Vec<String>,
}

impl Desk {
    async fn look(&mut self, apps: &[App], unreadable: &BTreeSet<String>, reporter: &Reporter) {
        match self.served.end_left().await {
            Ok(()) => reporter.clear(LEFT),
            Err(error) => reporter.fault(LEFT, &chain(&error)),
        }
        let subject = self.path.display().to_string();
        if self.current.is_none() && self.is_for_one_of(unreadable) {
            reporter.fault(&subject, UNREADABLE);
            return;
        }
        let busy = apps.iter().any(|app| app.wanted);
        let machines = if busy { self.machines(reporter).await } else { Some(Vec::new()) };
        // After a restart nobody remembers whose console it is: before anybody answers, it stays.
        if machines.is_none() && self.current.is_none() && self.path.exists() {
            return;
        }
        let decision = decide_console(apps, machines.as_deref(), self.current.as_ref());
        self.tell(&decision, reporter);
        if decision.console != self.current {
            info!(console = ?decision.console, "the console changes hands");
        }
        match aside(|| self.write(decision.console.as_ref())) {
            Ok(()) => reporter.clear(&subject),
            Err(error) => reporter.fault(&subject, &error.to_string()),
        }
        match self.served.serve(decision.console.as_ref()).await {
            Some(fault) => reporter.fault(PROGRAM, fault),
            None => reporter.clear(PROGRAM),
        }
        self.current = decision.console;
        reporter.ok();
    }

    /// After a restart the file is all that tells whose console it is. Nobody knows whether an
    /// application that cannot be read still wants it, so that it is not taken away.
    fn is_for_one_of(&self, apps: &BTreeSet<String>) -> bool {
        let text = aside(|| std::fs::read_to_string(&self.path)).unwrap_or_default();
        apps.iter().any(|app| may_be_for(&text, app))
    }

    /// `None` while the cluster does not answer.
    async fn machines(&self, reporter: &Reporter) -> Option<Vec<String>> {
        let Some(cluster) = self.kube.reader.borrow().clone() else {
            reporter.fault(MACHINES, "there is no way to the cluster yet");
            return None;
        };
        match cluster.virtual_machines(&self.namespace).await {
            Ok(machines) => {
                reporter.clear(MACHINES);
                Some(machines)
            }
            Err(error) => {
                reporter.fault(MACHINES, &chain(&error));
                None
            }
        }
    }

    fn tell(&mut self, decision: &Decision, reporter: &Reporter) {
        let now: Vec<String> = decision.waits.iter().map(|(app, _)| app.clone()).collect();
        for app in self.waiting.iter().filter(|app| !now.contains(app)) {
            reporter.clear(app);
        }
        for (app, wait) in &decision.waits {
            reporter.fault(app, &wait.to_string());
        }
        self.waiting = now;
    }

    fn write(&self, console: Option<&Console>) -> io::Result<()> {
        let Some(console) = console else {
            return host::files::remove_file(&self.path).map(drop);
        };
        let text = render_run_file(console);
        if std::fs::read(&self.path).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        host::files::write(&self.path, MODE, text.as_bytes())
    }
}
