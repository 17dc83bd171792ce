//! The link between a node's agent and the server: one TLS connection on which both sides send
//! messages, one JSON object a line.
//!
//! The agent opens it and begins with [`Up::Hello`]; the server answers with the node's whole
//! configuration, and sends it again whenever it changes. What an agent knows stays as it is when the
//! link is lost. Fields and messages that one side does not know are passed over, so that agents and
//! servers of neighbouring versions understand each other.
//!
//! Start reading at [`Up`] and [`Down`]; [`Lines`] cuts what comes into messages.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    node_files::{
        AppInstanceConfig, BaseOsStatus, EdgeNodeClusterConfig, EdgeNodeInfo, NodeDrainStatus,
        NodeJob, NodeWish, VolumeConfig,
    },
    secret::Secret,
    trace::ClusterTrace,
};

/// What a server is called in the certificate that it shows to agents, wherever they find it.
pub const SERVER_NAME: &str = "link.wharf.internal";
/// Each side says something at least this often.
pub const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Whoever hears nothing for so long gives the connection up.
pub const SILENCE: Duration = Duration::from_secs(45);
/// An agent has answered [`Down::Trace`] by then, whoever of its peers is silent.
pub const TRACE_WITHIN: Duration = Duration::from_secs(10);
/// The longest message: the configuration of a node with a thousand applications.
pub const MAX_BYTES: usize = 8 << 20;

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "say")]
pub enum Up {
    Hello(Hello),
    /// How the node is; all of it, whenever something changed.
    Report(Box<Report>),
    /// The answer to [`Down::Trace`].
    Trace {
        id: u64,
        #[serde(default)]
        trace: Option<ClusterTrace>,
        /// Why there is none.
        #[serde(default)]
        error: Option<String>,
    },
    Alive,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "say")]
pub enum Down {
    Config(Box<NodeConfig>),
    /// A new certificate and its key, for the next connection.
    Credentials {
        certificate_pem: String,
        key_pem: Secret,
    },
    /// What do the agents of the cluster know of an application?
    Trace {
        id: u64,
        app: String,
    },
    /// The server does not speak with this agent; the connection ends.
    Refused {
        reason: String,
    },
    Alive,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    /// Of the agent's program.
    pub version: String,
    pub boot_id: String,
}

/// All that a node needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeConfig {
    /// Where servers are, as `host:port`.
    pub servers: Vec<String>,
    /// The text of the network file; without one the node keeps what it has.
    pub network: Option<String>,
    pub node: EdgeNodeInfo,
    /// How many nodes the cluster has: the agent decides whether they are enough for operations to
    /// wait for drains.
    pub nodes: usize,
    pub cluster: Option<EdgeNodeClusterConfig>,
    pub apps: Vec<AppInstanceConfig>,
    pub volumes: Vec<VolumeConfig>,
    /// The reboot or shutdown that is wanted, or the last one that was called off.
    pub device: Option<NodeWish>,
    /// The same for an update.
    pub update: Option<NodeWish>,
    pub guard: Guard,
}

/// What the cluster's disruption guard says of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Guard {
    /// The node may go out of service.
    pub admitted: bool,
    /// Why not.
    pub reason: String,
}

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// What is not as it should be, a sentence each.
    pub faults: Vec<String>,
    pub drain: Option<NodeDrainStatus>,
    /// Whether a device operation waits for the drain.
    pub waits_for_drain: bool,
    /// For whom a drain is wanted: `reboot`, `shutdown` or `update`.
    pub wants: Option<String>,
    pub jobs: Vec<NodeJob>,
    pub base_os: Vec<BaseOsStatus>,
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("a message is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("a message cannot be read")]
    Unreadable(#[source] serde_json::Error),
    #[error("a message cannot be written")]
    Unwritable(#[source] serde_json::Error),
}

/// A message as it goes over the wire.
pub fn line(message: &impl Serialize) -> Result<Vec<u8>, LinkError> {
    let mut bytes = serde_json::to_vec(message).map_err(LinkError::Unwritable)?;
    if bytes.len() > MAX_BYTES {
        return Err(LinkError::TooLong);
    }
    bytes.push(b'\n');
    Ok(bytes)
}

/// Bytes that came, cut into messages.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
    /// So many bytes are known to hold no end of a line.
    looked: usize,
}

impl Lines {
    /// Where bytes that come are put.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// The next whole message, if it has come.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LinkError> {
        let new = self.buffer.get(self.looked..).unwrap_or_default();
        let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
            self.looked = self.buffer.len();
            return if self.looked > MAX_BYTES { Err(LinkError::TooLong) } else { Ok(None) };
        };
        let end = self.looked + end;
        let text = self.buffer.get(..end).unwrap_or_default();
        let message = serde_json::from_slice(text).map_err(LinkError::Unreadable);
        self.buffer.drain(..=end);
        self.looked = 0;
        if self.buffer.is_empty() {
            // A long message must not cost memory for ever.
            self.buffer = Vec::new();
        }
        message.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_the_bytes_break() {
        let hello = Up::Hello(Hello { version: "1".to_owned(), boot_id: "b".to_owned() });
        let report =
            Up::Report(Box::new(Report { faults: vec!["x".to_owned()], ..Report::default() }));
        let bytes =
            [line(&hello).unwrap(), line(&Up::Alive).unwrap(), line(&report).unwrap()].concat();
        for chunk in [1, 7, bytes.len()] {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for part in bytes.chunks(chunk) {
                lines.buffer().extend_from_slice(part);
                while let Some(message) = lines.take::<Up>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, [hello.clone(), Up::Alive, report.clone()], "{chunk}");
        }
    }

    #[test]
    fn what_a_newer_version_says_is_passed_over() {
        let mut lines = Lines::default();
        lines
            .buffer()
            .extend_from_slice(b"{\"say\":\"sing\",\"song\":1}\n{\"say\":\"alive\",\"more\":1}\n");
        assert_eq!(lines.take::<Down>().unwrap(), Some(Down::Unknown));
        assert_eq!(lines.take::<Down>().unwrap(), Some(Down::Alive));
        assert_eq!(lines.take::<Down>().unwrap(), None);
    }

    #[test]
    fn an_endless_line_and_what_is_no_message_are_refused() {
        let mut lines = Lines::default();
        lines.buffer().resize(MAX_BYTES + 1, b'x');
        assert!(matches!(lines.take::<Up>(), Err(LinkError::TooLong)));
        let mut lines = Lines::default();
        lines.buffer().extend_from_slice(b"nonsense\n");
        assert!(matches!(lines.take::<Up>(), Err(LinkError::Unreadable(_))));
    }
}
