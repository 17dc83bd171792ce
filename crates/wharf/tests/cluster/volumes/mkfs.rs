//! Making a file system that goes wrong, and one that takes long while kubelet is started anew.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use super::{NAME, Trial};
use crate::bed::DEADLINE;

const NODE: &str = "node2";
const CLAIM: &str = "slow";
const POD: &str = "slow";
/// What kubelet shows of it. A flood has many times more.
const LONGEST_EVENT: usize = 2_000;

/// Stands before the real one: floods and fails, or waits, as long as the files say so.
const MKFS: &str = "#!/bin/sh
if [ -e /run/mkfs-floods ]; then
    head -c 50000000 /dev/zero | tr '\\0' 'x' >&2
    exit 1
fi
echo begun >>/run/mkfs-log
while [ -e /run/mkfs-waits ]; do sleep 0.1; done
exec /usr/sbin/mkfs.ext4 \"$@\"
";

impl Trial<'_> {
    pub fn kubelet_may_restart_while_a_file_system_is_made(&self) {
        let host = self.bed.host(NODE);
        let program = host.root().join("usr/local/sbin/mkfs.ext4");
        fs::write(&program, MKFS).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        host.run(&["touch", "/run/mkfs-floods", "/run/mkfs-log"]).unwrap();
        self.ask_for_the_volume();

        self.wait_for_short_complaint();
        let volume = self.volume_of(CLAIM);
        host.run(&["sh", "-c", "touch /run/mkfs-waits && rm /run/mkfs-floods"]).unwrap();
        wait_for("a file system to be begun", DEADLINE, || {
            Ok((host.run(&["cat", "/run/mkfs-log"]).unwrap() != "").then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        self.restart_kubelet_in_the_middle();
        assert_eq!(self.devices_of(CLAIM), 1, "one device");
        host.run(&["rm", "/run/mkfs-waits"]).unwrap();

        wait_for("the pod to run", DEADLINE, || {
            let phase = ["get", "pod", POD, "-o", "jsonpath={.status.phase}"];
            Ok((self.bed.kubectl(NAME, &phase).unwrap() == "Running").then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        assert_eq!(self.devices_of(CLAIM), 1, "one device");
        assert_eq!(self.holders_of(&volume), [NODE]);
        assert_eq!(host.run(&["cat", "/run/mkfs-log"]).unwrap(), "begun", "made once");

        self.bed.kubectl(NAME, &["delete", "pod", POD]).unwrap();
        self.wait_for_nothing_left(NODE);
        assert_eq!(self.devices_of(CLAIM), 0);
        self.claim_takes_its_image_with_it(CLAIM);
        fs::remove_file(program).unwrap();
    }

    fn ask_for_the_volume(&self) {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": CLAIM },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "main",
                "resources": { "requests": { "storage": "64Mi" } },
            },
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": POD },
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "c", "image": self.bed.image("busybox"),
                    "command": ["sleep", "1000000"],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": CLAIM } }],
            },
        });
        self.bed.apply(NAME, &[claim, pod]);
    }

    /// kubelet tells what went wrong, in a sentence, and nothing is left of the try.
    fn wait_for_short_complaint(&self) {
        let complaint = wait_for("kubelet to tell that it failed", DEADLINE, || {
            let of_pod = format!("involvedObject.name={POD},reason=FailedMount");
            let list = ["get", "events", "--field-selector", &of_pod, "-o", "json"];
            let list: Value = serde_json::from_str(&self.bed.kubectl(NAME, &list).unwrap())?;
            let messages = list["items"].as_array().into_iter().flatten();
            let mut messages = messages.filter_map(|event| event["message"].as_str());
            Ok(messages.find(|message| message.contains("mkfs.ext4 failed")).map(str::to_owned))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        assert!(complaint.len() < LONGEST_EVENT, "{} bytes", complaint.len());
        wait_for("the try to be undone", DEADLINE, || {
            Ok((self.devices_of(CLAIM) == 0).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    /// What it began goes on without it, and it asks for the same again.
    fn restart_kubelet_in_the_middle(&self) {
        let host = self.bed.host(NODE);
        let calls = "pgrep -f '[w]harf.dev~volume/volume mount' || true";
        let begun = host.run(&["sh", "-c", calls]).unwrap();
        host.run(&["systemctl", "restart", "wharf-kubelet"]).unwrap();
        wait_for("kubelet to ask again", DEADLINE, || {
            let now = host.run(&["sh", "-c", calls]).unwrap();
            Ok(now.lines().any(|call| begun.lines().all(|old| old != call)).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    /// How many devices there are of the image of a claim, on whichever machine.
    fn devices_of(&self, claim: &str) -> usize {
        let list = Command::new("losetup").arg("-j").arg(self.image_of(claim)).output().unwrap();
        String::from_utf8_lossy(&list.stdout).lines().count()
    }
}
