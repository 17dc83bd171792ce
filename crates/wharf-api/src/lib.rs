//! The wire: what the REST API v1 takes and gives, its error codes, a typed client, and the files
//! through which the agents of a node speak with each other.
//!
//! **Invariant:** this crate knows no domain type and no adapter. Records and wire change apart;
//! the server converts (`wharf_server::http::convert`).
//!
//! Start reading at [`error`], then [`resource`].

pub mod agent;
pub mod app;
#[cfg(feature = "client")]
pub mod client;
pub mod cluster;
pub mod drain;
pub mod error;
pub mod event;
pub mod kubeconfig;
pub mod link;
pub mod log_line;
pub mod node;
pub mod node_files;
pub mod operation;
pub mod repair;
pub mod resource;
pub mod secret;
pub mod server;
pub mod trace;
pub mod user;
pub mod volume;

/// Where the API lives.
pub const PREFIX: &str = "/api/v1";
/// The same API under the prefix that existing clients use.
pub const LEGACY_PREFIX: &str = "/apis/zcloud.cn/v1";
/// Where existing clients look for WebSockets.
pub const LEGACY_SOCKETS: &str = "/apis/ws.zcloud.cn/v1";
