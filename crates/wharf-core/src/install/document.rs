//! The whole of what a node's host shall hold, made of what the components say.
//!
//! The server sends the same document several times, each [`Stage`] with more units started. All
//! stages hold the same files, so only the first one writes.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{ClusterSecrets, ClusterSpec, NodeRecord, NodeRole, NodeSpec};

use super::{
    components::{
        BIN, CNI_PLUGINS, Component, agent, components, containerd, directory, etcd, kube_proxy,
        kubelet, text_file,
    },
    credentials::{HostCredentials, path},
    facts::HostFacts,
    host::{Bundled, Content, Directory, File, Grown, HostDocument, Image, Unit, Wanted, place},
    network::{ADDRESSES, BRIDGE, NFT_TABLE, TUNNEL},
};

/// Programs and plugins of the bundle by their name: `kubelet`, `bridge`, and `wharf` itself.
pub type BundleIndex = BTreeMap<String, Bundled>;

/// How far an installation has come. Each stage starts more units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Kernel, files, containerd, the agent.
    Prepare,
    Etcd,
    Apiserver,
    /// What needs an API that answers: controller-manager and scheduler, kubelet and kube-proxy.
    /// With its images the host becomes a node.
    Node,
}

impl Stage {
    pub const ALL: [Stage; 4] = [Stage::Prepare, Stage::Etcd, Stage::Apiserver, Stage::Node];
}

/// Everything that decides on the document of one host.
#[derive(Debug, Clone, Copy)]
pub struct DocumentInput<'a> {
    pub spec: &'a ClusterSpec,
    pub node: &'a NodeSpec,
    /// What the server chose for each node, this one and all that it shall reach.
    pub nodes: &'a BTreeMap<String, NodeRecord>,
    pub facts: &'a HostFacts,
    pub credentials: &'a HostCredentials,
    pub bundle: &'a BundleIndex,
    /// What containerd shall have; the sandbox image (`wharf.dev/pause:…`) is always among them.
    pub images: &'a [Image],
    pub stage: Stage,
    /// Keeps members of different etcd clusters apart that meet by mistake, and clusters of one
    /// name.
    pub etcd_token: &'a str,
    pub secrets: &'a ClusterSecrets,
    /// Where the agent finds servers, as `host:port`; without any it has no link.
    pub servers: &'a [String],
    /// The text of the node's EdgeNodeClusterConfig, in a cluster that has somewhere to drain to.
    pub membership: Option<&'a str>,
}

impl DocumentInput<'_> {
    /// What the server chose for the node.
    pub(crate) fn record(&self) -> Result<&NodeRecord, DocumentError> {
        let name = &self.node.name;
        self.nodes.get(name).ok_or_else(|| DocumentError::NoPodCidr(name.clone()))
    }

    /// The image with this name, of whatever version.
    pub(crate) fn image(&self, name: &str) -> Result<&Image, DocumentError> {
        let named = |image: &&Image| image.name.rsplit_once(':').is_some_and(|(n, _)| n == name);
        let found = self.images.iter().find(named);
        found.ok_or_else(|| DocumentError::MissingImage(name.to_owned()))
    }

    fn program(&self, name: &str) -> Result<Content, DocumentError> {
        let missing = || DocumentError::MissingProgram(name.to_owned());
        self.bundle.get(name).cloned().map(Content::Bundled).ok_or_else(missing)
    }
}

/// Why there is no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("the bundle holds no {0}")]
    MissingProgram(String),
    #[error("the bundle holds no image {0}")]
    MissingImage(String),
    #[error("node {0} has no addresses for its pods yet")]
    NoPodCidr(String),
    #[error("it is not decided yet with which members the etcd of node {0} starts")]
    NoEtcdStart(String),
    #[error("{0:?} is not a version of Kubernetes that can be installed; there are 1.34 to 1.36")]
    Version(String),
    #[error("{0:?} is not the address of a registry")]
    Registry(String),
    #[error("the keys and certificates of node {node} lack {path}")]
    MissingCredential { node: String, path: String },
}

/// What the node's host shall hold, with the units of its stage started.
pub fn host_document(input: &DocumentInput<'_>) -> Result<HostDocument, DocumentError> {
    let components = components(input)?;
    let mut files = programs(input, &components)?;
    files.extend(credentials(input, &components)?);
    let own = components.iter().flat_map(|c| c.files.iter().chain(&c.reloaded_files));
    files.extend(own.cloned());
    let own = components.iter().flat_map(|component| component.directories.iter());
    Ok(HostDocument {
        cluster: input.spec.name.clone(),
        identity: input.etcd_token.to_owned(),
        modules: modules(input.facts),
        sysctls: sysctls(input.facts),
        directories: common_directories().chain(own.cloned()).collect(),
        files,
        links: Vec::new(),
        images: if input.stage == Stage::Node { input.images.to_vec() } else { Vec::new() },
        units: components.iter().map(|component| unit(component, input.stage)).collect(),
        grown: grown(input.facts),
    })
}

/// Programs that nobody runs as a unit: what containerd calls, and tools for whoever looks after
/// the host.
const CALLED: [&str; 3] = ["containerd-shim-runc-v2", "ctr", "runc"];
const CALLED_FOR_ETCD: [&str; 1] = ["etcdctl"];
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

fn programs(
    input: &DocumentInput<'_>,
    components: &[Component],
) -> Result<Vec<File>, DocumentError> {
    let mut programs: Vec<&str> = components.iter().map(|c| c.service.program).collect();
    programs.extend(CALLED);
    if input.node.is(NodeRole::Etcd) {
        programs.extend(CALLED_FOR_ETCD);
    }
    if agent::has_volumes(input) {
        programs.extend(agent::HELPERS);
    }
    let programs = programs.into_iter().map(|name| (BIN, name));
    let plugins = PLUGINS.into_iter().map(|name| (CNI_PLUGINS, name));
    let file = |(place, name): (&str, &str)| {
        let path = format!("{place}/{name}");
        Ok(File { path, mode: 0o755, content: input.program(name)? })
    };
    programs.chain(plugins).map(file).collect()
}

/// Only what a component of this host reads: a worker gets no key of the controlplane, whatever
/// was given.
fn credentials(
    input: &DocumentInput<'_>,
    components: &[Component],
) -> Result<Vec<File>, DocumentError> {
    let read = |c: &Component| [c.credentials.clone(), c.reloaded_credentials.clone()].concat();
    let paths: BTreeSet<&str> = components.iter().flat_map(read).collect();
    let file = |path: &str| match input.credentials.0.get(path) {
        Some((mode, text)) => Ok(text_file(path, *mode, text.clone())),
        None => Err(DocumentError::MissingCredential {
            node: input.node.name.clone(),
            path: path.to_owned(),
        }),
    };
    paths.into_iter().map(file).collect()
}

fn unit(component: &Component, stage: Stage) -> Unit {
    let files = component.files.iter().map(|file| file.path.clone());
    let credentials = component.credentials.iter().map(|path| (*path).to_owned());
    Unit {
        name: component.service.unit(),
        text: component.service.render(),
        wanted: match component.stage <= stage {
            true => Wanted::Started,
            false => Wanted::Present,
        },
        inputs: std::iter::once(component.service.program_path())
            .chain(files)
            .chain(credentials)
            .collect(),
    }
}

fn common_directories() -> impl Iterator<Item = Directory> {
    let open = [place::PROGRAMS, BIN, CNI_PLUGINS, place::CONFIG, place::DATA];
    let closed = [path::DIRECTORY, path::ETCD_DIRECTORY, path::KUBECONFIGS];
    let open = open.into_iter().map(|path| directory(path, 0o755));
    open.chain(closed.into_iter().map(|path| directory(path, 0o700)))
}

/// A container has the modules of the machine below it, and cannot load others.
fn modules(facts: &HostFacts) -> Vec<String> {
    match facts.container {
        true => Vec::new(),
        false => ["overlay", "br_netfilter", "nf_conntrack"].map(str::to_owned).to_vec(),
    }
}

fn sysctls(facts: &HostFacts) -> BTreeMap<String, String> {
    let mut wanted = vec![("net.ipv4.ip_forward", "1")];
    // Answers between pods on one bridge must pass where Services are translated.
    if !facts.container || facts.kernel_modules.iter().any(|module| module == "br_netfilter") {
        wanted.push(("net.bridge.bridge-nf-call-iptables", "1"));
        wanted.push(("net.bridge.bridge-nf-call-ip6tables", "1"));
    }
    // Of the whole machine, so not a container's to set. Each kubelet, shim and many a pod watches
    // files; the usual 128 last for a few dozen pods.
    if !facts.container {
        wanted.push(("fs.inotify.max_user_instances", "8192"));
        wanted.push(("fs.inotify.max_user_watches", "524288"));
    }
    wanted.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Where shims put their sockets, libcni its results and agents what outlives a boot, whoever's they
/// are; the deepest first.
const SHARED: [&str; 5] =
    ["/run/containerd/s", "/run/containerd", "/var/lib/cni/results", "/var/lib/cni", "/persist"];

fn grown(facts: &HostFacts) -> Grown {
    let root = containerd::root_directory(facts);
    let mut directories = vec![
        kubelet::DATA,
        etcd::DATA,
        &root,
        ADDRESSES,
        containerd::STATE,
        containerd::RUNC,
        "/var/log/pods",
        "/var/log/containers",
    ];
    directories.extend(agent::GROWN);
    let pods = if containerd::systemd_cgroups(facts) { "kubepods.slice" } else { "kubepods" };
    let texts = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
    Grown {
        directories: texts(directories),
        links: texts(vec![BRIDGE, TUNNEL]),
        nft_tables: texts(kube_proxy::NFT_TABLES.into_iter().chain([NFT_TABLE]).collect()),
        // Shims outlive containerd in the cgroup of its unit.
        cgroups: texts(vec![pods, "system.slice/wharf-containerd.service"]),
        netns_prefixes: texts(vec!["cni-"]),
        shared: texts(SHARED.to_vec()),
    }
}

#[cfg(test)]
mod tests;
