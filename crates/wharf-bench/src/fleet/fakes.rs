//! API servers of many clusters in one process, each at a loopback address of its own.
//!
//! They answer what a probe asks: version, nodes, pods page by page, and that nobody measures. They
//! note when they were asked, which is how the pauses between probes are known.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

pub const VERSION: &str = "v1.36.3";
/// Below the ports that the kernel gives to clients, so that nobody else takes it of one who died.
const PORT: u16 = 16_443;
const HOST: &str = "fleet.test";
const TOKEN: &str = "fleet-token";
const PODS_A_NODE: usize = 10;
/// What the server asks for at once.
const PODS_A_PAGE: usize = 250;
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// How an API server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Answers,
    /// Nobody listens.
    Refuses,
    /// Takes connections and says nothing, not even in TLS.
    SaysNothing,
    /// Takes requests and answers none.
    AnswersNothing,
}

pub struct Fakes {
    all: Vec<Arc<Fake>>,
    authority: String,
    nodes: usize,
    /// Threads of their own, so that who asks the server is not kept waiting by them.
    _runtime: Runtime,
}

struct Fake {
    address: SocketAddr,
    life: watch::Sender<Life>,
    asked: Mutex<Vec<Instant>>,
}

/// What all of them answer, head and body.
struct Answers {
    tls: TlsAcceptor,
    version: Vec<u8>,
    nodes: Vec<u8>,
    pods: Vec<Vec<u8>>,
    missing: Vec<u8>,
    forbidden: Vec<u8>,
}

impl Fakes {
    pub fn start(count: usize, nodes: usize) -> Result<Fakes> {
        let runtime = crate::drive::runtime()?;
        let (tls, authority) = identity()?;
        let answers = Arc::new(Answers::of(tls, nodes));
        let mut all = Vec::new();
        for number in 0..count {
            let address = SocketAddr::from((address(number), PORT));
            let listener = runtime
                .block_on(TcpListener::bind(address))
                .with_context(|| format!("cannot listen at {address}"))?;
            let (life, _) = watch::channel(Life::Answers);
            let fake = Arc::new(Fake { address, life, asked: Mutex::default() });
            runtime.spawn(serve(fake.clone(), listener, answers.clone()));
            all.push(fake);
        }
        Ok(Fakes { all, authority, nodes, _runtime: runtime })
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// From now on the API server behaves so; its connections end.
    pub fn turn(&self, number: usize, life: Life) {
        if let Some(fake) = self.all.get(number) {
            fake.life.send_replace(life);
        }
    }

    pub fn kubeconfig(&self, number: usize) -> Result<String> {
        let fake = self.all.get(number).context("there is no such cluster")?;
        let authority = STANDARD.encode(&self.authority);
        Ok(format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: fleet\n\
             clusters:\n\
             - name: fleet\n  \
               cluster: {{server: 'https://{}', tls-server-name: {HOST}, \
               certificate-authority-data: {authority}}}\n\
             users:\n\
             - name: admin\n  user: {{token: {TOKEN}}}\n\
             contexts:\n\
             - name: fleet\n  context: {{cluster: fleet, user: admin}}\n",
            fake.address
        ))
    }

    /// The pauses between the probes of each cluster that answers, from the first moment to the
    /// first probe and from the last probe to the last moment too.
    pub fn gaps(&self, from: Instant, to: Instant) -> Vec<Duration> {
        let alive = self.all.iter().filter(|fake| *fake.life.borrow() == Life::Answers);
        alive
            .flat_map(|fake| {
                let asked = fake.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                gaps(&asked, from, to)
            })
            .collect()
    }
}

fn gaps(asked: &[Instant], from: Instant, to: Instant) -> Vec<Duration> {
    let within = asked.iter().copied().filter(|moment| (from..=to).contains(moment));
    let mut before = from;
    let mut gaps = Vec::new();
    for moment in within.chain([to]) {
        gaps.push(moment.duration_since(before));
        before = moment;
    }
    gaps
}

/// All of 127.0.0.0/8 is this machine. Each process has a part of its own, so that two fleets can
/// live side by side.
fn address(number: usize) -> Ipv4Addr {
    const FIRST: u8 = 44;
    let part = FIRST + (std::process::id() % 200) as u8;
    let number = number as u32 + 1;
    let [.., high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, part, high, low)
}

fn identity() -> Result<(TlsAcceptor, String)> {
    let authority_key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key)?;
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new([HOST.to_owned()])?.signed_by(&key, &issuer)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )?;
    Ok((TlsAcceptor::from(Arc::new(config)), authority.pem()))
}

async fn serve(fake: Arc<Fake>, listener: TcpListener, answers: Arc<Answers>) {
    let mut life = fake.life.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let now = *life.borrow_and_update();
        if now == Life::Refuses {
            return;
        }
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (fake, answers) = (fake.clone(), answers.clone());
                connections.spawn(async move {
                    // That a client went away is no fault.
                    talk(&fake, &answers, stream, now).await.ok();
                });
            }
            changed = life.changed() => {
                if changed.is_err() {
                    return;
                }
                connections.abort_all();
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn talk(fake: &Fake, answers: &Answers, stream: TcpStream, life: Life) -> Result<()> {
    if life == Life::SaysNothing {
        // Not dropped: the connection stays open.
        let _open = stream;
        return std::future::pending().await;
    }
    stream.set_nodelay(true)?;
    let mut stream = answers.tls.accept(stream).await?;
    let mut received = Vec::with_capacity(1024);
    loop {
        let end = loop {
            if let Some(place) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                break place + 4;
            }
            if received.len() > MAX_REQUEST_BYTES || stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        };
        let head: Vec<u8> = received.drain(..end).collect();
        if life == Life::AnswersNothing {
            return std::future::pending().await;
        }
        let head = std::str::from_utf8(&head)?;
        let Some(path) = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else {
            bail!("only GET is expected");
        };
        if path == "/version" {
            let mut asked = fake.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            asked.push(Instant::now());
        }
        stream.write_all(answers.to(path, head.contains(TOKEN))).await?;
        stream.flush().await?;
    }
}

impl Answers {
    fn of(tls: TlsAcceptor, nodes: usize) -> Answers {
        let pods: Vec<Value> = (0..nodes * PODS_A_NODE).map(pod).collect();
        let pages: Vec<&[Value]> = pods.chunks(PODS_A_PAGE).collect();
        let page = |(place, items): (usize, &&[Value])| {
            let next = (place + 1 < pages.len()).then(|| (place + 1).to_string());
            answer("200 OK", &list("PodList", items, next))
        };
        let nodes: Vec<Value> = (0..nodes).map(node).collect();
        Answers {
            tls,
            version: answer("200 OK", &json!({"major": "1", "minor": "36", "gitVersion": VERSION})),
            nodes: answer("200 OK", &list("NodeList", &nodes, None)),
            pods: pages.iter().enumerate().map(page).collect(),
            missing: answer("404 Not Found", &refusal(404, "NotFound")),
            forbidden: answer("401 Unauthorized", &refusal(401, "Unauthorized")),
        }
    }

    fn to(&self, path: &str, known: bool) -> &[u8] {
        let (place, query) = path.split_once('?').unwrap_or((path, ""));
        match place {
            _ if !known => &self.forbidden,
            "/version" => &self.version,
            "/api/v1/nodes" => &self.nodes,
            "/api/v1/pods" => {
                let page = query.split('&').find_map(|word| word.strip_prefix("continue="));
                let page = page.and_then(|page| page.parse().ok()).unwrap_or(0);
                self.pods.get(page).unwrap_or(&self.missing)
            }
            _ => &self.missing,
        }
    }
}

fn answer(status: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = "content-type: application/json\r\ncontent-length";
    format!("HTTP/1.1 {status}\r\n{head}: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code})
}

fn list(kind: &str, items: &[Value], next: Option<String>) -> Value {
    let metadata = json!({"resourceVersion": "1234567", "continue": next.unwrap_or_default()});
    json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})
}

/// A node as a kubelet reports it: some kilobytes, most of them the images on its disk.
fn node(number: usize) -> Value {
    let name = format!("node-{number:03}");
    let role = if number < 3 { "control-plane" } else { "worker" };
    let address = format!("10.20.{}.{}", number / 250, number % 250 + 1);
    let moment = "2026-11-01T08:00:00Z";
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": moment,
            "lastTransitionTime": moment, "message": format!("kubelet says {reason}")})
    };
    let image = |image: usize| {
        let repository = format!("registry.example.org/platform/component-{image}");
        json!({"names": [format!("{repository}@sha256:{:064x}", image * 77_777),
            format!("{repository}:v1.{image}.0")], "sizeBytes": 40_000_000 + image})
    };
    json!({
        "metadata": {
            "name": name, "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "resourceVersion": "1234567", "creationTimestamp": moment,
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name,
                format!("node-role.kubernetes.io/{role}"): "true",
                "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                "time": moment, "fieldsType": "FieldsV1", "subresource": "status",
                "fieldsV1": {"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {
                    "f:lastHeartbeatTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}}}}}}],
        },
        "spec": {"podCIDR": format!("10.42.{number}.0/24")},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name}],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "capacity": {"cpu": "16", "memory": "65536000Ki", "pods": "110",
                "ephemeral-storage": "102400000Ki", "hugepages-2Mi": "0"},
            "allocatable": {"cpu": "15800m", "memory": "64000000Ki", "pods": "110",
                "ephemeral-storage": "92160000000", "hugepages-2Mi": "0"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": format!("{number:032x}"), "systemUUID": format!("{number:032x}"),
                "bootID": format!("{number:032x}"), "kernelVersion": "6.12.0-amd64",
                "osImage": "Debian GNU/Linux 13 (trixie)", "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.2.9", "kubeletVersion": VERSION,
                "kubeProxyVersion": "", "operatingSystem": "linux",
            },
            "images": (0..12).map(image).collect::<Vec<_>>(),
        },
    })
}

fn pod(number: usize) -> Value {
    let node = number / PODS_A_NODE;
    let moment = "2026-11-02T08:00:00Z";
    json!({
        "metadata": {"name": format!("app-{number:05}"), "namespace": "default",
            "uid": format!("00000000-0000-4000-9000-{number:012}"), "creationTimestamp": moment,
            "labels": {"app": "app", "pod-template-hash": "5d4f8c7b9"}},
        "spec": {
            "nodeName": format!("node-{node:03}"), "restartPolicy": "Always",
            "serviceAccountName": "default", "schedulerName": "default-scheduler",
            "containers": [{
                "name": "app", "image": "registry.example.org/platform/app:v1.0.0",
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"},
                    "limits": {"memory": "256Mi"}},
                "volumeMounts": [{"name": "token", "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            ],
        },
        "status": {"phase": "Running", "podIP": format!("10.42.{node}.{}", number % PODS_A_NODE + 2),
            "startTime": moment, "qosClass": "Burstable",
            "containerStatuses": [{"name": "app", "ready": true, "restartCount": 0,
                "image": "registry.example.org/platform/app:v1.0.0",
                "imageID": format!("registry.example.org/platform/app@sha256:{:064x}", 4711)}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_reach_from_the_first_moment_to_the_last() {
        let from = Instant::now();
        let at = |seconds| from + Duration::from_secs(seconds);
        let seconds = |asked: &[Instant]| -> Vec<u64> {
            gaps(asked, at(1), at(60)).iter().map(Duration::as_secs).collect()
        };
        assert_eq!(seconds(&[at(0), at(10), at(25)]), [9, 15, 35]);
        assert_eq!(seconds(&[]), [59], "a cluster that nobody asks is one long pause");
    }

    #[test]
    fn every_cluster_has_an_address_of_its_own() {
        let all: std::collections::HashSet<Ipv4Addr> = (0..5000).map(address).collect();
        assert_eq!(all.len(), 5000);
        assert!(all.iter().all(Ipv4Addr::is_loopback));
    }

    #[test]
    fn pods_come_page_by_page() {
        let (tls, _) = identity().unwrap();
        let answers = Answers::of(tls, 50);
        let next = |path: &str| {
            let text = String::from_utf8(answers.to(path, true).to_vec()).unwrap();
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            (body["items"].as_array().unwrap().len(), body["metadata"]["continue"].clone())
        };
        assert_eq!(next("/api/v1/pods?limit=250"), (250, json!("1")));
        assert_eq!(next("/api/v1/pods?limit=250&continue=1"), (250, json!("")));
        assert_eq!(next("/api/v1/nodes?limit=250").0, 50);
        assert!(answers.to("/version", false).starts_with(b"HTTP/1.1 401"));
    }
}
