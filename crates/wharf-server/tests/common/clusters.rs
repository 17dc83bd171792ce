//! Clusters that exist on paper only.

#![allow(dead_code)]

use jiff::Timestamp;
use serde_json::{Value, json};
use wharf_core::{
    cluster::{
        ClusterRecord, ClusterState, DeleteMode, NodeRecord, ServerId, Work, ownership::rendezvous,
    },
    operation::{OperationKind, OperationRecord},
};
use wharf_server::{clusters::operations, engine::Member};
use wharf_store::{Outcome, Store, Txn};

use super::TestServer;

/// A private key that nobody uses.
pub fn ssh_key() -> String {
    rcgen::KeyPair::generate().unwrap().serialize_pem()
}

/// A request for a cluster of one controlplane node and two workers.
pub fn wish(name: &str) -> Value {
    json!({
        "name": name,
        "nodes": [
            {"name": "m1", "address": "192.0.2.11", "roles": ["controlplane"]},
            {"name": "w1", "address": "192.0.2.21", "roles": ["worker"]},
            {"name": "w2", "address": "192.0.2.22", "roles": ["worker", "edge"]},
        ],
        "singleCloudAddress": "192.0.2.1:8443",
        "sshUser": "root",
        "sshKey": ssh_key(),
        // Should anything try to reach these machines, it gets no further than this one.
        "sshJumpHost": "nobody@127.0.0.1:1",
    })
}

/// Gives clusters of these names to servers that do not exist, so that nobody works on them and
/// they stay as they are.
pub async fn leave_alone(server: &TestServer, names: &[&str]) {
    let app = server.app();
    let mut members = vec![app.me.clone()];
    while names.iter().any(|name| rendezvous(&members, name) == Some(&app.me)) {
        let id = ServerId(format!("nobody-{}", members.len()));
        let now = Timestamp::now();
        let member = Member {
            id: id.clone(),
            address: String::new(),
            agents: Vec::new(),
            version: String::new(),
            started_at: now,
        };
        commit(&app.store, Txn::new().write(&id.0, &member, now, None).unwrap()).await;
        members.push(id);
    }
}

pub async fn commit(store: &Store, txn: Txn) {
    assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
}

pub async fn record(server: &TestServer, name: &str) -> ClusterRecord {
    server.app().store.read::<ClusterRecord>(name).await.unwrap().unwrap().value
}

/// Puts a cluster into a state, as if everything had happened that leads there. A server that has not
/// heard of other members yet may write to it just now: then it is done once more.
pub async fn put_in_state(server: &TestServer, name: &str, state: ClusterState) {
    for _ in 0..100 {
        if let Outcome::Committed(_) = try_state(server, name, state).await {
            return;
        }
    }
    panic!("somebody writes to {name} all the time");
}

async fn try_state(server: &TestServer, name: &str, state: ClusterState) -> Outcome {
    let store = &server.app().store;
    let old = store.read::<ClusterRecord>(name).await.unwrap().unwrap();
    let now = Timestamp::now();
    let mut value = old.value.clone();
    value.state = state;
    value.created = !matches!(state, ClusterState::Creating | ClusterState::CreateFailed);
    value.reason = None;
    let (kind, delete) = match state {
        ClusterState::Creating => (Some(OperationKind::Create), None),
        ClusterState::Updating => (Some(OperationKind::Update), None),
        ClusterState::Deleting => (Some(OperationKind::Delete), Some(DeleteMode::Clean)),
        ClusterState::CreateFailed | ClusterState::Running | ClusterState::Unreachable => {
            (None, None)
        }
    };
    let mut txn = Txn::new();
    value.work = kind.map(|_| Work {
        operation: format!("{}{}", state.name().to_lowercase(), old.revision),
        canceled: false,
        delete,
    });
    if let (Some(work), Some(kind)) = (&value.work, kind) {
        let operation = OperationRecord::new(name, kind, now);
        txn = operations::create(txn, &work.operation, &operation, now).unwrap();
    }
    value.nodes = match value.created {
        false => Default::default(),
        true => value
            .spec
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| {
                let record = NodeRecord {
                    spec: node.clone(),
                    pod_cidr: format!("10.42.{i}.0/24").parse().unwrap(),
                    host_key: None,
                    etcd: None,
                    installed: true,
                };
                (node.name.clone(), record)
            })
            .collect(),
    };
    store.commit(txn.replace(&old, &value, now).unwrap()).await.unwrap()
}
