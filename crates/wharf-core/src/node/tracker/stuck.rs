//! Where an application is stuck on this node.

use super::{App, Asked, Facts, Missing, Said, Volume, key};
use crate::node::{apps::KubeStatus, status::SwState};

/// The item that says why the application does not run, and the reason in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    pub key: String,
    pub reason: String,
}

/// Looks for the first thing on the way to a running application that is not as it must be. `None`
/// when it runs, here or elsewhere, without an error, or is not meant to.
pub fn find_stuck(facts: &Facts) -> Option<Stuck> {
    match &facts.app {
        Asked::Nobody => None,
        Asked::NotFound { asked, reason } => {
            Some(stuck("zedagent-AppInstanceConfig", asked, reason))
        }
        Asked::App(app) => look(facts, app),
    }
}

fn look(facts: &Facts, app: &App) -> Option<Stuck> {
    if !app.activate {
        return None;
    }
    // It counts as running by its pod, in which a container may crash over and over.
    if app.in_cluster.as_ref().is_ok_and(|seen| seen.running) {
        return said_error(app);
    }
    wanted(app)
        .or_else(|| network_is_ready(facts))
        .or_else(|| app.volumes.iter().find_map(|volume| volume_fault(app, volume)))
        .or_else(|| network_fault(app))
        .or_else(|| said_error(app))
        .or_else(|| cluster_fault(app))
}

fn wanted(app: &App) -> Option<Stuck> {
    let error = app.errors.first()?;
    Some(stuck("zedagent-AppInstanceConfig", &app.uuid, error))
}

fn network_is_ready(facts: &Facts) -> Option<Stuck> {
    let cluster = facts.cluster.as_ref().ok().filter(|cluster| !cluster.ready)?;
    let reason = format!("the cluster's address {} is not on this node", cluster.address);
    Some(stuck("zedkube-EdgeNodeClusterStatus", "", &reason))
}

fn volume_fault(app: &App, volume: &Volume) -> Option<Stuck> {
    let at = |what: &str, reason: &str| Some(stuck(what, &volume.id, reason));
    if let Err(missing) = &volume.config
        && counts(missing)
    {
        return at("zedagent-VolumeConfig", "this node was not told of the volume");
    }
    if let Ok(content) = &volume.content {
        let what = "volumemgr-ContentTreeStatus";
        if !content.error.is_empty() {
            return Some(stuck(what, &content.id, &content.error));
        }
        if content.state < Some(SwState::Loaded) {
            let reason = format!(
                "its image is being fetched: {} of {} bytes",
                content.current_bytes, content.total_bytes
            );
            return Some(stuck(what, &content.id, &reason));
        }
    }
    match &volume.status {
        Ok(status) if !status.error.is_empty() => at("volumemgr-VolumeStatus", &status.error),
        Ok(status) if status.state < Some(SwState::CreatedVolume) => {
            at("volumemgr-VolumeStatus", "the volume is not made yet")
        }
        Ok(_) => None,
        // Only the designated node makes volumes.
        Err(missing) if app.designated && counts(missing) => {
            at("volumemgr-VolumeStatus", "nobody has begun to make the volume")
        }
        Err(_) => None,
    }
}

fn network_fault(app: &App) -> Option<Stuck> {
    for network in &app.networks {
        let at = |reason: &str| Some(stuck("zedrouter-NetworkInstanceStatus", &network.id, reason));
        match &network.status {
            Ok(status) if !status.error.is_empty() => return at(&status.error),
            Ok(status) if !status.activated => return at("the network is not active"),
            Err(missing) if counts(missing) => return at("the network is not there"),
            Ok(_) | Err(_) => {}
        }
    }
    None
}

fn said_error(app: &App) -> Option<Stuck> {
    let rows = [
        ("zedrouter-AppNetworkStatus", error(&app.network_status, |said| &said.error)),
        ("zedmanager-AppInstanceStatus", error(&app.status, |said| &said.error)),
        ("domainmgr-DomainStatus", error(&app.domain, |said| &said.error)),
    ];
    let (what, error) = rows.into_iter().find_map(|(what, error)| Some((what, error?)))?;
    Some(stuck(what, &app.uuid, error))
}

fn error<T>(said: &Said<T>, error: impl FnOnce(&T) -> &String) -> Option<&str> {
    let error = error(said.as_ref().ok()?);
    (!error.is_empty()).then_some(error)
}

fn cluster_fault(app: &App) -> Option<Stuck> {
    let reason = match &app.in_cluster {
        Err(missing) if counts(missing) => "this node has not looked for it in the cluster",
        Err(_) => return None,
        Ok(seen) => match seen.kube_status {
            KubeStatus::Unknown => "nobody knows how it is in the cluster",
            KubeStatus::ApiUnreachable => "the cluster does not answer this node",
            KubeStatus::NotInCluster => "it has no pod in the cluster",
            KubeStatus::NotRunning => "its pod is there, but does not run",
            KubeStatus::Running => return None,
        },
    };
    Some(stuck("zedkube-ENClusterAppStatus", &app.uuid, reason))
}

/// What no agent here ever publishes is nobody's fault.
fn counts(missing: &Missing) -> bool {
    match missing {
        Missing::NoFile | Missing::Unreadable(_) => true,
        Missing::NoPublisher => false,
    }
}

fn stuck(what: &str, id: &str, reason: &str) -> Stuck {
    Stuck { key: key(what, id), reason: reason.to_owned() }
}
