//! The key by which a host is known again.

use std::fmt;

use russh::keys::{Algorithm, HashAlg, PublicKey};

/// Either a public key in OpenSSH's format (`ssh-ed25519 AAAA…`), or only its fingerprint
/// (`SHA256:…`), as people copy it from a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostKey(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is neither a public key (ssh-ed25519 AAAA…) nor a fingerprint (SHA256:…)")]
pub struct HostKeyError;

impl HostKey {
    /// A comment after the key is dropped.
    pub fn parse(text: &str) -> Result<Self, HostKeyError> {
        let text = text.trim();
        if text.starts_with("SHA256:") {
            let fingerprint: russh::keys::ssh_key::Fingerprint =
                text.parse().map_err(|_| HostKeyError)?;
            return Ok(Self(fingerprint.to_string()));
        }
        let key = PublicKey::from_openssh(text).map_err(|_| HostKeyError)?;
        Self::from_public(&key).ok_or(HostKeyError)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `SHA256:…`, as `ssh-keygen -l` prints it.
    pub fn fingerprint(&self) -> String {
        match self.public() {
            Some(key) => key.fingerprint(HashAlg::Sha256).to_string(),
            None => self.0.clone(),
        }
    }

    /// Whether `shown` is the key that this one pins. Two texts of keys are compared as a whole;
    /// where one is a fingerprint, the fingerprints are.
    pub fn matches(&self, shown: &Self) -> bool {
        match (self.public(), shown.public()) {
            (Some(pinned), Some(shown)) => pinned.key_data() == shown.key_data(),
            _ => self.fingerprint() == shown.fingerprint(),
        }
    }

    pub(crate) fn from_public(key: &PublicKey) -> Option<Self> {
        let mut key = key.clone();
        key.set_comment("");
        Some(Self(key.to_openssh().ok()?.trim_end().to_owned()))
    }

    /// `None` for a fingerprint, which does not say what kind of key it is of.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        Some(self.public()?.algorithm())
    }

    fn public(&self) -> Option<PublicKey> {
        PublicKey::from_openssh(&self.0).ok()
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
