//! The other front end: kubelets call the agents themselves, for volumes on the same storage.

use serde_json::json;
use wharf_testbed::wait_for;

use super::{NAME, NODES, Trial};
use crate::bed::DEADLINE;

const DRIVER: &str = "volume.wharf.dev";
const CLAIM: &str = "by-csi";
const WRITER: &str = "csi-writer";
const READER: &str = "csi-reader";
const FILE: &str = "/data/file";

impl Trial<'_> {
    pub fn a_volume_of_csi_moves_from_node_to_node(&self) {
        for (node, _) in NODES {
            self.wait_for_registration(node);
        }
        self.make_claim();
        self.run(WRITER, "node2", &format!("echo kept >{FILE} && sync {FILE}"));
        let volume = self.volume_of(CLAIM);
        let path = "jsonpath={.spec.csi.driver} {.spec.csi.volumeHandle}";
        let source = self.bed.kubectl(NAME, &["get", "pv", &volume, "-o", path]).unwrap();
        assert_eq!(source, format!("{DRIVER} main/{volume}"));
        assert_eq!(self.holders_of(&volume), ["node2"]);

        // Another agent, another socket; who writes notices nothing.
        self.bed.host("node2").run(&["systemctl", "restart", "wharf-agent"]).unwrap();
        self.wait_for_registration("node2");
        let more = format!("echo after the restart >>{FILE} && sync {FILE}");
        self.bed.kubectl(NAME, &["exec", WRITER, "--", "sh", "-c", &more]).unwrap();
        self.it_grows_while_it_is_used();

        self.end(WRITER, &volume);
        self.run(READER, "node3", "true");
        assert_eq!(self.holders_of(&volume), ["node3"]);
        let read = self.bed.kubectl(NAME, &["exec", READER, "--", "cat", FILE]).unwrap();
        assert_eq!(read, "kept\nafter the restart\n");
        self.end(READER, &volume);
        self.claim_takes_its_image_with_it(CLAIM);
        for node in ["node2", "node3"] {
            self.wait_for_nothing_left(node);
        }
    }

    fn it_grows_while_it_is_used(&self) {
        let kibibytes = || {
            let df = ["exec", WRITER, "--", "df", "-kP", "/data"];
            let text = self.bed.kubectl(NAME, &df).unwrap();
            let size = text.lines().last().and_then(|line| line.split_whitespace().nth(1));
            size.and_then(|size| size.parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
        };
        assert!(kibibytes() < 320 << 10);
        let more = r#"{"spec":{"resources":{"requests":{"storage":"400Mi"}}}}"#;
        self.bed.kubectl(NAME, &["patch", "pvc", CLAIM, "--type=merge", "-p", more]).unwrap();
        wait_for("the pod to see more room, and the claim to say so", DEADLINE, || {
            let told = self.field(CLAIM, "{.status.capacity.storage}");
            Ok((kibibytes() > 320 << 10 && told == "400Mi").then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    /// kubelet says so to the API server, and the agent to people.
    pub fn wait_for_registration(&self, node: &str) {
        let is_registered = || {
            let drivers = ["get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name}"];
            let drivers = self.bed.kubectl(NAME, &drivers).unwrap_or_default();
            let status = self.bed.host(node).ssh(&["/opt/wharf/bin/wharf", "agent", "status"]);
            let status = status.map(|output| output.stdout).unwrap_or_default();
            drivers.split(' ').any(|driver| driver == DRIVER)
                && String::from_utf8_lossy(&status).contains("kubelet registered the driver")
        };
        wait_for("kubelet to register the driver", DEADLINE, || Ok(is_registered().then_some(())))
            .unwrap_or_else(|error| panic!("{node}: {error:?}\n{}", self.told()));
    }

    fn make_claim(&self) {
        self.bed.apply(
            NAME,
            &[
                json!({
                    "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                    "metadata": { "name": CLAIM }, "provisioner": "wharf.dev/volume",
                    "allowVolumeExpansion": true,
                    "parameters": {
                        "storageCluster": "main", "frontEnd": "csi", "fsType": "xfs",
                    },
                }),
                json!({
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "metadata": { "name": CLAIM },
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "storageClassName": CLAIM,
                        "resources": { "requests": { "storage": "320Mi" } },
                    },
                }),
            ],
        );
    }

    /// A pod that is ready when the file is there. It is not root: kubelet gives it the volume by its
    /// group.
    fn run(&self, name: &str, node: &str, script: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "securityContext": { "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000 },
                "containers": [{
                    "name": "c", "image": self.bed.image("busybox"),
                    "command": ["sh", "-c", format!("{script}; sleep 1000000")],
                    "readinessProbe": { "exec": { "command": ["cat", FILE] },
                                        "periodSeconds": 1 },
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": CLAIM } }],
            },
        });
        self.bed.apply(NAME, &[pod]);
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        wait_for("the pod to be ready", DEADLINE, || {
            let ready = self.bed.kubectl(NAME, &["get", "pod", name, "-o", path]);
            Ok(ready.is_ok_and(|ready| ready == "True").then_some(()))
        })
        .unwrap_or_else(|error| panic!("{name}: {error:?}\n{}", self.told()));
    }

    /// The pod goes when its volume is unmounted.
    fn end(&self, name: &str, volume: &str) {
        self.bed.kubectl(NAME, &["delete", "pod", name, "--wait=false"]).unwrap();
        wait_for("the pod to go and its volume to be given up", DEADLINE, || {
            let left = ["get", "pod", name, "--ignore-not-found", "-o", "name"];
            let is_gone = self.bed.kubectl(NAME, &left).is_ok_and(|left| left.is_empty());
            Ok((is_gone && self.holders_of(volume).is_empty()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{name}: {error:?}\n{}", self.told()));
    }
}
