//! Machines that are not as they should be.

use serde_json::{Value, json};
use wharf_testbed::{Host, wait_for};

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE, assert_as_before, inventory},
    nodes_ready,
};

const NODES: [(&str, &[&str]); 2] = [("node1", CONTROL), ("node2", WORKER)];

/// A user without rights, and one who may become root.
const GUEST: &str = "guest";
const HAND: &str = "hand";

/// One after the other on the same machines: each fault ends in an error that names the machine,
/// the cause and the next step, and in a state from which sending the cluster again goes on.
#[test]
fn bad_machines_give_errors_that_name_them_and_a_state_from_which_one_can_go_on() {
    let bed = Bed::start("bad", 2);
    for host in ["node1", "node2"] {
        add_user(bed.host(host), GUEST, false);
        add_user(bed.host(host), HAND, true);
    }
    let before = inventory(bed.host("node2"));
    a_port_in_use(&bed);
    a_machine_that_is_off(&bed);
    a_key_that_nobody_knows(&bed);
    a_user_who_may_not_become_root(&bed);
    a_clock_that_is_wrong(&bed);
    a_disk_that_is_full(&bed);
    a_machine_that_hangs_in_an_upload(&bed);
    let host_key = a_machine_that_was_installed_anew(&bed);

    // From here on as a user with sudo, and with the new host key.
    let mut wish = bed.wish("bad", &NODES);
    wish["sshUser"] = json!(HAND);
    wish["nodes"][1]["hostKey"] = json!(host_key);
    a_machine_that_reboots(&bed, &wish);
    bed.send(&["update", "bad"], &wish).ok();
    assert_eq!((bed.status("bad").as_str(), nodes_ready(&bed, "bad")), ("Running", 2));

    deleted(&bed);
    assert_as_before(bed.host("node2"), &before);
}

/// Sends the cluster and expects to hear of this host, this cause and this next step.
#[track_caller]
fn refused(bed: &Bed, wish: &Value, host: &str, cause: &str, hint: &str) {
    let verb: &[&str] = match bed.world.local(&["cluster", "show", "bad"]).exit {
        0 => &["update", "bad"],
        _ => &["create"],
    };
    let ran = bed.send(verb, wish).exits(1);
    let (error, hints) = ran.stderr.split_once("hint: ").unwrap_or((&ran.stderr, ""));
    assert!(error.contains(host) && error.contains(cause), "{ran:?}");
    assert!(hints.contains(hint), "{ran:?}");
    assert_eq!(bed.status("bad"), "CreateFailed");
}

fn shell(host: &Host, script: &str) -> String {
    host.run(&["sh", "-c", script]).unwrap()
}

fn a_port_in_use(bed: &Bed) {
    let (host, wish) = (bed.host("node1"), bed.wish("bad", &NODES));
    shell(host, "systemd-run --unit=squatter socat TCP-LISTEN:10250,fork EXEC:cat");
    let preflight = bed.send(&["preflight", "-o", "json"], &wish).exits(1);
    let found: Value = serde_json::from_str(&preflight.stdout).unwrap();
    assert_eq!(found["ok"], false, "{found}");
    assert!(found.to_string().contains("10250"), "{found}");
    refused(bed, &wish, "node1", "10250 (by socat", "");
    assert_eq!(shell(host, "ls /opt"), "");
    shell(host, "systemctl stop squatter");
}

fn a_machine_that_is_off(bed: &Bed) {
    bed.host("node2").power_cut().unwrap();
    // Whether the network says so or nobody answers is the network's choice.
    refused(bed, &bed.wish("bad", &NODES), "node2", "node2", "the machine");
    bed.host("node2").start().unwrap();
}

fn a_key_that_nobody_knows(bed: &Bed) {
    let mut wish = bed.wish("bad", &NODES);
    wish["sshKey"] = json!(bed.another_key());
    refused(bed, &wish, "node1", "refuses the SSH key for user root", "authorized_keys");
    // It was stored: going on needs the right one.
    wish["sshKey"] = json!("");
    refused(bed, &wish, "node2", "refuses the SSH key for user root", "authorized_keys");
}

fn a_user_who_may_not_become_root(bed: &Bed) {
    let mut wish = bed.wish("bad", &NODES);
    wish["sshUser"] = json!("stranger");
    refused(bed, &wish, "node1", "refuses the SSH key for user stranger", "~stranger/.ssh");
    wish["sshUser"] = json!(GUEST);
    refused(bed, &wish, "node2", "user guest become root by sudo", "guest ALL=(ALL) NOPASSWD");
}

fn add_user(host: &Host, name: &str, sudo: bool) {
    let home = format!("/home/{name}");
    let keys = format!(
        "useradd -m -s /bin/sh {name} && mkdir -m 700 {home}/.ssh && \
         cp ~root/.ssh/authorized_keys {home}/.ssh/ && chown -R {name} {home}/.ssh"
    );
    shell(host, &keys);
    if sudo {
        shell(host, &format!("echo '{name} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{name}"));
    }
}

/// All hosts have one kernel and one clock, so the program that is asked for the time lies.
fn a_clock_that_is_wrong(bed: &Bed) {
    let lie = "printf '#!/bin/sh\\nexec /bin/date -d \"1 hour ago\" \"$@\"\\n' > /usr/local/bin/date \
               && chmod 755 /usr/local/bin/date";
    shell(bed.host("node2"), lie);
    let wish = bed.wish("bad", &NODES);
    refused(bed, &wish, "node2", "s behind the server's", "NTP");
    shell(bed.host("node2"), "rm /usr/local/bin/date");
}

fn a_disk_that_is_full(bed: &Bed) {
    let (host, wish) = (bed.host("node2"), bed.wish("bad", &NODES));
    shell(host, "mount -t tmpfs -o size=100m tmpfs /opt");
    refused(bed, &wish, "node2", "free space in /opt is 100 MiB", "make room");
    // It looks large enough, and is full in the middle: of the programs, then of the data.
    shell(host, "umount /opt && mount -t tmpfs -o size=3g,nr_inodes=3 tmpfs /opt");
    refused(bed, &wish, "node2", "No space left on device", "update");
    shell(host, "umount /opt && mkdir -p /var/lib/wharf");
    shell(host, "mount -t tmpfs -o size=12g,nr_inodes=4 tmpfs /var/lib/wharf");
    refused(bed, &wish, "node2", "No space left on device", "update");
    // Deleting needs no room.
    deleted(bed);
    shell(host, "umount /var/lib/wharf && rmdir /var/lib/wharf");
}

fn deleted(bed: &Bed) {
    bed.world.local(&["cluster", "delete", "bad", "--yes"]).ok();
    let last = bed.operations("bad").remove(0);
    assert_eq!((&last["kind"], &last["state"]), (&json!("delete"), &json!("succeeded")), "{last}");
    assert_eq!(last["leftovers"], json!([]), "{last}");
}

fn a_machine_that_hangs_in_an_upload(bed: &Bed) {
    let (host, wish) = (bed.host("node2"), bed.wish("bad", &NODES));
    bed.send(&["create", "--no-wait"], &wish).ok();
    let files = host.root().join("opt/wharf/files");
    wait_for("the upload to be under way", DEADLINE, || {
        assert_eq!(bed.status("bad"), "Creating");
        let files = std::fs::read_dir(&files).into_iter().flatten().flatten();
        Ok(files.into_iter().any(|file| file.path().extension().is_some()).then_some(()))
    })
    .unwrap();
    host.pause().unwrap();
    let ended = bed.wait_for_end("bad");
    host.resume().unwrap();
    assert_eq!(ended["state"], "failed", "{ended}");
    let error = ended["error"].as_str().unwrap();
    assert!(error.contains("host node2: ") && error.contains("/opt/wharf/files/"), "{ended}");
    assert!(ended["hint"].as_str().unwrap().contains("try again"), "{ended}");
    assert_eq!(bed.status("bad"), "CreateFailed");
}

/// Another key than the pinned one is refused until the user gives it. Gives the new key.
fn a_machine_that_was_installed_anew(bed: &Bed) -> String {
    let (host, wish) = (bed.host("node2"), bed.wish("bad", &NODES));
    let rekey = "rm /etc/ssh/ssh_host_* && ssh-keygen -q -t ed25519 -N '' -f \
                 /etc/ssh/ssh_host_ed25519_key && systemctl restart ssh";
    shell(host, rekey);
    refused(bed, &wish, "node2", "another host key than before", "give its new host key");
    let new = host.host_key().unwrap();
    // The test's own way to the machine.
    let known = bed.machines.known_hosts_path().unwrap();
    let address = host.address().to_string();
    let old = std::fs::read_to_string(&known).unwrap();
    let others = old.lines().filter(|line| !line.starts_with(&format!("{address} ")));
    let lines = others.map(str::to_owned).chain([format!("{address} {new}")]);
    std::fs::write(&known, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    new
}

fn a_machine_that_reboots(bed: &Bed, wish: &Value) {
    bed.send(&["update", "bad", "--no-wait"], wish).ok();
    wait_for("the work on node2", DEADLINE, || {
        let last = bed.operations("bad").remove(0);
        assert_eq!(last["state"], "running", "{last}");
        let steps = last["steps"].as_array().unwrap();
        let works = |step: &Value| step["host"] == "node2" && step["phase"] == "nodes";
        Ok(steps.iter().any(works).then_some(()))
    })
    .unwrap();
    bed.host("node2").power_cut().unwrap();
    bed.host("node2").start().unwrap();
    let ended = bed.wait_for_end("bad");
    assert_eq!(ended["state"], "failed", "{ended}");
    assert!(ended["error"].as_str().unwrap().contains("host node2: "), "{ended}");
    // Its systemd may be gone a moment before its SSH, which can then still say so.
    let hint = ended["hint"].as_str().unwrap();
    let hints = ["once it is back, try again", "go on with `wharf cluster update bad`"];
    assert!(hints.iter().any(|known| hint.contains(known)), "{ended}");
    // Where the tracker looks for it, and without what concerns another machine alone.
    let log = shell(bed.host("node1"), "cat /persist/kubelog/k3s-install.log");
    assert!(log.contains("node1: prepare: ") && !log.contains("node2: prepare: "), "{log}");
    assert!(log.lines().last().unwrap().contains(" failed: host node2: "), "{log}");
}
