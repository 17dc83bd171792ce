//! Whether somebody set the node's clock.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// Clocks are corrected by parts of a second all the time.
const JUMP: Duration = Duration::from_secs(2);

/// What two clocks show at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub wall: Timestamp,
    /// Since the boot, asleep or awake; nobody can set it.
    pub steady: Duration,
}

/// By how much the wall clock was set, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    pub by: SignedDuration,
    pub to: Timestamp,
}

/// Compares two readings. A clock that is only slow or fast is led back in smaller steps.
pub fn decide_jump(before: Reading, now: Reading) -> Option<Jump> {
    let passed = now.steady.saturating_sub(before.steady);
    let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
    let by = now.wall.duration_since(before.wall).saturating_sub(passed);
    (by.unsigned_abs() > JUMP).then_some(Jump { by, to: now.wall })
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.by.is_negative() { "back" } else { "forward" };
        let seconds = self.by.unsigned_abs().as_secs();
        write!(f, "set {direction} by {seconds} s, to {:.0}", self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(wall: &str, seconds: u64) -> Reading {
        Reading { wall: wall.parse().unwrap(), steady: Duration::from_secs(seconds) }
    }

    #[test]
    fn only_what_the_steady_clock_does_not_explain_is_a_jump() {
        let before = reading("2026-01-02T03:04:05Z", 100);
        for (wall, seconds, expected) in [
            ("2026-01-02T03:04:15Z", 110, None),
            // Corrected, or looked at late.
            ("2026-01-02T03:04:16.9Z", 110, None),
            ("2026-01-02T03:04:13.1Z", 110, None),
            // A machine that slept.
            ("2026-01-02T05:04:05Z", 7300, None),
            ("2026-01-02T04:04:15Z", 110, Some("set forward by 3600 s, to 2026-01-02T04:04:15Z")),
            ("2026-01-02T03:04:12Z", 110, Some("set back by 3 s, to 2026-01-02T03:04:12Z")),
            (
                "1970-01-01T00:00:00.5Z",
                110,
                Some("set back by 1767323054 s, to 1970-01-01T00:00:00Z"),
            ),
        ] {
            let jump = decide_jump(before, reading(wall, seconds));
            assert_eq!(jump.map(|jump| jump.to_string()).as_deref(), expected, "{wall}");
        }
    }
}
