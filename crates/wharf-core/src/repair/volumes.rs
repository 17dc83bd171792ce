//! Taking a machine's volumes from it before a command cuts its power.
//!
//! The Node is marked, so that agents let nobody attach there any more, and take from it what its
//! storage can shut it out of. Only those volumes are worth waiting for: the others are held for as
//! long as the machine runs, and end with it.

use jiff::Timestamp;

use crate::volume::backend::Backend;

/// A volume that a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldVolume {
    pub volume: String,
    /// Its namespace and name.
    pub pod: String,
    /// `None` when its storage cluster is gone.
    pub backend: Option<Backend>,
}

/// How far it is. The sentences name what is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fencing {
    Wait(Vec<String>),
    /// Waiting longer is of no use.
    Done(Vec<String>),
}

pub fn decide_fencing(held: &[HeldVolume], now: Timestamp, until: Timestamp) -> Fencing {
    let is_late = now >= until;
    let sentence = |one: &HeldVolume| {
        let why = match one.backend {
            Some(backend) if backend.refuses_old_clients() && is_late => {
                "nobody has shut the node out of it in time".to_owned()
            }
            Some(backend) if backend.refuses_old_clients() => "it is being shut out".to_owned(),
            Some(backend) => format!("a client of {backend} ends only with its machine"),
            None => "its storage cluster is gone".to_owned(),
        };
        format!("volume {} of pod {}: {why}", one.volume, one.pod)
    };
    let may_leave = |one: &HeldVolume| one.backend.is_some_and(Backend::refuses_old_clients);
    let said = held.iter().map(sentence).collect();
    if !is_late && held.iter().any(may_leave) { Fencing::Wait(said) } else { Fencing::Done(said) }
}
