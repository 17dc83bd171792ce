//! Devices and file systems that follow their images when those are made larger.

use std::{path::Path, sync::PoisonError};

use wharf_core::volume::backend::Backend;

use super::{
    Volumes,
    kernel::{self, KernelError},
    work::{VolumeError, use_of},
};

type Result<T> = std::result::Result<T, VolumeError>;

/// How large a device is, and the file system on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    device: u64,
    file_system: u64,
}

impl Sizes {
    fn of(device: &Path) -> std::result::Result<Self, KernelError> {
        Ok(Self { device: kernel::size(device)?, file_system: kernel::fs_size(device)? })
    }
}

/// File systems and devices consist of blocks; a part of one is of no use, and of no image that we make.
const BLOCK: u64 = 4096;

fn is_short(has: u64, wanted: u64) -> bool {
    wanted.saturating_sub(has) >= BLOCK
}

impl Volumes {
    /// Makes the device and the file system of a volume that is mounted here as large as this, if they
    /// are smaller. Says whether they are now; a directory is as large as whatever it is on.
    pub async fn grow(&self, volume: &str, bytes: u64) -> Result<bool> {
        let journal = self.load(volume)?;
        let is_directory = journal.is_some_and(|journal| journal.backend == Backend::Dir);
        let size = self.grow_if(volume, move |size| is_short(size, bytes)).await?;
        Ok(is_directory || size.is_some_and(|size| !is_short(size, bytes)))
    }

    /// The same if the device of this size is to grow. Says its size after that; `None` where nothing can
    /// be done: it is not mounted, only read, or a directory.
    pub async fn grow_if(
        &self,
        volume: &str,
        is_due: impl FnOnce(u64) -> bool + Send + 'static,
    ) -> Result<Option<u64>> {
        let _held = self.lock_soon(volume).await?;
        let Some(journal) = self.load(volume)? else { return Ok(None) };
        let storage = self.storage(&journal)?;
        let used = use_of(&journal, &self.boot_id, &self.places);
        let (seen, asked) = (storage.clone(), used.clone());
        let look = move || {
            let staged = kernel::mounts()?.iter().any(|mount| mount.point == asked.staging);
            let Some(device) = seen.find(&asked)?.filter(|it| staged && it.is_block) else {
                return Ok(None);
            };
            Ok((!asked.read_only).then_some((Sizes::of(&device.path)?, device)))
        };
        let seen = self.observe(volume, "see how large it is", look).await?;
        let Some((sizes, device)) = seen else { return Ok(None) };
        // Either may be behind: the device, or the file system on it.
        let is_behind = self.is_behind(volume, sizes);
        if !is_due(sizes.device) && !is_behind {
            return Ok(Some(sizes.device));
        }
        let grow = move || {
            storage.refresh(&used, &device)?;
            if is_behind || kernel::size(&device.path)? > sizes.device {
                kernel::grow(&device.path, &used.staging, &journal.fs_type)?;
            }
            Ok(Sizes::of(&device.path)?)
        };
        let grown = self.blocking(volume, "grow the volume", grow).await?;
        let mut known = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(volume.to_owned(), grown);
        Ok(Some(grown.device))
    }

    /// Whether the file system does not have all of its device. The tools leave a rest that is too small
    /// for them, which they are not asked for again.
    fn is_behind(&self, volume: &str, sizes: Sizes) -> bool {
        let known = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        is_short(sizes.file_system, sizes.device) && known.get(volume) != Some(&sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_a_block_is_nothing_that_could_grow() {
        for (has, wanted, short) in [
            (500_000_000, 500_000_000, false),
            (499_999_744, 500_000_000, false),
            (500_002_816, 500_000_000, false),
            (499_994_624, 500_000_000, true),
            (0, 4096, true),
        ] {
            assert_eq!(is_short(has, wanted), short, "{has} {wanted}");
        }
    }
}
