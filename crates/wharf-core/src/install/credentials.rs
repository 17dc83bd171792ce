//! The keys, certificates and kubeconfigs that a host holds, and where they lie.
//!
//! Whoever makes them (the server, by its own authority) fills in a [`HostCredentials`]; the
//! components' configurations name the same [`path`]s.

use std::collections::BTreeMap;

/// Where each of them lies on a host.
pub mod path {
    pub const DIRECTORY: &str = "/etc/wharf/pki";
    pub const ETCD_DIRECTORY: &str = "/etc/wharf/pki/etcd";
    pub const KUBECONFIGS: &str = "/etc/wharf/kubeconfig";

    /// The cluster's authority, on every node; its key on controlplane nodes only.
    pub const CA: &str = "/etc/wharf/pki/ca.crt";
    pub const CA_KEY: &str = "/etc/wharf/pki/ca.key";

    pub const APISERVER: &str = "/etc/wharf/pki/apiserver.crt";
    pub const APISERVER_KEY: &str = "/etc/wharf/pki/apiserver.key";
    pub const APISERVER_KUBELET_CLIENT: &str = "/etc/wharf/pki/apiserver-kubelet-client.crt";
    pub const APISERVER_KUBELET_CLIENT_KEY: &str = "/etc/wharf/pki/apiserver-kubelet-client.key";
    pub const APISERVER_ETCD_CLIENT: &str = "/etc/wharf/pki/apiserver-etcd-client.crt";
    pub const APISERVER_ETCD_CLIENT_KEY: &str = "/etc/wharf/pki/apiserver-etcd-client.key";
    pub const FRONT_PROXY_CA: &str = "/etc/wharf/pki/front-proxy-ca.crt";
    pub const FRONT_PROXY_CLIENT: &str = "/etc/wharf/pki/front-proxy-client.crt";
    pub const FRONT_PROXY_CLIENT_KEY: &str = "/etc/wharf/pki/front-proxy-client.key";
    /// Signs and checks the tokens of service accounts.
    pub const SERVICE_ACCOUNT_KEY: &str = "/etc/wharf/pki/sa.key";
    pub const SERVICE_ACCOUNT_PUBLIC: &str = "/etc/wharf/pki/sa.pub";
    /// How the API server encrypts Secrets in etcd.
    pub const ENCRYPTION: &str = "/etc/wharf/pki/encryption.yaml";

    /// On etcd members, and on controlplane nodes for the API server's client.
    pub const ETCD_CA: &str = "/etc/wharf/pki/etcd/ca.crt";
    pub const ETCD_SERVER: &str = "/etc/wharf/pki/etcd/server.crt";
    pub const ETCD_SERVER_KEY: &str = "/etc/wharf/pki/etcd/server.key";
    pub const ETCD_PEER: &str = "/etc/wharf/pki/etcd/peer.crt";
    pub const ETCD_PEER_KEY: &str = "/etc/wharf/pki/etcd/peer.key";

    /// What kubelet serves with; as a client it uses its kubeconfig.
    pub const KUBELET: &str = "/etc/wharf/pki/kubelet.crt";
    pub const KUBELET_KEY: &str = "/etc/wharf/pki/kubelet.key";

    /// The agent's certificate and key for its link to the server, in one file.
    pub const LINK_IDENTITY: &str = "/etc/wharf/pki/agent-link.pem";
    /// Who signs what servers show to agents.
    pub const LINK_AUTHORITY: &str = "/etc/wharf/pki/agents-ca.crt";

    /// What whoever asks agents for more than their status must know.
    pub const AGENT_TOKEN: &str = "/etc/wharf/pki/agent-token";

    pub const KUBELET_KUBECONFIG: &str = "/etc/wharf/kubeconfig/kubelet.yaml";
    pub const PROXY_KUBECONFIG: &str = "/etc/wharf/kubeconfig/kube-proxy.yaml";
    pub const AGENT_KUBECONFIG: &str = "/etc/wharf/kubeconfig/agent.yaml";
    pub const CONTROLLERS_KUBECONFIG: &str = "/etc/wharf/kubeconfig/kube-controller-manager.yaml";
    pub const SCHEDULER_KUBECONFIG: &str = "/etc/wharf/kubeconfig/kube-scheduler.yaml";
}

/// Mode of what is secret, and of what is not.
pub const SECRET_MODE: u32 = 0o600;
pub const PUBLIC_MODE: u32 = 0o644;

/// The files of one host: by path, their mode and text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HostCredentials(pub BTreeMap<String, (u32, String)>);

impl HostCredentials {
    pub fn insert_secret(&mut self, path: &str, text: impl Into<String>) {
        self.0.insert(path.to_owned(), (SECRET_MODE, text.into()));
    }

    pub fn insert_public(&mut self, path: &str, text: impl Into<String>) {
        self.0.insert(path.to_owned(), (PUBLIC_MODE, text.into()));
    }
}

impl std::fmt::Debug for HostCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
