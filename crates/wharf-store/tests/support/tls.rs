//! Certificates for a test.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

pub struct Files {
    pub ca: PathBuf,
    /// Of an authority that signed nothing here.
    pub other_ca: PathBuf,
    pub server_cert: PathBuf,
    pub server_key: PathBuf,
    pub client_cert: PathBuf,
    pub client_key: PathBuf,
}

impl Files {
    pub fn create(dir: &Path) -> Files {
        let (issuer, ca) = authority(dir, "ca.pem");
        let (_, other_ca) = authority(dir, "other-ca.pem");
        let (server_cert, server_key) = leaf(dir, "server", &issuer);
        let (client_cert, client_key) = leaf(dir, "client", &issuer);
        Files { ca, other_ca, server_cert, server_key, client_cert, client_key }
    }
}

/// A key for signing tokens: its public and its private part.
pub fn key_pair(dir: &Path) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    (
        write(dir, "public.pem", &key.public_key_pem()),
        write(dir, "private.pem", &key.serialize_pem()),
    )
}

fn authority(dir: &Path, name: &str) -> (Issuer<'static, KeyPair>, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let certificate = params.self_signed(&key).unwrap();
    let path = write(dir, name, &certificate.pem());
    (Issuer::new(params, key), path)
}

fn leaf(dir: &Path, name: &str, issuer: &Issuer<'static, KeyPair>) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, issuer).unwrap();
    let cert_path = write(dir, &format!("{name}.pem"), &certificate.pem());
    (cert_path, write(dir, &format!("{name}.key"), &key.serialize_pem()))
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
