//! The server's certificate: given, or made by an authority of its own.
//!
//! The authority lives ten years and is what clients pin at login; the certificate lives one year
//! and is made anew at a start when it nears its end or lacks a name.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use sha2::{Digest, Sha256};

use crate::{config::Config, error::ServerError};

const AUTHORITY_DAYS: i64 = 3650;
const CERTIFICATE_DAYS: i64 = 365;
/// A certificate that ends within this time is made anew.
const RENEW_DAYS: i64 = 30;
const DAY: i64 = 24 * 3600;
/// For machines whose clocks are behind ours.
const BACKDATE: i64 = DAY;

/// What TLS needs, and the authority if the server has its own.
pub struct Identity {
    pub server: Arc<ServerConfig>,
    pub authority: Option<Authority>,
}

/// The server's own authority, as clients pin it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    pub file: PathBuf,
    /// For people to compare: `A9:84:…`.
    pub fingerprint: String,
}

/// Loads or makes the certificate for the names under which the server may be called.
pub fn identity(config: &Config, hostname: &str, now: Timestamp) -> Result<Identity, ServerError> {
    if !config.tls.cert_file.as_os_str().is_empty() {
        let server = server_config(&config.tls.cert_file, &config.tls.key_file)?;
        return Ok(Identity { server, authority: None });
    }
    let files = Files::new(&config.data_dir);
    let names = names(config, hostname);
    std::fs::create_dir_all(&files.dir).map_err(file_error("make", &files.dir))?;
    if !files.authority.exists() {
        make_authority(&files, hostname, now)?;
    }
    let fingerprint = fingerprint(&files.authority)?;
    if !is_current(&files, &fingerprint, &names, now) {
        make_certificate(&files, &fingerprint, &names, now)?;
    }
    let server = server_config(&files.certificate, &files.key)?;
    Ok(Identity { server, authority: Some(Authority { file: files.authority, fingerprint }) })
}

/// SHA-256 of a certificate, in the form in which other tools show it.
fn fingerprint(certificate: &Path) -> Result<String, ServerError> {
    let der = CertificateDer::from_pem_file(certificate)
        .map_err(tls_error(&format!("reading {}", certificate.display())))?;
    let pairs: Vec<String> = Sha256::digest(&der).iter().map(|b| format!("{b:02X}")).collect();
    Ok(pairs.join(":"))
}

struct Files {
    dir: PathBuf,
    authority: PathBuf,
    authority_key: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    names: PathBuf,
}

impl Files {
    fn new(data_dir: &Path) -> Self {
        let dir = data_dir.join("tls");
        Self {
            authority: dir.join("ca.pem"),
            authority_key: dir.join("ca.key"),
            certificate: dir.join("server.pem"),
            key: dir.join("server.key"),
            names: dir.join("server.json"),
            dir,
        }
    }
}

/// What the certificate was made for, beside it, so that a start need not take it apart.
#[derive(serde::Serialize, serde::Deserialize)]
struct Made {
    authority: String,
    names: Vec<String>,
    ends_at: Timestamp,
}

fn names(config: &Config, hostname: &str) -> Vec<String> {
    let mut names: Vec<String> =
        ["localhost", "127.0.0.1", "::1", hostname].map(str::to_owned).to_vec();
    let listen = config.listen.ip();
    if listen.is_unspecified() {
        names.extend(own_addresses());
    } else {
        names.push(listen.to_string());
    }
    names.extend(config.tls.names.iter().cloned());
    names.sort();
    names.dedup();
    names
}

/// The address from which this machine reaches others; no packet is sent to find it.
fn own_addresses() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip().to_string())
}

fn is_current(files: &Files, authority: &str, names: &[String], now: Timestamp) -> bool {
    let made = std::fs::read(&files.names).ok();
    let made: Option<Made> = made.and_then(|text| serde_json::from_slice(&text).ok());
    let there = files.certificate.exists() && files.key.exists();
    let renew_at = now.as_second() + RENEW_DAYS * DAY;
    there
        && made.is_some_and(|made| {
            made.authority == authority
                && made.ends_at.as_second() > renew_at
                && names.iter().all(|n| made.names.contains(n))
        })
}

fn make_authority(files: &Files, hostname: &str, now: Timestamp) -> Result<(), ServerError> {
    let key = KeyPair::generate().map_err(tls_error("making a key"))?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("Wharf on {hostname}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, AUTHORITY_DAYS)?;
    let certificate = params.self_signed(&key).map_err(tls_error("making the authority"))?;
    // The key goes first: an authority without its key is never made.
    write_file(&files.authority_key, &key.serialize_pem(), 0o600)?;
    write_file(&files.authority, &certificate.pem(), 0o644)
}

fn make_certificate(
    files: &Files,
    authority: &str,
    names: &[String],
    now: Timestamp,
) -> Result<(), ServerError> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(file_error("read", path));
    let authority_pem = read(&files.authority)?;
    let authority_key = KeyPair::from_pem(&read(&files.authority_key)?)
        .map_err(tls_error("reading the authority's key"))?;
    let issuer = Issuer::from_ca_cert_pem(&authority_pem, authority_key)
        .map_err(tls_error("reading the authority"))?;
    let key = KeyPair::generate().map_err(tls_error("making a key"))?;
    let mut params =
        CertificateParams::new(names.to_vec()).map_err(tls_error("a name in tls.names"))?;
    params.distinguished_name.push(DnType::CommonName, "wharf");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    set_validity(&mut params, now, CERTIFICATE_DAYS)?;
    let certificate =
        params.signed_by(&key, &issuer).map_err(tls_error("making the certificate"))?;
    let ends_at =
        Timestamp::from_second(now.as_second() + CERTIFICATE_DAYS * DAY).unwrap_or(Timestamp::MAX);
    let made = Made { authority: authority.to_owned(), names: names.to_vec(), ends_at };
    let made =
        serde_json::to_string_pretty(&made).map_err(|e| ServerError::Internal(e.to_string()))?;
    // The note goes first away and last back: a crash between the writes makes all anew.
    match std::fs::remove_file(&files.names) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(file_error("remove", &files.names)(error));
        }
        _ => {}
    }
    write_file(&files.key, &key.serialize_pem(), 0o600)?;
    // The chain holds the authority, so that a client can pin it at its first login.
    write_file(&files.certificate, &format!("{}{authority_pem}", certificate.pem()), 0o644)?;
    write_file(&files.names, &made, 0o644)
}

fn set_validity(
    params: &mut CertificateParams,
    now: Timestamp,
    days: i64,
) -> Result<(), ServerError> {
    let midnight = |seconds: i64| {
        let time = Timestamp::from_second(seconds)
            .map_err(|e| ServerError::Internal(e.to_string()))?
            .to_zoned(jiff::tz::TimeZone::UTC);
        let part = |n: i8| u8::try_from(n).unwrap_or(1);
        let (month, day) = (part(time.month()), part(time.day()));
        Ok::<_, ServerError>(rcgen::date_time_ymd(i32::from(time.year()), month, day))
    };
    params.not_before = midnight(now.as_second() - BACKDATE)?;
    params.not_after = midnight(now.as_second() + days * DAY)?;
    Ok(())
}

fn server_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, ServerError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(tls_error(&format!("reading {}", certificate.display())))?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(tls_error(&format!("reading {}", key.display())))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(tls_error("choosing TLS versions"))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(tls_error("the certificate and the key do not go together"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), ServerError> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let temporary = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(file_error("write", path))
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ServerError {
    let path = path.to_path_buf();
    move |source| ServerError::File { action, path, source }
}

fn tls_error<E: std::error::Error + Send + Sync + 'static>(
    what: &str,
) -> impl FnOnce(E) -> ServerError {
    let reason = what.to_owned();
    move |source| ServerError::Tls { reason, source: Some(Box::new(source)) }
}

/// Whether a name is one that a certificate can carry.
pub fn is_name(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || rustls::pki_types::DnsName::try_from(text).is_ok()
}
