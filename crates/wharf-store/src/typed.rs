//! Records of a kind, on top of plain keys and values.
//!
//! A record lies under `<kind>/<id>` as `{"schema":1,"at":"2026-01-01T00:00:00Z","event":null,
//! "data":{…}}`. The schema says which migrations it has seen, the time when it was written, and
//! the event, if any, under which name the change is published instead of `<kind>.updated`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    error::{StoreError, StoreResult},
    store::{SCHEMA, Store},
    types::{Compare, Entry, Op, Page, Revision, Txn},
};

pub use wharf_core::record::Kind;

/// The key of a record.
pub fn key_of<T: Kind>(id: &str) -> String {
    format!("{}/{id}", T::KIND)
}

/// A record as it was read, with what is needed to replace it safely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<T> {
    pub id: String,
    pub value: T,
    pub created: Revision,
    pub revision: Revision,
    /// When it was written, by the clock of the server that wrote it.
    pub at: Timestamp,
}

/// A record that is there but cannot be read. It is listed, never dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub id: String,
    pub revision: Revision,
    pub reason: String,
}

pub type Decoded<T> = Result<Stored<T>, Unreadable>;

/// A record's value with what the store itself wants to know of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub schema: u32,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    pub data: T,
}

impl<T: Kind> Stored<T> {
    pub fn decode(entry: &Entry) -> Decoded<T> {
        let id = entry.key.split_once('/').map_or(entry.key.as_str(), |(_, id)| id).to_owned();
        match serde_json::from_slice::<Envelope<T>>(&entry.value) {
            Ok(envelope) => Ok(Stored {
                id,
                value: envelope.data,
                created: entry.created,
                revision: entry.modified,
                at: envelope.at,
            }),
            Err(error) => {
                Err(Unreadable { id, revision: entry.modified, reason: error.to_string() })
            }
        }
    }

    /// The condition that nobody wrote the record since it was read.
    pub fn unchanged(&self) -> Compare {
        Compare::ModifiedAt(key_of::<T>(&self.id), self.revision)
    }
}

impl Store {
    /// Reads one record; `None` if there is none, an error if it cannot be read.
    pub async fn read<T: Kind>(&self, id: &str) -> StoreResult<Option<Stored<T>>> {
        let key = key_of::<T>(id);
        let Some(entry) = self.get(&key).await? else { return Ok(None) };
        match Stored::decode(&entry) {
            Ok(stored) => Ok(Some(stored)),
            Err(unreadable) => Err(StoreError::Unreadable { key, reason: unreadable.reason }),
        }
    }

    /// Reads all records of a kind whose id begins with `id_prefix`, with the revision of the list.
    pub async fn read_all<T: Kind>(
        &self,
        id_prefix: &str,
    ) -> StoreResult<(Vec<Decoded<T>>, Revision)> {
        let listing = self.list(&key_of::<T>(id_prefix), Page::ALL).await?;
        Ok((listing.entries.iter().map(Stored::decode).collect(), listing.revision))
    }
}

/// Typed writes of a transaction. `at` is the time of the change, given by the caller.
impl Txn {
    /// Creates a record; refused if there is one.
    pub fn create<T: Kind>(self, id: &str, value: &T, at: Timestamp) -> StoreResult<Txn> {
        let key = key_of::<T>(id);
        self.when(Compare::Absent(key)).write(id, value, at, None)
    }

    /// Replaces a record that was read before; refused if it changed since.
    pub fn replace<T: Kind>(self, old: &Stored<T>, value: &T, at: Timestamp) -> StoreResult<Txn> {
        self.when(old.unchanged()).write(&old.id, value, at, None)
    }

    /// Deletes a record that was read before; refused if it changed since.
    pub fn remove<T: Kind>(self, old: &Stored<T>) -> Txn {
        self.when(old.unchanged()).delete(key_of::<T>(&old.id))
    }

    /// Writes a record whatever is there, published under the name `event` if there is one.
    pub fn write<T: Kind>(
        self,
        id: &str,
        value: &T,
        at: Timestamp,
        event: Option<&str>,
    ) -> StoreResult<Txn> {
        let value = encode(id, value, at, event)?;
        Ok(self.op(Op::Put { key: key_of::<T>(id), value, lease: None }))
    }
}

/// A record's value as it is stored, for writers that need it apart from a [`Txn`].
pub fn encode<T: Kind>(
    id: &str,
    value: &T,
    at: Timestamp,
    event: Option<&str>,
) -> StoreResult<Vec<u8>> {
    let envelope = Envelope { schema: SCHEMA, at, event: event.map(str::to_owned), data: value };
    serde_json::to_vec(&envelope)
        .map_err(|source| StoreError::Encode { key: key_of::<T>(id), source })
}
