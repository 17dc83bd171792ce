//! Loop devices of volumes: found again by their tags.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use wharf_block::loops::{self, Observed};
use wharf_core::volume::record::Generation;

use super::{Device, Places, Result, StorageError, Tag, Use, loopfile, proxy, rbd};

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

    /// All devices of a volume up to its grant, to be cut off. Nothing is taken from memory here, and it
    /// is said whether one that does not answer may be among them.
    pub fn every(&self, volume: &Use, file: &Path) -> Result<Listed> {
        let mut listed = list(&volume.tag(), |shown| may_be(shown, file))?;
        // A later one is of somebody who has the volume by right.
        listed.found.retain(|(_, generation)| *generation <= volume.generation);
        Ok(listed)
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
        listed(&tag, |shown| may_be(shown, file))
    }
}

/// What the devices of a volume may be made of, where nobody knows its backend.
pub struct Files {
    /// Of its own processes.
    own: [PathBuf; 2],
    /// The names of its images; an empty one may be any.
    images: BTreeSet<String>,
}

impl Files {
    pub fn of(places: &Places, volume: &str, images: BTreeSet<String>) -> Result<Self> {
        Ok(Self { own: [proxy::disk_of(places, volume)?, rbd::disk_of(places, volume)?], images })
    }

    fn may_be(&self, shown: &Path) -> bool {
        let is_own = self.own.iter().any(|file| may_be(shown, file));
        is_own || self.images.iter().any(|image| may_be_image(shown, image))
    }
}

fn may_be_image(shown: &Path, image: &str) -> bool {
    if !image.is_empty() {
        return may_be(shown, &loopfile::name_of(image));
    }
    plain(shown).is_none_or(|shown| match shown.extension() {
        Some(ending) => ending == loopfile::ENDING,
        None => shown.file_name().is_none(),
    })
}

/// All devices of a boot and volume, whatever its backend.
pub fn every_device(tag: &Tag, files: &Files) -> Result<Vec<(loops::Device, Generation)>> {
    listed(tag, |shown| files.may_be(shown))
}

/// The same, for who has to know whether there are more.
pub fn every_listed(tag: &Tag, files: &Files) -> Result<Listed> {
    list(tag, |shown| files.may_be(shown))
}

/// Devices of a volume, with their grants.
pub struct Listed {
    pub found: Vec<(loops::Device, Generation)>,
    /// One that does not answer may be among them.
    pub silent: bool,
}

impl Listed {
    /// Cuts off all that are known, and fails if there may be more: whoever asks takes it for sure that
    /// nothing is written any more.
    pub fn cut(&self) -> Result<()> {
        for (device, _) in &self.found {
            loops::cut(device)?;
        }
        if self.silent { Err(StorageError::Silent) } else { Ok(()) }
    }
}

/// All devices of a boot and volume, with their grants. One that does not answer may be among them, if
/// it may be of the volume's file.
fn listed(
    tag: &Tag,
    may_be_it: impl Fn(&Path) -> bool,
) -> Result<Vec<(loops::Device, Generation)>> {
    let Listed { found, silent } = list(tag, may_be_it)?;
    if silent && found.is_empty() { Err(StorageError::Silent) } else { Ok(found) }
}

fn list(tag: &Tag, may_be_it: impl Fn(&Path) -> bool) -> Result<Listed> {
    let mut found = Vec::new();
    let mut silent = false;
    for observed in loops::list()? {
        match observed {
            Observed::Known { device, .. } => {
                let generation = tag.generation_in(&device.tag);
                found.extend(generation.map(|generation| (device, generation)));
            }
            Observed::Silent { file: shown, .. } => silent |= may_be_it(&shown),
        }
    }
    Ok(Listed { found, silent })
}

/// Whether a path that the kernel shows may be that of the file, of which at least the end is known.
/// The kernel's begins later when its file system is unmounted.
fn may_be(shown: &Path, file: &Path) -> bool {
    let Some(shown) = plain(shown) else { return true };
    let parts = |path: &'_ Path| -> Vec<_> {
        let named = path.components().filter(|part| matches!(part, Component::Normal(_)));
        named.map(|part| part.as_os_str().to_owned()).rev().collect()
    };
    parts(shown).iter().zip(&parts(file)).all(|(one, other)| one == other)
}

/// The path without what the kernel adds to it. `None` when its end says nothing: it is lost only where
/// a file of NFS is removed while it is in use.
fn plain(shown: &Path) -> Option<&Path> {
    let shown = shown.to_str()?;
    let shown = Path::new(shown.strip_suffix(" (deleted)").unwrap_or(shown));
    let is_renamed = shown.file_name().is_some_and(|name| name.as_bytes().starts_with(b".nfs"));
    (!is_renamed).then_some(shown)
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
        }
        assert!(may_be(Path::new("/mnt/nfs/one.img"), Path::new("one.img")));
        assert!(!may_be(Path::new("/mnt/nfs/another-one.img"), Path::new("one.img")));
    }

    #[test]
    fn of_a_volume_without_a_journal_only_what_may_be_its_own_device_is_feared() {
        let places = Places::of_guard("/no/state".into(), "/no/kubelet".into(), None);
        let of = |image: &str| Files::of(&places, "pv-1", [image.to_owned()].into()).unwrap();
        for (shown, by_image, by_any) in [
            ("/no/state/proxies/pv-1/mnt/disk", true, true),
            ("/no/state/rbd/pv-1/disk", true, true),
            ("/srv/shared/one.img", true, true),
            ("/srv/shared/one.img (deleted)", true, true),
            ("/srv/shared/.nfs0000001", true, true),
            ("/disk", true, true),
            ("/", true, true),
            ("/srv/shared/two.img", false, true),
            ("/no/state/proxies/pv-2/mnt/disk", false, false),
            ("/no/state/rbd/pv-2/disk", false, false),
            ("/other/state/rbd/pv-1/disk", false, false),
            ("/var/lib/snapd/snaps/core_1.snap", false, false),
            ("/var/lib/docker/devicemapper/data", false, false),
        ] {
            assert_eq!(of("one").may_be(Path::new(shown)), by_image, "{shown}");
            assert_eq!(of("").may_be(Path::new(shown)), by_any, "{shown}");
        }
    }
}
