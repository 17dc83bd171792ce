//! The files that the gate decides on.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::time::Instant;
use wharf_api::node_files::{
    self, DisruptionGuard, EdgeNodeClusterConfig, EdgeNodeInfo, GLOBAL, NodeDrainRequest,
    NodeDrainStatus,
};
use wharf_core::node::{
    gate::{FORCE_FILES, Forced, Guard, GuardWord, Request, Requests, choose_force, decide_guard},
    names::node_name,
};

use crate::{
    aside::aside,
    files::{Subscription, read_bytes},
    health::{AGENT, Reporter},
    tasks::Context,
};

/// Who asks for device operations, and who for updates.
pub const DEVICE_AGENT: &str = "zedagent";
pub const UPDATE_AGENT: &str = "baseosmgr";
const REQUESTS: &str = "requests for drains";
const UNREADABLE: &str =
    "one cannot be read; nothing is begun or given back until it can, or is removed";

/// What others say to the gate.
pub struct Inputs {
    device_operation: Subscription<NodeDrainRequest>,
    update: Subscription<NodeDrainRequest>,
    /// In memory, and as it outlives a reboot.
    cluster: [Subscription<EdgeNodeClusterConfig>; 2],
    guard: Subscription<DisruptionGuard>,
    /// There is a server whose word it is.
    server: bool,
    /// When there last was a word of it, or this was opened.
    heard_at: Instant,
    force: ForceFiles,
}

/// What they say now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub clustered: bool,
    pub requests: Requests,
    pub guard: Guard,
    pub force: Option<Forced>,
}

impl Inputs {
    pub fn open(context: &Context) -> Self {
        let files = &context.files;
        Self {
            device_operation: files.watch(DEVICE_AGENT),
            update: files.watch(UPDATE_AGENT),
            cluster: [files.watch(DEVICE_AGENT), files.persistent().watch(DEVICE_AGENT)],
            guard: files.watch(AGENT),
            server: context.config.server.is_some(),
            heard_at: Instant::now(),
            force: ForceFiles::new(&context.config.persist_dir),
        }
    }

    /// `None` until every file was looked at once, and while nobody knows whether anybody asks.
    pub fn read(&mut self, reporter: &Reporter) -> Option<Said> {
        let requests = self.requests(reporter)?;
        let guard = self.read_guard()?;
        let clustered: Option<Vec<bool>> = self.cluster.iter().map(is_clustered).collect();
        let clustered = clustered?.contains(&true);
        Some(Said { clustered, requests, guard, force: self.force.read(reporter) })
    }

    fn read_guard(&mut self) -> Option<Guard> {
        self.guard.current()?;
        let word = match self.guard.get(GLOBAL) {
            Some(Some(file)) => to_word(&file),
            Some(None) => GuardWord::Away,
            None => GuardWord::Refuses("what the server says of it cannot be read".to_owned()),
        };
        if word != GuardWord::Away {
            self.heard_at = Instant::now();
        }
        Some(decide_guard(word, self.server, self.heard_at.elapsed()))
    }

    /// A request that cannot be read was not withdrawn. Beside one that can it changes nothing; alone
    /// it is waited for.
    fn requests(&self, reporter: &Reporter) -> Option<Requests> {
        let known = |from: &Subscription<NodeDrainRequest>| {
            from.current()?;
            Some(from.get(GLOBAL))
        };
        let (device, update) = (known(&self.device_operation)?, known(&self.update)?);
        let unreadable = device.is_none() || update.is_none();
        let request = |known: Option<Option<Arc<_>>>| known.flatten().as_deref().map(to_request);
        let requests = Requests { device_operation: request(device), update: request(update) };
        if unreadable && requests.is_empty() {
            reporter.fault(REQUESTS, UNREADABLE);
            return None;
        }
        reporter.clear(REQUESTS);
        Some(requests)
    }

    /// Returns when something may be different. The force files are only looked at.
    pub async fn changed(&mut self) {
        let [here, kept] = &mut self.cluster;
        tokio::select! {
            () = self.device_operation.changed() => {}
            () = self.update.changed() => {}
            () = here.changed() => {}
            () = kept.changed() => {}
            () = self.guard.changed() => {}
        }
    }

    pub fn remove_force_files(&self) -> io::Result<()> {
        aside(|| self.force.remove())
    }
}

/// A configuration that is there and cannot be read is one too: who does not know drains first.
fn is_clustered(config: &Subscription<EdgeNodeClusterConfig>) -> Option<bool> {
    config.current()?;
    Some(config.get(GLOBAL) != Some(None))
}

pub fn to_request(file: &NodeDrainRequest) -> Request {
    Request { at: file.requested_at.0, context: file.context.clone() }
}

fn to_word(file: &DisruptionGuard) -> GuardWord {
    match file {
        DisruptionGuard { linked: false, .. } => GuardWord::Away,
        DisruptionGuard { admitted: true, .. } => GuardWord::Agrees,
        DisruptionGuard { reason, .. } => GuardWord::Refuses(reason.clone()),
    }
}

/// Where a person forces a status.
struct ForceFiles {
    paths: [PathBuf; FORCE_FILES.len()],
}

impl ForceFiles {
    fn new(persist_dir: &Path) -> Self {
        let folder = persist_dir.join("kube-status");
        Self { paths: FORCE_FILES.map(|name| folder.join(name)) }
    }

    fn read(&self, reporter: &Reporter) -> Option<Forced> {
        choose_force(self.paths.each_ref().map(|path| {
            let subject = path.display().to_string();
            let (read, exists) = aside(|| (read_bytes(path), path.exists()));
            let status: Option<NodeDrainStatus> = match read {
                Ok(bytes) => node_files::read(&bytes).ok(),
                Err(_) if !exists => {
                    reporter.clear(&subject);
                    return None;
                }
                Err(_) => None,
            };
            match status {
                Some(_) => reporter.clear(&subject),
                None => reporter.fault(&subject, "it is no status, and is ignored"),
            }
            status.map(|status| (status.status, status.requested_by))
        }))
    }

    fn remove(&self) -> io::Result<()> {
        for path in &self.paths {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// What this node is called in the cluster: as it is configured, or after the device.
pub async fn wait_for_node_name(context: &Context) -> String {
    if !context.config.node_name.is_empty() {
        return context.config.node_name.clone();
    }
    let mut kept: Subscription<EdgeNodeInfo> = context.files.persistent().watch(DEVICE_AGENT);
    let mut here: Subscription<EdgeNodeInfo> = context.files.watch(DEVICE_AGENT);
    loop {
        for info in [&kept, &here] {
            let info = info.get(GLOBAL).flatten().filter(|info| !info.device_name.is_empty());
            if let Some(info) = info {
                return node_name(&info.device_name);
            }
        }
        tokio::select! {
            () = kept.changed() => {}
            () = here.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{config::Config, files::Files, health::Health};

    struct World {
        dir: tempfile::TempDir,
        context: Context,
        inputs: Inputs,
    }

    impl World {
        /// Files that are there when the agent starts.
        async fn with(files: &[(&str, &str)]) -> Self {
            Self::configured(Config::default(), files).await
        }

        async fn configured(config: Config, files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (agent, text) in files {
                write(dir.path(), agent, text);
            }
            let (health, stop) = (Health::new("n1"), CancellationToken::new());
            let config = Config { persist_dir: dir.path().join("persist"), ..config };
            let files = Files::open(dir.path(), &config.persist_dir, &health, stop.clone());
            let config = Arc::new(config);
            let context = Context { config, files, health, stop };
            let mut inputs = Inputs::open(&context);
            inputs.device_operation.complete().await;
            inputs.update.complete().await;
            inputs.guard.complete().await;
            let [here, kept] = &mut inputs.cluster;
            here.complete().await;
            kept.complete().await;
            Self { dir, context, inputs }
        }

        /// Who is known to ask; `None` while nobody knows.
        fn asked(&mut self) -> Option<[bool; 2]> {
            let requests = self.inputs.read(&self.context.health.task("gate"))?.requests;
            Some([requests.device_operation.is_some(), requests.update.is_some()])
        }
    }

    fn write(dir: &Path, agent: &str, text: &str) {
        let folder = dir.join(agent).join("NodeDrainRequest");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("global.json"), text).unwrap();
    }

    const GOOD: &str = r#"{"RequestedBy":2,"Context":"reboot"}"#;
    const CUT: &str = r#"{"RequestedBy":2,"Con"#;

    #[tokio::test]
    async fn a_request_that_was_never_understood_is_not_taken_for_withdrawn() {
        let mut world = World::with(&[(DEVICE_AGENT, CUT)]).await;
        assert_eq!(world.asked(), None);
        let faults = world.context.health.snapshot().tasks;
        let mut faults = faults.iter().flat_map(|task| task.faults.iter());
        assert!(faults.any(|fault| fault.subject == REQUESTS), "{faults:?}");
        write(world.dir.path(), DEVICE_AGENT, GOOD);
        while world.asked().is_none() {
            world.inputs.changed().await;
        }
        assert_eq!(world.asked(), Some([true, false]));
    }

    #[tokio::test]
    async fn beside_a_request_that_is_understood_another_one_keeps_nobody_waiting() {
        let mut world = World::with(&[(DEVICE_AGENT, CUT), (UPDATE_AGENT, GOOD)]).await;
        assert_eq!(world.asked(), Some([false, true]));
        let mut nobody = World::with(&[]).await;
        assert_eq!(nobody.asked(), Some([false, false]));
    }

    #[test]
    fn what_the_guard_said_holds_only_as_long_as_the_link_does() {
        let word = |linked, admitted, reason: &str| {
            to_word(&DisruptionGuard { linked, admitted, reason: reason.to_owned() })
        };
        assert_eq!(word(false, true, ""), GuardWord::Away);
        assert_eq!(word(false, false, "n2 is out"), GuardWord::Away);
        assert_eq!(word(true, true, ""), GuardWord::Agrees);
        assert_eq!(word(true, false, "n2 is out"), GuardWord::Refuses("n2 is out".to_owned()));
    }

    #[tokio::test]
    async fn after_a_start_and_after_a_loss_the_server_is_waited_for_a_while() {
        let config = Config { server: Some("s:1".to_owned()), ..Config::default() };
        let mut world = World::configured(config, &[]).await;
        let guard = |world: &mut World| world.inputs.read_guard().unwrap();
        let long_ago = || Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        assert_ne!(guard(&mut world), Guard::Open, "it has just begun");
        world.inputs.heard_at = long_ago();
        assert_eq!(guard(&mut world), Guard::Open, "nobody is there");

        let files = world.context.files.clone();
        let tell = async |world: &mut World, linked, admitted| {
            let word = DisruptionGuard { linked, admitted, reason: String::new() };
            files.publish(AGENT, GLOBAL, &word).unwrap();
            while world.inputs.guard.get(GLOBAL).flatten().as_deref() != Some(&word) {
                world.inputs.changed().await;
            }
        };
        tell(&mut world, true, true).await;
        assert_eq!(guard(&mut world), Guard::Open);
        tell(&mut world, false, false).await;
        assert_ne!(guard(&mut world), Guard::Open, "it was heard of a moment ago");
        world.inputs.heard_at = long_ago();
        assert_eq!(guard(&mut world), Guard::Open);
    }
}
