//! Keys, host keys, and hosts that are not there.

use std::fs;
use std::sync::Arc;

use tempfile::TempDir;
use wharf_ssh::{Command, HostKey, Key, KeyError, Limits, Session, SshError, Target};

use crate::server::{Server, keygen};

/// As people have them: kind, format and passphrase.
const KEYS: [(&str, &str, &str); 10] = [
    ("ed25519", "RFC4716", ""),
    ("ed25519", "RFC4716", "open sesame"),
    ("ecdsa", "RFC4716", ""),
    ("ecdsa", "PKCS8", ""),
    ("ecdsa", "PKCS8", "open sesame"),
    ("ecdsa", "PEM", ""),
    ("rsa", "RFC4716", "open sesame"),
    ("rsa", "PKCS8", ""),
    ("rsa", "PEM", ""),
    ("rsa", "PEM", "open sesame"),
];

#[tokio::test]
async fn keys_of_every_kind_and_format_open_a_host() {
    let server = Server::start();
    let keys = TempDir::new().unwrap();
    for (kind, format, passphrase) in KEYS {
        let name = format!("{kind}-{format}-{}", passphrase.len());
        let path = keys.path().join(&name);
        let bits = if kind == "rsa" { &["-b", "2048"][..] } else { &[] };
        let pem = keygen(&path, &[&["-t", kind, "-m", format], bits].concat(), passphrase);
        let key = Key::parse(&pem, passphrase).unwrap_or_else(|error| panic!("{name}: {error}"));
        server.trust(&key.public_key());
        let target = Target { key: Arc::new(key), ..server.target() };
        let session = Session::connect(&target, &Limits::default()).await;
        let session = session.unwrap_or_else(|error| panic!("{name}: {error}\n{}", server.log()));
        let output = session.run(&Command::new(["echo", "in"])).await.unwrap();
        assert_eq!(output.stdout, b"in\n", "{name}");
        if !passphrase.is_empty() {
            assert_eq!(Key::parse(&pem, "").unwrap_err(), KeyError::Encrypted, "{name}");
            assert_eq!(Key::parse(&pem, "no").unwrap_err(), KeyError::WrongPassphrase, "{name}");
        }
    }
    // SHA-1 signatures are never made.
    assert!(!server.log().contains("ssh-rsa "), "{}", server.log());
}

#[test]
fn what_is_no_private_key_is_told_apart() {
    let dir = TempDir::new().unwrap();
    let pem = keygen(&dir.path().join("a"), &["-t", "ed25519"], "");
    let public = fs::read_to_string(dir.path().join("a.pub")).unwrap();
    let cut = &pem[..pem.len() / 2];
    for (text, expected) in [
        ("", KeyError::NotAKey),
        ("hello", KeyError::NotAKey),
        (cut, KeyError::NotAKey),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", KeyError::NotAKey),
        (
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
            KeyError::NotAKey,
        ),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", KeyError::NotAKey),
        (&public, KeyError::PublicKey),
    ] {
        assert_eq!(Key::parse(text, "").unwrap_err(), expected, "{text}");
    }
    let putty = Key::parse("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n", "");
    assert!(matches!(putty, Err(KeyError::Unsupported(_))));
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: DES-EDE3-CBC,0011223344556677\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    let KeyError::Unsupported(why) = Key::parse(old, "x").unwrap_err() else { panic!() };
    assert!(why.contains("DES-EDE3-CBC"), "{why}");
}

#[test]
fn a_key_is_read_as_it_was_pasted_and_shows_nothing_secret() {
    let dir = TempDir::new().unwrap();
    let pem = keygen(&dir.path().join("a"), &["-t", "ed25519"], "");
    let pasted: String = pem.lines().map(|line| format!("  {line} \r\n")).collect();
    let key = Key::parse(&format!("\n\n{pasted}\n"), "not needed").unwrap();
    let public = fs::read_to_string(dir.path().join("a.pub")).unwrap();
    assert_eq!(format!("{} somebody@somewhere\n", key.public_key()), public);
    let shown = format!("{key:?}");
    assert!(shown.starts_with("Key(ssh-ed25519 SHA256:"), "{shown}");
    assert!(shown.len() < 80, "{shown}");
}

#[tokio::test]
async fn a_key_that_the_host_does_not_know_is_refused_with_the_users_name() {
    let server = Server::start();
    let dir = TempDir::new().unwrap();
    for (name, arguments) in [("e", &["-t", "ed25519"][..]), ("r", &["-t", "rsa", "-b", "2048"])] {
        let pem = keygen(&dir.path().join(name), arguments, "");
        let key = Arc::new(Key::parse(&pem, "").unwrap());
        let target = Target { key, ..server.target() };
        let error = Session::connect(&target, &Limits::default()).await.unwrap_err();
        let SshError::AuthRefused { host, user } = &error else { panic!("{error:?}") };
        assert_eq!((host.as_str(), user.as_str()), ("host-a", "root"));
        assert!(error.hint().unwrap().contains("authorized_keys"));
        let target = Target { user: "no-such-user".to_owned(), ..server.target() };
        let error = Session::connect(&target, &Limits::default()).await.unwrap_err();
        assert!(matches!(error, SshError::AuthRefused { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_after_a_refused_key_has_refused_it() {
    let server = Server::start_with("MaxAuthTries 1");
    let dir = TempDir::new().unwrap();
    let pem = keygen(&dir.path().join("a"), &["-t", "ed25519"], "");
    let target = Target { key: Arc::new(Key::parse(&pem, "").unwrap()), ..server.target() };
    let error = Session::connect(&target, &Limits::default()).await.unwrap_err();
    assert!(matches!(error, SshError::AuthRefused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_changed_host_key_is_refused_before_the_log_in() {
    let server = Server::start();
    let other = TempDir::new().unwrap();
    keygen(&other.path().join("host"), &["-t", "ed25519"], "");
    let text = fs::read_to_string(other.path().join("host.pub")).unwrap();
    let pinned = HostKey::parse(&text).unwrap();
    let by_fingerprint = HostKey::parse(&pinned.fingerprint()).unwrap();
    for pinned in [pinned, by_fingerprint] {
        let target = Target { pinned: Some(pinned.clone()), ..server.target() };
        let error = Session::connect(&target, &Limits::default()).await.unwrap_err();
        let SshError::HostKeyChanged { expected, found, .. } = error else { panic!("{error:?}") };
        assert_eq!(expected, pinned.fingerprint());
        assert_eq!(found, server.host_key("ed25519").fingerprint());
    }
    server.wait_until_nobody_is_connected();
    let log = server.log();
    assert!(log.contains("Connection from"), "{log}");
    assert!(!log.contains("publickey") && !log.contains("root"), "{log}");
}

#[tokio::test]
async fn any_of_a_hosts_keys_can_be_pinned_and_the_shown_one_is_reported() {
    let server = Server::start();
    assert_eq!(server.connect().await.host_key(), &server.host_key("ed25519"));
    for kind in ["ed25519", "ecdsa"] {
        let key = server.host_key(kind);
        let fingerprint = HostKey::parse(&key.fingerprint()).unwrap();
        for pinned in [key.clone(), fingerprint] {
            let target = Target { pinned: Some(pinned), ..server.target() };
            let session = Session::connect(&target, &Limits::default()).await.unwrap();
            assert_eq!(session.host_key(), &key);
        }
    }
}

#[test]
fn host_keys_match_by_their_bytes_or_their_fingerprint() {
    let dir = TempDir::new().unwrap();
    let make = |name: &str| {
        keygen(&dir.path().join(name), &["-t", "ed25519"], "");
        let text = fs::read_to_string(dir.path().join(format!("{name}.pub"))).unwrap();
        HostKey::parse(&text).unwrap()
    };
    let (a, b) = (make("a"), make("b"));
    let a_print = HostKey::parse(&a.fingerprint()).unwrap();
    assert!(a.matches(&a) && a_print.matches(&a));
    assert!(!a.matches(&b) && !a_print.matches(&b));
    assert!(!a.as_str().contains("somebody"), "the comment is no part of the key");
    for wrong in ["", "SHA256:", "SHA256:xyz", "ssh-ed25519", "ssh-ed25519 AAAA", "MD5:00:11"] {
        assert!(HostKey::parse(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let server = Server::start();
    let port = wharf_testbed::process::free_port().unwrap();
    let error = Session::connect(&Target { port, ..server.target() }, &Limits::default()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, SshError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.host(), "host-a");
}
