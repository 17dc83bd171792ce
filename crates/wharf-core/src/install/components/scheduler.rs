//! The scheduler of a controlplane node.

use crate::install::{
    credentials::path,
    document::{DocumentInput, Stage},
};

use super::{Component, Kind, Service};

pub fn component(_: &DocumentInput<'_>) -> Component {
    let kubeconfig = path::SCHEDULER_KUBECONFIG;
    Component {
        stage: Stage::Node,
        service: Service {
            name: "kube-scheduler",
            description: "Kubernetes scheduler",
            after: &["kube-apiserver"],
            kind: Kind::Exec,
            program: "kube-scheduler",
            arguments: vec![
                format!("--kubeconfig={kubeconfig}"),
                format!("--authentication-kubeconfig={kubeconfig}"),
                format!("--authorization-kubeconfig={kubeconfig}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--leader-elect=true".to_owned(),
                "--profiling=false".to_owned(),
            ],
            settings: Vec::new(),
        },
        directories: Vec::new(),
        files: Vec::new(),
        reloaded_files: Vec::new(),
        credentials: vec![path::SCHEDULER_KUBECONFIG],
        reloaded_credentials: Vec::new(),
    }
}
