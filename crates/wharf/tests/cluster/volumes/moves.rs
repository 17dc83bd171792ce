//! Volumes that leave their node: because a person says so, and because the node is drained.

use serde_json::json;
use wharf_testbed::wait_for;

use super::{NAME, Trial};
use crate::bed::DEADLINE;

const HOLDER: &str = "holder";
const NEXT: &str = "next";

impl Trial<'_> {
    /// Its agent is alive, and its pod writes. The person answers for it.
    pub fn a_forced_detach_takes_a_volume_from_a_live_agent(&self) {
        let volume = self.claim_of("forced", "main");
        self.start(HOLDER, "node2", "forced");
        assert_eq!(self.holders_of(&volume), ["node2"]);
        let detach = ["volume", "detach", NAME, &volume, "--node", "node2", "--force", "--yes"];
        let refused = self.bed.world.local(&detach);
        assert_eq!(refused.exit, 2, "a reason is needed: {refused:?}");
        let reason = ["--reason", "a test wants it"];
        self.bed.world.local(&[&detach[..], &reason].concat()).ok();
        self.start(NEXT, "node3", "forced");
        assert_eq!(self.holders_of(&volume), ["node3"]);
        let events = ["get", "events", "-o", "json", "--field-selector"];
        let of_volume = format!("involvedObject.name={volume},reason=VolumeDetachForced");
        let events = [&events[..], &[&of_volume]].concat();
        let events = self.bed.kubectl(NAME, &events).unwrap();
        assert!(events.contains("a test wants it"), "{events}");
        // Its old node is free of it, and the pod there has been told.
        self.wait_for_nothing_left("node2");
        self.wait_for_end(HOLDER);
        self.end_pod(NEXT, &volume);
        self.claim_takes_its_image_with_it("forced");
    }

    /// The pod has left, but somebody on its node looks into the volume.
    pub fn a_drain_waits_until_the_volumes_of_its_pods_are_unmounted(&self) {
        let host = self.bed.host("node2");
        let volume = self.claim_of("drained", "main");
        self.start(HOLDER, "node2", "drained");
        let staged = format!("/var/lib/kubelet/plugins/wharf.dev/volume/mounts/{volume}");
        let hold = format!("cd {staged} && exec sleep 100000");
        host.run(&["systemd-run", "--unit=looker", "sh", "-c", &hold]).unwrap();
        wait_for("somebody to look into the volume", DEADLINE, || {
            let at = "readlink /proc/$(systemctl show -p MainPID --value looker)/cwd || true";
            Ok((host.run(&["sh", "-c", at]).unwrap().trim() == staged).then_some(()))
        })
        .unwrap();
        self.bed.world.local(&["node", "drain", NAME, "node2", "--no-wait"]).ok();
        self.wait_for_end(HOLDER);
        wait_for("the drain to name the volume", DEADLINE, || {
            let nodes = self.bed.nodes(NAME);
            let node = nodes.iter().find(|node| node["name"] == "node2").unwrap();
            Ok(node["drain"].to_string().contains(&volume).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{:#?}", self.bed.nodes(NAME)));
        assert_eq!(self.holders_of(&volume), ["node2"], "it is not given up before it is gone");
        host.run(&["systemctl", "stop", "looker"]).unwrap();
        self.bed.world.local(&["node", "drain", NAME, "node2"]).ok();
        assert_eq!(self.holders_of(&volume), [""; 0]);
        self.bed.world.local(&["node", "uncordon", NAME, "node2"]).ok();
        self.claim_takes_its_image_with_it("drained");
    }

    /// A claim that has got its volume: its name.
    pub fn claim_of(&self, name: &str, class: &str) -> String {
        self.bed.apply(
            NAME,
            &[json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "resources": { "requests": { "storage": "64Mi" } },
                },
            })],
        );
        wait_for("the claim to be bound", DEADLINE, || {
            Ok(Some(self.volume_of(name)).filter(|volume| !volume.is_empty()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()))
    }

    pub fn wait_for_end(&self, pod: &str) {
        wait_for("the pod to go", DEADLINE, || {
            let left = ["get", "pod", pod, "--ignore-not-found", "-o", "name"];
            Ok(self.bed.kubectl(NAME, &left).unwrap().is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{pod}: {error:?}\n{}", self.told()));
    }

    pub fn end_pod(&self, pod: &str, volume: &str) {
        self.bed.kubectl(NAME, &["delete", "pod", pod, "--wait=false"]).unwrap();
        self.wait_for_end(pod);
        wait_for("the volume to be given up", DEADLINE, || {
            Ok(self.holders_of(volume).is_empty().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }
}
