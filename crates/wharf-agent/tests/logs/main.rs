//! What applications say, by real agents: from real containers over rotations, restarts and kills,
//! and to sinks that fail. The tests need root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
mod kubelet;
mod sinks;

const APP: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// The numbers that lines say, as they come, each of the one application.
fn numbers(text: &str) -> Vec<u64> {
    let number = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["appuuid"], APP);
        assert_eq!(line["containername"], "main");
        assert!(line["eventtime"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        let number = line["msg"].as_str().unwrap().strip_prefix("line ");
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    // Half a line is not said yet: the disk was full in the middle of it.
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(number).collect()
}

/// Where numbers are not those from 1 to the last, each once and in order.
fn disorder(numbers: &[u64], last: u64) -> Option<String> {
    let wrong = numbers.iter().zip(1..).find(|(number, expected)| *number != expected);
    match wrong {
        Some((number, expected)) => Some(format!("{number} instead of {expected}")),
        None => (numbers.len() as u64 != last).then(|| format!("{} of {last}", numbers.len())),
    }
}
