//! What the guard of a node's volumes has to do, and whether there is one that can be relied on.
//!
//! The guard outlives the agent. It cuts off what promised it when the agent's lease ends, and says
//! every second that it still looks. The agent renews its lease only while it hears that from the very
//! guard that it would start itself: one that hangs, or is of an older version and may not know what
//! is written today, is replaced first.
//!
//! Others take over when the lease has ended, whether or not the cut succeeded: nobody can tell them.
//! What is not known to be cut off by then is therefore a reason to force the whole machine down, where
//! that is wanted.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    journal::{DeviceStage, Journal},
    lease::SinceBoot,
};

/// How often the guard looks, and says so.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A guard that has not said so for as long hangs. A busy machine may be late by seconds, and an agent
/// that is not sure does not renew: it must notice long before its lease ends.
pub const BEAT_STALE: Duration = Duration::from_secs(5);

/// By when the volumes of a tenure have to be cut off, by the clock that counts from boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    pub cut_at: SinceBoot,
    /// The lease ends, and others count on it.
    pub ends_at: SinceBoot,
}

/// What the guard has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Nothing for so long, if the agent does not renew.
    Rest(Duration),
    /// Cut off all that promised it, also what was cut already: an agent that was stopped may have gone
    /// on with a mount.
    Cut,
    /// The same; and what is not known to be cut off then is written to while others take over.
    LastCall,
}

pub fn decide_duty(watch: &Watch, now: SinceBoot) -> Duty {
    let left = watch.cut_at.0.saturating_sub(now.0);
    if !left.is_zero() {
        Duty::Rest(left)
    } else if now < watch.ends_at {
        Duty::Cut
    } else {
        Duty::LastCall
    }
}

/// Whether a volume promised to be cut off with its tenure, and may still be written to.
pub fn is_open(journal: &Journal, boot_id: &str) -> bool {
    let mut grants = journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
    grants.any(|entry| entry.self_fence)
        && journal.boot_id == boot_id
        && journal.device != DeviceStage::Absent
        && !journal.cut
}

/// The last word of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Which program it is, and what it was started with.
    pub guard: String,
    pub boot_id: String,
    /// When it last had nothing left to look at: milliseconds since boot.
    pub turned: u64,
}

/// Whether a guard can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    Well,
    /// None has said anything in this boot.
    None,
    Other,
    Stale(Duration),
}

/// `own` is the guard that the agent would start itself.
pub fn decide_pulse(beat: Option<&Beat>, own: &str, boot_id: &str, now: SinceBoot) -> Pulse {
    let Some(beat) = beat.filter(|beat| beat.boot_id == boot_id) else { return Pulse::None };
    let since = now.0.saturating_sub(Duration::from_millis(beat.turned));
    if beat.guard != own {
        Pulse::Other
    } else if since > BEAT_STALE {
        Pulse::Stale(since)
    } else {
        Pulse::Well
    }
}

impl fmt::Display for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pulse::Well => f.write_str("the guard of volumes runs"),
            Pulse::None => f.write_str("no guard of volumes runs"),
            Pulse::Other => f.write_str("the guard of volumes is of another version"),
            Pulse::Stale(since) => {
                write!(f, "the guard of volumes has not looked for {} s", since.as_secs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(millis: u64) -> SinceBoot {
        SinceBoot(Duration::from_millis(millis))
    }

    #[test]
    fn volumes_are_cut_off_before_the_lease_ends_and_that_is_the_last_moment() {
        let watch = Watch { cut_at: boot(15_000), ends_at: boot(20_000) };
        for (now, duty) in [
            (0, Duty::Rest(Duration::from_secs(15))),
            (14_999, Duty::Rest(Duration::from_millis(1))),
            (15_000, Duty::Cut),
            (19_999, Duty::Cut),
            (20_000, Duty::LastCall),
            (99_000, Duty::LastCall),
        ] {
            assert_eq!(decide_duty(&watch, boot(now)), duty, "{now}");
        }
    }

    #[test]
    fn only_a_guard_of_our_own_that_has_just_looked_is_relied_on() {
        let beat = |guard: &str, boot: &str, turned| {
            Some(Beat { guard: guard.to_owned(), boot_id: boot.to_owned(), turned })
        };
        for (beat, pulse) in [
            (None, Pulse::None),
            (beat("1", "before", 60_000), Pulse::None),
            (beat("0", "now", 60_000), Pulse::Other),
            (beat("1", "now", 55_000), Pulse::Well),
            (beat("1", "now", 60_001), Pulse::Well),
            (beat("1", "now", 54_999), Pulse::Stale(Duration::from_millis(5_001))),
        ] {
            assert_eq!(decide_pulse(beat.as_ref(), "1", "now", boot(60_000)), pulse, "{beat:?}");
        }
    }
}
