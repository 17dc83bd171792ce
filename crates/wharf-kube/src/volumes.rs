//! Volumes as the API server knows them: who may use one, its PersistentVolume, the storage behind it,
//! and the leases of the agents that hold volumes.
//!
//! Every write here holds only for what was seen: it says so when somebody was faster, and changes
//! nothing then.

mod claims;
mod garbage;
mod lease;
mod look;
mod objects;
mod persistent;
mod record;
mod watch;

pub use claims::{ClaimSeen, StorageClass, bytes};
pub use garbage::Garbage;
pub use lease::AgentLease;
pub use look::{PendingPod, Volumes};
pub use objects::StorageCluster;
pub use persistent::PersistentVolume;
pub use watch::{Changes, StorageWatch};

/// The group of our own kinds.
const GROUP: &str = "/apis/wharf.dev/v1";
/// Where the agents' leases for volumes are.
pub const NAMESPACE: &str = "wharf-system";

const CONFLICT: u16 = 409;

/// What came of a write that holds only for what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written<T> {
    /// It is so now.
    Is(T),
    /// Somebody was faster; nothing was changed.
    Stale,
}

impl<T> Written<T> {
    /// A conflict, or something that is gone, is an answer and no failure.
    fn of(answer: crate::error::Result<T>) -> crate::error::Result<Self> {
        match answer {
            Ok(value) => Ok(Written::Is(value)),
            Err(error) if error.code() == Some(CONFLICT) || error.is_not_found() => {
                Ok(Written::Stale)
            }
            Err(error) => Err(error),
        }
    }
}
