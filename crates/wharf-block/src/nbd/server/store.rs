//! The images in their directory: `NAME.img`, and beside it `NAME.owner`, whose it is, and `NAME.epoch`, which
//! outlives it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with},
    io::Errno,
};

use super::{
    Error,
    gate::{self, Gate},
};
use crate::nbd::{
    ImageName,
    control::{Code, Failure, ImageInfo, LIST_PAGE},
};

/// As much as ext4 can hold in one file with blocks of 4 KiB.
const MAX_SIZE: u64 = 16 << 40;
/// Whole pages, so that no sector size of any machine has a rest.
const SIZE_UNIT: u64 = 4096;
/// As long as a name in Kubernetes can be.
const MAX_OWNER: usize = 253;

#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    /// The kernel lets go of it when the last thread of a killed server has ended, so that a new
    /// server begins after the last write of the old one.
    _lock: File,
    /// Those in use. Each image has one gate, whoever asks for it.
    open: Mutex<BTreeMap<ImageName, Weak<Image>>>,
}

#[derive(Debug)]
pub(super) struct Image {
    pub name: ImageName,
    pub file: File,
    /// The same around the page cache, where the file system can do it.
    pub direct: Option<File>,
    pub gate: Gate,
    size: AtomicU64,
}

impl Image {
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}

impl Store {
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { what: format!("opening {}", directory.display()), source };
        fs::create_dir_all(directory).map_err(io)?;
        let lock = File::create(directory.join(".lock")).map_err(io)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Locked(directory.display().to_string())),
            Err(error) => return Err(io(error.into())),
        }
        let directory = directory.to_owned();
        Ok(Self { directory, _lock: lock, open: Mutex::default() })
    }

    /// The image, and the only one of this name.
    pub fn image(&self, name: &ImageName) -> Result<Arc<Image>, Failure> {
        let mut open = self.opened();
        if let Some(image) = open.get(name).and_then(Weak::upgrade) {
            return Ok(image);
        }
        open.retain(|_, image| image.strong_count() > 0);
        let path = self.path(name, "img");
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::missing(name));
            }
            Err(error) => return Err(Failure::disk("opening the image", &error)),
        };
        let size =
            file.metadata().map_err(|e| Failure::disk("reading the image's size", &e))?.len();
        let gate = Gate::load(self.path(name, "epoch"))?;
        let flag = OFlags::DIRECT.bits().cast_signed();
        let direct = OpenOptions::new().read(true).write(true).custom_flags(flag).open(&path).ok();
        let size = AtomicU64::new(size);
        let image = Arc::new(Image { name: name.clone(), file, direct, gate, size });
        open.insert(name.clone(), Arc::downgrade(&image));
        Ok(image)
    }

    pub fn create(&self, name: &ImageName, size: u64) -> Result<ImageInfo, Failure> {
        check_size(size)?;
        {
            let _alone = self.opened();
            let fresh = self.directory.join(format!(".{name}.img.new"));
            let made = make(&fresh, size)
                .and_then(|()| {
                    let to = self.path(name, "img");
                    Ok(renameat_with(CWD, &fresh, CWD, to, RenameFlags::NOREPLACE)?)
                })
                .and_then(|()| flush_directory(&self.directory));
            match made {
                Ok(()) => {}
                // Then the answer depends on what is there.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let _leftover = fs::remove_file(&fresh);
                }
                Err(error) => {
                    let _leftover = fs::remove_file(&fresh);
                    return Err(Failure::disk("making the image", &error));
                }
            }
        }
        let info = self.info(name)?;
        if info.size == size {
            return Ok(info);
        }
        let message = format!("image {name} is there with {} bytes", info.size);
        Err(Failure::new(Code::Exists, message))
    }

    /// Makes an image the owner's that is nobody's. It stays so until the image is deleted.
    pub fn own(&self, name: &ImageName, owner: &str) -> Result<ImageInfo, Failure> {
        let plain = |c: char| c.is_ascii_graphic();
        if owner.is_empty() || owner.len() > MAX_OWNER || !owner.chars().all(plain) {
            let message = format!("an owner has 1 to {MAX_OWNER} plain letters");
            return Err(Failure::new(Code::Invalid, message));
        }
        let image = self.image(name)?;
        self.own_image(&image, owner)?;
        self.info_of(&image)
    }

    /// Of two who come at once the first one has it.
    fn own_image(&self, image: &Image, owner: &str) -> Result<(), Failure> {
        let name = &image.name;
        let _alone = self.opened();
        // It may have been deleted since it was looked up. One of its name that is made later is nobody's.
        gate::check(image, u64::MAX)?;
        let path = self.path(name, "owner");
        let noted = match read_line(&path) {
            Ok(None) => write_line(&path, owner),
            Ok(Some(_)) => Ok(()),
            Err(error) => Err(error),
        };
        noted.map_err(|e| Failure::disk("noting the image's owner", &e))
    }

    pub fn delete(&self, name: &ImageName, generation: u64) -> Result<(), Failure> {
        let image = self.image(name)?;
        image.gate.close(name, generation)?;
        let mut open = self.opened();
        // The image last: one of the same name that is made later is nobody's.
        for ending in ["owner", "img"] {
            match fs::remove_file(self.path(name, ending)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::disk("deleting the image", &error)),
            }
        }
        open.remove(name);
        flush_directory(&self.directory).map_err(|e| Failure::disk("deleting the image", &e))
    }

    pub fn grow(&self, name: &ImageName, size: u64, generation: u64) -> Result<ImageInfo, Failure> {
        check_size(size)?;
        let image = self.image(name)?;
        // One at a time; the gate's own lock would hold up those who come and go.
        let alone = self.opened();
        let epoch = image.gate.epoch();
        if generation < epoch {
            return Err(Failure::fenced(name, generation, epoch));
        }
        if size < image.size() {
            let message =
                format!("image {name} has {} bytes and is never made smaller", image.size());
            return Err(Failure::new(Code::Invalid, message));
        }
        let grown = image.file.set_len(size).and_then(|()| image.file.sync_all());
        grown.map_err(|e| Failure::disk("growing the image", &e))?;
        image.size.store(size, Ordering::Release);
        drop(alone);
        self.info(name)
    }

    /// Shuts out everybody below the generation, also of an image that is gone: holders of it can be
    /// given up then, and are let into none that is made later under its name.
    pub fn fence(&self, name: &ImageName, generation: u64) -> Result<ImageInfo, Failure> {
        match self.image(name) {
            Err(Failure { code: Code::Missing, .. }) => self.fence_absent(name, generation),
            image => {
                image?.gate.fence(name, generation)?;
                self.info(name)
            }
        }
    }

    fn fence_absent(&self, name: &ImageName, generation: u64) -> Result<ImageInfo, Failure> {
        let alone = self.opened();
        if self.path(name, "img").exists() {
            drop(alone);
            // Somebody has just made it.
            self.image(name)?.gate.fence(name, generation)?;
            return self.info(name);
        }
        let disk = |e: io::Error| Failure::disk("writing the image's epoch", &e);
        let path = self.path(name, "epoch");
        let epoch = read_epoch(&path).map_err(disk)?.max(generation);
        write_epoch(&path, epoch).map_err(disk)?;
        let image = name.clone();
        Ok(ImageInfo { image, size: 0, allocated: 0, epoch, owner: None, clients: 0 })
    }

    pub fn info(&self, name: &ImageName) -> Result<ImageInfo, Failure> {
        let image = self.image(name)?;
        self.info_of(&image)
    }

    fn info_of(&self, image: &Image) -> Result<ImageInfo, Failure> {
        let disk = |e: io::Error| Failure::disk("looking at the image", &e);
        Ok(ImageInfo {
            image: image.name.clone(),
            size: image.size(),
            allocated: image.file.metadata().map_err(disk)?.blocks() * 512,
            epoch: image.gate.epoch(),
            owner: read_line(&self.path(&image.name, "owner")).map_err(disk)?,
            clients: image.gate.members(),
        })
    }

    /// A page of images, and whether there are more.
    pub fn list(&self, after: Option<&ImageName>) -> Result<(Vec<ImageInfo>, bool), Failure> {
        let disk = |e: io::Error| Failure::disk("listing the images", &e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(disk)? {
            let entry = entry.map_err(disk)?.file_name();
            let name = entry.to_str().and_then(|name| name.strip_suffix(".img"));
            names.extend(name.and_then(|name| ImageName::new(name).ok()));
        }
        names.retain(|name| after.is_none_or(|after| name > after));
        names.sort();
        let more = names.len() > LIST_PAGE;
        let mut images = Vec::new();
        for name in names.iter().take(LIST_PAGE) {
            match self.info(name) {
                Ok(info) => images.push(info),
                Err(Failure { code: Code::Missing, .. }) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok((images, more))
    }

    fn opened(&self) -> MutexGuard<'_, BTreeMap<ImageName, Weak<Image>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &ImageName, ending: &str) -> PathBuf {
        self.directory.join(format!("{name}.{ending}"))
    }
}

fn check_size(size: u64) -> Result<(), Failure> {
    if size > 0 && size <= MAX_SIZE && size.is_multiple_of(SIZE_UNIT) {
        return Ok(());
    }
    let message =
        format!("an image has 1 to {MAX_SIZE} bytes, a multiple of {SIZE_UNIT}, not {size}");
    Err(Failure::new(Code::Invalid, message))
}

/// A new file of this size that takes no room yet.
fn make(path: &Path, size: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_len(size)?;
    file.sync_all()
}

/// The number in a file: zero where there is none.
pub(super) fn read_epoch(path: &Path) -> io::Result<u64> {
    match read_line(path)? {
        Some(line) => line.parse().map_err(|_| io::ErrorKind::InvalidData.into()),
        None => Ok(0),
    }
}

pub(super) fn write_epoch(path: &Path, epoch: u64) -> io::Result<()> {
    write_line(path, &epoch.to_string())
}

/// What a small file says, which is whole whenever the machine stops.
fn read_line(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_line(path: &Path, line: &str) -> io::Result<()> {
    let fresh = path.with_added_extension("new");
    let mut file = File::create(&fresh)?;
    writeln!(file, "{line}")?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    flush_directory(path.parent().unwrap_or(Path::new(".")))
}

fn flush_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn an_image_that_is_deleted_meanwhile_gets_no_owner_that_the_next_of_its_name_would_have() {
        let dir = TempDir::new().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let name = ImageName::new("one").unwrap();
        store.create(&name, 1 << 20).unwrap();
        let found = store.image(&name).unwrap();
        store.delete(&name, 0).unwrap();
        assert_eq!(store.own_image(&found, "pv-1").unwrap_err().code, Code::Missing);
        drop(found);
        assert_eq!(store.create(&name, 1 << 20).unwrap().owner, None);
        assert_eq!(store.own(&name, "pv-2").unwrap().owner.as_deref(), Some("pv-2"));
    }
}
