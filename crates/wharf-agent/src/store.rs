//! One record on the disk, which outlives the agent and the machine.

use std::{io, marker::PhantomData, path::PathBuf};

use serde::{Serialize, de::DeserializeOwned};

use crate::{aside::aside, host};

/// Only root looks into it.
const MODE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not what was written there", path.display())]
    Junk {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Where a record of type `T` lies.
pub struct Store<T> {
    path: PathBuf,
    kind: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> Store<T> {
    pub fn new(path: PathBuf) -> Self {
        Self { path, kind: PhantomData }
    }

    /// `None` if nothing was ever stored.
    pub fn load(&self) -> Result<Option<T>, StoreError> {
        let path = || self.path.clone();
        let text = match aside(|| std::fs::read(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|source| StoreError::Read { path: path(), source })?,
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| StoreError::Junk { path: path(), source })
    }

    /// The record is on the disk when this returns. A slow disk holds up nobody else.
    pub async fn save(&self, record: &T) -> Result<(), StoreError> {
        let path = self.path.clone();
        let failed = |source| StoreError::Write { path: self.path.clone(), source };
        let text = serde_json::to_vec(record).map_err(|source| failed(source.into()))?;
        let write = tokio::task::spawn_blocking(move || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            host::files::write_durably(&path, MODE, &text)
        });
        write.await.map_err(|source| failed(source.into()))?.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_record_is_read_as_it_was_saved_and_junk_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::<Vec<String>>::new(dir.path().join("new/record.json"));
        assert!(store.load().unwrap().is_none());
        store.save(&vec!["a".to_owned()]).await.unwrap();
        assert_eq!(store.load().unwrap().unwrap(), ["a"]);
        std::fs::write(dir.path().join("new/record.json"), "{").unwrap();
        let error = store.load().unwrap_err();
        assert!(matches!(error, StoreError::Junk { .. }), "{error}");
        let nowhere = Store::<Vec<String>>::new("/proc/self/no/record.json".into());
        assert!(matches!(nowhere.save(&Vec::new()).await, Err(StoreError::Write { .. })));
    }
}
