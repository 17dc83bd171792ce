//! What an agent answers about an application (`/app`, `/cluster-app`), and the lines of its logs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `/app/<name or uuid>`: what every part of a node knows of the application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppTrace {
    /// The name of the device, or `unknown`; the address of a peer that did not answer.
    pub hostname: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect_time: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub app_info: Vec<TraceItem>,
    /// Where the application is stuck on this node, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// Why this peer has no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceItem {
    /// `<agent>-<Type>`, and the beginning of the id where there are several.
    pub key: String,
    pub value: TraceValue,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TraceValue {
    #[serde(rename = "UUID")]
    pub uuid: String,
    pub name: String,
    pub exist: bool,
    /// `none`, `enabled` or `disabled`.
    pub activated: String,
    pub state: String,
    pub content: String,
    /// `none`, `enabled` or `disabled`.
    #[serde(rename = "DNidNode")]
    pub dnid_node: String,
    pub errors: String,
}

/// `/cluster-app/<name or uuid>`: this node, then its peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterTrace {
    /// Always `cluster-app`.
    pub key: String,
    pub value: Vec<AppTrace>,
}

/// One line of an application's log, as it is handed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub appuuid: String,
    pub containername: String,
    pub eventtime: Timestamp,
    pub msg: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trace_has_the_names_that_clients_look_for() {
        let answer = json!({
            "key": "cluster-app",
            "value": [
                { "hostname": "n1", "collectTime": "2026-01-02T03:04:05Z", "appInfo": [
                    { "key": "zedagent-EdgeNodeInfo", "value": {
                        "UUID": "u", "Name": "n1", "Exist": true, "Activated": "none", "State": "",
                        "Content": "c", "DNidNode": "none", "Errors": "" } },
                ]},
                { "hostname": "10.0.0.3", "errors": "connection refused" },
            ],
        });
        let trace: ClusterTrace = serde_json::from_value(answer.clone()).unwrap();
        assert_eq!(serde_json::to_value(trace).unwrap(), answer);
    }
}
