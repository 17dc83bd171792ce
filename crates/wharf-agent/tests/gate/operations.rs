//! Operations that wait at the gate.

use std::{
    os::unix::process::{CommandExt, ExitStatusExt},
    process::Command,
};

use serde_json::json;
use wharf_agent::drain::wishes;
use wharf_api::node_files::NodeWish;

use crate::{
    agent::Agent,
    world::{labelled, world},
};

/// SHA-256, as `sha256sum` prints it.
fn sum(path: &std::path::Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_reboot_waits_for_the_drain_and_is_ordered_once() {
    let (world, node) = (world(), "op-reboot");
    world.node(node);
    world.pod_with(node, "op-reboot-0", labelled("op-reboot"));
    world.budget("op-reboot", 1, 1);
    let mut agent = Agent::prepare_whole(&world, node);
    agent.start();
    agent.wait_for_status(2, 1).await;
    let wish = agent.wish("reboot");
    agent.wait_for_status(5, 2).await;
    let waits = |agent: &Agent| {
        agent.read("run/nodeagent/NodeAgentStatus/nodeagent.json")["WaitDrainInProgress"] == true
    };
    agent.wait_until("wait of the device", || waits(&agent)).await;
    agent
        .wait_until("reason of the job", || {
            let job = agent.job("reboot");
            job["ID"] == wish.id && job["Reason"].to_string().contains("budget op-reboot")
        })
        .await;
    assert_eq!(
        (agent.job("reboot")["Phase"].as_str(), agent.ordered()),
        (Some("deferred"), String::new())
    );
    // Killed in between: the request stays, and nothing is ordered.
    agent.kill();
    agent.start();
    agent.wait_for_status(5, 2).await;
    world.kubectl(&["delete", "pdb", "op-reboot"], "");
    agent.wait_until("order", || agent.ordered() == "reboot\n").await;
    agent.wait_until("end of the wait", || !waits(&agent)).await;
    assert_eq!(agent.status(), (9, 2));
    agent.wait_until("job to leave", || agent.job("reboot")["Phase"] == "leaving").await;
    let request = agent.read("run/zedagent/NodeDrainRequest/global.json");
    assert_eq!((&request["Context"], &request["RequestedBy"]), (&json!("reboot"), &json!(2)));
    assert!(agent.log().contains("scheduleDeviceOperation"), "{}", agent.log());
    assert_eq!(agent.ordered(), "reboot\n");
}

#[tokio::test]
async fn a_canceled_operation_gives_the_node_back() {
    let (world, node) = (world(), "op-cancel");
    world.node(node);
    let pod = world.pod_with(node, "op-cancel-0", labelled("op-cancel"));
    world.budget("op-cancel", 1, 1);
    let mut agent = Agent::prepare_whole(&world, node);
    agent.start();
    let wish = agent.wish("shutdown");
    agent.wait_for_status(5, 2).await;
    let cancel = |kind: &str| {
        let no = NodeWish { kind: kind.to_owned(), canceled: true, ..NodeWish::default() };
        wishes::hand_over(&agent.config.persist_dir, no).unwrap();
    };
    let folder = agent.config.persist_dir.join("status/wharf-local/NodeWish");
    let wishes = || std::fs::read_dir(&folder).unwrap().count();
    cancel("reboot");
    agent.wait_until("end of a cancellation of nothing", || wishes() == 1).await;
    assert_eq!(agent.job("shutdown")["Phase"], "deferred", "it is of another kind");
    cancel("shutdown");
    agent.wait_until("cancellation", || agent.job("shutdown")["Phase"] == "canceled").await;
    agent.wait_for_status(2, 1).await;
    agent.wait_until("end of our cordon", || !world.is_unschedulable(node)).await;
    assert!(world.is_there(&pod));
    agent.wait_until("removal of both wishes", || wishes() == 0).await;
    // What the server sends later is not meant, and its old wish is known.
    agent.write(
        "run/wharf/NodeWish/device.json",
        &json!({ "ID": "server-1", "Kind": "reboot", "Canceled": false }),
    );
    agent.wait_until("job of the server", || agent.job("reboot")["ID"] == "server-1").await;
    assert_ne!(wish.id, "server-1");
    assert_eq!(agent.ordered(), "");
}

#[tokio::test]
async fn alone_a_node_reboots_at_once() {
    let (world, node) = (world(), "op-alone");
    world.node(node);
    let mut agent = Agent::prepare_whole(&world, node);
    agent.remove("run/zedagent/EdgeNodeClusterConfig/global.json");
    agent.wish("reboot");
    agent.start();
    agent.wait_until("order", || agent.ordered() == "reboot\n").await;
    assert_eq!(agent.status(), (1, 1));
    assert!(!world.is_unschedulable(node));
}

/// As after a boot, before the link has spoken again.
#[tokio::test]
async fn an_empty_run_directory_does_not_make_a_member_of_a_cluster_alone() {
    let (world, node) = (world(), "op-booted");
    world.node(node);
    world.pod_with(node, "op-booted-0", labelled("op-booted"));
    world.budget("op-booted", 1, 1);
    let mut agent = Agent::prepare_whole(&world, node);
    let member = json!({ "ClusterName": "test" });
    agent.write("persist/status/zedagent/EdgeNodeClusterConfig/global.json", &member);
    agent.wish("reboot");
    agent.start();
    agent.wait_for_status(5, 2).await;
    agent.kill();
    std::fs::remove_dir_all(&agent.config.run_dir).unwrap();
    agent.start();
    agent.wait_for_status(5, 2).await;
    assert_eq!(agent.ordered(), "");
    assert_eq!(agent.job("reboot")["Phase"], "deferred");
}

#[tokio::test]
async fn an_update_is_checked_first_and_a_newer_one_takes_its_place_in_the_drain() {
    let (world, node) = (world(), "op-update");
    world.node(node);
    world.pod_with(node, "op-update-0", labelled("op-update"));
    world.budget("op-update", 1, 1);
    let mut agent = Agent::prepare_whole(&world, node);
    let place = agent.dir.path().join("installed").display().to_string();
    agent.config.update_command =
        ["sh", "-c", &format!("cat \"$1\" >>{place}"), "sh"].map(str::to_owned).into();
    agent.start();
    agent.wait_for_status(2, 1).await;
    let image = |text: &str| {
        let path = agent.dir.path().join(text);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (first, second) = (image("first"), image("second"));
    let update = |image: &std::path::Path, sha256: String| {
        let image = image.display().to_string();
        let wish = NodeWish { kind: "update".to_owned(), image, sha256, ..NodeWish::default() };
        wishes::hand_over(&agent.config.persist_dir, wish).unwrap()
    };
    // A bad one begins no drain.
    let bad = update(&first, sum(&second));
    agent.wait_until("failure of the bad image", || agent.job("update")["Phase"] == "failed").await;
    let status =
        |wish: &NodeWish| agent.read(&format!("run/baseosmgr/BaseOsStatus/{}.json", wish.id));
    agent.wait_until("FAILED", || status(&bad)["State"] == 124).await;
    assert!(status(&bad)["Error"].to_string().contains("its checksum is"), "{}", status(&bad));
    assert!(agent.faults().iter().any(|fault| fault.subject == "update"));
    assert_eq!(agent.history(), ["NOTREQUESTED"]);

    let older = update(&first, sum(&first));
    agent.wait_for_status(5, 3).await;
    agent.wait_until("LOADED", || status(&older)["State"] == 108).await;
    let newer = update(&second, sum(&second));
    agent.wait_until("newer job", || agent.job("update")["ID"] == newer.id).await;
    assert_eq!(agent.status(), (5, 3), "the drain goes on");
    world.kubectl(&["delete", "pdb", "op-update"], "");
    agent.wait_until("order", || agent.ordered() == "reboot\n").await;
    assert_eq!(std::fs::read_to_string(&place).unwrap(), "second");
    agent.wait_until("INSTALLED", || status(&newer)["State"] == 111).await;
    assert!(!agent.exists(&format!("run/baseosmgr/BaseOsStatus/{}.json", older.id)));
    assert!(agent.log().contains("baseOsHandleStatusUpdateUUID"));
    let cordons = agent.log().matches("cordonNode is done").count();
    assert_eq!(cordons, 1, "one drain served both");
}

#[tokio::test]
async fn an_update_whose_command_cannot_be_run_begins_no_drain() {
    let (world, node) = (world(), "op-no-command");
    world.node(node);
    let mut agent = Agent::prepare_whole(&world, node);
    let program = agent.dir.path().join("wharf-node-update");
    agent.config.update_command = vec![program.display().to_string()];
    let image = agent.dir.path().join("image");
    std::fs::write(&image, "image").unwrap();
    let update = |agent: &Agent| {
        let wish = NodeWish {
            kind: "update".to_owned(),
            sha256: sum(&image),
            image: image.display().to_string(),
            ..NodeWish::default()
        };
        wishes::hand_over(&agent.config.persist_dir, wish).unwrap()
    };
    agent.start();
    let refused = update(&agent);
    agent.wait_until("failure", || agent.job("update")["Phase"] == "failed").await;
    let reason = agent.job("update")["Reason"].as_str().unwrap().to_owned();
    let expected = format!("{} does not exist; put the program", program.display());
    assert!(reason.starts_with(&expected), "{reason}");
    let status = agent.read(&format!("run/baseosmgr/BaseOsStatus/{}.json", refused.id));
    assert_eq!((&status["State"], &status["Error"]), (&json!(124), &json!(reason)));
    assert_eq!(agent.history(), ["NOTREQUESTED"]);
    assert!(!world.is_unschedulable(node));

    std::os::unix::fs::symlink("/bin/true", &program).unwrap();
    update(&agent);
    agent.wait_until("order", || agent.ordered() == "reboot\n").await;
}

#[tokio::test]
async fn a_canceled_operation_whose_drain_failed_gives_the_node_back_at_once() {
    let (world, node) = (world(), "op-failed");
    world.node(node);
    world.pod_with(node, "op-failed-0", labelled("op-failed"));
    world.budget("op-failed", 1, 1);
    let mut agent = Agent::prepare_whole(&world, node);
    (agent.config.drain_timeout_seconds, agent.config.drain_retry_seconds) = (3, 3600);
    agent.start();
    agent.wish("reboot");
    agent.wait_for_status(8, 2).await;
    let paused = "the drain failed 1 times and is asked for again in a while";
    agent.wait_until("pause", || agent.job("reboot")["Reason"] == paused).await;
    assert!(!agent.exists("run/zedagent/NodeDrainRequest/global.json"));
    assert_eq!(agent.status(), (8, 2), "it will be asked for again");
    assert!(world.is_unschedulable(node) && !agent.faults().is_empty());

    let no = NodeWish { kind: "reboot".to_owned(), canceled: true, ..NodeWish::default() };
    wishes::hand_over(&agent.config.persist_dir, no).unwrap();
    agent.wait_for_status(2, 1).await;
    agent.wait_until("end of our cordon", || !world.is_unschedulable(node)).await;
    agent.wait_until("end of the fault", || agent.faults().is_empty()).await;
    let shown = || agent.read("run/nodeagent/NodeAgentStatus/nodeagent.json");
    agent.wait_until("end of the wait", || shown()["WaitDrainInProgress"] == false).await;
    assert_eq!(agent.ordered(), "");
}

#[tokio::test]
async fn an_update_that_a_restart_cut_off_is_not_repeated() {
    let (world, node) = (world(), "op-cut");
    world.node(node);
    let mut agent = Agent::prepare_whole(&world, node);
    let runs = agent.dir.path().join("runs");
    let script = format!("echo run >>{}; exec sleep 600", runs.display());
    agent.config.update_command = ["sh", "-c", &script, "sh"].map(str::to_owned).into();
    let image = agent.dir.path().join("image");
    std::fs::write(&image, "image").unwrap();
    let wish = NodeWish {
        kind: "update".to_owned(),
        sha256: sum(&image),
        image: image.display().to_string(),
        ..NodeWish::default()
    };
    wishes::hand_over(&agent.config.persist_dir, wish).unwrap();
    agent.start();
    agent.wait_until("command", || runs.exists()).await;
    agent.kill();
    agent.start();
    agent.wait_until("failure", || agent.job("update")["Phase"] == "failed").await;
    let reason = agent.job("update")["Reason"].to_string();
    assert!(reason.contains("was cut off by a restart"), "{reason}");
    agent.wait_for_status(2, 1).await;
    agent.wait_until("end of our cordon", || !world.is_unschedulable(node)).await;
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    assert_eq!(agent.ordered(), "");
}

#[tokio::test]
async fn an_update_that_outlived_its_agent_is_ended_before_its_job_has_failed() {
    let (world, node) = (world(), "op-left");
    world.node(node);
    let mut agent = Agent::prepare_whole(&world, node);
    // As `kill -9` leaves it: the journal, and the command in a group of its own.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let now = jiff::Timestamp::now().to_string();
    let phase = json!({ "commanding": { "boot_id": boot.trim(), "since": now, "request": null } });
    agent.write(
        "persist/wharf/operations.json",
        &json!({
            "device_operation": null, "past": [],
            "update": { "id": "u1", "kind": "update", "phase": phase },
        }),
    );
    let mark = format!("{}:operations", agent.config.persist_dir.join("wharf").display());
    let mut command = Command::new("sleep");
    command.arg("600").env("WHARF_STARTED_FOR", mark).process_group(0);
    let mut command = command.spawn().unwrap();
    agent.start();
    agent.wait_until("failure", || agent.job("update")["Phase"] == "failed").await;
    let ended = command.try_wait().unwrap();
    assert_eq!(ended.and_then(|status| status.signal()), Some(9));
}
