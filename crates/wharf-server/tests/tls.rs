//! HTTPS: the certificate that the server makes, and one that it is given.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::path::Path;

use common::TestServer;
use jiff::{SignedDuration, Timestamp};
use wharf_server::{Config, http::tls};

#[tokio::test]
async fn https_is_served_with_an_authority_of_the_servers_own_that_stays() {
    let mut server = TestServer::start_with(|config| config.http = false).await;
    assert!(server.base.starts_with("https://"));
    assert_eq!(server.get("/whoami", &server.admin).await.status(), 200);
    let authority = server.running.as_ref().unwrap().authority.clone().unwrap().file;
    let before = std::fs::read(&authority).unwrap();
    let stranger = reqwest::Client::builder().no_proxy().build().unwrap();
    let refused = stranger.get(format!("{}/healthz", server.base)).send().await;
    assert!(refused.unwrap_err().is_connect(), "a stranger trusts the certificate");
    for key in ["tls/ca.key", "tls/server.key", "seal.key"] {
        use std::os::unix::fs::PermissionsExt;
        let path = server.app().config.data_dir.join(key);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{key}");
    }
    // The authority stays the same at the next start: clients have pinned it.
    server.stop().await;
    let config = wharf_server::Config { http: false, ..common::config(server.dir.path()) };
    let running = wharf_server::start(config).await.unwrap();
    assert_eq!(std::fs::read(&authority).unwrap(), before);
    running.stop().await;
}

/// Writes a certificate for 127.0.0.1 that signs itself, and its key.
fn write_certificate(dir: &Path, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (cert, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (cert, key)
}

#[tokio::test]
async fn a_given_certificate_is_served_and_one_without_its_key_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = write_certificate(dir.path(), "one");
    let (_, other_key) = write_certificate(dir.path(), "two");
    let with = |cert: &Path, key: &Path| Config {
        http: false,
        tls: wharf_server::config::Tls {
            cert_file: cert.to_owned(),
            key_file: key.to_owned(),
            names: Vec::new(),
        },
        ..common::config(dir.path())
    };
    let running = wharf_server::start(with(&cert, &key)).await.unwrap();
    assert!(running.authority.is_none());
    let pem = std::fs::read(&cert).unwrap();
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()])
        .build()
        .unwrap();
    let url = format!("https://127.0.0.1:{}/healthz", running.address.port());
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
    running.stop().await;
    for (cert, key) in [(&cert, &other_key), (&dir.path().join("none.pem"), &key), (&key, &cert)] {
        let error = wharf_server::start(with(cert, key)).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(error.hint().unwrap().contains("tls.cert_file"), "{:?}", error.hint());
    }
}

#[test]
fn the_certificate_is_made_anew_before_it_ends_or_when_a_name_is_added() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { http: false, ..common::config(dir.path()) };
    std::fs::create_dir_all(&config.data_dir).unwrap();
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let days = |n: i64| now.checked_add(SignedDuration::from_hours(24 * n)).unwrap();
    let make = |config: &Config, now| {
        let authority = tls::identity(config, "host", now).unwrap().authority.unwrap();
        let certificate = std::fs::read(config.data_dir.join("tls/server.pem")).unwrap();
        (authority.fingerprint, certificate)
    };
    let first = make(&config, now);
    assert_eq!(make(&config, days(300)), first, "made anew without need");
    let renewed = make(&config, days(340));
    assert_eq!(renewed.0, first.0, "the authority changed, which clients have pinned");
    assert_ne!(renewed.1, first.1, "not made anew before its end");
    // Without the authority's key a good certificate is still served, and no new authority made.
    let key = config.data_dir.join("tls/ca.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    assert_eq!(make(&config, days(340)), renewed);
    let error = tls::identity(&config, "host", days(700)).map(drop).unwrap_err();
    assert!(error.to_string().contains("ca.key"), "{error}");
    std::fs::write(&key, kept).unwrap();
    config.tls.names.push("wharf.example.org".to_owned());
    let named = make(&config, days(340));
    assert_eq!(named.0, first.0);
    assert_ne!(named.1, renewed.1, "a new name is missing in the certificate");
}
