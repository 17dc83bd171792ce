//! The leases of other nodes, as this one has watched them.
//!
//! Where no storage shuts a holder out, nothing but this watch says that it has ended. So no more is
//! believed than what was seen: a lease is known to be unchanged from the moment at which it was first
//! there until it was last *asked* for. An answer may be long on its way, and the holder may have renewed
//! meanwhile.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;

/// By node.
#[derive(Default)]
pub struct Sightings(Mutex<BTreeMap<String, Seen>>);

/// A renewal, and since when it is known to be the last.
struct Seen {
    renewal: Renewal,
    since: Instant,
}

/// Tenure and stamp.
type Renewal = (u64, Timestamp);

impl Sightings {
    /// Notes a lease that was asked for at one time and there at the other. Says for how long it has not
    /// changed.
    pub fn note(&self, node: &str, renewal: Renewal, asked: Instant, now: Instant) -> Duration {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.entry(node.to_owned()).or_insert_with(|| Seen { renewal, since: now });
        if known.renewal != renewal {
            *known = Seen { renewal, since: now };
        }
        asked.saturating_duration_since(known.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_an_answer_is_no_time_in_which_nothing_was_renewed() {
        let sightings = Sightings::default();
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let stamp = |seconds| (1, Timestamp::from_second(seconds).unwrap());
        let unchanged =
            |renewal, asked, now| sightings.note("n1", renewal, at(asked), at(now)).as_secs();
        assert_eq!(unchanged(stamp(100), 0, 2), 0);
        assert_eq!(unchanged(stamp(100), 12, 13), 10);
        // It was read before the holder renewed, and came long after.
        assert_eq!(unchanged(stamp(100), 15, 26), 13);
        assert_eq!(unchanged(stamp(104), 27, 28), 0);
        assert_eq!(unchanged(stamp(104), 40, 40), 12);
        // A new tenure is another lease, whatever its stamp is.
        assert_eq!(unchanged((2, stamp(104).1), 41, 42), 0);
        // Asked for before it was first seen, by somebody else beside us.
        assert_eq!(unchanged((2, stamp(104).1), 41, 43), 0);
        assert_eq!(sightings.note("n2", stamp(104), at(60), at(60)), Duration::ZERO);
    }
}
