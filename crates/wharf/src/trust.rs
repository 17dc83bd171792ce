//! Whom to believe: the authority that a server shows at login, pinned from then on.

use std::{
    error::Error as StdError,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Url;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use wharf_api::client::At;

use crate::failure::{Exit, Told};

/// As long as the client gives itself to connect.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// What PEM calls a line.
const PEM_LINE: usize = 64;

/// The authority that signed a server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    pub pem: String,
    pub fingerprint: Fingerprint,
    pub subject: String,
}

/// The SHA-256 of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(der: &[u8]) -> Self {
        Self(Sha256::digest(der).into())
    }

    /// Takes what people copy: hex in any case, with or without colons and `SHA256:`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let bare = match text.get(..7) {
            Some(prefix) if prefix.eq_ignore_ascii_case("sha256:") => text.get(7..)?,
            _ => text,
        };
        let digits: String = bare.chars().filter(|c| *c != ':').collect();
        hex::decode(digits).ok()?.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        f.write_str(&pairs.join(":"))
    }
}

/// Asks the server at `url` for its certificates and returns the authority among them.
///
/// Nothing is believed here and nothing is sent: the handshake is broken off as soon as the
/// certificates have been seen. Whether they are good is checked by the connection that follows,
/// which trusts this authority alone.
pub async fn fetch_authority(url: &Url) -> anyhow::Result<Authority> {
    let chain = tokio::time::timeout(HANDSHAKE_TIMEOUT, fetch_chain(url))
        .await
        .map_err(|_| Told::new(Exit::TimedOut, format!("{url} did not answer in time")))??;
    find_authority(&chain)
}

async fn fetch_chain(url: &Url) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Told::new(Exit::Unreachable, format!("cannot reach the server at {url}: {error}"))
    };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let port = url.port_or_known_default().unwrap_or(443);
    let stream = TcpStream::connect((host, port)).await.map_err(|e| unreachable(&e))?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Told::usage(format!("{host} is not a server's name or address")))?;
    let capture = Arc::new(Capture::new());
    let config = ClientConfig::builder_with_provider(Arc::clone(&capture.provider))
        .with_safe_default_protocol_versions()
        .context("cannot set up TLS")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&capture) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    let handshake = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let chain = capture.take();
    match (chain.is_empty(), handshake) {
        (false, _) => Ok(chain),
        (true, Err(error)) => Err(unreachable(&error).hint("is this an HTTPS address?").into()),
        (true, Ok(_)) => Err(unreachable(&"it shows no certificate").into()),
    }
}

/// The last certificate of the chain, if it signed itself; servers that leave their authority out
/// cannot be pinned this way.
fn find_authority(chain: &[CertificateDer<'_>]) -> anyhow::Result<Authority> {
    let last = chain.last().context("the server shows no certificate")?;
    let (_, parsed) = x509_parser::parse_x509_certificate(last)
        .context("the server's certificate cannot be read")?;
    if parsed.subject() != parsed.issuer() {
        return Err(Told::new(
            Exit::Refused,
            format!(
                "the server's certificate was signed by {}, which this machine does not trust",
                parsed.issuer()
            ),
        )
        .hint("get the authority's certificate from the server's operator and give it with --ca")
        .into());
    }
    Ok(Authority {
        pem: render_pem(last),
        fingerprint: Fingerprint::of(last),
        subject: parsed.subject().to_string(),
    })
}

fn render_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(PEM_LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = tail;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// The certificate's fault, if that is why the connection failed.
pub fn certificate_fault(error: &(dyn StdError + 'static)) -> Option<CertificateError> {
    let tls = anyhow::Chain::new(error).find_map(tls_error)?;
    match tls {
        rustls::Error::InvalidCertificate(fault) => Some(fault.clone()),
        _ => None,
    }
}

/// An io::Error names the source of the error that it wraps, not that error itself; and some wrap
/// another io::Error.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(io) => tls_error(io.get_ref()?),
        None => error.downcast_ref(),
    }
}

pub fn fault_hint(fault: &CertificateError, url: &str) -> String {
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "renew the server's certificate, or check this machine's clock".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "use a name or address that is in the server's certificate, or add this one to `tls.names` of the server's configuration".to_owned()
        }
        _ => format!(
            "the server's authority is not trusted here: log in (again) with `wharf login --server {url}` and compare its fingerprint, or name it with --ca"
        ),
    }
}

/// Whether the client failed because the certificate is not from a trusted authority.
pub fn is_untrusted(error: &wharf_api::client::ClientError) -> bool {
    use wharf_api::client::ClientError::Unreachable;
    matches!(error, Unreachable { at: At::Url(_), source } if matches!(
        certificate_fault(source),
        Some(CertificateError::UnknownIssuer | CertificateError::BadSignature | CertificateError::Other(_))
    ))
}

/// Remembers the certificates that it is shown and believes none of them.
#[derive(Debug)]
struct Capture {
    provider: Arc<CryptoProvider>,
    chain: Mutex<Vec<CertificateDer<'static>>>,
}

impl Capture {
    fn new() -> Self {
        Self { provider: Arc::new(aws_lc_rs::default_provider()), chain: Mutex::default() }
    }

    fn take(&self) -> Vec<CertificateDer<'static>> {
        std::mem::take(&mut self.chain.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refusal() -> rustls::Error {
        CertificateError::ApplicationVerificationFailure.into()
    }
}

impl ServerCertVerifier for Capture {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen = std::iter::once(end_entity).chain(intermediates);
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) =
            seen.map(|cert| cert.clone().into_owned()).collect();
        Err(Self::refusal())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Self::refusal())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Self::refusal())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn leaf(signer: &CertifiedIssuer<'static, KeyPair>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "a server");
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, signer).unwrap().der().clone()
    }

    #[test]
    fn fingerprints_are_read_in_every_usual_form() {
        let fingerprint = Fingerprint::of(b"certificate");
        let shown = fingerprint.to_string();
        assert_eq!(shown.len(), 32 * 3 - 1);
        let bare = shown.replace(':', "").to_lowercase();
        for form in [shown.clone(), bare.clone(), format!("SHA256:{bare}"), format!(" {shown}\n")] {
            assert_eq!(Fingerprint::parse(&form), Some(fingerprint), "{form}");
        }
        for bad in ["", "sha256:", "zz", &bare[..62], "é:12"] {
            assert_eq!(Fingerprint::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_certificates_fault_is_found_however_deep_it_is_wrapped() {
        let fault = || rustls::Error::from(CertificateError::UnknownIssuer);
        let deep = io::Error::other(io::Error::other(fault()));
        for error in [anyhow::Error::new(fault()), deep.into()] {
            let error = error.context("cannot connect");
            assert_eq!(certificate_fault(error.as_ref()), Some(CertificateError::UnknownIssuer));
        }
        for error in [io::Error::other("UnknownIssuer"), io::ErrorKind::NotFound.into()] {
            assert_eq!(certificate_fault(&error), None);
        }
    }

    #[test]
    fn the_authority_is_the_self_signed_end_of_the_chain() {
        let ca = authority("Wharf test authority");
        let chain = [leaf(&ca), ca.der().clone()];
        let found = find_authority(&chain).unwrap();
        assert_eq!(found.fingerprint, Fingerprint::of(ca.der()));
        assert!(found.subject.contains("Wharf test authority"), "{}", found.subject);
        assert!(reqwest::Certificate::from_pem(found.pem.as_bytes()).is_ok());
    }

    #[test]
    fn a_server_that_hides_its_authority_is_refused_by_the_authoritys_name() {
        let error = find_authority(&[leaf(&authority("Elsewhere"))]).unwrap_err();
        assert!(error.to_string().contains("Elsewhere"), "{error}");
        assert_eq!(crate::failure::explain(&error).exit, Exit::Refused);
    }
}
