//! One server for one data directory.

use std::{
    fs::{DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::error::{StoreError, StoreResult};

pub(crate) const LOCK_FILE: &str = "wharf.lock";

/// A server that was killed while it began a command leaves a copy of itself behind, which holds the
/// directory for the moment until it has become that command.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// Held as long as the store is open; the kernel gives it up when the process dies.
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the directory for this process, and leaves its id for whoever comes second.
    pub(crate) fn take(data_dir: &Path) -> StoreResult<DirLock> {
        let path = data_dir.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| write_error("open", &path, source))?;
        let give_up = Instant::now() + LAST_BREATH;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(io_error("lock", &path, errno.into())),
            }
            let pid = read_pid(&mut file);
            if !pid.is_some_and(is_dead) || Instant::now() >= give_up {
                return Err(StoreError::InUse { dir: data_dir.to_owned(), pid });
            }
            sleep(Duration::from_millis(10));
        }
        write_pid(&mut file).map_err(|source| write_error("write", &path, source))?;
        Ok(DirLock { _file: file })
    }
}

/// It only makes the message better; without it the message still holds.
fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn is_dead(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Makes the data directory, for its owner alone, if it is missing.
pub(crate) fn ensure_data_dir(data_dir: &Path) -> StoreResult<()> {
    if let Some(metadata) = data_dir.metadata().ok().filter(Metadata::is_dir) {
        let mode = metadata.permissions().mode() & 0o777;
        if rights_of_others(mode) != 0 {
            tracing::warn!(
                "the data directory {} has the mode {mode:04o}, so that others than its owner may \
                 enter it; `chmod 700` keeps them out",
                data_dir.display()
            );
        }
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .map_err(|source| write_error("make the directory", data_dir, source))?;
    match data_dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

fn rights_of_others(mode: u32) -> u32 {
    mode & 0o077
}

/// Makes new names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> StoreResult<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|source| io_error("sync", dir, source))
}

/// Says what a person can do about: a full disk has its own kind.
pub(crate) fn io_error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::DiskFull(Box::new(source))
        }
        _ => StoreError::Io { action, path: path.to_owned(), source },
    }
}

/// The same for writing in the store's own place, which may be read-only.
pub(crate) fn write_error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreError::ReadOnly { what: path.display().to_string() }
        }
        _ => io_error(action, path, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_read_is_named_and_only_the_stores_own_place_is_read_only() {
        let path = Path::new("/etc/wharf/etcd-ca.pem");
        let denied = || io::ErrorKind::PermissionDenied.into();
        let error = io_error("read", path, denied());
        assert_eq!(error.to_string(), "cannot read /etc/wharf/etcd-ca.pem");
        let hint = error.hint().unwrap();
        assert!(hint.contains("permissions of /etc/wharf/etcd-ca.pem"), "{hint}");
        let error = write_error("open", path, denied());
        assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    }

    #[test]
    fn the_last_moment_of_a_dead_holder_is_waited_for_and_a_live_one_is_named_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let held = DirLock::take(dir.path()).unwrap();
        let begun = Instant::now();
        let error = DirLock::take(dir.path()).err().unwrap();
        assert!(
            matches!(error, StoreError::InUse { pid: Some(pid), .. } if pid == std::process::id())
        );
        assert!(begun.elapsed() < LAST_BREATH);
        // No process has this number: it is above the greatest there can be.
        std::fs::write(dir.path().join(LOCK_FILE), "4194305\n").unwrap();
        let ending = std::thread::spawn(move || {
            sleep(Duration::from_millis(100));
            drop(held);
        });
        drop(DirLock::take(dir.path()).unwrap());
        ending.join().unwrap();
    }

    #[test]
    fn a_directory_that_others_may_use_is_noticed() {
        for (mode, others) in [(0o700, 0), (0o750, 0o050), (0o701, 0o001), (0o755, 0o055)] {
            assert_eq!(rights_of_others(mode), others, "{mode:o}");
        }
    }
}
