//! Names that people give.

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    #[error("must not be empty")]
    Empty,
    #[error("must have at most {0} characters")]
    TooLong(usize),
    #[error(
        "may hold lower-case letters, digits and '-', and must begin and end with a letter or digit"
    )]
    BadCharacters,
}

/// Room for a name in a key, a file name and a table column; the same as a DNS label.
pub const USER_NAME_MAX: usize = 63;

/// The longest name that DNS knows.
pub const CLUSTER_NAME_MAX: usize = 253;

/// A user's name: a DNS label, so that it can stand in keys, paths and tokens as it is.
pub fn check_user_name(name: &str) -> Result<(), NameFault> {
    check_label(name, USER_NAME_MAX)
}

/// A cluster's name: DNS labels joined by dots.
pub fn check_cluster_name(name: &str) -> Result<(), NameFault> {
    if name.len() > CLUSTER_NAME_MAX {
        return Err(NameFault::TooLong(CLUSTER_NAME_MAX));
    }
    name.split('.').try_for_each(|label| check_label(label, CLUSTER_NAME_MAX))
}

fn check_label(name: &str, max: usize) -> Result<(), NameFault> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
    let bytes = name.as_bytes();
    if bytes.is_empty() {
        return Err(NameFault::Empty);
    }
    if name.chars().count() > max {
        return Err(NameFault::TooLong(max));
    }
    if !bytes.iter().all(|b| inner(*b)) || !edge(bytes.first()) || !edge(bytes.last()) {
        return Err(NameFault::BadCharacters);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_names_are_dns_names() {
        for good in ["a", "demo", "eu-1.prod", &"a".repeat(253)] {
            assert_eq!(check_cluster_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "A", "a b", "a/b", "\0", &"a".repeat(254)] {
            assert!(check_cluster_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn user_names_are_dns_labels() {
        let long = "a".repeat(63);
        for good in ["a", "admin", "alice-2", "0x", long.as_str()] {
            assert_eq!(check_user_name(good), Ok(()), "{good}");
        }
        let too_long = "a".repeat(64);
        for (bad, fault) in [
            ("", NameFault::Empty),
            ("-a", NameFault::BadCharacters),
            ("a-", NameFault::BadCharacters),
            ("Alice", NameFault::BadCharacters),
            ("a.b", NameFault::BadCharacters),
            ("a/b", NameFault::BadCharacters),
            ("用户", NameFault::BadCharacters),
            ("a\0", NameFault::BadCharacters),
            (too_long.as_str(), NameFault::TooLong(63)),
        ] {
            assert_eq!(check_user_name(bad), Err(fault), "{bad:?}");
        }
    }
}
