//! The last configuration that came over the link.

use std::path::{Path, PathBuf};

use wharf_api::link::{Guard, NodeConfig};
use wharf_core::words::chain;

use crate::host::files;

pub struct Saved {
    path: PathBuf,
}

impl Saved {
    pub fn new(persist_dir: &Path) -> Self {
        Self { path: persist_dir.join("wharf").join("link.json") }
    }

    /// `None` when there never was one.
    pub fn read(&self) -> Result<Option<NodeConfig>, String> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", self.path.display())),
        };
        let config = serde_json::from_slice(&text);
        config.map_err(|error| format!("cannot read {}: {error}", self.path.display()))
    }

    /// Keeps all but the guard's word, which holds only as long as the link does.
    pub fn write(&self, config: &NodeConfig) -> Result<(), String> {
        let kept = NodeConfig { guard: Guard::default(), ..config.clone() };
        let write = || -> Result<(), Box<dyn std::error::Error>> {
            if self.read().is_ok_and(|known| known.as_ref() == Some(&kept)) {
                return Ok(());
            }
            let text = serde_json::to_vec(&kept)?;
            std::fs::create_dir_all(self.path.parent().unwrap_or(Path::new("/")))?;
            Ok(files::write_durably(&self.path, 0o600, &text)?)
        };
        write().map_err(|error| format!("cannot write {}: {}", self.path.display(), chain(&*error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_read_again_without_the_guards_word() {
        let dir = tempfile::tempdir().unwrap();
        let saved = Saved::new(dir.path());
        assert_eq!(saved.read().unwrap(), None);
        let guard = Guard { admitted: true, reason: String::new() };
        let config = NodeConfig { nodes: 3, guard, ..NodeConfig::default() };
        saved.write(&config).unwrap();
        let expected = NodeConfig { guard: Guard::default(), ..config };
        assert_eq!(saved.read().unwrap(), Some(expected));
        std::fs::write(dir.path().join("wharf/link.json"), "junk").unwrap();
        assert!(saved.read().is_err());
    }
}
