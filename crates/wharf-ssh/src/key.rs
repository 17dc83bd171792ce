//! The private key that opens a host.

use std::fmt;
use std::sync::Arc;

use russh::keys::ssh_key::private::KeypairData;
use russh::keys::{Algorithm, HashAlg, PrivateKey, decode_secret_key};

/// A private key in memory. `Debug` shows its kind and the fingerprint of its public half.
#[derive(Clone)]
pub struct Key {
    key: Arc<PrivateKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("this is not a private key")]
    NotAKey,
    #[error("this is a public key; the private one is needed")]
    PublicKey,
    #[error("the key is encrypted and no passphrase was given")]
    Encrypted,
    #[error("the passphrase does not open the key")]
    WrongPassphrase,
    #[error("this kind of key is not supported: {0}")]
    Unsupported(String),
}

impl Key {
    /// Reads a key as `ssh-keygen` or `openssl` write it: ed25519, ECDSA or RSA, in OpenSSH's
    /// format, PKCS#8, PKCS#1 or SEC 1. A passphrase that is not needed is ignored.
    ///
    /// Opening an encrypted key takes some tenths of a second of work by design.
    pub fn parse(pem: &str, passphrase: &str) -> Result<Self, KeyError> {
        let text = tidy(pem);
        let label = text.lines().find_map(label_of).ok_or_else(|| not_a_key(&text))?;
        let key = match label {
            "OPENSSH PRIVATE KEY" => parse_openssh(&text, passphrase)?,
            "ENCRYPTED PRIVATE KEY" => parse_encrypted(&text, passphrase)?,
            "RSA PRIVATE KEY" | "EC PRIVATE KEY" if is_legacy_encrypted(&text) => {
                check_legacy_cipher(label, &text)?;
                parse_encrypted(&text, passphrase)?
            }
            "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => decode_secret_key(&text, None)
                .map_err(|error| refusal(&error, KeyError::NotAKey))?,
            "DSA PRIVATE KEY" => return Err(KeyError::Unsupported("DSA".to_owned())),
            "PUBLIC KEY" | "RSA PUBLIC KEY" => return Err(KeyError::PublicKey),
            _ => return Err(KeyError::NotAKey),
        };
        check_kind(&key)?;
        Ok(Self { key: Arc::new(key) })
    }

    /// The public half in OpenSSH's format, without a comment.
    pub fn public_key(&self) -> String {
        let mut public = self.key.public_key().clone();
        public.set_comment("");
        public.to_openssh().unwrap_or_default().trim_end().to_owned()
    }

    pub(crate) fn is_rsa(&self) -> bool {
        matches!(self.key.algorithm(), Algorithm::Rsa { .. })
    }

    pub(crate) fn inner(&self) -> Arc<PrivateKey> {
        self.key.clone()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fingerprint = self.key.public_key().fingerprint(HashAlg::Sha256);
        write!(f, "Key({} {fingerprint})", self.key.algorithm())
    }
}

/// Keys are pasted into forms: empty lines, spaces and Windows line ends come with them.
fn tidy(pem: &str) -> String {
    let lines = pem.trim_start_matches('\u{feff}').lines().map(str::trim);
    let lines = lines.skip_while(|line| line.is_empty());
    lines.flat_map(|line| [line, "\n"]).collect::<String>().trim_end().to_owned() + "\n"
}

fn label_of(line: &str) -> Option<&str> {
    line.strip_prefix("-----BEGIN ")?.strip_suffix("-----")
}

fn not_a_key(text: &str) -> KeyError {
    let start = text.trim_start();
    if start.starts_with("PuTTY-User-Key-File-") {
        return KeyError::Unsupported("PuTTY's own format; export it as OpenSSH key".to_owned());
    }
    match start.starts_with("ssh-") || start.starts_with("ecdsa-sha2-") || start.starts_with("sk-")
    {
        true => KeyError::PublicKey,
        false => KeyError::NotAKey,
    }
}

/// A key that says so itself could keep a processor busy for hours; `ssh-keygen` uses 16 or 24.
const MAX_ROUNDS: u32 = 1024;

fn parse_openssh(text: &str, passphrase: &str) -> Result<PrivateKey, KeyError> {
    let key = PrivateKey::from_openssh(text).map_err(|_| KeyError::NotAKey)?;
    if !key.is_encrypted() {
        return Ok(key);
    }
    if passphrase.is_empty() {
        return Err(KeyError::Encrypted);
    }
    if let russh::keys::ssh_key::Kdf::Bcrypt { rounds, .. } = key.kdf()
        && *rounds > MAX_ROUNDS
    {
        return Err(KeyError::Unsupported(format!("encrypted with {rounds} rounds of bcrypt")));
    }
    key.decrypt(passphrase).map_err(|_| KeyError::WrongPassphrase)
}

fn parse_encrypted(text: &str, passphrase: &str) -> Result<PrivateKey, KeyError> {
    if passphrase.is_empty() {
        return Err(KeyError::Encrypted);
    }
    decode_secret_key(text, Some(passphrase))
        .map_err(|error| refusal(&error, KeyError::WrongPassphrase))
}

fn is_legacy_encrypted(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("Proc-Type:") && line.ends_with("ENCRYPTED"))
}

/// The old encryption of PEM files is read only as `ssh-keygen -m PEM` writes it for RSA.
fn check_legacy_cipher(label: &str, text: &str) -> Result<(), KeyError> {
    let info = text.lines().find_map(|line| line.strip_prefix("DEK-Info:")).unwrap_or_default();
    let cipher = info.split(',').next().unwrap_or_default().trim();
    if label == "RSA PRIVATE KEY" && cipher == "AES-128-CBC" {
        return Ok(());
    }
    Err(KeyError::Unsupported(format!(
        "{label} encrypted with {cipher}; `ssh-keygen -p -f FILE` converts it"
    )))
}

fn refusal(error: &russh::keys::Error, otherwise: KeyError) -> KeyError {
    match error {
        russh::keys::Error::UnknownAlgorithm(oid) => {
            KeyError::Unsupported(format!("algorithm {oid}"))
        }
        _ => otherwise,
    }
}

fn check_kind(key: &PrivateKey) -> Result<(), KeyError> {
    match key.key_data() {
        KeypairData::Ed25519(_) | KeypairData::Ecdsa(_) | KeypairData::Rsa(_) => Ok(()),
        _ => Err(KeyError::Unsupported(key.algorithm().to_string())),
    }
}
