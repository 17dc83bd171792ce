//! Ports and consoles of applications, by real agents before a real API server that knows the kinds of
//! Multus and KubeVirt. The test of ports needs root, for an interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{fs, path::Path, process::Command};

use common::{Agent, SOON, create, kubectl, machine};
use serde_json::{Value, json};
use wharf_testbed::{apiserver::ApiServer, kinds::Project, wait_for};

const NAMESPACE: &str = "eve-kube-app";
const A: &str = "aaaaaaaa-9dad-11d1-80b4-00c04fd430c8";
const B: &str = "bbbbbbbb-9dad-11d1-80b4-00c04fd430c8";

fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    for project in [Project::Multus, Project::KubeVirt] {
        server.define(project).unwrap();
    }
    create(
        &server,
        &json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        }),
    );
    server
}

fn agent(server: &ApiServer, node: &str, more: &str) -> Agent {
    let kubeconfig = server.kubeconfig_file();
    let kubeconfig = kubeconfig.display();
    Agent::start(None, &format!("node_name = '{node}'\nkubeconfig = '{kubeconfig}'\n{more}"))
}

fn app_file(id: &str) -> String {
    format!("zedagent/AppInstanceConfig/{id}.json")
}

/// An interface of this machine that is down; gone with the value.
struct Port(String);

impl Port {
    fn new() -> Self {
        let name = format!("wp{}", std::process::id());
        ip(&["link", "add", &name, "type", "bridge"]);
        Self(name)
    }

    fn is_up(&self) -> bool {
        ip(&["-j", "link", "show", &self.0]).contains("\"UP\"")
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_port_is_defined_for_all_who_use_it_and_its_definition_goes_with_the_last_of_them() {
    let server = server();
    let port = Port::new();
    for name in ["n1", "n2"] {
        create(
            &server,
            &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }),
        );
    }
    let (first, second) = (agent(&server, "n1", ""), agent(&server, "n2", ""));
    let native = |mode: u8| {
        json!({
            "DisplayName": "web", "FixedResources": { "VirtualizationMode": mode },
            "IoAdapterList": [{ "Type": 1, "Name": port.0 }, { "Type": 2, "Name": "usb1" }],
        })
    };
    let definitions = || -> Vec<Value> {
        let list = kubectl(
            &server,
            &["get", "-o", "json", "-n", NAMESPACE, "network-attachment-definitions"],
            &Value::Null,
        );
        let list: Value = serde_json::from_str(&list).unwrap();
        list["items"].as_array().unwrap().clone()
    };
    let users = || -> Option<String> {
        let all = definitions();
        assert!(all.len() < 2, "{all:?}");
        Some(all.first()?["metadata"]["annotations"]["wharf.dev/used-by"].as_str()?.to_owned())
    };
    let expect = |expected: Option<String>| {
        let mut last = None;
        let came = wait_for("the users", SOON, || {
            last = users();
            Ok((last == expected).then_some(()))
        });
        assert!(came.is_ok(), "{last:?} instead of {expected:?}");
    };
    // A virtual machine gets its ports from the hypervisor.
    first.publish(&app_file(B), &native(1));
    first.publish(&app_file(A), &native(4));
    expect(Some(format!("n1/{A}")));
    wait_for("the link", SOON, || Ok(port.is_up().then_some(()))).unwrap();
    let definition = &definitions()[0];
    assert_eq!(definition["metadata"]["name"], json!(format!("host-{}", port.0)));
    let config: Value =
        serde_json::from_str(definition["spec"]["config"].as_str().unwrap()).unwrap();
    assert_eq!(
        config,
        json!({
            "cniVersion": "0.3.1", "plugins": [{ "type": "host-device", "device": port.0 }],
        })
    );

    second.publish(&app_file(B), &native(4));
    expect(Some(format!("n1/{A},n2/{B}")));
    first.unpublish(&app_file(A));
    expect(Some(format!("n2/{B}")));
    // A node that left the cluster cannot say that it uses the port no more.
    let definition = format!("network-attachment-definitions/host-{}", port.0);
    let users = format!("wharf.dev/used-by=n2/{B},n3/{A}");
    let annotate = ["annotate", "--overwrite", "-n", NAMESPACE, &definition, &users];
    kubectl(&server, &annotate, &Value::Null);
    second.unpublish(&app_file(B));
    expect(None);
    for agent in [&first, &second] {
        // Who was slower than the other has tried again.
        wait_for("no fault", SOON, || Ok(agent.works("passthrough").then_some(()))).unwrap();
    }
}

/// The programs that served, as they wrote themselves down: process, machine and port.
fn served(log: &Path) -> Vec<(u32, String)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = |line: &str| {
        let (process, what) = line.split_once(' ').unwrap();
        (process.parse().unwrap(), what.to_owned())
    };
    text.lines().map(line).collect()
}

/// Who is dead need not be buried.
fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_console_is_served_as_long_as_it_is_wanted_and_its_program_is_watched_over() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let log_file = log.display();
    let script =
        format!("echo $$ {{vmi}} {{port}} >> {log_file}; echo no screen >&2; exec sleep 1000");
    let mut agent = agent(&server, "n1", &format!("console_command = ['sh', '-c', '{script}']"));
    let file = agent.path("zedkube/vmiVNC.run");
    let text = || fs::read_to_string(&file).ok();
    let app = |name: &str, display: u32, wanted: bool| {
        json!({
            "DisplayName": name, "RemoteConsole": wanted,
            "FixedResources": { "VncDisplay": display },
        })
    };
    // Wanted from the beginning, before there is a machine.
    agent.publish(&app_file(A), &app("web", 1, true));
    let fault = wait_for("the wait", SOON, || Ok(agent.fault(A))).unwrap();
    assert_eq!(fault, "there is no virtual machine of this application");
    assert_eq!(text(), None);
    for name in ["web-aaaaax7", "shop-bbbbbq2"] {
        create(&server, &machine(NAMESPACE, name, &json!({})));
    }
    wait_for("the file", SOON, || Ok(text())).unwrap();
    assert_eq!(text().unwrap(), "VMINAME:web-aaaaax7\nVNCPORT:5901\n");
    let first = wait_for("the program", SOON, || Ok(served(&log).pop())).unwrap();
    assert_eq!(first.1, "web-aaaaax7 5901");

    // It ends by itself and is started again.
    let _ = Command::new("kill").arg(first.0.to_string()).output().unwrap();
    let fault = wait_for("the fault", SOON, || Ok(agent.fault("the console's program"))).unwrap();
    assert!(fault.ends_with(": no screen; it is started again"), "{fault}");
    let again = wait_for("the next program", SOON, || Ok(served(&log).get(1).cloned())).unwrap();
    assert!(!lives(first.0) && lives(again.0));
    wait_for("no fault", SOON, || Ok(agent.works("console").then_some(()))).unwrap();

    // One at a time: the second waits, and follows the first.
    agent.publish(&app_file(B), &app("shop", 2, true));
    let fault = wait_for("the wait", SOON, || Ok(agent.fault(B))).unwrap();
    assert_eq!(fault, format!("the console is in use for application {A}"));
    agent.publish(&app_file(A), &app("web", 1, false));
    let other = "VMINAME:shop-bbbbbq2\nVNCPORT:5902\n";
    wait_for("the other console", SOON, || {
        Ok((text().as_deref() == Some(other) && served(&log).len() == 3).then_some(()))
    })
    .unwrap();
    wait_for("the first program to end", SOON, || Ok((!lives(again.0)).then_some(()))).unwrap();

    // Killed, the agent leaves the program. The next one ends it before it starts its own.
    let left = served(&log)[2].0;
    agent.restart();
    let last = wait_for("the program of the next agent", SOON, || Ok(served(&log).get(3).cloned()));
    let (last, what) = last.unwrap();
    assert_eq!(what, "shop-bbbbbq2 5902");
    assert!(!lives(left) && lives(last));

    // Stopped, the agent ends the program and leaves the file to the next one.
    agent.process().signal(wharf_testbed::process::Signal::TERM).unwrap();
    agent.process().wait(SOON).unwrap();
    assert!(!lives(last));
    assert!(text().is_some());
}
