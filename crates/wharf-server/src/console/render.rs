//! How amounts, times and states read on a page.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

/// A time as HTML: the script turns it into the reader's own zone. It holds no character that
/// HTML would have to escape.
pub fn time(at: Timestamp) -> String {
    let shown = at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC");
    format!(r#"<time datetime="{}">{shown}</time>"#, stamp(at))
}

/// Only the clock, for lines of a log.
pub fn clock(at: Timestamp) -> String {
    let shown = at.to_zoned(TimeZone::UTC).strftime("%H:%M:%S");
    format!(r#"<time datetime="{}" data-clock>{shown}</time>"#, stamp(at))
}

fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// How long something took or has taken; what goes on is counted further by the script.
pub fn lasted(from: Option<Timestamp>, to: Option<Timestamp>, now: Timestamp) -> String {
    match (from, to) {
        (None, _) => String::new(),
        (Some(from), Some(to)) => duration(to.duration_since(from)),
        (Some(from), None) => {
            let shown = duration(now.duration_since(from));
            format!(r#"<span data-since="{}">{shown}</span>"#, stamp(from))
        }
    }
}

fn duration(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => "under 1 s".to_owned(),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// What is used of something, with a bar.
pub struct Share {
    pub label: &'static str,
    pub text: String,
    pub percent: u64,
}

pub fn cpu(used: u64, all: u64) -> Share {
    let cores = |milli: u64| {
        let text = format!("{:.1}", milli as f64 / 1000.0);
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    };
    share("CPU", format!("{} of {} cores", cores(used), cores(all)), used, all)
}

pub fn memory(used: u64, all: u64) -> Share {
    let gib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 30));
    share("Memory", format!("{} of {} GiB", gib(used), gib(all)), used, all)
}

pub fn pods(used: u64, all: u64) -> Share {
    share("Pods", format!("{used} of {all}"), used, all)
}

fn share(label: &'static str, text: String, used: u64, all: u64) -> Share {
    let percent = used.saturating_mul(100).checked_div(all).unwrap_or(0).min(100);
    Share { label, text, percent }
}

/// How a cluster's, a node's, an operation's or a step's state is coloured; the word itself is
/// always shown too.
pub fn tone(state: &str) -> &'static str {
    match state {
        "Running" | "Ready" | "succeeded" | "done" => "good",
        "Creating" | "Updating" | "Deleting" | "running" | "processing" => "busy",
        "CreateFailed" | "Unreachable" | "NotReady" | "failed" => "bad",
        "Cordoned" | "Drained" | "canceled" => "warn",
        _ => "idle",
    }
}

/// The first letter large, for headings.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        for (seconds, text) in [
            (0, "under 1 s"),
            (-5, "under 1 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (7260, "2 h 1 min"),
        ] {
            assert_eq!(duration(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn times_are_machine_readable_and_readable_without_a_script() {
        assert_eq!(
            time(Timestamp::UNIX_EPOCH),
            r#"<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00:00 UTC</time>"#
        );
    }

    #[test]
    fn shares_survive_a_cluster_without_anything() {
        let share = cpu(0, 0);
        assert_eq!((share.text.as_str(), share.percent), ("0 of 0 cores", 0));
        assert_eq!(cpu(1500, 3000).text, "1.5 of 3 cores");
        assert_eq!(pods(200, 100).percent, 100);
    }
}
