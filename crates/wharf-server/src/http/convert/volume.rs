//! Volumes.

use wharf_api::{resource::Head, volume as wire};
use wharf_core::volume::{
    attach::Policy,
    explain::{Holder, LeaseState, NodeState, VolumeSeen, Waiter},
    provision::FrontEnd,
};

use super::only_self;
use crate::volumes::{Detachment, Looked};

pub fn volume(prefix: &str, looked: &Looked, name: &str) -> wire::Volume {
    let (seen, policy, now) = (looked.seen(name), Policy::default(), looked.now);
    let volume = looked.volumes.find(name);
    let collection = format!("{prefix}/clusters/{}/volumes", looked.cluster);
    let facts = seen.facts.clone().unwrap_or_default();
    let claim = volume.and_then(|volume| volume.claim.as_ref());
    let created = volume.and_then(|volume| volume.created);
    let front_end = volume.map(|volume| match volume.front_end {
        FrontEnd::Flex => "flex",
        FrontEnd::Csi => "csi",
    });
    wire::Volume {
        head: Head {
            id: name.to_owned(),
            type_: "volume".to_owned(),
            links: only_self(&collection, name),
            creation_timestamp: created
                .or_else(|| looked.volumes.held_since(name))
                .unwrap_or_default(),
            deletion_timestamp: None,
        },
        name: name.to_owned(),
        claim: claim.map(|(namespace, claim, _)| format!("{namespace}/{claim}")),
        backend: seen.cluster.map(|cluster| cluster.backend.to_string()),
        front_end: front_end.unwrap_or_default().to_owned(),
        size: volume.map(|volume| volume.capacity.clone()).unwrap_or_default(),
        access_modes: facts.modes.iter().map(|mode| format!("{mode:?}")).collect(),
        phase: volume.map_or_else(|| "Gone".to_owned(), |volume| volume.phase.clone()),
        generation: facts.generation.0,
        storage_cluster: facts.storage_cluster,
        image: facts.image,
        state: seen.state(now, &policy).to_string(),
        holders: holders(looked, &seen),
        waiting: seen.waiters(now, &policy).iter().map(waiting).collect(),
    }
}

pub fn why(looked: &Looked, name: &str) -> wire::VolumeWhy {
    let (seen, policy, now) = (looked.seen(name), Policy::default(), looked.now);
    wire::VolumeWhy {
        volume: name.to_owned(),
        state: seen.state(now, &policy).to_string(),
        sentences: seen.sentences(now, &policy),
        next: seen.advice(&looked.cluster, now, &policy),
    }
}

pub fn detached(detachment: &Detachment, name: &str) -> wire::Detached {
    let Detachment { looked, holders, done } = detachment;
    let seen = looked.seen(name);
    let all = seen.holders(looked.now, &Policy::default());
    let meant: Vec<_> = all.iter().filter(|one| holders.contains(&one.entry.key())).collect();
    let who = meant.iter().map(|one| format!("{} on node {}", one.entry.pod_ref(), one.entry.node));
    let who = who.collect::<Vec<_>>().join(", ");
    wire::Detached {
        volume: name.to_owned(),
        done: *done,
        holders: meant.iter().map(|one| holder(looked, name, one)).collect(),
        may_be_lost: meant.iter().flat_map(|one| seen.losses(one)).collect(),
        message: match done {
            true => {
                format!("volume {name} is released from pod {who}; whoever needs it may have it")
            }
            false => format!(
                "nothing was changed; with force, volume {name} would be released from pod {who}"
            ),
        },
    }
}

fn holders(looked: &Looked, seen: &VolumeSeen) -> Vec<wire::VolumeHolder> {
    let holders = seen.holders(looked.now, &Policy::default());
    holders.iter().map(|one| holder(looked, &seen.volume, one)).collect()
}

fn holder(looked: &Looked, volume: &str, holder: &Holder<'_>) -> wire::VolumeHolder {
    let entry = holder.entry;
    let (lease, lease_until) = match holder.lease {
        LeaseState::Lasts(until) => ("held", Some(until)),
        LeaseState::Ended => ("ended", None),
        LeaseState::Missing => ("missing", None),
    };
    let node_status = match (holder.node, looked.ready.get(&entry.node)) {
        (NodeState::Gone, _) => "Gone",
        (NodeState::Recreated, _) => "Recreated",
        (NodeState::Rebooted, _) => "Rebooted",
        (NodeState::OutOfService, _) => "OutOfService",
        (NodeState::Same, Some(true)) => "Ready",
        (NodeState::Same, Some(false)) => "NotReady",
        (NodeState::Same, None) => "Unknown",
    };
    wire::VolumeHolder {
        node: entry.node.clone(),
        namespace: entry.pod_namespace.clone(),
        pod: entry.pod.clone(),
        pod_uid: entry.pod_uid.clone(),
        read_only: entry.read_only,
        device: entry.device.clone(),
        generation: entry.generation.0,
        phase: format!("{:?}", entry.phase),
        since: looked.volumes.held_since(volume),
        node_status: node_status.to_owned(),
        lease: lease.to_owned(),
        lease_until,
        why: holder.to_string(),
    }
}

fn waiting(waiter: &Waiter<'_>) -> wire::WaitingPod {
    let pending = waiter.pending;
    wire::WaitingPod {
        namespace: pending.pod.namespace.clone(),
        pod: pending.pod.name.clone(),
        node: pending.node.clone(),
        why: waiter.to_string(),
    }
}
