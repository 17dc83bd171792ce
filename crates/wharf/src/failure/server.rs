//! What failures of the server and of its store look like.

use std::{error::Error as StdError, io};

use wharf_server::{ServerError, config::ConfigError};
use wharf_store::StoreError;

use super::Exit;

/// `None` for those of others.
pub fn explain_server(cause: &(dyn StdError + 'static)) -> Option<(Exit, Option<String>)> {
    if let Some(error) = cause.downcast_ref::<ConfigError>() {
        return Some((Exit::Usage, error.hint()));
    }
    if let Some(error) = cause.downcast_ref::<ServerError>() {
        return Some((Exit::Failed, error.hint()));
    }
    let error = cause.downcast_ref::<StoreError>()?;
    Some((store_exit(error), error.hint()))
}

fn store_exit(error: &StoreError) -> Exit {
    match error {
        StoreError::Unreachable { .. } => Exit::Unreachable,
        StoreError::InUse { .. } | StoreError::NotEmpty { .. } | StoreError::Denied { .. } => {
            Exit::Refused
        }
        StoreError::NoStore { .. } => Exit::NotFound,
        StoreError::BadOptions(_) => Exit::Usage,
        StoreError::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::PermissionDenied | io::ErrorKind::AlreadyExists => Exit::Refused,
            _ => Exit::Failed,
        },
        _ => Exit::Failed,
    }
}
