//! Volumes whose journal cannot be read. What the kernel shows of them is all that is known.
//!
//! Such a volume may have promised to be cut off with its tenure. So it is, when that is over: by the tags
//! of its devices, and by what is mounted in its directory. Then it is taken away, and its journal
//! is put aside for people to look at. The entry in its record is then one that nothing knows of, which
//! is taken out as every such entry.

use std::{collections::BTreeSet, fs, io, path::Path};

use tracing::warn;
use wharf_block::loops;
use wharf_core::{volume::record::Generation, words::chain};

use super::{
    Places, Volumes,
    journals::{self, is_name},
    kernel::{self, Shown},
    storage::{Files, Listed, StorageError, Tag, agent_of, end_processes, every_listed},
    work::VolumeError,
};

/// Nobody takes a file that ends like this for a journal.
const ASIDE: &str = "json.unreadable";

type Result<T> = std::result::Result<T, StorageError>;

pub struct Unread<'a> {
    pub places: &'a Places,
    pub boot_id: &'a str,
    pub volume: &'a str,
}

impl Unread<'_> {
    /// Cuts off all that the kernel shows of it, and says whether that was anything. It fails where that is
    /// not known for sure.
    pub fn cut(&self) -> Result<bool> {
        // We never made one of such a name.
        if !is_name(self.volume) {
            return Ok(false);
        }
        let listed = self.listed()?;
        let staging = self.places.staging(self.volume);
        let staged = kernel::mounts()?.into_iter().find(|mount| mount.point == staging);
        let was_there = staged.is_some() || !listed.found.is_empty();
        if let Some(staged) = staged {
            let is_it = |device: &loops::Device| staged.device == format!("7:{}", device.number);
            if listed.found.iter().any(|(device, _)| is_it(device)) {
                kernel::shut_down(&staging)?;
            } else if !listed.silent {
                // No device of ours is behind it: a directory that is used as it is.
                let pods = self.places.pods();
                let (directory, staging) = (staging.as_path(), staging.as_path());
                kernel::take_away(&Shown { directory, staging, binds: &[], pods: &pods })?;
            }
        }
        listed.cut().map(|()| was_there)
    }

    /// Cuts it off, and takes it off this node as far as that is possible.
    pub fn settle(&self) -> Result<()> {
        self.cut()?;
        // What stays can do no harm, and is told of as long as its journal is there.
        if let Err(error) = self.take_away() {
            warn!(volume = self.volume, reason = chain(&error), "not all is taken away");
        }
        Ok(())
    }

    /// Unmounts it for a pod, and takes it off this node with the last of them.
    fn leave(&self, dir: &Path) -> Result<()> {
        kernel::unmount_all(dir, false)?;
        if self.is_shown_to_pods()? {
            return Ok(());
        }
        let staging = self.places.staging(self.volume);
        kernel::unmount_all(&staging, false)?;
        kernel::remove_point(&staging);
        self.take_away()
    }

    fn take_away(&self) -> Result<()> {
        if !is_name(self.volume) {
            return self.put_aside();
        }
        for (device, _) in &self.listed()?.found {
            let number = format!("7:{}", device.number);
            for mount in kernel::mounts()?.iter().filter(|mount| mount.device == number) {
                kernel::unmount_all(&mount.point, true)?;
            }
            loops::detach(device)?;
        }
        if !self.is_gone()? {
            return Ok(());
        }
        end_processes(self.places, self.volume)?;
        self.put_aside()
    }

    /// Whether the kernel shows nothing of it.
    fn is_gone(&self) -> Result<bool> {
        let staging = self.places.staging(self.volume);
        let is_staged = kernel::mounts()?.iter().any(|it| it.point == staging);
        let is_shown = is_staged || self.is_shown_to_pods()?;
        let listed = self.listed()?;
        Ok(!is_shown && !listed.silent && listed.found.is_empty())
    }

    fn is_shown_to_pods(&self) -> Result<bool> {
        let pods = self.places.pods();
        let is_named = |point: &Path| {
            let below = point.strip_prefix(&pods);
            below.is_ok_and(|below| below.iter().any(|part| part == self.volume))
        };
        Ok(kernel::mounts()?.iter().any(|it| is_named(&it.point)))
    }

    fn listed(&self) -> Result<Listed> {
        let agent = agent_of(self.boot_id, &self.places.state_dir);
        let tag = Tag::new(&agent, self.volume, Generation::default());
        // Which image it has nobody knows.
        let files = Files::of(self.places, self.volume, BTreeSet::from([String::new()]))?;
        every_listed(&tag, &files)
    }

    fn put_aside(&self) -> Result<()> {
        let dir = self.places.state_dir.join(journals::DIRECTORY);
        let put = fs::rename(
            dir.join(format!("{}.json", self.volume)),
            dir.join(format!("{}.{ASIDE}", self.volume)),
        );
        match put {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::io("put an unreadable journal aside", source))
            }
            Ok(()) | Err(_) => {
                warn!(volume = self.volume, "nothing is left of it: its journal is put aside");
                Ok(())
            }
        }
    }
}

impl Volumes {
    /// Unmounts what kubelet asks for of a volume whose journal cannot be read, and takes it away with its last
    /// pod. Nothing is cut off: what the pod has written is to reach the storage.
    pub async fn unmount_unread(
        &self,
        volume: &str,
        dir: &str,
        why: &VolumeError,
    ) -> std::result::Result<(), VolumeError> {
        warn!(
            volume,
            reason = chain(why),
            "its journal cannot be read: it goes by the kernel's tables"
        );
        let (places, boot_id) = (self.places.clone(), self.boot_id.clone());
        let (name, dir) = (volume.to_owned(), dir.to_owned());
        let leave = move || {
            let unread = Unread { places: &places, boot_id: &boot_id, volume: &name };
            Ok(unread.leave(Path::new(&dir))?)
        };
        self.blocking(volume, "unmount a volume without a journal", leave).await?;
        // Its entry is one that nothing here knows of.
        self.unanswered.note(volume);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_journal_of_which_the_kernel_shows_nothing_is_put_aside() {
        let state = tempfile::tempdir().unwrap();
        let kubelet = state.path().join("kubelet");
        let places = Places::of_guard(state.path().to_owned(), kubelet, None);
        let dir = state.path().join(journals::DIRECTORY);
        fs::create_dir(&dir).unwrap();
        for volume in ["pvc-1", "no name"] {
            fs::write(dir.join(format!("{volume}.json")), "{").unwrap();
            Unread { places: &places, boot_id: "boot", volume }.settle().unwrap();
            assert!(!dir.join(format!("{volume}.json")).exists());
            let aside = fs::read_to_string(dir.join(format!("{volume}.json.unreadable")));
            assert_eq!(aside.unwrap(), "{", "people can look at it");
        }
    }
}
