//! A machine that is repaired while it runs and writes: its volume is taken from it before the command.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;
use wharf_testbed::{devices::loop_devices, wait_for};

use super::{NAME, Trial};
use crate::bed::DEADLINE;

const STORAGE: &str = "net";
const CLAIM: &str = "served";
const IMAGES: &str = "/srv/images";
const SERVER: &str = "node1";
const SICK: &str = "node2";
const WELL: &str = "node3";
/// Its agent ends the pod whose volume is gone; until then, and as long as this, it tries to write.
const LONG: u64 = 3_600;
const TAINT: &str = "wharf.dev/fence-volumes";

impl Trial<'_> {
    /// The command cannot switch the machine off, so that only the block server keeps it from writing.
    pub fn a_repair_runs_its_command_after_the_volumes_are_taken_from_the_machine(&self) {
        let volume = self.claim_of(CLAIM, STORAGE);
        let _devices = DevicesOf(volume.clone());
        self.start_lasting("old", SICK, CLAIM, LONG);
        self.wait_for_stamps("old", SICK);
        let granted = epoch(&fs::read_to_string(self.served(&volume, "epoch")).unwrap());
        let booted = self.bed.host(SICK).boot_id().unwrap();
        self.configure_repairs(&volume);

        let address = self.bed.host(SICK).address().to_string();
        self.bed.world.local(&["repair", "add", "switch-off", "bed", &address]).ok();
        self.wait_for_command();
        assert!(epoch(&self.seen("epoch")) > granted, "the server lets nobody in who was in");
        assert!(!self.seen("record").contains(SICK), "{}", self.seen("record"));
        assert!(self.seen("taints").contains(TAINT), "{}", self.seen("taints"));

        self.start("new", WELL, CLAIM);
        self.wait_for_stamps("new", WELL);
        assert_eq!(self.holders_of(&volume), [WELL]);
        self.wait_for_refusals("old");
        assert_eq!(self.bed.host(SICK).boot_id().unwrap(), booted, "it ran all the time");

        fs::write(self.bed.world.path("well"), "").unwrap();
        self.bed.world.local(&["repair-queue", "wait", "--timeout-seconds", "600"]).ok();
        let entries = self.bed.world.local(&["repair-queue", "list", "-o", "json"]).json();
        assert_eq!(entries[0]["status"], "succeeded", "{entries}");
        self.bed.world.local(&["repair", "delete-finished"]).ok();
        wait_for("the taint to go", DEADLINE, || {
            Ok((!self.taints(SICK).contains(TAINT)).then_some(()))
        })
        .unwrap();

        // Its agent has asked the pod to end, or will. A person does not wait for that.
        let soon = ["delete", "pod", "old", "--grace-period=1", "--wait=false"];
        self.bed.kubectl(NAME, &soon).unwrap();
        self.wait_for_nothing_left(SICK);
        self.end_pod("new", &volume);
        self.start("again", SICK, CLAIM);
        self.wait_for_stamps("again", SICK);
        self.end_pod("again", &volume);
        self.wait_for_nothing_left(WELL);
        self.assert_stamps(&self.served(&volume, "img"), &[SICK, WELL, SICK]);
    }

    /// A block server on a machine that has no volumes itself.
    pub fn serve_blocks(&self) {
        let host = self.bed.host(SERVER);
        let address = format!("{}:10809", host.address());
        host.run(&["mkdir", "-p", IMAGES]).unwrap();
        let serve = ["/opt/wharf/bin/wharf-block", "serve", IMAGES, &address];
        host.run(&[&["systemd-run", "--unit=block-server"][..], &serve].concat()).unwrap();
        wait_for("the block server to listen", DEADLINE, || {
            let said = host.run(&["journalctl", "-u", "block-server", "-o", "cat"]).unwrap();
            Ok(said.contains("listening on").then_some(()))
        })
        .unwrap();
        self.make_storage(STORAGE, "proxy", &json!({ "server": address }));
    }

    /// A file of the block server.
    pub fn served(&self, volume: &str, what: &str) -> PathBuf {
        let images = self.bed.host(SERVER).root().join(IMAGES.trim_start_matches('/'));
        images.join(format!("{volume}.{what}"))
    }

    /// The command notes how it finds the volume, and fails when it has been told that the machine is well
    /// all the same.
    fn configure_repairs(&self, volume: &str) {
        let dir = self.bed.world.home.path().display().to_string();
        let kubectl = wharf_bundle::cache::find("kubectl").unwrap().display().to_string();
        let kubeconfig = self.bed.kubeconfig(NAME).display().to_string();
        let get = format!("{kubectl} --kubeconfig {kubeconfig} get");
        let epoch = self.served(volume, "epoch").display().to_string();
        let switch_off = self.script(
            "switch-off",
            &format!(
                "cat {epoch} >{dir}/epoch\n\
                 {get} attachments.wharf.dev {volume} --ignore-not-found -o json >{dir}/record\n\
                 {get} node {SICK} -o 'jsonpath={{.spec.taints}}' >{dir}/taints\n\
                 touch {dir}/commanded\n\
                 while [ ! -e {dir}/well ]; do sleep 0.1; done; exit 1"
            ),
        );
        let health =
            self.script("health", &format!("[ -e {dir}/well ] && echo true || echo false"));
        let config = json!({
            "fence_timeout_seconds": 600,
            "repair_procedures": [{
                "machine_types": ["bed"],
                "repair_operations": [{
                    "operation": "switch-off",
                    "health_check_command": [health],
                    "health_check_interval_seconds": 1,
                    "repair_steps": [{
                        "repair_command": [switch_off], "command_timeout_seconds": 600,
                        "fence_volumes": true, "on_failure": "continue", "watch_seconds": 600,
                    }],
                }],
            }],
        });
        let file = self.bed.world.path("repair.json");
        fs::write(&file, config.to_string()).unwrap();
        let file = file.display().to_string();
        self.bed.world.local(&["repair-queue", "config", "set", "-f", &file]).ok();
    }

    fn script(&self, name: &str, body: &str) -> PathBuf {
        let file = self.bed.world.path(name);
        fs::write(&file, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    fn wait_for_command(&self) {
        let commanded = self.bed.world.path("commanded");
        let list = || self.bed.world.local(&["repair-queue", "list", "-o", "json"]);
        wait_for("the command", DEADLINE, || Ok(commanded.exists().then_some(())))
            .unwrap_or_else(|error| panic!("{error:?}: {:?}\n{}", list(), self.told()));
    }

    /// What the command noted.
    fn seen(&self, what: &str) -> String {
        fs::read_to_string(self.bed.world.path(what)).unwrap()
    }

    fn taints(&self, node: &str) -> String {
        let path = "jsonpath={.spec.taints}";
        self.bed.kubectl(NAME, &["get", "node", node, "-o", path]).unwrap()
    }

    /// It tries again and again, and is always refused.
    fn wait_for_refusals(&self, pod: &str) {
        wait_for("the pod to be refused", DEADLINE, || {
            let said = self.bed.kubectl(NAME, &["logs", pod]).unwrap();
            let refused = said.lines().filter(|line| line.starts_with("refused ")).count();
            Ok((refused > 20).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{pod}: {error:?}\n{}", self.told()));
    }
}

fn epoch(text: &str) -> u64 {
    text.trim().parse().unwrap()
}

/// The devices of a volume, which lie on files that are gone with their machine, are taken away also when
/// the test fails: the kernel is that of all machines.
struct DevicesOf(String);

impl Drop for DevicesOf {
    fn drop(&mut self) {
        for device in loop_devices(Path::new(&self.0)) {
            let _ = Command::new("losetup").args(["-d", &format!("/dev/{device}")]).output();
        }
    }
}
