//! Directories of a directory that all nodes share, used as they are: the only storage here that
//! several nodes may write to at once.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use wharf_core::volume::record::{Entry, Generation};

use super::{Device, Places, Result, Storage, StorageError, Use, below, parameter};
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
        let path = self.note(volume)?;
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::io(format!("remove {}", path.display()), source))
            }
            Ok(()) | Err(_) => Ok(()),
        }
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

    fn fence(&self, _image: &str, _holders: &[Entry], _generation: Generation) -> Result<()> {
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

    fn delete(&self, image: &str) -> Result<()> {
        let path = below(&self.directory, image)?;
        remove_tree(&path)
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
