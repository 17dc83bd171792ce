//! Every rule, one request each.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::*;
use crate::cluster::{NetworkPlugin, NodeRecord};

const KEY: &str = "a good key";

fn node(name: &str, address: &str, roles: &[&str]) -> NodeDraft {
    NodeDraft {
        name: Some(name.to_owned()),
        address: Some(address.to_owned()),
        roles: Some(roles.iter().map(|role| (*role).to_owned()).collect()),
        host_key: None,
    }
}

/// A request that only says what must be said.
fn least() -> Draft {
    Draft {
        name: Some("demo".to_owned()),
        nodes: Some(vec![
            node("m1", "10.0.0.11", &["controlplane"]),
            node("w1", "10.0.0.21", &["worker"]),
        ]),
        single_cloud_address: Some("10.0.0.1:8443".to_owned()),
        ssh_user: Some("root".to_owned()),
        ssh_key: Some(KEY.to_owned()),
        ..Draft::default()
    }
}

fn with(change: impl FnOnce(&mut Draft)) -> Draft {
    let mut draft = least();
    change(&mut draft);
    draft
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn around<T>(check: impl FnOnce(&Surroundings<'_>) -> T) -> T {
    let versions = ["1.36.3".to_owned(), "1.35.4".to_owned()];
    let taken = BTreeMap::from([(Ipv4Addr::new(10, 0, 0, 99), "other".to_owned())]);
    let check_key = |key: &str, passphrase: &str| match (key.trim(), passphrase) {
        (_, "wrong") => Err("the passphrase does not open the key".to_owned()),
        (KEY, _) => Ok(()),
        _ => Err("this is not a private key".to_owned()),
    };
    check(&Surroundings { kubernetes_versions: &versions, taken: &taken, check_key: &check_key })
}

fn created(draft: &Draft) -> Result<Checked, Vec<Fault>> {
    around(|around| validate_create(draft, around))
}

fn good(draft: &Draft) -> Checked {
    created(draft).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// The fields and codes of all faults, and that each speaks.
fn faults(result: Result<Checked, Vec<Fault>>) -> Vec<(String, FaultCode)> {
    let faults = result.err().unwrap_or_default();
    assert!(faults.iter().all(|fault| !fault.message.is_empty()));
    faults.into_iter().map(|fault| (fault.field, fault.code)).collect()
}

#[track_caller]
fn refuses(draft: &Draft, field: &str, code: FaultCode) {
    assert_eq!(faults(created(draft)), [(field.to_owned(), code)]);
}

#[test]
fn the_least_request_gets_every_default() {
    let Checked { spec, secrets } = good(&least());
    assert_eq!(secrets.ssh_key, KEY);
    assert_eq!(spec.cluster_cidr.to_string(), "10.42.0.0/16");
    assert_eq!(spec.service_cidr.to_string(), "10.43.0.0/16");
    assert_eq!(spec.cluster_dns_service_ip.to_string(), "10.43.0.10");
    assert_eq!(spec.cluster_domain, "cluster.local");
    assert_eq!(spec.cluster_upstream_dns.len(), 2);
    assert_eq!(spec.network.plugin, NetworkPlugin::Routed);
    assert_eq!((spec.ssh.port, spec.kubernetes_version.as_str()), (22, "1.36.3"));
    assert!(spec.etcd_implied);
    assert_eq!(spec.nodes[0].roles, [NodeRole::Controlplane, NodeRole::Etcd]);
    assert_eq!(spec.nodes[1].roles, [NodeRole::Worker]);
}

#[test]
fn texts_are_trimmed_and_empty_ones_are_defaults() {
    let spec = good(&with(|draft| {
        draft.name = some(" demo ");
        draft.ssh_user = some("\troot\n");
        draft.ssh_port = some(" 2222 ");
        draft.cluster_domain = some("  ");
        draft.kubernetes_version = some(" v1.35.4 ");
        draft.nodes.as_mut().unwrap()[0] = node(" m1 ", " 10.0.0.11 ", &[" controlplane "]);
        draft.ssh_jump_host = some(" 10.0.0.2 ");
    }))
    .spec;
    assert_eq!((spec.name.as_str(), spec.ssh.user.as_str(), spec.ssh.port), ("demo", "root", 2222));
    assert_eq!(
        (spec.cluster_domain.as_str(), spec.nodes[0].name.as_str()),
        ("cluster.local", "m1")
    );
    assert_eq!(spec.kubernetes_version, "1.35.4");
    let jump = spec.ssh.jump.unwrap();
    assert_eq!((jump.user.as_str(), jump.host.as_str(), jump.port), ("root", "10.0.0.2", 22));
    assert_eq!(jump.host_key, None);
}

#[test]
fn an_empty_request_is_told_everything_at_once() {
    use FaultCode::MissingRequired;
    let missing = |field: &str| (field.to_owned(), MissingRequired);
    assert_eq!(
        faults(created(&Draft::default())),
        ["name", "nodes", "singleCloudAddress", "sshUser", "sshKey"].map(missing)
    );
}

#[test]
fn single_settings_are_refused_by_their_rule() {
    use FaultCode::*;
    type Change = fn(&mut Draft);
    let long = "a".repeat(254);
    refuses(&with(|draft| draft.name = Some(long.clone())), "name", MaxLengthExceeded);
    let cases: [(Change, &str, FaultCode); 37] = [
        (|d| d.name = some(""), "name", NotNullable),
        (|d| d.name = some("Demo"), "name", InvalidFormat),
        (|d| d.name = some("a_b"), "name", InvalidFormat),
        (|d| d.name = some("a..b"), "name", InvalidFormat),
        (|d| d.nodes = Some(vec![]), "nodes", NotNullable),
        (|d| d.single_cloud_address = some(" "), "singleCloudAddress", NotNullable),
        (|d| d.single_cloud_address = some("10.0.0.1"), "singleCloudAddress", InvalidFormat),
        (|d| d.single_cloud_address = some("10.0.0.1:0"), "singleCloudAddress", InvalidFormat),
        (
            |d| d.single_cloud_address = some("wharf.example:8443"),
            "singleCloudAddress",
            InvalidFormat,
        ),
        (|d| d.single_cloud_address = some("10.42.3.1:80"), "singleCloudAddress", InvalidOption),
        (|d| d.ssh_user = some(""), "sshUser", NotNullable),
        (|d| d.ssh_user = some("a b"), "sshUser", InvalidFormat),
        (|d| d.ssh_key = some(" \n"), "sshKey", NotNullable),
        (|d| d.ssh_key = some("nonsense"), "sshKey", InvalidFormat),
        (|d| d.ssh_port = some("0"), "sshPort", InvalidFormat),
        (|d| d.ssh_port = some("65536"), "sshPort", InvalidFormat),
        (|d| d.ssh_port = some("ssh"), "sshPort", InvalidFormat),
        (|d| d.ssh_port = some("+22"), "sshPort", InvalidFormat),
        (|d| d.ssh_jump_host = some("root@:22"), "sshJumpHost", InvalidFormat),
        (|d| d.ssh_jump_host = some("host:x"), "sshJumpHost", InvalidFormat),
        (|d| d.ssh_jump_host_key = some("SHA256:x"), "sshJumpHostKey", InvalidFormat),
        (|d| d.cluster_cidr = some("10.42.0.0"), "clusterCidr", InvalidFormat),
        (|d| d.cluster_cidr = some("10.42.0.1/16"), "clusterCidr", InvalidFormat),
        (|d| d.cluster_cidr = some("127.0.0.0/16"), "clusterCidr", InvalidOption),
        (|d| d.cluster_cidr = some("10.42.0.0/29"), "clusterCidr", InvalidOption),
        (|d| d.service_cidr = some("fd00::/64"), "serviceCidr", InvalidFormat),
        (|d| d.service_cidr = some("10.42.128.0/17"), "serviceCidr", InvalidOption),
        (|d| d.service_cidr = some("10.43.0.0/30"), "serviceCidr", InvalidOption),
        (|d| d.cluster_dns_service_ip = some("dns"), "clusterDNSServiceIP", InvalidFormat),
        (|d| d.cluster_dns_service_ip = some("10.44.0.10"), "clusterDNSServiceIP", InvalidOption),
        (|d| d.cluster_dns_service_ip = some("10.43.0.1"), "clusterDNSServiceIP", InvalidOption),
        (|d| d.cluster_domain = some("Cluster_Local"), "clusterDomain", InvalidFormat),
        (
            |d| d.cluster_upstream_dns = Some(vec!["8.8.8".to_owned()]),
            "clusterUpstreamDNS[0]",
            InvalidFormat,
        ),
        (|d| d.kubernetes_version = some("1.20.0"), "kubernetesVersion", InvalidOption),
        (|d| d.unsupported = vec!["loadBalance"], "loadBalance", InvalidOption),
        (
            |d| d.network = Some(NetworkDraft { plugin: some("calico"), iface: None }),
            "network.plugin",
            InvalidOption,
        ),
        (
            |d| d.network = Some(NetworkDraft { plugin: None, iface: some("a/b") }),
            "network.iface",
            InvalidFormat,
        ),
    ];
    for (change, field, code) in cases {
        refuses(&with(change), field, code);
    }
    refuses(&with(|d| d.ssh_user = Some("u".repeat(128))), "sshUser", MaxLengthExceeded);
    let many = vec!["1.1.1.1".to_owned(); 16];
    refuses(
        &with(|d| d.cluster_upstream_dns = Some(many)),
        "clusterUpstreamDNS",
        MaxLengthExceeded,
    );
}

#[test]
fn plugins_are_known_by_our_names_and_flannel_is_vxlan() {
    for (name, plugin) in [
        ("routed", NetworkPlugin::Routed),
        ("vxlan", NetworkPlugin::Vxlan),
        ("flannel", NetworkPlugin::Vxlan),
        ("none", NetworkPlugin::None),
        ("", NetworkPlugin::Routed),
    ] {
        let network = Some(NetworkDraft { plugin: some(name), iface: some("eth1") });
        let spec = good(&with(|draft| draft.network = network)).spec;
        assert_eq!(spec.network.plugin, plugin, "{name}");
        assert_eq!(spec.network.iface.as_deref(), Some("eth1"));
    }
    let calico = Some(NetworkDraft { plugin: some("calico"), iface: None });
    let found = created(&with(|draft| draft.network = calico)).unwrap_err();
    assert!(found[0].message.contains("[routed vxlan none]"), "{}", found[0].message);
}

#[test]
fn the_dns_service_follows_its_range() {
    for (range, address) in [("10.96.0.0/12", "10.96.0.10"), ("10.96.0.0/29", "10.96.0.2")] {
        let spec = good(&with(|draft| draft.service_cidr = some(range))).spec;
        assert_eq!(spec.cluster_dns_service_ip.to_string(), address);
    }
}

#[test]
fn nodes_are_refused_by_their_rule() {
    use FaultCode::*;
    type Change = fn(&mut Vec<NodeDraft>);
    let cases: [(Change, &str, FaultCode); 24] = [
        (|n| n[1].name = None, "nodes[1].name", MissingRequired),
        (|n| n[1].name = some(" "), "nodes[1].name", NotNullable),
        (|n| n[1].name = some("W1"), "nodes[1].name", InvalidFormat),
        (|n| n[1].name = some("w_1"), "nodes[1].name", InvalidFormat),
        (|n| n[1].name = some("-w"), "nodes[1].name", InvalidFormat),
        (|n| n[1].name = Some("w".repeat(64)), "nodes[1].name", MaxLengthExceeded),
        (|n| n[1].name = some("m1"), "nodes[1].name", DuplicateResource),
        (|n| n[1].address = None, "nodes[1].address", MissingRequired),
        (|n| n[1].address = some(""), "nodes[1].address", NotNullable),
        (|n| n[1].address = some("w1.example"), "nodes[1].address", InvalidFormat),
        (|n| n[1].address = some("fd00::1"), "nodes[1].address", InvalidFormat),
        (|n| n[1].address = some("127.0.0.1"), "nodes[1].address", InvalidOption),
        (|n| n[1].address = some("224.0.0.1"), "nodes[1].address", InvalidOption),
        (|n| n[1].address = some("10.0.0.11"), "nodes[1].address", DuplicateResource),
        (|n| n[1].address = some("10.0.0.99"), "nodes[1].address", DuplicateResource),
        (|n| n[1].address = some("10.0.0.1"), "nodes[1].address", InvalidOption),
        (|n| n[1].address = some("10.42.7.7"), "nodes[1].address", InvalidOption),
        (|n| n[1].address = some("10.43.7.7"), "nodes[1].address", InvalidOption),
        (|n| n[1].host_key = some("ssh-ed25519"), "nodes[1].hostKey", InvalidFormat),
        (|n| n.push(node("w2", "10.0.0.22", &[])), "nodes[2].roles", InvalidOption),
        (|n| n.push(node("w2", "10.0.0.22", &["edge"])), "nodes[2].roles", InvalidOption),
        (
            |n| n.push(node("w2", "10.0.0.22", &["worker", "boss"])),
            "nodes[2].roles[1]",
            InvalidOption,
        ),
        (
            |n| n.push(node("w2", "10.0.0.22", &["worker", "worker"])),
            "nodes[2].roles[1]",
            InvalidOption,
        ),
        (
            |n| n.push(node("w2", "10.0.0.22", &["worker", "controlplane"])),
            "nodes[2].roles",
            InvalidOption,
        ),
    ];
    for (change, field, code) in cases {
        refuses(&with(|draft| change(draft.nodes.as_mut().unwrap())), field, code);
    }
    let mixed = with(|d| d.nodes.as_mut().unwrap()[1].name = some("M1"));
    assert!(faults(created(&mixed)).contains(&("nodes[1].name".to_owned(), DuplicateResource)));
    let roleless = with(|d| {
        d.nodes.as_mut().unwrap().push(NodeDraft { roles: None, ..node("x", "10.0.0.23", &[]) });
    });
    refuses(&roleless, "nodes[2].roles", MissingRequired);
}

#[test]
fn host_keys_are_keys_or_fingerprints() {
    let fingerprint = format!("SHA256:{}", "A".repeat(43));
    for key in ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== me@here", fingerprint.as_str()] {
        let draft = with(|d| d.nodes.as_mut().unwrap()[0].host_key = some(key));
        assert_eq!(good(&draft).spec.nodes[0].host_key.as_deref(), Some(key));
    }
}

#[test]
fn the_key_of_a_jump_host_stays_with_it_until_another_is_given() {
    let fingerprint = |c: &str| format!("SHA256:{}", c.repeat(43));
    let through = |draft: &mut Draft, host: &str, key: Option<String>| {
        (draft.ssh_jump_host, draft.ssh_jump_host_key) = (some(host), key);
    };
    let start = with(|draft| through(draft, "10.0.0.2", Some(fingerprint("A"))));
    let key_after = |host: &str, key: Option<String>| {
        let updated = updated_from(&start, true, |draft| through(draft, host, key)).unwrap();
        updated.spec.ssh.jump.unwrap().host_key
    };
    assert_eq!(key_after("10.0.0.2", None), Some(fingerprint("A")));
    assert_eq!(key_after("10.0.0.2", Some(fingerprint("B"))), Some(fingerprint("B")));
    assert_eq!(key_after("10.0.0.2:2222", None), None);
    let alone = with(|draft| draft.ssh_jump_host_key = Some(fingerprint("A")));
    refuses(&alone, "sshJumpHostKey", FaultCode::InvalidFormat);
}

#[test]
fn a_cluster_needs_all_its_roles() {
    for roles in [["controlplane", "controlplane"], ["worker", "worker"]] {
        let nodes = vec![node("a", "10.0.0.2", &roles[..1]), node("b", "10.0.0.3", &roles[1..])];
        refuses(&with(|draft| draft.nodes = Some(nodes)), "nodes", FaultCode::InvalidOption);
    }
}

#[test]
fn a_named_etcd_makes_roles_explicit_and_may_be_on_a_worker() {
    let nodes = vec![
        node("m1", "10.0.0.2", &["controlplane"]),
        node("w1", "10.0.0.3", &["worker", "etcd", "edge"]),
    ];
    let spec = good(&with(|draft| draft.nodes = Some(nodes))).spec;
    assert!(!spec.etcd_implied);
    assert_eq!(spec.nodes[0].roles, [NodeRole::Controlplane]);
    assert_eq!(spec.nodes[1].roles, [NodeRole::Etcd, NodeRole::Worker, NodeRole::Edge]);
}

#[test]
fn an_even_number_of_etcd_members_is_worth_a_warning() {
    let masters = |count: usize| {
        let mut nodes: Vec<NodeDraft> = (0..count)
            .map(|i| node(&format!("m{i}"), &format!("10.0.0.{}", 11 + i), &["controlplane"]))
            .collect();
        nodes.push(node("w", "10.0.0.21", &["worker"]));
        warnings(&good(&with(|draft| draft.nodes = Some(nodes))).spec)
    };
    assert_eq!(masters(1), Vec::<String>::new());
    assert_eq!(masters(3), Vec::<String>::new());
    assert!(masters(2)[0].contains("2 etcd members"), "{:?}", masters(2));
}

#[test]
fn too_many_nodes_are_one_fault_and_too_small_a_range_another() {
    let many = |count: usize| {
        let mut nodes: Vec<NodeDraft> = (0..count)
            .map(|i| {
                let address = format!("10.1.{}.{}", i / 250, i % 250 + 1);
                node(&format!("n{i}"), &address, &["worker"])
            })
            .collect();
        nodes[0].roles = Some(vec!["controlplane".to_owned()]);
        nodes
    };
    refuses(&with(|d| d.nodes = Some(many(5000))), "nodes", FaultCode::MaxLengthExceeded);
    refuses(&with(|d| d.nodes = Some(many(300))), "clusterCidr", FaultCode::InvalidOption);
    let wide = with(|d| {
        d.nodes = Some(many(MAX_NODES));
        d.cluster_cidr = some("172.16.0.0/12");
    });
    assert_eq!(good(&wide).spec.nodes.len(), MAX_NODES);
}

fn registry(url: &str, user: &str, password: &str) -> RegistryDraft {
    RegistryDraft { url: some(url), user: some(user), password: some(password), ca_cert: None }
}

#[test]
fn registries_are_checked_and_their_passwords_kept_apart() {
    let two =
        vec![registry("r.example:5000", "me", "secret"), registry("https://q.example/v2", "", "")];
    let Checked { spec, secrets } = good(&with(|draft| draft.private_registries = Some(two)));
    assert_eq!(spec.private_registries.len(), 2);
    assert_eq!(
        secrets.registry_passwords,
        BTreeMap::from([("r.example:5000".into(), "secret".into())])
    );
    assert!(!format!("{spec:?} {secrets:?}").contains("secret"));
    use FaultCode::*;
    for (bad, field, code) in [
        (vec![registry("", "", "")], "privateRegistrys[0].url", NotNullable),
        (vec![registry("a b", "", "")], "privateRegistrys[0].url", InvalidFormat),
        (vec![registry("r:x", "", "")], "privateRegistrys[0].url", InvalidFormat),
        (
            vec![registry("r", "", ""), registry("r", "", "")],
            "privateRegistrys[1].url",
            DuplicateResource,
        ),
        (vec![registry("r", "", "secret")], "privateRegistrys[0].user", MissingRequired),
        (
            vec![RegistryDraft { ca_cert: some("x"), ..registry("r", "", "") }],
            "privateRegistrys[0].caCert",
            InvalidFormat,
        ),
    ] {
        refuses(&with(|draft| draft.private_registries = Some(bad)), field, code);
    }
}

/// What an update of the cluster that `least` asks for, installed, leads to.
fn updated(change: impl FnOnce(&mut Draft)) -> Result<Checked, Vec<Fault>> {
    updated_from(&least(), true, change)
}

fn updated_from(
    start: &Draft,
    installed: bool,
    change: impl FnOnce(&mut Draft),
) -> Result<Checked, Vec<Fault>> {
    let Checked { spec, secrets } = good(start);
    let nodes = records(&spec, installed);
    let known = Known { spec: &spec, secrets: &secrets, nodes: &nodes, created: true };
    let mut draft = start.clone();
    draft.ssh_key = None;
    change(&mut draft);
    around(|around| validate_update(&draft, &known, around))
}

fn records(spec: &crate::cluster::ClusterSpec, installed: bool) -> BTreeMap<String, NodeRecord> {
    let record = |(i, spec): (usize, &crate::cluster::NodeSpec)| {
        let record = NodeRecord {
            spec: spec.clone(),
            pod_cidr: format!("10.42.{i}.0/24").parse().unwrap(),
            host_key: None,
            etcd: None,
            installed,
        };
        (spec.name.clone(), record)
    };
    spec.nodes.iter().enumerate().map(record).collect()
}

#[test]
fn an_unchanged_update_changes_nothing_and_keeps_the_key() {
    let before = good(&least());
    for key in [None, some(""), some(" \n")] {
        assert_eq!(updated(|draft| draft.ssh_key = key), Ok(before.clone()));
    }
    let changed = updated(|draft| draft.ssh_key = some(&format!("{KEY}\n"))).unwrap();
    assert_eq!(changed.secrets.ssh_key, format!("{KEY}\n"));
    let opened = updated(|draft| draft.ssh_key_passphrase = some("new")).unwrap();
    assert_eq!(
        (opened.secrets.ssh_key.as_str(), opened.secrets.ssh_key_passphrase.as_str()),
        (KEY, "new")
    );
    assert_eq!(
        faults(updated(|draft| draft.ssh_key_passphrase = some("wrong"))),
        [("sshKeyPassphrase".to_owned(), FaultCode::InvalidFormat)]
    );
    assert_eq!(
        faults(updated(|draft| draft.ssh_key = some("nonsense"))),
        [("sshKey".to_owned(), FaultCode::InvalidFormat)]
    );
}

#[test]
fn a_registry_keeps_its_password_unless_another_is_given() {
    let start = with(|draft| draft.private_registries = Some(vec![registry("r", "me", "old")]));
    let password = |new: &str| {
        let result = updated_from(&start, true, |draft| {
            draft.private_registries = Some(vec![registry("r", "me", new)]);
        });
        result.unwrap().secrets.registry_passwords["r"].clone()
    };
    assert_eq!((password("").as_str(), password("new").as_str()), ("old", "new"));
    let none = updated_from(&start, true, |draft| draft.private_registries = None).unwrap();
    assert!(none.secrets.registry_passwords.is_empty());
}

#[test]
fn what_was_settled_may_be_left_out_but_not_changed() {
    use FaultCode::InvalidOption;
    type Change = fn(&mut Draft);
    let cases: [(Change, &str); 8] = [
        (|d| d.cluster_cidr = some("10.44.0.0/16"), "clusterCidr"),
        (|d| d.cluster_cidr = some("nonsense"), "clusterCidr"),
        (|d| d.service_cidr = some("10.44.0.0/16"), "serviceCidr"),
        (|d| d.cluster_domain = some("other.local"), "clusterDomain"),
        (|d| d.cluster_dns_service_ip = some("10.43.0.11"), "clusterDNSServiceIP"),
        (|d| d.kubernetes_version = some("1.35.4"), "kubernetesVersion"),
        (|d| d.name = some("other"), "name"),
        (|d| d.unsupported = vec!["dockerSocket"], "dockerSocket"),
    ];
    for (change, field) in cases {
        assert_eq!(faults(updated(change)), [(field.to_owned(), InvalidOption)]);
    }
    let same = updated(|draft| {
        draft.cluster_cidr = some("10.42.0.0/16");
        draft.service_cidr = some("10.43.0.0/16");
        draft.cluster_domain = some("cluster.local");
        draft.cluster_dns_service_ip = some("10.43.0.10");
        draft.kubernetes_version = some("v1.36.3");
        // Ignored, also where they are nonsense.
        draft.network = Some(NetworkDraft { plugin: some("calico"), iface: None });
        draft.cluster_upstream_dns = Some(vec!["nonsense".to_owned()]);
    });
    assert_eq!(same, Ok(good(&least())));
}

#[test]
fn an_update_must_say_what_a_create_must_but_the_key() {
    use FaultCode::MissingRequired;
    let missing = |field: &str| (field.to_owned(), MissingRequired);
    let found = faults(updated(|draft| *draft = Draft::default()));
    assert_eq!(found, ["name", "nodes", "singleCloudAddress", "sshUser"].map(missing));
}

#[test]
fn controlplane_and_etcd_nodes_come_but_do_not_go() {
    let start = with(|draft| {
        draft.nodes = Some(vec![
            node("m1", "10.0.0.11", &["controlplane", "etcd"]),
            node("m2", "10.0.0.12", &["controlplane"]),
            node("w1", "10.0.0.21", &["worker", "etcd"]),
            node("w2", "10.0.0.22", &["worker"]),
        ]);
    });
    let change = |change: fn(&mut Vec<NodeDraft>)| {
        updated_from(&start, true, |draft| change(draft.nodes.as_mut().unwrap()))
    };
    let nodes = |result| {
        let found: Vec<(String, FaultCode)> = faults(result);
        found.into_iter().map(|(field, _)| field).collect::<Vec<_>>()
    };
    assert_eq!(nodes(change(|nodes| drop(nodes.remove(1)))), ["nodes"]);
    assert_eq!(nodes(change(|nodes| drop(nodes.remove(2)))), ["nodes"]);
    assert_eq!(nodes(change(|nodes| nodes[1].name = some("m9"))), ["nodes[1].name"]);
    assert_eq!(nodes(change(|nodes| nodes[1].address = some("10.0.0.19"))), ["nodes[1].address"]);
    let wider = Some(vec!["worker".to_owned(), "edge".to_owned()]);
    let changed = updated_from(&start, true, |draft| {
        draft.nodes.as_mut().unwrap()[3].roles = wider;
    });
    assert_eq!(nodes(changed), ["nodes[3].roles"]);
    let fewer = change(|nodes| drop(nodes.remove(3))).unwrap();
    assert_eq!(fewer.spec.nodes.len(), 3);
    let more = change(|nodes| {
        nodes.push(node("m3", "10.0.0.13", &["controlplane", "etcd"]));
        nodes.push(node("w3", "10.0.0.23", &["worker"]));
    });
    assert_eq!(more.unwrap().spec.nodes.len(), 6);
    let order = change(|nodes| nodes.reverse());
    assert!(order.is_ok(), "{order:?}");
}

#[test]
fn a_node_that_was_never_installed_is_a_wish_that_can_be_taken_back() {
    let start = with(|draft| {
        draft.nodes.as_mut().unwrap().push(node("m2", "10.0.0.12", &["controlplane"]));
    });
    let less = |draft: &mut Draft| drop(draft.nodes.as_mut().unwrap().pop());
    assert!(updated_from(&start, true, less).is_err());
    assert!(updated_from(&start, false, less).is_ok());
    // It never answered, so there is no record of it either.
    let Checked { spec, secrets } = good(&start);
    let mut nodes = records(&spec, true);
    nodes.remove("m2");
    let known = Known { spec: &spec, secrets: &secrets, nodes: &nodes, created: true };
    let mut draft = start;
    less(&mut draft);
    around(|around| assert!(validate_update(&draft, &known, around).is_ok()));
}

#[test]
fn a_machine_that_is_on_its_way_out_is_not_taken_under_another_name() {
    let Checked { spec, secrets } = good(&least());
    let mut nodes = records(&spec, true);
    let mut leaving = nodes["w1"].clone();
    leaving.spec.name = "w9".to_owned();
    leaving.spec.address = [10, 0, 0, 29].into();
    nodes.insert("w9".to_owned(), leaving);
    let known = Known { spec: &spec, secrets: &secrets, nodes: &nodes, created: true };
    for (name, address, field) in [
        ("w8", "10.0.0.29", Some("nodes[2].name")),
        ("w9", "10.0.0.28", Some("nodes[2].address")),
        ("w9", "10.0.0.29", None),
        ("w8", "10.0.0.28", None),
    ] {
        let draft =
            with(|draft| draft.nodes.as_mut().unwrap().push(node(name, address, &["worker"])));
        let found = around(|around| match validate_update(&draft, &known, around) {
            Ok(_) => None,
            faulty => faults(faulty).pop().map(|(field, _)| field),
        });
        assert_eq!(found.as_deref(), field, "{name} {address}");
    }
}

#[test]
fn a_new_node_is_checked_against_ranges_and_other_clusters() {
    use FaultCode::*;
    for (address, code) in [
        ("10.42.1.1", InvalidOption),
        ("10.0.0.99", DuplicateResource),
        ("10.0.0.1", InvalidOption),
    ] {
        let found = faults(updated(|draft| {
            draft.nodes.as_mut().unwrap().push(node("w2", address, &["worker"]));
        }));
        assert_eq!(found, [("nodes[2].address".to_owned(), code)]);
    }
}

#[test]
fn the_nodes_of_an_imported_cluster_stay() {
    let Checked { spec, secrets } = good(&least());
    let nodes = BTreeMap::new();
    let known = Known { spec: &spec, secrets: &secrets, nodes: &nodes, created: true };
    let shown = least().nodes.unwrap();
    around(|around| {
        let update = |draft: &Draft| validate_imported(draft, &known, &shown, around);
        assert!(update(&least()).is_ok());
        let nameless = Draft { name: some("demo"), ..Draft::default() };
        assert_eq!(update(&nameless), Ok(Checked { spec: spec.clone(), secrets: secrets.clone() }));
        let more =
            with(|draft| draft.nodes.as_mut().unwrap().push(node("x", "10.0.0.5", &["worker"])));
        assert_eq!(faults(update(&more)), [("nodes".to_owned(), FaultCode::InvalidOption)]);
        let moved = with(|draft| draft.single_cloud_address = some("10.9.9.9:1"));
        assert_eq!(update(&moved).unwrap().spec.single_cloud_address.to_string(), "10.9.9.9:1");
    });
}
