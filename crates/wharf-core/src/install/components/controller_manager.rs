//! The controller-manager of a controlplane node.

use crate::install::{
    credentials::path,
    document::{DocumentInput, Stage},
};

use super::{Component, Kind, Service, VOLUME_PLUGINS};

pub fn component(input: &DocumentInput<'_>) -> Component {
    Component {
        stage: Stage::Node,
        service: Service {
            name: "kube-controller-manager",
            description: "Kubernetes controller-manager",
            after: &["kube-apiserver"],
            kind: Kind::Exec,
            program: "kube-controller-manager",
            arguments: arguments(&input.spec.name),
            settings: Vec::new(),
        },
        directories: Vec::new(),
        files: Vec::new(),
        reloaded_files: Vec::new(),
        credentials: vec![
            path::CA,
            path::CA_KEY,
            path::SERVICE_ACCOUNT_KEY,
            path::FRONT_PROXY_CA,
            path::CONTROLLERS_KUBECONFIG,
        ],
        reloaded_credentials: Vec::new(),
    }
}

/// Nodes get their pod addresses from the server, which also tells the agents of them.
fn arguments(cluster: &str) -> Vec<String> {
    let kubeconfig = path::CONTROLLERS_KUBECONFIG;
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--client-ca-file={}", path::CA),
        format!("--requestheader-client-ca-file={}", path::FRONT_PROXY_CA),
        format!("--cluster-name={cluster}"),
        "--leader-elect=true".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        // Each controller asks for a token of its own at the start; with the usual 20 requests a
        // second the first Deployment waits for five.
        "--kube-api-qps=100".to_owned(),
        "--kube-api-burst=200".to_owned(),
        format!("--root-ca-file={}", path::CA),
        format!("--service-account-private-key-file={}", path::SERVICE_ACCOUNT_KEY),
        format!("--cluster-signing-cert-file={}", path::CA),
        format!("--cluster-signing-key-file={}", path::CA_KEY),
        "--allocate-node-cidrs=false".to_owned(),
        format!("--flex-volume-plugin-dir={VOLUME_PLUGINS}"),
        "--profiling=false".to_owned(),
    ]
}
