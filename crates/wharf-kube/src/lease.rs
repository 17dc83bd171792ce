//! A Lease: who among several does something that only one should do.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::node::leader::Lease;

use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
};

const VERSION: &str = "coordination.k8s.io/v1";

impl Cluster {
    /// The lease as it is; the default where there is none.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Lease> {
        let object = self.get::<Object>(&path(namespace, name)).await?;
        Ok(object.map(Lease::from).unwrap_or_default())
    }

    /// Writes who holds the lease (nobody: empty) and for how long, if it is still as it was seen.
    /// `now` is only shown. Gives the lease as it is now.
    ///
    /// # Errors
    /// Somebody was faster (409; 404 if it was deleted), or the API server does not answer or
    /// refuses.
    pub async fn write_lease(
        &self,
        namespace: &str,
        name: &str,
        seen: &Lease,
        holder: &str,
        duration: Duration,
        now: Timestamp,
    ) -> Result<Lease> {
        // The API server takes six digits and nothing else.
        let now = format!("{now:.6}");
        let mut metadata = json!({ "name": name });
        let mut spec = json!({
            "holderIdentity": holder, "leaseDurationSeconds": duration.as_secs(), "renewTime": now,
        });
        if seen.holder != holder {
            put(&mut spec, "acquireTime", &now);
        }
        let missing = seen.version.is_empty();
        if !missing {
            put(&mut metadata, "resourceVersion", &seen.version);
        }
        let object =
            json!({ "apiVersion": VERSION, "kind": "Lease", "metadata": metadata, "spec": spec });
        let (method, name, kind) = match missing {
            true => (Method::POST, "", JSON),
            false => (Method::PATCH, name, MERGE),
        };
        let path = path(namespace, name);
        let what = format!("write {path}");
        let written: Object = self.send(what, method, &path, kind, &object).await?;
        Ok(written.into())
    }
}

fn put(object: &mut Value, key: &str, value: &str) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), json!(value));
    }
}

fn path(namespace: &str, name: &str) -> String {
    let all = format!("/apis/{VERSION}/namespaces/{namespace}/leases");
    if name.is_empty() { all } else { format!("{all}/{name}") }
}

#[derive(Deserialize)]
struct Object {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    resource_version: String,
}

/// The times in it are other machines' and not read.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
}

impl From<Object> for Lease {
    fn from(object: Object) -> Self {
        let seconds = object.spec.lease_duration_seconds.unwrap_or_default();
        Lease {
            holder: object.spec.holder_identity.unwrap_or_default(),
            version: object.metadata.resource_version,
            duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
        }
    }
}
