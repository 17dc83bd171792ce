//! A storage cluster that is deleted while a set of pods writes to its volumes.

use std::{path::Path, process::Command};

use serde_json::{Value, json};
use wharf_testbed::{devices::loop_devices, process::Process, wait_for};

use super::{NAME, NODES, SHARED, Trial};
use crate::bed::DEADLINE;

const STORAGE: &str = "doomed";
const PODS: [&str; 2] = ["doomed-0", "doomed-1"];
const CLAIMS: [&str; 2] = ["data-doomed-0", "data-doomed-1"];
const WORKERS: [&str; 2] = ["node2", "node3"];
const BYSTANDER: &str = "bystander";
const BESIDE: &str = "beside";
/// The pods do not listen to the order to end. As long as they run they keep their devices, which the
/// storage cluster has to tell of.
const GRACE_SECONDS: u64 = 10;

impl Trial<'_> {
    pub fn a_deleted_storage_cluster_leaves_the_nodes_and_no_other_is_touched(&self) {
        let beside = self.claim_of(BESIDE, "main");
        self.start(BYSTANDER, WORKERS[0], BESIDE);
        self.make_storage(STORAGE, "loopfile", &json!({ "directory": SHARED }));
        self.start_the_set();
        let nodes = PODS.map(|pod| self.of_pod(pod, "{.spec.nodeName}"));
        for (pod, node) in PODS.iter().zip(&nodes) {
            self.wait_for_stamps(pod, node);
        }
        let volumes = CLAIMS.map(|claim| self.volume_of(claim));
        let claims = CLAIMS.map(|claim| self.field(claim, "{.metadata.uid}"));
        let pods = PODS.map(|pod| self.of_pod(pod, "{.metadata.uid}"));

        let mut reports = self.watch_reports();
        self.bed.kubectl(NAME, &["delete", "storagecluster", STORAGE, "--wait=false"]).unwrap();
        for (volume, node) in volumes.iter().zip(&nodes) {
            let sentence = format!("volume {volume} is still on node {node}");
            reports.wait_for_output(&sentence, DEADLINE).unwrap();
        }
        self.wait_until_gone(&["storagecluster", STORAGE]);
        for volume in &volumes {
            self.wait_until_gone(&["pv", volume]);
            self.wait_until_gone(&["attachments.wharf.dev", volume]);
            assert_data(&self.bed.shared().join(format!("{volume}.img")));
        }
        for (pod, uid) in PODS.iter().zip(&pods) {
            self.wait_for_another("pod", pod, uid);
        }
        self.wait_for_nothing_of(&volumes);

        for (claim, uid) in CLAIMS.iter().zip(&claims) {
            self.wait_for_another("pvc", claim, uid);
            self.wait_for_reason(claim);
        }
        for pod in PODS {
            let path = "{.status.phase}: {.status.conditions[?(@.type==\"PodScheduled\")].message}";
            let waits = self.of_pod(pod, path);
            assert!(waits.starts_with("Pending: ") && waits.contains("unbound"), "{waits}");
        }
        assert_eq!(self.holders_of(&beside), [WORKERS[0]]);
        self.assert_undisturbed(BYSTANDER, WORKERS[0]);

        self.bed.kubectl(NAME, &["delete", "statefulset", STORAGE]).unwrap();
        self.bed.kubectl(NAME, &[&["delete", "pvc"][..], &CLAIMS].concat()).unwrap();
        self.end_pod(BYSTANDER, &beside);
        self.claim_takes_its_image_with_it(BESIDE);
    }

    /// One pod on each of the workers.
    fn start_the_set(&self) {
        let mut pod = self.writer_spec();
        let labels = json!({ "app": STORAGE });
        pod["terminationGracePeriodSeconds"] = json!(GRACE_SECONDS);
        let on_workers = json!([{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": WORKERS },
        ] }]);
        pod["affinity"] = json!({
            "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": on_workers,
            } },
            "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": labels },
            }] },
        });
        let claim = json!({
            "metadata": { "name": "data" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
                "resources": { "requests": { "storage": "64Mi" } },
            },
        });
        self.bed.apply(NAME, &[json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": STORAGE },
            "spec": {
                "replicas": PODS.len(), "serviceName": STORAGE, "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": pod },
                "volumeClaimTemplates": [claim],
            },
        })]);
        wait_for("the pods to run", DEADLINE, || {
            let run = |pod: &str| self.of_pod(pod, "{.status.phase}") == "Running";
            Ok(PODS.into_iter().all(run).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    /// A field of a pod; nothing while there is no such pod.
    fn of_pod(&self, pod: &str, path: &str) -> String {
        self.of("pod", pod, path)
    }

    fn of(&self, kind: &str, name: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.bed.kubectl(NAME, &["get", kind, name, "--ignore-not-found", "-o", &path]).unwrap()
    }

    /// Prints what the storage cluster tells of its deletion, whenever that changes.
    fn watch_reports(&self) -> Process {
        let mut watch = Command::new(wharf_bundle::cache::find("kubectl").unwrap());
        watch.arg("--kubeconfig").arg(self.bed.kubeconfig(NAME));
        watch.args(["get", "storagecluster", STORAGE, "--watch"]);
        watch.args(["-o", "jsonpath={.metadata.name}: {.status.report}{\"\\n\"}"]);
        let mut watch = Process::spawn(watch).unwrap();
        watch.wait_for_output(STORAGE, DEADLINE).unwrap();
        watch
    }

    pub fn wait_until_gone(&self, what: &[&str]) {
        let get = [&["get"], what, &["--ignore-not-found", "-o", "yaml"]].concat();
        let look = || self.bed.kubectl(NAME, &get).unwrap();
        wait_for("it to go", DEADLINE, || Ok(look().is_empty().then_some(())))
            .unwrap_or_else(|error| panic!("{error:?}: {}\n{}", look(), self.told()));
    }

    /// Waits until the set has made anew what was deleted.
    fn wait_for_another(&self, kind: &str, name: &str, uid: &str) {
        wait_for("the set to make it anew", DEADLINE, || {
            let now = self.of(kind, name, "{.metadata.uid}");
            Ok((!now.is_empty() && now != uid).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{kind} {name}: {error:?}\n{}", self.told()));
    }

    /// No mount of whomever, no device, no journal and no garbage is left of these volumes.
    pub fn wait_for_nothing_of(&self, volumes: &[String]) {
        let names = volumes.join("|");
        let look = format!(
            "ls /var/lib/wharf/volumes/journals | grep -E '{names}'
             grep -lE '{names}' /proc/[0-9]*/mountinfo 2>/dev/null
             true"
        );
        let left = || {
            let on = |(node, _): &(&str, _)| self.bed.host(node).run(&["sh", "-c", &look]).unwrap();
            let devices = volumes.iter().flat_map(|volume| loop_devices(Path::new(volume)));
            let garbage = ["get", "nodegarbages.wharf.dev", "-o", "yaml"];
            let garbage = self.bed.kubectl(NAME, &garbage).unwrap();
            let garbage = garbage.lines().filter(|line| volumes.iter().any(|it| line.contains(it)));
            let all = NODES.iter().map(on).chain(devices).chain(garbage.map(str::to_owned));
            all.filter(|it| !it.is_empty()).collect::<Vec<_>>()
        };
        wait_for("the volumes to leave the nodes", DEADLINE, || {
            Ok(left().is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}: {:?}\n{}", left(), self.told()));
    }

    /// A claim without a storage cluster waits, and says for what.
    fn wait_for_reason(&self, claim: &str) {
        let uid = self.field(claim, "{.metadata.uid}");
        let of_claim = format!("involvedObject.uid={uid},reason=ProvisioningFailed");
        let list = ["get", "events", "--field-selector", &of_claim, "-o", "json"];
        wait_for("the claim to say why it waits", DEADLINE, || {
            let list: Value = serde_json::from_str(&self.bed.kubectl(NAME, &list).unwrap())?;
            let mut events = list["items"].as_array().into_iter().flatten();
            let reason = format!("there is no StorageCluster {STORAGE}");
            Ok(events.any(|event| event["message"] == reason.as_str()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{claim}: {error:?}\n{}", self.told()));
        assert_eq!(self.field(claim, "{.status.phase}{.spec.volumeName}"), "Pending");
    }

    /// It has written one line after the other, goes on, and never saw an error.
    fn assert_undisturbed(&self, pod: &str, node: &str) {
        let read = ["exec", pod, "--", "cat", "/data/log"];
        let lines = || self.bed.kubectl(NAME, &read).unwrap().lines().count();
        let until_now = lines();
        wait_for("it to go on", DEADLINE, || Ok((lines() > until_now + 10).then_some(()))).unwrap();
        let log = self.bed.kubectl(NAME, &read).unwrap();
        for (number, line) in log.lines().enumerate() {
            assert_eq!(line, format!("{node} {number}"));
        }
        assert_eq!(self.bed.kubectl(NAME, &["logs", pod]).unwrap(), "");
    }
}

/// What the pod synced is in an image that nobody has any more.
fn assert_data(image: &Path) {
    // It may be in the journal of the file system alone, which was shut down and not unmounted.
    let replay =
        Command::new("e2fsck").args(["-p", "-E", "journal_only"]).arg(image).output().unwrap();
    let is_whole = replay.status.code().is_some_and(|code| code <= 1);
    assert!(is_whole, "{}", String::from_utf8_lossy(&replay.stdout));
    let look = Command::new("debugfs").args(["-R", "stat /log"]).arg(image).output().unwrap();
    let look = String::from_utf8(look.stdout).unwrap();
    assert!(look.contains("Type: regular"), "the data is there: {look}");
}
