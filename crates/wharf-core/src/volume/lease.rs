//! The lease of an agent: how long it may act, and when others may act in its place.
//!
//! An agent renews its lease and counts from the moment at which it *sent* the renewal, on a clock
//! that cannot be set. It stops granting when a renewal is late, and its self-fencing volumes are cut
//! off before the lease ends. Whoever waits for the end counts the whole duration and the bound of
//! the clocks from the stamp of the renewal, or from when it first saw that renewal itself. Both ends
//! are later than the cut, so that nothing has to be agreed on. A stamp alone is not believed: no
//! renewal must have been seen for half of the duration.
//!
//! A lease that ended is never continued: the agent begins a new tenure, and what it held in the
//! old one counts for nothing until it is claimed anew. Otherwise an agent that comes back just when
//! another takes over would find its old entry and go on.

use std::{fmt, time::Duration};

use jiff::Timestamp;

/// How leases are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub duration: Duration,
    pub renew_every: Duration,
    /// Cutting off all volumes of a node takes at most so long.
    pub cut_within: Duration,
    /// The clocks of two nodes differ by less.
    pub skew: Duration,
}

impl Default for Terms {
    /// A node that is lost is replaced within half a minute; three renewals may be missed.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(20),
            renew_every: Duration::from_secs(4),
            cut_within: Duration::from_secs(5),
            skew: Duration::from_secs(3),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TermsFault {
    #[error("a lease must be renewed at least every second")]
    NeverRenewed,
    #[error("two renewals and the time to cut volumes off must fit into the duration of the lease")]
    TooShort,
}

impl Terms {
    pub fn check(&self) -> Result<(), TermsFault> {
        if self.renew_every < Duration::from_secs(1) {
            return Err(TermsFault::NeverRenewed);
        }
        let needed = self.renew_every.saturating_mul(2).saturating_add(self.cut_within);
        if needed > self.duration { Err(TermsFault::TooShort) } else { Ok(()) }
    }
}

/// A reading of the clock that counts from boot, also through sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SinceBoot(pub Duration);

impl SinceBoot {
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

/// One unbroken hold of the lease by its agent.
///
/// The number is the lease's `leaseTransitions`. It rises whenever the lease is taken again after it
/// ended or after a boot, never by a renewal. The agent keeps it on its disk as well, so that it does
/// not fall when the lease object is deleted. A new tenure is begun only after everything that
/// promised it in the old one is cut off: others take a higher number as the proof of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    pub number: u64,
    /// When the last renewal that succeeded was sent. This clock is read before the one that stamps
    /// the renewal, so that others count from a later moment.
    pub renewed: SinceBoot,
}

/// What an agent may do by its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// All is well until the time.
    Held { renew_at: SinceBoot },
    /// A renewal is overdue: nothing new is granted, what is there goes on until the time.
    Late { cut_at: SinceBoot },
    /// Cut off, now. Nothing of this tenure may be used again.
    Over,
}

impl Tenure {
    /// When self-fencing volumes must begin to be cut off, whatever has become of the agent. It is
    /// kept where something that outlives the agent's process sees it.
    pub fn cut_at(&self, terms: &Terms) -> SinceBoot {
        self.renewed.after(terms.duration.saturating_sub(terms.cut_within))
    }

    pub fn standing(&self, now: SinceBoot, terms: &Terms) -> Standing {
        let cut_at = self.cut_at(terms);
        let renew_at = self.renewed.after(terms.renew_every);
        // One renewal may be on its way; the second one that is missing is a reason to stop.
        let late_at = renew_at.after(terms.renew_every);
        if now >= cut_at {
            Standing::Over
        } else if now >= late_at {
            Standing::Late { cut_at }
        } else {
            Standing::Held { renew_at }
        }
    }
}

/// A lease as another node read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    pub tenure: u64,
    /// The stamp of the last renewal, by the holder's clock.
    pub renewed: Timestamp,
    /// What the holder promised, whatever we would.
    pub duration: Duration,
    /// How long we have seen this very renewal, by our clock that cannot be set.
    pub unchanged_for: Duration,
}

/// Whether the tenure in which an entry was written lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Yes,
    /// It may end then, if no renewal comes.
    NotBefore(Timestamp),
}

impl Sighting {
    /// Judges a tenure. `skew` bounds how far two clocks are apart.
    pub fn ended(&self, tenure: u64, now: Timestamp, skew: Duration) -> Ended {
        if self.tenure > tenure {
            return Ended::Yes;
        }
        let whole = self.duration.saturating_add(skew);
        // A stamp from the future says that the clocks are worse than the bound. One from the past
        // may say so too: an agent that is well renews at least twice in the duration, so that
        // nobody who is well is pushed out for a wrong clock.
        let is_sane = self.renewed <= later(now, skew);
        let half = self.duration / 2;
        let by_stamp = later(self.renewed, whole);
        let stamp_ended = is_sane && self.unchanged_for >= half && now > by_stamp;
        if stamp_ended || self.unchanged_for > whole {
            return Ended::Yes;
        }
        let by_watch = later(now, whole.saturating_sub(self.unchanged_for));
        let by_stamp = by_stamp.max(later(now, half.saturating_sub(self.unchanged_for)));
        Ended::NotBefore(if is_sane { by_stamp.min(by_watch) } else { by_watch })
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Standing::Held { .. } => "the agent holds its lease",
            Standing::Late { .. } => {
                "the agent could not renew its lease, so nothing new is attached"
            }
            Standing::Over => "the agent's lease has ended, so its volumes are cut off",
        })
    }
}

pub(super) fn later(from: Timestamp, by: Duration) -> Timestamp {
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn boot(number: u64) -> SinceBoot {
        SinceBoot(seconds(number))
    }

    fn at(number: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + number).unwrap()
    }

    #[test]
    fn granting_stops_before_volumes_are_cut_off_and_that_before_the_lease_ends() {
        let terms = Terms::default();
        let tenure = Tenure { number: 1, renewed: boot(100) };
        for (now, expected) in [
            (100, Standing::Held { renew_at: boot(104) }),
            (107, Standing::Held { renew_at: boot(104) }),
            (108, Standing::Late { cut_at: boot(115) }),
            (114, Standing::Late { cut_at: boot(115) }),
            (115, Standing::Over),
            (999, Standing::Over),
        ] {
            assert_eq!(tenure.standing(boot(now), &terms), expected, "{now}");
        }
    }

    #[test]
    fn terms_that_leave_no_time_to_cut_off_are_refused() {
        assert_eq!(Terms::default().check(), Ok(()));
        let tight = Terms { cut_within: seconds(13), ..Terms::default() };
        assert_eq!(tight.check(), Err(TermsFault::TooShort));
        let never = Terms { renew_every: Duration::ZERO, ..Terms::default() };
        assert_eq!(never.check(), Err(TermsFault::NeverRenewed));
    }

    #[test]
    fn a_lease_ends_for_others_by_its_stamp_or_by_their_own_watch() {
        let terms = Terms::default();
        let seen = |renewed, unchanged_for| Sighting {
            tenure: 3,
            renewed: at(renewed),
            duration: seconds(20),
            unchanged_for: seconds(unchanged_for),
        };
        for (sighting, now, tenure, expected) in [
            (seen(0, 10), 23, 3, Ended::NotBefore(at(23))),
            (seen(0, 10), 24, 3, Ended::Yes),
            // Nothing but the stamp speaks for it: the holder's clock may be wrong.
            (seen(0, 0), 24, 3, Ended::NotBefore(at(34))),
            (seen(0, 9), 999, 3, Ended::NotBefore(at(1_000))),
            (seen(0, 24), 10, 3, Ended::Yes),
            (seen(0, 20), 10, 3, Ended::NotBefore(at(13))),
            // Of an earlier tenure, the end is certain.
            (seen(0, 0), 1, 2, Ended::Yes),
            // Clocks that are worse than the bound are not believed.
            (seen(50, 5), 1, 3, Ended::NotBefore(at(19))),
            (seen(50, 24), 1, 3, Ended::Yes),
        ] {
            assert_eq!(sighting.ended(tenure, at(now), terms.skew), expected, "{sighting:?}");
        }
    }

    /// All offsets of clocks within the bound, all delays of the renewal: whoever may take over
    /// does so after the cut has ended.
    #[test]
    fn nobody_may_take_over_before_the_holder_is_cut_off() {
        let terms = Terms::default();
        for holder_offset in -3..=3_i64 {
            for taker_offset in -3..=3_i64 {
                if (holder_offset - taker_offset).abs() > 3 {
                    continue;
                }
                for seen_after in 0..8 {
                    check(&terms, holder_offset, taker_offset, seen_after);
                }
            }
        }
    }

    fn check(terms: &Terms, holder_offset: i64, taker_offset: i64, seen_after: u64) {
        let sent = 1_000_u64;
        let tenure = Tenure { number: 1, renewed: boot(sent) };
        let cut_done = tenure.cut_at(terms).after(terms.cut_within);
        for now in sent + seen_after..sent + 60 {
            let sighting = Sighting {
                tenure: 1,
                renewed: at(1_000 + holder_offset),
                duration: terms.duration,
                unchanged_for: seconds(now - sent - seen_after),
            };
            let taker_now = at(i64::try_from(now).unwrap() + taker_offset);
            if sighting.ended(1, taker_now, terms.skew) == Ended::Yes {
                assert!(boot(now) >= cut_done, "{holder_offset} {taker_offset} {now}");
                return;
            }
        }
        panic!("it never ends");
    }
}
