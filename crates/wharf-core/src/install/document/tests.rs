use super::super::components::tests::{Example, confined_facts};
use super::*;

fn units(document: &HostDocument, wanted: Wanted) -> Vec<&str> {
    let units = document.units.iter().filter(|unit| unit.wanted == wanted);
    let bare = |name| str::strip_prefix(name, "wharf-").unwrap().strip_suffix(".service").unwrap();
    units.map(|unit| bare(unit.name.as_str())).collect()
}

#[test]
fn each_stage_starts_more_units_and_changes_nothing_else() {
    let example = Example::new();
    let expected: [&[&str]; 4] = [
        &["containerd", "agent"],
        &["containerd", "agent", "etcd"],
        &["containerd", "agent", "etcd", "kube-apiserver"],
        &[
            "containerd",
            "agent",
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
        ],
    ];
    let last = example.document("cp");
    for (stage, expected) in Stage::ALL.into_iter().zip(expected) {
        let document = host_document(&example.input("cp", stage)).unwrap();
        assert_eq!(units(&document, Wanted::Started), expected, "{stage:?}");
        assert_eq!(document.units.len(), 8);
        assert_eq!(document.images.is_empty(), stage != Stage::Node, "{stage:?}");
        let bare = |document| HostDocument { units: vec![], images: vec![], ..document };
        assert_eq!(bare(document), bare(last.clone()));
    }
}

#[test]
fn a_host_runs_what_its_roles_say() {
    let example = Example::new();
    let all = example.document("cp");
    assert_eq!(
        units(&all, Wanted::Started),
        super::super::components::NAMES,
        "a removal knows them by these names"
    );
    let started = |node| units(&example.document(node), Wanted::Started).join(" ");
    assert_eq!(started("w"), "containerd agent kubelet kube-proxy");
    assert_eq!(started("etcd"), "containerd agent etcd kubelet kube-proxy");
}

#[test]
fn a_host_gets_the_programs_and_keys_of_its_roles_and_no_others() {
    let example = Example::new();
    let below = |node: &str, place: &str| {
        let files = example.document(node).files.into_iter().map(|file| file.path);
        let names = files.filter_map(|path| path.strip_prefix(place).map(str::to_owned));
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        below("w", "/opt/wharf/bin/"),
        ["containerd", "wharf", "kubelet", "kube-proxy", "containerd-shim-runc-v2", "ctr", "runc"]
    );
    assert!(below("etcd", "/opt/wharf/bin/").contains(&"etcdctl".to_owned()));
    assert_eq!(below("w", "/opt/wharf/cni/"), ["bridge", "host-local", "loopback", "portmap"]);
    let agents = ["agent-link.pem", "agent-token", "agents-ca.crt"];
    let keys = [&agents[..], &["ca.crt", "kubelet.crt", "kubelet.key"]].concat();
    assert_eq!(below("w", "/etc/wharf/pki/"), keys);
    let kubeconfigs = ["agent.yaml", "kube-proxy.yaml", "kubelet.yaml"];
    assert_eq!(below("w", "/etc/wharf/kubeconfig/"), kubeconfigs);
    assert!(below("cp", "/etc/wharf/pki/").contains(&"ca.key".to_owned()));
    assert!(!below("etcd", "/etc/wharf/pki/").iter().any(|path| path.contains("apiserver")));
}

#[test]
fn secrets_are_readable_by_root_alone() {
    for file in Example::new().document("cp").files {
        if let Content::Text(text) = &file.content
            && text == "secret"
        {
            assert_eq!(file.mode, 0o600, "{}", file.path);
        }
    }
}

#[test]
fn every_file_has_a_directory_and_every_input_is_a_file() {
    let example = Example::new();
    for node in ["cp", "etcd", "w"] {
        let document = example.document(node);
        let directories: BTreeSet<&str> =
            document.directories.iter().map(|directory| directory.path.as_str()).collect();
        for file in &document.files {
            let (parent, _) = file.path.rsplit_once('/').unwrap();
            assert!(directories.contains(parent), "{} has no directory", file.path);
        }
        // Parents come first.
        for (n, directory) in document.directories.iter().enumerate() {
            let (parent, _) = directory.path.rsplit_once('/').unwrap();
            let before = &document.directories[..n];
            let ours = place::PROGRAMS.len() < directory.path.len() && parent.contains("/wharf");
            assert!(!ours || before.iter().any(|d| d.path == parent), "{}", directory.path);
        }
        let files: BTreeSet<&str> = document.files.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(files.len(), document.files.len(), "a file is there twice");
        for unit in &document.units {
            for input in &unit.inputs {
                assert!(files.contains(input.as_str()), "{}: {input}", unit.name);
            }
        }
    }
}

#[test]
fn a_certificate_that_the_program_reads_again_restarts_nothing() {
    let document = Example::new().document("cp");
    let unit = document.units.iter().find(|u| u.name == "wharf-kube-apiserver.service").unwrap();
    assert!(!unit.inputs.contains(&path::APISERVER.to_owned()));
    assert!(unit.inputs.contains(&path::SERVICE_ACCOUNT_KEY.to_owned()));
}

#[test]
fn what_is_missing_is_named() {
    let mut example = Example::new();
    example.bundle.remove("kubelet");
    assert_eq!(example.try_document("w"), Err(DocumentError::MissingProgram("kubelet".to_owned())));
    let mut example = Example::new();
    example.images.clear();
    let missing = DocumentError::MissingImage("wharf.dev/pause".to_owned());
    assert_eq!(example.try_document("w"), Err(missing));
    let mut example = Example::new();
    example.credentials.0.remove(path::CA);
    let missing =
        DocumentError::MissingCredential { node: "w".to_owned(), path: path::CA.to_owned() };
    assert_eq!(example.try_document("w"), Err(missing));
    let mut example = Example::new();
    example.nodes.clear();
    assert_eq!(example.try_document("w"), Err(DocumentError::NoPodCidr("w".to_owned())));
}

#[test]
fn a_container_loads_no_modules_and_sets_nothing_of_the_whole_machine() {
    let usual = Example::new().document("w");
    assert_eq!(usual.modules, ["overlay", "br_netfilter", "nf_conntrack"]);
    assert_eq!(usual.sysctls["fs.inotify.max_user_instances"], "8192");
    let confined = Example { facts: confined_facts(), ..Example::new() }.document("w");
    assert!(confined.modules.is_empty());
    let keys: Vec<&str> = confined.sysctls.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "net.bridge.bridge-nf-call-ip6tables",
            "net.bridge.bridge-nf-call-iptables",
            "net.ipv4.ip_forward"
        ]
    );
}

#[test]
fn what_others_use_too_is_never_removed_as_a_whole() {
    let grown = Example::new().document("w").grown;
    assert_eq!(grown.nft_tables, ["ip kube-proxy", "ip6 kube-proxy", "ip wharf"]);
    assert_eq!(grown.links, ["wharf0", "wharf-vx"]);
    for path in ["/run/containerd", "/var/lib/cni"] {
        assert!(grown.shared.contains(&path.to_owned()), "{path}");
    }
    // A server of ours keeps its store in the same place.
    let whole = [place::PROGRAMS, place::CONFIG, place::DATA, place::RUN];
    for path in grown.shared.iter().map(String::as_str).chain(whole) {
        assert!(!grown.directories.contains(&path.to_owned()), "{path}");
    }
    let deeper = |pair: &[String]| !pair[1].starts_with(&pair[0]);
    assert!(grown.shared.windows(2).all(deeper), "what is below comes first");
}

#[test]
fn a_document_tells_no_secret_by_accident() {
    let example = Example::new();
    let debug = format!("{:?}", example.input("cp", Stage::Node));
    assert!(!debug.contains("\"secret\""), "{debug}");
}
