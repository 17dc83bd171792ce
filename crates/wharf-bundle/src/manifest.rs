//! `bundle.json`: what a bundle says about itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checksum::{Content, Sha256};
use crate::{Error, IoContext, Problem, Result};

/// The only format there is. Fields may be added within a format; a change of meaning raises it.
pub const FORMAT: u32 = 1;

/// The manifest's name inside a bundle, and the first entry of an archive.
pub const MANIFEST_NAME: &str = "bundle.json";

/// A manifest of every binary and image of a large bundle stays far below this.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Far above any bundle; it bounds what a forged manifest makes us do.
pub(crate) const MAX_FILES: usize = 10_000;
/// The largest size that the size field of a ustar header holds.
pub(crate) const MAX_FILE_BYTES: u64 = (8 << 30) - 1;
/// A forged archive may not fill a disk beyond this.
pub(crate) const MAX_TOTAL_BYTES: u64 = 64 << 30;
/// What the name field of a tar header holds, without extensions.
const MAX_PATH_BYTES: usize = 100;
/// What registries and containerd take.
const MAX_IMAGE_NAME_BYTES: usize = 255;

/// The description of a whole bundle.
///
/// It names no time and no machine: the same files give the same bytes, so that two people who
/// build the same bundle can compare it by one checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// As Go and the release files spell it: `amd64`, `arm64`.
    pub arch: String,
    /// The Kubernetes version, without a leading `v`.
    pub kubernetes: String,
    pub created: Created,
    pub files: Vec<FileEntry>,
}

/// How the bundle came to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The program and its version.
    pub by: String,
    /// For each component where its files come from: `go1.26.8` (built from source), or `release`.
    #[serde(default)]
    pub origin: BTreeMap<String, String>,
}

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative to the bundle, with `/` between its parts: `bin/kubelet`.
    pub path: String,
    pub component: String,
    pub version: String,
    pub sha256: Sha256,
    pub size: u64,
    pub mode: Mode,
    /// For an archive of an image: the name under which containerd has it, `wharf.dev/pause:1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl FileEntry {
    #[must_use]
    pub fn content(&self) -> Content {
        Content { sha256: self.sha256, size: self.size }
    }

    /// The last part of the path: `kubelet`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Permission bits, written in octal as people read them: `"0755"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mode(u32);

impl Mode {
    pub const EXECUTABLE: Mode = Mode(0o755);
    pub const DATA: Mode = Mode(0o644);

    /// The permission bits of a file on disk, with set-id and sticky bits, so that they are noticed.
    #[must_use]
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::PermissionsExt;
        Self(metadata.permissions().mode() & 0o7777)
    }

    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

impl TryFrom<String> for Mode {
    type Error = String;

    /// Only plain permissions: a bundle has no use for set-id files.
    fn try_from(text: String) -> Result<Self, String> {
        match u32::from_str_radix(&text, 8) {
            Ok(bits) if bits <= 0o777 => Ok(Self(bits)),
            _ => Err(format!("{text:?} is not a file mode like \"0755\"")),
        }
    }
}

impl Manifest {
    /// Reads and checks the manifest of a bundle directory.
    ///
    /// # Errors
    /// There is none, it is not readable as one, or it says what no manifest may say.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST_NAME);
        let metadata = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => metadata,
            _ => return Err(Error::NotABundle(directory.to_owned())),
        };
        if metadata.len() > MAX_MANIFEST_BYTES {
            return Err(Error::Damaged(vec![Problem::too_large_manifest(metadata.len())]));
        }
        let bytes = std::fs::read(&path).at("read", &path)?;
        Self::from_json(&bytes).map_err(Error::Damaged)
    }

    /// Reads a manifest and lists all that is wrong with it.
    ///
    /// # Errors
    /// The format is not ours, the JSON is not a manifest, or entries break the rules for paths.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        #[derive(Deserialize)]
        struct FormatOnly {
            format: u32,
        }
        let unreadable =
            |e: serde_json::Error| vec![Problem::BadManifest { reason: e.to_string() }];
        let FormatOnly { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format != FORMAT {
            return Err(vec![Problem::UnsupportedFormat { found: format, supported: FORMAT }]);
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        let problems = manifest.problems();
        if problems.is_empty() { Ok(manifest) } else { Err(problems) }
    }

    /// As it is stored: indented, with a newline at the end, so that people can read and compare it.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // Strings and numbers alone cannot fail to serialise.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    #[must_use]
    pub fn total_size(&self) -> u64 {
        self.files.iter().map(|file| file.size).fold(0, u64::saturating_add)
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.files.len() > MAX_FILES {
            let reason = format!("it lists {} files, {MAX_FILES} are allowed", self.files.len());
            return vec![Problem::BadManifest { reason }];
        }
        if self.total_size() > MAX_TOTAL_BYTES {
            let reason = format!("its files have {} bytes in all", self.total_size());
            problems.push(Problem::BadManifest { reason });
        }
        let (mut seen, mut images) = (BTreeSet::new(), BTreeSet::new());
        for file in &self.files {
            let path = || file.path.clone();
            if let Err(reason) = check_path(&file.path) {
                problems.push(Problem::BadPath { path: path(), reason });
            } else if !seen.insert(&file.path) {
                problems.push(Problem::BadPath { path: path(), reason: "is listed twice" });
            }
            if file.size > MAX_FILE_BYTES {
                problems.push(Problem::BadPath { path: path(), reason: "is too large" });
            }
            if let Some(image) = &file.image {
                if !is_image_name(image) {
                    let reason = format!("{image:?} is not a full name of an image");
                    problems.push(Problem::BadManifest { reason });
                } else if !images.insert(image) {
                    let reason = format!("the image {image} is listed twice");
                    problems.push(Problem::BadManifest { reason });
                }
            }
        }
        problems
    }
}

/// Accepts a plain relative path that stays inside its directory, and nothing else.
///
/// # Errors
/// The reason, as the end of a sentence that begins with the path.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Err("is too long");
    }
    if path.starts_with('/') {
        return Err("is absolute");
    }
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return Err("holds a control character or a backslash");
    }
    for part in path.split('/') {
        match part {
            "" => return Err("has an empty part"),
            "." | ".." => return Err("leaves the bundle"),
            _ => {}
        }
    }
    if path == MANIFEST_NAME {
        return Err("is the manifest itself");
    }
    Ok(())
}

/// A name that means the same everywhere: `registry/path:tag`, in plain characters. A short name
/// would be completed with a registry of the outside.
#[must_use]
pub fn is_image_name(name: &str) -> bool {
    let Some((repository, tag)) = name.rsplit_once(':') else { return false };
    let Some((registry, path)) = repository.split_once('/') else { return false };
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let begins_well = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric());
    let tag_character = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.len() <= MAX_IMAGE_NAME_BYTES
        && registry.contains('.')
        && std::iter::once(registry)
            .chain(path.split('/'))
            .all(|part| begins_well(part) && part.chars().all(lower))
        && begins_well(tag)
        && tag.chars().all(tag_character)
}
