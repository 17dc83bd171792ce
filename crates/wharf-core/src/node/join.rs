//! The wait before a node joins: the server that it joins must be a cluster already, and this one.
//!
//! A server that is still alone, or is being converted, would give the node certificates and tokens
//! that do not hold later. The first node of a cluster does not wait, and neither does one that has
//! joined before.

use std::{fmt, time::Duration};

/// Nodes that a cluster has at least: with fewer nobody waits to join, and no operation waits for a
/// drain.
pub const FEWEST_NODES: usize = 3;
/// Between two questions: often at first, since a cluster that is being made is one within seconds.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
const FIRST_TRIES: u32 = 20;
const INTERVAL: Duration = Duration::from_secs(10);
/// An answer that waiting does not change is believed after it came so often in a row.
const HOPELESS: u32 = 6;
/// Who waits for long says so now and then: every five minutes.
const SAY_EVERY: u32 = 30;

/// What the node knows of its part in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The cluster that it is to join; `None` when that was withdrawn.
    pub cluster: Option<Membership>,
    /// The last answer of the server that it joins.
    pub answer: Option<Answer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub cluster_id: String,
    /// The first node of the cluster.
    pub bootstrap: bool,
    /// It was a member before.
    pub joined: bool,
    /// What is missing before it can be asked: an address, a token…
    pub missing: Option<String>,
}

/// What came back from `/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 200 with this text, and the cluster's id where the server says it apart.
    Body { text: String, cluster_id: Option<String> },
    /// Nothing that waiting may not change.
    Unreachable(String),
    /// It will not change by itself: the name is not known, the certificate is not accepted.
    Broken(String),
}

/// What is remembered from one look to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub tries: u32,
    /// Answers in a row that waiting does not change.
    pub broken: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The node may be started.
    Go,
    /// Ask again.
    Wait {
        reason: Wait,
        after: Duration,
        say: bool,
    },
    End(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    Missing(String),
    NotAsked,
    Unreachable(String),
    /// It answers, but is no cluster yet.
    NotACluster,
    /// It belongs to another cluster.
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the node is not to join a cluster any more")]
    Withdrawn,
    #[error("the server cannot be asked: {0}")]
    Broken(String),
}

/// Decides whether the node may join, and counts the tries.
pub fn decide_join(progress: &mut Progress, facts: &Facts) -> Decision {
    let Some(cluster) = &facts.cluster else { return Decision::End(Failure::Withdrawn) };
    if cluster.bootstrap || cluster.joined {
        return Decision::Go;
    }
    progress.tries = progress.tries.saturating_add(1);
    let say = progress.tries % SAY_EVERY == 1;
    let after = if progress.tries <= FIRST_TRIES { FIRST_INTERVAL } else { INTERVAL };
    let wait = |reason| Decision::Wait { reason, after, say };
    if let Some(missing) = &cluster.missing {
        return wait(Wait::Missing(missing.clone()));
    }
    let Some(answer) = &facts.answer else { return wait(Wait::NotAsked) };
    progress.broken = match answer {
        Answer::Broken(_) => progress.broken.saturating_add(1),
        Answer::Body { .. } | Answer::Unreachable(_) => 0,
    };
    match answer {
        Answer::Broken(reason) if progress.broken >= HOPELESS => {
            Decision::End(Failure::Broken(reason.clone()))
        }
        Answer::Broken(reason) | Answer::Unreachable(reason) => {
            wait(Wait::Unreachable(reason.clone()))
        }
        Answer::Body { text, cluster_id } => {
            match judge(text, cluster_id.as_deref(), &cluster.cluster_id) {
                None => Decision::Go,
                Some(reason) => wait(reason),
            }
        }
    }
}

/// Why a server that answers this is not joined. A server says `cluster` with its id apart, or
/// `cluster:<id>` in one; one that says no id is believed.
fn judge(text: &str, apart: Option<&str>, ours: &str) -> Option<Wait> {
    let (word, within) = match text.split_once(':') {
        Some((word, id)) => (word, Some(id)),
        None => (text, None),
    };
    if word != "cluster" {
        return Some(Wait::NotACluster);
    }
    let mut said = [apart, within].into_iter().flatten();
    let other = said.find(|id| !id.eq_ignore_ascii_case(ours))?;
    Some(Wait::Other(other.to_owned()))
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Missing(what) => write!(f, "the node has no {what} yet"),
            Wait::NotAsked => f.write_str("the server was not asked yet"),
            Wait::Unreachable(reason) => write!(f, "the server cannot be reached: {reason}"),
            Wait::NotACluster => f.write_str("the server is no cluster yet"),
            Wait::Other(id) => write!(f, "the server belongs to another cluster, {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
    const OTHER: &str = "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9";

    fn facts(answer: Option<Answer>) -> Facts {
        let cluster = Membership {
            cluster_id: OURS.to_owned(),
            bootstrap: false,
            joined: false,
            missing: None,
        };
        Facts { cluster: Some(cluster), answer }
    }

    fn body(text: &str, id: Option<&str>) -> Option<Answer> {
        Some(Answer::Body { text: text.to_owned(), cluster_id: id.map(str::to_owned) })
    }

    fn say(facts: &Facts) -> String {
        match decide_join(&mut Progress::default(), facts) {
            Decision::Go => "go".to_owned(),
            Decision::Wait { reason, .. } => reason.to_string(),
            Decision::End(failure) => format!("end: {failure}"),
        }
    }

    #[test]
    fn only_this_cluster_is_joined_and_only_when_it_is_one() {
        let with_id = format!("cluster:{OURS}");
        let with_other = format!("cluster:{OTHER}");
        let other = format!("the server belongs to another cluster, {OTHER}");
        let rows = [
            (body("cluster", None), "go"),
            (body("cluster", Some(OURS)), "go"),
            (body("cluster", Some(&OURS.to_uppercase())), "go"),
            (body(&with_id, None), "go"),
            (body(&with_other, None), other.as_str()),
            (body("cluster", Some(OTHER)), other.as_str()),
            (body(&with_id, Some(OTHER)), other.as_str()),
            (body("", None), "the server is no cluster yet"),
            (body("cluster\n", None), "the server is no cluster yet"),
            (body("clusters", None), "the server is no cluster yet"),
            (None, "the server was not asked yet"),
        ];
        for (answer, expected) in rows {
            assert_eq!(say(&facts(answer.clone())), expected, "{answer:?}");
        }
    }

    #[test]
    fn who_is_first_or_was_there_before_does_not_wait_and_a_withdrawn_wish_ends_it() {
        let with = |change: fn(&mut Membership)| {
            let mut facts = facts(None);
            facts.cluster.iter_mut().for_each(change);
            say(&facts)
        };
        assert_eq!(with(|cluster| cluster.bootstrap = true), "go");
        assert_eq!(with(|cluster| cluster.joined = true), "go");
        let missing = with(|cluster| cluster.missing = Some("token".to_owned()));
        assert_eq!(missing, "the node has no token yet");
        let withdrawn = Facts { cluster: None, answer: body("cluster", None) };
        assert_eq!(say(&withdrawn), "end: the node is not to join a cluster any more");
    }

    #[test]
    fn six_hopeless_answers_in_a_row_end_the_wait_and_others_never_do() {
        let broken = facts(Some(Answer::Broken("no such name".to_owned())));
        let silent = facts(Some(Answer::Unreachable("timed out".to_owned())));
        let mut progress = Progress::default();
        let mut ends =
            |facts: &Facts| matches!(decide_join(&mut progress, facts), Decision::End(_));
        assert!((0..5).all(|_| !ends(&broken)));
        assert!(!ends(&silent), "something else came between");
        assert!((0..5).all(|_| !ends(&broken)));
        assert!(ends(&broken));
        let mut progress = Progress::default();
        let (mut said, mut waited) = (0, Vec::new());
        for _ in 0..300 {
            match decide_join(&mut progress, &silent) {
                Decision::Wait { say, after, .. } => {
                    said += u32::from(say);
                    waited.push(after.as_secs());
                }
                decision => panic!("{decision:?}"),
            }
        }
        assert_eq!(said, 10, "it does not fill the log");
        waited.dedup();
        assert_eq!(waited, [1, 10], "it asks often at first");
    }
}
