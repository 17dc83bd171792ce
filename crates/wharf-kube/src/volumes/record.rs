//! Attachments: who may use a volume.

use http::Method;
use jiff::Timestamp;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::volume::record::{Change, Entry, Record};

use super::{GROUP, Written};
use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
};

impl Cluster {
    /// Who may use a volume; `None` when nobody does.
    ///
    /// # Errors
    /// The API server does not answer or refuses, or what it has cannot be understood.
    pub async fn attachment(&self, volume: &str) -> Result<Option<Record>> {
        let object = self.get::<Object>(&path(volume)).await?;
        Ok(object.map(Record::from))
    }

    /// The records of all volumes, by name.
    ///
    /// # Errors
    /// As [`Self::attachment`].
    pub async fn attachments(&self) -> Result<Vec<(String, Record)>> {
        let objects: Vec<Object> = self.list(&path(""), ListParams::default()).await?;
        let named = |object: Object| (object.metadata.name.clone(), object.into());
        Ok(objects.into_iter().map(named).collect())
    }

    /// Writes a record: makes it, if `version` is `None`, or changes the one that was seen.
    ///
    /// # Errors
    /// The API server does not answer or refuses for another reason than that somebody was faster.
    pub async fn write_attachment(
        &self,
        volume: &str,
        version: Option<&str>,
        entries: &[Entry],
    ) -> Result<Written<Record>> {
        let mut metadata = json!({ "name": volume });
        let what = format!("write the record of volume {volume}");
        let (method, path, kind) = match version {
            None => (Method::POST, path(""), JSON),
            Some(version) => {
                put(&mut metadata, "resourceVersion", version);
                (Method::PATCH, path(volume), MERGE)
            }
        };
        let object = json!({
            "apiVersion": "wharf.dev/v1", "kind": "Attachment", "metadata": metadata,
            "attachments": entries,
            // Whoever waits says so again.
            "status": { "conditions": [] },
        });
        let written = self.send::<Object>(what, method, &path, kind, &object).await;
        Written::of(written.map(Record::from))
    }

    /// Says in a record that somebody waits for the volume, and why.
    ///
    /// # Errors
    /// The API server does not answer or refuses; nothing depends on it.
    pub async fn tell_waiting(&self, volume: &str, why: &str, now: Timestamp) -> Result<()> {
        let condition = json!({
            "type": "Waiting", "status": "True", "reason": "Held", "message": why,
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        let patch = json!({ "status": { "conditions": [condition] } });
        let what = format!("write the condition of volume {volume}");
        let path = path(volume);
        self.send::<Value>(what, Method::PATCH, &path, MERGE, &patch).await.map(drop)
    }

    /// Carries out a change. `None` when the record is gone with its last entry.
    ///
    /// # Errors
    /// As [`Self::write_attachment`].
    pub async fn change_attachment(
        &self,
        volume: &str,
        change: &Change,
    ) -> Result<Written<Option<Record>>> {
        match change {
            Change::Replace { version, entries } => {
                let written = self.write_attachment(volume, Some(version), entries).await?;
                Ok(match written {
                    Written::Is(record) => Written::Is(Some(record)),
                    Written::Stale => Written::Stale,
                })
            }
            Change::Delete { version } => {
                let options = json!({ "preconditions": { "resourceVersion": version } });
                let what = format!("delete the record of volume {volume}");
                let path = path(volume);
                let gone = self.send::<Value>(what, Method::DELETE, &path, JSON, &options).await;
                Written::of(gone.map(|_| None))
            }
        }
    }
}

pub(super) fn path(volume: &str) -> String {
    if volume.is_empty() {
        format!("{GROUP}/attachments")
    } else {
        format!("{GROUP}/attachments/{volume}")
    }
}

pub(super) fn put(object: &mut Value, key: &str, value: &str) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), json!(value));
    }
}

#[derive(Deserialize)]
pub(super) struct Object {
    metadata: Meta,
    #[serde(default)]
    attachments: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
    creation_timestamp: Option<Timestamp>,
}

impl Object {
    /// With its name, and since when somebody has held the volume without a break.
    pub fn named(self) -> (String, (Record, Option<Timestamp>)) {
        let since = self.metadata.creation_timestamp;
        (self.metadata.name.clone(), (self.into(), since))
    }
}

impl From<Object> for Record {
    fn from(object: Object) -> Self {
        Record { version: object.metadata.resource_version, entries: object.attachments }
    }
}
