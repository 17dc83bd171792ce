//! The agent on a cluster that Wharf did not install: from an image, as a DaemonSet.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use wharf_bundle::{catalogue, oci};
use wharf_testbed::wait_for;

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE},
    nodes_ready,
};

/// As Wharf makes it, to have machines with Kubernetes, and as it is then taken in.
const MADE: &str = "made";
const NAME: &str = "theirs";
const NODES: [(&str, &[&str]); 3] = [("node1", CONTROL), ("node2", WORKER), ("node3", WORKER)];
/// The nodes that the agent is for; the second is tainted.
const CHOSEN: [&str; 2] = ["node2", "node3"];
const FOR_CHOSEN: [&str; 6] =
    ["--node-selector", "disk=fast", "--toleration", "only=agents:NoSchedule", "-o", "json"];
const SHARED: &str = "/srv/shared";
/// Where a block server keeps its images, on the second of the nodes.
const BLOCKS: &str = "/var/lib/blocks";
/// Agents that are not renewed are cut off after 15 s: whoever writes for longer was not.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(40);

#[test]
fn agents_of_an_image_serve_volumes_on_a_cluster_that_was_imported() {
    let (archive, image) = make_image();
    let bed = Bed::start_sharing("theirs", 3, SHARED);
    bed.send(&["create"], &bed.wish(MADE, &NODES)).ok();
    let trial = Trial { bed: &bed, image };
    trial.agents_of_the_installer_are_left_alone();
    trial.they_are_after_the_cluster_was_taken_in_again();
    trial.make_it_somebody_elses();
    trial.load(&archive);

    trial.no_node_is_meant_by_a_label_that_none_has();
    trial.the_agent_comes_to_the_chosen_nodes();
    trial.what_is_printed_is_taken_by_kubectl();
    trial.start_a_writer();
    trial.a_volume_goes_on_while_the_agents_pod_is_replaced();
    trial.it_goes_on_while_the_agent_is_upgraded(&archive);
    trial.it_goes_on_while_its_node_is_not_meant();
    trial.it_comes_back_with_its_machine();
    trial.agents_are_not_removed_while_volumes_are_in_use();
    trial.stop_the_writer();
    trial.a_removal_leaves_nothing();
}

/// The archive, and what the image in it is called.
fn make_image() -> (PathBuf, String) {
    let made = Command::new(env!("CARGO")).args(["xtask", "image", "--debug"]).output().unwrap();
    let told = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{told}");
    let said = String::from_utf8(made.stdout).unwrap();
    let (archive, image) = said.trim_end().split_once('\n').expect("two lines");
    (archive.into(), image.to_owned())
}

/// The image again, under another name and with a program that is not the same.
fn make_next(archive: &Path, next: &Path) -> &'static str {
    const NEXT: &str = "wharf.dev/agent:next";
    let program = next.with_extension("program");
    let mut bytes = fs::read(archive.with_file_name("wharf-node")).unwrap();
    bytes.extend(b"next");
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let beside = |name: &str| archive.with_file_name(name);
    let programs = [
        ("wharf", program),
        ("wharf-flex", beside("wharf-flex")),
        ("wharf-block", beside("wharf-block")),
    ];
    let tree = programs.map(|(name, from)| (name.to_owned(), oci::Node::Program { from }));
    let image = oci::Image {
        name: NEXT,
        arch: catalogue::this_arch(),
        entrypoint: &["/wharf"],
        command: &["agent", "launch"],
        user: "",
        tree: tree.into(),
    };
    oci::write(&image, next).unwrap();
    NEXT
}

struct Trial<'a> {
    bed: &'a Bed,
    image: String,
}

impl Trial<'_> {
    fn install(&self, more: &[&str]) -> crate::world::Ran {
        let command = ["cluster", "agent", "install", NAME, "--image", &self.image];
        self.bed.world.local(&[&command, more].concat())
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.bed.kubectl(NAME, args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// What people would look at.
    fn told(&self) -> String {
        let look = |args: &[&str]| self.bed.kubectl(NAME, args).unwrap_or_else(|error| error);
        let hosts = CHOSEN.iter().map(|node| {
            let log = "journalctl -u wharf-agent | tail -30; \
                       /opt/wharf-agent/wharf agent status --run-dir /run/wharf-agent";
            format!("{node}: {}", self.bed.host(node).run(&["sh", "-c", log]).unwrap_or_default())
        });
        [
            look(&["-n", "wharf-system", "get", "all", "-o", "wide"]),
            look(&["-n", "wharf-system", "describe", "pods"]),
            look(&["-n", "wharf-system", "logs", "-l", "app=wharf-agent", "--tail=40"]),
            look(&["describe", "pod", "writer"]),
            look(&["get", "attachments.wharf.dev", "-o", "yaml"]),
            hosts.collect::<Vec<_>>().join("\n"),
        ]
        .join("\n")
    }

    fn agents_of_the_installer_are_left_alone(&self) {
        let install = ["cluster", "agent", "install", MADE, "--image", "x"];
        let refused = self.bed.world.local(&install).exits(4);
        assert!(refused.stderr.contains("was installed by Wharf"), "{refused:?}");
        let remove = ["cluster", "agent", "remove", MADE, "--yes"];
        self.bed.world.local(&remove).exits(4);
    }

    fn they_are_after_the_cluster_was_taken_in_again(&self) {
        let file = self.bed.kubeconfig(MADE).display().to_string();
        self.bed.world.local(&["cluster", "delete", MADE, "--mode", "forget", "--yes"]).ok();
        self.bed.world.local(&["cluster", "import", NAME, "--kubeconfig", &file]).ok();
        let refused = self.install(&[]).exits(4);
        assert!(refused.stderr.contains("has agents of an installer"), "{refused:?}");
        let remove = ["cluster", "agent", "remove", NAME, "--yes"];
        self.bed.world.local(&remove).exits(4);
    }

    /// Nothing of Wharf's agents is left but a program that keeps the pod network, under another name.
    fn make_it_somebody_elses(&self) {
        let gone = [
            "crd attachments.wharf.dev storageclusters.wharf.dev nodegarbages.wharf.dev",
            "namespace wharf-system",
            "csidriver volume.wharf.dev",
            "clusterrole,clusterrolebinding wharf:agents wharf:volumes",
        ];
        for objects in gone {
            let objects: Vec<&str> = objects.split(' ').collect();
            self.kubectl(&[&["delete", "--wait=false"], &objects[..]].concat());
        }
        for (node, _) in NODES {
            let script = format!(
                "systemctl disable --now wharf-agent
                rm -r /etc/systemd/system/wharf-agent.service /var/lib/kubelet/volume-plugins/wharf*
                cat >/etc/pod-network.toml <<EOF
node_name = \"{node}\"
run_dir = \"/run/pod-network\"
persist_dir = \"/run/pod-network/persist\"
EOF
                cat >/etc/systemd/system/pod-network.service <<EOF
[Service]
Type=notify
ExecStart=/opt/wharf/bin/wharf agent --config /etc/pod-network.toml
Restart=always
EOF
                systemctl daemon-reload"
            );
            self.bed.host(node).run(&["sh", "-ec", &script]).unwrap();
            self.start_network(node);
        }
        wait_for("what agents had to be gone", DEADLINE, || {
            let left = self.kubectl(&["get", "crd,namespace,clusterrole,csidriver", "-o", "name"]);
            Ok((!left.contains("wharf")).then_some(()))
        })
        .unwrap();
        wait_for("the nodes to be ready", DEADLINE, || {
            Ok((nodes_ready(self.bed, NAME) == NODES.len()).then_some(()))
        })
        .unwrap();
    }

    fn start_network(&self, node: &str) {
        // Machines of this bed have no way outside; others reach Services by theirs.
        let script = "systemctl start pod-network && ip route add 10.43.0.0/16 dev host0";
        self.bed.host(node).run(&["sh", "-c", script]).unwrap();
    }

    /// As a person would who has no registry, on the nodes that are meant.
    fn load(&self, archive: &Path) {
        self.import(archive);
        for node in CHOSEN {
            self.kubectl(&["label", "node", node, "disk=fast"]);
        }
        self.kubectl(&["taint", "node", CHOSEN[1], "only=agents:NoSchedule"]);
    }

    fn import(&self, archive: &Path) {
        let shared = self.bed.shared().join("wharf-agent.tar");
        fs::copy(archive, &shared).unwrap();
        let import = "/opt/wharf/bin/ctr --address /run/wharf/containerd/containerd.sock \
                      -n k8s.io images import /srv/shared/wharf-agent.tar";
        for node in CHOSEN {
            self.bed.host(node).run(&["sh", "-c", import]).unwrap();
        }
        fs::remove_file(&shared).unwrap();
    }

    fn no_node_is_meant_by_a_label_that_none_has(&self) {
        let none = self.install(&["--node-selector", "disk=slow"]).exits(1);
        assert!(none.stderr.contains("no node of theirs is meant"), "{none:?}");
    }

    fn the_agent_comes_to_the_chosen_nodes(&self) {
        let installed = self.install(&FOR_CHOSEN);
        assert_eq!(installed.exit, 0, "{installed:?}\n{}", self.told());
        assert!(installed.stderr.contains("ctr -n k8s.io images import"), "{installed:?}");
        let seen = installed.json();
        let nodes: Vec<&str> = seen["pods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| pod["node"].as_str().unwrap())
            .collect();
        assert_eq!(nodes, CHOSEN, "{seen}");
        assert_eq!((&seen["desired"], &seen["ready"]), (&json!(2), &json!(2)));
        let other = self.bed.host("node1").run(&["sh", "-c", "ls /opt/wharf-agent || true"]);
        assert_eq!(other.unwrap(), "", "nodes that were not chosen have nothing");
    }

    fn what_is_printed_is_taken_by_kubectl(&self) {
        let before = self.kubectl(&["-n", "wharf-system", "get", "daemonset", "-o", "json"]);
        let printed = self.install(&["--node-selector", "disk=other", "--print"]).ok().stdout;
        let file = self.bed.world.path("printed.yaml");
        fs::write(&file, printed).unwrap();
        let file = file.display().to_string();
        let taken = self.kubectl(&["apply", "--dry-run=server", "-f", &file]);
        assert!(
            taken.contains("daemonset.apps/wharf-agent configured (server dry run)"),
            "{taken}"
        );
        let after = self.kubectl(&["-n", "wharf-system", "get", "daemonset", "-o", "json"]);
        let spec =
            |text: &str| serde_json::from_str::<Value>(text).unwrap()["items"][0]["spec"].clone();
        assert_eq!(spec(&before), spec(&after), "nothing was changed");
    }

    /// It writes to a volume of a shared directory and to one of a block server, and ends when it
    /// cannot.
    fn start_a_writer(&self) {
        let script = "touch /data/log /net/log; while sleep 0.2; do for at in /data /net; do \
                      wc -l <$at/log >$at/count && cat $at/count >>$at/log || exit 1; done; \
                      sync /data/* /net/* && cat /data/count >/tmp/synced; done";
        let server = format!("{}:10809", self.bed.host(CHOSEN[1]).address());
        let serve = format!(
            "mkdir {BLOCKS} && systemd-run --unit=blocks /opt/wharf-agent/wharf-block serve \
             {BLOCKS} {server}"
        );
        self.bed.host(CHOSEN[1]).run(&["sh", "-c", &serve]).unwrap();
        let mut objects = claimed("data", "loopfile", &json!({ "directory": SHARED }));
        objects.extend(claimed("net", "proxy", &json!({ "server": server })));
        objects.push(self.pod("writer", CHOSEN[0], &["data", "net"], script));
        self.bed.apply(NAME, &objects);
        self.wait_for_count(10);
    }

    /// A pod with the claims mounted at their names.
    fn pod(&self, name: &str, node: &str, claims: &[&str], script: &str) -> Value {
        let volume =
            |claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
        let mount = |claim| json!({ "name": claim, "mountPath": format!("/{claim}") });
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": name, "image": self.bed.image("busybox"),
                    "command": ["sh", "-c", script],
                    "volumeMounts": claims.iter().map(mount).collect::<Vec<_>>(),
                }],
                "volumes": claims.iter().map(volume).collect::<Vec<_>>(),
            },
        })
    }

    /// How many lines the writer has stored in each of its volumes, if it can be asked.
    fn count(&self) -> Option<u64> {
        let synced = ["exec", "writer", "--", "cat", "/tmp/synced"];
        self.bed.kubectl(NAME, &synced).ok()?.trim().parse().ok()
    }

    fn wait_for_count(&self, least: u64) {
        wait_for("the writer to write", DEADLINE, || {
            Ok(self.count().is_some_and(|count| count >= least).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    fn pod_of(&self, node: &str) -> String {
        let field = format!("spec.nodeName={node}");
        let get = ["-n", "wharf-system", "get", "pods", "-l", "app=wharf-agent"];
        let pods = self.kubectl(&[&get[..], &["--field-selector", &field, "-o", "name"]].concat());
        pods.trim().to_owned()
    }

    fn agent_of(&self, node: &str) -> String {
        let show = ["systemctl", "show", "wharf-agent", "--property", "MainPID", "--value"];
        self.bed.host(node).run(&show).unwrap().trim().to_owned()
    }

    /// Waits until every node has its pod, and this one another than before.
    fn wait_for_agents(&self, node: &str, before: &str) {
        wait_for("another pod to be ready", DEADLINE, || {
            let seen = self.bed.world.local(&["cluster", "agent", "show", NAME, "-o", "json"]);
            let is_another = !self.pod_of(node).is_empty() && self.pod_of(node) != before;
            Ok((is_another && seen.json()["done"] == true).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    fn a_volume_goes_on_while_the_agents_pod_is_replaced(&self) {
        let node = CHOSEN[0];
        let (pod, agent) = (self.pod_of(node), self.agent_of(node));
        assert_ne!(agent, "0");
        let written = self.count().unwrap();
        let begun = Instant::now();
        self.kubectl(&["-n", "wharf-system", "delete", &pod]);
        self.wait_for_agents(node, &pod);
        wait_for("a lease to have passed", DEADLINE, || {
            Ok((begun.elapsed() > LONGER_THAN_A_LEASE).then_some(()))
        })
        .unwrap();
        self.wait_for_count(written + 20);
        assert_eq!(self.agent_of(node), agent, "it was not even started anew");
        // The agent itself dies: the volume goes on under the next one.
        let kill = ["systemctl", "kill", "--kill-whom=main", "-s", "KILL", "wharf-agent"];
        self.bed.host(node).run(&kill).unwrap();
        wait_for("the agent to be back", DEADLINE, || {
            let now = self.agent_of(node);
            Ok((now != agent && now != "0").then_some(()))
        })
        .unwrap();
        let written = self.count().unwrap();
        self.wait_for_count(written + 20);
        self.assert_no_write_has_failed();
    }

    fn assert_no_write_has_failed(&self) {
        let path = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}";
        let told = self.kubectl(&["get", "pod", "writer", "-o", path]);
        assert_eq!(told, "Running 0", "no write has failed");
    }

    /// Another program takes the agent's place; what serves the volumes is not touched.
    fn it_goes_on_while_the_agent_is_upgraded(&self, archive: &Path) {
        let next = self.bed.world.path("next.tar");
        let image = make_next(archive, &next);
        self.import(&next);
        let node = CHOSEN[0];
        let proxies = || self.bed.host(node).run(&["pgrep", "-f", "volumes/[p]roxies/"]).unwrap();
        let (agent, served, written) = (self.agent_of(node), proxies(), self.count().unwrap());
        let upgraded = Trial { bed: self.bed, image: image.to_owned() }.install(&FOR_CHOSEN);
        assert_eq!(upgraded.exit, 0, "{upgraded:?}\n{}", self.told());
        let begun = Instant::now();
        let program = self.bed.host(node).run(&["tail", "-c", "4", "/opt/wharf-agent/wharf"]);
        assert_eq!(program.unwrap(), "next");
        let now = self.agent_of(node);
        assert!(now != agent && now != "0", "{now}");
        wait_for("a lease to have passed", DEADLINE, || {
            Ok((begun.elapsed() > LONGER_THAN_A_LEASE).then_some(()))
        })
        .unwrap();
        self.wait_for_count(written + 20);
        assert_eq!(proxies(), served, "they have not even noticed");
        self.assert_no_write_has_failed();
    }

    /// The node loses the label by which it was chosen, and with it the agent's pod. While its volumes are in
    /// use the agent stays and nobody else gets them; a pod that comes back takes it over.
    fn it_goes_on_while_its_node_is_not_meant(&self) {
        let node = CHOSEN[0];
        let host = self.bed.host(node);
        let token = || host.run(&["sha256sum", "/run/wharf-agent/kubeconfig"]).unwrap();
        let (agent, old_token, written) = (self.agent_of(node), token(), self.count().unwrap());
        self.kubectl(&["label", "node", node, "disk-"]);
        wait_for("the agent's pod to go", DEADLINE, || {
            Ok(self.pod_of(node).is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        let begun = Instant::now();
        self.bed.apply(NAME, &[self.pod("other", CHOSEN[1], &["net"], "sleep 1000")]);
        wait_for("a lease to have passed", DEADLINE, || {
            Ok((begun.elapsed() > LONGER_THAN_A_LEASE).then_some(()))
        })
        .unwrap();
        self.wait_for_count(written + 20);
        self.assert_no_write_has_failed();
        assert_eq!(self.holders(), [node, node], "{}", self.told());
        let other = self.kubectl(&["get", "pod", "other", "-o", "jsonpath={.status.phase}"]);
        assert_eq!(other, "Pending", "the volume is in use on {node}");
        self.kubectl(&["delete", "pod", "other"]);

        self.kubectl(&["label", "node", node, "disk=fast"]);
        self.wait_for_agents(node, "");
        assert_eq!(self.agent_of(node), agent, "it was not even started anew");
        assert_ne!(token(), old_token, "it has a token that is renewed again");
        let written = self.count().unwrap();
        self.wait_for_count(written + 20);
        self.assert_no_write_has_failed();
    }

    /// The nodes that have the volumes.
    fn holders(&self) -> Vec<String> {
        let path = "jsonpath={.items[*].attachments[*].node}";
        let nodes = self.kubectl(&["get", "attachments.wharf.dev", "-o", path]);
        nodes.split_whitespace().map(str::to_owned).collect()
    }

    /// Everything of the agent that lies in memory is gone then: its pod is what starts it.
    fn it_comes_back_with_its_machine(&self) {
        let node = CHOSEN[0];
        let host = self.bed.host(node);
        let written = self.count().unwrap();
        let devices = self.devices_of(node);
        assert_eq!(devices.len(), 2, "{devices:?}");
        let begun = Instant::now();
        host.reboot().unwrap();
        // All machines of this bed have one kernel, which still has them.
        for device in devices {
            let _gone = Command::new("losetup").args(["-d", &device]).output();
        }
        self.start_network(node);
        self.wait_for_count(written + 20);
        eprintln!("written again {:.1} s after the reboot", begun.elapsed().as_secs_f32());
        let lost = "awk 'FNR != $1 + 1 { print FILENAME, FNR; exit 1 }' /data/log /net/log";
        self.kubectl(&["exec", "writer", "--", "sh", "-c", lost]);
        assert_eq!(self.holders(), [node, node], "{}", self.told());
        assert_ne!(self.agent_of(node), "0");
    }

    /// The loop devices of the writer's volumes.
    fn devices_of(&self, node: &str) -> Vec<String> {
        let names = ["get", "pvc", "data", "net", "-o", "jsonpath={.items[*].spec.volumeName}"];
        let names = self.kubectl(&names).replace(' ', "\\|");
        let look = format!("grep -l '{names}' /sys/block/loop*/loop/backing_file || true");
        let found = self.bed.host(node).run(&["sh", "-c", &look]).unwrap();
        let device = |path: &str| Some(format!("/dev/{}", path.split('/').nth(3)?));
        found.lines().filter_map(device).collect()
    }

    fn agents_are_not_removed_while_volumes_are_in_use(&self) {
        let remove = ["cluster", "agent", "remove", NAME, "--yes"];
        let refused = self.bed.world.local(&remove).exits(4);
        assert!(refused.stderr.contains("volumes are in use"), "{refused:?}");
        assert!(refused.stderr.contains(" on node2"), "{refused:?}");
    }

    fn stop_the_writer(&self) {
        self.kubectl(&["delete", "--wait=false", "pod/writer", "pvc/data", "pvc/net"]);
        self.wait_for_none("pv,attachments.wharf.dev,nodegarbages.wharf.dev");
        for storage in ["data", "net"] {
            let class = format!("storageclass/{storage}");
            let cluster = format!("storageclusters.wharf.dev/{storage}");
            self.kubectl(&["delete", "--wait=false", &class, &cluster]);
        }
        self.wait_for_none("storageclusters.wharf.dev");
        let end = format!("systemctl stop blocks && rm -r {BLOCKS}");
        self.bed.host(CHOSEN[1]).run(&["sh", "-c", &end]).unwrap();
    }

    fn wait_for_none(&self, kinds: &str) {
        wait_for("nothing to be left of volumes", DEADLINE, || {
            Ok(self.kubectl(&["get", kinds, "-o", "name"]).is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    fn a_removal_leaves_nothing(&self) {
        let remove = ["cluster", "agent", "remove", NAME, "--yes"];
        let removed = self.bed.world.local(&remove);
        assert_eq!(removed.exit, 0, "{removed:?}\n{}", self.told());
        let look = "find /opt/wharf-agent /run/wharf-agent /var/lib/wharf-agent \
                    /run/systemd/system/wharf-agent.service /var/lib/kubelet/plugins/wharf.dev \
                    /var/lib/kubelet/volume-plugins/wharf.dev~volume \
                    /var/lib/kubelet/plugins_registry/agent@volume.wharf.dev-reg.sock 2>/dev/null
                    pgrep -af '^/opt/wharf-agent/' || true";
        for node in CHOSEN {
            let left = self.bed.host(node).run(&["sh", "-c", look]).unwrap();
            assert_eq!(left, "", "{node} is as it was");
        }
        let kinds = self.kubectl(&["get", "crd,namespace,clusterrole,csidriver", "-o", "name"]);
        assert!(!kinds.contains("wharf"), "{kinds}");
    }
}

/// Storage of a backend, and a claim of it, by one name.
fn claimed(name: &str, backend: &str, parameters: &Value) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "wharf.dev/v1", "kind": "StorageCluster", "metadata": { "name": name },
            "spec": { "backend": backend, "parameters": parameters },
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": name }, "provisioner": "wharf.dev/volume",
            "parameters": { "storageCluster": name },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": name,
                "resources": { "requests": { "storage": "64Mi" } },
            },
        }),
    ]
}
