//! The cache of components: `<cache>/assets/<name>-<version>-<arch>/`, and the images and bundles
//! made of them.
//!
//! `<cache>` is `$WHARF_CACHE`, else `$XDG_CACHE_HOME/wharf`, else `~/.cache/wharf`.

use std::fs::{self, File, Metadata, TryLockError};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::catalogue::{COMPONENTS, Component, KUBERNETES, compare_versions, this_arch};
use crate::checksum::{Content, Sha256, hash_file, hash_files};
use crate::manifest::{MAX_MANIFEST_BYTES, Mode, check_path};
use crate::place::{self, Staging};
use crate::{Error, IoContext, Problem, Result};

/// The description of a component beside its files. It is written last: a directory without it is
/// not a component.
pub const COMPONENT_NAME: &str = "component.json";

/// Where files of a component come from, for [`ComponentRecord::origin`].
pub const ORIGIN_RELEASE: &str = "release";

/// Finds a program by its name (`etcd`, `kube-apiserver`) in the cache of this user.
///
/// Of several versions it is the one of the catalogue, else the newest.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    Cache::from_env()?.find(program)
}

/// A place for components and bundles.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache of this user; `None` when the environment names no home directory.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        variable("WHARF_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").map(|dir| dir.join("wharf")))
            .or_else(|| variable("HOME").map(|home| home.join(".cache/wharf")))
            .map(Self::at)
    }

    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    #[must_use]
    pub fn assets(&self) -> PathBuf {
        self.root.join("assets")
    }

    /// Images of components, which are made of what lies in [`Cache::assets`].
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    #[must_use]
    pub fn component_dir(&self, name: &str, version: &str, arch: &str) -> PathBuf {
        self.assets().join(format!("{name}-{version}-{arch}"))
    }

    #[must_use]
    pub fn bundle_dir(&self, kubernetes: &str, arch: &str) -> PathBuf {
        self.root.join("bundles").join(format!("{kubernetes}-{arch}"))
    }

    /// The bundle of the catalogue's versions for this machine, whether or not it is there.
    #[must_use]
    pub fn default_bundle_dir(&self) -> PathBuf {
        self.bundle_dir(KUBERNETES.version, this_arch())
    }

    /// As [`find`], in this cache.
    #[must_use]
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        let mut found: Vec<(ComponentRecord, PathBuf)> = Vec::new();
        for component in components_in(&self.assets()) {
            let file = component.record.files.iter().find(|f| f.name() == program);
            if let Some(path) = file.map(|f| component.dir.join(&f.path))
                && path.is_file()
                && component.record.arch == this_arch()
            {
                found.push((component.record, path));
            }
        }
        let preferred = |r: &ComponentRecord| {
            COMPONENTS.iter().any(|c| c.name == r.component && c.version == r.version)
        };
        found.sort_by(|(a, _), (b, _)| {
            preferred(a).cmp(&preferred(b)).then(compare_versions(&a.version, &b.version))
        });
        found.pop().map(|(_, path)| path)
    }

    /// Waits until no other run changes this cache; calls `waiting` if that takes time.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn lock(&self, waiting: impl FnOnce()) -> Result<CacheLock> {
        let assets = self.assets();
        fs::create_dir_all(&assets).at("created", &assets)?;
        let path = assets.join(".lock");
        let file = File::options().create(true).append(true).open(&path).at("opened", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().at("locked", &path)?;
            }
            Err(TryLockError::Error(e)) => return Err(e).at("locked", &path),
        }
        place::sweep(&assets);
        place::sweep(&self.images());
        place::sweep(&self.root.join("bundles"));
        Ok(CacheLock { _file: file })
    }

    /// A directory in which a component is made before it is put into the cache.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn stage(&self, name: &str, version: &str, arch: &str) -> Result<Staged> {
        let destination = self.component_dir(name, version, arch);
        Ok(Staged { staging: Staging::beside(&destination)?, destination })
    }
}

/// Held while the cache changes; the lock goes with the process, however it ends.
#[derive(Debug)]
pub struct CacheLock {
    _file: File,
}

/// A component under construction.
#[derive(Debug)]
pub struct Staged {
    staging: Staging,
    destination: PathBuf,
}

impl Staged {
    #[must_use]
    pub fn path(&self) -> &Path {
        self.staging.path()
    }

    /// Describes the files that were made here and puts the component in its place.
    ///
    /// # Errors
    /// A file of the component is missing, or the disk refuses.
    pub fn finish(self, component: &Component, version: &str, origin: &str) -> Result<Cached> {
        let record = seal(self.staging.path(), component, version, origin)?;
        self.staging.commit(&self.destination)?;
        Ok(Cached { dir: self.destination, record })
    }
}

/// `component.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentRecord {
    pub component: String,
    pub version: String,
    pub arch: String,
    pub recipe: u32,
    /// [`ORIGIN_RELEASE`], or the version of Go that built it.
    pub origin: String,
    pub files: Vec<ComponentFile>,
    /// For an image: the sums of the files that it was made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_of: Vec<Sha256>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentFile {
    pub path: String,
    pub sha256: Sha256,
    pub size: u64,
    pub mode: Mode,
    pub stamp: Stamp,
    /// For an archive of an image: its full name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl ComponentFile {
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    fn content(&self) -> Content {
        Content { sha256: self.sha256, size: self.size }
    }
}

/// What a file looked like from outside when its checksum was taken: whoever changes the file
/// changes this too, and looking costs microseconds where hashing costs seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub inode: u64,
    pub size: u64,
    pub modified_ns: i64,
}

impl Stamp {
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let modified_ns =
            metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        Self { inode: metadata.ino(), size: metadata.len(), modified_ns }
    }
}

/// A finished component on disk.
#[derive(Clone, Debug)]
pub struct Cached {
    pub dir: PathBuf,
    pub record: ComponentRecord,
}

impl Cached {
    /// Reads a component's description; its files are not looked at.
    ///
    /// # Errors
    /// There is none, or it is not readable as one.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(COMPONENT_NAME);
        let size = path.metadata().at("read", &path)?.len();
        if size > MAX_MANIFEST_BYTES {
            return Err(Error::Damaged(vec![Problem::too_large_manifest(size)]));
        }
        let bytes = fs::read(&path).at("read", &path)?;
        let record: ComponentRecord =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path, source })?;
        let bad: Vec<Problem> = record
            .files
            .iter()
            .filter_map(|f| check_path(&f.path).err().map(|reason| (f.path.clone(), reason)))
            .map(|(path, reason)| Problem::BadPath { path, reason })
            .collect();
        if bad.is_empty() {
            Ok(Self { dir: dir.to_owned(), record })
        } else {
            Err(Error::Damaged(bad))
        }
    }

    /// Compares each file with its stamp, and hashes only those that look different.
    ///
    /// A file that merely moved (another inode, the same content) gets a new stamp.
    ///
    /// # Errors
    /// Files that are missing or whose content, mode or kind is not what was recorded.
    pub fn check(&mut self) -> Result<()> {
        let mut problems = Vec::new();
        let mut restamped = false;
        for file in &mut self.record.files {
            match check_file(&self.dir, file) {
                Ok(Some(stamp)) => {
                    file.stamp = stamp;
                    restamped = true;
                }
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(Error::Damaged(problems));
        }
        if restamped {
            // Losing this only costs the next run another hash.
            _ = write_record(&self.dir, &self.record);
        }
        Ok(())
    }
}

fn check_file(dir: &Path, file: &ComponentFile) -> Result<Option<Stamp>, Problem> {
    let name = || file.path.clone();
    let path = dir.join(&file.path);
    let Ok(metadata) = path.symlink_metadata() else {
        return Err(Problem::Missing { path: name() });
    };
    if !metadata.is_file() {
        return Err(Problem::NotAFile { path: name(), kind: "a link or directory" });
    }
    if Mode::of(&metadata) != file.mode {
        let found = Mode::of(&metadata);
        return Err(Problem::WrongMode { path: name(), expected: file.mode, found });
    }
    let stamp = Stamp::of(&metadata);
    if stamp == file.stamp {
        return Ok(None);
    }
    let found = hash_file(&path)
        .map_err(|e| Problem::Unreadable { path: name(), reason: e.to_string() })?;
    if found == file.content() {
        Ok(Some(stamp))
    } else {
        Err(Problem::Damaged { path: name(), expected: file.content(), found })
    }
}

/// All components in a directory; what is none is passed over.
#[must_use]
pub fn components_in(directory: &Path) -> Vec<Cached> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Cached::open(&entry.path()).ok()).collect()
}

/// Sets the modes, takes the checksums and writes the description of a component made in `dir`.
pub(crate) fn seal(
    dir: &Path,
    component: &Component,
    version: &str,
    origin: &str,
) -> Result<ComponentRecord> {
    let files: Vec<_> = component.files.iter().map(|f| (f.path, f.mode(), None)).collect();
    let record = ComponentRecord {
        component: component.name.to_owned(),
        version: version.to_owned(),
        arch: this_arch().to_owned(),
        recipe: component.recipe,
        origin: origin.to_owned(),
        files: describe(dir, &files)?,
        made_of: Vec::new(),
    };
    write_record(dir, &record)?;
    Ok(record)
}

/// Sets the modes and takes the checksums of files with their path, mode and name as an image.
pub(crate) fn describe(
    dir: &Path,
    files: &[(&str, Mode, Option<String>)],
) -> Result<Vec<ComponentFile>> {
    let paths: Vec<PathBuf> = files.iter().map(|(path, ..)| dir.join(path)).collect();
    for ((_, mode, _), path) in files.iter().zip(&paths) {
        let mode = fs::Permissions::from_mode(mode.bits());
        fs::set_permissions(path, mode).at("given its mode", path)?;
    }
    let mut described = Vec::new();
    for (((path, mode, image), at), hashed) in files.iter().zip(&paths).zip(hash_files(&paths)) {
        let content = hashed.at("read", at)?;
        described.push(ComponentFile {
            path: (*path).to_owned(),
            sha256: content.sha256,
            size: content.size,
            mode: *mode,
            stamp: Stamp::of(&at.symlink_metadata().at("read", at)?),
            image: image.clone(),
        });
    }
    Ok(described)
}

pub(crate) fn write_record(dir: &Path, record: &ComponentRecord) -> Result<()> {
    let path = dir.join(COMPONENT_NAME);
    let new = dir.join(".component.json.new");
    let json = serde_json::to_vec_pretty(record)
        .map_err(|source| Error::Json { path: path.clone(), source })?;
    fs::write(&new, json).at("written", &new)?;
    fs::rename(&new, &path).at("written", &path)
}
