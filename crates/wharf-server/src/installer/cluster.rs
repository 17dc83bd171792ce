//! What is done through the cluster's own API: rights, labels, DNS, draining, and the final proof.

use std::time::Duration;

use http::Uri;
use jiff::Timestamp;
use wharf_core::{
    cluster::{ClusterSpec, NodeRecord, NodeRole, NodeSpec},
    disruption::{Disruption, Kind},
    drain::{Policy, Report},
    install::manifests,
};
use wharf_kube::{Cluster, KubeError, NodeMeta, Taint};
use wharf_pki::{ClusterPki, Kubeconfig};

use super::{
    Failure, Job, Outcome,
    converge::{Walk, internal},
    hosts::{all, persist},
};
use crate::{disruptions::Claim, engine::Journal};

/// API servers start within seconds; a machine that does many things at once may take longer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);
const READY_DEADLINE: Duration = Duration::from_secs(180);
/// Budgets and slow shutdowns may hold a drain up; longer than this a person should look.
const DRAIN_DEADLINE: Duration = Duration::from_secs(300);

/// A cancel settles within 10 s, also when the cluster is silent.
const UNCORDON_DEADLINE: Duration = Duration::from_secs(5);
/// So the cordons of removals are marked.
pub const CORDON_OWNER: &str = "wharf";

const CONTROL_PLANE_TAINT: &str = "node-role.kubernetes.io/control-plane";

/// The cluster's API as its administrator sees it, through the controlplane nodes that answer.
pub fn api(walk: &Walk<'_>, pki: &ClusterPki) -> Outcome<Cluster> {
    let mut spec = walk.world.spec.clone();
    spec.nodes.retain(|node| walk.hosts.contains_key(&node.name));
    connect(pki, &spec)
}

/// A client that knows all controlplane nodes.
pub fn connect(pki: &ClusterPki, spec: &ClusterSpec) -> Outcome<Cluster> {
    let kubeconfig = pki.kubeconfig(spec, Kubeconfig::Admin).map_err(internal)?;
    let cluster = Cluster::from_kubeconfig(&kubeconfig).map_err(failed)?;
    let url = |node: &NodeSpec| format!("https://{}:6443", node.address).parse();
    let servers: Result<Vec<Uri>, _> = spec.nodes_with(NodeRole::Controlplane).map(url).collect();
    cluster.with_servers(&servers.map_err(internal)?).map_err(failed)
}

pub async fn wait_until_it_answers(walk: &Walk<'_>, pki: &ClusterPki) -> Outcome<()> {
    let api = api(walk, pki)?;
    let wait = async { api.wait_servers_ready(ANSWER_DEADLINE).await.map_err(failed) };
    walk.job.journal.step("controlplane", "", "wait for the API", wait).await
}

/// Rights, labels, pod addresses and DNS.
pub async fn furnish(walk: &Walk<'_>, pki: &ClusterPki) -> Outcome<()> {
    let api = api(walk, pki)?;
    let journal = &walk.job.journal;
    let spec = &walk.world.spec;
    let forward = walk.facts.values().any(|facts| facts.resolves_outside);
    let coredns = manifests::render_coredns(spec, &walk.image("coredns")?, forward);
    let texts = [manifests::render_rbac(), manifests::render_volumes(), coredns];
    apply(walk, &api, "cluster", &texts.join("\n---\n")).await?;
    let mut nodes: Vec<&NodeSpec> =
        spec.nodes.iter().filter(|node| walk.hosts.contains_key(&node.name)).collect();
    // Side by side, and controlplane nodes first: the others join when one of these is labelled.
    nodes.sort_by_key(|node| !node.is(NodeRole::Controlplane));
    let label = async |node: &&NodeSpec| {
        let meta = meta(walk, node);
        // A kubelet makes its Node by itself, a moment after its start.
        let ensure = || async { api.ensure_node_meta(&node.name, &meta).await.map_err(failed) };
        persist(READY_DEADLINE, ensure).await
    };
    let label = async { all(nodes.iter().map(label).collect()).await.map(|_| ()) };
    journal.step("cluster", "", "label nodes", label).await
}

/// What a cluster is complete with, but can do without: the usage of nodes and pods.
pub async fn extend(walk: &Walk<'_>, pki: &ClusterPki) -> Outcome<()> {
    let image = walk.image("metrics-server")?;
    let text = manifests::render_metrics_server(&image, &pki.kubernetes_ca.cert_pem);
    apply(walk, &api(walk, pki)?, "addons", &text).await
}

async fn apply(walk: &Walk<'_>, api: &Cluster, phase: &str, manifests: &str) -> Outcome<()> {
    let journal = &walk.job.journal;
    let apply = async {
        let applied = api.apply(manifests, ANSWER_DEADLINE).await.map_err(failed)?;
        if !applied.changed.is_empty() {
            journal.log(format!("applied {}", applied.changed.join(", ")));
        }
        Ok(())
    };
    journal.step(phase, "", "apply manifests", apply).await
}

/// The labels, taints and pod addresses that a node's Node shall have.
fn meta(walk: &Walk<'_>, node: &NodeSpec) -> NodeMeta {
    let role = |name: &str| format!("node-role.kubernetes.io/{name}");
    let mut labels = Vec::new();
    let mut absent = Vec::new();
    for wanted in NodeRole::ALL {
        let list = if node.is(wanted) { &mut labels } else { &mut absent };
        list.push(role(wanted.name()));
        if wanted == NodeRole::Controlplane {
            list.push(CONTROL_PLANE_TAINT.to_owned());
        }
    }
    let taint = Taint {
        key: CONTROL_PLANE_TAINT.to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    };
    NodeMeta {
        labels: labels.into_iter().map(|label| (label, "true".to_owned())).collect(),
        remove_labels: absent,
        taints: node.is(NodeRole::Controlplane).then_some(taint).into_iter().collect(),
        remove_taints: Vec::new(),
        pod_cidr: walk.nodes.get(&node.name).map(|record| record.pod_cidr.to_string()),
    }
}

/// All nodes Ready, names answered from a pod, pods and Services reached across nodes.
///
/// A new cluster is looked at from every node. Later only the new nodes are, and one that was there
/// before: what it costs does not grow with the cluster.
pub async fn verify(walk: &Walk<'_>, pki: &ClusterPki) -> Outcome<()> {
    let api = api(walk, pki)?;
    let journal = &walk.job.journal;
    let (old, new): (Vec<String>, Vec<String>) =
        walk.hosts.keys().cloned().partition(|name| walk.is_installed(name));
    if new.is_empty() {
        return Ok(());
    }
    let ready = async { api.wait_nodes_ready(&new, READY_DEADLINE).await.map_err(failed) };
    let ready = journal.step("verify", "", "nodes are Ready", ready);
    let dns = api.wait_deployment_ready(manifests::NAMESPACE, manifests::COREDNS, READY_DEADLINE);
    let dns = async { dns.await.map_err(failed) };
    let dns = journal.step("verify", "", "DNS is ready", dns);
    let seen: Vec<String> = new.iter().chain(old.first()).cloned().collect();
    let pods = manifests::render_verification(&walk.world.spec, &walk.image("busybox")?, &seen);
    let look = async {
        // What an interrupted look left may be about to end.
        api.delete(&pods, ANSWER_DEADLINE).await.map_err(failed)?;
        api.apply(&pods, ANSWER_DEADLINE).await.map_err(failed)?;
        let looked = all(new.iter().map(|node| verdict(&api, node)).collect()).await;
        api.delete(&pods, ANSWER_DEADLINE).await.map_err(failed)?;
        looked.map(|_| ())
    };
    let look = journal.step("verify", "", "pods and Services are reached", look);
    let (ready, dns, looked) = tokio::join!(ready, dns, look);
    ready.and(dns).and(looked)
}

/// What the pod on a node says of the cluster's network.
async fn verdict(api: &Cluster, node: &str) -> Outcome<()> {
    let pod = manifests::verify_pod(node);
    let (namespace, container) = (manifests::NAMESPACE, manifests::VERIFY_CLIENT);
    let end = api.wait_container_end(namespace, &pod, container, READY_DEADLINE).await;
    let end = end.map_err(|error| Failure { host: node.to_owned(), ..failed(error) })?;
    if end.exit_code == 0 {
        return Ok(());
    }
    let hint = "look at the firewall between the machines and at the logs of wharf-agent there";
    Err(Failure {
        exit_code: Some(end.exit_code),
        stderr_tail: Some(end.log.trim().to_owned()),
        ..Failure::on(node, "a pod cannot use the cluster's network").hint(hint)
    })
}

/// Waits until the machine of a node that leaves may go out of service.
pub async fn take_turn(walk: &Walk<'_>, node: &NodeRecord) -> Outcome<Claim> {
    let (guard, cluster) = (&walk.job.app.disruptions, &walk.job.cluster);
    let spec = &node.spec;
    let critical = spec.is(NodeRole::Controlplane) || spec.is(NodeRole::Etcd);
    let wanted = Disruption { kind: Kind::Removal, critical };
    let mut changed = guard.changed(cluster);
    let mut last = None;
    let claim = async {
        guard.opened(cluster).await;
        loop {
            changed.mark_unchanged();
            match guard.claim(cluster, &spec.address.to_string(), wanted) {
                Ok(claim) => return claim,
                Err(refusal) if last.as_ref() == Some(&refusal) => {}
                Err(refusal) => {
                    let text = format!("{}: waits: {refusal}", spec.name);
                    walk.job.journal.log_on(&spec.name, text);
                    last = Some(refusal);
                }
            }
            // The guard outlives everybody who waits for it.
            let _ = changed.changed().await;
        }
    };
    let claimed = tokio::time::timeout(DRAIN_DEADLINE, claim).await;
    claimed.map_err(|_| {
        let why = last.map_or_else(|| "it is not its turn".to_owned(), |why| why.to_string());
        Failure::on(&spec.name, why).hint("try again when that is over")
    })
}

/// Drains a node that leaves, and deletes its Node. In a cluster that never ran nothing of a user's
/// is on it.
pub async fn take_out(walk: &Walk<'_>, pki: &ClusterPki, node: &NodeRecord) -> Outcome<()> {
    let api = api(walk, pki)?;
    let name = &node.spec.name;
    if walk.record.created {
        let policy = Policy::removal(CORDON_OWNER, Timestamp::now() + DRAIN_DEADLINE);
        drain(&api, name, &policy, &walk.job.journal).await?;
    }
    api.delete_node(name).await.map(|_| ()).map_err(failed)
}

/// After an update that did not get there: the nodes that were to leave stay, without the cordon
/// that this run left on them, or one before a restart.
pub async fn give_back(job: &Job) -> Outcome<()> {
    let record = job.record().await?;
    let leaving = record.nodes.keys().filter(|name| record.spec.node(name).is_none());
    let Some(pki) = job.vault().await?.pki else { return Ok(()) };
    let api = connect(&pki, &record.spec)?;
    let uncordon = async |name: &String| {
        let uncordon = tokio::time::timeout(UNCORDON_DEADLINE, api.uncordon(name, CORDON_OWNER));
        match uncordon.await {
            Ok(result) => result.map(drop).map_err(failed),
            Err(_) => Err(Failure::on(name, "the cluster did not answer; it may stay cordoned")),
        }
    };
    all(leaving.map(uncordon).collect()).await.map(drop)
}

async fn drain(api: &Cluster, node: &str, policy: &Policy, journal: &Journal) -> Outcome<()> {
    let (mut told, mut given_up) = (String::new(), 0);
    let tell = |report: &Report| {
        if report.given_up > given_up {
            given_up = report.given_up;
            let why = "the node has not been ready for long, so nobody there ends them";
            let text = format!("{node}: {given_up} terminating pods count as gone: {why}");
            journal.log_on(node, text);
        }
        let waiting: Vec<String> = report.waiting.iter().map(ToString::to_string).collect();
        let text = format!("{} pods have to leave yet; {}", report.left, waiting.join("; "));
        if !waiting.is_empty() && text != told {
            journal.log_on(node, format!("{node}: {text}"));
            told = text;
        }
    };
    // A cancel drops this future; what it left on the node is then given back.
    let drained = wharf_kube::drain::run(api, node, policy, tell).await;
    drained.map(|_| ()).map_err(|error| {
        Failure::on(node, crate::error::chain(&error))
            .hint("the node stays; free the pods named here or raise their budget, then try again")
    })
}

impl Walk<'_> {
    /// The full name of an image of the bundle.
    pub fn image(&self, name: &str) -> Outcome<String> {
        let wanted = format!("/{name}:");
        let image = self.world.images.iter().find(|image| image.name.contains(&wanted));
        let image = image.map(|image| image.name.clone());
        image.ok_or_else(|| Failure::new(format!("the bundle has no image of {name}")))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub fn failed(error: KubeError) -> Failure {
    Failure::new(crate::error::chain(&error))
}
