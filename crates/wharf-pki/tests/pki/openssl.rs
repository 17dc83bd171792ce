//! OpenSSL, which knows nothing of us, agrees.

use std::{path::Path, process::Command};

use jiff::Timestamp;
use wharf_pki::{Authority, ClusterPki};

use crate::{authority_of, made, small};

/// Runs `openssl verify` for a leaf in the directory, with further conditions.
fn verifies(dir: &Path, authority: Authority, leaf: &str, conditions: &[&str]) -> bool {
    let output = Command::new("openssl")
        .current_dir(dir)
        .args(["verify", "-x509_strict", "-CAfile", authority.name()])
        .args(conditions)
        .arg(leaf.replace('/', "_"))
        .output()
        .expect("openssl runs");
    output.status.success()
}

fn write(pki: &ClusterPki, dir: &Path) {
    wharf_testbed::debian::ensure("these tests", &[("openssl", "openssl")]).unwrap();
    for authority in Authority::ALL {
        let pair = pki.authority(authority);
        std::fs::write(dir.join(authority.name()), &pair.cert_pem).unwrap();
    }
    for (name, leaf) in &pki.leaves {
        std::fs::write(dir.join(name.replace('/', "_")), &leaf.cert_pem).unwrap();
    }
}

#[test]
fn openssl_accepts_each_leaf_for_its_purpose_and_refuses_it_for_others() {
    let pki = made(&small(), Timestamp::now());
    let dir = tempfile::tempdir().unwrap();
    write(&pki, dir.path());
    for name in pki.leaves.keys() {
        let purpose =
            |purpose| verifies(dir.path(), authority_of(name), name, &["-purpose", purpose]);
        let both = name.starts_with("etcd-server/") || name.starts_with("etcd-peer/");
        let serves = both || name.starts_with("apiserver/") || name.starts_with("kubelet-serving/");
        assert_eq!(purpose("sslserver"), serves, "{name} as a server");
        assert_eq!(purpose("sslclient"), both || !serves, "{name} as a client");
        for other in Authority::ALL.into_iter().filter(|a| *a != authority_of(name)) {
            assert!(!verifies(dir.path(), other, name, &[]), "{name} by {}", other.name());
        }
    }
}

#[test]
fn openssl_finds_the_names_under_which_servers_are_called() {
    let pki = made(&small(), Timestamp::now());
    let dir = tempfile::tempdir().unwrap();
    write(&pki, dir.path());
    let called = |leaf: &str, conditions: &[&str]| {
        verifies(dir.path(), authority_of(leaf), leaf, conditions)
    };
    for address in ["10.0.0.1", "127.0.0.1", "10.43.0.1"] {
        assert!(called("apiserver/n1", &["-verify_ip", address]), "{address}");
    }
    assert!(called("apiserver/n1", &["-verify_hostname", "kubernetes.default.svc.cluster.local"]));
    assert!(called("etcd-peer/n1", &["-verify_hostname", "n1"]));
    assert!(called("kubelet-serving/w1", &["-verify_ip", "10.0.0.2"]));
    assert!(!called("kubelet-serving/w1", &["-verify_ip", "10.0.0.1"]));
    assert!(!called("apiserver/n1", &["-verify_hostname", "kubernetes.evil"]));
}
