//! Applications on a real Kubernetes API, made, changed and taken away by the command line.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::{
    apiserver::World as Kubernetes,
    node::world,
    world::{Ran, World},
};

const UUID: &str = "55555555-4e5f-4071-8293-a4b5c6d7e8f9";
/// What somebody deleted is back after a minute; the machine may be busy.
const SOON: Duration = Duration::from_secs(300);

/// An application of these objects.
fn wish(objects: &[Value]) -> Value {
    let manifest: Vec<String> = objects.iter().map(Value::to_string).collect();
    json!({
        "name": "web",
        "config": { "UUIDandVersion": { "UUID": UUID }, "Activate": true },
        "manifest": manifest.join("\n---\n"),
    })
}

fn map(name: &str, word: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": format!("{{{{name}}}}-{name}") }, "data": { "word": word },
    })
}

/// `wharf app VERB demo … -f -`
fn send(world: &World, verb: &[&str], wish: &str) -> Ran {
    let dir = world.data_dir().display().to_string();
    world.run_with_input(&[&["app"], verb, &["-f", "-", "--data-dir", &dir]].concat(), wish)
}

fn wait_until_applied(world: &World) {
    let mut last = Value::Null;
    let applied = wait_for("the application to be applied", SOON, || {
        last = world.local(&["app", "list", "demo", "-o", "json"]).json();
        Ok((last[0]["status"] == "Applied").then_some(()))
    });
    applied.unwrap_or_else(|error| panic!("{error}: {last}"));
}

/// An object of the applications' namespace; null if there is none.
fn object(kubernetes: &Kubernetes, object: &str) -> Value {
    let get = ["get", "-n", "eve-kube-app", object, "--ignore-not-found", "-o", "json"];
    serde_json::from_str(&kubernetes.kubectl(&get, "")).unwrap_or_default()
}

fn word(kubernetes: &Kubernetes, name: &str) -> Value {
    object(kubernetes, &format!("configmap/{name}"))["data"]["word"].clone()
}

#[test]
fn an_application_is_changed_by_the_command_line() {
    let kubernetes = Kubernetes::start();
    let world = world(&kubernetes);
    let first = wish(&[map("one", "before"), map("two", "same")]).to_string();
    let made = send(&world, &["create", "demo"], &first).ok().stdout;
    assert_eq!(made, format!("web-55555 ({UUID})\n"));
    wait_until_applied(&world);
    assert_eq!(word(&kubernetes, "web-55555-one"), "before");

    let second = wish(&[map("one", "after")]).to_string();
    let changed = send(&world, &["update", "demo", "web", "-o", "json"], &second).json();
    assert_eq!((&changed["name"], &changed["uuid"]), (&json!("web"), &json!(UUID)), "{changed}");
    wait_until_applied(&world);
    assert_eq!(word(&kubernetes, "web-55555-one"), "after");
    assert_eq!(object(&kubernetes, "configmap/web-55555-two"), Value::Null);

    // What is shown of it can be sent back, by its UUID as well.
    let shown = world.local(&["app", "list", "demo", "-o", "json"]).json()[0].to_string();
    let again = send(&world, &["update", "demo", UUID], &shown).ok().stdout;
    assert_eq!(again, format!("web-55555 ({UUID})\n"));

    send(&world, &["update", "demo", "nobody"], &second).fails(3, "");
    send(&world, &["update", "nowhere", "web"], &second).fails(3, "");
    send(&world, &["update", "demo", "web"], "{").fails(1, "");
    let renamed = second.replace("\"web\"", "\"shop\"");
    let refused = send(&world, &["update", "demo", "web"], &renamed).exits(1);
    assert!(refused.stderr.contains("the name of an application cannot be changed"), "{refused:?}");
    world.local(&["app", "update", "demo", "web"]).exits(2);
    let audit = world.local(&["audit"]).ok().stdout;
    assert!(audit.contains("app.update"), "{audit}");
}

#[test]
fn objects_that_somebody_deleted_come_back_and_what_ends_by_itself_does_not() {
    let kubernetes = Kubernetes::start();
    let world = world(&kubernetes);
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "{{name}}" },
        "spec": { "template": { "spec": {
            "restartPolicy": "Never", "containers": [{ "name": "main", "image": "none" }],
        } } },
    });
    let wish = wish(&[map("lost", "same"), map("kept", "same"), job]).to_string();
    send(&world, &["create", "demo"], &wish).ok();
    wait_until_applied(&world);

    let change = ["patch", "-n", "eve-kube-app", "configmap/web-55555-kept", "--type=merge", "-p"];
    kubernetes.kubectl(&[&change[..], &[r#"{"data":{"word":"other"}}"#]].concat(), "");
    for gone in ["job/web-55555", "configmap/web-55555-lost"] {
        kubernetes.kubectl(&["delete", "-n", "eve-kube-app", gone], "");
        assert_eq!(object(&kubernetes, gone), Value::Null, "{gone}");
    }
    wait_for("the object to be back", SOON, || {
        Ok((word(&kubernetes, "web-55555-lost") == "same").then_some(()))
    })
    .unwrap();
    assert_eq!(object(&kubernetes, "job/web-55555"), Value::Null, "a Job may have been done");
    assert_eq!(word(&kubernetes, "web-55555-kept"), "other", "a change of somebody stays");
    wait_until_applied(&world);
}
