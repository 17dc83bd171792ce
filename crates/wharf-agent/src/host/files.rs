//! Files, links and directories: looking at them, and writing them so that nobody ever sees half.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use sha2::{Digest, Sha256};

/// A text of ours is small. What is larger at its place is something else, and is not read.
const TEXT_LIMIT: u64 = 64 * 1024 * 1024;

/// The end of the name under which a file is written before it is renamed.
const HALF_WRITTEN: &str = ".wharf-new";

const PERMISSION_BITS: u32 = 0o7777;

/// What is at a path, without following it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Directory {
        mode: u32,
        empty: bool,
    },
    /// The checksum is empty for a file too large to be a text.
    File {
        mode: u32,
        sha256: String,
    },
    Link {
        target: String,
        to_directory: bool,
    },
    Other,
}

pub fn look(path: &Path) -> io::Result<Found> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        // Below a file there is nothing either.
        Err(error) if absent(&error) => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    let mode = metadata.mode() & PERMISSION_BITS;
    if metadata.is_dir() {
        Ok(Found::Directory { mode, empty: holds_nothing(path) })
    } else if metadata.is_symlink() {
        let target = fs::read_link(path)?.to_string_lossy().into_owned();
        Ok(Found::Link { target, to_directory: path.is_dir() })
    } else if metadata.is_file() {
        let small = metadata.len() <= TEXT_LIMIT;
        let sha256 = if small { file_sha256(path)? } else { String::new() };
        Ok(Found::File { mode, sha256 })
    } else {
        Ok(Found::Other)
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub fn file_sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1024 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            count => hasher.update(buffer.get(..count).unwrap_or_default()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file in one step: whoever opens it sees the old content or the new. The content is on
/// the disk before the name is. Of several who write at once each succeeds, and the last one's stays.
pub fn write(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let new = beside(path)?;
    let mut file = locked(&new)?;
    let written = file
        // What a crash left there may be longer, and open to others.
        .set_permissions(Permissions::from_mode(0o600))
        .and_then(|()| file.set_len(0))
        .and_then(|()| file.write_all(content))
        // The mode given at creation is cut by the umask.
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// The file of this name, for us alone until it is closed. Who had it before us has renamed it: then
/// there is another one of this name.
fn locked(new: &Path) -> io::Result<File> {
    loop {
        if fs::symlink_metadata(new).is_ok_and(|found| !found.is_file()) {
            remove_file(new)?;
        }
        let mut options = OpenOptions::new();
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(new)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let ours = file.metadata()?;
        let is_it = |found: Metadata| found.ino() == ours.ino() && found.dev() == ours.dev();
        if fs::symlink_metadata(new).is_ok_and(is_it) {
            return Ok(file);
        }
    }
}

/// Like [`write()`], and the name too is on the disk when this returns.
pub fn write_durably(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    write(path, mode, content)?;
    File::open(parent(path)?)?.sync_all()
}

/// Makes a symbolic link in one step, in place of a file or link that is there.
pub fn link(path: &Path, target: &str) -> io::Result<()> {
    let new = cleared(beside(path)?)?;
    symlink(target, &new)?;
    fs::rename(&new, path).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Makes a directory with exactly this mode, or gives an existing one this mode.
pub fn directory(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// A name for the new file, in the same directory so that it can be renamed. It is always the
/// same, so that what a crash left is taken away by the next try, or by a removal.
pub fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path has no name"))?;
    Ok(parent(path)?.join(format!(".{}{HALF_WRITTEN}", name.to_string_lossy())))
}

/// Whether a directory is empty but for what a crash of ours left.
pub fn holds_nothing(directory: &Path) -> bool {
    let half_written = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().as_bytes().ends_with(HALF_WRITTEN.as_bytes()))
    };
    fs::read_dir(directory).is_ok_and(|mut entries| entries.all(half_written))
}

fn cleared(new: PathBuf) -> io::Result<PathBuf> {
    remove_file(&new).map(|_| new)
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::other("the path has no parent"))
}

/// Removes a file or a link; one that is gone is no error. A directory is one.
pub fn remove_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_who_write_at_once_each_succeeds_and_nothing_is_mixed() {
        const WRITERS: u8 = 8;
        const ROUNDS: usize = 50;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content = |writer: u8| vec![b'a' + writer; 1000 + usize::from(writer)];
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        write(path, 0o640, &content(writer)).unwrap();
                    }
                });
            }
        });
        let last = fs::read(&path).unwrap();
        assert!((0..WRITERS).any(|writer| last == content(writer)), "{last:?}");
        assert_eq!(look(&path).unwrap(), Found::File { mode: 0o640, sha256: sha256(&last) });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_a_crash_left_is_written_over_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("file"), dir.path().join("elsewhere"));
        fs::write(beside(&path).unwrap(), "longer than what comes").unwrap();
        write(&path, 0o600, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::write(&elsewhere, "kept").unwrap();
        symlink(&elsewhere, beside(&path).unwrap()).unwrap();
        write(&path, 0o600, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
    }
}
