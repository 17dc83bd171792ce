//! The repair queue of each cluster: the functions that the API and the pages call, and the engine
//! that works on it.
//!
//! Flow: a person's change is written down in one transaction with its audit record. The engine of
//! the cluster's owner sees it, lets [`wharf_core::repair::decide`] say what is next, stores that,
//! and only then begins it.
//!
//! Guarantees: every write is a compare-and-swap on the record that it changes, so that no deletion
//! and no reset is lost. The engine's writes are refused once another server owns the cluster.
//!
//! Start reading at [`change`] for what people do and at [`engine`] for what happens by itself.

mod board;
mod change;
mod command;
mod effects;
mod engine;
mod facts;
mod records;
mod session;
mod write;

pub use board::{Board, Live};
pub use change::{
    Listed, add, config, delete, delete_finished, delete_unfinished, list, reset_backoff,
    set_config, set_enabled,
};
pub use engine::keep;
pub use records::{empty, empty_fenced, forget, give_all_back};
