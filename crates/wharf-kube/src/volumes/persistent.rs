//! PersistentVolumes of ours.

use std::collections::BTreeMap;

use http::Method;
use jiff::Timestamp;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::volume::{
    attach::{AccessMode, VolumeFacts},
    provision::FrontEnd,
    record::Generation,
    request::{CSI_DRIVER, FLEX_DRIVER, parse_handle},
};

use super::Written;
use crate::{
    cluster::{Cluster, MERGE},
    error::Result,
};

/// The highest generation that was ever granted.
pub const GENERATION: &str = "wharf.dev/generation";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PATH: &str = "/api/v1/persistentvolumes";

/// A PersistentVolume of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolume {
    pub name: String,
    pub uid: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    pub front_end: FrontEnd,
    pub facts: VolumeFacts,
    pub fs_type: String,
    pub storage_class: String,
    /// Namespace, name and UID of the claim that it is bound to.
    pub claim: Option<(String, String, String)>,
    pub phase: String,
    /// Whether its image goes with it.
    pub deletes_image: bool,
    /// It was made for a claim, and not by hand.
    pub is_provisioned: bool,
    /// As Kubernetes writes quantities.
    pub capacity: String,
    version: String,
}

impl Cluster {
    /// A PersistentVolume; `None` when there is none of that name, or it is not ours.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>> {
        let object = self.get::<Object>(&format!("{PATH}/{name}")).await?;
        Ok(object.and_then(Object::ours))
    }

    /// All PersistentVolumes of ours.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn volumes(&self) -> Result<Vec<PersistentVolume>> {
        let mut ours = Vec::new();
        let take = |object: Object| ours.extend(object.ours());
        self.list_each(PATH, ListParams::default(), take).await?;
        Ok(ours)
    }

    /// Raises the generation of a volume that was seen. Gives it as it is then.
    ///
    /// # Errors
    /// The API server does not answer or refuses for another reason than that somebody was faster.
    pub async fn raise_generation(
        &self,
        seen: &PersistentVolume,
        to: Generation,
    ) -> Result<Written<PersistentVolume>> {
        let name = &seen.name;
        let patch = json!({ "metadata": {
            "resourceVersion": seen.version,
            "annotations": { GENERATION: to.to_string() },
        }});
        let what = format!("raise the generation of volume {name}");
        let path = format!("{PATH}/{name}");
        let written = self.send::<Object>(what, Method::PATCH, &path, MERGE, &patch).await;
        let written = Written::of(written.map(Object::ours))?;
        Ok(match written {
            Written::Is(Some(volume)) => Written::Is(volume),
            Written::Is(None) | Written::Stale => Written::Stale,
        })
    }

    /// Deletes a PersistentVolume. One that is gone is no error.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        self.delete_path(&format!("{PATH}/{name}")).await
    }

    /// Deletes what lies at a path, if it is there.
    pub(super) async fn delete_path(&self, path: &str) -> Result<()> {
        let what = format!("delete {path}");
        let kind = crate::cluster::JSON;
        match self.send::<Value>(what, Method::DELETE, path, kind, &json!({})).await {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    uid: String,
    creation_timestamp: Option<Timestamp>,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    capacity: BTreeMap<String, String>,
    #[serde(default)]
    access_modes: Vec<AccessMode>,
    flex_volume: Option<Flex>,
    csi: Option<Csi>,
    claim_ref: Option<ClaimRef>,
    #[serde(default)]
    storage_class_name: String,
    #[serde(default)]
    persistent_volume_reclaim_policy: String,
}

#[derive(Deserialize, Default)]
struct Status {
    #[serde(default)]
    phase: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Flex {
    driver: String,
    #[serde(default)]
    fs_type: String,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
    #[serde(default)]
    fs_type: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClaimRef {
    namespace: String,
    name: String,
    uid: String,
}

/// The storage behind a volume: cluster, image and file system.
type Place = (String, String, String);

impl Object {
    fn ours(self) -> Option<PersistentVolume> {
        let spec = self.spec;
        let (front_end, (storage_cluster, image, fs_type)) = match (spec.flex_volume, spec.csi) {
            (Some(flex), _) => (FrontEnd::Flex, flex_place(flex)?),
            (None, Some(csi)) => (FrontEnd::Csi, csi_place(csi)?),
            (None, None) => return None,
        };
        let generation = self.metadata.annotations.get(GENERATION);
        let generation = generation.and_then(|text| text.parse().ok()).map(Generation);
        let facts = VolumeFacts {
            storage_cluster,
            image,
            modes: spec.access_modes,
            generation: generation.unwrap_or_default(),
            epoch: Generation::default(),
            deleting: self.metadata.deletion_timestamp.is_some(),
        };
        Some(PersistentVolume {
            name: self.metadata.name,
            uid: self.metadata.uid,
            created: self.metadata.creation_timestamp,
            front_end,
            facts,
            fs_type,
            storage_class: spec.storage_class_name,
            claim: spec.claim_ref.map(|claim| (claim.namespace, claim.name, claim.uid)),
            phase: self.status.phase,
            is_provisioned: self.metadata.annotations.contains_key(PROVISIONED_BY),
            deletes_image: spec.persistent_volume_reclaim_policy == "Delete",
            capacity: spec.capacity.get("storage").cloned().unwrap_or_default(),
            version: self.metadata.resource_version,
        })
    }
}

fn flex_place(mut flex: Flex) -> Option<Place> {
    let mut take = |key| flex.options.remove(key).unwrap_or_default();
    let (cluster, image) = (take("storageCluster"), take("image"));
    (flex.driver == FLEX_DRIVER).then_some((cluster, image, flex.fs_type))
}

fn csi_place(csi: Csi) -> Option<Place> {
    let (cluster, image) = parse_handle(&csi.volume_handle)?;
    let place = (cluster.to_owned(), image.to_owned(), csi.fs_type);
    (csi.driver == CSI_DRIVER).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(source: &Value) -> Option<PersistentVolume> {
        let mut object = json!({
            "metadata": { "name": "pv", "resourceVersion": "1",
                          "annotations": { GENERATION: "7" } },
            "spec": { "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } },
        });
        let spec = object["spec"].as_object_mut().unwrap();
        spec.extend(source.as_object().unwrap().clone());
        serde_json::from_value::<Object>(object).unwrap().ours()
    }

    #[test]
    fn both_front_ends_name_the_same_storage_and_others_are_not_ours() {
        let flex = volume(&json!({ "flexVolume": { "driver": FLEX_DRIVER, "fsType": "xfs",
            "options": { "storageCluster": "main", "image": "a" } } }));
        let csi = volume(&json!({ "csi": { "driver": CSI_DRIVER, "fsType": "xfs",
            "volumeHandle": "main/a" } }));
        let (flex, csi) = (flex.unwrap(), csi.unwrap());
        assert_eq!(flex.facts, csi.facts);
        assert_eq!((flex.facts.image.as_str(), flex.facts.generation), ("a", Generation(7)));
        assert_eq!((flex.front_end, csi.front_end), (FrontEnd::Flex, FrontEnd::Csi));
        assert_eq!(volume(&json!({ "flexVolume": { "driver": "other/volume" } })), None);
        assert_eq!(volume(&json!({ "csi": { "driver": "other", "volumeHandle": "a/b" } })), None);
        assert_eq!(volume(&json!({ "hostPath": { "path": "/a" } })), None);
    }
}
