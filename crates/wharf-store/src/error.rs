//! What can go wrong with a store. The kinds are told apart by type, never by text.

use std::{io, path::PathBuf};

use crate::types::Revision;

pub type StoreResult<T> = Result<T, StoreError>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another wharf server{} uses the data directory {}", pid.map(|p| format!(" (process {p})")).unwrap_or_default(), dir.display())]
    InUse { dir: PathBuf, pid: Option<u32> },
    #[error(
        "the store has schema {found}, written by a newer wharf ({writer}); this wharf knows schemas up to {known}"
    )]
    Newer { found: u32, known: u32, writer: String },
    #[error("the disk is full")]
    DiskFull(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the store cannot be written: {what} is read-only")]
    ReadOnly { what: String },
    #[error("the store's file {} is damaged", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The history before `oldest` is no longer kept: read the present and watch from there.
    #[error("changes before revision {oldest} are no longer kept")]
    Compacted { oldest: Revision },
    #[error("the lease has ended")]
    LeaseGone,
    #[error("the transaction is malformed: {0}")]
    BadTxn(String),
    #[error("cannot reach the store at {endpoints}")]
    Unreachable {
        endpoints: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the store refused the credentials of {user}")]
    Denied {
        user: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the store's configuration is wrong: {0}")]
    BadOptions(String),
    #[error("there is no store in {}", dir.display())]
    NoStore { dir: PathBuf },
    /// A restore only fills what is empty.
    #[error("{what} is not empty")]
    NotEmpty { what: String },
    #[error("the store is shutting down")]
    Closed,
    #[error("the store failed")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the record {key} cannot be written as JSON")]
    Encode {
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("the record {key} cannot be read: {reason}")]
    Unreadable { key: String, reason: String },
    #[error("the sealing key {} is missing, but the store holds sealed records", path.display())]
    KeyMissing { path: PathBuf },
    #[error("the sealing key {} is not the one that sealed this store", path.display())]
    KeyWrong { path: PathBuf },
    #[error("the sealing key {} cannot be used: {reason}", path.display())]
    KeyUnusable { path: PathBuf, reason: String },
    #[error("the secret of {context} cannot be opened with this sealing key")]
    Unsealable { context: String },
}

impl StoreError {
    /// What the person who sees the error should do next.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            StoreError::InUse { .. } => "stop the other server, or give this one its own --data-dir".to_owned(),
            StoreError::Newer { writer, .. } => format!("run wharf {writer} or later, or restore a backup made by this version"),
            StoreError::DiskFull(_) => "free space on the disk that holds the data directory; nothing acknowledged was lost".to_owned(),
            StoreError::ReadOnly { .. } => "check the mount options and the permissions of the data directory".to_owned(),
            StoreError::Damaged { .. } => "run `wharf store check`, then restore the newest backup with `wharf store restore`".to_owned(),
            StoreError::NotEmpty { .. } => {
                "restore into a new place, then start the server there".to_owned()
            }
            StoreError::Unreachable { .. } => "check the addresses in --store, the network, and whether etcd has a quorum".to_owned(),
            StoreError::Denied { .. } => "check the etcd user name and password, and the role's rights on the prefix /wharf/".to_owned(),
            StoreError::KeyMissing { .. } => "put the original key file back, or name it with --key-file; a new key cannot open the sealed records".to_owned(),
            StoreError::KeyWrong { .. } => "name the key file that was used before with --key-file; several servers on one store share one key".to_owned(),
            StoreError::NoStore { .. } => "name the server's data directory with --data-dir; a server makes its store when it first starts".to_owned(),
            StoreError::Io { path, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                format!("check the owner and the permissions of {}", path.display())
            }
            StoreError::Io { .. }
            | StoreError::Compacted { .. }
            | StoreError::LeaseGone
            | StoreError::BadTxn(_)
            | StoreError::BadOptions(_)
            | StoreError::Closed
            | StoreError::Backend(_)
            | StoreError::Encode { .. }
            | StoreError::Unreadable { .. }
            | StoreError::KeyUnusable { .. }
            | StoreError::Unsealable { .. } => return None,
        };
        Some(hint)
    }
}
