//! A clock that nobody can set, for whoever waits and hands out deadlines.

use jiff::Timestamp;
use tokio::time::Instant;

/// It begins with the machine's time and then only counts: whoever decides by it is not misled when
/// the machine's time is set. What is shown to people is told by [`Timestamp::now`] instead.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    begun: (Timestamp, Instant),
}

impl Clock {
    pub fn start() -> Self {
        Self { begun: (Timestamp::now(), Instant::now()) }
    }

    pub fn now(&self) -> Timestamp {
        self.time_of(Instant::now())
    }

    /// What this clock showed at a moment; at one before the beginning, the beginning.
    pub fn time_of(&self, moment: Instant) -> Timestamp {
        let (from, begun) = self.begun;
        from.checked_add(moment.saturating_duration_since(begun)).unwrap_or(Timestamp::MAX)
    }

    /// The moment at which this clock shows a time; one that has passed is the beginning.
    pub fn moment(&self, time: Timestamp) -> Instant {
        let (from, begun) = self.begun;
        let wait = time.duration_since(from).unsigned_abs();
        let later = if time < from { None } else { begun.checked_add(wait) };
        later.unwrap_or(begun)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_counts_from_the_machines_time_and_finds_the_moments_of_its_times() {
        let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let seven = Duration::from_secs(7);
        let clock = Clock { begun: (begin, Instant::now() - seven) };
        let now = clock.now();
        assert!(now >= begin + seven && now < begin + 10 * seven, "{now}");
        assert_eq!(clock.moment(begin + seven), clock.begun.1 + seven);
        assert_eq!(clock.moment(begin - seven), clock.begun.1);
        assert_eq!(clock.time_of(clock.begun.1 + seven), begin + seven);
        assert_eq!(clock.time_of(clock.begun.1 - seven), begin);
    }
}
