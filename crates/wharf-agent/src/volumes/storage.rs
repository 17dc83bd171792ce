//! What the bytes of volumes are on: one trait, and a kind for each backend.

mod devices;
mod dir;
mod loopfile;
mod owner;
mod proxy;
mod rbd;
mod tag;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use wharf_block::{loops, nbd, shutdown};
use wharf_core::volume::{
    backend::Backend,
    record::{Entry, Generation},
};

use super::{Places, journals::is_name, kernel::KernelError};
pub use devices::{Files, Hints, Listed, every_device, every_listed};
pub use proxy::{Trouble, troubles};
pub use tag::{Tag, agent_of};

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("the storage cluster has no parameter {0}")]
    Missing(&'static str),
    #[error("the parameter {0} of the storage cluster cannot be {1:?}")]
    Parameter(&'static str, String),
    #[error("{0:?} is no name of an image")]
    Image(String),
    #[error("there is no image {0}")]
    NoImage(String),
    #[error("image {image} is in use by volume {by}; an image belongs to one PersistentVolume")]
    Taken { image: String, by: String },
    #[error(
        "image {image} was granted with generation {epoch} already, which is later than {ours}"
    )]
    Later { image: String, epoch: Generation, ours: Generation },
    #[error("whether the device is there cannot be seen: a loop device does not answer")]
    Silent,
    #[error("cannot {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Loop(#[from] loops::Error),
    #[error("the block server refuses or does not answer")]
    Server(#[from] nbd::client::Error),
    #[error(transparent)]
    Proxy(#[from] wharf_block::proxy::Error),
    #[error(transparent)]
    Shutdown(#[from] shutdown::Error),
    #[error(transparent)]
    Rbd(Box<rbd::Error>),
}

impl StorageError {
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

pub type Result<T> = std::result::Result<T, StorageError>;

/// One volume on this node.
#[derive(Debug, Clone)]
pub struct Use {
    pub volume: String,
    pub image: String,
    /// Which grant of the volume.
    pub generation: Generation,
    pub read_only: bool,
    pub boot_id: String,
    /// Whose devices are ours, see [`agent_of`].
    pub agent: String,
    /// Where the file system is mounted, if it is.
    pub staging: PathBuf,
    /// The directories of pods that have it, and what is above those of all pods.
    pub binds: Vec<PathBuf>,
    pub pods: PathBuf,
}

impl Use {
    fn tag(&self) -> Tag {
        Tag::new(&self.agent, &self.volume, self.generation)
    }
}

/// A device on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub path: PathBuf,
    /// The grant under which it was made.
    pub generation: Generation,
    /// The client as the storage knows it.
    pub identity: String,
    /// A file system has to be on it; otherwise it is a directory that is used as it is.
    pub is_block: bool,
}

/// Storage of one cluster. Everything may block, and may be called again after it was done.
pub trait Storage: Send + Sync {
    /// The device of a volume on this node, of whatever grant of this boot.
    fn find(&self, volume: &Use) -> Result<Option<Device>>;
    /// Makes the device. Fails if a later grant was seen.
    fn map(&self, volume: &Use) -> Result<Device>;
    /// Takes the device away, and sees that it is gone.
    fn unmap(&self, volume: &Use, device: &Device) -> Result<()>;
    /// Nothing that is written reaches the storage after this, and what hangs comes loose. It fails
    /// where that is not known for sure: others take the volume over on the strength of it.
    /// The device may be unknown, when it is what hangs.
    fn cut(&self, volume: &Use, device: Option<&Device>) -> Result<()>;
    /// Shuts out these holders of the volume, and every client below the generation. Nobody has by it an
    /// image that is another volume's.
    fn fence(
        &self,
        volume: &str,
        image: &str,
        holders: &[Entry],
        generation: Generation,
    ) -> Result<()>;
    /// The highest generation that the storage has seen.
    fn epoch(&self, image: &str) -> Result<Generation>;
    /// Makes an image of at least this size, if there is none.
    fn create(&self, image: &str, bytes: u64) -> Result<()>;
    /// Makes an image larger; a smaller size changes nothing.
    fn grow(&self, image: &str, bytes: u64) -> Result<()>;
    /// Removes an image, if it is there and not another volume's.
    fn delete(&self, volume: &str, image: &str) -> Result<()>;
    /// Says to the device of a volume how large its image is now.
    fn refresh(&self, volume: &Use, device: &Device) -> Result<()>;
}

/// The storage of a cluster.
pub fn open(
    backend: Backend,
    parameters: &BTreeMap<String, String>,
    places: &Places,
    hints: &Hints,
) -> Result<Box<dyn Storage>> {
    match backend {
        Backend::Loopfile => Ok(Box::new(loopfile::Loopfile::new(parameters, hints)?)),
        Backend::Dir => Ok(Box::new(dir::Dir::new(parameters, places)?)),
        Backend::Proxy => Ok(Box::new(proxy::Proxy::new(parameters, places, hints)?)),
        Backend::Rbd => Ok(Box::new(rbd::Rbd::new(parameters, places, hints)?)),
    }
}

/// What a machine may have as the smallest piece of a disk or of memory. A device of another size would lose its
/// end, and never be as large as its volume.
const PIECE: u64 = 4096;

/// How large an image is made that has to have room for so many bytes.
fn whole(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PIECE).unwrap_or(bytes)
}

/// Ends the processes that a volume may have here, whatever its backend. Nothing uses their files any more.
pub fn end_processes(places: &Places, volume: &str) -> Result<()> {
    proxy::end(places, volume)?;
    rbd::end(places, volume)
}

fn parameter(parameters: &BTreeMap<String, String>, key: &'static str) -> Result<String> {
    let value = parameters.get(key).filter(|value| !value.is_empty());
    value.cloned().ok_or(StorageError::Missing(key))
}

/// Where the processes of volumes have their directories. The kernel shows real paths.
fn runs(places: &Places, kind: &str) -> PathBuf {
    let runs = places.state_dir.join(kind);
    runs.canonicalize().unwrap_or(runs)
}

/// Where an image lies below a directory.
fn below(directory: &Path, image: &str) -> Result<PathBuf> {
    check_image(image)?;
    Ok(directory.join(image))
}

fn check_image(image: &str) -> Result<()> {
    if is_name(image) {
        return Ok(());
    }
    Err(StorageError::Image(image.chars().take(100).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_no_smaller_than_what_was_asked_for_and_has_no_half_pieces() {
        let rows =
            [(0, 0), (1, 4096), (4096, 4096), (500_000_000, 500_002_816), (1 << 30, 1 << 30)];
        for (asked, made) in rows {
            assert_eq!(whole(asked), made, "{asked}");
        }
        assert_eq!(whole(u64::MAX), u64::MAX, "which nobody can make");
    }
}
