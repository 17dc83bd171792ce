//! What the cluster's disruption guard says, and for how long its word is waited for.

use std::time::Duration;

/// A server that is not reached is waited for so long, after the agent's start and after the link was
/// lost: both are over within seconds where the agent or the server is only started anew. Who asked
/// nobody in those seconds could take the second of two machines out of service. The agent tries for the
/// fifth time after half a minute: that one counts too.
const GRACE: Duration = Duration::from_secs(45);

/// What the gate goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// It agrees, or there is none to be reached, in which case budgets alone protect.
    Open,
    Refuses(String),
}

/// The server's word, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardWord {
    Agrees,
    /// Without a reason it was not asked yet.
    Refuses(String),
    /// Nobody can be asked.
    Away,
}

/// Decides whether a drain may begin. `server`: there is one to be reached. `away_for`: since the agent
/// was started, or since there last was a word.
pub fn decide_guard(word: GuardWord, server: bool, away_for: Duration) -> Guard {
    match word {
        GuardWord::Agrees => Guard::Open,
        GuardWord::Refuses(reason) if reason.is_empty() => {
            Guard::Refuses("the server has not agreed yet".to_owned())
        }
        GuardWord::Refuses(reason) => Guard::Refuses(reason),
        GuardWord::Away if server && away_for < GRACE => Guard::Refuses(format!(
            "the server is not reached, and is waited for {} s",
            GRACE.as_secs()
        )),
        GuardWord::Away => Guard::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_reached_is_waited_for_a_while_and_where_there_is_none_nobody_waits() {
        let refuses = |reason: &str| GuardWord::Refuses(reason.to_owned());
        let unreached = Some("the server is not reached, and is waited for 45 s");
        let rows = [
            (GuardWord::Agrees, true, 0, None),
            (GuardWord::Agrees, true, 3600, None),
            (refuses("n2 is out"), true, 0, Some("n2 is out")),
            (refuses("n2 is out"), true, 3600, Some("n2 is out")),
            (refuses(""), true, 0, Some("the server has not agreed yet")),
            (GuardWord::Away, true, 0, unreached),
            (GuardWord::Away, true, 44, unreached),
            (GuardWord::Away, true, 45, None),
            (GuardWord::Away, false, 0, None),
        ];
        for (word, server, seconds, expected) in rows {
            let guard = decide_guard(word.clone(), server, Duration::from_secs(seconds));
            let found = match &guard {
                Guard::Open => None,
                Guard::Refuses(reason) => Some(reason.as_str()),
            };
            assert_eq!(found, expected, "{word:?} {server} {seconds}");
        }
    }
}
