//! A cluster of which tests make documents.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::cluster::{
    ClusterSecrets, ClusterSpec, EtcdStart, NetworkPlugin, NodeRecord, NodeRole, NodeSpec,
    RegistrySpec,
};
use crate::install::credentials::{HostCredentials, path};
use crate::install::document::{BundleIndex, DocumentError, DocumentInput, Stage, host_document};
use crate::install::facts::HostFacts;
use crate::install::host::{Bundled, Content, HostDocument, Image};

pub(crate) struct Example {
    pub spec: ClusterSpec,
    pub nodes: BTreeMap<String, NodeRecord>,
    pub facts: HostFacts,
    pub credentials: HostCredentials,
    pub bundle: BundleIndex,
    pub images: Vec<Image>,
    pub secrets: ClusterSecrets,
    pub servers: Vec<String>,
}

impl Example {
    /// `cp` is controlplane and etcd, `etcd` a worker with etcd, `w` a worker; the hosts are as
    /// machines usually are.
    pub fn new() -> Self {
        let mut spec =
            ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), "1.36.3");
        let node = |name: &str, last: u8, roles: &[NodeRole]| NodeSpec {
            name: name.to_owned(),
            address: Ipv4Addr::new(10, 0, 0, last),
            roles: roles.to_vec(),
            host_key: None,
        };
        spec.nodes = vec![
            node("cp", 1, &[NodeRole::Controlplane, NodeRole::Etcd]),
            node("etcd", 2, &[NodeRole::Etcd, NodeRole::Worker]),
            node("w", 3, &[NodeRole::Worker]),
        ];
        let members = spec.nodes_with(NodeRole::Etcd).map(|n| (n.name.clone(), n.address));
        let start = EtcdStart { members: members.collect(), joins: false };
        let record = |(n, node): (usize, &NodeSpec)| {
            let pod_cidr = format!("10.42.{n}.0/24").parse().unwrap();
            let etcd = node.is(NodeRole::Etcd).then(|| start.clone());
            let spec = node.clone();
            let record = NodeRecord { spec, pod_cidr, host_key: None, etcd, installed: false };
            (node.name.clone(), record)
        };
        let nodes = spec.nodes.iter().enumerate().map(record).collect();
        let programs = "bridge host-local loopback portmap containerd containerd-shim-runc-v2 ctr \
            etcd etcdctl kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet \
            runc wharf";
        let bundled = |path: String| Bundled { path, sha256: "0".repeat(64), size: 1 };
        let program = |name: &str| (name.to_owned(), bundled(format!("bin/{name}")));
        let archive = bundled("images/pause.tar".to_owned());
        Self {
            spec,
            nodes,
            facts: usual_facts(),
            credentials: all_credentials(),
            bundle: programs.split_whitespace().map(program).collect(),
            images: vec![Image { name: "wharf.dev/pause:1".to_owned(), archive }],
            secrets: ClusterSecrets::default(),
            servers: vec!["10.0.0.250:8444".to_owned()],
        }
    }

    pub fn input(&self, node: &str, stage: Stage) -> DocumentInput<'_> {
        DocumentInput {
            spec: &self.spec,
            node: self.spec.node(node).unwrap(),
            nodes: &self.nodes,
            facts: &self.facts,
            credentials: &self.credentials,
            bundle: &self.bundle,
            images: &self.images,
            stage,
            etcd_token: "token",
            secrets: &self.secrets,
            servers: &self.servers,
            membership: Some("{}"),
        }
    }

    pub fn try_document(&self, node: &str) -> Result<HostDocument, DocumentError> {
        host_document(&self.input(node, Stage::Node))
    }

    pub fn document(&self, node: &str) -> HostDocument {
        self.try_document(node).unwrap()
    }

    fn unit(&self, node: &str, unit: &str) -> String {
        let units = self.document(node).units;
        units.into_iter().find(|found| found.name == format!("wharf-{unit}.service")).unwrap().text
    }
}

/// A machine of its own with cgroup v2.
pub(crate) fn usual_facts() -> HostFacts {
    HostFacts {
        cgroup_version: 2,
        sys_resource: true,
        systemd: true,
        root: true,
        mtu: 1500,
        data_filesystem: "ext2/ext3".to_owned(),
        containerd_filesystem: "ext2/ext3".to_owned(),
        resolv_conf: "/run/systemd/resolve/resolv.conf".to_owned(),
        kernel_modules: vec!["br_netfilter".to_owned()],
        ..HostFacts::default()
    }
}

/// A container with cgroup v1 that may not do everything: a host of the test bed.
pub(crate) fn confined_facts() -> HostFacts {
    HostFacts {
        container: true,
        cgroup_version: 1,
        sys_resource: false,
        data_filesystem: "overlayfs".to_owned(),
        ..usual_facts()
    }
}

fn all_credentials() -> HostCredentials {
    let mut credentials = HostCredentials::default();
    for path in [
        path::CA,
        path::APISERVER,
        path::APISERVER_KUBELET_CLIENT,
        path::APISERVER_ETCD_CLIENT,
        path::FRONT_PROXY_CA,
        path::FRONT_PROXY_CLIENT,
        path::SERVICE_ACCOUNT_PUBLIC,
        path::ETCD_CA,
        path::ETCD_SERVER,
        path::ETCD_PEER,
        path::KUBELET,
        path::LINK_AUTHORITY,
    ] {
        credentials.insert_public(path, "certificate");
    }
    for path in [
        path::CA_KEY,
        path::AGENT_KUBECONFIG,
        path::AGENT_TOKEN,
        path::LINK_IDENTITY,
        path::APISERVER_KEY,
        path::APISERVER_KUBELET_CLIENT_KEY,
        path::APISERVER_ETCD_CLIENT_KEY,
        path::FRONT_PROXY_CLIENT_KEY,
        path::SERVICE_ACCOUNT_KEY,
        path::ENCRYPTION,
        path::ETCD_SERVER_KEY,
        path::ETCD_PEER_KEY,
        path::KUBELET_KEY,
        path::KUBELET_KUBECONFIG,
        path::PROXY_KUBECONFIG,
        path::CONTROLLERS_KUBECONFIG,
        path::SCHEDULER_KUBECONFIG,
    ] {
        credentials.insert_secret(path, "secret");
    }
    credentials
}

/// A file's text.
pub(crate) fn text<'a>(document: &'a HostDocument, path: &str) -> &'a str {
    let file = document.files.iter().find(|file| file.path == path);
    match &file.unwrap_or_else(|| panic!("there is no {path}")).content {
        Content::Text(text) => text,
        Content::Bundled(_) => panic!("{path} comes from the bundle"),
    }
}

fn yaml(document: &HostDocument, path: &str) -> serde_json::Value {
    serde_saphyr::from_str(text(document, path)).unwrap()
}

fn containerd(document: &HostDocument) -> toml::Table {
    text(document, "/etc/wharf/containerd/config.toml").parse().unwrap()
}

const KUBELET: &str = "/etc/wharf/kubelet/config.yaml";

#[test]
fn kubelet_and_containerd_agree_on_who_makes_cgroups() {
    let facts =
        |cgroup_version, container| HostFacts { cgroup_version, container, ..usual_facts() };
    for (facts, driver, fail) in [
        (facts(2, false), "systemd", None),
        (facts(2, true), "cgroupfs", None),
        (facts(1, false), "cgroupfs", Some(false)),
        (facts(1, true), "cgroupfs", Some(false)),
    ] {
        let document = Example { facts, ..Example::new() }.document("w");
        let kubelet = yaml(&document, KUBELET);
        assert_eq!(kubelet["cgroupDriver"], driver);
        assert_eq!(kubelet["failCgroupV1"].as_bool(), fail);
        let runtime = &containerd(&document)["plugins"]["io.containerd.cri.v1.runtime"];
        let options = &runtime["containerd"]["runtimes"]["runc"]["options"];
        assert_eq!(options["SystemdCgroup"].as_bool(), Some(driver == "systemd"));
        let pods = if driver == "systemd" { "kubepods.slice" } else { "kubepods" };
        assert_eq!(document.grown.cgroups[0], pods);
    }
}

#[test]
fn an_older_kubelet_is_not_told_what_it_does_anyway() {
    let mut example = Example { facts: confined_facts(), ..Example::new() };
    "1.34.2".clone_into(&mut example.spec.kubernetes_version);
    assert!(yaml(&example.document("w"), KUBELET)["failCgroupV1"].is_null());
    "1.33.0".clone_into(&mut example.spec.kubernetes_version);
    assert_eq!(example.try_document("w"), Err(DocumentError::Version("1.33.0".to_owned())));
}

#[test]
fn kubelet_registers_a_controlplane_with_its_taint() {
    let example = Example::new();
    let taint = |node| yaml(&example.document(node), KUBELET)["registerWithTaints"].clone();
    assert_eq!(taint("cp")[0]["key"], "node-role.kubernetes.io/control-plane");
    assert!(taint("w").is_null() && taint("etcd").is_null());
}

#[test]
fn kubelet_has_the_nodes_name_address_and_pods() {
    let mut example = Example::new();
    example.nodes.get_mut("w").unwrap().pod_cidr = "10.42.3.0/27".parse().unwrap();
    let unit = example.unit("w", "kubelet");
    for flag in ["--node-ip=10.0.0.3", "--hostname-override=w"] {
        assert!(unit.contains(flag), "{unit}");
    }
    let kubelet = yaml(&example.document("w"), KUBELET);
    assert_eq!(kubelet["maxPods"], 29);
    assert_eq!(kubelet["clusterDNS"][0], "10.43.0.10");
    assert_eq!(kubelet["resolvConf"], "/run/systemd/resolve/resolv.conf");
    assert_eq!(kubelet["makeIPTablesUtilChains"], false);
}

#[test]
fn containerd_keeps_to_its_own_places_and_to_what_it_may_do() {
    let usual = containerd(&Example::new().document("w"));
    let confined = Example { facts: confined_facts(), ..Example::new() }.document("w");
    let confined = containerd(&confined);
    assert_eq!(usual["root"].as_str(), Some("/var/lib/wharf/containerd"));
    assert_eq!(confined["root"].as_str(), Some("/var/lib/containerd/wharf"));
    let runtime = |config: &toml::Table| {
        config["plugins"]["io.containerd.cri.v1.runtime"].as_table().unwrap().clone()
    };
    assert_eq!(runtime(&usual)["restrict_oom_score_adj"].as_bool(), Some(false));
    assert_eq!(runtime(&confined)["restrict_oom_score_adj"].as_bool(), Some(true));
    assert_eq!(runtime(&usual)["cni"]["conf_dir"].as_str(), Some("/etc/wharf/cni/net.d"));
    let sandbox = &usual["plugins"]["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"];
    assert_eq!(sandbox.as_str(), Some("wharf.dev/pause:1"));
    let unit = Example::new().unit("w", "containerd");
    for line in ["KillMode=process", "Delegate=yes", "Type=notify", "OOMScoreAdjust=-999"] {
        assert!(unit.contains(line), "{unit}");
    }
    let example = Example { facts: confined_facts(), ..Example::new() };
    assert!(!example.unit("w", "containerd").contains("OOMScoreAdjust"));
}

#[test]
fn a_network_of_the_users_own_is_looked_for_where_others_put_it() {
    let mut example = Example::new();
    example.spec.network.plugin = NetworkPlugin::None;
    let document = example.document("w");
    let cni = &containerd(&document)["plugins"]["io.containerd.cri.v1.runtime"]["cni"];
    assert_eq!(cni["conf_dir"].as_str(), Some("/etc/cni/net.d"));
    assert!(!document.files.iter().any(|file| file.path.ends_with(".conflist")));
}

#[test]
fn a_private_registry_has_its_authority_and_its_password_in_its_own_files() {
    let mut example = Example::new();
    example.spec.private_registries = vec![RegistrySpec {
        url: "https://reg.example:5000".to_owned(),
        user: "me".to_owned(),
        ca_cert: "PEM".to_owned(),
    }];
    let password = ("https://reg.example:5000".to_owned(), "s\"ecret".to_owned());
    example.secrets.registry_passwords = BTreeMap::from([password]);
    let document = example.document("w");
    let place = "/etc/wharf/containerd/certs.d/reg.example:5000";
    assert_eq!(text(&document, &format!("{place}/ca.crt")), "PEM");
    let file = document.files.iter().find(|f| f.path == format!("{place}/hosts.toml")).unwrap();
    assert_eq!(file.mode, 0o600);
    let hosts: toml::Table = text(&document, &file.path).parse().unwrap();
    let host = &hosts["host"]["https://reg.example:5000"];
    assert_eq!(host["header"]["Authorization"].as_str(), Some("Basic bWU6cyJlY3JldA=="));
    // A password that changes restarts nothing: it is read for each pull.
    let unit = document.units.iter().find(|u| u.name == "wharf-containerd.service").unwrap();
    assert!(!unit.inputs.iter().any(|input| input.contains("hosts.toml")));
}

#[test]
fn etcd_is_started_with_the_members_of_its_first_day() {
    let mut example = Example::new();
    let unit = example.unit("etcd", "etcd");
    for flag in [
        "--name=etcd ",
        "--initial-cluster=cp=https://10.0.0.1:2380,etcd=https://10.0.0.2:2380 ",
        "--initial-cluster-state=new ",
        "--initial-cluster-token=token ",
        "--listen-client-urls=https://10.0.0.2:2379,https://127.0.0.1:2379 ",
        "--client-cert-auth=true ",
        "--peer-client-cert-auth=true ",
    ] {
        assert!(unit.contains(flag), "{flag} in {unit}");
    }
    // A third member joins: the unit of the second stays, to the byte.
    let mut third = example.nodes["w"].clone();
    third.spec.roles = vec![NodeRole::Etcd, NodeRole::Worker];
    let mut members = example.nodes["etcd"].etcd.clone().unwrap().members;
    members.insert("w".to_owned(), third.spec.address);
    third.etcd = Some(EtcdStart { members, joins: true });
    example.spec.nodes[2] = third.spec.clone();
    example.nodes.insert("w".to_owned(), third);
    assert_eq!(example.unit("etcd", "etcd"), unit);
    assert!(example.unit("w", "etcd").contains("--initial-cluster-state=existing"));
    example.nodes.get_mut("w").unwrap().etcd = None;
    assert_eq!(example.try_document("w"), Err(DocumentError::NoEtcdStart("w".to_owned())));
}

#[test]
fn an_api_server_asks_the_etcd_beside_it_or_all_of_them() {
    let mut example = Example::new();
    let local = "--etcd-servers=https://127.0.0.1:2379 ";
    assert!(example.unit("cp", "kube-apiserver").contains(local));
    example.spec.nodes[0].roles = vec![NodeRole::Controlplane];
    example.nodes.get_mut("cp").unwrap().spec.roles = vec![NodeRole::Controlplane];
    let unit = example.unit("cp", "kube-apiserver");
    assert!(unit.contains("--etcd-servers=https://10.0.0.2:2379 "), "{unit}");
}

#[test]
fn strangers_may_only_ask_an_api_server_for_its_health() {
    let document = Example::new().document("cp");
    let config = yaml(&document, "/etc/wharf/kube-apiserver/authentication.yaml");
    let conditions = config["anonymous"]["conditions"].as_array().unwrap();
    let paths: Vec<&str> = conditions.iter().map(|c| c["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/livez", "/readyz", "/healthz"]);
}

#[test]
fn kube_proxy_uses_nft_and_leaves_the_kernels_limits_alone() {
    let config = yaml(&Example::new().document("w"), "/etc/wharf/kube-proxy/config.yaml");
    assert_eq!(config["mode"], "nftables");
    assert_eq!(config["clusterCIDR"], "10.42.0.0/16");
    assert_eq!(config["hostnameOverride"], "w");
    assert_eq!(config["conntrack"]["maxPerCore"], 0);
    assert_eq!(config["conntrack"]["tcpEstablishedTimeout"], "0s");
}

#[test]
fn names_that_yaml_would_misread_stay_names() {
    let mut example = Example::new();
    for node in ["on", "1e3"] {
        example.spec.nodes[2].name = node.to_owned();
        let mut record = example.nodes["w"].clone();
        record.spec.name = node.to_owned();
        example.nodes.insert(node.to_owned(), record);
        let config = yaml(&example.document(node), "/etc/wharf/kube-proxy/config.yaml");
        assert_eq!(config["hostnameOverride"], node);
        let agent: toml::Table =
            text(&example.document(node), "/etc/wharf/agent/agent.toml").parse().unwrap();
        assert_eq!(agent["node_name"].as_str(), Some(node));
        assert_eq!(agent["logs"]["journal"].as_bool(), Some(true));
    }
}

#[test]
fn a_kubelet_starts_when_its_node_may_join_the_cluster() {
    let example = Example::new();
    let document = example.document("w");
    let membership = "/persist/status/zedagent/EdgeNodeClusterConfig/global.json";
    assert_eq!(text(&document, membership), "{}");
    let unit = example.unit("w", "kubelet");
    let waits = "ExecStartPre=/opt/wharf/bin/wharf agent join-wait \
                 --config /etc/wharf/agent/agent.toml --if-configured --timeout-seconds 60\n";
    assert!(unit.contains(waits), "{unit}");
    let alone = DocumentInput { membership: None, ..example.input("w", Stage::Node) };
    let alone = host_document(&alone).unwrap();
    assert!(alone.files.iter().all(|file| file.path != membership));
    // It is read again by itself: a cluster that grows does not restart kubelets.
    let kubelet = |document: &HostDocument| {
        document.units.iter().find(|unit| unit.name == "wharf-kubelet.service").cloned()
    };
    assert_eq!(kubelet(&alone), kubelet(&document));
}

#[test]
fn the_agent_knows_the_other_nodes_and_all_api_servers() {
    use crate::install::network::{NETWORK_FILE, NetworkFile};
    let document = Example::new().document("w");
    let file: NetworkFile = serde_json::from_str(text(&document, NETWORK_FILE)).unwrap();
    assert_eq!(
        (file.node.name.as_str(), file.node.pod_cidr),
        ("w", "10.42.2.0/24".parse().unwrap())
    );
    let peers: Vec<&str> = file.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!(peers, ["cp", "etcd"]);
    assert_eq!(file.balancer.servers, ["10.0.0.1:6443".parse().unwrap()]);
    assert_eq!(file.balancer.authority_file, path::CA);
    let conflist: serde_json::Value =
        serde_json::from_str(text(&document, "/etc/wharf/cni/net.d/10-wharf.conflist")).unwrap();
    assert_eq!(conflist["plugins"][0]["mtu"], 1500);
    // It reads the file again by itself: a new node must not restart the agent.
    let unit = document.units.iter().find(|unit| unit.name == "wharf-agent.service").unwrap();
    assert_eq!(unit.inputs, ["/opt/wharf/bin/wharf", "/etc/wharf/agent/agent.toml"]);
}
