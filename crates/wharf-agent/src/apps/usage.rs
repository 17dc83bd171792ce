//! What applications on this node use, as its kubelet measures it: `DomainMetric` of each application
//! and `AppDiskMetric` of each of its claims.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use wharf_api::node_files::{AppDiskMetric, DomainMetric, NodeFile, Time};
use wharf_core::{node::app_reports::decide_memory, words::chain};
use wharf_kube::{AppPod, KubeError, Kubelet, PodUsage};

use super::{Hosted, pods::Sight, volumes::VOLUMEMGR};
use crate::{
    config::Role,
    device,
    files::Files,
    health::Reporter,
    kube::{self, Kube},
    tasks::{Context, Ended},
};

const DOMAINMGR: &str = "domainmgr";
const SUBJECT: &str = "the kubelet's figures";
/// Kubelet measures every ten seconds or so. Each question costs it more than it costs us.
const ASK_EVERY: Duration = Duration::from_secs(30);
const DISK: &str = "PVC";

#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error("the Node does not say where its kubelet is")]
    NoKubelet,
}

pub async fn run(
    context: Context,
    reporter: Reporter,
    kube: Kube,
    sight: watch::Receiver<Sight>,
    mut hosted: watch::Receiver<Option<Vec<Hosted>>>,
) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let config = context.config.clone();
    let teller = Teller {
        files: context.files.clone(),
        domains: config.plays(Role::Domainmgr),
        disks: config.plays(Role::Volumemgr),
    };
    teller.announce();
    let mut asker = Asker { kube, node, namespace: config.app_namespace.clone(), kubelet: None };
    let mut ask_at = Instant::now();
    loop {
        let here = hosted.borrow_and_update().clone();
        // Until somebody knows what is here, what was said stays.
        if let Some(apps) = here {
            // Where nothing of ours runs nobody is asked.
            let mut usage = Vec::new();
            if apps.is_empty() {
                reporter.clear(SUBJECT);
                reporter.ok();
            } else if Instant::now() >= ask_at {
                ask_at = Instant::now() + ASK_EVERY;
                let asked = context.stop.run_until_cancelled(asker.ask()).await;
                let Some(answer) = asked else { return Ok(()) };
                usage = heard(answer, &reporter);
            }
            let seen = sight.borrow().clone();
            teller.tell(&apps, &seen, &usage);
        }
        let busy = hosted.borrow().as_ref().is_some_and(|apps| !apps.is_empty());
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            Ok(()) = hosted.changed() => {}
            () = sleep_until(ask_at), if busy => {}
        }
    }
}

fn heard(answer: Result<Vec<PodUsage>, UsageError>, reporter: &Reporter) -> Vec<PodUsage> {
    match answer {
        Ok(usage) => {
            reporter.clear(SUBJECT);
            reporter.ok();
            usage
        }
        Err(error) => {
            reporter.fault(SUBJECT, &chain(&error));
            Vec::new()
        }
    }
}

/// Knows where the kubelet is as long as it answers there.
struct Asker {
    kube: Kube,
    node: String,
    namespace: String,
    kubelet: Option<Kubelet>,
}

impl Asker {
    async fn ask(&mut self) -> Result<Vec<PodUsage>, UsageError> {
        if self.kube.reader.has_changed().unwrap_or_default() {
            self.kubelet = None;
        }
        let kubelet = match self.kubelet.take() {
            Some(kubelet) => kubelet,
            None => {
                let cluster = kube::cluster(&mut self.kube.reader).await;
                let kubelet = cluster.kubelet(&self.node).await?;
                kubelet.ok_or(UsageError::NoKubelet)?
            }
        };
        let usage = kubelet.pod_usage(&self.namespace).await?;
        self.kubelet = Some(kubelet);
        Ok(usage)
    }
}

struct Teller {
    files: Files,
    domains: bool,
    disks: bool,
}

impl Teller {
    fn announce(&self) {
        if self.domains {
            self.files.announce::<DomainMetric>(DOMAINMGR);
        }
        if self.disks {
            self.files.announce::<AppDiskMetric>(VOLUMEMGR);
        }
    }

    /// Tells what was measured, and takes back what is said of applications that are not here. What
    /// cannot be written is a fault of the task `files`, and is tried with the next figures.
    fn tell(&self, apps: &[Hosted], sight: &Sight, usage: &[PodUsage]) {
        let mut disks = BTreeSet::new();
        for app in apps {
            let pod = sight.pods.as_ref().and_then(|pods| pods.get(&app.pod_name));
            let Some(pod) = pod else { continue };
            disks.extend(pod.claims.iter().cloned());
            let Some(used) = usage.iter().find(|used| used.uid == pod.uid) else { continue };
            if self.domains {
                let before = self.files.read(DOMAINMGR, &app.key).ok().flatten();
                let metric = metric(app, pod, used, &before.unwrap_or_default());
                let _ = self.files.publish(DOMAINMGR, &app.key, &metric);
            }
            if self.disks {
                for (claim, (used, all)) in &used.claims {
                    let _ = self.files.publish(VOLUMEMGR, claim, &disk(claim, *used, *all));
                }
            }
        }
        if self.domains {
            let here: BTreeSet<String> = apps.iter().map(|app| app.key.clone()).collect();
            self.take_back::<DomainMetric>(DOMAINMGR, &here);
        }
        if self.disks {
            self.take_back::<AppDiskMetric>(VOLUMEMGR, &disks);
        }
    }

    fn take_back<T: NodeFile>(&self, agent: &str, wanted: &BTreeSet<String>) {
        let left = self.files.keys::<T>(agent).unwrap_or_default();
        for key in left.iter().filter(|key| !wanted.contains(*key)) {
            let _ = self.files.unpublish::<T>(agent, key);
        }
    }
}

fn metric(app: &Hosted, pod: &AppPod, used: &PodUsage, before: &DomainMetric) -> DomainMetric {
    let asked = app.config.fixed_resources.memory;
    let memory = decide_memory(asked, pod.memory_bytes, used.memory_bytes);
    DomainMetric {
        uuid_and_version: app.config.uuid_and_version.clone(),
        cpu_total_ns: used.cpu_nanoseconds,
        allocated_mb: memory.allocated,
        used_memory: memory.used,
        max_used_memory: memory.used.max(before.max_used_memory),
        available_memory: memory.available,
        used_memory_percent: memory.used_percent,
        last_heard: Time(used.at.or_else(|| Some(Timestamp::now()))),
        activated: true,
        node_name: pod.pod.node.clone(),
        ..DomainMetric::default()
    }
}

fn disk(claim: &str, used_bytes: u64, all_bytes: u64) -> AppDiskMetric {
    AppDiskMetric {
        disk_path: claim.to_owned(),
        provisioned_bytes: all_bytes,
        used_bytes,
        disk_type: DISK.to_owned(),
        dirty: false,
    }
}
