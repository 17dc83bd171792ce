//! Pods that stamp every line with their node and a counter, and what is found of that in the image.

use std::{path::Path, process::Command};

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use super::{NAME, Trial};
use crate::bed::DEADLINE;

/// Goes on when it may not write, and says so.
const SCRIPT: &str = "i=0; while :; do \
                      echo \"$NODE $i\" >>/data/log && sync /data/log || echo \"refused $i\"; \
                      i=$((i+1)); sleep 0.1; done";

impl Trial<'_> {
    /// Of a pod that writes to its volume `data`.
    pub fn writer_spec(&self) -> Value {
        json!({
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "writer", "image": self.bed.image("busybox"),
                "command": ["sh", "-c", SCRIPT],
                "env": [{ "name": "NODE",
                          "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
        })
    }

    /// A pod of that node that writes to a claim's volume.
    pub fn start(&self, name: &str, node: &str, claim: &str) {
        self.start_lasting(name, node, claim, 0);
    }

    /// The same with a pod that goes on for so long when it is to end, because it does not listen.
    pub fn start_lasting(&self, name: &str, node: &str, claim: &str, grace_seconds: u64) {
        let mut spec = self.writer_spec();
        spec["terminationGracePeriodSeconds"] = json!(grace_seconds);
        spec["nodeName"] = json!(node);
        spec["volumes"] =
            json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec,
        });
        self.bed.apply(NAME, &[pod]);
        wait_for("the pod to run", DEADLINE, || {
            let phase = ["get", "pod", name, "-o", "jsonpath={.status.phase}"];
            Ok((self.bed.kubectl(NAME, &phase).unwrap() == "Running").then_some(()))
        })
        .unwrap_or_else(|error| panic!("{name}: {error:?}\n{}", self.told()));
    }

    /// Waits until the last stamp is this node's, and not its first.
    pub fn wait_for_stamps(&self, pod: &str, node: &str) {
        let last = ["exec", pod, "--", "tail", "-n", "1", "/data/log"];
        wait_for("the writer to write", DEADLINE, || {
            let line = self.bed.kubectl(NAME, &last).unwrap_or_default();
            let stamp = line.trim().split_once(' ');
            let is_enough =
                |(of, count): (&str, &str)| of == node && count.parse::<u64>().unwrap_or(0) >= 20;
            Ok(stamp.is_some_and(is_enough).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{pod}: {error:?}\n{}", self.told()));
    }

    /// The image is whole, and in it the stamps of one node after the other.
    pub fn assert_stamps(&self, image: &Path, nodes: &[&str]) {
        let mut blocks: Vec<(String, Vec<u64>)> = Vec::new();
        for (node, count) in read(image) {
            match blocks.last_mut() {
                Some((last, counts)) if *last == node => counts.push(count),
                _ => blocks.push((node, vec![count])),
            }
        }
        let order: Vec<&str> = blocks.iter().map(|(node, _)| node.as_str()).collect();
        assert_eq!(order, nodes, "one node after the other");
        for (node, counts) in &blocks {
            assert!(counts.len() > 10, "{node} wrote {}", counts.len());
            assert!(counts.is_sorted_by(|a, b| a < b), "{node}: {counts:?}");
        }
    }
}

/// All stamps of an image that nobody has, which is whole.
pub fn read(image: &Path) -> Vec<(String, u64)> {
    let check = Command::new("e2fsck").args(["-fn"]).arg(image).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    let shown = Command::new("debugfs").args(["-R", "cat /log"]).arg(image).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8(shown.stdout).unwrap();
    let stamp = |line: &str| {
        let (mark, count) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        (mark.to_owned(), count.parse().unwrap_or_else(|_| panic!("{line:?}")))
    };
    text.lines().map(stamp).collect()
}
