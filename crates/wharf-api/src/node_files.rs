//! The files through which the agents of a node speak with each other: one JSON object each, in
//! `<run_dir>/<agent>/<Type>/<key>.json`.
//!
//! The names of the fields are those that programs in Go give them. Numbers stand for words; what
//! each means is in `wharf_core::node`. What is not needed is not read, and what is read keeps the
//! habits of the other side: a field that is missing or `null` has its zero value, fields that
//! nobody knows are passed over, an empty list is written as `null`.
//!
//! Start reading at [`read`]; the types are by subject.

mod app;
mod cluster;
mod drain;
mod go;
mod health;
mod network;
mod operation;
mod stats;
mod storage;

#[cfg(test)]
mod tests;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

pub use app::{
    AppInstanceConfig, AppInstanceStatus, DomainConfig, DomainMetric, DomainStatus,
    EnClusterAppStatus, IoAdapter, OpsCommand, VmConfig, VolumeRef,
};
pub use cluster::{
    CipherBlock, EdgeNodeClusterConfig, EdgeNodeClusterStatus, EdgeNodeInfo, ErrorDescription,
    KubeLeaseInfo, UuidAndVersion,
};
pub use drain::{
    BaseOsConfig, BaseOsStatus, NodeAgentStatus, NodeDrainRequest, NodeDrainStatus, ZedAgentStatus,
};
pub use go::{Ip, IpPrefix, List, NotAUuid, Time, Uuid};
pub use health::{AgentCondition, AgentFault, AgentHealth, TaskHealth};
pub use network::{
    AddrInfo, AppNetAdapter, AppNetworkConfig, AppNetworkStatus, AssignedAddress,
    AssignedAddresses, DeviceNetworkStatus, NetworkInstanceStatus, NetworkPort,
};
pub use operation::{DEVICE, DisruptionGuard, NodeJob, NodeJobs, NodeWish, UPDATE};
pub use stats::{
    KubeClusterInfo, KubeNodeInfo, KubePodInfo, KubePodNsInfo, KubeReplicaInfo, KubeStorageInfo,
    KubeVmiInfo, KubeVolumeInfo,
};
pub use storage::{AppDiskMetric, ContentTreeStatus, VolumeConfig, VolumeStatus};

/// Under this key stands what there is only one of.
pub const GLOBAL: &str = "global";

/// The largest file that is read. Nothing that agents tell each other is larger than the mebibyte
/// that they allow for their largest fields.
pub const MAX_BYTES: usize = 1 << 20;

/// What is published as a file.
pub trait NodeFile: Serialize + DeserializeOwned + Default {
    /// The name of the folder, between those of the agent and of the key.
    const TYPE: &'static str;
}

/// Why a file says nothing. The reader keeps what it knew before.
#[derive(Debug, thiserror::Error)]
pub enum Junk {
    #[error("it has {0} bytes, and at most {MAX_BYTES} are read")]
    TooLarge(usize),
    #[error("it is no JSON object")]
    NotAnObject,
    #[error("it cannot be read")]
    Unreadable(#[from] serde_json::Error),
}

/// Reads a file.
pub fn read<T: NodeFile>(bytes: &[u8]) -> Result<T, Junk> {
    if bytes.len() > MAX_BYTES {
        return Err(Junk::TooLarge(bytes.len()));
    }
    // Objects that are nested too deep are refused here.
    let mut value: Value = serde_json::from_slice(bytes)?;
    if !value.is_object() {
        return Err(Junk::NotAnObject);
    }
    drop_nulls(&mut value);
    Ok(serde_json::from_value(value)?)
}

/// The text of a file.
pub fn write<T: NodeFile>(value: &T) -> Result<Vec<u8>, Junk> {
    let bytes = serde_json::to_vec(value)?;
    if bytes.len() > MAX_BYTES { Err(Junk::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// On the other side `null` leaves the zero value as it is, as a missing field does.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => {
            items.retain(|item| !item.is_null());
            items.iter_mut().for_each(drop_nulls);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
