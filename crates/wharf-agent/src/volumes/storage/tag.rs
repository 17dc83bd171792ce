//! The tag of a device: whose it is. A machine may have several agents (test machines share a kernel),
//! and an agent several grants of a volume.

use std::{os::unix::ffi::OsStrExt, path::Path};

use sha2::{Digest, Sha256};
use wharf_core::volume::record::Generation;

/// As much of a volume's name as fits beside the rest; longer ones are cut and told apart by a sum.
const LONGEST_NAME: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// Agent and volume.
    prefix: String,
    pub generation: Generation,
}

impl Tag {
    /// `agent` is whose it is, see [`agent_of`].
    pub fn new(agent: &str, volume: &str, generation: Generation) -> Self {
        Self { prefix: format!("{agent}/{}@", short(volume)), generation }
    }

    /// The grant in a tag of the same agent and volume.
    pub fn generation_in(&self, tag: &str) -> Option<Generation> {
        tag.strip_prefix(&self.prefix)?.parse().ok().map(Generation)
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.prefix, self.generation)
    }
}

/// Whose a device is: of an agent in one boot of its machine, known by where it keeps its state.
pub fn agent_of(boot_id: &str, state_dir: &Path) -> String {
    let mut sum = Sha256::new();
    sum.update(boot_id.as_bytes());
    sum.update(state_dir.as_os_str().as_bytes());
    sum.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn short(volume: &str) -> String {
    if volume.len() <= LONGEST_NAME {
        return volume.to_owned();
    }
    let sum = Sha256::digest(volume.as_bytes());
    let sum: String = sum.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let begin = volume.get(..volume.floor_char_boundary(LONGEST_NAME - 17)).unwrap_or_default();
    format!("{begin}-{sum}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "0b1a2c3d";

    #[test]
    fn a_tag_is_of_one_boot_and_volume_and_fits() {
        let usual = Tag::new(BOOT, "pvc-0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9", Generation(12));
        assert_eq!(usual.to_string(), "0b1a2c3d/pvc-0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9@12");
        assert_eq!(usual.generation_in(&usual.to_string()), Some(Generation(12)));
        let other = Tag::new(BOOT, "pvc-1", Generation(12));
        assert_eq!(other.generation_in(&usual.to_string()), None);
        let boots = ["a", "b"].map(|boot| agent_of(boot, Path::new("/var/lib/x")));
        assert!(boots[0] != boots[1] && boots[0].len() == 8);
        let long = ["x".repeat(253), format!("{}y", "x".repeat(252))];
        let [a, b] = long.map(|name| Tag::new(BOOT, &name, Generation(1)).to_string());
        assert!(a != b && a.len() <= 63 && b.len() <= 63, "{a} {b}");
    }
}
