//! The kinds of other projects: a real API server checks objects as their projects wish it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::Write,
    process::{Command, Stdio},
};

use wharf_testbed::{apiserver::ApiServer, kinds::Project};

/// What kubectl says against an object; nothing when it was created.
fn refusal(server: &ApiServer, object: &str) -> Option<String> {
    let mut child = Command::new(wharf_bundle::cache::find("kubectl").unwrap())
        .arg("--kubeconfig")
        .arg(server.kubeconfig_file())
        .args(["create", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(object.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
}

#[test]
fn objects_of_other_projects_are_taken_and_refused_as_their_schemas_say() {
    let server = ApiServer::start().unwrap();
    for project in [Project::KubeVirt, Project::Longhorn, Project::Multus] {
        server.define(project).unwrap();
    }
    let machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\n";
    let network =
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\n";
    let replica = "apiVersion: longhorn.io/v1beta2\nkind: Replica\nmetadata: {name: a}\n";
    let rows = [
        (machine, "status: {phase: Running}", Some("spec: Required value")),
        (machine, "spec: {domain: {devices: {}}}\nstatus: {phase: [x]}", Some("status.phase")),
        (machine, "spec: {domain: {devices: {}}, disk: 1}", Some("unknown field \"spec.disk\"")),
        (machine, "spec: {domain: {devices: {}}}\nstatus: {phase: Running}", None),
        (network, "spec: {config: {}}", Some("spec.config")),
        (network, "spec: {config: '{}'}", None),
        (replica, "spec: {dataEngine: v3}", Some("spec.dataEngine")),
        (replica, "spec: {nodeId: n1}", Some("unknown field \"spec.nodeId\"")),
        (replica, "spec: {dataEngine: v1, nodeID: n1}", None),
    ];
    for (head, rest, expected) in rows {
        let said = refusal(&server, &format!("{head}{rest}\n"));
        match expected {
            Some(part) => {
                assert!(said.as_ref().is_some_and(|said| said.contains(part)), "{rest}: {said:?}");
            }
            None => assert_eq!(said, None, "{rest}"),
        }
    }
}
