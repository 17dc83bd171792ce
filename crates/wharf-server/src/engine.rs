//! The engine: which clusters this server works on, and the guarded way to write about them.
//!
//! Flow: hold a lease as a member; look at the members and the clusters whenever either changes;
//! take over what the rendezvous hash gives to this server; let go of the rest.
//!
//! Guarantees: a write through [`Fenced::commit`] happens only while the cluster's record carries
//! the epoch under which this server took it over. A server that was stopped and woke up, or that
//! was cut off, is refused by the store itself, whatever it believes.
//!
//! Assumptions: the members' clocks may differ; only the store's lease decides who is a member.

mod charge;
mod fenced;
mod journal;
pub mod keeper;
mod member;
mod owner;

use std::collections::BTreeMap;

pub use charge::OwnedCluster;
pub use fenced::{Fenced, FencedError};
pub use journal::Journal;
pub use member::{MEMBER_TTL, Member, observe_members};
pub use owner::{Engine, new_server_id};

/// The clusters that this server owns, each with the epoch under which it does.
pub type Owned = BTreeMap<String, u64>;
