//! What came over the link, as the files that the other agents of a device would publish.

use std::collections::BTreeSet;

use wharf_api::{
    link::{Guard, NodeConfig},
    node_files::{
        AppInstanceConfig, DEVICE, DisruptionGuard, EdgeNodeClusterConfig, GLOBAL, NodeFile,
        NodeJobs, NodeWish, UPDATE, VolumeConfig, ZedAgentStatus,
    },
};
use wharf_core::{install::network::NetworkFile, node::leader::ConfigGet, words::chain};

use crate::{
    aside::aside,
    config::Role,
    files::Subscription,
    health::{AGENT, Reporter},
    host::files,
    tasks::Context,
};

const ZEDAGENT: &str = "zedagent";
/// The network file's mode, as the installer gives it.
const NETWORK_MODE: u32 = 0o644;

pub struct Publisher {
    context: Context,
    reporter: Reporter,
    apps: Subscription<AppInstanceConfig>,
    volumes: Subscription<VolumeConfig>,
    /// Keys that were published a moment ago may not have been seen yet.
    published_apps: BTreeSet<String>,
    published_volumes: BTreeSet<String>,
}

impl Publisher {
    pub fn new(context: Context, reporter: Reporter) -> Self {
        if context.config.plays(Role::Zedagent) {
            context.files.announce::<AppInstanceConfig>(ZEDAGENT);
            context.files.announce::<VolumeConfig>(ZEDAGENT);
        }
        Self {
            apps: context.files.watch(ZEDAGENT),
            volumes: context.files.watch(ZEDAGENT),
            context,
            reporter,
            published_apps: BTreeSet::new(),
            published_volumes: BTreeSet::new(),
        }
    }

    /// Publishes a configuration. What cannot be written is a fault of the task `files`, and is tried
    /// again with the next one.
    pub async fn publish(&mut self, config: &NodeConfig) {
        match aside(|| self.write_network(config.network.as_deref())) {
            Ok(()) => self.reporter.clear("the network file"),
            Err(reason) => self.reporter.fault("the network file", &reason),
        }
        let files = &self.context.files;
        for (key, wish) in [(DEVICE, &config.device), (UPDATE, &config.update)] {
            let _ = match wish {
                Some(wish) => files.publish::<NodeWish>(AGENT, key, wish),
                None if self.is_over(key) => files.unpublish::<NodeWish>(AGENT, key),
                // One that is not there any more was not called back.
                None => continue,
            };
        }
        if self.context.config.plays(Role::Zedagent) {
            self.publish_as_zedagent(config).await;
        }
    }

    /// Whether a wish that was published was carried out, or will never be. Left there, it would be begun
    /// again by an agent that has lost its journal.
    fn is_over(&self, key: &str) -> bool {
        let files = &self.context.files;
        let Ok(Some(wish)) = files.read::<NodeWish>(AGENT, key) else { return false };
        let jobs = files.read::<NodeJobs>(AGENT, GLOBAL).ok().flatten().unwrap_or_default();
        let mut of_it = jobs.jobs.0.iter().filter(|job| job.id == wish.id);
        of_it.any(|job| matches!(job.phase.as_str(), "done" | "failed" | "canceled"))
    }

    async fn publish_as_zedagent(&mut self, config: &NodeConfig) {
        let files = self.context.files.clone();
        let _ = files.publish(ZEDAGENT, GLOBAL, &config.node);
        // Operations wait for drains only in a cluster that has somewhere to drain to.
        let enough = config.nodes >= self.context.config.min_cluster_nodes;
        // Also where it outlives a boot: until this is reached again the node would count as alone,
        // and what waits for a drain would go.
        for files in [files.persistent(), files.clone()] {
            let _ = match config.cluster.as_ref().filter(|_| enough) {
                Some(cluster) => files.publish(ZEDAGENT, GLOBAL, cluster),
                None => files.unpublish::<EdgeNodeClusterConfig>(ZEDAGENT, GLOBAL),
            };
        }
        let volume_key =
            |volume: &VolumeConfig| format!("{}#{}", volume.volume_id, volume.generation_counter);
        let volumes = config.volumes.iter().map(|volume| (volume_key(volume), volume));
        // Volumes come before the applications that name them, and go after them.
        let volumes: Vec<(String, &VolumeConfig)> = volumes.collect();
        put(&files, &volumes);
        let app_key = |app: &AppInstanceConfig| app.uuid_and_version.uuid.to_string();
        let apps: Vec<_> = config.apps.iter().map(|app| (app_key(app), app)).collect();
        put(&files, &apps);
        self.published_apps =
            drop_others(&files, &mut self.apps, &self.published_apps, &apps).await;
        self.published_volumes =
            drop_others(&files, &mut self.volumes, &self.published_volumes, &volumes).await;
    }

    /// Writes the network file if it says something else; whoever keeps the network reads it again.
    fn write_network(&self, text: Option<&str>) -> Result<(), String> {
        let path = &self.context.config.network_file;
        let Some(text) = text.filter(|_| !path.as_os_str().is_empty()) else { return Ok(()) };
        let file: NetworkFile = serde_json::from_str(text)
            .map_err(|error| format!("the server's word on it cannot be read: {error}"))?;
        let me = &self.context.config.node_name;
        if !me.is_empty() && *me != file.node.name {
            return Err(format!("the server's word is for {}, and this is {me}", file.node.name));
        }
        if std::fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        files::write(path, NETWORK_MODE, text.as_bytes())
            .map_err(|error| format!("cannot write {}: {}", path.display(), chain(&error)))
    }

    /// What the guard says as long as the link stands.
    pub fn guard(&self, guard: &Guard) {
        let Guard { admitted, reason } = guard.clone();
        let word = DisruptionGuard { linked: true, admitted, reason };
        let _ = self.context.files.publish(AGENT, GLOBAL, &word);
    }

    /// Nobody can be asked.
    pub fn guard_unknown(&self) {
        let _ = self.context.files.publish(AGENT, GLOBAL, &DisruptionGuard::default());
    }
}

fn put<T: NodeFile>(files: &crate::files::Files, wanted: &[(String, &T)]) {
    for (key, value) in wanted {
        let _ = files.publish(ZEDAGENT, key, *value);
    }
}

/// Removes the files that are not wanted; the keys that are.
async fn drop_others<T: NodeFile + Send + Sync + 'static>(
    files: &crate::files::Files,
    there: &mut Subscription<T>,
    published: &BTreeSet<String>,
    wanted: &[(String, &T)],
) -> BTreeSet<String> {
    let wanted: BTreeSet<String> = wanted.iter().map(|(key, _)| key.clone()).collect();
    let seen = there.complete().await;
    let unreadable = there.known().junk;
    let all = seen.keys().chain(unreadable.iter()).chain(published);
    for key in all.filter(|key| !wanted.contains(*key)) {
        let _ = files.unpublish::<T>(ZEDAGENT, key);
    }
    wanted
}

/// Whether the node reaches its controller.
pub fn standing(context: &Context, standing: ConfigGet) {
    if !context.config.plays(Role::Zedagent) {
        return;
    }
    let status = ZedAgentStatus {
        name: ZEDAGENT.to_owned(),
        config_get_status: standing.number(),
        ..ZedAgentStatus::default()
    };
    let _ = context.files.publish(ZEDAGENT, ZEDAGENT, &status);
}
