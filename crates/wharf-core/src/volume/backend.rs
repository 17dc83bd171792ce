//! The kinds of storage behind a volume, and what each can promise.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Image files in a shared directory.
    Loopfile,
    /// A block server of our own, spoken to from user space.
    Proxy,
    /// Ceph's block devices.
    Rbd,
    /// A shared directory as it is.
    Dir,
}

impl Backend {
    pub const ALL: [Backend; 4] = [Backend::Loopfile, Backend::Proxy, Backend::Rbd, Backend::Dir];

    /// Whether the data path refuses a client of an older generation, also one that was stopped and
    /// goes on later. Where it does not, only the client itself can end its writing.
    pub fn refuses_old_clients(self) -> bool {
        match self {
            Backend::Proxy | Backend::Rbd => true,
            Backend::Loopfile | Backend::Dir => false,
        }
    }

    /// Whether several nodes may write at once. A file system on a block device breaks by that.
    pub fn shares_writing(self) -> bool {
        match self {
            Backend::Dir => true,
            Backend::Loopfile | Backend::Proxy | Backend::Rbd => false,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Loopfile => "loopfile",
            Backend::Proxy => "proxy",
            Backend::Rbd => "rbd",
            Backend::Dir => "dir",
        })
    }
}
