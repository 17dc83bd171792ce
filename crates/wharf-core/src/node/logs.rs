//! Reading the logs of applications: each line once, in order.
//!
//! The cluster is asked for the lines since a time, which it takes by the second and includes. So
//! every answer begins with lines that were read before. A [`Cursor`] tells them from new ones: by the
//! time of the last line, and by what all lines of that very time said.
//!
//! **Guarantee:** a line that is read twice is handed on once, also after a restart of the agent that
//! stored its cursors with what it handed on. Lines that the kubelet throws away before they are
//! read are lost.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// One container of one pod, over its restarts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stream {
    pub pod_uid: String,
    pub container: String,
}

/// A container that has a log, as the cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub stream: Stream,
    /// How often it was started again.
    pub restarts: u32,
}

/// How far a stream was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The start of the container that the rest is about.
    pub restarts: u32,
    pub time: Option<Timestamp>,
    /// What the lines of that time said, as fingerprints in their order.
    pub said: Vec<u64>,
}

/// All streams of the node's applications.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursors {
    streams: BTreeMap<Stream, Cursor>,
}

/// What to ask the cluster for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    pub stream: Stream,
    /// `None`: from the beginning.
    pub since: Option<Timestamp>,
    /// The lines of the container before it was started again.
    pub previous: bool,
    /// The start that these are the lines of.
    pub restarts: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub time: Timestamp,
    pub text: String,
}

impl Cursors {
    /// With what was stored.
    pub fn new(stored: impl IntoIterator<Item = (Stream, Cursor)>) -> Self {
        Self { streams: stored.into_iter().collect() }
    }

    /// For storing.
    pub fn iter(&self) -> impl Iterator<Item = (&Stream, &Cursor)> {
        self.streams.iter()
    }

    /// Forgets the containers that are gone.
    pub fn keep(&mut self, containers: &[Container]) {
        let there = |stream: &Stream| containers.iter().any(|one| one.stream == *stream);
        self.streams.retain(|stream, _| there(stream));
    }

    /// What to read of a container next, in this order. The kubelet keeps the log of the start
    /// before the present one; of those before nothing is left.
    pub fn plan(&self, container: &Container) -> Vec<Read> {
        let read = |since, previous, restarts| Read {
            stream: container.stream.clone(),
            since,
            previous,
            restarts,
        };
        let now = container.restarts;
        let cursor = self.streams.get(&container.stream);
        match cursor.and_then(|cursor| Some((cursor, now.checked_sub(cursor.restarts)?))) {
            Some((cursor, 0)) => vec![read(cursor.time, false, now)],
            Some((cursor, 1)) => {
                vec![read(cursor.time, true, cursor.restarts), read(None, false, now)]
            }
            // It is new, was started several times since, or counts from the beginning again.
            Some(_) | None => {
                let before = now.checked_sub(1).map(|last| read(None, true, last));
                before.into_iter().chain([read(None, false, now)]).collect()
            }
        }
    }

    /// Takes the answer to a read; what comes back is new.
    pub fn take(&mut self, read: &Read, lines: Vec<Line>) -> Vec<Line> {
        let cursor = self.streams.entry(read.stream.clone()).or_default();
        if cursor.restarts != read.restarts {
            *cursor = Cursor { restarts: read.restarts, ..Cursor::default() };
        }
        cursor.take(lines)
    }
}

impl Cursor {
    fn take(&mut self, lines: Vec<Line>) -> Vec<Line> {
        let fresh = match self.time {
            None => lines,
            Some(time) => self.skip_known(lines, time),
        };
        self.note(&fresh);
        fresh
    }

    fn skip_known(&self, lines: Vec<Line>, time: Timestamp) -> Vec<Line> {
        let Some(start) = lines.iter().position(|line| line.time == time) else {
            // The log was rotated, and what is known is not in it any more.
            return lines.into_iter().filter(|line| line.time > time).collect();
        };
        let same = lines.iter().skip(start).take_while(|line| line.time == time);
        let prints: Vec<u64> = same.map(|line| fingerprint(&line.text)).collect();
        // A rotation may have taken the first ones of that time.
        let suffixes = (0..=self.said.len()).filter_map(|from| self.said.get(from..));
        let known = suffixes.into_iter().find(|suffix| prints.starts_with(suffix));
        // What follows the last known line is new, whatever its time says: a clock may have been set
        // back.
        lines.into_iter().skip(start + known.map_or(0, <[u64]>::len)).collect()
    }

    fn note(&mut self, fresh: &[Line]) {
        for line in fresh {
            if self.time != Some(line.time) {
                self.time = Some(line.time);
                self.said.clear();
            }
            self.said.push(fingerprint(&line.text));
        }
    }
}

/// It must be the same in the next version, for it is stored.
fn fingerprint(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Takes an answer apart: every line begins with its time. A last line without an end was cut off and
/// is read again; a line without a time belongs to the one before.
pub fn parse_lines(answer: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for whole in answer.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let whole = whole.strip_suffix('\r').unwrap_or(whole);
        let (first, rest) = whole.split_once(' ').unwrap_or((whole, ""));
        match (first.parse::<Timestamp>(), lines.last_mut()) {
            (Ok(time), _) => lines.push(Line { time, text: rest.to_owned() }),
            (Err(_), Some(before)) => {
                before.text.push('\n');
                before.text.push_str(whole);
            }
            (Err(_), None) => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream { pod_uid: "p".to_owned(), container: "c".to_owned() }
    }

    fn container(restarts: u32) -> Container {
        Container { stream: stream(), restarts }
    }

    fn line(nanosecond: i128, text: &str) -> Line {
        let time = Timestamp::from_nanosecond(1_800_000_000_000_000_000 + nanosecond).unwrap();
        Line { time, text: text.to_owned() }
    }

    /// A container's log as the kubelet keeps it.
    #[derive(Default)]
    struct Log {
        restarts: u32,
        now: Vec<Line>,
        before: Vec<Line>,
    }

    impl Log {
        fn answer(&self, read: &Read) -> Vec<Line> {
            let lines = if read.previous { &self.before } else { &self.now };
            // By the second.
            let since = read.since.map_or(i64::MIN, Timestamp::as_second);
            lines.iter().filter(|line| line.time.as_second() >= since).cloned().collect()
        }

        fn restart(&mut self) {
            self.restarts += 1;
            self.before = std::mem::take(&mut self.now);
        }
    }

    fn read_all(cursors: &mut Cursors, log: &Log) -> Vec<String> {
        let mut texts = Vec::new();
        for read in cursors.plan(&container(log.restarts)) {
            let fresh = cursors.take(&read, log.answer(&read));
            texts.extend(fresh.into_iter().map(|line| line.text));
        }
        texts
    }

    #[test]
    fn every_line_comes_once_and_in_order_in_generated_logs() {
        for seed in 1..200_u64 {
            let mut state = seed;
            let mut below = |limit: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                (state >> 33) % limit
            };
            let (mut log, mut cursors) = (Log::default(), Cursors::default());
            let (mut written, mut read, mut clock) = (Vec::new(), Vec::new(), 0_i128);
            for number in 0..300 {
                match below(12) {
                    0..=5 => {
                        // Many lines of one time, and the same words again and again.
                        clock += i128::from(below(3)) * 400_000_000;
                        let text = format!("line {}", if below(2) == 0 { number } else { 7 });
                        written.push(text.clone());
                        log.now.push(line(clock, &text));
                    }
                    6 => {
                        read.extend(read_all(&mut cursors, &log));
                        // Rotated once all was read; what is left may be nothing at all.
                        let kept = below(3) as usize;
                        let surplus = log.now.len().saturating_sub(kept);
                        log.now.drain(..surplus);
                        clock += 1;
                    }
                    7 => {
                        read.extend(read_all(&mut cursors, &log));
                        clock += 1_000_000_000;
                        log.restart();
                    }
                    8 => {
                        // The agent is started again, with what it stored.
                        let stored: Vec<_> =
                            cursors.iter().map(|(a, b)| (a.clone(), b.clone())).collect();
                        cursors = Cursors::new(stored);
                    }
                    _ => read.extend(read_all(&mut cursors, &log)),
                }
            }
            read.extend(read_all(&mut cursors, &log));
            assert_eq!(read, written, "seed {seed}");
        }
    }

    #[test]
    fn a_container_that_was_started_again_is_read_to_its_end_first() {
        let (mut log, mut cursors) = (Log::default(), Cursors::default());
        log.now = vec![line(0, "a"), line(1, "b")];
        assert_eq!(read_all(&mut cursors, &log), ["a", "b"]);
        log.now.push(line(2, "last words"));
        log.restart();
        log.now = vec![line(3, "hello again")];
        assert_eq!(read_all(&mut cursors, &log), ["last words", "hello again"]);
        assert_eq!(read_all(&mut cursors, &log), Vec::<String>::new());
        // Three starts at once: the last but one is all that is left.
        log.restart();
        log.now = vec![line(4, "lost")];
        log.restart();
        log.now = vec![line(5, "crash")];
        log.restart();
        log.now = vec![line(6, "up")];
        assert_eq!(read_all(&mut cursors, &log), ["crash", "up"]);
    }

    #[test]
    fn a_pod_that_is_new_to_the_agent_is_read_from_its_beginning() {
        let log = Log { restarts: 1, now: vec![line(5, "now")], before: vec![line(0, "before")] };
        let mut cursors = Cursors::default();
        assert_eq!(read_all(&mut cursors, &log), ["before", "now"]);
        cursors.keep(&[]);
        assert_eq!(cursors.iter().count(), 0, "containers that are gone are forgotten");
    }

    #[test]
    fn a_clock_that_is_set_back_loses_nothing_that_the_answer_holds() {
        let mut cursors = Cursors::default();
        let read = |since| Read { stream: stream(), since, previous: false, restarts: 0 };
        cursors.take(&read(None), vec![line(10, "a"), line(11, "b")]);
        let again = vec![line(10, "a"), line(11, "b"), line(3, "c")];
        let fresh = cursors.take(&read(None), again);
        assert_eq!(fresh, [line(3, "c")]);
    }

    #[test]
    fn lines_are_taken_apart_and_what_was_cut_off_is_left() {
        let answer = "2026-01-02T03:04:05.000000006Z first\n2026-01-02T03:04:05.1Z \n  at second\r\n\
                      2026-01-02T03:04:06+01:00 third\n2026-01-02T03:0";
        let lines = parse_lines(answer);
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["first", "\n  at second", "third"]);
        assert_eq!(parse_lines("no time\n"), []);
    }
}
