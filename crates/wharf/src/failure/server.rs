//! What failures of the server and of its store look like.

use std::{error::Error as StdError, io};

use wharf_server::{ServerError, config::ConfigError};
use wharf_store::StoreError;

use super::{Exit, Explained};

/// `None` for those of others.
pub fn explain(cause: &(dyn StdError + 'static)) -> Option<Explained> {
    let plain = |exit, hint| Some(Explained { exit, hint, details: Vec::new() });
    if let Some(error) = cause.downcast_ref::<ConfigError>() {
        return plain(Exit::Usage, error.hint());
    }
    if let Some(error) = cause.downcast_ref::<ServerError>() {
        return plain(Exit::Failed, error.hint());
    }
    let error = cause.downcast_ref::<StoreError>()?;
    plain(store_exit(error), error.hint())
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

#[cfg(test)]
mod tests {
    use super::{super::explain, *};

    #[test]
    fn stores_in_use_are_refused_and_unreachable_ones_unreachable() {
        let in_use = StoreError::InUse { dir: "/d".into(), pid: Some(7) };
        assert_eq!(explain(&in_use.into()).exit as u8, 4);
        let away = StoreError::Unreachable { endpoints: "e".to_owned(), source: "x".into() };
        assert_eq!(explain(&away.into()).exit as u8, 5);
    }
}
