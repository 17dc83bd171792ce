//! The members of etcd: all at once for a new cluster, one after the other for one that runs.

use std::time::Duration;

use serde::Deserialize;
use wharf_core::{
    cluster::{NodeRole, NodeSpec},
    install::{credentials::path, document::Stage},
};
use wharf_pki::ClusterPki;

use super::{
    Failure, Outcome,
    converge::Walk,
    hosts::{Host, all, persist},
};

const ETCDCTL: &str = "/opt/wharf/bin/etcdctl";
const DEADLINE: Duration = Duration::from_secs(20);
/// A learner of a small database catches up at once; a large one takes minutes.
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);

/// Takes out the members whose nodes leave, and starts those that do not run yet.
pub async fn ensure(walk: &Walk<'_>, pki: &ClusterPki) -> Outcome<()> {
    let spec = &walk.world.spec;
    for node in walk.nodes.values().filter(|node| node.etcd.is_some()) {
        if spec.node(&node.spec.name).is_none() {
            leave(walk, &node.spec).await?;
        }
    }
    let is_new = |node: &&NodeSpec| node.is(NodeRole::Etcd) && !walk.is_installed(&node.name);
    let start = |node: &NodeSpec| walk.nodes.get(&node.name).and_then(|node| node.etcd.as_ref());
    let (mut joining, beginning): (Vec<&NodeSpec>, Vec<&NodeSpec>) = spec
        .nodes
        .iter()
        .filter(is_new)
        .partition(|node| start(node).is_some_and(|start| start.joins));
    joining.sort_by_key(|node| start(node).map(|start| start.members.len()));
    // A lone member of three never becomes ready: they start together.
    let begin = async |node: &NodeSpec| {
        let host = walk.hosts.get(&node.name);
        let host = host.ok_or_else(|| Failure::on(&node.name, "it is not connected"))?;
        walk.apply_to("etcd", host, pki, Stage::Etcd).await
    };
    all(beginning.into_iter().map(begin).collect()).await?;
    for node in joining {
        join(walk, pki, node).await?;
    }
    Ok(())
}

/// Adds one member as a learner, starts it and makes it a voter once it has caught up.
async fn join(walk: &Walk<'_>, pki: &ClusterPki, node: &NodeSpec) -> Outcome<()> {
    let host = walk.hosts.get(&node.name);
    let host = host.ok_or_else(|| Failure::on(&node.name, "it is not connected"))?;
    let speaker = speaker(walk, node)?;
    let peer = peer_url(node);
    let journal = &walk.job.journal;
    // etcd takes no new member while it does not know all others for some seconds.
    let add = persist(SETTLE_DEADLINE, || add(speaker, &node.name, &peer));
    journal.step("etcd", host.name(), "add", add).await?;
    walk.apply_to("etcd", host, pki, Stage::Etcd).await?;
    let promote = persist(SETTLE_DEADLINE, || promote(speaker, &peer));
    journal.step("etcd", host.name(), "promote", promote).await
}

/// Takes a member out before its machine is cleaned: the others would count a dead one as a vote.
async fn leave(walk: &Walk<'_>, node: &NodeSpec) -> Outcome<()> {
    let speaker = speaker(walk, node)?;
    let peer = peer_url(node);
    let remove = persist(SETTLE_DEADLINE, || remove(speaker, &peer));
    walk.job.journal.step("etcd", &node.name, "remove member", remove).await
}

async fn remove(speaker: &Host, peer: &str) -> Outcome<()> {
    match member(speaker, peer).await? {
        None => Ok(()),
        Some(member) => {
            let id = format!("{:x}", member.id);
            etcdctl(speaker, &["member", "remove", &id]).await.map(|_| ())
        }
    }
}

fn peer_url(node: &NodeSpec) -> String {
    format!("https://{}:2380", node.address)
}

async fn add(speaker: &Host, name: &str, peer: &str) -> Outcome<()> {
    if member(speaker, peer).await?.is_some() {
        return Ok(());
    }
    etcdctl(speaker, &["member", "add", name, "--learner", "--peer-urls", peer]).await.map(|_| ())
}

async fn promote(speaker: &Host, peer: &str) -> Outcome<()> {
    match member(speaker, peer).await? {
        None => Err(Failure::on(speaker.name(), format!("etcd has no member {peer}"))),
        Some(member) if !member.learner => Ok(()),
        Some(member) => {
            let id = format!("{:x}", member.id);
            etcdctl(speaker, &["member", "promote", &id]).await.map(|_| ())
        }
    }
}

/// A member that runs already and speaks for the others.
fn speaker<'a>(walk: &'a Walk<'_>, node: &NodeSpec) -> Outcome<&'a Host> {
    let starts = |host: &&Host| {
        let other = host.node.name != node.name && host.node.is(NodeRole::Etcd);
        let record = walk.nodes.get(host.name()).and_then(|record| record.etcd.as_ref());
        // Those of the beginning, and those that joined before this one.
        other && record.is_some_and(|s| !s.joins || walk.is_installed(host.name()))
    };
    let found = walk.hosts.values().find(starts);
    found.ok_or_else(|| Failure::on(&node.name, "no member of etcd can be reached to add it"))
}

#[derive(Deserialize)]
struct Member {
    #[serde(rename = "ID")]
    id: u64,
    #[serde(rename = "peerURLs", default)]
    peers: Vec<String>,
    #[serde(rename = "isLearner", default)]
    learner: bool,
}

/// The member with this address among its peers.
async fn member(host: &Host, peer: &str) -> Outcome<Option<Member>> {
    #[derive(Deserialize)]
    struct List {
        members: Vec<Member>,
    }
    let text = etcdctl(host, &["member", "list", "-w", "json"]).await?;
    let list: List = serde_json::from_str(&text)
        .map_err(|error| Failure::on(host.name(), format!("the list of members: {error}")))?;
    Ok(list.members.into_iter().find(|member| member.peers.iter().any(|other| other == peer)))
}

async fn etcdctl(host: &Host, arguments: &[&str]) -> Outcome<String> {
    let mut argv = vec![
        ETCDCTL,
        "--endpoints=https://127.0.0.1:2379",
        "--cacert",
        path::ETCD_CA,
        "--cert",
        path::ETCD_SERVER,
        "--key",
        path::ETCD_SERVER_KEY,
    ];
    argv.extend(arguments);
    host.run(&argv, DEADLINE).await
}
