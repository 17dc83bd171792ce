//! Looking a store over without changing it.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use super::{PAGE, integrity_problems};
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
    check_in_pages(location, key_file, PAGE).await
}

pub(super) async fn check_in_pages(
    location: &StoreLocation,
    key_file: Option<&Path>,
    page: usize,
) -> StoreResult<CheckReport> {
    match location {
        StoreLocation::Embedded { data_dir } => {
            let (data_dir, key_file) = (data_dir.clone(), key_file.map(Path::to_owned));
            on_blocking_thread(move || check_embedded(&data_dir, key_file.as_deref(), page)).await
        }
        StoreLocation::Etcd { endpoints, options } => {
            let etcd = Etcd::open(endpoints, options).await?;
            let report = check_etcd(&etcd, key_file, page).await;
            etcd.close();
            report
        }
    }
}

/// What can be read of the file, and what is wrong with it.
fn check_embedded(
    data_dir: &Path,
    key_file: Option<&Path>,
    page: usize,
) -> StoreResult<CheckReport> {
    let db = layout::db_path(data_dir);
    let failed = |error| classify(&db, error);
    let conn = layout::open_existing(data_dir)?;
    let problems = integrity_problems(&conn).map_err(failed)?;
    // One transaction, so that all pages are of one moment.
    let snapshot = conn.unchecked_transaction().map_err(failed)?;
    let revision = Revision(layout::revision(&snapshot).unwrap_or(0));
    let mut report = CheckReport::new(revision, problems);
    let mut next = Some(Page::first(page));
    while let Some(page) = next {
        match reader::list_in(&snapshot, "", &page) {
            Ok(listing) => {
                report.add(&listing, key_file);
                next = page.next(&listing);
            }
            Err(error) => {
                report.problems.push(format!("the records cannot be listed: {error}"));
                next = None;
            }
        }
    }
    Ok(report)
}

async fn check_etcd(etcd: &Etcd, key_file: Option<&Path>, page: usize) -> StoreResult<CheckReport> {
    let problems = match etcd.refuse_unfinished_restore().await {
        Ok(()) => Vec::new(),
        Err(error) => vec![error.to_string()],
    };
    loop {
        match check_etcd_at_one_revision(etcd, problems.clone(), key_file, page).await {
            // The history was compacted between two pages: begin again at a newer revision.
            Err(StoreError::Compacted { .. }) => tracing::debug!("a long check begins again"),
            done => return done,
        }
    }
}

async fn check_etcd_at_one_revision(
    etcd: &Etcd,
    problems: Vec<String>,
    key_file: Option<&Path>,
    page: usize,
) -> StoreResult<CheckReport> {
    let first = Page::first(page);
    let mut listing = etcd.list_at("", &first, None).await?;
    let mut report = CheckReport::new(listing.revision, problems);
    report.add(&listing, key_file);
    while let Some(page) = first.next(&listing) {
        listing = etcd.list_at("", &page, Some(report.revision)).await?;
        report.add(&listing, key_file);
    }
    Ok(report)
}

impl CheckReport {
    fn new(revision: Revision, problems: Vec<String>) -> CheckReport {
        CheckReport {
            revision,
            schema: None,
            writer: None,
            records: BTreeMap::new(),
            unreadable: Vec::new(),
            sealed: SealState::Nothing,
            problems,
        }
    }

    fn add(&mut self, listing: &RawListing, key_file: Option<&Path>) {
        for raw in &listing.entries {
            let entry = &raw.entry;
            if entry.key.starts_with(META_PREFIX) {
                self.add_meta(entry, key_file);
            } else if !raw.leased {
                self.add_record(entry);
            }
        }
    }

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
