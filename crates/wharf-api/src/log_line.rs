//! A line of an application's log, as it is handed on: one JSON object a line.

use jiff::Timestamp;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogLine<'a> {
    pub appuuid: &'a str,
    pub containername: &'a str,
    pub eventtime: Timestamp,
    pub msg: &'a str,
    pub poduid: &'a str,
    /// Counts the lines of this container of this pod from 1, without a gap: who has had this number
    /// or a higher one has had the line.
    pub line: u64,
}
