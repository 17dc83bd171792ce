//! Two nodes that race for a volume, again and again: one has it, and then the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    time::Instant,
};

use serde_json::{Value, json};
use wharf_testbed::{process::Process, wait_for};

use super::{
    NAME, Trial,
    brief::{Api, Ends, blocks, wait_for_phase},
};
use crate::bed::DEADLINE;

const RACERS: [&str; 2] = ["node2", "node3"];
/// That are raced for at the same time.
const VOLUMES: usize = 20;
const BATCHES: usize = 5;
/// With `WHARF_LONG`: two hundred races.
const LONG_BATCHES: usize = 10;

impl Trial<'_> {
    /// All pods of a batch are there at once, two for each volume. Each stamps its lines and ends by
    /// itself, and the other one gets the volume.
    pub fn of_two_nodes_that_race_one_has_the_volume_and_then_the_other(&self) {
        let api = self.api("races");
        // Before there is a volume, so that no version of a record is missed.
        let records = api.watch(
            &["attachments.wharf.dev"],
            "{.metadata.name}/{.attachments[*].node}/{.attachments[*].generation}",
        );
        let pods = api.watch_pods();
        let claims: Vec<String> = (0..VOLUMES).map(|number| format!("raced-{number}")).collect();
        let volumes = self.claims_of(&api, &claims);
        let is_long = env::var_os("WHARF_LONG").is_some();
        let batches = if is_long { LONG_BATCHES } else { BATCHES };
        let begun = Instant::now();
        for batch in 0..batches {
            self.race(&api, &pods, &claims, &volumes, batch);
        }
        let seconds = begun.elapsed().as_secs_f32();
        wait_for("all volumes to be given up", DEADLINE, || {
            let held = api.run(&["get", "attachments.wharf.dev", "-o", "name"]);
            Ok(volumes.iter().all(|volume| !held.contains(volume)).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));

        let mut won = BTreeMap::new();
        for volume in &volumes {
            let image = self.bed.shared().join(format!("{volume}.img"));
            let order = blocks(&image);
            assert_one_after_the_other(&order, &grants(&records, volume), batches);
            for race in order.chunks(2) {
                *won.entry(node_of(&race[0]).to_owned()).or_insert(0) += 1;
            }
        }
        let races = batches * VOLUMES;
        eprintln!("{races} races in {seconds:.1} s, won by {won:?}");
        assert_eq!(won.len(), RACERS.len(), "each is the first now and then: {won:?}");
        api.run(&["delete", "pods", "-l", "trial=races", "--wait=false"]);
        for node in RACERS {
            self.wait_for_nothing_left(node);
        }
        api.run(&[&["delete", "pvc", "--wait=false"], &strs(&claims)[..]].concat());
        wait_for("the volumes to go", DEADLINE, || {
            let left = self.bed.kubectl(NAME, &["get", "pv", "-o", "name"]).unwrap();
            let is_gone = |volume: &String| {
                !left.contains(volume) && !self.bed.shared().join(format!("{volume}.img")).exists()
            };
            Ok(volumes.iter().all(is_gone).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    /// Claims that have got their volumes: their names.
    fn claims_of(&self, api: &Api, claims: &[String]) -> Vec<String> {
        let claim = |name: &String| {
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "main",
                    "resources": { "requests": { "storage": "16Mi" } },
                },
            })
        };
        api.create(&claims.iter().map(claim).collect::<Vec<Value>>());
        let path = "jsonpath={.items[*].spec.volumeName}";
        let get = [&["get", "pvc"], &strs(claims)[..], &["-o", path]].concat();
        wait_for("the claims to be bound", DEADLINE, || {
            let volumes: Vec<String> = api.run(&get).split(' ').map(str::to_owned).collect();
            let is_all = volumes.len() == claims.len() && volumes.iter().all(|it| !it.is_empty());
            Ok(is_all.then_some(volumes))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()))
    }

    fn race(&self, api: &Api, pods: &Process, claims: &[String], volumes: &[String], batch: usize) {
        let mut racers = Vec::new();
        for (number, claim) in claims.iter().enumerate() {
            // Now the one is asked first, now the other.
            for turn in 0..RACERS.len() {
                let node = RACERS[(number + batch + turn) % RACERS.len()];
                let name = format!("race-{batch}-{number}-{node}");
                racers.push(api.brief(&name, node, claim, &mark(node, batch), Ends::ByItself));
            }
        }
        api.create(&racers);
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        let names: Vec<String> = racers.iter().map(name).collect();
        let over = format!("race-{batch}");
        wait_for("a batch of races", DEADLINE, || {
            assert_one_device_each(volumes);
            let told = pods.output();
            let ended = told.lines().filter(|line| line.starts_with(&over));
            let ended: BTreeSet<&str> = ended.filter_map(ended_pod).collect();
            Ok((ended.len() == names.len()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}\n{}", pods.output(), self.told()));
        wait_for_phase(pods, "Succeeded", &names);
    }
}

/// Of a line of the watch.
fn ended_pod(line: &str) -> Option<&str> {
    let (name, phase) = line.split_once(' ')?;
    matches!(phase, "Succeeded" | "Failed").then_some(name)
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn mark(node: &str, batch: usize) -> String {
    format!("{node}.{batch}")
}

fn node_of(mark: &str) -> &str {
    mark.split('.').next().unwrap()
}

/// The machines share one kernel: it never has two devices of one image.
fn assert_one_device_each(volumes: &[String]) {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let files = devices.map(|device| device.path().join("loop/backing_file"));
    let files: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    for volume in volumes {
        let devices = files.iter().filter(|file| file.contains(volume)).count();
        assert!(devices <= 1, "{volume} has {devices} devices: {files:?}");
    }
}

/// The nodes that were granted a volume, in the order of the grants. No version of its record names two
/// holders.
fn grants(records: &Process, volume: &str) -> Vec<String> {
    let mut grants = BTreeMap::new();
    for line in records.output().lines() {
        let [name, node, generation] = line.split('/').collect::<Vec<_>>()[..] else { continue };
        if name != volume || node.is_empty() {
            continue;
        }
        assert!(!node.contains(' '), "two at once: {line}");
        let before = grants.insert(generation.parse::<u64>().unwrap(), node.to_owned());
        assert!(before.is_none_or(|before| before == node), "one grant for two: {line}");
    }
    grants.into_values().collect()
}

/// Both were served in every batch, and wrote in the order in which they were granted the volume. A grant
/// that a pod did not use is none of its stamps.
fn assert_one_after_the_other(order: &[String], grants: &[String], batches: usize) {
    assert_eq!(order.len(), batches * RACERS.len(), "{order:?}");
    for (batch, race) in order.chunks(RACERS.len()).enumerate() {
        let both: BTreeSet<String> = race.iter().cloned().collect();
        assert_eq!(both, RACERS.map(|node| mark(node, batch)).into(), "{order:?}");
    }
    let mut granted = grants.iter();
    let is_granted = |mark: &String| granted.any(|node| node == node_of(mark));
    assert!(order.iter().all(is_granted), "{order:?} of {grants:?}");
}
