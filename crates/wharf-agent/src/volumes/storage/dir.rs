//! Directories of a directory that all nodes share, used as they are: the only storage here that
//! several nodes may write to at once.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use wharf_core::volume::record::{Entry, Generation};

use super::{Device, Places, Result, Storage, StorageError, Use, below, owner, parameter};
use crate::{host::files, volumes::kernel};

pub struct Dir {
    directory: PathBuf,
    /// A directory is no device: what is in use here is noted there.
    notes: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Note {
    generation: Generation,
    boot_id: String,
}

impl Dir {
    pub fn new(parameters: &BTreeMap<String, String>, places: &Places) -> Result<Self> {
        let directory = parameter(parameters, "directory")?.into();
        Ok(Self { directory, notes: places.state_dir.join("dirs") })
    }

    fn note(&self, volume: &Use) -> Result<PathBuf> {
        below(&self.notes, &volume.volume)
    }

    /// Where it is noted for all nodes whose a directory is. No directory of ours is hidden.
    fn owner_note(&self, image: &str) -> Result<PathBuf> {
        let path = below(&self.directory, image)?;
        Ok(path.with_file_name(format!(".{image}.note")))
    }

    fn device(&self, volume: &Use, generation: Generation) -> Result<Device> {
        let path = below(&self.directory, &volume.image)?;
        Ok(Device { path, generation, identity: String::new(), is_block: false })
    }
}

impl Storage for Dir {
    fn find(&self, volume: &Use) -> Result<Option<Device>> {
        let path = self.note(volume)?;
        let failed = |source| StorageError::io(format!("read {}", path.display()), source);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(failed)?,
        };
        let note: Note = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        // Of another boot nothing is left.
        if note.boot_id != volume.boot_id {
            return Ok(None);
        }
        self.device(volume, note.generation).map(Some)
    }

    fn map(&self, volume: &Use) -> Result<Device> {
        let device = self.device(volume, volume.generation)?;
        if !device.path.is_dir() {
            return Err(StorageError::NoImage(device.path.display().to_string()));
        }
        owner::claim(&self.owner_note(&volume.image)?, volume)?;
        let note = Note { generation: volume.generation, boot_id: volume.boot_id.clone() };
        let path = self.note(volume)?;
        let text = serde_json::to_vec(&note).map_err(io::Error::from);
        text.and_then(|text| {
            fs::create_dir_all(&self.notes)?;
            files::write_durably(&path, 0o600, &text)
        })
        .map_err(|source| StorageError::io(format!("write {}", path.display()), source))?;
        Ok(device)
    }

    fn unmap(&self, volume: &Use, _device: &Device) -> Result<()> {
        remove_file(&self.note(volume)?)
    }

    /// Nobody who is started from now on gets it, and whoever has it is ended: nothing else would keep
    /// him from writing.
    fn cut(&self, volume: &Use, _device: Option<&Device>) -> Result<()> {
        let shown = kernel::Shown {
            directory: &below(&self.directory, &volume.image)?,
            staging: &volume.staging,
            binds: &volume.binds,
            pods: &volume.pods,
        };
        Ok(kernel::take_away(&shown)?)
    }

    fn fence(
        &self,
        _volume: &str,
        _image: &str,
        _holders: &[Entry],
        _generation: Generation,
    ) -> Result<()> {
        Ok(())
    }

    fn epoch(&self, _image: &str) -> Result<Generation> {
        Ok(Generation::default())
    }

    /// A size cannot be kept here.
    fn create(&self, image: &str, _bytes: u64) -> Result<()> {
        let path = below(&self.directory, image)?;
        match fs::create_dir(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(StorageError::io(format!("make {}", path.display()), source))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn grow(&self, _image: &str, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn delete(&self, volume: &str, image: &str) -> Result<()> {
        let note = self.owner_note(image)?;
        owner::check(&note, image, volume)?;
        remove_tree(&below(&self.directory, image)?)?;
        remove_file(&note)
    }

    fn refresh(&self, _volume: &Use, _device: &Device) -> Result<()> {
        Ok(())
    }
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::io(format!("remove {}", path.display()), source))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn remove_file(path: &Path) -> Result<()> {
    let removed = files::remove_file(path);
    removed
        .map(drop)
        .map_err(|source| StorageError::io(format!("remove {}", path.display()), source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::storage::owner::tests::use_of;

    #[test]
    fn a_directory_is_of_one_volume_on_all_nodes() {
        let shared = tempfile::tempdir().unwrap();
        let parameters = [("directory".to_owned(), shared.path().display().to_string())].into();
        let states = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [here, there] = [&states[0], &states[1]].map(|state| {
            let places = Places::of_guard(state.path().to_owned(), "/no/kubelet".into(), None);
            Dir::new(&parameters, &places).unwrap()
        });
        here.create("one", 0).unwrap();
        here.map(&use_of("pv-1", "one", false)).unwrap();
        there.map(&use_of("pv-1", "one", false)).expect("several nodes may have a volume");
        for reads in [false, true] {
            let refused = there.map(&use_of("pv-2", "one", reads));
            assert!(matches!(refused, Err(StorageError::Taken { by, .. }) if by == "pv-1"));
            assert_eq!(there.find(&use_of("pv-2", "one", reads)).unwrap(), None);
        }
        assert!(there.delete("pv-2", "one").is_err());
        assert!(shared.path().join("one").is_dir());
        here.delete("pv-1", "one").unwrap();
        assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 0);
    }
}
