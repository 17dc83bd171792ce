//! Loop devices of volumes: found again by their tags.

use std::{
    collections::HashMap,
    fs::File,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use wharf_block::loops::{self, Observed};
use wharf_core::volume::record::Generation;

use super::{Device, Result, StorageError, Tag, Use};

/// Those that were seen last, by tag: looking at one is cheaper than at all of the machine.
#[derive(Debug, Clone, Default)]
pub struct Hints(Arc<Mutex<HashMap<String, loops::Device>>>);

impl Hints {
    fn get(&self, tag: &str) -> Option<loops::Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(tag).cloned()
    }

    fn put(&self, device: &loops::Device) {
        let mut hints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hints.insert(device.tag.clone(), device.clone());
    }

    fn forget(&self, tag: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(tag);
    }

    /// Makes a device of a file for a volume.
    pub fn attach(&self, file: &File, volume: &Use) -> Result<loops::Device> {
        let tag = volume.tag().to_string();
        let options = loops::Options { read_only: volume.read_only, direct_io: true, tag: &tag };
        let device = loops::attach(file, options)?;
        self.put(&device);
        Ok(device)
    }

    /// The oldest device of a volume: it has to go before a later one is used.
    pub fn find(&self, volume: &Use) -> Result<Option<(loops::Device, Generation)>> {
        Ok(self.all(volume)?.into_iter().min_by_key(|(_, generation)| *generation))
    }

    /// The device of a volume that has this path.
    pub fn at(&self, volume: &Use, path: &Path) -> Result<Option<loops::Device>> {
        let devices = self.all(volume)?.into_iter().map(|(device, _)| device);
        Ok(devices.into_iter().find(|device| device.path == path))
    }

    pub fn detach(&self, device: &loops::Device) -> Result<()> {
        loops::detach(device)?;
        self.forget(&device.tag);
        Ok(())
    }

    fn all(&self, volume: &Use) -> Result<Vec<(loops::Device, Generation)>> {
        let tag = volume.tag();
        if let Some(hint) = self.get(&tag.to_string()) {
            match loops::observe(hint.number) {
                Some(Observed::Known { device, .. }) if device.tag == hint.tag => {
                    return Ok(vec![(device, tag.generation)]);
                }
                Some(Observed::Silent { .. }) => return Err(StorageError::Silent),
                Some(Observed::Known { .. }) | None => self.forget(&hint.tag),
            }
        }
        listed(&tag)
    }
}

/// All devices of a boot and volume, with their grants. One that does not answer may be among them.
pub fn listed(tag: &Tag) -> Result<Vec<(loops::Device, Generation)>> {
    let mut found = Vec::new();
    let mut silent = false;
    for observed in loops::list()? {
        match observed {
            Observed::Known { device, .. } => {
                let generation = tag.generation_in(&device.tag);
                found.extend(generation.map(|generation| (device, generation)));
            }
            Observed::Silent { .. } => silent = true,
        }
    }
    if silent && found.is_empty() { Err(StorageError::Silent) } else { Ok(found) }
}

pub fn shown(device: &loops::Device, generation: Generation) -> Device {
    Device { path: device.path.clone(), generation, identity: String::new(), is_block: true }
}
