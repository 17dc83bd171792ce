//! Which keys, certificates and kubeconfigs of a cluster lie on which host.

use std::collections::BTreeMap;

use wharf_core::{
    cluster::{ClusterSpec, NodeRole, NodeSpec},
    install::credentials::{HostCredentials, path},
};
use wharf_pki::{AgentAuthority, CertKey, ClusterPki, Kubeconfig, Leaf, PkiError};

/// What agents need for their links.
pub struct Links<'a> {
    pub authority: &'a AgentAuthority,
    /// By the node's name.
    pub agents: &'a BTreeMap<String, CertKey>,
}

/// Everything that a node's host needs by its roles, and nothing more.
pub fn credentials_of(
    pki: &ClusterPki,
    links: &Links<'_>,
    spec: &ClusterSpec,
    node: &NodeSpec,
) -> Result<HostCredentials, PkiError> {
    let mut files = Files { pki, spec, credentials: HostCredentials::default() };
    let name = node.name.as_str();
    let link = links.agents.get(name);
    let link = link.ok_or_else(|| PkiError::Missing { name: format!("link of {name}") })?;
    // One file, as the agent keeps it when it gets a new one over the link.
    files.secret(path::LINK_IDENTITY, &format!("{}{}", link.cert_pem, link.key_pem.expose()));
    files.public(path::LINK_AUTHORITY, links.authority.certificate_pem());
    files.secret(path::AGENT_TOKEN, pki.cluster_token.expose());
    files.kubeconfig(Kubeconfig::Agent(name), path::AGENT_KUBECONFIG)?;
    files.public(path::CA, &pki.kubernetes_ca.cert_pem);
    files.pair(Leaf::KubeletServing(name), path::KUBELET, path::KUBELET_KEY)?;
    files.kubeconfig(Kubeconfig::Kubelet(name), path::KUBELET_KUBECONFIG)?;
    files.kubeconfig(Kubeconfig::KubeProxy(name), path::PROXY_KUBECONFIG)?;
    if node.is(NodeRole::Etcd) || node.is(NodeRole::Controlplane) {
        files.public(path::ETCD_CA, &pki.etcd_ca.cert_pem);
    }
    if node.is(NodeRole::Etcd) {
        files.pair(Leaf::EtcdServer(name), path::ETCD_SERVER, path::ETCD_SERVER_KEY)?;
        files.pair(Leaf::EtcdPeer(name), path::ETCD_PEER, path::ETCD_PEER_KEY)?;
    }
    if node.is(NodeRole::Controlplane) {
        files.controlplane(name)?;
    }
    Ok(files.credentials)
}

struct Files<'a> {
    pki: &'a ClusterPki,
    spec: &'a ClusterSpec,
    credentials: HostCredentials,
}

impl Files<'_> {
    fn controlplane(&mut self, name: &str) -> Result<(), PkiError> {
        let pki = self.pki;
        self.pair(Leaf::Apiserver(name), path::APISERVER, path::APISERVER_KEY)?;
        self.pair(
            Leaf::ApiserverKubeletClient,
            path::APISERVER_KUBELET_CLIENT,
            path::APISERVER_KUBELET_CLIENT_KEY,
        )?;
        self.pair(
            Leaf::ApiserverEtcdClient,
            path::APISERVER_ETCD_CLIENT,
            path::APISERVER_ETCD_CLIENT_KEY,
        )?;
        self.pair(Leaf::FrontProxyClient, path::FRONT_PROXY_CLIENT, path::FRONT_PROXY_CLIENT_KEY)?;
        self.public(path::FRONT_PROXY_CA, &pki.front_proxy_ca.cert_pem);
        self.secret(path::CA_KEY, pki.kubernetes_ca.key_pem.expose());
        self.secret(path::SERVICE_ACCOUNT_KEY, pki.service_account.private_pem.expose());
        self.public(path::SERVICE_ACCOUNT_PUBLIC, &pki.service_account.public_pem);
        self.secret(path::ENCRYPTION, &render_encryption(pki.encryption_key.expose()));
        self.kubeconfig(Kubeconfig::ControllerManager, path::CONTROLLERS_KUBECONFIG)?;
        self.kubeconfig(Kubeconfig::Scheduler, path::SCHEDULER_KUBECONFIG)
    }

    fn pair(&mut self, leaf: Leaf<'_>, cert: &str, key: &str) -> Result<(), PkiError> {
        let pair = self.pki.leaf(leaf)?;
        self.credentials.insert_public(cert, &pair.cert_pem);
        self.credentials.insert_secret(key, pair.key_pem.expose());
        Ok(())
    }

    fn kubeconfig(&mut self, who: Kubeconfig<'_>, path: &str) -> Result<(), PkiError> {
        let text = self.pki.kubeconfig(self.spec, who)?;
        self.credentials.insert_secret(path, text);
        Ok(())
    }

    fn public(&mut self, path: &str, text: &str) {
        self.credentials.insert_public(path, text);
    }

    fn secret(&mut self, path: &str, text: &str) {
        self.credentials.insert_secret(path, text);
    }
}

/// How API servers encrypt Secrets. The second provider reads what was written before.
fn render_encryption(key: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
      - name: wharf
        secret: {key}
  - identity: {{}}
"
    )
}
