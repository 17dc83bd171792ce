//! A cluster that was made by hand.

use serde_json::json;
use wharf_testbed::apiserver::ApiServer;

#[test]
fn a_cluster_that_was_made_by_hand_is_imported_and_watched() {
    let mut world = crate::world::World::empty();
    world.start("127.0.0.1:0", &[]);
    let api = ApiServer::start().unwrap();
    let file = world.path("by-hand.kubeconfig");
    std::fs::write(&file, api.kubeconfig()).unwrap();
    let file = file.display().to_string();
    let import = ["cluster", "import", "by-hand", "--kubeconfig", &file, "-o", "json"];
    let imported = world.local(&import).json();
    assert_eq!((&imported["status"], &imported["origin"]), (&json!("Running"), &json!("imported")));
    assert!(imported["version"].as_str().unwrap().starts_with("v1."), "{imported}");

    // Twice is refused, and so is one that does not answer; nothing is stored of either.
    world.local(&import).exits(4);
    drop(api);
    let dead = world.local(&["cluster", "import", "dead", "--kubeconfig", &file]);
    assert_ne!(dead.exit, 0, "{dead:?}");
    assert!(dead.stderr.contains("error: "), "{dead:?}");
    let list = world.local(&["cluster", "list", "-o", "json"]).json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");

    // Its nodes are not ours to change; forgetting it touches nothing.
    world.local(&["cluster", "delete", "by-hand", "--yes"]).ok();
    world.local(&["cluster", "show", "by-hand"]).exits(3);
}
