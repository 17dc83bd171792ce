//! What is rendered for the components, read by the real programs of the cache.
//!
//! Without the programs (`cargo xtask assets`) these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// The crate does no I/O; programs do nothing else.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use wharf_bundle::cache::Cache;
use wharf_bundle::catalogue::this_arch;
use wharf_core::cluster::{
    ClusterSecrets, ClusterSpec, EtcdStart, NodeRecord, NodeRole, NodeSpec, RegistrySpec,
};
use wharf_core::install::components::{Component, components};
use wharf_core::install::credentials::HostCredentials;
use wharf_core::install::document::{BundleIndex, DocumentInput, Stage};
use wharf_core::install::facts::HostFacts;
use wharf_core::install::host::{Bundled, Content, Image};

/// The versions of Kubernetes whose programs the cache holds.
const VERSIONS: [&str; 2] = ["1.35.4", "1.36.3"];

fn spec(version: &str) -> ClusterSpec {
    let mut spec = ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), version);
    spec.nodes = vec![NodeSpec {
        name: "n1".to_owned(),
        address: Ipv4Addr::new(10, 0, 0, 1),
        roles: vec![NodeRole::Controlplane, NodeRole::Etcd],
        host_key: None,
    }];
    spec.private_registries = vec![RegistrySpec {
        url: "https://registry.example:5000".to_owned(),
        user: "me".to_owned(),
        ca_cert: String::new(),
    }];
    spec
}

/// A usual machine, and a confined one.
fn machines() -> [HostFacts; 2] {
    let usual = HostFacts {
        cgroup_version: 2,
        sys_resource: true,
        mtu: 1500,
        resolv_conf: "/etc/resolv.conf".to_owned(),
        ..HostFacts::default()
    };
    let confined = HostFacts {
        container: true,
        cgroup_version: 1,
        sys_resource: false,
        resolv_conf: String::new(),
        ..usual.clone()
    };
    [usual, confined]
}

fn components_of(spec: &ClusterSpec, facts: &HostFacts) -> Vec<Component> {
    let node = &spec.nodes[0];
    let members = BTreeMap::from([(node.name.clone(), node.address)]);
    let record = NodeRecord {
        spec: node.clone(),
        pod_cidr: "10.42.0.0/24".parse().unwrap(),
        host_key: None,
        etcd: Some(EtcdStart { members, joins: false }),
        installed: false,
    };
    let archive = Bundled { path: "images/pause.tar".to_owned(), sha256: "0".repeat(64), size: 1 };
    let input = DocumentInput {
        spec,
        node,
        nodes: &BTreeMap::from([(node.name.clone(), record)]),
        facts,
        credentials: &HostCredentials::default(),
        bundle: &BundleIndex::default(),
        images: &[Image { name: "wharf.dev/pause:1".to_owned(), archive }],
        stage: Stage::Node,
        etcd_token: "token",
        secrets: &ClusterSecrets::default(),
        servers: &[],
        membership: Some("{}"),
    };
    components(&input).unwrap()
}

fn program(name: &str, kubernetes: &str) -> PathBuf {
    let cache = Cache::from_env().unwrap();
    let directory = cache.component_dir("kubernetes", kubernetes, this_arch()).join("bin");
    let kubernetes = directory.join(name);
    if kubernetes.exists() {
        return kubernetes;
    }
    cache.find(name).unwrap_or_else(|| panic!("the cache holds no {name} for this test"))
}

fn said(output: &Output) -> String {
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// The names of all flags that a program's help lists.
fn flags(program: &Path) -> BTreeSet<String> {
    let help = said(&Command::new(program).arg("--help").output().unwrap());
    let words = help.split_whitespace().filter(|word| word.starts_with("--"));
    words.map(|word| word.trim_end_matches([',', '.', ')']).to_owned()).collect()
}

fn write_config(component: &Component, path: &str, to: &Path) -> PathBuf {
    let files = component.files.iter().chain(&component.reloaded_files);
    let file = files.into_iter().find(|file| file.path == path).unwrap();
    let Content::Text(text) = &file.content else { panic!("{path} is no text") };
    let place = to.join(path.rsplit('/').next().unwrap());
    std::fs::write(&place, text).unwrap();
    place
}

fn find<'a>(components: &'a [Component], program: &str) -> &'a Component {
    components.iter().find(|component| component.service.program == program).unwrap()
}

#[test]
fn every_flag_is_one_that_the_program_knows() {
    let mut checked = 0;
    for version in VERSIONS {
        let spec = spec(version);
        let all = machines().map(|facts| components_of(&spec, &facts)).concat();
        for component in all {
            let service = &component.service;
            // The agent's program has subcommands, and its own tests.
            if service.program == "wharf" {
                continue;
            }
            let known = flags(&program(service.program, version));
            assert!(known.len() > 3, "{} has no help", service.program);
            let arguments = service.arguments.iter().filter(|word| word.starts_with("--"));
            for argument in arguments {
                let flag = argument.split('=').next().unwrap();
                assert!(known.contains(flag), "{} {version}: {flag}", service.program);
                checked += 1;
            }
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn containerd_reads_its_configuration_as_it_is_meant() {
    for facts in machines() {
        let dir = tempfile::tempdir().unwrap();
        let components = components_of(&spec("1.36.3"), &facts);
        let containerd = find(&components, "containerd");
        let config = write_config(containerd, "/etc/wharf/containerd/config.toml", dir.path());
        let mut command = Command::new(program("containerd", "1.36.3"));
        let output =
            command.arg("--config").arg(&config).args(["config", "dump"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let dump: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
        let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
        assert_eq!(text(&dump["state"]), "/run/wharf/containerd");
        assert_eq!(text(&dump["grpc"]["address"]), "/run/wharf/containerd/containerd.sock");
        let images = &dump["plugins"]["io.containerd.cri.v1.images"];
        assert_eq!(text(&images["pinned_images"]["sandbox"]), "wharf.dev/pause:1");
        assert_eq!(text(&images["registry"]["config_path"]), "/etc/wharf/containerd/certs.d");
        let runtime = &dump["plugins"]["io.containerd.cri.v1.runtime"];
        assert_eq!(runtime["restrict_oom_score_adj"].as_bool(), Some(!facts.sys_resource));
        assert_eq!(text(&runtime["cni"]["conf_dir"]), "/etc/wharf/cni/net.d");
        assert_eq!(text(&runtime["cni"]["bin_dirs"][0]), "/opt/wharf/cni");
        let runc = &runtime["containerd"]["runtimes"]["runc"];
        assert_eq!(text(&runc["options"]["BinaryName"]), "/opt/wharf/bin/runc");
        assert_eq!(runc["options"]["SystemdCgroup"].as_bool(), Some(!facts.container));
    }
}

/// kube-proxy writes down what it has read, and refuses what it does not know.
#[test]
fn kube_proxy_reads_its_configuration_as_it_is_meant() {
    for version in VERSIONS {
        let dir = tempfile::tempdir().unwrap();
        let components = components_of(&spec(version), &machines()[0]);
        let config = write_config(
            find(&components, "kube-proxy"),
            "/etc/wharf/kube-proxy/config.yaml",
            dir.path(),
        );
        let written = dir.path().join("written.yaml");
        let run = || {
            let mut command = Command::new(program("kube-proxy", version));
            command.arg("--config").arg(&config).arg("--write-config-to").arg(&written);
            command.output().unwrap()
        };
        let output = run();
        assert!(output.status.success(), "{}", said(&output));
        let read: serde_json::Value =
            serde_saphyr::from_str(&std::fs::read_to_string(&written).unwrap()).unwrap();
        assert_eq!(read["mode"], "nftables");
        assert_eq!(read["hostnameOverride"], "n1");
        assert_eq!(read["conntrack"]["maxPerCore"], 0);
        assert_eq!(read["nftables"]["minSyncPeriod"], "100ms");

        let text = std::fs::read_to_string(&config).unwrap() + "unheardOf: 1\n";
        std::fs::write(&config, text).unwrap();
        assert!(said(&run()).contains("unheardOf"), "an unknown key was not refused");
    }
}

/// kubelet reads its configuration before it looks for its kubeconfig and authority, and there are
/// none here: it ends without touching anything. What it does not know it mentions.
#[test]
fn kubelet_knows_every_key_of_its_configuration() {
    for version in VERSIONS {
        for facts in machines() {
            let dir = tempfile::tempdir().unwrap();
            let components = components_of(&spec(version), &facts);
            let kubelet = find(&components, "kubelet");
            let config = write_config(kubelet, "/etc/wharf/kubelet/config.yaml", dir.path());
            let run = || {
                let mut command = Command::new(program("kubelet", version));
                command.arg("--config").arg(&config).arg("--root-dir").arg(dir.path().join("root"));
                said(&command.arg("--kubeconfig").arg(dir.path().join("none")).output().unwrap())
            };
            let output = run();
            assert!(output.contains("command failed"), "{output}");
            assert!(!output.contains("strict decoding error"), "{output}");
            // Where this machine is not one of those for which the configuration was made.
            let refused = "error: kubelet is configured to not run on a host using cgroup v1";
            let invalid = output.contains("failed to validate kubelet configuration");
            assert!(!invalid || output.contains(refused), "{output}");
            let text = std::fs::read_to_string(&config).unwrap() + "unheardOf: 1\n";
            std::fs::write(&config, text).unwrap();
            assert!(run().contains("strict decoding error: unknown field"), "it was passed over");
        }
    }
}
