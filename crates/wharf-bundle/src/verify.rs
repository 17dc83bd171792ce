//! Full verification of a bundle directory: every byte, and all problems at once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::checksum::{Content, hash_files};
use crate::manifest::{MANIFEST_NAME, MAX_FILES, MAX_MANIFEST_BYTES, Manifest, Mode};

/// One thing that is wrong with a bundle. The text names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    UnsupportedFormat { found: u32, supported: u32 },
    BadManifest { reason: String },
    BadPath { path: String, reason: &'static str },
    Missing { path: String },
    Extra { path: String },
    NotAFile { path: String, kind: &'static str },
    Damaged { path: String, expected: Content, found: Content },
    WrongMode { path: String, expected: Mode, found: Mode },
    Unreadable { path: String, reason: String },
}

impl Problem {
    pub(crate) fn too_large_manifest(bytes: u64) -> Self {
        let reason = format!("it has {bytes} bytes, {MAX_MANIFEST_BYTES} are allowed");
        Self::BadManifest { reason }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedFormat { found, supported } => {
                write!(f, "bundle format {found} is not known here, only {supported}")
            }
            Self::BadManifest { reason } => write!(f, "{MANIFEST_NAME} is refused: {reason}"),
            Self::BadPath { path, reason } => write!(f, "path {path:?} {reason}"),
            Self::Missing { path } => write!(f, "{path} is missing"),
            Self::Extra { path } => write!(f, "{path} is not in the manifest"),
            Self::NotAFile { path, kind } => write!(f, "{path} is {kind}, not a plain file"),
            Self::Damaged { path, expected, found } => {
                write!(f, "{path} is damaged: expected {expected}, found {found}")
            }
            Self::WrongMode { path, expected, found } => {
                write!(f, "{path} has mode {found}, expected {expected}")
            }
            Self::Unreadable { path, reason } => write!(f, "{path} cannot be read: {reason}"),
        }
    }
}

/// Checks a bundle directory against its manifest, completely.
///
/// Symbolic links are never followed: a link is a problem by itself, also where a directory should
/// be.
///
/// # Errors
/// Everything that is wrong, not only the first thing.
pub fn verify(directory: &Path) -> Result<(), Vec<Problem>> {
    let manifest = Manifest::read(directory).map_err(|error| match error {
        Error::Damaged(problems) => problems,
        other => vec![Problem::BadManifest { reason: other.to_string() }],
    })?;
    let mut problems = Vec::new();
    let mut found = walk(directory, &mut problems);
    let mut present = Vec::new();
    for file in &manifest.files {
        match found.remove(&file.path) {
            Some(metadata) => present.push((file, metadata)),
            None if problems.iter().any(|p| is_about(p, &file.path)) => {}
            None => problems.push(Problem::Missing { path: file.path.clone() }),
        }
    }
    problems.extend(found.into_keys().map(|path| Problem::Extra { path }));

    let paths: Vec<PathBuf> = present.iter().map(|(file, _)| directory.join(&file.path)).collect();
    for ((file, metadata), hashed) in present.iter().zip(hash_files(&paths)) {
        let path = file.path.clone();
        match hashed {
            Ok(found) if found != file.content() => {
                problems.push(Problem::Damaged { path, expected: file.content(), found });
            }
            Ok(_) if Mode::of(metadata) != file.mode => {
                let (expected, found) = (file.mode, Mode::of(metadata));
                problems.push(Problem::WrongMode { path, expected, found });
            }
            Ok(_) => {}
            Err(e) => problems.push(Problem::Unreadable { path, reason: e.to_string() }),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// True when a problem of the walk already says why `path` was not found as a file.
fn is_about(problem: &Problem, path: &str) -> bool {
    match problem {
        Problem::NotAFile { path: other, .. } | Problem::Unreadable { path: other, .. } => {
            path == other || path.strip_prefix(other.as_str()).is_some_and(|r| r.starts_with('/'))
        }
        _ => false,
    }
}

/// Plain files below `root` except the manifest; whatever is no file or directory is a problem.
fn walk(root: &Path, problems: &mut Vec<Problem>) -> BTreeMap<String, Metadata> {
    let mut files = BTreeMap::new();
    let mut open = vec![String::new()];
    while let Some(directory) = open.pop() {
        let entries = match std::fs::read_dir(root.join(&directory)) {
            Ok(entries) => entries,
            Err(e) => {
                problems.push(Problem::Unreadable { path: directory, reason: e.to_string() });
                continue;
            }
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => open.push(path),
                Ok(_) if path == MANIFEST_NAME => {}
                Ok(metadata) if metadata.is_file() => _ = files.insert(path, metadata),
                Ok(metadata) if metadata.is_symlink() => {
                    problems.push(Problem::NotAFile { path, kind: "a symbolic link" });
                }
                Ok(_) => problems.push(Problem::NotAFile { path, kind: "a special file" }),
                Err(e) => problems.push(Problem::Unreadable { path, reason: e.to_string() }),
            }
        }
        if files.len() + open.len() + problems.len() > 2 * MAX_FILES {
            let reason = "the directory holds far more files than any bundle".to_owned();
            problems.push(Problem::BadManifest { reason });
            return files;
        }
    }
    files
}
