//! What KubeVirt, Longhorn and Multus would put into an installed cluster, and what the installed
//! agents make of it with the rights that the installer gave them.
//!
//! The kinds are those of the projects; their controllers are not there, and the objects are the test's.

use serde_json::{Value, json};
use wharf_testbed::{kinds::Project, wait_for};

use crate::{
    apps::{self, NAMESPACE, object},
    bed::{Bed, DEADLINE},
};

const DESK: &str = "33333333-4e5f-4071-8293-a4b5c6d7e8f9";
/// Its virtual machine, as KubeVirt would name it.
const MACHINE: &str = "desk-33333k7";
const WIRES: [(&str, &str); 2] = [
    ("wire1", "55555555-4e5f-4071-8293-a4b5c6d7e8f9"),
    ("wire2", "66666666-4e5f-4071-8293-a4b5c6d7e8f9"),
];
/// A port of every host that is down until an application uses it.
const PORT: &str = "wharf-port";
const VOLUME: &str = "77777777-4e5f-4071-8293-a4b5c6d7e8f9";
const LONGHORN: &str = "longhorn-system";
const SINCE: &str = "2026-01-02T03:04:05Z";
/// What the guest says on its console.
const GREETING: &str = "welcome to the guest";

/// Agents look for kinds that a cluster did not have every minute; whoever defines them early need not
/// wait for that.
pub fn define(bed: &Bed, cluster: &str) {
    for project in [Project::KubeVirt, Project::Longhorn, Project::Multus] {
        project.define(&bed.kubeconfig(cluster)).unwrap();
    }
}

/// The cluster knows the kinds, its agents are linked and well. `node` is a worker.
pub fn serve(bed: &Bed, cluster: &str, node: &str) {
    let guests = Guests { bed, cluster, node, nodes: node_names(bed, cluster) };
    guests.make_machine();
    guests.make_storage();
    guests.make_wires();

    guests.the_machine_is_known_on_every_node();
    guests.its_console_is_asked_for_as_long_as_it_is_wanted();
    guests.the_reporter_tells_of_machines_and_storage();
    guests.a_port_is_shared_and_its_definition_goes_with_the_last_user();
    guests.remove();
}

fn node_names(bed: &Bed, cluster: &str) -> Vec<String> {
    let nodes = bed.nodes(cluster);
    let mut names: Vec<String> =
        nodes.iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

struct Guests<'a> {
    bed: &'a Bed,
    cluster: &'a str,
    node: &'a str,
    /// All of the cluster.
    nodes: Vec<String>,
}

impl Guests<'_> {
    /// The application brings the machine, as a user would; its pod is made as KubeVirt makes it.
    fn make_machine(&self) {
        apps::create(self.bed, self.cluster, &self.desk(true));
        let uid = &self.machine()["metadata"]["uid"];
        let owner = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": MACHINE,
            "uid": uid, "controller": true, "blockOwnerDeletion": true,
        });
        let speak = format!("echo {GREETING}; exec sleep 3600");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("virt-launcher-{MACHINE}-x2v"), "namespace": NAMESPACE,
                "labels": {"kubevirt.io": "virt-launcher"}, "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": self.node, "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "compute", "image": self.bed.image("pause")},
                    {
                        "name": "guest-console-log", "image": self.bed.image("busybox"),
                        "command": ["sh", "-c", speak],
                    },
                ],
            },
        });
        self.bed.apply(self.cluster, &[pod]);
    }

    fn desk(&self, console: bool) -> Value {
        let machine = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "{{name}}k7"}, "spec": {"domain": {"devices": {}}},
            "status": {
                "phase": "Running", "nodeName": self.node,
                "conditions": [{
                    "type": "Ready", "status": "True", "lastProbeTime": null,
                    "lastTransitionTime": SINCE,
                }],
            },
        });
        json!({
            "name": "desk", "designatedNode": self.node, "manifest": machine.to_string(),
            "config": {
                "UUIDandVersion": {"UUID": DESK}, "Activate": true, "RemoteConsole": console,
                "FixedResources": {"VirtualizationMode": 1, "EnableVnc": true, "VncDisplay": 3},
            },
        })
    }

    fn machine(&self) -> Value {
        object(self.bed, self.cluster, &format!("virtualmachineinstance/{MACHINE}")).unwrap()
    }

    fn the_machine_is_known_on_every_node(&self) {
        for name in &self.nodes {
            let expected = json!({
                "AppIsVMI": true, "VMIName": MACHINE, "VNCPort": 5903, "StatusRunning": true,
                "ScheduledOnThisNode": name == self.node, "DomainState": "Running",
            });
            self.expect(&format!("what {name} says of the machine"), &expected, || {
                let status =
                    self.read(name, &format!("/run/zedkube/ENClusterAppStatus/{DESK}.json"));
                let keys = expected.as_object().unwrap().keys();
                keys.map(|key| (key.clone(), status[key].clone())).collect()
            });
        }
        let app = format!("APPUUID={DESK}");
        let words = ["journalctl", "-o", "cat", "CONTAINERNAME=guest-console-log", &app];
        self.expect("the words of the guest", &json!(GREETING), || {
            json!(self.bed.host(self.node).run(&words).unwrap_or_default())
        });
    }

    /// There is no virtctl on the hosts: the file is there all the same, and that is the only fault.
    fn its_console_is_asked_for_as_long_as_it_is_wanted(&self) {
        let file = ["cat", "/run/zedkube/vmiVNC.run"];
        for name in &self.nodes {
            let text = format!("VMINAME:{MACHINE}\nVNCPORT:5903");
            self.expect(&format!("the file on {name}"), &json!(text), || {
                json!(self.bed.host(name).run(&file).unwrap_or_default())
            });
            let why = "virtctl cannot be started: No such file or directory (os error 2)";
            let fault = json!([["console", "the console's program", why]]);
            self.expect(&format!("the faults of {name}"), &fault, || self.faults(name));
        }
        assert_eq!(self.may_open_consoles(NAMESPACE), "true");
        assert_eq!(self.may_open_consoles("default"), "false");

        apps::change(self.bed, self.cluster, "desk", &self.desk(false));
        for name in &self.nodes {
            self.expect(&format!("no fault of {name}"), &json!([]), || self.faults(name));
            assert!(self.bed.host(name).run(&file).is_err(), "{name}");
        }
    }

    /// What `virtctl vnc` asks the cluster for, as somebody who is an agent.
    fn may_open_consoles(&self, namespace: &str) -> String {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": "somebody", "groups": ["wharf:agents"],
                "resourceAttributes": {
                    "group": "subresources.kubevirt.io", "resource": "virtualmachineinstances",
                    "subresource": "vnc", "name": MACHINE, "namespace": namespace, "verb": "get",
                },
            },
        });
        let file = self.bed.world.path("review.json");
        std::fs::write(&file, review.to_string()).unwrap();
        let file = file.display().to_string();
        let ask = ["create", "-f", &file, "-o", "jsonpath={.status.allowed}"];
        self.bed.kubectl(self.cluster, &ask).unwrap()
    }

    /// A claim that is bound, with what Longhorn would say of its volume, and Longhorn's daemons.
    fn make_storage(&self) {
        let (claim, size) = (format!("{VOLUME}-pvc-0"), json!({"storage": "2Gi"}));
        let labels = json!({"app": "longhorn-manager"});
        let container = json!({"name": "main", "image": self.bed.image("pause")});
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LONGHORN}}),
            json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": {"name": "longhorn-manager", "namespace": LONGHORN},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {
                        "tolerations": [{"operator": "Exists"}], "containers": [container],
                        "terminationGracePeriodSeconds": 0,
                    }},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-7"},
                "spec": {
                    "capacity": size, "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "csi": {"driver": "driver.longhorn.io", "volumeHandle": "pvc-7"},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim, "namespace": NAMESPACE},
                "spec": {
                    "storageClassName": "", "volumeName": "pvc-7",
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": size},
                },
            }),
        ];
        self.bed.apply(self.cluster, &objects);
        let volume = json!({"state": "attached", "robustness": "degraded", "actualSize": 4096});
        self.make_longhorn("Volume", "pvc-7", &json!({"size": "2147483648"}), &volume);
        for (name, node) in [("r1", &self.nodes[0]), ("r2", &self.nodes[1])] {
            let spec = json!({"volumeName": "pvc-7", "nodeID": node});
            let status = json!({"currentState": "running", "ownerID": node});
            self.make_longhorn("Replica", name, &spec, &status);
        }
        let engine = json!({
            "replicaModeMap": {"r1": "RW", "r2": "WO"},
            "currentReplicaAddressMap": {"r1": "10.0.0.1:10000", "r2": "10.0.0.2:10000"},
            "rebuildStatus": {"tcp://10.0.0.2:10000": {"progress": 40, "isRebuilding": true}},
        });
        self.make_longhorn("Engine", "pvc-7-e-0", &json!({"volumeName": "pvc-7"}), &engine);
    }

    fn make_longhorn(&self, kind: &str, name: &str, spec: &Value, status: &Value) {
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": kind,
            "metadata": {"name": name, "namespace": LONGHORN}, "spec": spec,
        });
        self.bed.apply(self.cluster, &[object]);
        let (object, patch) =
            (format!("{kind}.longhorn.io/{name}"), json!({"status": status}).to_string());
        let what = ["patch", "--warnings-as-errors", "-n", LONGHORN, &object];
        let how = ["--subresource=status", "--type=merge", "-p", &patch];
        self.bed.kubectl(self.cluster, &[&what[..], &how].concat()).unwrap();
    }

    fn the_reporter_tells_of_machines_and_storage(&self) {
        let claim = format!("{VOLUME}-pvc-0");
        let made = |object: &Value| object["metadata"]["creationTimestamp"].clone();
        let machines = json!([{
            "Name": MACHINE, "Status": 4, "IsReady": true, "NodeName": self.node,
            "CreationTime": made(&self.machine()), "LastTransitionTime": SINCE,
        }]);
        let replica = |name: &str, node: &str, progress: u8, status: u8| {
            json!({
                "Name": name, "OwnerNode": node, "RebuildProgressPercentage": progress,
                "Status": status,
            })
        };
        let volumes = json!([{
            "Name": claim, "State": 2, "Robustness": 2, "RobustnessSubstate": 4, "PvcStatus": 1,
            "CreatedAt": made(&object(self.bed, self.cluster, &format!("pvc/{claim}")).unwrap()),
            "ProvisionedBytes": 2_147_483_648_u64, "AllocatedBytes": 4096, "VolumeID": VOLUME,
            "Replicas": [
                replica("r1", &self.nodes[0], 100, 2), replica("r2", &self.nodes[1], 40, 1),
            ],
        }]);
        // The pod around the machine is told as the machine.
        let expected = json!([machines, volumes, 3, null]);
        self.expect("what the reporter tells", &expected, || {
            let told = self.report();
            let storage = &told["Storage"];
            json!([told["AppVMIs"], storage["Volumes"], storage["Health"], told["AppPods"]])
        });
    }

    /// What the elected node says of the cluster; `null` unless exactly one says anything.
    fn report(&self) -> Value {
        let report = |name: &String| self.read(name, "/run/zedkube/KubeClusterInfo/global.json");
        let told: Vec<Value> =
            self.nodes.iter().map(report).filter(|report| !report.is_null()).collect();
        if let [told] = told.as_slice() { told.clone() } else { Value::Null }
    }

    /// Every node is told of every application, and has to be ready for its port.
    fn make_wires(&self) {
        for name in &self.nodes {
            self.bed.host(name).run(&["ip", "link", "add", PORT, "type", "bridge"]).unwrap();
        }
        for (name, uuid) in WIRES {
            let wish = json!({
                "name": name,
                "config": {
                    "UUIDandVersion": {"UUID": uuid},
                    "FixedResources": {"VirtualizationMode": 4},
                    "IoAdapterList": [{"Type": 1, "Name": PORT}],
                },
            });
            apps::create(self.bed, self.cluster, &wish);
        }
    }

    fn a_port_is_shared_and_its_definition_goes_with_the_last_user(&self) {
        let [first, second] = WIRES;
        self.expect_users(&[first.1, second.1]);
        for name in &self.nodes {
            let link = self.bed.host(name).run(&["ip", "-j", "link", "show", PORT]).unwrap();
            assert!(link.contains("\"UP\""), "{name}: {link}");
        }
        apps::remove(self.bed, self.cluster, first.0);
        self.expect_users(&[second.1]);
        apps::remove(self.bed, self.cluster, second.0);
        self.expect("no definition", &json!([]), || self.definitions());
    }

    /// Waits until these applications of all nodes use the port's definition, and nobody else.
    fn expect_users(&self, apps: &[&str]) {
        let nodes = self.nodes.iter();
        let users = nodes.flat_map(|node| apps.iter().map(move |app| format!("{node}/{app}")));
        let users: Vec<String> = users.collect();
        let plugin = json!({"type": "host-device", "device": PORT});
        let config = json!({"cniVersion": "0.3.1", "plugins": [plugin]});
        let expected = json!([[format!("host-{PORT}"), users.join(","), config]]);
        self.expect("the users of the port", &expected, || self.definitions());
    }

    /// Name, users and configuration of each.
    fn definitions(&self) -> Value {
        let list = ["get", "-n", NAMESPACE, "network-attachment-definitions", "-o", "json"];
        let list = self.bed.kubectl(self.cluster, &list).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let definition = |one: &Value| {
            let config = one["spec"]["config"].as_str().unwrap();
            let config: Value = serde_json::from_str(config).unwrap();
            let metadata = &one["metadata"];
            json!([metadata["name"], metadata["annotations"]["wharf.dev/used-by"], config])
        };
        list["items"].as_array().unwrap().iter().map(definition).collect()
    }

    /// The kinds stay; agents that follow them are well without any objects.
    fn remove(&self) {
        apps::remove(self.bed, self.cluster, "desk");
        let claim = format!("pvc/{VOLUME}-pvc-0");
        self.bed.kubectl(self.cluster, &["delete", "-n", NAMESPACE, &claim]).unwrap();
        self.bed.kubectl(self.cluster, &["delete", "pv/pvc-7"]).unwrap();
        let kinds = "daemonsets,volumes.longhorn.io,replicas.longhorn.io,engines.longhorn.io";
        self.bed.kubectl(self.cluster, &["delete", "-n", LONGHORN, "--all", kinds]).unwrap();
        for name in &self.nodes {
            self.bed.host(name).run(&["ip", "link", "delete", PORT]).unwrap();
        }
        let nothing = json!([self.nodes.len(), null, null, null]);
        self.expect("nothing but nodes to tell of", &nothing, || {
            let told = self.report();
            let nodes = told["Nodes"].as_array().map(Vec::len);
            json!([nodes, told["AppVMIs"], told["AppPods"], told["Storage"]["Volumes"]])
        });
        self.bed.wait_for_links(self.cluster, self.nodes.len());
    }

    /// Task, subject and reason of each; `null` while the agent does not answer.
    fn faults(&self, node: &str) -> Value {
        let status = ["/opt/wharf/bin/wharf", "agent", "status", "-o", "json"];
        let health = self.bed.host(node).ssh(&status).unwrap();
        let health: Value = serde_json::from_slice(&health.stdout).unwrap_or_default();
        let Some(tasks) = health["Tasks"].as_array() else { return Value::Null };
        let of_task = |task: &Value| {
            let faults = task["Faults"].as_array().cloned().unwrap_or_default();
            let name = task["Name"].clone();
            faults.into_iter().map(move |fault| json!([name, fault["Subject"], fault["Reason"]]))
        };
        tasks.iter().flat_map(of_task).collect()
    }

    /// `null` while there is no such file.
    fn read(&self, node: &str, path: &str) -> Value {
        let text = self.bed.host(node).run(&["cat", path]).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Waits until something is so.
    #[track_caller]
    fn expect(&self, what: &str, expected: &Value, look: impl Fn() -> Value) {
        let mut last = Value::Null;
        let came = wait_for(what, DEADLINE, || {
            last = look();
            Ok((last == *expected).then_some(()))
        });
        assert!(came.is_ok(), "{what}: {last:#} instead of {expected:#}");
    }
}
