//! Sealing of secrets.
use serde::{Deserialize, Serialize};

use crate::{error::StoreResult, store::Store};
use std::path::Path;

/// A secret as it is stored: nonce and ciphertext, in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sealed(String);

/// Seals and opens secrets with the key of this store.
pub struct Sealer;

impl Sealer {
    /// Opens the key file for this store, or makes it if the store holds nothing sealed yet.
    pub async fn open(_store: &Store, _key_file: &Path) -> StoreResult<Sealer> {
        todo!()
    }

    /// `context` names the record and the field; a sealed value cannot be opened under another.
    pub fn seal(&self, _context: &str, _secret: &[u8]) -> Sealed {
        todo!()
    }

    pub fn open_sealed(&self, _context: &str, _sealed: &Sealed) -> StoreResult<Vec<u8>> {
        todo!()
    }
}
