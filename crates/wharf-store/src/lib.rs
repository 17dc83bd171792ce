//! Durable records with the semantics of etcd, on SQLite in the data directory or on etcd itself.
//!
//! A store is a map from keys to values with one global [`Revision`] that every commit raises.
//! Everything that Wharf does rests on four promises, kept by both back ends and proven by one
//! contract suite (`tests/contract.rs`):
//!
//! 1. An acknowledged [`Txn`] is on disk, whole, and survives `kill -9` and a power cut.
//! 2. A transaction commits only when all its [`Compare`]s hold, atomically.
//! 3. A [`Watch`] from a revision sees every later change once and in order, or learns that it
//!    cannot ([`StoreError::Compacted`]). A slow watcher never delays a writer.
//! 4. A key that is bound to a lease is gone once the lease is.
//!
//! **Invariant:** nothing here knows what a cluster or a user is; [`typed`] turns values into
//! records of any [`Kind`], [`seal`] encrypts secrets before they get here.
//!
//! Start reading at [`Store`], then `embedded.rs` and `etcd.rs`.

pub mod backup;
mod embedded;
pub mod error;
mod etcd;
pub mod lease;
pub mod limits;
mod migrate;
pub mod seal;
pub mod store;
pub mod typed;
pub mod types;

pub use error::{StoreError, StoreResult};
pub use lease::Held;
pub use seal::{Sealed, Sealer};
pub use store::{EtcdOptions, HISTORY_REVISIONS, Store, StoreLocation, StoreOptions, Watch};
pub use typed::{Decoded, Kind, Stored, Unreadable};
pub use types::{Change, Compare, Entry, LeaseId, Listing, Op, Outcome, Page, Revision, Txn};
