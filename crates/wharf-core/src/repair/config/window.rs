//! Maintenance windows: times of the day, on days of the week.
//!
//! They are written with an offset from UTC and not with the name of a time zone: the tables of
//! zones live on the server's disk and change, and a decision must not depend on them.

use std::{fmt, str::FromStr};

use jiff::{Timestamp, civil::Weekday, tz::Offset};
use serde::{Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The days on which it begins; none: every day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    pub start: TimeOfDay,
    /// On the next day when it is not after the start; the same time means a whole day.
    pub end: TimeOfDay,
    pub utc_offset: UtcOffset,
}

impl Window {
    pub fn is_open(&self, now: Timestamp) -> bool {
        let offset = Offset::from_seconds(self.utc_offset.minutes * 60).unwrap_or(Offset::UTC);
        let local = offset.to_datetime(now);
        let minute =
            TimeOfDay { minutes: i32::from(local.hour()) * 60 + i32::from(local.minute()) };
        let today = self.begins_on(local.weekday());
        if self.start < self.end {
            return today && self.start <= minute && minute < self.end;
        }
        let yesterday = self.begins_on(local.weekday().previous());
        (today && self.start <= minute) || (yesterday && minute < self.end)
    }

    fn begins_on(&self, weekday: Weekday) -> bool {
        self.days.is_empty() || self.days.iter().any(|day| day.0 == weekday)
    }
}

/// `mon` to `sun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Day(pub Weekday);

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

impl FromStr for Day {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = DAYS.iter().find(|(name, _)| *name == text);
        found.map(|(_, day)| Day(*day)).ok_or("must be one of mon, tue, wed, thu, fri, sat, sun")
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = DAYS.iter().find(|(_, day)| *day == self.0);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// `22:30`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay {
    minutes: i32,
}

impl FromStr for TimeOfDay {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let minutes = hours_and_minutes(text, 23).ok_or("must be a time from 00:00 to 23:59")?;
        Ok(Self { minutes })
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

/// `+09:00`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UtcOffset {
    minutes: i32,
}

impl FromStr for UtcOffset {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = "must be an offset from UTC like +09:00 or -03:30";
        let (sign, rest) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(rest), _) => (1, rest),
            (None, Some(rest)) => (-1, rest),
            (None, None) => return Err(fault),
        };
        Ok(Self { minutes: sign * hours_and_minutes(rest, 14).ok_or(fault)? })
    }
}

impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.minutes < 0 { '-' } else { '+' };
        let minutes = self.minutes.abs();
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

fn hours_and_minutes(text: &str, last_hour: i32) -> Option<i32> {
    let (hours, minutes) = text.split_once(':')?;
    let two_digits = |part: &str| -> Option<i32> {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        if digits { part.parse().ok() } else { None }
    };
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
    (hours <= last_hour && minutes < 60).then_some(hours * 60 + minutes)
}

macro_rules! serialize_as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
serialize_as_text!(Day, TimeOfDay, UtcOffset);

#[cfg(test)]
mod tests {
    use super::*;

    fn window(days: &[&str], start: &str, end: &str, offset: &str) -> Window {
        Window {
            days: days.iter().map(|day| day.parse().unwrap()).collect(),
            start: start.parse().unwrap(),
            end: end.parse().unwrap(),
            utc_offset: offset.parse().unwrap(),
        }
    }

    /// 16 November 2026 is a Monday.
    #[test]
    fn windows_open_and_close_to_the_minute_also_over_midnight() {
        let day = || window(&["mon"], "09:00", "17:00", "+00:00");
        let night = || window(&["mon"], "22:00", "06:00", "+00:00");
        let whole = || window(&["mon"], "00:00", "00:00", "+00:00");
        let tokyo = || window(&["tue"], "01:00", "02:00", "+09:00");
        let always = || window(&[], "00:00", "00:00", "-03:30");
        let rows = [
            (day(), "2026-11-16T08:59:59Z", false),
            (day(), "2026-11-16T09:00:00Z", true),
            (day(), "2026-11-16T16:59:59Z", true),
            (day(), "2026-11-16T17:00:00Z", false),
            (day(), "2026-11-17T10:00:00Z", false),
            (night(), "2026-11-16T05:00:00Z", false),
            (night(), "2026-11-16T22:00:00Z", true),
            (night(), "2026-11-17T05:59:00Z", true),
            (night(), "2026-11-17T06:00:00Z", false),
            (night(), "2026-11-17T22:00:00Z", false),
            (whole(), "2026-11-16T00:00:00Z", true),
            (whole(), "2026-11-16T23:59:00Z", true),
            (whole(), "2026-11-17T00:00:00Z", false),
            (tokyo(), "2026-11-16T16:30:00Z", true),
            (tokyo(), "2026-11-16T17:00:00Z", false),
            (always(), "2026-11-19T13:00:00Z", true),
        ];
        for (window, time, open) in rows {
            assert_eq!(window.is_open(time.parse().unwrap()), open, "{window:?} {time}");
        }
    }

    #[test]
    fn words_are_strict_and_written_as_they_are_read() {
        for text in ["00:00", "23:59"] {
            assert_eq!(text.parse::<TimeOfDay>().unwrap().to_string(), text);
        }
        for text in ["24:00", "1:00", "01:60", "+1:00", "", "12", "12:0a"] {
            assert!(text.parse::<TimeOfDay>().is_err(), "{text}");
        }
        for text in ["+00:00", "+14:00", "-03:30"] {
            assert_eq!(text.parse::<UtcOffset>().unwrap().to_string(), text);
        }
        for text in ["00:00", "+15:00", "Z", "+9:00", "+-9:00"] {
            assert!(text.parse::<UtcOffset>().is_err(), "{text}");
        }
        assert!("monday".parse::<Day>().is_err());
    }
}
