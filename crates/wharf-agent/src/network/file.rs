//! The network file, and whether it changed.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use wharf_core::install::network::NetworkFile;

/// A file of five thousand peers has about half a megabyte.
const MOST_BYTES: u64 = 8 << 20;

/// Looks at the file's stamp instead of waiting for notices of the kernel: that sees every kind of
/// change, also a directory that was replaced, and needs no resource that can run out.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    /// Whose file it must be; empty for anybody's.
    node: String,
    stamp: Option<Stamp>,
    looked: bool,
}

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Same,
    New(NetworkFile),
    /// Told once for each version.
    Bad(String),
}

impl FileSource {
    pub fn new(path: PathBuf, node: String) -> Self {
        Self { path, node, stamp: None, looked: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn look(&mut self) -> Seen {
        let metadata = fs::metadata(&self.path);
        let stamp = metadata.as_ref().ok().map(|found| Stamp {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        });
        if self.looked && stamp == self.stamp {
            return Seen::Same;
        }
        self.looked = true;
        self.stamp = stamp;
        match metadata {
            Err(error) => Seen::Bad(error.to_string()),
            Ok(found) if found.size() > MOST_BYTES => {
                Seen::Bad(format!("it has {} bytes; at most {MOST_BYTES} are read", found.size()))
            }
            Ok(_) => match self.read() {
                Ok(file) => Seen::New(file),
                Err(reason) => Seen::Bad(reason),
            },
        }
    }

    fn read(&self) -> Result<NetworkFile, String> {
        let text = fs::read(&self.path).map_err(|error| error.to_string())?;
        let file: NetworkFile = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if !self.node.is_empty() && self.node != file.node.name {
            return Err(format!("it is for {}, and this node is {}", file.node.name, self.node));
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(node: &str) -> String {
        format!(
            r#"{{"node":{{"name":"{node}","address":"10.0.0.1","podCidr":"10.42.0.0/24"}},
                "clusterCidr":"10.42.0.0/16","serviceCidr":"10.43.0.0/16","mode":"routed",
                "interface":null,"peers":[],
                "balancer":{{"listen":"127.0.0.1:6444","servers":[],"authorityFile":"/ca"}}}}"#
        )
    }

    fn replace(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn each_version_is_told_once_also_a_bad_or_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("network.json");
        let mut source = FileSource::new(path.clone(), String::new());
        assert!(matches!(source.look(), Seen::Bad(_)));
        assert_eq!(source.look(), Seen::Same);
        replace(&path, &text("a"));
        assert!(matches!(source.look(), Seen::New(file) if file.node.name == "a"));
        assert_eq!(source.look(), Seen::Same);
        replace(&path, "{");
        assert!(matches!(source.look(), Seen::Bad(_)));
        assert_eq!(source.look(), Seen::Same);
        // The same size within the same moment: the inode tells.
        replace(&path, &text("b"));
        assert!(matches!(source.look(), Seen::New(_)));
        replace(&path, &text("c"));
        assert!(matches!(source.look(), Seen::New(file) if file.node.name == "c"));
    }

    #[test]
    fn another_nodes_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("network.json");
        fs::write(&path, text("b")).unwrap();
        let mut source = FileSource::new(path, "a".to_owned());
        let Seen::Bad(reason) = source.look() else { panic!("taken") };
        assert!(reason.contains("for b") && reason.contains("is a"), "{reason}");
    }
}
