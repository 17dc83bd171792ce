//! Claims that want a volume of ours, their classes, and what is made for them.

use std::collections::BTreeMap;

use http::Method;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::volume::{
    attach::AccessMode,
    cleanup::Object,
    provision::{Claim, Class, FrontEnd, Plan},
    request::{CSI_DRIVER, FLEX_DRIVER},
};

use super::{Written, persistent::PROVISIONED_BY};
use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
    quantity::parse_whole,
};

/// As a StorageClass names us.
pub const PROVISIONER: &str = "wharf.dev/volume";
/// What Kubernetes says of a claim while its volume grows.
const OF_GROWTH: [&str; 2] = ["Resizing", "FileSystemResizePending"];
/// Controllers of Kubernetes write the same status.
const TRIES: usize = 5;
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
pub(super) const VOLUMES: &str = "/api/v1/persistentvolumes";

/// A storage class of ours, with what Kubernetes itself keeps there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageClass {
    pub class: Class,
    pub deletes_image: bool,
    pub waits_for_pod: bool,
    pub expands: bool,
    mount_options: Vec<String>,
}

/// A claim of one of our classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimSeen {
    pub claim: Claim,
    pub class: String,
    /// The PersistentVolume that it is bound to; empty while there is none.
    pub volume: String,
    pub deleting: bool,
    /// What it asks for, as Kubernetes writes it.
    pub wanted: String,
    /// What it was told that it has.
    pub has: String,
}

impl Cluster {
    /// The storage classes whose volumes we make.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn storage_classes(&self) -> Result<Vec<StorageClass>> {
        let path = "/apis/storage.k8s.io/v1/storageclasses";
        let objects: Vec<ClassObject> = self.list(path, ListParams::default()).await?;
        let ours = objects.into_iter().filter(|class| class.provisioner == PROVISIONER);
        Ok(ours.map(StorageClass::from).collect())
    }

    /// The claims of these classes.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn claims_of(&self, classes: &[StorageClass]) -> Result<Vec<ClaimSeen>> {
        let mut claims = Vec::new();
        let take = |object: ClaimObject| {
            let class = classes.iter().find(|one| one.class.name == object.spec.storage_class_name);
            claims.extend(class.map(|class| object.seen(class)));
        };
        self.list_each(CLAIMS, ListParams::default(), take).await?;
        Ok(claims)
    }

    /// Makes the PersistentVolume of a claim. One that is there already is no error.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn create_volume(
        &self,
        plan: &Plan,
        claim: &ClaimSeen,
        class: &StorageClass,
    ) -> Result<()> {
        let source = match plan.front_end {
            FrontEnd::Flex => json!({ "flexVolume": {
                "driver": FLEX_DRIVER, "fsType": plan.fs_type,
                "options": flex_options(plan, class),
            }}),
            FrontEnd::Csi => json!({ "csi": {
                "driver": CSI_DRIVER, "fsType": plan.fs_type,
                "volumeHandle": format!("{}/{}", plan.storage_cluster, plan.name),
            }}),
        };
        let Claim { namespace, name, uid, modes, .. } = &claim.claim;
        let mut spec = json!({
            "capacity": { "storage": plan.bytes.to_string() },
            "accessModes": modes,
            "persistentVolumeReclaimPolicy": if class.deletes_image { "Delete" } else { "Retain" },
            "storageClassName": class.class.name,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": namespace, "name": name, "uid": uid,
            },
        });
        if let (Some(spec), Some(source)) = (spec.as_object_mut(), source.as_object()) {
            spec.extend(source.clone());
            // Kubernetes has mount options for CSI alone, and refuses them for Flexvolume.
            if plan.front_end == FrontEnd::Csi && !class.mount_options.is_empty() {
                spec.insert("mountOptions".to_owned(), json!(class.mount_options));
            }
        }
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": plan.name, "annotations": { PROVISIONED_BY: PROVISIONER } },
            "spec": spec,
        });
        let what = format!("make the PersistentVolume {}", plan.name);
        Written::of(self.send::<Value>(what, Method::POST, VOLUMES, JSON, &object).await)?;
        Ok(())
    }

    /// Says how large a volume is now.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn set_capacity(&self, volume: &str, size: &str) -> Result<()> {
        let patch = json!({ "spec": { "capacity": { "storage": size } } });
        let what = format!("write the size of volume {volume}");
        let path = format!("{VOLUMES}/{volume}");
        self.send::<Value>(what, Method::PATCH, &path, MERGE, &patch).await.map(drop)
    }

    /// Says to the claim of this namespace, name and UID how large its file system is now, if it does not
    /// say so. What others say of it stays.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn set_claim_capacity(
        &self,
        (namespace, name, uid): (&str, &str, &str),
        size: &str,
    ) -> Result<()> {
        let path = claim_path(namespace, name);
        for _ in 0..TRIES {
            let seen = self.get::<ClaimObject>(&path).await?;
            let Some(patch) = seen.and_then(|claim| claim.grown(uid, size)) else { return Ok(()) };
            let what = format!("write the size of claim {namespace}/{name}");
            let status = format!("{path}/status");
            let written = self.send::<Value>(what, Method::PATCH, &status, MERGE, &patch).await;
            if let Written::Is(_) = Written::of(written)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the claim with this UID is there still.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn claim_state(&self, namespace: &str, name: &str, uid: &str) -> Result<Object> {
        let claim = self.get::<ClaimObject>(&claim_path(namespace, name)).await?;
        Ok(match claim.filter(|claim| claim.metadata.uid == uid) {
            None => Object::Gone,
            Some(claim) if claim.metadata.deletion_timestamp.is_some() => Object::Deleting,
            Some(_) => Object::There,
        })
    }

    /// Deletes the claim with this UID. One that is gone is no error: whoever made it may have made
    /// another of the same name.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn delete_claim(&self, namespace: &str, name: &str, uid: &str) -> Result<()> {
        let options = json!({ "preconditions": { "uid": uid } });
        let what = format!("delete claim {namespace}/{name}");
        let path = claim_path(namespace, name);
        let gone = self.send::<Value>(what, Method::DELETE, &path, JSON, &options).await;
        Written::of(gone).map(drop)
    }
}

/// What kubelet hands to our driver.
fn flex_options(plan: &Plan, class: &StorageClass) -> BTreeMap<&'static str, String> {
    let mut options = BTreeMap::from([
        ("storageCluster", plan.storage_cluster.clone()),
        ("image", plan.name.clone()),
    ]);
    if !class.mount_options.is_empty() {
        options.insert("mountOptions", class.mount_options.join(","));
    }
    options
}

fn claim_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClassObject {
    metadata: Name,
    provisioner: String,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(default)]
    reclaim_policy: String,
    #[serde(default)]
    volume_binding_mode: String,
    #[serde(default)]
    allow_volume_expansion: bool,
    #[serde(default)]
    mount_options: Vec<String>,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

impl From<ClassObject> for StorageClass {
    fn from(object: ClassObject) -> Self {
        Self {
            class: Class { name: object.metadata.name, parameters: object.parameters },
            deletes_image: object.reclaim_policy != "Retain",
            waits_for_pod: object.volume_binding_mode == "WaitForFirstConsumer",
            expands: object.allow_volume_expansion,
            mount_options: object.mount_options,
        }
    }
}

#[derive(Deserialize)]
struct ClaimObject {
    metadata: ClaimMeta,
    spec: ClaimSpec,
    #[serde(default)]
    status: ClaimStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimMeta {
    namespace: String,
    name: String,
    uid: String,
    #[serde(default)]
    resource_version: String,
    deletion_timestamp: Option<String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSpec {
    storage_class_name: String,
    access_modes: Vec<AccessMode>,
    volume_name: String,
    volume_mode: String,
    resources: Resources,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClaimStatus {
    capacity: BTreeMap<String, String>,
    conditions: Vec<Value>,
}

impl ClaimObject {
    /// The status of the claim with this UID when its file system has this size; `None` when it says so, or is
    /// another one.
    fn grown(self, uid: &str, size: &str) -> Option<Value> {
        let ClaimStatus { capacity, mut conditions } = self.status;
        let before = conditions.len();
        conditions.retain(|one| !OF_GROWTH.iter().any(|kind| one["type"] == *kind));
        let has = capacity.get("storage").and_then(|has| parse_whole(has));
        let is_told = has == parse_whole(size) && conditions.len() == before;
        (self.metadata.uid == uid && !is_told).then(|| {
            json!({
                "metadata": { "resourceVersion": self.metadata.resource_version },
                "status": { "capacity": { "storage": size }, "conditions": conditions },
            })
        })
    }

    fn seen(self, class: &StorageClass) -> ClaimSeen {
        let storage =
            |of: &BTreeMap<String, String>| of.get("storage").cloned().unwrap_or_default();
        let wanted = storage(&self.spec.resources.requests);
        let chosen = self.metadata.annotations.contains_key(SELECTED_NODE);
        ClaimSeen {
            class: class.class.name.clone(),
            volume: self.spec.volume_name,
            deleting: self.metadata.deletion_timestamp.is_some(),
            has: storage(&self.status.capacity),
            claim: Claim {
                namespace: self.metadata.namespace,
                name: self.metadata.name,
                uid: self.metadata.uid,
                modes: self.spec.access_modes,
                bytes: parse_whole(&wanted).unwrap_or_default(),
                is_block: self.spec.volume_mode == "Block",
                waits: class.waits_for_pod && !chosen,
            },
            wanted,
        }
    }
}

/// How many bytes a quantity of Kubernetes is; `None` for what is none.
pub fn bytes(quantity: &str) -> Option<u64> {
    parse_whole(quantity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_told_its_size_once_and_keeps_what_others_say_of_it() {
        let claim = |size: &str, conditions: Value| -> ClaimObject {
            let status = json!({ "capacity": { "storage": size }, "conditions": conditions });
            let metadata =
                json!({ "namespace": "a", "name": "b", "uid": "u", "resourceVersion": "7" });
            serde_json::from_value(json!({ "metadata": metadata, "spec": {}, "status": status }))
                .unwrap()
        };
        let (pending, others) =
            (json!({ "type": "FileSystemResizePending" }), json!({ "type": "Odd" }));
        let grown = claim("64Mi", json!([pending, others])).grown("u", "70M").unwrap();
        let expected = json!({
            "metadata": { "resourceVersion": "7" },
            "status": { "capacity": { "storage": "70M" }, "conditions": [others] },
        });
        assert_eq!(grown, expected);
        assert_eq!(claim("70M", json!([others])).grown("u", "70000000"), None, "it says so");
        assert!(claim("70M", json!([pending])).grown("u", "70M").is_some());
        assert_eq!(claim("64Mi", json!([])).grown("another", "70M"), None);
    }
}
