//! The bundle: the checked set of binaries and images that an install puts on hosts.
//!
//! Three places hold the same files, each with its own description beside them:
//!
//! - a *component* in the cache (`component.json`): one upstream project in one version, built from
//!   source or taken from its release files; see [`cache`]; programs that run in pods become
//!   *images*; see [`image`];
//! - a *bundle* directory (`bundle.json`): all components that make one Kubernetes version; see
//!   [`Bundle`];
//! - a bundle *archive*: that directory as one tar file; see [`archive`].
//!
//! Start reading at [`catalogue`], the table of what a bundle is made of, then [`manifest`].
//!
//! **Invariant:** this crate knows files and checksums. It knows nothing of clusters, hosts or the
//! network, except that [`mirror`] asks `curl` for a release file.
//! **Invariant:** no path out of a manifest or an archive touches the disk before
//! [`manifest::check_path`] has accepted it.

pub mod archive;
pub mod bundle;
pub mod cache;
pub mod catalogue;
pub mod checksum;
pub mod image;
pub mod manifest;
pub mod mirror;
pub mod oci;
mod place;
pub mod source;
pub mod verify;

use std::io;
use std::path::{Path, PathBuf};

pub use bundle::{Bundle, Placement, build};
pub use checksum::{Content, Sha256};
pub use manifest::{FORMAT, FileEntry, Manifest, Mode};
pub use verify::{Problem, verify};

/// What can go wrong with a bundle, its components and their sources.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} cannot be {action}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a bundle: it holds no bundle.json", .0.display())]
    NotABundle(PathBuf),
    #[error("{} is not JSON of the expected form", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}", problems_in_words(.0))]
    Damaged(Vec<Problem>),
    #[error("{0} exists already and is not empty")]
    OutputExists(String),
    #[error("the archive is refused: {0}")]
    Archive(String),
    #[error("{0:?} is not a version like 1.36.3")]
    BadVersion(String),
    #[error("there is no component named {name}; there are {known}")]
    UnknownComponent { name: String, known: String },
    #[error("{0}")]
    MissingComponent(String),
    #[error("{0:?} is neither a directory nor an http or https address")]
    BadSource(String),
    #[error("{file} is not at {place}")]
    NotAtSource { file: String, place: String },
    #[error("{file} has no checksum: {checksum_file} {reason}")]
    NoChecksum { file: String, checksum_file: String, reason: &'static str },
    #[error("{file} is damaged: expected sha256 {expected}, found {found}")]
    WrongChecksum { file: String, expected: Sha256, found: Sha256 },
    #[error("{file} holds no {wanted}")]
    NotInRelease { file: String, wanted: String },
    #[error("{url} cannot be fetched: {reason}")]
    Fetch { url: String, reason: String },
    #[error("{} needs libraries, and an image of it would not start", .0.display())]
    NotStatic(PathBuf),
    #[error("{name:?} in {} is no name of a command", list.display())]
    BadName { name: String, list: PathBuf },
}

impl Error {
    /// What to do next, in one sentence, for whoever sees this error.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Io { .. } => "check the path, its owner and the free space",
            Error::NotABundle(_) => "make one with `wharf bundle build`",
            Error::Json { .. } | Error::Archive(_) => {
                "make the bundle again with `wharf bundle build`"
            }
            Error::Damaged(_) => {
                "do not install from it; fetch or build the bundle again, then run `wharf bundle verify`"
            }
            Error::OutputExists(_) => "name another output, or remove it first",
            Error::BadVersion(_) => "give three numbers, as in --kubernetes 1.36.3",
            Error::UnknownComponent { .. } => "use one of the names above",
            Error::MissingComponent(_) => "add it, or leave it out with --without NAME",
            Error::BadSource(_) => "give a directory that exists, or an address of a mirror",
            Error::NotAtSource { .. } | Error::NoChecksum { .. } | Error::NotInRelease { .. } => {
                "the layout of a mirror is described in docs/adr/0002-bundle-format.md"
            }
            Error::WrongChecksum { .. } => "nothing of it was kept; fetch the file again",
            Error::Fetch { .. } => "check the address and that curl can reach it",
            Error::NotStatic(_) => "use a statically linked build of the program",
            Error::BadName { .. } => "make the component again with `cargo xtask assets`",
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

fn problems_in_words(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Adds the path and what was tried to an I/O error, so that messages name the file.
pub(crate) trait IoContext<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_owned(), source })
    }
}
