//! What agents tell of applications, before a real API server that knows the kinds of KubeVirt. There
//! are no kubelets and no controllers: pods, machines and claims are written by the test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use common::{Agent, SOON, create, kubectl, machine, put};
use serde_json::{Value, json};
use wharf_testbed::{apiserver::ApiServer, kinds::Project, wait_for};

const NAMESPACE: &str = "eve-kube-app";
const WEB: &str = "aaaaaaaa-9dad-11d1-80b4-00c04fd430c8";
const SHOP: &str = "bbbbbbbb-9dad-11d1-80b4-00c04fd430c8";
const DISK: &str = "cccccccc-9dad-11d1-80b4-00c04fd430c8";
/// The two minutes for which a silence changes nothing, and what a busy machine takes.
const LONG_SILENCE: Duration = Duration::from_secs(240);

fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    create(&server, &namespace);
    server
}

fn agent(server: &ApiServer, more: &str) -> Agent {
    let kubeconfig = server.kubeconfig_file();
    Agent::start(
        None,
        &format!("node_name = 'n1'\nkubeconfig = '{}'\n{more}", kubeconfig.display()),
    )
}

fn tell(agent: &Agent, id: &str, name: &str, designated: bool) {
    let app = json!({
        "UUIDandVersion": { "UUID": id, "Version": "1" }, "DisplayName": name, "Activate": true,
        "IsDesignatedNodeID": designated,
        "FixedResources": { "VirtualizationMode": 1, "EnableVnc": true, "VncDisplay": 3 },
    });
    agent.publish(&format!("zedagent/AppInstanceConfig/{id}.json"), &app);
}

/// A pod on a node, or not scheduled yet if that is empty.
fn pod(server: &ApiServer, name: &str, node: &str, machine: Option<&str>) {
    let owners: Vec<Value> = machine
        .map(|name| {
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name,
                "uid": "e6d9c9c3-0000-4000-8000-000000000000", "controller": true,
            })
        })
        .into_iter()
        .collect();
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "ownerReferences": owners },
        "spec": { "containers": [{ "name": "main", "image": "none" }] },
    });
    if !node.is_empty() {
        object["spec"]["nodeName"] = json!(node);
    }
    create(server, &object);
}

fn phase(server: &ApiServer, name: &str, status: &Value) {
    let patch = json!({ "status": status }).to_string();
    let patch = ["patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "-p", &patch];
    kubectl(server, &patch, &Value::Null);
}

fn running() -> Value {
    json!({ "phase": "Running", "startTime": "2026-01-02T03:04:05Z" })
}

fn status_file(id: &str) -> String {
    format!("zedkube/ENClusterAppStatus/{id}.json")
}

/// The status in short: its number, the domain's state and the flags that are set.
fn line(status: &Value) -> String {
    let flags = [
        ("IsDNidNode", "designated"),
        ("ScheduledOnThisNode", "here"),
        ("StatusRunning", "running"),
        ("AppIsVMI", "vmi"),
        ("EffectiveActivate", "active"),
    ];
    let set = flags.iter().filter(|(field, _)| status[*field] == json!(true));
    let set: String = set.map(|(_, word)| format!(" {word}")).collect();
    format!("{} {}{set}", status["AppKubeStatus"], status["DomainState"].as_str().unwrap_or("-"))
}

fn wait_for_line(agent: &Agent, id: &str, expected: &str, within: Duration) -> Value {
    let mut last = Value::Null;
    let came = wait_for("the status", within, || {
        last = agent.read(&status_file(id)).unwrap_or_default();
        Ok((line(&last) == expected).then_some(()))
    });
    assert!(came.is_ok(), "{last} instead of {expected}");
    last
}

fn wait_for_field(agent: &Agent, file: &str, field: &str, expected: &Value) -> Value {
    let mut last = Value::Null;
    let came = wait_for("the file", SOON, || {
        last = agent.read(file).unwrap_or_default();
        Ok((last[field] == *expected).then_some(()))
    });
    assert!(came.is_ok(), "{file}: {last} instead of {field}: {expected}");
    last
}

/// What tells one writing of a file from another.
fn written(agent: &Agent, id: &str) -> (u64, i64, i64) {
    let file = fs::metadata(agent.path(&status_file(id))).unwrap();
    (file.ino(), file.mtime(), file.mtime_nsec())
}

#[test]
fn every_application_is_told_of_wherever_it_is_and_only_when_something_changes() {
    let server = server();
    let mut agent = agent(&server, "");
    tell(&agent, WEB, "web", true);
    let status = wait_for_line(&agent, WEB, "2 Unknown designated active", SOON);
    assert_eq!(status["AppUUID"], json!(WEB));
    assert_eq!(status["AppKubeName"], json!("web-aaaaa"));
    assert_eq!(status["VNCPort"], json!(5903));
    assert_ne!(status["UnknownSince"], json!("0001-01-01T00:00:00Z"));

    // The designated node, from the pod's first day to its leaving.
    pod(&server, "web-aaaaa-1", "n1", None);
    wait_for_line(&agent, WEB, "3 Pending designated here active", SOON);
    phase(&server, "web-aaaaa-1", &running());
    let status = wait_for_line(&agent, WEB, "4 Running designated here running active", SOON);
    assert_eq!(status["UnknownSince"], json!("0001-01-01T00:00:00Z"));
    let before = written(&agent, WEB);

    // Another application, not meant for this node and scheduled elsewhere, then here.
    tell(&agent, SHOP, "shop", false);
    wait_for_line(&agent, SHOP, "2 Unknown", SOON);
    pod(&server, "shop-bbbbb-1", "n2", None);
    wait_for_line(&agent, SHOP, "3 Pending", SOON);
    phase(&server, "shop-bbbbb-1", &running());
    wait_for_line(&agent, SHOP, "4 Running running", SOON);
    let label = ["label", "pod", "web-aaaaa-1", "-n", NAMESPACE, "some=label"];
    kubectl(&server, &label, &Value::Null);
    // There is no kubelet that would end it: it stays, and is leaving.
    let delete = ["delete", "pod", "-n", NAMESPACE, "--wait=false"];
    kubectl(&server, &[&delete[..], &["shop-bbbbb-1"]].concat(), &Value::Null);
    wait_for_line(&agent, SHOP, "2 Unknown", SOON);
    pod(&server, "shop-bbbbb-2", "n1", None);
    phase(&server, "shop-bbbbb-2", &running());
    wait_for_line(&agent, SHOP, "4 Running here running active", SOON);
    assert_eq!(written(&agent, WEB), before, "nothing of this was about it");

    // The first one moves away.
    kubectl(&server, &[&delete[..], &["web-aaaaa-1"]].concat(), &Value::Null);
    wait_for_line(&agent, WEB, "2 Unknown designated active", SOON);
    pod(&server, "web-aaaaa-2", "n2", None);
    phase(&server, "web-aaaaa-2", &running());
    wait_for_line(&agent, WEB, "4 Running designated running", SOON);

    // An agent that is started again finds what it said, and says nothing new.
    let before = [written(&agent, WEB), written(&agent, SHOP)];
    agent.restart();
    wait_for("it to work", SOON, || Ok(agent.works("apps").then_some(()))).unwrap();
    pod(&server, "shop-bbbbb-3", "n3", None);
    tell(&agent, DISK, "disk", false);
    wait_for_line(&agent, DISK, "2 Unknown", SOON);
    assert_eq!([written(&agent, WEB), written(&agent, SHOP)], before);

    // A configuration that breaks takes nothing back; one that goes takes its status with it.
    put(&agent.path(&format!("zedagent/AppInstanceConfig/{WEB}.json")), b"{");
    agent.unpublish(&format!("zedagent/AppInstanceConfig/{SHOP}.json"));
    let gone = || !agent.path(&status_file(SHOP)).exists();
    wait_for("its status to go", SOON, || Ok(gone().then_some(()))).unwrap();
    assert_eq!(written(&agent, WEB), before[0]);
}

#[test]
fn a_machine_is_known_by_its_launcher_and_moves_with_its_node() {
    let server = server();
    server.define(Project::KubeVirt).unwrap();
    let agent = agent(&server, "");
    tell(&agent, WEB, "web", false);
    wait_for_line(&agent, WEB, "2 Unknown", SOON);
    let set = |phase: &str, node: &str| {
        let machine =
            machine(NAMESPACE, "web-aaaaaq7", &json!({ "phase": phase, "nodeName": node }));
        kubectl(&server, &["apply", "-f", "-"], &machine);
    };
    set("Scheduling", "");
    let status = wait_for_line(&agent, WEB, "3 Scheduling vmi", SOON);
    assert_eq!(status["VMIName"], json!("web-aaaaaq7"));
    pod(&server, "virt-launcher-web-aaaaaq7-1", "n1", Some("web-aaaaaq7"));
    phase(&server, "virt-launcher-web-aaaaaq7-1", &running());
    set("Running", "n1");
    wait_for_line(&agent, WEB, "4 Running here running vmi active", SOON);

    // It moves: two pods run for it, and it is in the first until the end.
    pod(&server, "virt-launcher-web-aaaaaq7-2", "n2", Some("web-aaaaaq7"));
    phase(&server, "virt-launcher-web-aaaaaq7-2", &running());
    set("Running", "n2");
    wait_for_line(&agent, WEB, "4 Running running vmi", SOON);
    set("Running", "n1");
    wait_for_line(&agent, WEB, "4 Running here running vmi active", SOON);
}

#[test]
fn a_silence_is_unknown_then_halting_then_its_own_value_and_over_with_the_first_answer() {
    let mut server = server();
    let mut agent = agent(&server, "unknown_to_halting_seconds = 15");
    tell(&agent, WEB, "web", false);
    pod(&server, "web-aaaaa-1", "n1", None);
    phase(&server, "web-aaaaa-1", &running());
    wait_for_line(&agent, WEB, "4 Running here running active", SOON);

    server.process().kill().unwrap();
    let unknown = wait_for_line(&agent, WEB, "4 Unknown here running active", SOON);
    let since = unknown["UnknownSince"].as_str().unwrap().to_owned();
    wait_for("the fault", SOON, || Ok(agent.fault("pods of applications"))).unwrap();
    agent.restart();
    let halting = wait_for_line(&agent, WEB, "4 Halting here running active", SOON);
    assert_eq!(halting["UnknownSince"], json!(since), "an agent's restart does not count anew");
    let silent = wait_for_line(&agent, WEB, "1 Halting", LONG_SILENCE);
    assert_eq!(silent["UnknownSince"], json!(since));
    let before = written(&agent, WEB);
    agent.restart();
    wait_for("it to work", SOON, || Ok(agent.works("apps").then_some(()))).unwrap();
    assert_eq!(written(&agent, WEB), before, "a silence that is known is no news");

    server.restart().unwrap();
    let back = wait_for_line(&agent, WEB, "4 Running here running active", SOON);
    assert_eq!(back["UnknownSince"], json!("0001-01-01T00:00:00Z"));
    wait_for("no fault", SOON, || Ok(agent.works("pods").then_some(()))).unwrap();
}

#[test]
fn who_plays_other_agents_tells_of_domains_and_volumes_in_their_names() {
    let server = server();
    let roles = "publish_as = ['zedmanager', 'domainmgr', 'volumemgr']\n\
                 unknown_to_halting_seconds = 5";
    let agent = agent(&server, roles);
    tell(&agent, WEB, "web", true);
    let volume = json!({ "VolumeID": DISK, "GenerationCounter": 1, "DisplayName": "disk" });
    agent.publish(&format!("zedagent/VolumeConfig/{DISK}#1.json"), &volume);
    let domain_file = format!("domainmgr/DomainStatus/{WEB}.json");
    let app_file = format!("zedmanager/AppInstanceStatus/{WEB}.json");
    let volume_file = format!("volumemgr/VolumeStatus/{DISK}#1.json");

    // It is nowhere, and after a while that is too long.
    wait_for_field(&agent, &volume_file, "State", &json!(100));
    wait_for_field(&agent, &domain_file, "State", &json!(121));
    let halting = wait_for_field(&agent, &domain_file, "State", &json!(118));
    let error = halting["Error"].as_str().unwrap();
    assert!(error.starts_with("nobody has known how it is since "), "{error}");
    assert_ne!(halting["ErrorTime"], json!("0001-01-01T00:00:00Z"));
    let app = agent.read(&app_file).unwrap();
    assert_eq!((&app["State"], &app["ActivateInprogress"]), (&json!(118), &json!(true)));

    // Its claim is made and bound, its pod pulls an image in vain and then runs.
    create(
        &server,
        &json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": format!("{DISK}-pvc-1"), "namespace": NAMESPACE },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            },
        }),
    );
    wait_for_field(&agent, &volume_file, "State", &json!(109));
    let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } } });
    let name = format!("{DISK}-pvc-1");
    let bound = bound.to_string();
    let patch = ["patch", "pvc", &name, "-n", NAMESPACE, "--subresource=status", "-p", &bound];
    kubectl(&server, &patch, &Value::Null);
    let volume = wait_for_field(&agent, &volume_file, "State", &json!(110));
    assert_eq!((&volume["TotalSize"], &volume["FileLocation"]), (&json!(2u64 << 30), &json!(name)));

    pod(&server, "web-aaaaa-1", "n1", None);
    let waiting = json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "main", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "10s" } },
        }],
    });
    phase(&server, "web-aaaaa-1", &waiting);
    let trouble = json!("container main: ImagePullBackOff");
    let domain = wait_for_field(&agent, &domain_file, "Error", &trouble);
    assert_eq!((&domain["State"], &domain["Activated"]), (&json!(122), &json!(false)));
    // A pod whose container crashes over and over counts as running.
    let mut crashing = waiting.clone();
    crashing["phase"] = json!("Running");
    crashing["containerStatuses"][0]["state"]["waiting"]["reason"] = json!("CrashLoopBackOff");
    phase(&server, "web-aaaaa-1", &crashing);
    let trouble = json!("container main: CrashLoopBackOff");
    for file in [&domain_file, &app_file] {
        let told = wait_for_field(&agent, file, "Error", &trouble);
        assert_eq!(told["State"], json!(115), "{told}");
    }
    let mut well = running();
    well["containerStatuses"] = waiting["containerStatuses"].clone();
    well["containerStatuses"][0]["state"] = json!({ "running": {} });
    phase(&server, "web-aaaaa-1", &well);
    let domain = wait_for_field(&agent, &domain_file, "Error", &json!(""));
    let expected = [
        ("State", json!(115)),
        ("Activated", json!(true)),
        ("DomainName", json!("web-aaaaa-1")),
        ("NodeName", json!("n1")),
        ("BootTime", json!("2026-01-02T03:04:05Z")),
        ("ErrorTime", json!("0001-01-01T00:00:00Z")),
    ];
    for (field, value) in expected {
        assert_eq!(domain[field], value, "{field}");
    }
    let app = wait_for_field(&agent, &app_file, "Activated", &json!(true));
    assert_eq!(app["NoUploadStatsToController"], json!(false));
    // There is no kubelet to be asked what it uses.
    wait_for("the fault", SOON, || Ok(agent.fault("the kubelet's figures"))).unwrap();

    agent.unpublish(&format!("zedagent/AppInstanceConfig/{WEB}.json"));
    agent.unpublish(&format!("zedagent/VolumeConfig/{DISK}#1.json"));
    for file in [&domain_file, &app_file, &volume_file] {
        let gone = || !agent.path(file).exists();
        wait_for("the file to go", SOON, || Ok(gone().then_some(()))).unwrap();
    }
    wait_for("no fault", SOON, || Ok(agent.works("app-usage").then_some(()))).unwrap();
}
