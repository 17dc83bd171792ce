//! The lease of an agent: how long it may act, and when others may act in its place.
//!
//! An agent renews its lease and counts from the moment at which it *sent* the renewal, on a clock
//! that cannot be set. It stops granting when a renewal is late, and its self-fencing volumes are cut
//! off before the lease ends. Whoever waits for the end counts the whole duration from when it first saw
//! the last renewal itself, which is later than the cut on any clock. Where the storage shuts the holder
//! out as well, the stamp of the renewal is believed too, if no other was seen for half of the
//! duration: a wrong clock costs a healthy holder its volume there, but never its data.
//!
//! A lease that ended is never continued: the agent begins a new tenure, and what it held in the
//! old one counts for nothing until it is claimed anew. Otherwise an agent that comes back just when
//! another takes over would find its old entry and go on. A renewal that was answered after its
//! volumes had to be cut off does not continue it either: by then they may be.

use std::{fmt, time::Duration};

use jiff::Timestamp;

/// How leases are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub duration: Duration,
    pub renew_every: Duration,
    /// Cutting off all volumes of a node takes at most so long.
    pub cut_within: Duration,
    /// The clocks of two nodes differ by less, where they are compared.
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

    /// Whether a renewal whose answer is known now, and on the disk, continues this tenure: its volumes
    /// are cut off by the old end until then.
    pub fn goes_on(&self, now: SinceBoot, terms: &Terms) -> bool {
        now < self.cut_at(terms)
    }
}

/// What an agent does with the lease of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Rest {
        renew_at: SinceBoot,
    },
    /// The tenure goes on.
    Renew {
        number: u64,
    },
    /// A new tenure, after all that promised it was cut off in the old one.
    Begin {
        number: u64,
    },
    /// The lease has a tenure that was never on this disk: another machine has the same name, or the disk
    /// is another one. Whoever holds volumes by it has to end first, and what is held here counts for
    /// nothing.
    Foreign {
        until: Timestamp,
    },
}

/// Decides it. `held` is the last tenure of this boot, `kept` the highest number on the disk, `lease` what was
/// read and watched.
pub fn decide_keep(
    held: Option<Tenure>,
    kept: u64,
    lease: Option<&Sighting>,
    since_boot: SinceBoot,
    now: Timestamp,
    terms: &Terms,
) -> Keep {
    let foreign = lease.filter(|lease| lease.tenure > kept);
    if let Some(lease) = foreign {
        return match lease.ended_by_watch(lease.tenure, now, terms.skew) {
            Ended::Yes => Keep::Begin { number: lease.tenure.saturating_add(1) },
            Ended::NotBefore(until) => Keep::Foreign { until },
        };
    }
    match held.map(|held| (held.standing(since_boot, terms), held.number)) {
        Some((Standing::Held { renew_at }, _)) if since_boot < renew_at => Keep::Rest { renew_at },
        Some((Standing::Held { .. } | Standing::Late { .. }, number)) => Keep::Renew { number },
        Some((Standing::Over, _)) | None => Keep::Begin { number: kept.saturating_add(1) },
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
    /// Judges a tenure by our own watch alone, whatever the clocks say.
    pub fn ended_by_watch(&self, tenure: u64, now: Timestamp, margin: Duration) -> Ended {
        let whole = self.duration.saturating_add(margin);
        if self.tenure > tenure || self.unchanged_for > whole {
            return Ended::Yes;
        }
        Ended::NotBefore(later(now, whole.saturating_sub(self.unchanged_for)))
    }

    /// Judges a tenure whose holder the storage shuts out. `skew` bounds how far two clocks are apart.
    pub fn ended(&self, tenure: u64, now: Timestamp, skew: Duration) -> Ended {
        let by_watch = match self.ended_by_watch(tenure, now, skew) {
            Ended::Yes => return Ended::Yes,
            Ended::NotBefore(until) => until,
        };
        // A stamp from the future says that the clocks are worse than the bound. One from the past
        // may say so too: an agent that is well renews at least twice in the duration, so that
        // nobody who is well is pushed out for a wrong clock.
        let is_sane = self.renewed <= later(now, skew);
        let half = self.duration / 2;
        let by_stamp = later(self.renewed, self.duration.saturating_add(skew));
        if is_sane && self.unchanged_for >= half && now > by_stamp {
            return Ended::Yes;
        }
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
    fn a_lease_ends_for_others_by_its_stamp_where_storage_helps_or_by_their_own_watch() {
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

    #[test]
    fn a_renewal_that_was_answered_after_the_cut_continues_nothing() {
        let terms = Terms::default();
        let tenure = Tenure { number: 1, renewed: boot(100) };
        assert!(tenure.goes_on(SinceBoot(Duration::from_millis(114_999)), &terms));
        assert!(!tenure.goes_on(boot(115), &terms));
    }

    #[test]
    fn a_lease_of_somebody_else_is_waited_for_and_ends_what_is_held() {
        let terms = Terms::default();
        let held = Some(Tenure { number: 7, renewed: boot(100) });
        let lease = |tenure, unchanged_for| Sighting {
            tenure,
            renewed: at(0),
            duration: seconds(20),
            unchanged_for: seconds(unchanged_for),
        };
        let keep = |held, kept, lease: Option<Sighting>, since_boot| {
            decide_keep(held, kept, lease.as_ref(), boot(since_boot), at(0), &terms)
        };
        for (held, kept, lease, since_boot, expected) in [
            (None, 0, None, 100, Keep::Begin { number: 1 }),
            (held, 7, Some(lease(7, 0)), 103, Keep::Rest { renew_at: boot(104) }),
            (held, 7, Some(lease(7, 0)), 104, Keep::Renew { number: 7 }),
            (held, 7, Some(lease(7, 0)), 114, Keep::Renew { number: 7 }),
            (held, 7, Some(lease(7, 0)), 115, Keep::Begin { number: 8 }),
            // After a boot the lease of the last one is our own.
            (None, 7, Some(lease(7, 0)), 5, Keep::Begin { number: 8 }),
            // A tenure that was begun, and the lease never written.
            (None, 8, Some(lease(7, 0)), 5, Keep::Begin { number: 9 }),
            // Somebody deleted the lease.
            (held, 7, None, 104, Keep::Renew { number: 7 }),
            // A disk that does not know the lease: whoever has it may be writing.
            (None, 0, Some(lease(7, 0)), 5, Keep::Foreign { until: at(23) }),
            (None, 0, Some(lease(7, 23)), 5, Keep::Foreign { until: at(0) }),
            (None, 0, Some(lease(7, 24)), 5, Keep::Begin { number: 8 }),
            (held, 7, Some(lease(8, 0)), 101, Keep::Foreign { until: at(23) }),
            (held, 7, Some(lease(8, 24)), 101, Keep::Begin { number: 9 }),
        ] {
            assert_eq!(keep(held, kept, lease, since_boot), expected, "{held:?} {kept} {lease:?}");
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
            // By the watch alone no clock matters, however wrong it is.
            let wrong = at(i64::try_from(now).unwrap() + taker_offset * 1_000);
            if sighting.ended_by_watch(1, wrong, terms.skew) == Ended::Yes {
                assert!(boot(now) >= cut_done, "{taker_offset} {now}");
            }
            if sighting.ended(1, taker_now, terms.skew) == Ended::Yes {
                assert!(boot(now) >= cut_done, "{holder_offset} {taker_offset} {now}");
                return;
            }
        }
        panic!("it never ends");
    }
}
