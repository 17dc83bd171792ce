//! A server as the others see it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::{cluster::ServerId, record::Kind};
use wharf_store::{Decoded, Store, StoreResult};

/// How long a server that is gone still counts. Short enough that another takes over within 10 s,
/// long enough to survive two lost keep-alives on a busy machine.
pub const MEMBER_TTL: Duration = Duration::from_secs(5);

/// The record under a server's lease; it vanishes with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: ServerId,
    pub address: String,
    /// Where it hears agents, as far as that is known.
    #[serde(default)]
    pub agents: Vec<String>,
    pub version: String,
    pub started_at: Timestamp,
}

impl Kind for Member {
    const KIND: &'static str = "member";
}

/// The servers that hold a lease now.
pub async fn observe_members(store: &Store) -> StoreResult<Vec<ServerId>> {
    let (members, _) = store.read_all::<Member>("").await?;
    // By their keys: a record of another version that cannot be read is a member all the same.
    let id = |member: Decoded<Member>| member.map_or_else(|unreadable| unreadable.id, |m| m.id);
    Ok(members.into_iter().map(|member| ServerId(id(member))).collect())
}
