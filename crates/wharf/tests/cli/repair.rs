//! `wharf repair-queue` against a real server process.

use jiff::Timestamp;
use serde_json::json;
use wharf_core::cluster::{ClusterRecord, ClusterSpec, ClusterState, Origin};
use wharf_store::{Outcome, Store, StoreLocation, StoreOptions, Txn};
use wharf_testbed::process::Signal;

use super::world::{DEADLINE, World};

/// A server that knows clusters of these names, which have no API.
fn with_clusters(names: &[&str]) -> World {
    let mut world = World::empty();
    std::fs::create_dir_all(world.data_dir()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let location = StoreLocation::Embedded { data_dir: world.data_dir() };
        let store = Store::open(&StoreOptions { location }).await.unwrap();
        for name in names {
            let spec = ClusterSpec::new(name, "127.0.0.1:1".parse().unwrap(), "1.36.3");
            let now = Timestamp::now();
            let record = ClusterRecord::new(spec, ClusterState::Running, Origin::Imported, now);
            let made = store.commit(Txn::new().create(name, &record, now).unwrap()).await.unwrap();
            assert!(matches!(made, Outcome::Committed(_)));
        }
        store.close().await;
    });
    world.start("127.0.0.1:0", &[]);
    world
}

const CONFIG: &str = "\
repair_procedures:
- machine_types: [plain]
  repair_operations:
  - operation: fix
    health_check_command: [\"false\"]
    repair_steps:
    - repair_command: [\"true\"]
  - operation: hang
    health_check_command: [\"false\"]
    repair_steps:
    - {repair_command: [sh, -c, sleep 60, name], command_timeout_seconds: 0}
";

#[test]
fn a_queue_lives_from_its_configuration_to_its_last_entry() {
    let mut world = with_clusters(&["demo"]);
    let repair = |args: &[&str]| world.local(&[&["repair-queue"], args].concat());
    assert_eq!(repair(&["list", "-o", "json"]).ok().stdout, "[]\n");
    assert_eq!(repair(&["is-enabled"]).ok().stdout, "true\n");
    assert_eq!(repair(&["wait", "--timeout-seconds", "0"]).ok().stdout, "");
    // Nothing is configured yet.
    assert_ne!(repair(&["add", "fix", "plain", "10.0.0.1"]).exit, 0);
    std::fs::write(world.path("repair.yaml"), CONFIG).unwrap();
    assert_eq!(repair(&["config", "set", "-f", "repair.yaml"]).ok().stdout, "");
    let shown = repair(&["config", "show"]).ok().stdout;
    std::fs::write(world.path("shown.yaml"), &shown).unwrap();
    repair(&["config", "set", "-f", "shown.yaml"]).ok();
    assert_eq!(repair(&["config", "show"]).ok().stdout, shown, "it can be sent back");
    std::fs::write(world.path("bad.yaml"), "max_concurrent_repairs: 0\nnothing: 1\n").unwrap();
    let bad = repair(&["config", "set", "-f", "bad.yaml"]);
    assert!(
        bad.exit > 0 && bad.stderr.contains("nothing") && bad.stderr.contains("max_concurrent")
    );

    let added = world.local(&["repair", "add", "fix", "plain", "10.0.0.1", "S-1"]).ok();
    assert_eq!((added.stdout.as_str(), added.stderr.as_str()), ("", ""), "by its short name");
    repair(&["wait"]).ok();
    let list = repair(&["list", "-o", "json"]).json();
    assert_eq!(list.as_array().unwrap().len(), 1);
    let entry = &list[0];
    assert_eq!((&entry["index"], &entry["status"]), (&json!("0"), &json!("failed")), "{entry}");
    assert_eq!(entry["serial"], "S-1");
    let table = repair(&["list"]).ok().stdout;
    let head = "INDEX  ADDRESS   NODE  TYPE   OPERATION  STATUS  STEP        SINCE";
    assert!(table.starts_with(head), "{table}");
    assert!(table.contains("the machine is not healthy after all steps"), "{table}");

    repair(&["add", "hang", "plain", "10.0.0.2"]).ok();
    let waited = repair(&["wait", "--timeout-seconds", "1"]);
    assert!(waited.exit == 6 && waited.stderr.contains("1 entries are not finished"), "{waited:?}");
    repair(&["disable"]).ok();
    assert_eq!(repair(&["is-enabled"]).ok().stdout, "false\n");
    repair(&["enable"]).ok();
    repair(&["reset-backoff"]).ok();
    assert_eq!(repair(&["delete-finished"]).ok().stdout, "0\n");
    assert_eq!(repair(&["delete-unfinished"]).ok().stdout, "1\n");
    assert_eq!(repair(&["delete", "1"]).ok().stdout, "", "a second time is no error");
    for (args, exit) in [
        (&["delete", "7"][..], 3),
        (&["delete", "x"], 3),
        (&["add", "other", "plain", "10.0.0.1"], 1),
        (&["add", "fix", "plain", "host-1"], 1),
        (&["add", "fix"], 2),
        (&["wait", "--interval-seconds", "0"], 2),
        (&["list", "--cluster", "nobody"], 3),
    ] {
        let ran = repair(args);
        assert!(ran.exit == exit || (exit == 1 && ran.exit > 0), "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
    // In order, so that the command that hangs ends with it.
    let mut server = world.server.take().unwrap();
    server.signal(Signal::TERM).unwrap();
    server.wait(DEADLINE).unwrap();
}

#[test]
fn of_several_clusters_one_has_to_be_named() {
    let world = with_clusters(&["one", "two"]);
    world.local(&["repair-queue", "list"]).fails(2, "--cluster: one, two");
    assert_eq!(
        world.local(&["repair-queue", "list", "--cluster", "two", "-o", "json"]).ok().stdout,
        "[]\n"
    );
    let world = with_clusters(&[]);
    assert_eq!(world.local(&["repair-queue", "list"]).exit, 3);
}
