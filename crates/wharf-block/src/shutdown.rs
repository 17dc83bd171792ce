//! Cuts a mounted file system off from its device, so that a machine that must not write any more
//! does not, whatever its pods do.

use std::{fs::File, io, os::unix::fs::MetadataExt, path::Path};

use rustix::io::Errno;

use crate::{
    ioctl,
    loops::{self, Device},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} is on a file system that cannot be shut down; ext4 and xfs can")]
    NotSupported(String),
    #[error("shutting down the file system at {path}")]
    Io {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Loop(#[from] loops::Error),
}

/// Ends all writing of the ext4 or xfs that is mounted at `mount_point`, in every mount of it. What
/// was written and not flushed is lost, as by a power cut. There is no way back but to unmount it.
///
/// What the journal holds already may still be written to its place: [`cut`] ends that too.
pub fn shut_down(mount_point: &Path) -> Result<(), Error> {
    let path = mount_point.display().to_string();
    let root =
        File::open(mount_point).map_err(|source| Error::Io { path: path.clone(), source })?;
    end(&root, path)
}

/// The same, if what is mounted there is on this device, `major:minor` as the table of mounts has it. A
/// directory in which nothing is mounted any more lies on a file system of the machine, which must not
/// end; says whether it was the one that is meant.
pub fn shut_down_only(mount_point: &Path, device: &str) -> Result<bool, Error> {
    let path = mount_point.display().to_string();
    let failed = |source| Error::Io { path: path.clone(), source };
    let root = File::open(mount_point).map_err(failed)?;
    let found = root.metadata().map_err(failed)?.dev();
    let (major, minor) = (rustix::fs::major(found), rustix::fs::minor(found));
    if format!("{major}:{minor}") != device {
        return Ok(false);
    }
    end(&root, path).map(|()| true)
}

fn end(root: &File, path: String) -> Result<(), Error> {
    match ioctl::shutdown(root) {
        Ok(()) => {
            // Whoever waits in a frozen one would wait for ever: it cannot even be opened any more to be
            // thawed. Most are not frozen.
            let _ = ioctl::thaw(root);
            Ok(())
        }
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Err(Error::NotSupported(path)),
        Err(error) => Err(Error::Io { path, source: error.into() }),
    }
}

/// Shuts the file system down, then its device. Nothing reaches the file of the device after this.
pub fn cut(mount_point: &Path, device: &Device) -> Result<(), Error> {
    shut_down(mount_point)?;
    Ok(loops::cut(device)?)
}
