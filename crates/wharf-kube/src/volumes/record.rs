//! Attachments: who may use a volume.

use http::Method;
use jiff::Timestamp;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use wharf_core::volume::{
    condition::Condition,
    record::{Change, Entry, Record},
};

use super::{GROUP, Written};
use crate::{
    cluster::{Cluster, JSON, MERGE},
    error::Result,
};

/// Whoever holds the volume may write the same record. What is not said now is said again.
const TRIES: usize = 5;

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
            // Whoever waits, or does not reach the storage, says so again.
            "status": { "conditions": [] },
        });
        let written = self.send::<Object>(what, method, &path, kind, &object).await;
        Written::of(written.map(Record::from))
    }

    /// Says something in the record that was seen, or does not say it any more.
    ///
    /// # Errors
    /// The API server does not answer or refuses; nothing depends on it.
    pub async fn write_conditions(
        &self,
        volume: &str,
        seen: &Record,
        conditions: &[Condition],
    ) -> Result<Written<()>> {
        let patch = json!({
            "metadata": { "resourceVersion": seen.version },
            "status": { "conditions": conditions },
        });
        let what = format!("write the conditions of volume {volume}");
        let path = path(volume);
        Written::of(self.send::<Value>(what, Method::PATCH, &path, MERGE, &patch).await.map(drop))
    }

    /// Says something of a volume that somebody holds, if it is news. Of one that nobody holds there is
    /// nothing to say.
    ///
    /// # Errors
    /// As [`Self::write_conditions`].
    pub async fn say(&self, volume: &str, condition: &Condition) -> Result<()> {
        for _ in 0..TRIES {
            let Some(record) = self.attachment(volume).await? else { return Ok(()) };
            let Some(all) = record.said(condition.clone()) else { return Ok(()) };
            if self.write_conditions(volume, &record, &all).await? == Written::Is(()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes back what a node has said of a volume.
    ///
    /// # Errors
    /// As [`Self::write_conditions`].
    pub async fn unsay(&self, volume: &str, kind: &str, node: &str) -> Result<()> {
        for _ in 0..TRIES {
            let Some(record) = self.attachment(volume).await? else { return Ok(()) };
            let Some(all) = record.unsaid(kind, node) else { return Ok(()) };
            if self.write_conditions(volume, &record, &all).await? == Written::Is(()) {
                return Ok(());
            }
        }
        Ok(())
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
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
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
        Record {
            version: object.metadata.resource_version,
            entries: object.attachments,
            conditions: object.status.conditions,
        }
    }
}
