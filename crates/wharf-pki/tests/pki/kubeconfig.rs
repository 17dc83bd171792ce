//! Kubeconfigs name the right servers and hold the right certificates.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde_json::Value;
use wharf_core::cluster::NodeRole;
use wharf_pki::{ClusterPki, Kubeconfig, Leaf, PkiError};

use crate::{made, small, spec};

fn read(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[test]
fn the_administrator_reaches_every_controlplane_node_and_the_first_by_default() {
    let at = |n| Ipv4Addr::new(10, 0, 0, n);
    let roles: &[NodeRole] = &[NodeRole::Controlplane, NodeRole::Etcd];
    let spec = spec(
        "c",
        &[("w1", at(1), &[NodeRole::Worker]), ("n1", at(2), roles), ("n2", at(3), roles)],
    );
    let pki = made(&spec, Timestamp::now());
    let config = read(&pki.kubeconfig(&spec, Kubeconfig::Admin).unwrap());
    assert_eq!(config["apiVersion"], "v1");
    assert_eq!(config["kind"], "Config");
    assert_eq!(config["current-context"], "c");
    assert_eq!(names(&config["contexts"]), ["c", "c-n1", "c-n2"]);
    assert_eq!(names(&config["clusters"]), ["c", "c-n1", "c-n2"]);
    assert_eq!(names(&config["users"]), ["kube-admin"]);
    let servers: Vec<_> =
        (0..3).map(|n| config["clusters"][n]["cluster"]["server"].as_str().unwrap()).collect();
    assert_eq!(
        servers,
        ["https://10.0.0.2:6443", "https://10.0.0.2:6443", "https://10.0.0.3:6443"]
    );
    for n in 0..3 {
        let context = &config["contexts"][n];
        assert_eq!(context["context"]["cluster"], context["name"]);
        assert_eq!(context["context"]["user"], "kube-admin");
    }
}

#[test]
fn each_component_calls_the_server_beside_it_with_its_own_certificate() {
    let spec = small();
    let pki = made(&spec, Timestamp::now());
    let cases = [
        (Kubeconfig::ControllerManager, Leaf::ControllerManager, "https://127.0.0.1:6443"),
        (Kubeconfig::Scheduler, Leaf::Scheduler, "https://127.0.0.1:6443"),
        (Kubeconfig::Kubelet("w1"), Leaf::Kubelet("w1"), "https://127.0.0.1:6444"),
        (Kubeconfig::KubeProxy("n1"), Leaf::KubeProxy("n1"), "https://127.0.0.1:6444"),
    ];
    for (who, leaf, server) in cases {
        let config = read(&pki.kubeconfig(&spec, who).unwrap());
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        assert_eq!(cluster["server"], server);
        let pair = pki.leaf(leaf).unwrap();
        let data = [
            (&cluster["certificate-authority-data"], pki.kubernetes_ca.cert_pem.as_str()),
            (&user["client-certificate-data"], pair.cert_pem.as_str()),
            (&user["client-key-data"], pair.key_pem.expose()),
        ];
        for (encoded, pem) in data {
            assert_eq!(decode(encoded.as_str().unwrap()), pem);
        }
    }
}

#[test]
fn a_name_that_yaml_could_take_for_something_else_stays_a_name() {
    let mut spec = small();
    for name in ["on", "no", "123", "1e3", "null", "0x1f"] {
        spec.name = name.to_owned();
        let yaml = made(&spec, Timestamp::now()).kubeconfig(&spec, Kubeconfig::Admin).unwrap();
        assert_eq!(read(&yaml)["current-context"], name);
        let line = yaml.lines().find(|line| line.starts_with("current-context")).unwrap();
        assert!(line.ends_with(['"', '\'']), "{line}");
    }
}

#[test]
fn without_a_controlplane_or_a_certificate_there_is_no_kubeconfig() {
    let mut spec = small();
    let empty = ClusterPki::new(Timestamp::now()).unwrap();
    let missing = empty.kubeconfig(&spec, Kubeconfig::Admin).unwrap_err();
    assert!(matches!(missing, PkiError::Missing { .. }));
    spec.nodes.remove(0);
    let pki = made(&spec, Timestamp::now());
    let error = pki.kubeconfig(&spec, Kubeconfig::Admin).unwrap_err();
    assert!(matches!(error, PkiError::NoControlplane));
}

fn decode(text: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}
