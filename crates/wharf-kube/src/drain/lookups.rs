//! What has to be asked about pods besides what watches tell.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use wharf_core::{drain::Pin, selector::Labels};

use super::objects::{ClaimSeen, Named, VolumeSeen};
use crate::{cluster::Cluster, error::Result};

/// Answers that do not change while a drain lasts.
#[derive(Default)]
pub(super) struct Lookups {
    /// Whether a DaemonSet is there, by UID.
    pub sets: HashMap<String, bool>,
    /// What makes a ReplicaSet again, by the UID of the ReplicaSet.
    pub makers: HashMap<String, Pin>,
    /// By claim; `None` where the claim has no volume.
    pub volumes: HashMap<Key, Option<Volume>>,
}

/// A namespace, and a name in it.
pub(super) type Key = (String, String);

/// A persistent volume.
pub(super) struct Volume {
    pub name: String,
    /// As kubelet names it among those in use.
    pub in_use: Option<String>,
}

/// What has to be asked about a pod.
pub(super) enum Question {
    Namespace(String),
    /// By the UID of the DaemonSet.
    Set(String),
    Maker(OwnerReference),
    Claim(Key),
}

pub(super) enum Found {
    Namespace(String, Labels),
    Set(String, bool),
    Maker(String, Pin),
    Claim(Key, Option<Volume>),
}

impl Question {
    pub async fn ask(&self, cluster: &Cluster, path: &str) -> Result<Found> {
        Ok(match self {
            Question::Namespace(name) => {
                let found = allowed(cluster.get::<Named>(path).await)?.flatten();
                let labels = found.map(|found| found.metadata.labels);
                Found::Namespace(name.clone(), labels.unwrap_or_default())
            }
            Question::Set(uid) => {
                let there = match allowed(cluster.get::<Named>(path).await)? {
                    Some(found) => found.is_some_and(|found| found.metadata.uid == *uid),
                    None => true,
                };
                Found::Set(uid.clone(), there)
            }
            Question::Maker(set) => {
                let found = allowed(cluster.get::<Named>(path).await)?.flatten();
                let found = found.filter(|found| found.metadata.uid == set.uid);
                let maker = found.as_ref().and_then(|found| found.metadata.controller());
                let OwnerReference { kind, name, .. } = maker.unwrap_or(set).clone();
                Found::Maker(set.uid.clone(), Pin::Owner { kind, name })
            }
            Question::Claim(key) => Found::Claim(key.clone(), volume_of(cluster, path).await?),
        })
    }
}

async fn volume_of(cluster: &Cluster, claim: &str) -> Result<Option<Volume>> {
    let claim = allowed(cluster.get::<ClaimSeen>(claim).await)?.flatten();
    let Some(name) = claim.and_then(|claim| claim.spec.volume_name) else { return Ok(None) };
    let path = format!("/api/v1/persistentvolumes/{name}");
    let found = allowed(cluster.get::<VolumeSeen>(&path).await)?.flatten();
    Ok(Some(Volume { name, in_use: found.and_then(VolumeSeen::name_in_use) }))
}

/// Who may not know a thing goes on without: then it is `None`.
fn allowed<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.code() == Some(403) => Ok(None),
        answer => answer.map(Some),
    }
}
