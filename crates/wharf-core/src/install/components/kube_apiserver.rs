//! The API server of a controlplane node.

use crate::cluster::NodeRole;
use crate::install::{
    credentials::path,
    document::{DocumentError, DocumentInput, Stage},
};

use super::{
    API_PORT, Component, Kind, Service, directory, etcd::CLIENT_PORT, text_file, version::Version,
};

const AUTHENTICATION: &str = "/etc/wharf/kube-apiserver/authentication.yaml";

pub fn component(input: &DocumentInput<'_>) -> Result<Component, DocumentError> {
    // Every setting here is right for all versions that can be installed.
    Version::parse(&input.spec.kubernetes_version)?;
    Ok(Component {
        stage: Stage::Apiserver,
        service: Service {
            name: "kube-apiserver",
            description: "Kubernetes API server",
            after: &["etcd"],
            kind: Kind::Notify,
            program: "kube-apiserver",
            arguments: arguments(input),
            settings: vec!["LimitNOFILE=65536".to_owned(), "TimeoutStopSec=30".to_owned()],
        },
        directories: vec![directory("/etc/wharf/kube-apiserver", 0o755)],
        files: vec![text_file(AUTHENTICATION, 0o644, AUTHENTICATION_TEXT)],
        reloaded_files: Vec::new(),
        credentials: vec![
            path::SERVICE_ACCOUNT_KEY,
            path::SERVICE_ACCOUNT_PUBLIC,
            path::ENCRYPTION,
            path::ETCD_CA,
            path::APISERVER_ETCD_CLIENT,
            path::APISERVER_ETCD_CLIENT_KEY,
            path::APISERVER_KUBELET_CLIENT,
            path::APISERVER_KUBELET_CLIENT_KEY,
        ],
        reloaded_credentials: vec![
            path::CA,
            path::APISERVER,
            path::APISERVER_KEY,
            path::FRONT_PROXY_CA,
            path::FRONT_PROXY_CLIENT,
            path::FRONT_PROXY_CLIENT_KEY,
        ],
    })
}

/// Whoever has no certificate and no token may ask whether the server is well, and nothing else:
/// the balancers do.
const AUTHENTICATION_TEXT: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
";

/// The etcd members that the API server asks: the one on its own node, so that a further member
/// elsewhere changes nothing here, and where there is none, all of them.
fn etcd_servers(input: &DocumentInput<'_>) -> String {
    if input.node.is(NodeRole::Etcd) {
        return format!("https://127.0.0.1:{CLIENT_PORT}");
    }
    let members = input.nodes.values().filter(|record| record.spec.is(NodeRole::Etcd));
    let urls = members.map(|record| format!("https://{}:{CLIENT_PORT}", record.spec.address));
    urls.collect::<Vec<_>>().join(",")
}

fn arguments(input: &DocumentInput<'_>) -> Vec<String> {
    let spec = input.spec;
    vec![
        format!("--advertise-address={}", input.node.address),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--secure-port={API_PORT}"),
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--authentication-config={AUTHENTICATION}"),
        format!("--encryption-provider-config={}", path::ENCRYPTION),
        format!("--client-ca-file={}", path::CA),
        format!("--tls-cert-file={}", path::APISERVER),
        format!("--tls-private-key-file={}", path::APISERVER_KEY),
        format!("--etcd-servers={}", etcd_servers(input)),
        format!("--etcd-cafile={}", path::ETCD_CA),
        format!("--etcd-certfile={}", path::APISERVER_ETCD_CLIENT),
        format!("--etcd-keyfile={}", path::APISERVER_ETCD_CLIENT_KEY),
        format!("--kubelet-certificate-authority={}", path::CA),
        format!("--kubelet-client-certificate={}", path::APISERVER_KUBELET_CLIENT),
        format!("--kubelet-client-key={}", path::APISERVER_KUBELET_CLIENT_KEY),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--requestheader-client-ca-file={}", path::FRONT_PROXY_CA),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", path::FRONT_PROXY_CLIENT),
        format!("--proxy-client-key-file={}", path::FRONT_PROXY_CLIENT_KEY),
        format!("--service-account-issuer=https://kubernetes.default.svc.{}", spec.cluster_domain),
        format!("--service-account-key-file={}", path::SERVICE_ACCOUNT_PUBLIC),
        format!("--service-account-signing-key-file={}", path::SERVICE_ACCOUNT_KEY),
        format!("--service-cluster-ip-range={}", spec.service_cidr.trunc()),
        "--profiling=false".to_owned(),
    ]
}
