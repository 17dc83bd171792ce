//! Unmounts that kubelet asks for while something is away or in use: the API server, the volume's object,
//! the device.

use std::{fs, fs::File, path::Path};

use serde_json::{Value, json};
use wharf_testbed::{devices::loop_devices, wait_for};

use super::{
    NAME, NODES, Trial,
    brief::{Api, Ends, GATE, blocks, wait_for_phase},
};
use crate::{bed::DEADLINE, nodes_ready};

const NODE: &str = "node2";
const OTHER: &str = "node3";
const SERVER: &str = "node1";
const CSI: &str = "away-csi";
const GENERATION: &str = "wharf.dev/generation";

/// How the API server goes away, and how it comes back.
const SILENCES: [[&[&str]; 2]; 2] = [
    // Nobody listens.
    [&["systemctl", "stop"], &["systemctl", "start"]],
    // It takes connections and says nothing.
    [
        &["systemctl", "kill", "--kill-whom=main", "-s", "STOP"],
        &["systemctl", "kill", "--kill-whom=main", "-s", "CONT"],
    ],
];

impl Trial<'_> {
    /// The pod is told to end while the API server is there, and ends when it is away.
    pub fn an_unmount_needs_no_api_server(&self) {
        let api = self.api("away");
        let volume = self.claim_of("away", "main");
        for (round, [silence, end_of_silence]) in SILENCES.iter().enumerate() {
            let pod = format!("away-{round}");
            let gate = self.bed.host(NODE).root().join(GATE.trim_start_matches('/'));
            let _ = fs::remove_file(gate.join("go"));
            let _ = fs::remove_file(gate.join("ending"));
            self.run_brief(&api, &pod, NODE, "away", Ends::AtGate);
            api.run(&["delete", "pod", &pod, "--wait=false"]);
            wait_for("the pod to be told", DEADLINE, || {
                Ok(gate.join("ending").exists().then_some(()))
            })
            .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));

            let server = |command: &[&str]| {
                let command = [command, &["wharf-kube-apiserver"]].concat();
                self.bed.host(SERVER).run(&command).unwrap();
            };
            server(silence);
            fs::write(gate.join("go"), "").unwrap();
            self.wait_for_kubelet(&["TearDown succeeded", &volume], round + 1);
            assert_eq!(loop_devices(Path::new(&volume)), [""; 0], "the device has left the node");
            assert_eq!(self.mounts_of(NODE, &volume), "");
            let look = ["get", "--raw", "/readyz", "--request-timeout=1s"];
            assert!(self.bed.kubectl(NAME, &look).is_err(), "all that without the API server");
            let journal = self.journal_of(NODE, &volume);
            assert_eq!(journal["pods"][0]["stage"], "leaving", "it is to be given up: {journal}");
            server(end_of_silence);

            wait_for("the API server to be back", DEADLINE, || {
                Ok((nodes_ready(self.bed, NAME) == NODES.len()).then_some(()))
            })
            .unwrap();
            self.wait_for_end(&pod);
            self.wait_until_gone(&["attachments.wharf.dev", &volume]);
            self.wait_for_nothing_left(NODE);
        }
        self.another_pod_has_it(&api, "away", &volume, &["away-0", "away-1"]);
        self.claim_takes_its_image_with_it("away");
        self.bed.wait_for_links(NAME, NODES.len());
    }

    /// Somebody deletes the PersistentVolumes of pods that write, against all protection.
    pub fn an_unmount_needs_no_volume(&self) {
        let api = self.api("lost");
        self.make_class(CSI, &json!({ "storageCluster": "main", "frontEnd": "csi" }));
        let claims = ["lost-flex", "lost-csi"];
        let volumes = ["main", CSI].map(|class| {
            let claim = if class == CSI { claims[1] } else { claims[0] };
            self.claim_of(claim, class)
        });
        for claim in claims {
            self.run_brief(&api, claim, NODE, claim, Ends::WhenTold);
        }
        let kept = volumes.each_ref().map(|volume| self.take_the_object(&api, volume));
        for (claim, volume) in claims.iter().zip(&volumes) {
            assert_eq!(self.holders_of(volume), [NODE]);
            api.run(&["delete", "pod", claim, "--wait=false"]);
        }
        for (claim, volume) in claims.iter().zip(&volumes) {
            self.wait_for_end(claim);
            self.wait_until_gone(&["attachments.wharf.dev", volume]);
        }
        self.wait_for_nothing_of(&volumes);
        for ((claim, volume), (object, generation)) in claims.iter().zip(&volumes).zip(kept) {
            // The image is nobody's garbage, and its next grant is above the last.
            api.create(&[object]);
            self.another_pod_has_it(&api, claim, volume, &[claim]);
            let path =
                format!("jsonpath={{.metadata.annotations.{}}}", GENERATION.replace('.', "\\."));
            let next = api.run(&["get", "pv", volume, "-o", &path]);
            let next: u64 = next.parse().unwrap_or_else(|_| panic!("{next:?}"));
            assert!(next > generation, "{next} after {generation}");
            self.claim_takes_its_image_with_it(claim);
        }
    }

    /// Nothing is mounted any more, but somebody looks at the device itself.
    pub fn a_device_that_somebody_has_open_stays_claimed_until_he_lets_go(&self) {
        let api = self.api("busy");
        let volume = self.claim_of("busy", "main");
        self.run_brief(&api, "busy", NODE, "busy", Ends::WhenTold);
        let devices = loop_devices(Path::new(&volume));
        let [device] = devices.as_slice() else { panic!("{devices:?}") };
        let open = File::open(format!("/dev/{device}")).unwrap();
        api.run(&["delete", "pod", "busy", "--wait=false"]);
        self.wait_for_kubelet(&["TearDown failed", &volume, "is in use"], 1);
        let mounts = self.mounts_of(NODE, &volume);
        assert!(!mounts.contains("/pods/"), "the pod may go: {mounts}");
        assert_eq!(loop_devices(Path::new(&volume)), devices, "the device is there");
        assert_eq!(self.holders_of(&volume), [NODE], "it is not given up before it is gone");

        let pods = api.watch_pods();
        let next = api.brief("busy-next", OTHER, "busy", "busy-next", Ends::ByItself);
        api.create(&[next]);
        self.wait_for_kubelet(&["TearDown failed", &volume, "is in use"], 2);
        assert_eq!(self.holders_of(&volume), [NODE], "and nobody else gets it");
        drop(open);
        self.wait_for_end("busy");
        wait_for_phase(&pods, "Succeeded", &["busy-next".to_owned()]);
        self.wait_until_gone(&["attachments.wharf.dev", &volume]);
        self.wait_for_nothing_of(std::slice::from_ref(&volume));
        assert_eq!(blocks(&self.image_of("busy")), ["busy", "busy-next"]);
        api.run(&["delete", "pod", "busy-next"]);
        self.claim_takes_its_image_with_it("busy");
    }

    /// Starts a pod that stamps its name, and waits until it runs.
    fn run_brief(&self, api: &Api, pod: &str, node: &str, claim: &str, ends: Ends) {
        let pods = api.watch_pods();
        api.create(&[api.brief(pod, node, claim, pod, ends)]);
        let phase = if ends == Ends::ByItself { "Succeeded" } else { "Running" };
        wait_for_phase(&pods, phase, &[pod.to_owned()]);
    }

    /// A pod of another node writes after those that wrote before.
    fn another_pod_has_it(&self, api: &Api, claim: &str, volume: &str, before: &[&str]) {
        let pod = format!("{claim}-next");
        self.run_brief(api, &pod, OTHER, claim, Ends::ByItself);
        self.wait_until_gone(&["attachments.wharf.dev", volume]);
        self.wait_for_nothing_of(&[volume.to_owned()]);
        assert_eq!(blocks(&self.image_of(claim)), [before, &[&pod]].concat());
        api.run(&["delete", "pod", &pod]);
    }

    /// Deletes a PersistentVolume at once. Gives what makes it anew, without the generation, and that.
    fn take_the_object(&self, api: &Api, volume: &str) -> (Value, u64) {
        let found: Value =
            serde_json::from_str(&api.run(&["get", "pv", volume, "-o", "json"])).unwrap();
        api.run(&["delete", "pv", volume, "--wait=false"]);
        let free = r#"{"metadata":{"finalizers":null}}"#;
        api.run(&["patch", "pv", volume, "--type=merge", "-p", free]);
        self.wait_until_gone(&["pv", volume]);
        let mut annotations = found["metadata"]["annotations"].clone();
        let generation = annotations.as_object_mut().unwrap().remove(GENERATION).unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "spec": found["spec"],
            "metadata": { "name": volume, "annotations": annotations },
        });
        (object, generation.as_str().unwrap().parse().unwrap())
    }

    /// Waits until kubelet has said so often what has all these words.
    fn wait_for_kubelet(&self, words: &[&str], times: usize) {
        let log = ["journalctl", "-u", "wharf-kubelet", "-o", "cat"];
        wait_for("kubelet to say so", DEADLINE, || {
            let said = self.bed.host(NODE).run(&log)?;
            let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
            Ok((said.lines().filter(is_it).count() >= times).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{words:?}: {error:?}\n{}", self.told()));
    }

    fn mounts_of(&self, node: &str, volume: &str) -> String {
        let look = format!("grep {volume} /proc/mounts || true");
        self.bed.host(node).run(&["sh", "-c", &look]).unwrap()
    }

    fn journal_of(&self, node: &str, volume: &str) -> Value {
        let journals = self.bed.host(node).root().join("var/lib/wharf/volumes/journals");
        let text = fs::read_to_string(journals.join(format!("{volume}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}
