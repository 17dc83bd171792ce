//! What is good stays as it is; what is not is made anew.

use std::net::Ipv4Addr;

use jiff::{SignedDuration, Timestamp};
use wharf_core::cluster::{NodeRole, NodeSpec};
use wharf_pki::{Changes, ClusterPki, Leaf, PkiError};

use crate::{made, small};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

/// The names whose certificate differs between the two.
fn differing(before: &ClusterPki, after: &ClusterPki) -> Vec<String> {
    after
        .leaves
        .iter()
        .filter(|(name, leaf)| before.leaves.get(*name) != Some(leaf))
        .map(|(name, _)| name.clone())
        .collect()
}

#[test]
fn a_second_run_changes_nothing() {
    let mut pki = made(&small(), now());
    let before = pki.clone();
    let changes = pki.ensure(&small(), now() + days(1)).unwrap();
    assert_eq!(changes, Changes::default());
    assert!(changes.is_empty());
    assert_eq!(pki, before);
}

#[test]
fn a_further_node_gets_its_own_and_touches_no_other() {
    let mut pki = made(&small(), now());
    let before = pki.clone();
    let mut spec = small();
    spec.nodes.push(NodeSpec {
        name: "n2".to_owned(),
        address: Ipv4Addr::new(10, 0, 0, 3),
        roles: vec![NodeRole::Controlplane, NodeRole::Etcd],
        host_key: None,
    });
    let mut issued = pki.ensure(&spec, now()).unwrap().issued;
    issued.sort();
    let expected = [
        "agent/n2",
        "apiserver/n2",
        "etcd-peer/n2",
        "etcd-server/n2",
        "kube-proxy/n2",
        "kubelet-serving/n2",
        "kubelet/n2",
    ];
    assert_eq!(issued, expected);
    assert_eq!(differing(&before, &pki), expected);
}

#[test]
fn a_node_that_left_takes_its_certificates_along() {
    let mut pki = made(&small(), now());
    let mut spec = small();
    spec.nodes.pop();
    let changes = pki.ensure(&spec, now()).unwrap();
    assert_eq!(changes.issued, [""; 0]);
    let dropped = ["agent/w1", "kube-proxy/w1", "kubelet-serving/w1", "kubelet/w1"];
    assert_eq!(changes.dropped, dropped);
    assert!(matches!(pki.leaf(Leaf::Kubelet("w1")), Err(PkiError::Missing { .. })));
}

#[test]
fn a_changed_address_makes_anew_what_names_it() {
    let mut pki = made(&small(), now());
    let before = pki.clone();
    let mut spec = small();
    spec.nodes[0].address = Ipv4Addr::new(10, 0, 0, 9);
    pki.ensure(&spec, now()).unwrap();
    let expected = ["apiserver/n1", "etcd-peer/n1", "etcd-server/n1", "kubelet-serving/n1"];
    assert_eq!(differing(&before, &pki), expected);
}

#[test]
fn leaves_are_renewed_when_less_than_a_third_of_their_life_is_left() {
    let mut pki = made(&small(), now());
    assert!(pki.ensure(&small(), now() + days(243)).unwrap().is_empty());
    let before = pki.clone();
    let issued = pki.ensure(&small(), now() + days(244)).unwrap().issued;
    assert_eq!(issued.len(), pki.leaves.len());
    assert_eq!(differing(&before, &pki).len(), pki.leaves.len());
    // What must never change with them.
    assert_eq!(pki.kubernetes_ca, before.kubernetes_ca);
    assert_eq!(pki.service_account, before.service_account);
    assert_eq!(pki.encryption_key, before.encryption_key);
}

#[test]
fn leaves_from_the_future_of_a_wrong_clock_are_made_anew() {
    let mut pki = ClusterPki::new(now()).unwrap();
    pki.ensure(&small(), now() + days(30)).unwrap();
    let issued = pki.ensure(&small(), now()).unwrap().issued;
    assert_eq!(issued.len(), pki.leaves.len());
}

#[test]
fn leaves_of_another_authority_and_damaged_ones_are_made_anew() {
    let mut pki = made(&small(), now());
    pki.etcd_ca = ClusterPki::new(now()).unwrap().etcd_ca;
    pki.leaves.get_mut("kube-admin").unwrap().cert_pem = "nonsense".to_owned();
    let mut issued = pki.ensure(&small(), now()).unwrap().issued;
    issued.sort();
    let expected = [
        "apiserver-etcd-client",
        "etcd-healthcheck-client",
        "etcd-peer/n1",
        "etcd-server/n1",
        "kube-admin",
    ];
    assert_eq!(issued, expected);
}

#[test]
fn no_leaf_outlives_its_authority_and_renewal_stays_calm_near_its_end() {
    let mut pki = ClusterPki::new(now()).unwrap();
    let late = now() + days(3650 - 30);
    pki.ensure(&small(), late).unwrap();
    assert_eq!(pki.expiry().unwrap().at, now() + days(3650));
    assert!(pki.ensure(&small(), late + days(1)).unwrap().is_empty());
}

#[test]
fn an_authority_that_ended_is_an_error_that_changes_nothing() {
    let mut pki = made(&small(), now());
    let before = pki.clone();
    let error = pki.ensure(&small(), now() + days(3651)).unwrap_err();
    assert!(matches!(error, PkiError::AuthorityEnded { .. }), "{error}");
    assert_eq!(pki, before);
}

#[test]
fn the_first_to_end_is_named() {
    let mut pki = ClusterPki::new(now()).unwrap();
    assert_eq!(pki.expiry().unwrap().name, "kubernetes-ca");
    let mut spec = small();
    spec.nodes.pop();
    pki.ensure(&spec, now()).unwrap();
    pki.leaves.retain(|name, _| name == "scheduler");
    pki.ensure(&spec, now() + days(10)).unwrap();
    let expiry = pki.expiry().unwrap();
    assert_eq!((expiry.name.as_str(), expiry.at), ("scheduler", now() + days(365)));
}
