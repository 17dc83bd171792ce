//! Whether somebody did not want the certificate that we show.

use std::{error::Error, io};

use rustls::{AlertDescription, Error as TlsError};

use crate::error::KubeError;

impl KubeError {
    /// Whether the other side ended the connection because of our own certificate, as of one that is over.
    ///
    /// An API server lets everybody in and answers with 401; what stands before it may be stricter. Its
    /// last word can be lost when it closes the connection at once: then this is an error like others.
    pub fn is_refusal_of_our_certificate(&self) -> bool {
        let KubeError::Unreachable { source, .. } = self else { return false };
        let mut next: Option<&(dyn Error + 'static)> = Some(source.as_ref());
        while let Some(error) = next {
            if tls_error(error).is_some_and(is_about_our_certificate) {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// What was wrong with TLS, if it was that. An [`io::Error`] does not show what is in it as its source.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    error.downcast_ref().or_else(|| {
        let inner = error.downcast_ref::<io::Error>()?.get_ref()?;
        tls_error(inner)
    })
}

/// An alert is the other side's word. What we say of its certificate is another error.
fn is_about_our_certificate(error: &TlsError) -> bool {
    let TlsError::AlertReceived(alert) = error else { return false };
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
    )
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Shutdown, SocketAddr, TcpListener},
        sync::Arc,
        thread,
    };

    use base64::{Engine, engine::general_purpose::STANDARD};
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd,
    };
    use rustls::{
        RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
        pki_types::PrivateKeyDer,
        server::WebPkiClientVerifier,
        version::{TLS12, TLS13},
    };

    use super::*;
    use crate::Cluster;

    const LONG_AGO: i32 = 2001;
    const IN_FUTURE: i32 = 4000;

    struct World {
        authority: CertifiedIssuer<'static, KeyPair>,
    }

    impl World {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
            Self { authority: authority.unwrap() }
        }

        /// A certificate that ends in that year, with its key.
        fn issue(&self, ends: i32) -> (rcgen::Certificate, KeyPair) {
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            (params.not_before, params.not_after) =
                (date_time_ymd(2000, 1, 1), date_time_ymd(ends, 1, 1));
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &self.authority).unwrap(), key)
        }

        /// Somebody who wants to see a good certificate, and answers one connection with 404.
        fn serve(&self, version: &'static SupportedProtocolVersion, ends: i32) -> SocketAddr {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.der().clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let (certificate, key) = self.issue(ends);
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_client_cert_verifier(verifier.build().unwrap())
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
                if connection.complete_io(&mut socket).is_ok() {
                    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
                    let _ = stream.read(&mut [0; 4096]);
                    let _ =
                        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                    return;
                }
                // The last word is to be heard, whatever else was sent.
                let _ = socket.shutdown(Shutdown::Write);
                while socket.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
            });
            address
        }

        /// What is heard of a server by who has a certificate that ends in that year.
        async fn ask(&self, server: SocketAddr, ends: i32) -> KubeError {
            let (certificate, key) = self.issue(ends);
            let [authority, certificate, key] =
                [self.authority.pem(), certificate.pem(), key.serialize_pem()]
                    .map(|text| STANDARD.encode(text));
            let kubeconfig = format!(
                "current-context: c\n\
                 contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: 'https://{server}', \
                 certificate-authority-data: {authority}}}}}]\n\
                 users: [{{name: u, user: {{client-certificate-data: {certificate}, \
                 client-key-data: {key}}}}}]\n"
            );
            let cluster = Cluster::from_kubeconfig(&kubeconfig).unwrap();
            cluster.observe_nodes().await.unwrap_err()
        }
    }

    #[tokio::test]
    async fn who_does_not_want_our_certificate_is_told_from_who_does_not_answer() {
        let world = World::new();
        for version in [&TLS12, &TLS13] {
            let refused = world.ask(world.serve(version, IN_FUTURE), LONG_AGO).await;
            assert!(refused.is_refusal_of_our_certificate(), "{version:?}: {refused:?}");
            let welcome = world.ask(world.serve(version, IN_FUTURE), IN_FUTURE).await;
            assert!(!welcome.is_refusal_of_our_certificate(), "{version:?}: {welcome:?}");
            assert_eq!(welcome.code(), Some(404), "{version:?}");
            // Here it is theirs that is over, and we who say so.
            let theirs = world.ask(world.serve(version, LONG_AGO), IN_FUTURE).await;
            assert!(matches!(theirs, KubeError::Unreachable { .. }), "{version:?}: {theirs:?}");
            assert!(!theirs.is_refusal_of_our_certificate(), "{version:?}: {theirs:?}");
        }
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let silent = world.ask(nobody, LONG_AGO).await;
        assert!(!silent.is_refusal_of_our_certificate(), "{silent:?}");
    }
}
