//! Volumes of a real Ceph, before a real API server, called as kubelet calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "rbd/scene.rs"]
mod scene;
#[allow(dead_code)]
#[path = "volumes/world.rs"]
mod world;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use common::{create, kubectl};
use rustix::process::Signal;
use scene::{CLUSTER, DEADLINE, Scene, store, store_aside};
use serde_json::{Value, json};
use world::{NODE, Pod, is_mounted};

/// Fences last for years, not for the hour that Ceph would take.
const NOT_BEFORE: u32 = 2030;

#[test]
fn a_claimed_volume_is_made_mounted_grown_and_deleted_and_survives_its_agent() {
    let mut scene = Scene::new();
    let volume = claim(&scene);
    assert_eq!(scene.images(), [volume.as_str()]);

    let pod = scene.world.pod("a");
    let before = scene.world.leftovers();
    let dir = scene.world.dir_of(&pod, &volume);
    let mut options = scene.world.options(&pod, &volume, &volume);
    options["storageCluster"] = json!(CLUSTER);
    options["kubernetes.io/fsType"] = json!("xfs");
    let call = ["mount", dir.to_str().unwrap(), &options.to_string()];
    assert_eq!(scene.world.call(&call), Ok(()));
    store(&dir.join("file"), "kept").unwrap();
    let entry = scene.entry(&volume);
    assert_eq!(entry["phase"], "Attached");
    let identity = entry["identity"].as_str().unwrap().to_owned();
    assert_eq!(scene.watchers(&volume), [identity.as_str()]);
    let writer = format!("writer/{:020}/{identity}", 1);
    assert_eq!(
        scene.ledger(&volume),
        [format!("epoch/{:020}", 1), format!("volume/{volume}"), writer]
    );

    // A killed agent finds all as it was, and nobody saw an error.
    let clients = scene.clients();
    assert_eq!(clients.len(), 1);
    scene.world.agent.process().kill().unwrap();
    store(&dir.join("without"), "an agent").unwrap();
    scene.world.agent.restart();
    scene.world.wait_ready();
    assert_eq!(scene.world.call(&call), Ok(()));
    store(&dir.join("with"), "another").unwrap();
    assert_eq!((scene.clients(), scene.watchers(&volume)), (clients, vec![identity.clone()]));
    assert_eq!(scene.entry(&volume)["identity"], json!(identity));

    let size = || {
        let found = rustix::fs::statvfs(&dir).unwrap();
        found.f_blocks * found.f_frsize
    };
    assert!(size() < 320 << 20);
    want_more(&scene, &volume);
    scene.wait_until("the file system to grow", |_| size() > 320 << 20);
    store(&dir.join("grown"), "too").unwrap();

    assert_eq!(scene.world.unmount(&pod, &volume), Ok(()));
    assert_eq!(scene.world.leftovers(), before);
    assert_eq!((scene.clients().len(), scene.watchers(&volume).len()), (0, 0));
    assert_eq!(scene.world.record(&volume), None);
    assert_eq!(scene.ledger(&volume), [format!("epoch/{:020}", 1), format!("volume/{volume}")]);
    assert_eq!(scene.shut_out_until(&identity), None, "it left in order");

    // Who only reads is no writer to anybody.
    options["kubernetes.io/readwrite"] = json!("ro");
    assert_eq!(scene.world.call(&["mount", call[1], &options.to_string()]), Ok(()));
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "kept");
    let refused = store(&dir.join("more"), "").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(scene.ledger(&volume), [format!("epoch/{:020}", 1), format!("volume/{volume}")]);
    assert_eq!(scene.world.unmount(&pod, &volume), Ok(()));
    assert_eq!(scene.world.leftovers(), before);

    give_up(&scene, &volume);
    scene.wait_until("the image to go", |scene| scene.images().is_empty());
    let epoch = [format!("epoch/{:020}", 2)];
    scene.wait_until("the ledger to keep its epoch alone", |scene| scene.ledger(&volume) == epoch);
}

/// Claims a volume of 320 MiB and waits for it.
fn claim(scene: &Scene) -> String {
    create(
        &scene.world.server,
        &json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": CLUSTER }, "provisioner": "wharf.dev/volume",
            "allowVolumeExpansion": true,
            "parameters": { "storageCluster": CLUSTER, "fsType": "xfs" },
        }),
    );
    create(
        &scene.world.server,
        &json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
            "spec": {
                "storageClassName": CLUSTER, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "320Mi" } },
            },
        }),
    );
    let get = ["get", "pvc", "data", "-o", "jsonpath={.metadata.uid}"];
    let volume = format!("pvc-{}", kubectl(&scene.world.server, &get, &Value::Null));
    let find = ["get", "pv", &volume, "--ignore-not-found", "-o", "name"];
    scene.wait_until("the volume of the claim", |scene| {
        !kubectl(&scene.world.server, &find, &Value::Null).is_empty()
    });
    volume
}

/// The claim wants 400 MiB.
fn want_more(scene: &Scene, volume: &str) {
    // What Kubernetes' own controller would write.
    let bound = ["patch", "pvc", "data", "--subresource=status", "--type=merge", "-p"];
    let status = json!({ "status": { "phase": "Bound", "capacity": { "storage": "320Mi" } } });
    scene.world.patch("pvc", "data", &json!({ "spec": { "volumeName": volume } }));
    kubectl(&scene.world.server, &[&bound[..], &[&status.to_string()]].concat(), &Value::Null);
    let wish = json!({ "spec": { "resources": { "requests": { "storage": "400Mi" } } } });
    scene.world.patch("pvc", "data", &wish);
}

/// The claim goes.
fn give_up(scene: &Scene, volume: &str) {
    scene.world.delete("pvc", "data");
    let released = json!({ "status": { "phase": "Released" } }).to_string();
    let words = ["patch", "pv", volume, "--subresource=status", "--type=merge", "-p", &released];
    kubectl(&scene.world.server, &words, &Value::Null);
}

/// A holder that was stopped so long that Ceph has forgotten it, and one of which nothing was written
/// down but that Ceph knows it.
#[test]
fn a_fenced_holder_gets_errors_and_the_next_one_has_what_was_synced() {
    let mut scene = Scene::new();
    scene.volume("pv-1", "one", 64);
    let mut second = scene.world.second("n1");
    scene.world.image("other", 64);
    scene.world.volume("pv-2", "other", &json!({}));
    let before = scene.world.leftovers();
    for round in ["forgotten", "unknown"] {
        let old = scene.world.pod(&format!("{round}-old"));
        scene.wait_until("the first node to have the volume", |scene| {
            scene.mount(&old, "pv-1", "one").is_ok()
        });
        let dir = scene.world.dir_of(&old, "pv-1");
        store(&dir.join(round), "synced").unwrap();
        let identity = scene.entry("pv-1")["identity"].as_str().unwrap().to_owned();
        // The machine of the first node stops.
        scene.world.agent.process().signal(Signal::STOP).unwrap();
        scene.signal_clients(Signal::STOP);
        if round == "forgotten" {
            scene.wait_until("Ceph to forget it", |scene| scene.watchers("one").is_empty());
        } else {
            scene.change_entry("pv-1", "identity", "");
            let key = scene.ledger("one").into_iter().find(|key| key.starts_with("writer/"));
            scene.forget("one", &key.unwrap());
            assert_eq!(scene.watchers("one"), [identity.as_str()]);
        }
        // What hangs is nobody's business but its own.
        let other = scene.world.pod_on("n1", &second, &format!("{round}-other"));
        assert_eq!(scene.world.mount(&other, "pv-2", "other"), Ok(()));
        assert_eq!(scene.world.unmount(&other, "pv-2"), Ok(()));
        let new = scene.world.pod_on("n1", &second, &format!("{round}-new"));
        taint(&scene, "node.kubernetes.io/out-of-service=yes:NoExecute");
        // The elected agent may fence it at the same time: then kubelet asks again.
        scene.wait_until("the second node to have the volume", |scene| {
            scene.mount(&new, "pv-1", "one").is_ok()
        });
        assert!(scene.shut_out_until(&identity).unwrap() > NOT_BEFORE);
        let there = scene.world.dir_of(&new, "pv-1");
        assert_eq!(fs::read_to_string(there.join(round)).unwrap(), "synced");
        store(&there.join(round), "anew").unwrap();

        // It goes on, and its agent does not: what refuses it is Ceph.
        scene.signal_clients(Signal::CONT);
        let written = store_aside(&dir.join(round), "late").recv_timeout(DEADLINE).unwrap();
        assert!(written.is_err(), "a fenced holder wrote");
        assert_eq!(scene.world.unmount(&new, "pv-1"), Ok(()));
        assert_eq!(scene.mount(&new, "pv-1", "one"), Ok(()));
        assert_eq!(fs::read_to_string(there.join(round)).unwrap(), "anew");
        assert_eq!(scene.world.unmount(&new, "pv-1"), Ok(()));

        // What is left on the first node goes once its agent is back.
        scene.world.agent.process().signal(Signal::CONT).unwrap();
        taint(&scene, "node.kubernetes.io/out-of-service-");
        scene.wait_until("the first node to be clean", |scene| {
            scene.world.leftovers() == before && scene.clients().is_empty()
        });
        kubectl(&scene.world.server, &["delete", "pod", "--all", "--force"], &Value::Null);
    }
    assert!(second.agent.process().status().unwrap().is_none());
}

fn taint(scene: &Scene, taint: &str) {
    kubectl(&scene.world.server, &["taint", "node", NODE, taint], &Value::Null);
}

/// A volume in use whose cluster does not answer any more, and somebody who waits for it.
struct Frozen {
    scene: Scene,
    pod: Pod,
    before: BTreeSet<String>,
    waiting: Receiver<io::Result<()>>,
}

impl Frozen {
    fn new() -> Self {
        let mut scene = Scene::new();
        scene.volume("pv-1", "one", 64);
        let pod = scene.world.pod("a");
        let before = scene.world.leftovers();
        assert_eq!(scene.mount(&pod, "pv-1", "one"), Ok(()));
        let dir = scene.world.dir_of(&pod, "pv-1");
        store(&dir.join("kept"), "synced").unwrap();
        scene.ceph.freeze(true).unwrap();
        let waiting = store_aside(&dir.join("late"), "late");
        let nothing = waiting.recv_timeout(Duration::from_secs(2)).unwrap_err();
        assert_eq!(nothing, RecvTimeoutError::Timeout, "nothing answers");
        Self { scene, pod, before, waiting }
    }
}

/// Everybody who waits for a cluster that does not answer is freed, and the node gets rid of it.
#[test]
fn a_volume_of_a_frozen_cluster_is_cut_off_and_taken_away() {
    let Frozen { mut scene, pod, before, waiting } = Frozen::new();
    let dir = scene.world.dir_of(&pod, "pv-1");
    let identity = scene.entry("pv-1")["identity"].as_str().unwrap().to_owned();
    // As `wharf volume detach --force` does; then kubelet asks, until the last user is gone.
    scene.change_entry("pv-1", "phase", "Released");
    scene.wait_until("the unmount", |scene| scene.world.unmount(&pod, "pv-1").is_ok());
    let freed = waiting.recv_timeout(DEADLINE).unwrap();
    assert!(freed.is_err(), "it was not written");
    scene.wait_until("the node to be clean", |scene| {
        scene.world.leftovers() == before && scene.clients().is_empty()
    });
    assert!(!is_mounted(&dir));
    scene.wait_until("the record to go", |scene| scene.world.record("pv-1").is_none());

    scene.ceph.freeze(false).unwrap();
    let next = scene.world.pod("b");
    scene.wait_until("the volume to be had again", |scene| {
        scene.mount(&next, "pv-1", "one").is_ok()
    });
    let kept = scene.world.dir_of(&next, "pv-1").join("kept");
    assert_eq!(fs::read_to_string(kept).unwrap(), "synced");
    let until = scene.shut_out_until(&identity).expect("what was killed is shut out");
    assert!(until > NOT_BEFORE);
    assert_eq!(scene.world.unmount(&next, "pv-1"), Ok(()));
    assert_eq!(scene.world.leftovers(), before);
}

/// The storage cluster is deleted while nothing in it answers.
#[test]
fn a_deleted_cluster_that_is_frozen_leaves_the_node() {
    let Frozen { mut scene, before, waiting, .. } = Frozen::new();
    let delete = ["delete", "storagecluster", CLUSTER, "--wait=false"];
    kubectl(&scene.world.server, &delete, &Value::Null);
    let freed = waiting.recv_timeout(DEADLINE).unwrap();
    assert!(freed.is_err(), "it was not written");
    let find = ["get", "storagecluster,pv", "--ignore-not-found", "-o", "name"];
    scene.wait_until("all of it to go", |scene| {
        scene.world.release();
        let left = kubectl(&scene.world.server, &find, &Value::Null);
        !left.contains(CLUSTER) && !left.contains("pv-1")
    });
    assert_eq!(scene.world.leftovers(), before);
    assert!(scene.clients().is_empty() && scene.world.record("pv-1").is_none());
    scene.ceph.freeze(false).unwrap();
    assert_eq!(scene.images(), ["one"], "images of a cluster that was only let go stay");
}
