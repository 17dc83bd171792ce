//! Loop devices of volumes: found again by their tags.

use std::{
    collections::HashMap,
    fs::File,
    os::unix::ffi::OsStrExt,
    path::{Component, Path},
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

    /// The oldest device of a volume: it has to go before a later one is used. `file` is what it is
    /// made of, see [`may_be`].
    pub fn find(&self, volume: &Use, file: &Path) -> Result<Option<(loops::Device, Generation)>> {
        Ok(self.all(volume, file)?.into_iter().min_by_key(|(_, generation)| *generation))
    }

    /// The device of a volume that has this path.
    pub fn at(&self, volume: &Use, file: &Path, path: &Path) -> Result<Option<loops::Device>> {
        let devices = self.all(volume, file)?.into_iter().map(|(device, _)| device);
        Ok(devices.into_iter().find(|device| device.path == path))
    }

    pub fn detach(&self, device: &loops::Device) -> Result<()> {
        loops::detach(device)?;
        self.forget(&device.tag);
        Ok(())
    }

    fn all(&self, volume: &Use, file: &Path) -> Result<Vec<(loops::Device, Generation)>> {
        let tag = volume.tag();
        if let Some(hint) = self.get(&tag.to_string()) {
            match loops::observe(hint.number) {
                Some(Observed::Known { device, .. }) if device.tag == hint.tag => {
                    return Ok(vec![(device, tag.generation)]);
                }
                Some(Observed::Silent { file: shown, .. }) if may_be(&shown, file) => {
                    return Err(StorageError::Silent);
                }
                Some(_) | None => self.forget(&hint.tag),
            }
        }
        listed(&tag, file)
    }
}

/// All devices of a boot and volume, where nobody knows of which file they are.
pub fn every_device(tag: &Tag) -> Result<Vec<(loops::Device, Generation)>> {
    listed(tag, Path::new(""))
}

/// All devices of a boot and volume, with their grants. One of the file that does not answer may be
/// among them.
fn listed(tag: &Tag, file: &Path) -> Result<Vec<(loops::Device, Generation)>> {
    let mut found = Vec::new();
    let mut silent = false;
    for observed in loops::list()? {
        match observed {
            Observed::Known { device, .. } => {
                let generation = tag.generation_in(&device.tag);
                found.extend(generation.map(|generation| (device, generation)));
            }
            Observed::Silent { file: shown, .. } => silent |= may_be(&shown, file),
        }
    }
    if silent && found.is_empty() { Err(StorageError::Silent) } else { Ok(found) }
}

/// Whether a path that the kernel shows may be that of the file, of which at least the end is known.
/// The kernel's begins later when its file system is unmounted, and the end is lost only where a file
/// of NFS is removed while it is in use.
fn may_be(shown: &Path, file: &Path) -> bool {
    let Some(shown) = shown.to_str() else { return true };
    let shown = Path::new(shown.strip_suffix(" (deleted)").unwrap_or(shown));
    let is_renamed = shown.file_name().is_some_and(|name| name.as_bytes().starts_with(b".nfs"));
    let parts = |path: &'_ Path| -> Vec<_> {
        let named = path.components().filter(|part| matches!(part, Component::Normal(_)));
        named.map(|part| part.as_os_str().to_owned()).rev().collect()
    };
    is_renamed || parts(shown).iter().zip(&parts(file)).all(|(one, other)| one == other)
}

pub fn shown(device: &loops::Device, generation: Generation) -> Device {
    Device { path: device.path.clone(), generation, identity: String::new(), is_block: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_hangs_is_ruled_out_only_by_a_path_that_cannot_be_ours() {
        let ours = Path::new("/state/rbd/pv-1/disk");
        for maybe in [
            "/state/rbd/pv-1/disk",
            "/state/rbd/pv-1/disk (deleted)",
            "/elsewhere/state/rbd/pv-1/disk",
            "/disk",
            "/",
            "",
            "/state/rbd/pv-1/.nfs00000000012",
        ] {
            assert!(may_be(Path::new(maybe), ours), "{maybe}");
        }
        for other in ["/state/rbd/pv-2/disk", "/n1/state/proxies/pv-1/mnt/disk", "/data/one.img"] {
            assert!(!may_be(Path::new(other), ours), "{other}");
            assert!(may_be(Path::new(other), Path::new("")), "{other}");
        }
        assert!(may_be(Path::new("/mnt/nfs/one.img"), Path::new("one.img")));
        assert!(!may_be(Path::new("/mnt/nfs/another-one.img"), Path::new("one.img")));
    }
}
