//! A Kubernetes API that has two nodes and knows one token.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, rustls};
use tokio_util::task::AbortOnDropHandle;

pub struct Fake {
    address: String,
    authority: String,
    _server: AbortOnDropHandle<()>,
}

impl Fake {
    pub async fn start() -> Self {
        let authority_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.der().clone()],
                rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(config))));
        Self { address, authority: authority.pem(), _server: AbortOnDropHandle::new(server) }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1
kind: Config
current-context: here
clusters:
- name: here
  cluster:
    server: https://{}
    certificate-authority-data: {}
users:
- name: me
  user:
    token: secret-token
contexts:
- name: here
  context: {{cluster: here, user: me}}
",
            self.address,
            STANDARD.encode(&self.authority)
        )
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) {
    let router = Router::new()
        .route("/version", get(Json(json!({"gitVersion": "v1.36.3"}))))
        .route(
            "/api/v1/nodes",
            get(Json(list(&[
                node("m1", "192.0.2.11", "control-plane", "True"),
                node("w1", "192.0.2.21", "worker", "False"),
            ]))),
        )
        .route("/api/v1/pods", get(Json(list(&[pod()]))))
        .fallback(async || refusal(StatusCode::NOT_FOUND))
        .layer(from_fn(with_token));
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let http = auto::Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(router);
            http.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

async fn with_token(request: Request, next: Next) -> Response {
    let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    match token {
        Some("Bearer secret-token") => next.run(request).await,
        _ => refusal(StatusCode::UNAUTHORIZED),
    }
}

fn refusal(status: StatusCode) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": status.to_string(), "reason": "Refused", "code": status.as_u16(),
    });
    (status, Json(body)).into_response()
}

fn list(items: &[Value]) -> Value {
    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})
}

fn node(name: &str, address: &str, role: &str, ready: &str) -> Value {
    let role = format!("node-role.kubernetes.io/{role}");
    let amounts = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    json!({
        "metadata": {"name": name, "uid": name, "labels": {role: "true"}},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletSays"}],
            "capacity": amounts, "allocatable": amounts,
            "nodeInfo": {
                "kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.2.9",
                "operatingSystem": "linux", "osImage": "Debian", "bootID": "b", "machineID": "m",
                "systemUUID": "s", "kernelVersion": "6", "kubeProxyVersion": "", "architecture": "amd64",
            },
        },
    })
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "nodeName": "w1",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}],
        },
        "status": {"phase": "Running"},
    })
}
