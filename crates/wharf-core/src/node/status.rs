//! The numbers that agents publish, and what they mean.

use serde::{Deserialize, Serialize};

/// How far the drain of the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DrainStatus {
    /// Nobody says.
    Unknown,
    /// The node is alone; there is nowhere to drain to.
    NotSupported,
    NotRequested,
    Requested,
    Starting,
    Cordoned,
    FailedCordon,
    DrainRetrying,
    FailedDrain,
    Complete,
}

impl DrainStatus {
    pub const ALL: [DrainStatus; 10] = [
        DrainStatus::Unknown,
        DrainStatus::NotSupported,
        DrainStatus::NotRequested,
        DrainStatus::Requested,
        DrainStatus::Starting,
        DrainStatus::Cordoned,
        DrainStatus::FailedCordon,
        DrainStatus::DrainRetrying,
        DrainStatus::FailedDrain,
        DrainStatus::Complete,
    ];

    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            DrainStatus::Unknown => "UNKNOWN",
            DrainStatus::NotSupported => "NOTSUPPORTED",
            DrainStatus::NotRequested => "NOTREQUESTED",
            DrainStatus::Requested => "REQUESTED",
            DrainStatus::Starting => "STARTING",
            DrainStatus::Cordoned => "CORDONED",
            DrainStatus::FailedCordon => "FAILEDCORDON",
            DrainStatus::DrainRetrying => "DRAINRETRYING",
            DrainStatus::FailedDrain => "FAILEDDRAIN",
            DrainStatus::Complete => "COMPLETE",
        }
    }

    pub fn is_failure(self) -> bool {
        matches!(self, DrainStatus::FailedCordon | DrainStatus::FailedDrain)
    }
}

/// Who asks for a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requester {
    Nobody,
    /// A reboot or a shutdown.
    DeviceOperation,
    /// A new base OS.
    Update,
}

impl Requester {
    pub fn number(self) -> u8 {
        match self {
            Requester::Nobody => 1,
            Requester::DeviceOperation => 2,
            Requester::Update => 3,
        }
    }

    /// 0 is a field that was never set.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 | 1 => Some(Requester::Nobody),
            2 => Some(Requester::DeviceOperation),
            3 => Some(Requester::Update),
            _ => None,
        }
    }
}

/// How far software is: an image, a volume, an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SwState {
    Initial,
    ResolvingTag,
    ResolvedTag,
    Downloading,
    Downloaded,
    Verifying,
    Verified,
    Loading,
    Loaded,
    CreatingVolume,
    CreatedVolume,
    Installed,
    AwaitNetworkInstance,
    StartDelayed,
    Booting,
    Running,
    Pausing,
    Paused,
    Halting,
    Halted,
    Broken,
    Unknown,
    Pending,
    Scheduling,
    Failed,
}

impl SwState {
    pub const ALL: [SwState; 25] = [
        SwState::Initial,
        SwState::ResolvingTag,
        SwState::ResolvedTag,
        SwState::Downloading,
        SwState::Downloaded,
        SwState::Verifying,
        SwState::Verified,
        SwState::Loading,
        SwState::Loaded,
        SwState::CreatingVolume,
        SwState::CreatedVolume,
        SwState::Installed,
        SwState::AwaitNetworkInstance,
        SwState::StartDelayed,
        SwState::Booting,
        SwState::Running,
        SwState::Pausing,
        SwState::Paused,
        SwState::Halting,
        SwState::Halted,
        SwState::Broken,
        SwState::Unknown,
        SwState::Pending,
        SwState::Scheduling,
        SwState::Failed,
    ];

    /// The first number; 0 and all below are no states.
    const FIRST: u8 = 100;

    pub fn number(self) -> u8 {
        Self::FIRST + self as u8
    }

    pub fn from_number(number: u8) -> Option<Self> {
        let place = number.checked_sub(Self::FIRST)?;
        Self::ALL.get(usize::from(place)).copied()
    }

    /// As a word for people.
    pub fn name(self) -> &'static str {
        match self {
            SwState::Initial => "Initial",
            SwState::ResolvingTag => "ResolvingTag",
            SwState::ResolvedTag => "ResolvedTag",
            SwState::Downloading => "Downloading",
            SwState::Downloaded => "Downloaded",
            SwState::Verifying => "Verifying",
            SwState::Verified => "Verified",
            SwState::Loading => "Loading",
            SwState::Loaded => "Loaded",
            SwState::CreatingVolume => "CreatingVolume",
            SwState::CreatedVolume => "CreatedVolume",
            SwState::Installed => "Installed",
            SwState::AwaitNetworkInstance => "AwaitNetworkInstance",
            SwState::StartDelayed => "StartDelayed",
            SwState::Booting => "Booting",
            SwState::Running => "Running",
            SwState::Pausing => "Pausing",
            SwState::Paused => "Paused",
            SwState::Halting => "Halting",
            SwState::Halted => "Halted",
            SwState::Broken => "Broken",
            SwState::Unknown => "Unknown",
            SwState::Pending => "Pending",
            SwState::Scheduling => "Scheduling",
            SwState::Failed => "Failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_published_number() {
        let named: Vec<_> = DrainStatus::ALL.map(|one| (one.number(), one.name())).into();
        let expected = [
            (0, "UNKNOWN"),
            (1, "NOTSUPPORTED"),
            (2, "NOTREQUESTED"),
            (3, "REQUESTED"),
            (4, "STARTING"),
            (5, "CORDONED"),
            (6, "FAILEDCORDON"),
            (7, "DRAINRETRYING"),
            (8, "FAILEDDRAIN"),
            (9, "COMPLETE"),
        ];
        assert_eq!(named, expected);
        for one in DrainStatus::ALL {
            assert_eq!(DrainStatus::from_number(one.number()), Some(one));
        }
        assert_eq!(DrainStatus::from_number(10), None);
        let requesters = [Requester::Nobody, Requester::DeviceOperation, Requester::Update];
        assert_eq!(requesters.map(Requester::number), [1, 2, 3]);
        assert_eq!(Requester::from_number(0), Some(Requester::Nobody));
        assert_eq!(Requester::from_number(4), None);
    }

    #[test]
    fn software_states_begin_at_a_hundred() {
        for one in SwState::ALL {
            assert_eq!(SwState::from_number(one.number()), Some(one));
        }
        let numbers = [SwState::Loading, SwState::Loaded, SwState::Installed, SwState::Running];
        assert_eq!(numbers.map(SwState::number), [107, 108, 111, 115]);
        assert_eq!([SwState::Halting, SwState::Unknown].map(SwState::number), [118, 121]);
        assert_eq!((SwState::from_number(99), SwState::from_number(125)), (None, None));
    }
}
