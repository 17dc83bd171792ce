//! Volumes on real machines that share a directory: a writer moves from lost nodes to others, and
//! never do two write.

mod away;
mod brief;
mod csi;
mod deletion;
mod kills;
mod mkfs;
mod moves;
mod proxies;
mod races;
mod repair;
mod stamps;
mod steps;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::{Value, json};
use wharf_testbed::{debian, wait_for};

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE},
    nodes_ready,
};

const NAME: &str = "volumes";
const NODES: [(&str, &[&str]); 3] = [("node1", CONTROL), ("node2", WORKER), ("node3", WORKER)];
const SHARED: &str = "/srv/shared";
const CLAIM: &str = "data-canary-0";

#[test]
fn a_writer_moves_from_lost_nodes_and_never_do_two_write() {
    debian::ensure("this test", &[("debugfs", "e2fsprogs")]).unwrap();
    let bed = Bed::start_sharing(NAME, 3, SHARED);
    bed.send(&["create"], &bed.wish(NAME, &NODES)).ok();
    bed.wait_for_links(NAME, NODES.len());
    let trial = Trial { bed: &bed };
    trial.prepare();
    let first = trial.wait_for_writer("");

    let second = trial.a_machine_that_loses_its_power_is_replaced(&first);
    let third = trial.a_machine_that_is_cut_off_stops_writing_before_it_is_replaced(&second);
    let fourth = trial.a_node_whose_agent_hangs_is_cut_off_by_its_guard(&third);
    trial.a_claim_that_asks_for_more_gets_it();

    trial.stop_the_writer();
    trial.assert_stamps(&trial.image_of(CLAIM), &[&first, &second, &third, &fourth]);
    trial.claim_takes_its_image_with_it(CLAIM);
    trial.kubelet_may_restart_while_a_file_system_is_made();
    trial.a_volume_of_csi_moves_from_node_to_node();
    trial.a_forced_detach_takes_a_volume_from_a_live_agent();
    trial.a_drain_waits_until_the_volumes_of_its_pods_are_unmounted();
    trial.a_volume_moves_while_the_agents_of_both_nodes_are_killed();
    trial.of_two_nodes_that_race_one_has_the_volume_and_then_the_other();
    trial.an_unmount_needs_no_api_server();
    trial.an_unmount_needs_no_volume();
    trial.a_device_that_somebody_has_open_stays_claimed_until_he_lets_go();
    trial.serve_blocks();
    trial.a_proxy_that_is_killed_in_mid_write_costs_no_error_and_no_byte();
    trial.an_agent_that_is_killed_at_any_step_goes_on_and_leaves_nothing();
    trial.a_repair_runs_its_command_after_the_volumes_are_taken_from_the_machine();
    trial.a_deleted_storage_cluster_leaves_the_nodes_and_no_other_is_touched();
}

struct Trial<'a> {
    bed: &'a Bed,
}

impl Trial<'_> {
    /// As the installer left them, but more patient: these machines share two cores with others.
    fn be_patient(&self) {
        for (node, _) in NODES {
            let config = self.bed.host(node).root().join("etc/wharf/agent/agent.toml");
            let text = fs::read_to_string(&config).unwrap();
            fs::write(&config, text.replace("[volumes]", "[volumes]\nlease_seconds = 40")).unwrap();
            self.bed.host(node).run(&["systemctl", "restart", "wharf-agent"]).unwrap();
        }
        self.bed.wait_for_links(NAME, NODES.len());
    }

    fn prepare(&self) {
        self.be_patient();
        let soon = |key: &str| {
            json!({ "key": format!("node.kubernetes.io/{key}"), "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": 1 })
        };
        let mut pod = self.writer_spec();
        pod["tolerations"] = json!([soon("not-ready"), soon("unreachable")]);
        let claim = json!({
            "metadata": { "name": "data" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "main",
                "resources": { "requests": { "storage": "64Mi" } },
            },
        });
        self.make_storage("main", "loopfile", &json!({ "directory": SHARED }));
        self.bed.apply(
            NAME,
            &[json!({
                "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "canary" },
                "spec": {
                    "replicas": 1, "serviceName": "canary",
                    "selector": { "matchLabels": { "app": "canary" } },
                    "template": { "metadata": { "labels": { "app": "canary" } }, "spec": pod },
                    "volumeClaimTemplates": [claim],
                },
            })],
        );
    }

    /// A storage cluster, and a class of the same name for its claims.
    fn make_storage(&self, name: &str, backend: &str, parameters: &Value) {
        self.bed.apply(
            NAME,
            &[json!({
                "apiVersion": "wharf.dev/v1", "kind": "StorageCluster",
                "metadata": { "name": name },
                "spec": { "backend": backend, "parameters": parameters },
            })],
        );
        self.make_class(name, &json!({ "storageCluster": name }));
    }

    fn make_class(&self, name: &str, parameters: &Value) {
        self.bed.apply(
            NAME,
            &[json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": { "name": name }, "provisioner": "wharf.dev/volume",
                "allowVolumeExpansion": true, "parameters": parameters,
            })],
        );
    }

    /// The node on which the writer writes, other than the one that is named.
    fn wait_for_writer(&self, not: &str) -> String {
        let node = wait_for("the writer to run", DEADLINE, || {
            let Ok(pod) = self.bed.kubectl(NAME, &["get", "pod", "canary-0", "-o", "json"]) else {
                return Ok(None);
            };
            let pod: Value = serde_json::from_str(&pod)?;
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
            let ready = pod["status"]["phase"] == "Running" && node != not;
            Ok(ready.then_some(node))
        });
        let node = node.unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        self.wait_for_stamps("canary-0", &node);
        let holder = self.holders();
        assert_eq!(holder, std::slice::from_ref(&node), "the record names the writer's node alone");
        node
    }

    /// What people would look at.
    fn told(&self) -> String {
        let look = |args: &[&str]| self.bed.kubectl(NAME, args).unwrap_or_else(|error| error);
        let agents = NODES.iter().map(|(node, _)| {
            let look =
                "journalctl -u wharf-agent -u wharf-kubelet | grep -iE 'volume|csi' | tail -40";
            let log = ["sh", "-c", look];
            format!("{node}: {}", self.bed.host(node).run(&log).unwrap_or_default())
        });
        [
            look(&["describe", "pods"]),
            look(&["get", "attachments.wharf.dev", "-o", "yaml"]),
            agents.collect::<Vec<_>>().join("\n"),
        ]
        .join("\n")
    }

    /// The PersistentVolume of a claim, which is called as its image.
    fn volume_of(&self, claim: &str) -> String {
        self.field(claim, "{.spec.volumeName}")
    }

    fn field(&self, claim: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.bed.kubectl(NAME, &["get", "pvc", claim, "-o", &path]).unwrap()
    }

    fn image_of(&self, claim: &str) -> PathBuf {
        self.bed.shared().join(format!("{}.img", self.volume_of(claim)))
    }

    fn holders(&self) -> Vec<String> {
        self.holders_of(&self.volume_of(CLAIM))
    }

    fn holders_of(&self, volume: &str) -> Vec<String> {
        let get = ["get", "attachments.wharf.dev", volume, "--ignore-not-found", "-o", "json"];
        let text = self.bed.kubectl(NAME, &get).unwrap();
        let record: Value = serde_json::from_str(&text).unwrap_or_default();
        let entries = record["attachments"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["node"].as_str().unwrap().to_owned()).collect()
    }

    /// As somebody does who knows that the node is lost: kubelet there cannot say that it ended.
    fn give_up_the_pod(&self) {
        self.bed
            .kubectl(NAME, &["delete", "pod", "canary-0", "--grace-period=0", "--force"])
            .unwrap();
    }

    fn a_machine_that_loses_its_power_is_replaced(&self, node: &str) -> String {
        let host = self.bed.host(node);
        host.power_cut().unwrap();
        let lost = Instant::now();
        // Nobody else has the volume yet.
        self.bed.detach_devices();
        self.wait_for_unready();
        self.give_up_the_pod();
        let next = self.wait_for_writer(node);
        eprintln!("taken over {:.1} s after the power was cut", lost.elapsed().as_secs_f32());
        host.start().unwrap();
        self.wait_for_nothing_left(node);
        next
    }

    fn a_machine_that_is_cut_off_stops_writing_before_it_is_replaced(&self, node: &str) -> String {
        let host = self.bed.host(node);
        let writes = ["sh", "-c", "pgrep -f '[d]ata/log' || true"];
        assert_ne!(host.run(&writes).unwrap(), "", "the writer runs there");
        self.bed.machines.isolate(host).unwrap();
        let lost = Instant::now();
        self.wait_for_unready();
        self.give_up_the_pod();
        let next = self.wait_for_writer(node);
        eprintln!("taken over {:.1} s after it was cut off", lost.elapsed().as_secs_f32());
        self.bed.machines.heal().unwrap();
        self.wait_for_nothing_left(node);
        next
    }

    /// The node is well, but its agent says nothing any more.
    fn a_node_whose_agent_hangs_is_cut_off_by_its_guard(&self, node: &str) -> String {
        let host = self.bed.host(node);
        let signal = |name: &str| {
            let kill = ["systemctl", "kill", "--kill-whom=main", "-s", name, "wharf-agent"];
            host.run(&kill).unwrap();
        };
        signal("STOP");
        let lost = Instant::now();
        self.bed.kubectl(NAME, &["cordon", node]).unwrap();
        self.give_up_the_pod();
        let next = self.wait_for_writer(node);
        eprintln!("taken over {:.1} s after the agent was stopped", lost.elapsed().as_secs_f32());
        let log = host.run(&["cat", "/var/lib/wharf/volumes/guard.log"]).unwrap();
        assert!(log.contains("cut off"), "{log}");
        signal("CONT");
        self.bed.kubectl(NAME, &["uncordon", node]).unwrap();
        self.wait_for_nothing_left(node);
        next
    }

    fn a_claim_that_asks_for_more_gets_it(&self) {
        let more = r#"{"spec":{"resources":{"requests":{"storage":"96Mi"}}}}"#;
        self.bed.kubectl(NAME, &["patch", "pvc", CLAIM, "--type=merge", "-p", more]).unwrap();
        // A mounted ext4 grows only with a capability that these machines may lack; xfs has its own test.
        wait_for("the image to grow", DEADLINE, || {
            let is_large = fs::metadata(self.image_of(CLAIM)).unwrap().len() == 96 << 20;
            let told = self.field(CLAIM, "{.status.capacity.storage}");
            Ok((is_large && told == "96Mi").then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    fn claim_takes_its_image_with_it(&self, claim: &str) {
        self.claim_takes_away(claim, &self.image_of(claim));
    }

    fn claim_takes_away(&self, claim: &str, image: &Path) {
        let volume = self.volume_of(claim);
        assert!(image.exists());
        self.bed.kubectl(NAME, &["delete", "pvc", claim]).unwrap();
        wait_for("the volume to go", DEADLINE, || {
            let get = ["get", "pv", &volume, "--ignore-not-found", "-o", "name"];
            let left = self.bed.kubectl(NAME, &get).unwrap();
            Ok((left.is_empty() && !image.exists()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    fn wait_for_unready(&self) {
        wait_for("the node to be missed", DEADLINE, || {
            Ok((nodes_ready(self.bed, NAME) == NODES.len() - 1).then_some(()))
        })
        .unwrap();
    }

    /// A node that comes back has no device and no garbage.
    fn wait_for_nothing_left(&self, node: &str) {
        let look = "ls /var/lib/wharf/volumes/journals
            grep -E 'wharf.dev|kubernetes.io~csi' /proc/mounts || true";
        let left = || {
            let here = self.bed.host(node).run(&["sh", "-c", look]).unwrap_or("away".to_owned());
            let list = ["get", "nodegarbages.wharf.dev", node, "--ignore-not-found", "-o", "name"];
            format!("{here}{}", self.bed.kubectl(NAME, &list).unwrap())
        };
        wait_for("the node to be clean", DEADLINE, || Ok(left().is_empty().then_some(())))
            .unwrap_or_else(|error| panic!("{error:?}: {}\n{}", left(), self.told()));
        wait_for("the node to be back", DEADLINE, || {
            Ok((nodes_ready(self.bed, NAME) == NODES.len()).then_some(()))
        })
        .unwrap();
    }

    fn stop_the_writer(&self) {
        self.bed.kubectl(NAME, &["delete", "statefulset", "canary"]).unwrap();
        wait_for("the volume to be given up", DEADLINE, || {
            Ok(self.holders().is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }
}
