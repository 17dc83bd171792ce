//! A member of the cluster's etcd (3.6).

use crate::install::{
    credentials::path,
    document::{DocumentError, DocumentInput, Stage},
};

use super::{Component, Kind, Service, directory};

/// The member's data.
pub const DATA: &str = "/var/lib/wharf/etcd";
pub const CLIENT_PORT: u16 = 2379;
pub const PEER_PORT: u16 = 2380;
/// What etcd may grow to before it takes no more writes: as much as its authors advise at most.
const QUOTA_BYTES: u64 = 8 << 30;

pub fn component(input: &DocumentInput<'_>) -> Result<Component, DocumentError> {
    Ok(Component {
        stage: Stage::Etcd,
        service: Service {
            name: "etcd",
            description: "etcd of the cluster",
            after: &[],
            kind: Kind::Notify,
            program: "etcd",
            arguments: arguments(input)?,
            settings: vec!["LimitNOFILE=65536".to_owned()],
        },
        directories: vec![directory(DATA, 0o700)],
        files: Vec::new(),
        reloaded_files: Vec::new(),
        credentials: Vec::new(),
        // etcd reads them for each connection.
        reloaded_credentials: vec![
            path::ETCD_CA,
            path::ETCD_SERVER,
            path::ETCD_SERVER_KEY,
            path::ETCD_PEER,
            path::ETCD_PEER_KEY,
        ],
    })
}

/// The flags `--initial-…` say what held at the member's first start, for good: a later member
/// must not change the units of those that run.
fn arguments(input: &DocumentInput<'_>) -> Result<Vec<String>, DocumentError> {
    let node = input.node;
    let start = input.record()?.etcd.as_ref();
    let start = start.ok_or_else(|| DocumentError::NoEtcdStart(node.name.clone()))?;
    let members = start.members.iter();
    let members: Vec<String> =
        members.map(|(name, address)| format!("{name}=https://{address}:{PEER_PORT}")).collect();
    let state = if start.joins { "existing" } else { "new" };
    let (client, peer) = (
        format!("https://{}:{CLIENT_PORT}", node.address),
        format!("https://{}:{PEER_PORT}", node.address),
    );
    Ok(vec![
        format!("--name={}", node.name),
        format!("--data-dir={DATA}"),
        format!("--listen-client-urls={client},https://127.0.0.1:{CLIENT_PORT}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={}", members.join(",")),
        format!("--initial-cluster-state={state}"),
        format!("--initial-cluster-token={}", input.etcd_token),
        "--client-cert-auth=true".to_owned(),
        format!("--trusted-ca-file={}", path::ETCD_CA),
        format!("--cert-file={}", path::ETCD_SERVER),
        format!("--key-file={}", path::ETCD_SERVER_KEY),
        "--peer-client-cert-auth=true".to_owned(),
        format!("--peer-trusted-ca-file={}", path::ETCD_CA),
        format!("--peer-cert-file={}", path::ETCD_PEER),
        format!("--peer-key-file={}", path::ETCD_PEER_KEY),
        "--listen-metrics-urls=http://127.0.0.1:2381".to_owned(),
        "--feature-gates=InitialCorruptCheck=true".to_owned(),
        "--watch-progress-notify-interval=5s".to_owned(),
        format!("--quota-backend-bytes={QUOTA_BYTES}"),
    ])
}
