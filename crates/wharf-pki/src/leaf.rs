//! The table of a cluster's certificates.

use std::{collections::BTreeSet, fmt, net::Ipv4Addr};

use wharf_core::cluster::{ClusterSpec, NodeRole, NodeSpec};

/// Who signs. Three, so that a certificate of one kind opens nothing of another: with a common
/// authority every kubelet could read etcd, and with it every Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authority {
    Kubernetes,
    Etcd,
    FrontProxy,
}

impl Authority {
    pub const ALL: [Authority; 3] = [Authority::Kubernetes, Authority::Etcd, Authority::FrontProxy];

    pub fn name(self) -> &'static str {
        match self {
            Authority::Kubernetes => "kubernetes-ca",
            Authority::Etcd => "etcd-ca",
            Authority::FrontProxy => "front-proxy-ca",
        }
    }
}

/// A certificate of a cluster; some are one for each node, named by the node.
///
/// What names no node is the same identity wherever it is used, so the controlplane nodes share
/// it, and a further one changes nothing on the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leaf<'a> {
    /// What the API server of a node shows.
    Apiserver(&'a str),
    /// As which API servers call kubelets. RBAC must bind the user
    /// `kube-apiserver-kubelet-client` to `system:kubelet-api-admin`.
    ApiserverKubeletClient,
    /// As which API servers call etcd.
    ApiserverEtcdClient,
    /// As which API servers call aggregated APIs for their users.
    FrontProxyClient,
    /// As which somebody else asks etcd for its health and its members.
    EtcdHealthcheckClient,
    EtcdServer(&'a str),
    EtcdPeer(&'a str),
    ControllerManager,
    Scheduler,
    /// As which the kubelet of a node, and the agent beside it, call the API.
    Kubelet(&'a str),
    /// What the kubelet of a node shows.
    KubeletServing(&'a str),
    KubeProxy(&'a str),
    /// As which the agent of a node reads what a node may not: RBAC gives the group `wharf:agents`
    /// just that.
    Agent(&'a str),
    /// The administrator. In `system:masters`, so that it works before any RBAC object exists.
    KubeAdmin,
}

impl fmt::Display for Leaf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leaf::Apiserver(node) => write!(f, "apiserver/{node}"),
            Leaf::ApiserverKubeletClient => f.write_str("apiserver-kubelet-client"),
            Leaf::ApiserverEtcdClient => f.write_str("apiserver-etcd-client"),
            Leaf::FrontProxyClient => f.write_str("front-proxy-client"),
            Leaf::EtcdHealthcheckClient => f.write_str("etcd-healthcheck-client"),
            Leaf::EtcdServer(node) => write!(f, "etcd-server/{node}"),
            Leaf::EtcdPeer(node) => write!(f, "etcd-peer/{node}"),
            Leaf::ControllerManager => f.write_str("controller-manager"),
            Leaf::Scheduler => f.write_str("scheduler"),
            Leaf::Kubelet(node) => write!(f, "kubelet/{node}"),
            Leaf::KubeletServing(node) => write!(f, "kubelet-serving/{node}"),
            Leaf::KubeProxy(node) => write!(f, "kube-proxy/{node}"),
            Leaf::Agent(node) => write!(f, "agent/{node}"),
            Leaf::KubeAdmin => f.write_str("kube-admin"),
        }
    }
}

impl Leaf<'_> {
    pub fn authority(self) -> Authority {
        match self {
            Leaf::ApiserverEtcdClient
            | Leaf::EtcdHealthcheckClient
            | Leaf::EtcdServer(_)
            | Leaf::EtcdPeer(_) => Authority::Etcd,
            Leaf::FrontProxyClient => Authority::FrontProxy,
            Leaf::Apiserver(_)
            | Leaf::ApiserverKubeletClient
            | Leaf::ControllerManager
            | Leaf::Scheduler
            | Leaf::Kubelet(_)
            | Leaf::KubeletServing(_)
            | Leaf::KubeProxy(_)
            | Leaf::Agent(_)
            | Leaf::KubeAdmin => Authority::Kubernetes,
        }
    }

    /// The name of the user or machine in it.
    pub fn common_name(self) -> String {
        match self {
            Leaf::Apiserver(_) => "kube-apiserver".to_owned(),
            Leaf::ApiserverKubeletClient => "kube-apiserver-kubelet-client".to_owned(),
            Leaf::ApiserverEtcdClient => "kube-apiserver-etcd-client".to_owned(),
            Leaf::FrontProxyClient => "front-proxy-client".to_owned(),
            Leaf::EtcdHealthcheckClient => "kube-etcd-healthcheck-client".to_owned(),
            Leaf::EtcdServer(node) | Leaf::EtcdPeer(node) => node.to_owned(),
            Leaf::ControllerManager => "system:kube-controller-manager".to_owned(),
            Leaf::Scheduler => "system:kube-scheduler".to_owned(),
            Leaf::Kubelet(node) | Leaf::KubeletServing(node) => format!("system:node:{node}"),
            Leaf::KubeProxy(_) => "system:kube-proxy".to_owned(),
            Leaf::Agent(node) => format!("wharf:agent:{node}"),
            Leaf::KubeAdmin => "kube-admin".to_owned(),
        }
    }

    /// The group of that user.
    pub fn organization(self) -> Option<&'static str> {
        match self {
            Leaf::Kubelet(_) | Leaf::KubeletServing(_) => Some("system:nodes"),
            Leaf::Agent(_) => Some("wharf:agents"),
            Leaf::KubeAdmin => Some("system:masters"),
            Leaf::Apiserver(_)
            | Leaf::ApiserverKubeletClient
            | Leaf::ApiserverEtcdClient
            | Leaf::FrontProxyClient
            | Leaf::EtcdHealthcheckClient
            | Leaf::EtcdServer(_)
            | Leaf::EtcdPeer(_)
            | Leaf::ControllerManager
            | Leaf::Scheduler
            | Leaf::KubeProxy(_) => None,
        }
    }

    pub fn usage(self) -> Usage {
        match self {
            Leaf::Apiserver(_) | Leaf::KubeletServing(_) => Usage::Server,
            // A member calls others with what it shows to others, and its gateway calls itself.
            Leaf::EtcdServer(_) | Leaf::EtcdPeer(_) => Usage::Both,
            Leaf::ApiserverKubeletClient
            | Leaf::ApiserverEtcdClient
            | Leaf::FrontProxyClient
            | Leaf::EtcdHealthcheckClient
            | Leaf::ControllerManager
            | Leaf::Scheduler
            | Leaf::Kubelet(_)
            | Leaf::KubeProxy(_)
            | Leaf::Agent(_)
            | Leaf::KubeAdmin => Usage::Client,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    Both,
}

impl Usage {
    pub fn serves(self) -> bool {
        self != Usage::Client
    }

    pub fn calls(self) -> bool {
        self != Usage::Server
    }
}

/// A certificate that a cluster needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub leaf: Leaf<'a>,
    /// The names and addresses under which it is called.
    pub names: BTreeSet<String>,
}

/// All certificates that a cluster needs.
pub fn wanted(spec: &ClusterSpec) -> Vec<Wanted<'_>> {
    let clients = [
        Leaf::ApiserverKubeletClient,
        Leaf::ApiserverEtcdClient,
        Leaf::FrontProxyClient,
        Leaf::EtcdHealthcheckClient,
        Leaf::ControllerManager,
        Leaf::Scheduler,
        Leaf::KubeAdmin,
    ];
    let mut all: Vec<Wanted<'_>> = clients.into_iter().map(client).collect();
    for node in &spec.nodes {
        let name = node.name.as_str();
        all.push(client(Leaf::Kubelet(name)));
        all.push(client(Leaf::KubeProxy(name)));
        all.push(client(Leaf::Agent(name)));
        all.push(Wanted { leaf: Leaf::KubeletServing(name), names: own_names(node) });
        if node.is(NodeRole::Controlplane) {
            all.push(Wanted { leaf: Leaf::Apiserver(name), names: apiserver_names(spec, node) });
        }
        if node.is(NodeRole::Etcd) {
            for leaf in [Leaf::EtcdServer(name), Leaf::EtcdPeer(name)] {
                all.push(Wanted { leaf, names: with_loopback(own_names(node)) });
            }
        }
    }
    all
}

fn client(leaf: Leaf<'_>) -> Wanted<'_> {
    Wanted { leaf, names: BTreeSet::new() }
}

fn own_names(node: &NodeSpec) -> BTreeSet<String> {
    BTreeSet::from([node.name.clone(), node.address.to_string()])
}

fn with_loopback(mut names: BTreeSet<String>) -> BTreeSet<String> {
    names.extend(["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string()]);
    names
}

/// Not the addresses of the other controlplane nodes: each is called by its own, or on loopback
/// through a balancer, so that a further one changes no certificate of those that are there.
fn apiserver_names(spec: &ClusterSpec, node: &NodeSpec) -> BTreeSet<String> {
    let mut names = with_loopback(own_names(node));
    names.insert(first_service_address(spec).to_string());
    names.extend(["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned));
    names.insert(format!("kubernetes.default.svc.{}", spec.cluster_domain));
    names
}

/// The address of the Service `kubernetes`.
fn first_service_address(spec: &ClusterSpec) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(spec.service_cidr.network()).saturating_add(1))
}
