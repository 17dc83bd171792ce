//! Events, so that `kubectl describe node` tells what Wharf does there.

use http::Request;
use jiff::Timestamp;
use serde_json::{Value, json};
use wharf_core::volume::provision::Claim;

use crate::{cluster::Cluster, error::Result};

/// What Kubernetes takes of a note, in bytes.
const LONGEST_NOTE: usize = 1024;
const REPORTER: &str = "wharf";

impl Cluster {
    /// Leaves an event on a Node. `reason` is one word in capitals and small letters.
    ///
    /// # Errors
    /// The API server does not answer or refuses; nothing depends on an event.
    pub async fn emit(&self, node: &str, warning: bool, reason: &str, message: &str) -> Result<()> {
        // Kubelets give the name in the place of the UID, too.
        let regarding = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node });
        self.emit_on(&regarding, warning, reason, message).await
    }

    /// Leaves an event on a claim.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub async fn emit_on_claim(
        &self,
        claim: &Claim,
        warning: bool,
        reason: &str,
        message: &str,
    ) -> Result<()> {
        let Claim { namespace, name, uid, .. } = claim;
        let regarding = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": namespace, "name": name, "uid": uid,
        });
        self.emit_on(&regarding, warning, reason, message).await
    }

    /// Leaves an event on a PersistentVolume.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub async fn emit_on_volume(
        &self,
        volume: &str,
        warning: bool,
        reason: &str,
        message: &str,
    ) -> Result<()> {
        // Whoever describes a volume looks for events by its UID.
        let uid = self.volume(volume).await?.map_or_else(|| volume.to_owned(), |seen| seen.uid);
        let kind = "PersistentVolume";
        let regarding = json!({ "apiVersion": "v1", "kind": kind, "name": volume, "uid": uid });
        self.emit_on(&regarding, warning, reason, message).await
    }

    async fn emit_on(
        &self,
        regarding: &Value,
        warning: bool,
        reason: &str,
        message: &str,
    ) -> Result<()> {
        let of = |key: &str| regarding.get(key).and_then(Value::as_str).unwrap_or_default();
        let name = of("name");
        // What is in no namespace has its events in this one.
        let namespace = Some(of("namespace")).filter(|it| !it.is_empty()).unwrap_or("default");
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "generateName": format!("{name}-"), "namespace": namespace },
            "type": if warning { "Warning" } else { "Normal" },
            "reason": reason,
            "action": reason,
            "note": beginning(message, LONGEST_NOTE),
            "eventTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
            "reportingController": REPORTER,
            "reportingInstance": REPORTER,
            "regarding": regarding,
        });
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let request = Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(event.to_string().into_bytes())
            .map_err(kube::Error::HttpError);
        let write = async { self.client.request::<Value>(request?).await };
        self.call(format!("leave an event on {} {name}", of("kind")), write).await.map(drop)
    }
}

/// As much of a text as fits, in whole characters.
fn beginning(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(beginning("abc", 5), "abc");
        assert_eq!(beginning("aäb", 2), "a");
        assert_eq!(beginning("aäb", 3), "aä");
    }
}
