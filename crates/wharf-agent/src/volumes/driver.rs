//! The driver that kubelet runs, in its place.

use std::{fs, io, path::Path};

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
