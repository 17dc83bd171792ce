//! One step with the kernel or the storage. It may block.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use wharf_core::volume::{
    journal::{Action, Journal, PodUse},
    options::Options,
};

use super::{
    kernel,
    storage::{Device, Storage, Use},
    work::VolumeError,
};

/// All that a step needs at hand.
pub struct Step {
    used: Use,
    storage: Arc<dyn Storage>,
    device: Option<Device>,
    fs_type: String,
    options: String,
    read_only_dirs: BTreeSet<String>,
    is_cut: bool,
}

impl Step {
    pub fn new(
        journal: &Journal,
        used: Use,
        storage: Arc<dyn Storage>,
        device: Option<Device>,
    ) -> Self {
        Self {
            used,
            storage,
            device,
            fs_type: journal.fs_type.clone(),
            options: mount_options(journal),
            read_only_dirs: read_only_dirs(&journal.pods),
            is_cut: journal.cut,
        }
    }

    pub fn take(self, action: &Action) -> Result<(), VolumeError> {
        let staging = &self.used.staging;
        match (action, &self.device) {
            (Action::Map, _) => {
                self.storage.map(&self.used)?;
            }
            (Action::Format, Some(device)) => kernel::format(&device.path, &self.fs_type)?,
            (Action::Stage, Some(device)) => self.stage(device)?,
            (Action::Bind { dir }, _) => {
                let read_only = self.read_only_dirs.contains(dir);
                kernel::bind(staging, Path::new(dir), read_only, &self.options()?)?;
            }
            (Action::Unbind { dir }, _) => kernel::unmount_all(Path::new(dir), self.is_cut)?,
            (Action::Cut, device) => self.storage.cut(&self.used, device.as_ref())?,
            (Action::Unstage, _) => {
                kernel::unmount_all(staging, self.is_cut)?;
                kernel::remove_point(staging);
            }
            (Action::Unmap, Some(device)) => self.storage.unmap(&self.used, device)?,
            (Action::Format | Action::Stage | Action::Unmap, None) => {}
            (
                Action::Claim { .. }
                | Action::Report { .. }
                | Action::GiveUp { .. }
                | Action::Forget,
                _,
            ) => {}
        }
        Ok(())
    }

    /// Bad ones keep nobody from unmounting.
    fn options(&self) -> Result<Options, VolumeError> {
        Options::parse(&self.options).map_err(VolumeError::Options)
    }

    fn stage(&self, device: &Device) -> Result<(), VolumeError> {
        let Use { staging, read_only, .. } = &self.used;
        let options = self.options()?;
        if !device.is_block {
            return Ok(kernel::bind(&device.path, staging, *read_only, &options)?);
        }
        Ok(kernel::stage(&device.path, staging, &self.fs_type, *read_only, &options)?)
    }
}

/// Those of the storage cluster, and those of the PV after them.
fn mount_options(journal: &Journal) -> String {
    let of_cluster = journal.parameters.get("mountOptions").map_or("", String::as_str);
    format!("{of_cluster},{}", journal.mount_options)
}

fn read_only_dirs(pods: &[PodUse]) -> BTreeSet<String> {
    let only_reads = |pod: &&PodUse| pod.entry.as_ref().is_some_and(|entry| entry.read_only);
    pods.iter().filter(only_reads).map(|pod| pod.mount_dir.clone()).collect()
}

/// In the words of whoever waits for it.
pub fn what(action: &Action) -> &'static str {
    match action {
        Action::Claim { .. } => "claim the volume",
        Action::Map => "map the device",
        Action::Format => "make the file system",
        Action::Stage => "mount the file system",
        Action::Bind { .. } => "mount it for the pod",
        Action::Report { .. } => "report the device",
        Action::Cut => "cut the volume off",
        Action::Unbind { .. } => "unmount it for the pod",
        Action::Unstage => "unmount the file system",
        Action::Unmap => "take the device away",
        Action::GiveUp { .. } => "give the volume up",
        Action::Forget => "forget the volume",
    }
}
