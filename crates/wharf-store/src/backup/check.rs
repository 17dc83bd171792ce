//! Looking a store over without changing it.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use super::integrity_problems;
use crate::{
    embedded::{
        layout::{self, classify},
        on_blocking_thread, reader,
    },
    error::{StoreError, StoreResult},
    etcd::Etcd,
    migrate::{META_PREFIX, SCHEMA_KEY, StoreSchema},
    seal::{SEAL_KEY, Sealer},
    store::{SCHEMA, StoreLocation},
    typed::Envelope,
    types::{Entry, Page, RawListing, Revision},
};

/// What [`check`] found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    pub revision: Revision,
    /// The schema that the store has reached, and the version of Wharf that wrote it.
    pub schema: Option<u32>,
    pub writer: Option<String>,
    /// How many records there are of each kind.
    pub records: BTreeMap<String, u64>,
    pub unreadable: Vec<UnreadableRecord>,
    pub sealed: SealState,
    /// What is wrong with the file itself.
    pub problems: Vec<String>,
}

impl CheckReport {
    /// Whether nothing is wrong. A key that was not given is not wrong.
    pub fn is_sound(&self) -> bool {
        let key_fits = match self.sealed {
            SealState::Nothing | SealState::NotChecked | SealState::Ok => true,
            SealState::KeyMissing | SealState::KeyWrong | SealState::KeyUnusable { .. } => false,
        };
        self.unreadable.is_empty() && self.problems.is_empty() && key_fits
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadableRecord {
    pub key: String,
    pub reason: String,
}

/// Whether the key file opens the store's secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum SealState {
    /// The store has never sealed anything.
    Nothing,
    /// No key file was named.
    NotChecked,
    Ok,
    KeyMissing,
    KeyWrong,
    KeyUnusable {
        reason: String,
    },
}

/// Reads everything once; the server may be running.
pub async fn check(location: &StoreLocation, key_file: Option<&Path>) -> StoreResult<CheckReport> {
    match location {
        StoreLocation::Embedded { data_dir } => {
            let db = layout::db_path(data_dir);
            let (listing, problems) = on_blocking_thread(move || read_file(&db)).await?;
            Ok(report(&listing, problems, key_file))
        }
        StoreLocation::Etcd { endpoints, options } => {
            let etcd = Etcd::open(endpoints, options).await?;
            let listing = etcd.list("", &Page::ALL).await?;
            let problems = match etcd.refuse_unfinished_restore().await {
                Ok(()) => Vec::new(),
                Err(error) => vec![error.to_string()],
            };
            etcd.close();
            Ok(report(&listing, problems, key_file))
        }
    }
}

/// What can be read of the file, and what is wrong with it.
fn read_file(db: &Path) -> StoreResult<(RawListing, Vec<String>)> {
    std::fs::metadata(db).map_err(|source| crate::embedded::lock::io_error("read", db, source))?;
    let conn = layout::open_reader(db)?;
    layout::ensure_layout(&conn, db)?;
    let mut problems = integrity_problems(&conn).map_err(|error| classify(db, error))?;
    match reader::list(&conn, "", &Page::ALL) {
        Ok(listing) => Ok((listing, problems)),
        Err(error) => {
            problems.push(format!("the records cannot be listed: {error}"));
            let revision = Revision(layout::revision(&conn).unwrap_or(0));
            Ok((RawListing { entries: Vec::new(), revision, more: false }, problems))
        }
    }
}

fn report(listing: &RawListing, problems: Vec<String>, key_file: Option<&Path>) -> CheckReport {
    let mut report = CheckReport {
        revision: listing.revision,
        schema: None,
        writer: None,
        records: BTreeMap::new(),
        unreadable: Vec::new(),
        sealed: SealState::Nothing,
        problems,
    };
    for raw in &listing.entries {
        let entry = &raw.entry;
        if entry.key.starts_with(META_PREFIX) {
            report.add_meta(entry, key_file);
        } else if !raw.leased {
            report.add_record(entry);
        }
    }
    report
}

impl CheckReport {
    fn add_meta(&mut self, entry: &Entry, key_file: Option<&Path>) {
        match entry.key.as_str() {
            SCHEMA_KEY => match StoreSchema::decode(entry) {
                Ok(StoreSchema { schema, writer }) => {
                    (self.schema, self.writer) = (Some(schema), Some(writer));
                    if schema > SCHEMA {
                        self.problems.push(format!(
                            "the store has schema {schema}; this wharf knows schemas up to {SCHEMA}"
                        ));
                    }
                }
                Err(error) => self.problems.push(error.to_string()),
            },
            SEAL_KEY => self.sealed = seal_state(entry, key_file),
            _ => {}
        }
    }

    fn add_record(&mut self, entry: &Entry) {
        let kind = entry.key.split('/').next().unwrap_or_default();
        *self.records.entry(kind.to_owned()).or_default() += 1;
        let reason = match serde_json::from_slice::<Envelope<serde_json::Value>>(&entry.value) {
            Ok(envelope) if envelope.schema <= SCHEMA => return,
            Ok(envelope) => format!("it has schema {}, this wharf knows {SCHEMA}", envelope.schema),
            Err(error) => error.to_string(),
        };
        self.unreadable.push(UnreadableRecord { key: entry.key.clone(), reason });
    }
}

fn seal_state(canary: &Entry, key_file: Option<&Path>) -> SealState {
    let Some(key_file) = key_file else { return SealState::NotChecked };
    match Sealer::open_existing(canary, key_file) {
        Ok(_) => SealState::Ok,
        Err(StoreError::KeyMissing { .. }) => SealState::KeyMissing,
        Err(StoreError::KeyWrong { .. }) => SealState::KeyWrong,
        Err(error) => SealState::KeyUnusable { reason: error.to_string() },
    }
}
