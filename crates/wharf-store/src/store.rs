//! The one door to both back ends.

use std::{path::PathBuf, time::Duration};

use crate::{
    error::StoreResult,
    types::{Change, Entry, LeaseId, Listing, Outcome, Page, Revision, Txn},
};

/// The schema of the records that this version writes; see `migrate.rs`.
pub const SCHEMA: u32 = 1;

/// Where the records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// SQLite in the data directory.
    Embedded { data_dir: PathBuf },
    Etcd { endpoints: Vec<String>, options: EtcdOptions },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdOptions {
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    pub location: StoreLocation,
}

/// A cheap handle; clones share the back end.
#[derive(Clone)]
pub struct Store;

impl Store {
    pub async fn open(_options: &StoreOptions) -> StoreResult<Store> {
        todo!()
    }
    pub async fn get(&self, _key: &str) -> StoreResult<Option<Entry>> {
        todo!()
    }
    pub async fn list(&self, _prefix: &str, _page: Page) -> StoreResult<Listing> {
        todo!()
    }
    pub async fn commit(&self, _txn: Txn) -> StoreResult<Outcome> {
        todo!()
    }
    pub async fn revision(&self) -> StoreResult<Revision> {
        todo!()
    }
    /// Changes below `prefix` with a revision greater than `after`.
    pub async fn watch(&self, _prefix: &str, _after: Revision) -> StoreResult<Watch> {
        todo!()
    }
    pub async fn grant_lease(&self, _ttl: Duration) -> StoreResult<LeaseId> {
        todo!()
    }
    pub async fn keep_alive(&self, _lease: LeaseId) -> StoreResult<()> {
        todo!()
    }
    pub async fn revoke_lease(&self, _lease: LeaseId) -> StoreResult<()> {
        todo!()
    }
    /// Waits until what is under way is written, then releases files and connections.
    pub async fn close(&self) {
        todo!()
    }
}

pub struct Watch;

impl Watch {
    /// The next changes in order, all of one or several whole transactions.
    pub async fn next(&mut self) -> StoreResult<Vec<Change>> {
        todo!()
    }
}
