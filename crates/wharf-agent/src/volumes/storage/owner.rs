//! Whose an image is, where nothing but a note beside it says so. All nodes see the same note.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use wharf_core::volume::record::Generation;

use super::{Result, StorageError, Use};
use crate::host::files;

/// What lies beside an image.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub volume: String,
    /// The highest grant, where that is kept.
    pub generation: Generation,
}

/// The note of an image; `None` while it is nobody's.
pub fn read(path: &Path) -> Result<Option<Note>> {
    let failed = |source| StorageError::io(format!("read {}", path.display()), source);
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => serde_json::from_slice(&text.map_err(failed)?)
            .map(Some)
            .map_err(|source| failed(source.into())),
    }
}

/// The note of an image, if that is not another volume's.
pub fn check(path: &Path, image: &str, volume: &str) -> Result<Option<Note>> {
    let note = read(path)?;
    refuse_other(note.as_ref().map(|note| note.volume.as_str()), image, volume)?;
    Ok(note)
}

/// Refuses an image that is another volume's.
pub fn refuse_other(owner: Option<&str>, image: &str, volume: &str) -> Result<()> {
    match owner.filter(|owner| *owner != volume) {
        Some(by) => Err(StorageError::Taken { image: image.to_owned(), by: by.to_owned() }),
        None => Ok(()),
    }
}

/// Makes an image the volume's, if it is nobody's. Of two who come at once one has it.
pub fn claim(path: &Path, volume: &Use) -> Result<Note> {
    if let Some(known) = check(path, &volume.image, &volume.volume)? {
        return Ok(known);
    }
    let note = Note { volume: volume.volume.clone(), generation: volume.generation };
    match write_first(path, &note, volume) {
        Ok(()) => Ok(note),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(check(path, &volume.image, &volume.volume)?.unwrap_or(note))
        }
        // Where this node may only read it can leave no note.
        Err(error) if volume.read_only && error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Ok(note)
        }
        Err(source) => Err(StorageError::io(format!("write {}", path.display()), source)),
    }
}

pub fn write(path: &Path, note: &Note) -> Result<()> {
    let text = serde_json::to_vec(note).map_err(io::Error::from);
    text.and_then(|text| files::write_durably(path, 0o600, &text))
        .map_err(|source| StorageError::io(format!("write {}", path.display()), source))
}

/// Whole or not at all, and only where there is none: a link to a file that is there is refused also by
/// network file systems.
fn write_first(path: &Path, note: &Note, volume: &Use) -> io::Result<()> {
    let text = serde_json::to_vec(note)?;
    let fresh = fresh(path, volume);
    // What a crash left may be another note by a second name, and is not written to.
    files::remove_file(&fresh)?;
    let mut file = File::create_new(&fresh)?;
    let linked = file
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&fresh, path));
    files::remove_file(&fresh)?;
    match linked {
        // A file system without links, for which most kernels say that it is not permitted: the last of
        // those who come at once has it.
        Err(error) if is_without_links(error.kind()) => files::write_durably(path, 0o600, &text),
        Err(error) => Err(error),
        Ok(()) => File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all(),
    }
}

/// Where a note is written first. Nobody else on any node has this name, and no image begins with a dot.
fn fresh(path: &Path, volume: &Use) -> PathBuf {
    let sum: String = files::sha256(volume.volume.as_bytes()).chars().take(16).collect();
    path.with_file_name(format!(".{}-{sum}.new", volume.agent))
}

/// The file itself could be made in the same directory.
fn is_without_links(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
pub mod tests {
    use std::thread;

    use super::*;

    /// A use of an image by a volume. Nothing of it is mounted.
    pub fn use_of(volume: &str, image: &str, read_only: bool) -> Use {
        Use {
            volume: volume.to_owned(),
            image: image.to_owned(),
            generation: Generation(2),
            read_only,
            boot_id: "boot".to_owned(),
            agent: format!("{:08x}", std::process::id()),
            staging: "/no/staging".into(),
            binds: Vec::new(),
            pods: "/no/pods".into(),
        }
    }

    #[test]
    fn of_many_who_come_at_once_one_volume_has_the_image() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = dir.path().join(format!("{round}.note"));
            let claims: Vec<Result<Note>> = thread::scope(|scope| {
                let claim = |name: String| claim(&path, &use_of(&name, "one", false));
                let running: Vec<_> =
                    (0..4).map(|n| scope.spawn(move || claim(format!("pv-{n}")))).collect();
                running.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let owner = read(&path).unwrap().unwrap();
            for (number, claimed) in claims.into_iter().enumerate() {
                match claimed {
                    Ok(note) => {
                        assert_eq!((format!("pv-{number}"), &note), (note.volume.clone(), &owner));
                    }
                    Err(StorageError::Taken { by, .. }) => assert_eq!(by, owner.volume),
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 50, "nothing but the notes is left");
    }

    /// Killed after the note had its name, and before that of the file was taken away.
    #[test]
    fn what_a_crash_left_does_not_change_the_note_of_another_image() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|image| dir.path().join(format!("{image}.note")));
        let first = claim(&one, &use_of("pv-1", "one", false)).unwrap();
        let later = Use { generation: Generation(1), ..use_of("pv-1", "two", false) };
        fs::hard_link(&one, fresh(&two, &later)).unwrap();
        claim(&two, &later).unwrap();
        assert_eq!(read(&one).unwrap().unwrap(), first, "its epoch never falls");
        assert_eq!(read(&two).unwrap().unwrap().generation, Generation(1));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
