//! The Network Block Device protocol over TCP, and what we add to it so that an image never has two
//! writers.
//!
//! An export is called `IMAGE@GENERATION`. The server keeps for each image the highest generation that
//! it has ever let in (its epoch), on disk, and refuses everybody below it. Our own clients say in the
//! handshake who they are ([`control::Ask::Join`]) and may write; any other client of the protocol may
//! read.
//!
//! Start reading at [`server`], then [`client`].

pub mod client;
pub mod control;
pub mod server;
mod wire;

use std::fmt;

pub(crate) use wire::Fields;

use serde::{Deserialize, Serialize};

/// A file name has at most 255 bytes, and the server adds endings to it.
pub const MAX_NAME: usize = 200;

/// The name of an image: letters, digits, `.`, `_` and `-`, beginning with a letter or digit. So it is
/// one part of a path, never a hidden one, and needs no escapes anywhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "an image's name has 1 to {MAX_NAME} letters, digits, `.`, `_` or `-` and begins with a letter or digit"
)]
pub struct BadName;

impl ImageName {
    pub fn new(name: &str) -> Result<Self, BadName> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins_well && name.len() <= MAX_NAME && name.chars().all(plain) {
            Ok(Self(name.to_owned()))
        } else {
            Err(BadName)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ImageName {
    type Error = BadName;

    fn try_from(name: String) -> Result<Self, BadName> {
        Self::new(&name)
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> String {
        name.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a client asks for by the protocol's own means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    pub image: ImageName,
    pub generation: u64,
}

impl Export {
    pub fn parse(name: &str) -> Option<Self> {
        let (image, generation) = name.rsplit_once('@')?;
        // `parse` alone would take a sign too.
        if !generation.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self { image: ImageName::new(image).ok()?, generation: generation.parse().ok()? })
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.image, self.generation)
    }
}

/// The kernel's name for the time since this machine started: what was written and not flushed
/// survives the end of a process, but not the end of this.
pub(crate) fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_plain_part_of_a_path() {
        for good in ["a", "pvc-1", "0.x_Y-z", &"a".repeat(MAX_NAME)] {
            assert!(ImageName::new(good).is_ok(), "{good}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a@b", "a b", "a\0", "ä", "a\n", &long] {
            assert!(ImageName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_export_is_an_image_and_a_generation() {
        let export = Export::parse("pvc-1@7").unwrap();
        assert_eq!((export.image.as_str(), export.generation), ("pvc-1", 7));
        assert_eq!(export.to_string(), "pvc-1@7");
        for bad in ["", "pvc-1", "pvc-1@", "@1", "a@-1", "a@+1", "a@1@", "../a@1", "a@1 "] {
            assert_eq!(Export::parse(bad), None, "{bad:?}");
        }
        assert_eq!(Export::parse("a@18446744073709551616"), None, "too large");
    }
}
