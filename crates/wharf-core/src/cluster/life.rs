//! The life of a cluster: which event leads from which state to which.
//!
//! The shell stores the new state by compare-and-swap before it acts on it; an event that a state
//! refuses changes nothing.

use super::ClusterState;

/// A cluster's life with its two ends, which are never stored: before there is a record, and after
/// it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    Init,
    Recorded(ClusterState),
    Deleted,
}

impl Life {
    pub const ALL: [Life; 8] = [
        Life::Init,
        Life::Recorded(ClusterState::Creating),
        Life::Recorded(ClusterState::CreateFailed),
        Life::Recorded(ClusterState::Running),
        Life::Recorded(ClusterState::Unreachable),
        Life::Recorded(ClusterState::Updating),
        Life::Recorded(ClusterState::Deleting),
        Life::Deleted,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Life::Init => "Init",
            Life::Recorded(state) => state.name(),
            Life::Deleted => "Deleted",
        }
    }
}

/// What happens to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterEvent {
    Create,
    CreateSucceed,
    CreateFailed,
    CreateCanceled,
    ContinueCreate,
    Import,
    Update,
    UpdateCompleted,
    UpdateCanceled,
    GetInfoFailed,
    GetInfoSucceed,
    Delete,
    DeleteCompleted,
}

impl ClusterEvent {
    pub const ALL: [ClusterEvent; 13] = [
        ClusterEvent::Create,
        ClusterEvent::CreateSucceed,
        ClusterEvent::CreateFailed,
        ClusterEvent::CreateCanceled,
        ClusterEvent::ContinueCreate,
        ClusterEvent::Import,
        ClusterEvent::Update,
        ClusterEvent::UpdateCompleted,
        ClusterEvent::UpdateCanceled,
        ClusterEvent::GetInfoFailed,
        ClusterEvent::GetInfoSucceed,
        ClusterEvent::Delete,
        ClusterEvent::DeleteCompleted,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ClusterEvent::Create => "create",
            ClusterEvent::CreateSucceed => "createSucceed",
            ClusterEvent::CreateFailed => "createFailed",
            ClusterEvent::CreateCanceled => "createCanceled",
            ClusterEvent::ContinueCreate => "continueCreate",
            ClusterEvent::Import => "import",
            ClusterEvent::Update => "update",
            ClusterEvent::UpdateCompleted => "updateCompleted",
            ClusterEvent::UpdateCanceled => "updateCanceled",
            ClusterEvent::GetInfoFailed => "getInfoFailed",
            ClusterEvent::GetInfoSucceed => "getInfoSucceed",
            ClusterEvent::Delete => "delete",
            ClusterEvent::DeleteCompleted => "deleteCompleted",
        }
    }
}

/// An event that does not apply to the state; nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cluster that is {} refuses {}", .state.name(), .event.name())]
pub struct Refused {
    pub state: Life,
    pub event: ClusterEvent,
}

/// The state after an event.
pub fn decide_transition(state: Life, event: ClusterEvent) -> Result<Life, Refused> {
    use ClusterEvent as E;
    use ClusterState as S;
    let next = match (state, event) {
        (Life::Init, E::Create) => S::Creating,
        (Life::Init, E::Import) => S::Running,
        (Life::Recorded(S::Creating), E::CreateSucceed) => S::Running,
        (Life::Recorded(S::Creating), E::CreateFailed | E::CreateCanceled) => S::CreateFailed,
        (Life::Recorded(S::CreateFailed), E::ContinueCreate) => S::Creating,
        (Life::Recorded(S::Running), E::Update) => S::Updating,
        (Life::Recorded(S::Updating), E::UpdateCompleted | E::UpdateCanceled) => S::Running,
        (Life::Recorded(S::Running), E::GetInfoFailed) => S::Unreachable,
        (Life::Recorded(S::Unreachable), E::GetInfoSucceed) => S::Running,
        (Life::Recorded(S::CreateFailed | S::Running | S::Unreachable), E::Delete) => S::Deleting,
        (Life::Recorded(S::Deleting), E::DeleteCompleted) => return Ok(Life::Deleted),
        (state, event) => return Err(Refused { state, event }),
    };
    Ok(Life::Recorded(next))
}

/// The diagram of the states, in Mermaid's language.
pub fn render_diagram() -> String {
    let mut lines = vec!["stateDiagram-v2".to_owned()];
    for state in Life::ALL {
        for event in ClusterEvent::ALL {
            if let Ok(next) = decide_transition(state, event) {
                let (from, to) = (state.name(), next.name());
                lines.push(format!("    {from} --> {to}: {}", event.name()));
            }
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line a state, one column an event, in the order of `ALL`; `.` refuses.
    const TABLE: &str = "
        .             create   createSucceed createFailed createCanceled continueCreate import  update   updateCompleted updateCanceled getInfoFailed getInfoSucceed delete   deleteCompleted
        Init          Creating .             .            .              .              Running .        .               .              .             .              .        .
        Creating      .        Running       CreateFailed CreateFailed   .              .       .        .               .              .             .              .        .
        CreateFailed  .        .             .            .              Creating       .       .        .               .              .             .              Deleting .
        Running       .        .             .            .              .              .       Updating .               .              Unreachable   .              Deleting .
        Unreachable   .        .             .            .              .              .       .        .               .              .             Running        Deleting .
        Updating      .        .             .            .              .              .       .        Running         Running        .             .              .        .
        Deleting      .        .             .            .              .              .       .        .               .              .             .              .        Deleted
        Deleted       .        .             .            .              .              .       .        .               .              .             .              .        .
    ";

    #[test]
    fn every_event_in_every_state_does_what_the_table_says() {
        let rows: Vec<Vec<&str>> = TABLE
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|row| !row.is_empty())
            .collect();
        let events: Vec<&str> = ClusterEvent::ALL.iter().map(|event| event.name()).collect();
        assert_eq!(rows[0][1..], events);
        assert_eq!(rows.len() - 1, Life::ALL.len());
        for (row, state) in rows[1..].iter().zip(Life::ALL) {
            assert_eq!(row[0], state.name());
            for (cell, event) in row[1..].iter().zip(ClusterEvent::ALL) {
                let found = decide_transition(state, event).map_or(".", Life::name);
                assert_eq!(found, *cell, "{} in {}", event.name(), state.name());
            }
        }
    }

    #[test]
    fn every_recorded_state_can_be_left_and_an_end_can_be_reached_from_it() {
        for start in Life::ALL {
            let mut reached = vec![start];
            let mut seen = 0;
            while let Some(state) = reached.get(seen).copied() {
                seen += 1;
                for event in ClusterEvent::ALL {
                    if let Ok(next) = decide_transition(state, event)
                        && !reached.contains(&next)
                    {
                        reached.push(next);
                    }
                }
            }
            assert!(reached.contains(&Life::Deleted), "{} is a dead end", start.name());
        }
    }
}
