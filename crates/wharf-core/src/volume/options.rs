//! Options of a mount, as people write them and as the kernel wants them.

use std::fmt;

/// The options of a mount, taken apart: what the kernel knows for every file system, and what only the
/// file system itself knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    pub flags: Vec<Flag>,
    /// With commas, as it was written.
    pub data: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    ReadOnly,
    NoAccessTimes,
    NoDirectoryAccessTimes,
    RelativeAccessTimes,
    StrictAccessTimes,
    LazyTimes,
    NoDevices,
    NoPrograms,
    NoSetUser,
    Synchronous,
    SynchronousDirectories,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadOption {
    TooLong,
    /// It has a character that no option has.
    NotPlain(String),
    /// It would make another mount than the one of this volume, or let two of them be one.
    Forbidden(String),
}

/// The kernel takes less than a page.
const MOST_BYTES: usize = 4000;
/// With what it stands for, and whether it sets or clears it.
const FLAGS: [(&str, Flag, bool); 20] = [
    ("ro", Flag::ReadOnly, true),
    ("rw", Flag::ReadOnly, false),
    ("noatime", Flag::NoAccessTimes, true),
    ("atime", Flag::NoAccessTimes, false),
    ("nodiratime", Flag::NoDirectoryAccessTimes, true),
    ("diratime", Flag::NoDirectoryAccessTimes, false),
    ("relatime", Flag::RelativeAccessTimes, true),
    ("norelatime", Flag::RelativeAccessTimes, false),
    ("strictatime", Flag::StrictAccessTimes, true),
    ("lazytime", Flag::LazyTimes, true),
    ("nolazytime", Flag::LazyTimes, false),
    ("nodev", Flag::NoDevices, true),
    ("dev", Flag::NoDevices, false),
    ("noexec", Flag::NoPrograms, true),
    ("exec", Flag::NoPrograms, false),
    ("nosuid", Flag::NoSetUser, true),
    ("suid", Flag::NoSetUser, false),
    ("sync", Flag::Synchronous, true),
    ("async", Flag::Synchronous, false),
    ("dirsync", Flag::SynchronousDirectories, true),
];
/// Words for other programs than the kernel.
const PASSED_OVER: [&str; 4] = ["defaults", "_netdev", "nofail", "auto"];
/// Other kinds of mounts, and what lets a second copy of a file system be mounted.
const FORBIDDEN: [&str; 6] = ["bind", "rbind", "move", "remount", "loop", "nouuid"];

impl Options {
    /// Reads options with commas between them. Of two that contradict each other the later one holds.
    pub fn parse(text: &str) -> Result<Self, BadOption> {
        if text.len() > MOST_BYTES {
            return Err(BadOption::TooLong);
        }
        let mut options = Self::default();
        let mut data = Vec::new();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            if word.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
                return Err(BadOption::NotPlain(word.to_owned()));
            }
            let name = word.split_once('=').map_or(word, |(name, _)| name);
            if FORBIDDEN.contains(&name) {
                return Err(BadOption::Forbidden(name.to_owned()));
            }
            match FLAGS.iter().find(|(known, ..)| *known == word) {
                Some((_, flag, is_set)) => {
                    options.flags.retain(|one| one != flag);
                    options.flags.extend(is_set.then_some(*flag));
                }
                None if PASSED_OVER.contains(&word) => {}
                None => data.push(word),
            }
        }
        options.data = data.join(",");
        Ok(options)
    }

    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }
}

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadOption::TooLong => write!(f, "the mount options are longer than {MOST_BYTES} bytes"),
            BadOption::NotPlain(word) => write!(f, "{word:?} is no mount option"),
            BadOption::Forbidden(name) => {
                write!(f, "the mount option {name} is not allowed for volumes")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_kernel_and_of_the_file_system_are_told_apart() {
        use Flag::{NoAccessTimes, NoDevices, ReadOnly};
        for (text, flags, data) in [
            ("", vec![], ""),
            ("defaults,,", vec![], ""),
            ("noatime,nodev", vec![NoAccessTimes, NoDevices], ""),
            ("noatime,discard,commit=30", vec![NoAccessTimes], "discard,commit=30"),
            ("ro,rw", vec![], ""),
            ("rw,ro,ro", vec![ReadOnly], ""),
            ("errors=remount-ro", vec![], "errors=remount-ro"),
            ("_netdev,nofail", vec![], ""),
        ] {
            let expected = Options { flags, data: data.to_owned() };
            assert_eq!(Options::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn options_that_are_none_or_make_another_mount_are_refused() {
        for (text, sentence) in [
            ("noatime,bind", "the mount option bind is not allowed for volumes"),
            ("nouuid", "the mount option nouuid is not allowed for volumes"),
            ("loop=/dev/loop0", "the mount option loop is not allowed for volumes"),
            ("a b", "\"a b\" is no mount option"),
            ("a\0b", "\"a\\0b\" is no mount option"),
        ] {
            assert_eq!(Options::parse(text).unwrap_err().to_string(), sentence);
        }
        assert_eq!(Options::parse(&"x".repeat(MOST_BYTES + 1)), Err(BadOption::TooLong));
    }
}
