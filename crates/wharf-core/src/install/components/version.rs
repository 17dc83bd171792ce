//! What differs between the versions of Kubernetes that can be installed.

use std::fmt;

use crate::install::document::DocumentError;

/// The minor versions whose flags and configuration are known.
const OLDEST: u32 = 34;
const NEWEST: u32 = 36;

/// A version of Kubernetes that can be installed. The major one is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    minor: u32,
    patch: u32,
}

impl Version {
    /// Reads `1.36.3`.
    pub fn parse(text: &str) -> Result<Self, DocumentError> {
        let unknown = || DocumentError::Version(text.to_owned());
        let mut numbers = text.split('.').map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok);
        let (Some(1), Some(minor), Some(patch)) = (next(), next(), next()) else {
            return Err(unknown());
        };
        match (OLDEST..=NEWEST).contains(&minor) && numbers.next().is_none() {
            true => Ok(Self { minor, patch }),
            false => Err(unknown()),
        }
    }

    /// Whether kubelet refuses cgroup v1 unless it is told not to. Older ones know the setting too,
    /// but it is only written where it says something.
    pub fn refuses_cgroup_v1(self) -> bool {
        self.minor >= 35
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_from_1_34_to_1_36_are_known() {
        for good in ["1.34.0", "1.35.4", "1.36.3"] {
            assert_eq!(Version::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "1.36", "v1.36.3", "1.33.9", "1.37.0", "2.36.3", "1.36.3.1", "1.36.x"] {
            assert!(Version::parse(bad).is_err(), "{bad}");
        }
    }
}
