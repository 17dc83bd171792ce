//! Claims: what is made for them, and what goes with them.
//!
//! Kubernetes' own controllers do not run here. What they do, binding and letting go, the tests do.

use std::fs;

use serde_json::{Value, json};

use crate::{
    common::{create, kubectl},
    mount_options,
    world::{Pod, World},
};

impl World {
    /// A storage class of the storage cluster of the same name, or as `more` says.
    pub fn class(&self, name: &str, more: &Value) {
        let mut class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": name }, "provisioner": "wharf.dev/volume",
            "parameters": { "storageCluster": "main" },
        });
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        create(&self.server, &class);
    }

    /// A claim that was given a volume: the name of that, and of its image.
    pub fn claim(&self, namespace: &str, class: &str, name: &str) -> String {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "namespace": namespace, "name": name },
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "64Mi" } },
            },
        });
        create(&self.server, &claim);
        let uid = self.read(&["pvc", "-n", namespace, name])["metadata"]["uid"].clone();
        let volume = format!("pvc-{}", uid.as_str().unwrap());
        self.wait_until("the claim to get its volume", |world| {
            !world.find(&["pv", &volume]).is_null()
        });
        self.bind(namespace, name, &volume);
        volume
    }

    /// Binds a claim to its volume.
    pub fn bind(&self, namespace: &str, claim: &str, volume: &str) {
        let to = json!({ "spec": { "volumeName": volume } }).to_string();
        let patch = ["patch", "pvc", "-n", namespace, claim, "--type=merge", "-p", &to];
        kubectl(&self.server, &patch, &Value::Null);
        self.phase("pv", volume, "Bound");
    }

    /// What a controller of Kubernetes says of an object.
    pub fn phase(&self, kind: &str, name: &str, phase: &str) {
        let status = json!({ "status": { "phase": phase } }).to_string();
        let patch = ["patch", kind, name, "--subresource=status", "--type=merge", "-p", &status];
        kubectl(&self.server, &patch, &Value::Null);
    }

    /// Deletes a claim that nobody uses, and tells its volume so.
    fn unclaim(&self, namespace: &str, claim: &str, volume: &str) {
        let free = ["patch", "pvc", "-n", namespace, claim, "--type=merge"];
        let free = [&free[..], &["-p", "{\"metadata\":{\"finalizers\":null}}"]].concat();
        kubectl(&self.server, &free, &Value::Null);
        kubectl(&self.server, &["delete", "pvc", "-n", namespace, claim], &Value::Null);
        self.phase("pv", volume, "Released");
    }

    /// An object, or null.
    pub fn find(&self, what: &[&str]) -> Value {
        let get = [&["get", "--ignore-not-found", "-o", "json"], what].concat();
        let text = kubectl(&self.server, &get, &Value::Null);
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub fn read(&self, what: &[&str]) -> Value {
        let found = self.find(what);
        assert!(!found.is_null(), "{what:?}");
        found
    }

    pub fn has_image(&self, volume: &str) -> bool {
        fs::exists(self.path(&format!("images/{volume}.img"))).unwrap()
    }

    /// As kubelet does, with the options of the PersistentVolume.
    fn mount_claimed(&self, pod: &Pod, volume: &str) -> Result<(), String> {
        let source = self.read(&["pv", volume])["spec"]["flexVolume"].clone();
        let mut more = source["options"].clone();
        more["kubernetes.io/fsType"] = source["fsType"].clone();
        self.mount_with(pod, volume, volume, &more)
    }
}

/// A storage cluster is to go, and somebody does not let it.
#[test]
fn a_storage_cluster_whose_end_is_refused_keeps_no_claim_of_others_waiting() {
    let world = World::with("scan_seconds = 1");
    world.storage("over", &world.path("images"));
    world.volume_of("over", "pv-over", "one");
    world.protect("persistentvolumes", "pv-over");
    world.wait_until("the storage to be held", |world| {
        world.read(&["storagecluster", "over"])["metadata"]["finalizers"].is_array()
    });
    kubectl(&world.server, &["delete", "storagecluster", "over", "--wait=false"], &Value::Null);
    world.wait_until("people to be told of it", |world| {
        world.agent.fault("storage clusters").is_some_and(|why| why.contains("it is protected"))
    });
    world.class("main", &json!({}));
    let volume = world.claim("default", "main", "data");
    assert!(world.has_image(&volume));
    assert!(world.agent.fault("storage clusters").is_some());
}

#[test]
fn a_claim_of_any_namespace_gets_what_its_class_says_and_leaves_as_that_says() {
    let world = World::with("scan_seconds = 1");
    kubectl(&world.server, &["create", "namespace", "shop"], &Value::Null);
    let options = json!({ "mountOptions": ["noatime", "nodev"], "reclaimPolicy": "Retain" });
    world.class("kept", &options);
    world.class("gone", &json!({}));
    let kept = world.claim("shop", "kept", "data");
    let gone = world.claim("shop", "gone", "data-2");
    let secrets = world.find(&["secrets", "-n", "shop"]);
    assert_eq!(secrets, Value::Null, "nothing of the storage is copied there");

    let pod = world.pod_in("shop", "a");
    let before = world.leftovers();
    assert_eq!(world.mount_claimed(&pod, &kept), Ok(()));
    let dir = world.dir_of(&pod, &kept);
    let options = mount_options(&dir);
    assert!(options.contains("noatime") && options.contains("nodev"), "{options}");
    fs::write(dir.join("file"), "kept").unwrap();
    assert_eq!(world.unmount(&pod, &kept), Ok(()));
    assert_eq!(world.mount_claimed(&pod, &gone), Ok(()));
    let options = mount_options(&world.dir_of(&pod, &gone));
    assert!(!options.contains("nodev"), "the other class has none: {options}");
    assert_eq!(world.unmount(&pod, &gone), Ok(()));
    assert_eq!(world.leftovers(), before);

    // The volume that stays is let go first: whoever removes the other has passed it over.
    world.unclaim("shop", "data", &kept);
    world.unclaim("shop", "data-2", &gone);
    world.wait_until("the image to go with its claim", |world| {
        !world.has_image(&gone)
            && !world.read(&["pv", &gone])["metadata"]["deletionTimestamp"].is_null()
    });
    assert!(world.has_image(&kept));
    let volume = world.read(&["pv", &kept]);
    assert_eq!(volume["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(volume["status"]["phase"], "Released");
    // A person gives it to another claim, and finds all as it was.
    let again = world.pod_in("shop", "b");
    assert_eq!(world.mount_claimed(&again, &kept), Ok(()));
    let file = world.dir_of(&again, &kept).join("file");
    assert_eq!(fs::read_to_string(file).unwrap(), "kept");
    assert_eq!(world.unmount(&again, &kept), Ok(()));
}
