//! Kubeconfigs: where to find the API, whom to trust there and who calls.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Serialize, Serializer};
use wharf_core::{
    cluster::{ClusterSpec, NodeRole},
    install::{components::API_PORT, network::BALANCER},
};
use zeroize::Zeroizing;

use crate::{ClusterPki, Leaf, PkiError};

/// Who gets a kubeconfig.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubeconfig<'a> {
    /// To the first controlplane node; a further context for each of them.
    Admin,
    /// To the API server on the same machine.
    ControllerManager,
    Scheduler,
    /// To the balancer on the same machine.
    Kubelet(&'a str),
    KubeProxy(&'a str),
    Agent(&'a str),
}

impl<'a> Kubeconfig<'a> {
    /// The certificate in it.
    pub fn leaf(self) -> Leaf<'a> {
        match self {
            Kubeconfig::Admin => Leaf::KubeAdmin,
            Kubeconfig::ControllerManager => Leaf::ControllerManager,
            Kubeconfig::Scheduler => Leaf::Scheduler,
            Kubeconfig::Kubelet(node) => Leaf::Kubelet(node),
            Kubeconfig::KubeProxy(node) => Leaf::KubeProxy(node),
            Kubeconfig::Agent(node) => Leaf::Agent(node),
        }
    }

    /// Names and URLs of API servers, the one to use first.
    fn servers(self, spec: &ClusterSpec) -> Result<Vec<(String, String)>, PkiError> {
        let local = |at: String| Ok(vec![(spec.name.clone(), at)]);
        match self {
            Kubeconfig::Admin => admin_servers(spec),
            Kubeconfig::ControllerManager | Kubeconfig::Scheduler => {
                local(format!("https://127.0.0.1:{API_PORT}"))
            }
            Kubeconfig::Kubelet(_) | Kubeconfig::KubeProxy(_) | Kubeconfig::Agent(_) => {
                local(format!("https://{BALANCER}"))
            }
        }
    }
}

fn admin_servers(spec: &ClusterSpec) -> Result<Vec<(String, String)>, PkiError> {
    let url = |address| format!("https://{address}:{API_PORT}");
    let controlplanes = || spec.nodes_with(NodeRole::Controlplane);
    let first = controlplanes().next().ok_or(PkiError::NoControlplane)?;
    let each =
        controlplanes().map(|node| (format!("{}-{}", spec.name, node.name), url(node.address)));
    Ok(std::iter::once((spec.name.clone(), url(first.address))).chain(each).collect())
}

impl ClusterPki {
    /// The kubeconfig as YAML; certificates and key are inside.
    pub fn kubeconfig(&self, spec: &ClusterSpec, who: Kubeconfig<'_>) -> Result<String, PkiError> {
        let pair = self.leaf(who.leaf())?;
        let servers = who.servers(spec)?;
        let authority = STANDARD.encode(&self.kubernetes_ca.cert_pem);
        let user = who.leaf().common_name();
        let cluster = |(name, server): &(String, String)| NamedCluster {
            name: name.clone(),
            cluster: Cluster {
                server: server.clone(),
                certificate_authority_data: authority.clone(),
            },
        };
        let context = |(name, _): &(String, String)| NamedContext {
            name: name.clone(),
            context: Context { cluster: name.clone(), user: user.clone() },
        };
        render(&Config {
            api_version: "v1",
            kind: "Config",
            current_context: spec.name.clone(),
            clusters: servers.iter().map(cluster).collect(),
            contexts: servers.iter().map(context).collect(),
            users: vec![NamedUser {
                name: user.clone(),
                user: User {
                    client_certificate_data: STANDARD.encode(&pair.cert_pem),
                    client_key_data: Zeroizing::new(STANDARD.encode(pair.key_pem.expose())),
                },
            }],
        })
    }
}

fn render(config: &Config) -> Result<String, PkiError> {
    let mut options = serde_saphyr::SerializerOptions::default();
    // Clients read an older YAML than we write, in which a cluster named `on` is a truth value.
    options.quote_all = true;
    serde_saphyr::to_string_with_options(config, options).map_err(PkiError::Yaml)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Config {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    current_context: String,
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Serialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: String,
}

#[derive(Serialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Serialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Serialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: String,
    #[serde(serialize_with = "expose")]
    client_key_data: Zeroizing<String>,
}

fn expose<S: Serializer>(text: &Zeroizing<String>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}
