//! `wharf cluster list` against `kubectl get` of as many objects, as processes, on warm servers.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wharf_testbed::apiserver::ApiServer;

use super::server::Server;
use crate::{
    drive::Figures,
    http::{Connection, request, trust},
    report::{Report, Row},
    temp_dir,
};

const ROUNDS: usize = 21;
const GOAL: f64 = 0.1;
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RESOURCES: &str = "/apis/bench.wharf.dev/v1/fleets";
const SERVED: Duration = Duration::from_secs(30);
const CREATORS: usize = 8;

pub async fn run(server: &Server, count: usize, report: &mut Report) -> Result<()> {
    eprintln!("fleet: wharf cluster list in turn with kubectl get, {ROUNDS} rounds");
    let dir = temp_dir()?;
    let kubernetes = tokio::task::block_in_place(ApiServer::start)?;
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, kubernetes.kubeconfig())?;
    let authority = dir.path().join("ca.pem");
    std::fs::write(&authority, kubernetes.authority())?;
    create(&kubernetes, &trust(&authority)?, count).await?;

    let mut ours = Command::new(server.wharf());
    ours.args(["cluster", "list", "--data-dir"]).arg(server.data_dir());
    let mut peer = Command::new(kubectl()?);
    peer.args(["get", "fleets", "--kubeconfig"]).arg(&kubeconfig);
    peer.arg("--cache-dir").arg(dir.path().join("cache"));
    // Both are warm after one run each: kubectl keeps what kinds there are in files.
    timed(&mut ours, count)?;
    timed(&mut peer, count)?;
    let (mut our_times, mut peer_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        wharf_testbed::wait_for("the next round", Duration::ZERO, || Ok(Some(())))?;
        our_times.push(timed(&mut ours, count)?);
        peer_times.push(timed(&mut peer, count)?);
    }
    let figures = |times: &[Duration]| {
        let mut figures = Figures::default();
        figures.add_round(times.iter().sum(), times);
        figures
    };
    let (our_times, peer_times) = (figures(&our_times), figures(&peer_times));
    let row = Row::cost(
        &format!("wharf cluster list, {count} clusters"),
        our_times.p50(),
        "kubectl get of as many",
        peer_times.p50(),
        "ms",
    );
    let best = format!(
        "medians of {ROUNDS} processes each; fastest {:.1} and {:.1} ms; all clusters are probed \
         meanwhile",
        our_times.percentile(0.0),
        peer_times.percentile(0.0)
    );
    report.add(row.goal(GOAL).detail(best));
    Ok(())
}

fn kubectl() -> Result<PathBuf> {
    wharf_bundle::cache::find("kubectl").context("there is no kubectl: run `cargo xtask assets`")
}

/// Runs a command that must print a line for each object.
fn timed(command: &mut Command, count: usize) -> Result<Duration> {
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let time = begin.elapsed();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    let lines = String::from_utf8_lossy(&output.stdout).matches("fleet-").count();
    ensure!(lines == count, "{command:?} names {lines} objects instead of {count}");
    Ok(time)
}

/// Makes as many objects as there are clusters.
async fn create(
    kubernetes: &ApiServer,
    tls: &tokio_rustls::TlsConnector,
    count: usize,
) -> Result<()> {
    let (port, token) = (kubernetes.port(), Some(kubernetes.token()));
    let mut connection = Connection::open(port, Some(tls)).await?;
    let definition = definition().to_string();
    connection.send(&request("POST", DEFINITIONS, token, &definition)).await?.expect(201)?;
    let end = Instant::now() + SERVED;
    while connection.send(&request("GET", RESOURCES, token, "")).await?.status != 200 {
        ensure!(Instant::now() < end, "kube-apiserver does not serve the new kind");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CREATORS {
        let next = next.clone();
        let mut connection = Connection::open(port, Some(tls)).await?;
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                let body = object(number).to_string();
                connection.send(&request("POST", RESOURCES, token, &body)).await?.expect(201)?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// An object with the figures that a list of clusters shows.
fn object(number: usize) -> serde_json::Value {
    json!({
        "apiVersion": "bench.wharf.dev/v1", "kind": "Fleet",
        "metadata": {"name": format!("fleet-{number:04}")},
        "spec": {"status": "Running", "version": super::fakes::VERSION, "nodes": 50, "ready": 50},
    })
}

fn definition() -> serde_json::Value {
    let column = |name: &str, kind: &str| json!({"name": name, "type": kind, "jsonPath": format!(".spec.{name}")});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "fleets.bench.wharf.dev"},
        "spec": {
            "group": "bench.wharf.dev", "scope": "Cluster",
            "names": {"plural": "fleets", "singular": "fleet", "kind": "Fleet"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "additionalPrinterColumns": [column("status", "string"),
                    column("version", "string"), column("nodes", "integer"),
                    column("ready", "integer")],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
            }],
        },
    })
}
