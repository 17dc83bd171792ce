//! Sealing of secrets, so that neither the store's file nor a backup gives them away.
//!
//! XChaCha20-Poly1305 with one key for the store, in a file beside it. The store holds a sealed
//! canary (`meta/seal`): it tells a wrong key before anything is read or written with it, and
//! that there must be a key before a new one would be made.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{
    embedded::lock::{io_error, sync_dir},
    error::{StoreError, StoreResult},
    store::Store,
    types::{Compare, Entry, Outcome, Txn},
};

/// Where the canary is.
pub(crate) const SEAL_KEY: &str = "meta/seal";

const KEY_HEADER: &str =
    "# Wharf sealing key. Whoever has it can read the store's secrets; without it they are lost.";
const CANARY: &[u8] = b"wharf";
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// Long enough to tell keys apart, too short to say anything about them.
const KEY_ID_BYTES: usize = 8;
/// A key file is two short lines.
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// A secret as it is stored: nonce and ciphertext, in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sealed(String);

/// Seals and opens secrets with the key of this store.
pub struct Sealer {
    key: Key,
}

type Key = Zeroizing<[u8; KEY_BYTES]>;

/// What `meta/seal` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Canary {
    /// Names the key without giving it away, for people who look for the right file.
    key_id: String,
    canary: Sealed,
}

impl Sealer {
    /// Opens the key file for this store, or makes it if the store holds nothing sealed yet.
    pub async fn open(store: &Store, key_file: &Path) -> StoreResult<Sealer> {
        if let Some(entry) = store.get(SEAL_KEY).await? {
            return Sealer::open_existing(&entry, key_file);
        }
        let (key, is_new) = match read_key(key_file)? {
            Some(key) => (key, false),
            None => (create_key(key_file)?, true),
        };
        let sealer = Sealer { key };
        match sealer.write_canary(store).await {
            Ok(Outcome::Committed(_)) => Ok(sealer),
            Ok(Outcome::Refused) => sealer.lost_the_race(store, key_file, is_new).await,
            Err(error) => {
                // Whether the canary was written is not certain, so the key must stay.
                Err(error)
            }
        }
    }

    /// Another server wrote its canary first. Its key may be the same file, or a copy of it.
    async fn lost_the_race(
        self,
        store: &Store,
        key_file: &Path,
        is_new: bool,
    ) -> StoreResult<Sealer> {
        let entry = store.get(SEAL_KEY).await?.ok_or(StoreError::Closed)?;
        if self.opens(&entry) {
            return Ok(self);
        }
        if is_new {
            // Nothing was sealed with it; left behind it would only be in the right one's way.
            fs::remove_file(key_file).map_err(|source| io_error("remove", key_file, source))?;
        }
        Err(StoreError::KeyWrong { path: key_file.to_owned() })
    }

    /// Opens the key of a store that has sealed something; makes nothing.
    pub(crate) fn open_existing(canary: &Entry, key_file: &Path) -> StoreResult<Sealer> {
        let key = read_key(key_file)?
            .ok_or_else(|| StoreError::KeyMissing { path: key_file.to_owned() })?;
        let sealer = Sealer { key };
        if sealer.opens(canary) {
            Ok(sealer)
        } else {
            Err(StoreError::KeyWrong { path: key_file.to_owned() })
        }
    }

    async fn write_canary(&self, store: &Store) -> StoreResult<Outcome> {
        let canary = Canary { key_id: self.key_id(), canary: self.seal(SEAL_KEY, CANARY) };
        let value = serde_json::to_vec(&canary)
            .map_err(|source| StoreError::Encode { key: SEAL_KEY.to_owned(), source })?;
        let txn = Txn::new().when(Compare::Absent(SEAL_KEY.to_owned())).put(SEAL_KEY, value);
        store.commit(txn).await
    }

    fn opens(&self, entry: &Entry) -> bool {
        serde_json::from_slice::<Canary>(&entry.value)
            .is_ok_and(|canary| self.open_sealed(SEAL_KEY, &canary.canary).is_ok())
    }

    fn key_id(&self) -> String {
        let hash = Sha256::new().chain_update(b"wharf seal key id\0");
        // By reference: a copy of the key would not be wiped.
        let digest = hash.chain_update(self.key.as_slice()).finalize();
        hex::encode(digest.iter().take(KEY_ID_BYTES).copied().collect::<Vec<_>>())
    }

    /// `context` names the record and the field; a sealed value cannot be opened under another.
    pub fn seal(&self, context: &str, secret: &[u8]) -> Sealed {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let payload = Payload { msg: secret, aad: context.as_bytes() };
        let Ok(sealed) = self.cipher().encrypt(&XNonce::from(nonce), payload) else {
            unreachable!("only a secret of more than 256 GiB cannot be sealed");
        };
        Sealed(BASE64.encode([nonce.as_slice(), &sealed].concat()))
    }

    pub fn open_sealed(&self, context: &str, sealed: &Sealed) -> StoreResult<Vec<u8>> {
        let unsealable = || StoreError::Unsealable { context: context.to_owned() };
        let bytes = BASE64.decode(&sealed.0).map_err(|_| unsealable())?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>().ok_or_else(unsealable)?;
        let payload = Payload { msg: sealed, aad: context.as_bytes() };
        self.cipher().decrypt(&XNonce::from(*nonce), payload).map_err(|_| unsealable())
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.key).into())
    }
}

/// Shows nothing of the key.
impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("key_id", &self.key_id()).finish()
    }
}

/// Reads the key file; `None` if there is none.
fn read_key(path: &Path) -> StoreResult<Option<Key>> {
    let unusable = |reason: String| StoreError::KeyUnusable { path: path.to_owned(), reason };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("read", path, source)),
    };
    if !metadata.is_file() || metadata.len() > MAX_KEY_FILE_BYTES {
        return Err(unusable("it is not a key file".to_owned()));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(unusable(format!(
            "its mode is {mode:04o}, so that others than its owner can use it; run `chmod 600 {}`",
            path.display()
        )));
    }
    let text =
        fs::read(path).map(Zeroizing::new).map_err(|source| io_error("read", path, source))?;
    let not_a_key = || unusable("it does not hold a sealing key".to_owned());
    let text = std::str::from_utf8(&text).map_err(|_| not_a_key())?;
    let line = text.lines().find(|line| !line.starts_with('#')).ok_or_else(not_a_key)?;
    let bytes = BASE64.decode(line.trim()).map(Zeroizing::new).map_err(|_| not_a_key())?;
    let key = bytes.as_slice().try_into().map_err(|_| not_a_key())?;
    Ok(Some(Zeroizing::new(key)))
}

/// Makes a key and its file; a file that has appeared meanwhile is not overwritten.
fn create_key(path: &Path) -> StoreResult<Key> {
    let key: Key = Zeroizing::new(rand::random());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| io_error("create", path, source))?;
    let text = Zeroizing::new(format!("{KEY_HEADER}\n{}\n", BASE64.encode(*key)));
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let written =
        written.map_err(|source| io_error("write", path, source)).and_then(|()| {
            match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                Some(dir) => sync_dir(dir),
                None => sync_dir(Path::new(".")),
            }
        });
    if let Err(error) = written {
        // A half-written key would be refused as unusable from then on.
        fs::remove_file(path).ok();
        return Err(error);
    }
    Ok(key)
}
