//! Repairs of machines outside of any cluster, with real commands.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/yard.rs"]
mod yard;

use std::time::{Duration, Instant};

use common::{TestServer, eventually};
use serde_json::{Value, json};
use yard::{LOG, REPAIRS, Yard, config, reasons, script, step};

#[tokio::test]
async fn steps_are_tried_in_order_until_the_machine_is_healthy() {
    let yard = Yard::new(|dir| {
        let heal = format!("{LOG}; echo true > healthy-$1; echo out; echo err >&2");
        let steps =
            [step(dir, LOG, &json!({})), step(dir, &heal, &json!({})), step(dir, LOG, &json!({}))];
        config(dir, &steps, &json!({ "success_command": script(dir, LOG) }))
    })
    .await;
    yard.add("10.0.0.1").await;
    let entry = yard.ended(0).await;
    assert_eq!((&entry["status"], &entry["step"]), (&json!("succeeded"), &json!(1)), "{entry}");
    assert_eq!(entry["reason"], "the machine is healthy");
    assert_eq!(yard.read("log-10.0.0.1"), "repair 0 1\nrepair 1 1\nsuccess 1 1\n");
    assert_eq!((&entry["nodename"], &entry["last_exit_code"]), (&json!(""), &json!(0)));
    assert_eq!(
        reasons(&entry),
        [
            "added",
            "the command of step 0 runs, attempt 1 of 1",
            "the command has succeeded; the machine is watched",
            "the machine is not healthy after step 0",
            "the command of step 1 runs, attempt 1 of 1",
            "the command has succeeded; the machine is watched",
            "the machine is healthy; the success command runs",
            "the machine is healthy",
        ],
        "{entry}"
    );
}

#[tokio::test]
async fn a_machine_that_is_healthy_already_is_not_touched() {
    let yard = Yard::new(|dir| config(dir, &[step(dir, LOG, &json!({}))], &json!({}))).await;
    yard.write("healthy-10.0.0.1", "true\n");
    yard.add("10.0.0.1").await;
    assert_eq!(yard.ended(0).await["status"], "succeeded");
    assert_eq!(yard.read("log-10.0.0.1"), "");
}

#[tokio::test]
async fn after_the_last_step_the_entry_has_failed_and_the_failure_command_has_run() {
    let yard = Yard::new(|dir| {
        let steps = [step(dir, LOG, &json!({})), step(dir, LOG, &json!({}))];
        config(dir, &steps, &json!({ "failure_command": script(dir, LOG) }))
    })
    .await;
    yard.add("10.0.0.1").await;
    let entry = yard.ended(0).await;
    assert_eq!((&entry["status"], &entry["step"]), (&json!("failed"), &json!(1)));
    assert_eq!(entry["reason"], "the machine is not healthy after all steps");
    assert_eq!(yard.read("log-10.0.0.1"), "repair 0 1\nrepair 1 1\nfailure 1 1\n");
}

#[tokio::test]
async fn a_command_that_fails_is_tried_again_and_then_ends_the_repair() {
    let yard = Yard::new(|dir| {
        let bad = format!("{LOG}; echo said; echo broken >&2; exit 7");
        let steps = [step(dir, &bad, &json!({"command_retries": 2})), step(dir, LOG, &json!({}))];
        config(dir, &steps, &json!({}))
    })
    .await;
    yard.add("10.0.0.1").await;
    let entry = yard.ended(0).await;
    assert_eq!(entry["reason"], "the command of step 0 exited with 7");
    assert_eq!((&entry["status"], &entry["last_exit_code"]), (&json!("failed"), &json!(7)));
    assert_eq!(
        (&entry["stdout_tail"], &entry["stderr_tail"]),
        (&json!("said\n"), &json!("broken\n"))
    );
    assert_eq!(yard.read("log-10.0.0.1"), "repair 0 1\nrepair 0 2\nrepair 0 3\n");
}

#[tokio::test]
async fn commands_that_hang_or_are_not_there_end_with_a_reason_and_hold_nothing_up() {
    let yard = Yard::new(|dir| {
        let slow = json!({"command_timeout_seconds": 1, "on_failure": "continue"});
        let hang = step(dir, "sleep 600", &slow);
        let mut missing = step(dir, "", &json!({"on_failure": "stop"}));
        missing["repair_command"] = json!(["/nowhere/at-all"]);
        config(dir, &[hang, missing], &json!({}))
    })
    .await;
    yard.add("10.0.0.1").await;
    let entry = yard.ended(0).await;
    let text = "the command of step 1 could not be started: /nowhere/at-all: No such file";
    assert!(entry["reason"].as_str().unwrap().starts_with(text), "{entry}");
    let history = entry["history"].to_string();
    assert!(history.contains("the command of step 0 did not end in time; the machine is watched"));
    assert_eq!(entry["last_exit_code"], Value::Null);
}

#[tokio::test]
async fn a_machine_may_recover_while_it_is_watched() {
    let yard = Yard::new(|dir| {
        // It recovers a while after the command has ended.
        let late =
            format!("{LOG}; setsid sh -c 'sleep 2; echo true > healthy-'$1 >/dev/null 2>&1 &");
        let steps = [step(dir, &late, &json!({"watch_seconds": 50})), step(dir, LOG, &json!({}))];
        config(dir, &steps, &json!({}))
    })
    .await;
    yard.add("10.0.0.1").await;
    let entry = yard.ended(0).await;
    assert_eq!((&entry["status"], &entry["step"]), (&json!("succeeded"), &json!(0)), "{entry}");
    assert_eq!(yard.read("log-10.0.0.1"), "repair 0 1\n");
}

#[tokio::test]
async fn a_success_command_that_fails_is_a_failed_repair() {
    let yard = Yard::new(|dir| {
        config(dir, &[step(dir, LOG, &json!({}))], &json!({ "success_command": ["false"] }))
    })
    .await;
    yard.write("healthy-10.0.0.1", "true");
    yard.add("10.0.0.1").await;
    let entry = yard.ended(0).await;
    assert_eq!(entry["reason"], "the success command exited with 1");
    assert_eq!(entry["status"], "failed");
}

#[tokio::test]
async fn an_added_entry_starts_at_once_and_long_commands_delay_no_others() {
    let yard = Yard::new(|dir| {
        let wait = format!("{LOG}; until [ -e go-$1 ]; do sleep 0.1; done; echo true > healthy-$1");
        config(dir, &[step(dir, &wait, &json!({"command_timeout_seconds": 0}))], &json!({}))
    })
    .await;
    let begun = Instant::now();
    yard.add("10.0.0.1").await;
    eventually(async || !yard.read("log-10.0.0.1").is_empty()).await;
    println!("an added entry started after {:?}", begun.elapsed());
    for address in ["10.0.0.2", "10.0.0.3", "10.0.0.1"] {
        yard.add(address).await;
    }
    yard.write("go-10.0.0.2", "");
    assert_eq!(yard.ended(1).await["status"], "succeeded", "beside the first");
    eventually(async || !yard.read("log-10.0.0.3").is_empty()).await;
    assert_eq!(yard.entry(0).await["status"], "processing");
    assert_eq!(yard.entry(0).await["wait"], "the command runs");
    let second = yard.entry(3).await;
    assert_eq!(second["wait"], "entry 0 for the same machine comes first");
    yard.add("10.0.0.4").await;
    eventually(async || {
        yard.entry(4).await["wait"] == "as many machines are out of service as may be (2)"
    })
    .await;
    for address in ["10.0.0.1", "10.0.0.3", "10.0.0.4"] {
        yard.write(&format!("go-{address}"), "");
    }
    for index in [0, 2, 3, 4] {
        assert_eq!(yard.ended(index).await["status"], "succeeded");
    }
}

#[tokio::test]
async fn a_disabled_queue_begins_nothing_but_still_looks_and_removes() {
    let yard = Yard::new(|dir| config(dir, &[step(dir, LOG, &json!({}))], &json!({}))).await;
    yard.act("disable").await;
    for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        yard.add(address).await;
    }
    yard.write("healthy-10.0.0.2", "true");
    eventually(async || yard.entry(0).await["wait"] == "the repair queue is disabled").await;
    let path = format!("{REPAIRS}/2");
    assert_eq!(yard.server.delete(&path, &yard.server.admin).await.status(), 204);
    eventually(async || yard.entries().await.len() == 2).await;
    yard.act("enable").await;
    assert_eq!(yard.ended(0).await["status"], "failed");
    assert_eq!(yard.ended(1).await["status"], "succeeded");
    assert_eq!(
        (yard.read("log-10.0.0.2"), yard.read("log-10.0.0.3")),
        (String::new(), String::new())
    );
}

#[tokio::test]
async fn an_entry_that_is_deleted_goes_when_its_command_has_ended() {
    let yard = Yard::new(|dir| {
        let wait = format!("{LOG}; until [ -e go ]; do sleep 0.1; done; {LOG}");
        config(dir, &[step(dir, &wait, &json!({"command_timeout_seconds": 0}))], &json!({}))
    })
    .await;
    yard.add("10.0.0.1").await;
    eventually(async || !yard.read("log-10.0.0.1").is_empty()).await;
    let path = format!("{REPAIRS}/0");
    assert_eq!(yard.server.delete(&path, &yard.server.admin).await.status(), 204);
    let entry = yard.entry(0).await;
    assert_eq!((&entry["deleted"], &entry["status"]), (&json!(true), &json!("processing")));
    yard.write("go", "");
    eventually(async || yard.entries().await.is_empty()).await;
    assert_eq!(yard.read("log-10.0.0.1"), "repair 0 1\nrepair 0 1\n", "it was not cut off");
    yard.act("deleteFinished").await;
    yard.add("10.0.0.2").await;
    assert_eq!(yard.entry(0).await["index"], "1", "an index is given once");
}

#[tokio::test]
async fn an_entry_whose_procedure_disappears_fails_with_a_reason() {
    let yard = Yard::new(|dir| config(dir, &[step(dir, LOG, &json!({}))], &json!({}))).await;
    yard.act("disable").await;
    yard.add("10.0.0.1").await;
    yard.configure(&json!({})).await;
    let entry = yard.ended(0).await;
    assert_eq!(entry["reason"], "the configuration has no operation fix for machine type plain");
}

#[tokio::test]
async fn the_server_tells_of_queues_and_repairs_and_forgets_them_with_their_cluster() {
    let yard = Yard::new(|dir| {
        config(dir, &[step(dir, "echo true > healthy-$1", &json!({}))], &json!({}))
    })
    .await;
    yard.add("10.0.0.1").await;
    yard.ended(0).await;
    yard.act("disable").await;
    let metrics = async || {
        let url = format!("{}/metrics", yard.server.base);
        yard.server.http.get(url).send().await.unwrap().text().await.unwrap()
    };
    let has = async |line: &str| metrics().await.lines().any(|known| known.starts_with(line));
    for line in [
        r#"wharf_repair_queue_enabled{cluster="demo"} 0"#,
        r#"wharf_repair_queue_items{cluster="demo",status="succeeded"} 1"#,
        r#"wharf_repair_queue_items{cluster="demo",status="queued"} 0"#,
        r#"wharf_machine_repair_status{cluster="demo",address="10.0.0.1",status="succeeded"} 1"#,
        r#"wharf_machine_repair_status{cluster="demo",address="10.0.0.1",status="failed"} 0"#,
        r#"wharf_repair_seconds_count{what="command",outcome="succeeded"} 1"#,
    ] {
        eventually(async || has(line).await).await;
    }
    let gone = yard.server.delete("/clusters/demo?mode=forget", &yard.server.admin).await;
    assert_eq!(gone.status(), 202);
    eventually(async || !metrics().await.contains(r#"cluster="demo""#)).await;
}

#[tokio::test]
async fn a_server_that_stops_kills_its_commands_and_does_not_repeat_them() {
    let mut yard = Yard::new(|dir| {
        let wait = format!("{LOG}; echo $$ > pid-$1; exec sleep 600");
        let step = step(dir, &wait, &json!({"command_timeout_seconds": 0}));
        config(dir, &[step], &json!({}))
    })
    .await;
    yard.add("10.0.0.1").await;
    eventually(async || !yard.read("pid-10.0.0.1").is_empty()).await;
    yard.server.stop().await;
    let process = format!("/proc/{}", yard.read("pid-10.0.0.1").trim());
    eventually(async || !std::path::Path::new(&process).exists()).await;
    let config = common::config(yard.server.dir.path());
    let dir = std::mem::replace(&mut yard.server.dir, tempfile::tempdir().unwrap());
    yard.server = TestServer::start_in(dir, config).await;
    let entry = yard.ended(0).await;
    assert_eq!(
        (&entry["status"], yard.read("log-10.0.0.1").as_str()),
        (&json!("failed"), "repair 0 1\n")
    );
    let history = entry["history"].to_string();
    assert!(history.contains("the server stopped while the command ran; it is not repeated"));
}

#[tokio::test]
async fn a_long_queue_is_worked_off_with_many_repairs_at_once() {
    let yard = Yard::new(|dir| {
        let step = step(dir, "echo true > healthy-$1", &json!({}));
        let mut config = yard::config(dir, &[step], &json!({}));
        config["max_concurrent_repairs"] = json!(20);
        config
    })
    .await;
    yard.act("disable").await;
    for number in 0..100 {
        yard.add(&format!("10.0.1.{number}")).await;
    }
    yard.act("enable").await;
    eventually(async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        yard.entries().await.iter().all(|entry| entry["status"] == "succeeded")
    })
    .await;
    yard.act("deleteFinished").await;
    eventually(async || yard.entries().await.is_empty()).await;
}
