//! Every certificate is what the components expect of it.

use std::{collections::BTreeSet, net::Ipv4Addr};

use jiff::Timestamp;
use wharf_core::cluster::NodeRole;
use wharf_pki::{Authority, ClusterPki};
use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    pem::{Pem, parse_x509_pem},
};

use crate::{authority_of, made, small, spec};

const CLIENT: (bool, bool) = (false, true);
const SERVER: (bool, bool) = (true, false);
const BOTH: (bool, bool) = (true, true);

type Row =
    (&'static str, &'static str, Option<&'static str>, (bool, bool), &'static [&'static str]);

/// Name, common name, organization, usages, names and addresses.
const TABLE: &[Row] = &[
    (
        "apiserver/n1",
        "kube-apiserver",
        None,
        SERVER,
        &[
            "10.0.0.1",
            "10.43.0.1",
            "127.0.0.1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "n1",
        ],
    ),
    ("apiserver-etcd-client", "kube-apiserver-etcd-client", None, CLIENT, &[]),
    ("apiserver-kubelet-client", "kube-apiserver-kubelet-client", None, CLIENT, &[]),
    ("controller-manager", "system:kube-controller-manager", None, CLIENT, &[]),
    ("etcd-healthcheck-client", "kube-etcd-healthcheck-client", None, CLIENT, &[]),
    ("etcd-peer/n1", "n1", None, BOTH, &["10.0.0.1", "127.0.0.1", "localhost", "n1"]),
    ("etcd-server/n1", "n1", None, BOTH, &["10.0.0.1", "127.0.0.1", "localhost", "n1"]),
    ("front-proxy-client", "front-proxy-client", None, CLIENT, &[]),
    ("agent/n1", "wharf:agent:n1", Some("wharf:agents"), CLIENT, &[]),
    ("agent/w1", "wharf:agent:w1", Some("wharf:agents"), CLIENT, &[]),
    ("kube-admin", "kube-admin", Some("system:masters"), CLIENT, &[]),
    ("kube-proxy/n1", "system:kube-proxy", None, CLIENT, &[]),
    ("kube-proxy/w1", "system:kube-proxy", None, CLIENT, &[]),
    ("kubelet/n1", "system:node:n1", Some("system:nodes"), CLIENT, &[]),
    ("kubelet/w1", "system:node:w1", Some("system:nodes"), CLIENT, &[]),
    ("kubelet-serving/n1", "system:node:n1", Some("system:nodes"), SERVER, &["10.0.0.1", "n1"]),
    ("kubelet-serving/w1", "system:node:w1", Some("system:nodes"), SERVER, &["10.0.0.2", "w1"]),
    ("scheduler", "system:kube-scheduler", None, CLIENT, &[]),
];

#[test]
fn every_leaf_has_its_subject_usages_and_names_and_there_is_no_other() {
    let pki = made(&small(), Timestamp::now());
    let names: BTreeSet<&str> = TABLE.iter().map(|row| row.0).collect();
    assert_eq!(pki.leaves.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
    for (name, common_name, organization, usages, sans) in TABLE {
        let pem = pem(&pki.leaves[*name].cert_pem);
        let leaf = pem.parse_x509().unwrap();
        assert_eq!(common_names(&leaf), [*common_name], "{name}");
        let organizations: Vec<_> =
            leaf.subject().iter_organization().map(|o| o.as_str().unwrap()).collect();
        assert_eq!(organizations, organization.iter().copied().collect::<Vec<_>>(), "{name}");
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert_eq!((usage.server_auth, usage.client_auth), *usages, "{name}");
        assert_eq!(sans_of(&leaf), sans.iter().map(|s| (*s).to_owned()).collect(), "{name}");
        assert!(!leaf.is_ca(), "{name}");
        assert!(leaf.key_usage().unwrap().unwrap().value.digital_signature(), "{name}");
    }
}

#[test]
fn each_leaf_is_signed_by_its_authority_alone() {
    let pki = made(&small(), Timestamp::now());
    for (name, leaf) in &pki.leaves {
        for authority in Authority::ALL {
            let signer = pem(&pki.authority(authority).cert_pem);
            let signer = signer.parse_x509().unwrap();
            let leaf = pem(&leaf.cert_pem);
            let verified = leaf.parse_x509().unwrap().verify_signature(Some(signer.public_key()));
            let its_own = authority == authority_of(name);
            assert_eq!(verified.is_ok(), its_own, "{name} by {}", authority.name());
        }
    }
}

#[test]
fn authorities_last_ten_years_leaves_one_and_both_began_an_hour_ago() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let pki = made(&small(), now);
    let day = 24 * 3600;
    for authority in Authority::ALL {
        let certificate = pem(&pki.authority(authority).cert_pem);
        let certificate = certificate.parse_x509().unwrap();
        assert!(certificate.is_ca());
        assert_eq!(common_names(&certificate), [authority.name()]);
        assert_eq!(validity(&certificate), (1_800_000_000 - 3600, 1_800_000_000 + 3650 * day));
    }
    for leaf in pki.leaves.values() {
        let leaf = pem(&leaf.cert_pem);
        let found = validity(&leaf.parse_x509().unwrap());
        assert_eq!(found, (1_800_000_000 - 3600, 1_800_000_000 + 365 * day));
    }
}

#[test]
fn no_two_certificates_share_a_key_and_each_goes_with_its_own() {
    let pki = made(&small(), Timestamp::now());
    let authorities = Authority::ALL.map(|authority| pki.authority(authority));
    let mut keys = BTreeSet::new();
    for pair in pki.leaves.values().chain(authorities) {
        let certificate = pem(&pair.cert_pem);
        let certificate = certificate.parse_x509().unwrap();
        let key = rcgen::KeyPair::from_pem(pair.key_pem.expose()).unwrap();
        assert_eq!(key.algorithm(), &rcgen::PKCS_ECDSA_P256_SHA256);
        let public = certificate.public_key().subject_public_key.data.to_vec();
        assert_eq!(key.public_key_raw(), public);
        assert!(keys.insert(public));
    }
}

#[test]
fn etcd_certificates_go_to_the_nodes_with_that_role() {
    let at = |n| Ipv4Addr::new(10, 0, 0, n);
    let spec = spec(
        "c",
        &[
            ("n1", at(1), &[NodeRole::Controlplane]),
            ("w1", at(2), &[NodeRole::Etcd, NodeRole::Worker]),
            ("e1", at(3), &[NodeRole::Edge]),
        ],
    );
    let pki = made(&spec, Timestamp::now());
    let starting = |start: &str| -> Vec<_> {
        pki.leaves.keys().filter(|name| name.starts_with(start)).cloned().collect()
    };
    assert_eq!(starting("etcd-server/"), ["etcd-server/w1"]);
    assert_eq!(starting("etcd-peer/"), ["etcd-peer/w1"]);
    assert_eq!(starting("apiserver/"), ["apiserver/n1"]);
    assert_eq!(starting("kubelet/"), ["kubelet/e1", "kubelet/n1", "kubelet/w1"]);
}

#[test]
fn nothing_secret_is_in_the_debug_output() {
    let pki = made(&small(), Timestamp::now());
    let shown = format!("{pki:?} {pki:#?}");
    assert!(!shown.contains("PRIVATE KEY"), "{shown}");
    assert!(shown.contains("BEGIN CERTIFICATE"));
    for secret in [&pki.encryption_key, &pki.cluster_token] {
        assert!(!secret.expose().is_empty());
        assert!(!shown.contains(secret.expose()));
    }
}

#[test]
fn what_was_stored_comes_back_whole() {
    let pki = made(&small(), Timestamp::now());
    let stored = serde_json::to_string(&pki).unwrap();
    assert_eq!(serde_json::from_str::<ClusterPki>(&stored).unwrap(), pki);
}

#[test]
fn two_clusters_have_nothing_in_common() {
    let (one, two) = (made(&small(), Timestamp::now()), made(&small(), Timestamp::now()));
    assert_ne!(one.kubernetes_ca, two.kubernetes_ca);
    assert_ne!(one.encryption_key, two.encryption_key);
    assert_ne!(one.cluster_token, two.cluster_token);
    assert_ne!(one.etcd_token, two.etcd_token);
    assert_ne!(one.service_account.public_pem, two.service_account.public_pem);
}

fn pem(text: &str) -> Pem {
    parse_x509_pem(text.as_bytes()).unwrap().1
}

fn common_names<'a>(certificate: &'a X509Certificate<'_>) -> Vec<&'a str> {
    certificate.subject().iter_common_name().map(|name| name.as_str().unwrap()).collect()
}

fn validity(certificate: &X509Certificate<'_>) -> (i64, i64) {
    let validity = certificate.validity();
    (validity.not_before.timestamp(), validity.not_after.timestamp())
}

fn sans_of(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let names = certificate.subject_alternative_name().unwrap();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    names
        .map(|name| match name {
            GeneralName::DNSName(name) => (*name).to_owned(),
            GeneralName::IPAddress(bytes) => {
                Ipv4Addr::from(<[u8; 4]>::try_from(*bytes).unwrap()).to_string()
            }
            other => panic!("{other:?}"),
        })
        .collect()
}
