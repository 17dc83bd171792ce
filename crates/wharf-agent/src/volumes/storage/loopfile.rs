//! Image files in a directory that all nodes share, as loop devices.
//!
//! The directory cannot refuse a node: what keeps two from writing is the record, the lease and that
//! an agent cuts itself off. Beside each image lies a note of whose it is and of its highest grant.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use wharf_block::loops;
use wharf_core::volume::record::{Entry, Generation};

use super::{
    Device, Hints, Result, Storage, StorageError, Use, below,
    devices::shown,
    owner::{self, Note},
    parameter, whole,
};
use crate::volumes::kernel;

/// Of every image.
pub const ENDING: &str = "img";

/// What is sure of an image's path: directories may be links.
pub fn name_of(image: &str) -> PathBuf {
    PathBuf::from(image).with_added_extension(ENDING)
}

pub struct Loopfile {
    directory: PathBuf,
    hints: Hints,
}

impl Loopfile {
    pub fn new(parameters: &BTreeMap<String, String>, hints: &Hints) -> Result<Self> {
        let directory = parameter(parameters, "directory")?;
        Ok(Self { directory: directory.into(), hints: hints.clone() })
    }

    fn image(&self, image: &str) -> Result<PathBuf> {
        Ok(below(&self.directory, image)?.with_added_extension(ENDING))
    }

    fn note_path(&self, image: &str) -> Result<PathBuf> {
        Ok(below(&self.directory, image)?.with_added_extension("note"))
    }
}

impl Storage for Loopfile {
    fn find(&self, volume: &Use) -> Result<Option<Device>> {
        let found = self.hints.find(volume, &name_of(&volume.image))?;
        Ok(found.map(|(device, generation)| shown(&device, generation)))
    }

    fn map(&self, volume: &Use) -> Result<Device> {
        let path = self.image(&volume.image)?;
        let opened = OpenOptions::new().read(true).write(!volume.read_only).open(&path);
        let file = opened.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StorageError::NoImage(path.display().to_string()),
            _ => StorageError::io(format!("open {}", path.display()), source),
        })?;
        self.claim(volume)?;
        let device = self.hints.attach(&file, volume)?;
        Ok(shown(&device, volume.generation))
    }

    fn unmap(&self, volume: &Use, device: &Device) -> Result<()> {
        match self.hints.at(volume, &name_of(&volume.image), &device.path)? {
            Some(device) => self.hints.detach(&device),
            None => Ok(()),
        }
    }

    /// Which device is meant is looked up anew: one that was not seen, because it hangs, is not one that
    /// is not there.
    fn cut(&self, volume: &Use, _device: Option<&Device>) -> Result<()> {
        // Pods can write nothing more from here on, also where the device does not answer.
        kernel::shut_down(&volume.staging)?;
        self.hints.every(volume, &name_of(&volume.image))?.cut()
    }

    /// There is nobody who could refuse: the proof has to stand for itself.
    fn fence(
        &self,
        _volume: &str,
        _image: &str,
        _holders: &[Entry],
        _generation: Generation,
    ) -> Result<()> {
        Ok(())
    }

    fn epoch(&self, image: &str) -> Result<Generation> {
        let note = owner::read(&self.note_path(image)?)?;
        Ok(note.map(|note| note.generation).unwrap_or_default())
    }

    fn create(&self, image: &str, bytes: u64) -> Result<()> {
        let path = self.image(image)?;
        let made = File::options().write(true).create(true).truncate(false).open(&path);
        made.and_then(|file| lengthen(&file, bytes))
            .map_err(|source| StorageError::io(format!("make {}", path.display()), source))
    }

    fn grow(&self, image: &str, bytes: u64) -> Result<()> {
        let path = self.image(image)?;
        let opened = OpenOptions::new().write(true).open(&path);
        opened
            .and_then(|file| lengthen(&file, bytes))
            .map_err(|source| StorageError::io(format!("grow {}", path.display()), source))
    }

    fn delete(&self, volume: &str, image: &str) -> Result<()> {
        owner::check(&self.note_path(image)?, image, volume)?;
        for path in [self.image(image)?, self.note_path(image)?] {
            remove(&path)?;
        }
        Ok(())
    }

    fn refresh(&self, volume: &Use, device: &Device) -> Result<()> {
        match self.hints.at(volume, &name_of(&volume.image), &device.path)? {
            Some(device) => Ok(loops::grow(&device)?),
            None => Ok(()),
        }
    }
}

impl Loopfile {
    /// Notes whose the image is before it is used, and under which grant before it is written to.
    fn claim(&self, volume: &Use) -> Result<()> {
        let path = self.note_path(&volume.image)?;
        let known = owner::claim(&path, volume)?.generation;
        let ours = volume.generation;
        if volume.read_only || known == ours {
            return Ok(());
        }
        if known > ours {
            return Err(StorageError::Later { image: volume.image.clone(), epoch: known, ours });
        }
        owner::write(&path, &Note { volume: volume.volume.clone(), generation: ours })
    }
}

fn lengthen(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() < whole(bytes) {
        file.set_len(whole(bytes))?;
        file.sync_all()?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::io(format!("remove {}", path.display()), source))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::storage::{Listed, owner::tests::use_of};

    fn storage(dir: &Path) -> Loopfile {
        let parameters = [("directory".to_owned(), dir.display().to_string())];
        Loopfile::new(&parameters.into(), &Hints::default()).unwrap()
    }

    #[test]
    fn an_image_is_of_one_volume_also_for_who_only_reads_it_or_deletes_it() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let is_taken = |done: Result<()>| {
            assert!(matches!(done, Err(StorageError::Taken { by, .. }) if by == "pv-1"));
        };
        for (image, first_reads) in [("written", false), ("read", true)] {
            storage.create(image, 1 << 20).unwrap();
            storage.claim(&use_of("pv-1", image, first_reads)).unwrap();
            for reads in [false, true] {
                is_taken(storage.claim(&use_of("pv-2", image, reads)));
                storage.claim(&use_of("pv-1", image, reads)).unwrap();
            }
            is_taken(storage.delete("pv-2", image));
            assert!(dir.path().join(name_of(image)).exists());
            storage.delete("pv-1", image).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_image_is_made_and_grown_to_whole_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        let size = || fs::metadata(dir.path().join("one.img")).unwrap().len();
        storage.create("one", 65_000_000).unwrap();
        assert_eq!(size(), 65_003_520);
        storage.grow("one", 70_000_000).unwrap();
        assert_eq!(size(), 70_000_640);
        storage.grow("one", 65_000_000).unwrap();
        assert_eq!(size(), 70_000_640, "it never becomes smaller");
    }

    /// Whoever asks for the cut takes the volume for cut off, also who has not seen the device.
    #[test]
    fn a_cut_finds_the_device_by_itself_and_fails_where_one_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        storage.create("test-cut-unseen", 1 << 20).unwrap();
        let staging = dir.path().join("staging");
        let volume = Use { staging, ..use_of("pv", "test-cut-unseen", false) };
        let device = storage.map(&volume).unwrap();
        let name = device.path.file_name().unwrap().to_string_lossy().into_owned();
        let sectors = || fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
        let earlier = Use { generation: Generation(1), ..volume.clone() };
        storage.cut(&earlier, None).unwrap();
        let before = sectors();
        storage.cut(&volume, None).unwrap();
        let after = sectors();
        storage.unmap(&volume, &device).unwrap();
        assert_eq!(before.trim(), "2048", "a later grant is of somebody who has it by right");
        assert_eq!(after.trim(), "0");
        let unsure = Listed { found: Vec::new(), silent: true };
        assert!(matches!(unsure.cut(), Err(StorageError::Silent)));
    }
}
