//! Claims of volumes: whether there is a volume behind them, and how large it is.

use std::collections::BTreeMap;

use serde::Deserialize;
use wharf_core::node::app_reports::{Claim, ClaimPhase};

use crate::{
    cluster::Cluster,
    namespace::{Named, NamespaceWatch},
    quantity::parse_whole,
    watch::Followed,
};

/// By this label a claim says which volume of an application it is.
const VOLUME: &str = "wharf.dev/volume";

impl Cluster {
    /// Follows the claims of a namespace.
    pub fn watch_claims(&self, namespace: &str) -> NamespaceWatch<Claim> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        NamespaceWatch::new(self, &path, |claim: ClaimObject| claim.into())
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ClaimObject {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
    labels: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Spec {
    resources: Resources,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: Size,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Size {
    storage: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    capacity: Size,
}

impl Followed for ClaimObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Named for ClaimObject {
    fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl From<ClaimObject> for Claim {
    fn from(object: ClaimObject) -> Self {
        let ClaimObject { mut metadata, spec, status } = object;
        let bytes = parse_whole(&status.capacity.storage);
        Self {
            name: metadata.name,
            volume_id: metadata.labels.remove(VOLUME),
            phase: match status.phase.as_str() {
                "Bound" => ClaimPhase::Bound,
                "Lost" => ClaimPhase::Lost,
                _ => ClaimPhase::Pending,
            },
            // Until there is a volume, what is asked for is all that is known.
            bytes: bytes.or(parse_whole(&spec.resources.requests.storage)).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_says_which_volume_it_is_and_how_large() {
        let read = |value| Claim::from(serde_json::from_value::<ClaimObject>(value).unwrap());
        let asked = json!({ "resources": { "requests": { "storage": "1Gi" } } });
        let pending = read(json!({ "metadata": { "name": "data" }, "spec": asked }));
        let expected = Claim {
            name: "data".to_owned(),
            volume_id: None,
            phase: ClaimPhase::Pending,
            bytes: 1 << 30,
        };
        assert_eq!(pending, expected);
        let bound = read(json!({
            "metadata": { "name": "data", "labels": { VOLUME: "v", "app": "web" } }, "spec": asked,
            "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } },
        }));
        let expected = Claim {
            volume_id: Some("v".to_owned()),
            phase: ClaimPhase::Bound,
            bytes: 2 << 30,
            ..expected
        };
        assert_eq!(bound, expected);
    }
}
