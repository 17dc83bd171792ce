//! The driver that kubelet runs, in its place.

use std::{fs, io, path::Path};

use wharf_core::volume::request::DRIVER_DIR;

use super::Places;
use crate::host::files;

/// The name that kubelet expects.
const DRIVER: &str = "volume";

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("the driver {0} cannot be read; it belongs beside the agent's program")]
    Missing(String, #[source] io::Error),
    #[error("the driver cannot be installed in {0}")]
    Install(String, #[source] io::Error),
}

/// Takes the driver from kubelet, and what else lies in kubelet's directories for it.
pub fn remove(places: &Places) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    };
    gone(fs::remove_dir_all(places.plugin_dir().join(DRIVER_DIR)))?;
    gone(fs::remove_file(super::csi::registration(places)))?;
    // Where volumes were mounted: empty now, or not ours to remove.
    let mounts = places.staging("");
    for dir in mounts.ancestors().take(3) {
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}

/// Installs the driver in one step, if another one or none is there: kubelet looks at it anew after
/// every change.
pub fn ensure(places: &Places, dir: &Path) -> Result<(), DriverError> {
    let program =
        places.driver().map_err(|source| DriverError::Missing(DRIVER.to_owned(), source))?;
    let wanted = fs::read(&program)
        .map_err(|source| DriverError::Missing(program.display().to_string(), source))?;
    let place = dir.join(DRIVER);
    if fs::read(&place).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    files::write(&place, 0o755, &wanted)
        .map_err(|source| DriverError::Install(dir.display().to_string(), source))
}
