//! A real kube-apiserver on an etcd of its own, and a client that creates custom resources.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use wharf_testbed::{
    etcd::Etcd,
    process::{Process, free_port},
    wait_for,
};

use super::{etcd, temp_dir};
use crate::{
    drive::Client,
    http::{Answer, Connection, request, trust},
};

const TOKEN: &str = "bench-token";
const START: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
const RESOURCES: &str = "/apis/bench.wharf.dev/v1/benchtokens";
/// Where it keeps them.
const PREFIX: &str = "/registry/bench.wharf.dev/benchtokens/";

pub struct ApiServer {
    process: Process,
    etcd: Etcd,
    tls: TlsConnector,
    port: u16,
    _dir: TempDir,
}

impl ApiServer {
    pub async fn start() -> Result<ApiServer> {
        let program = wharf_bundle::cache::find("kube-apiserver")
            .context("there is no kube-apiserver: run `cargo xtask assets`")?;
        let etcd = Etcd::start()?;
        let dir = temp_dir()?;
        let port = free_port()?;
        let mut process = Process::spawn(command(&program, dir.path(), port, &etcd)?)?;
        let certificate = dir.path().join("certs/apiserver.crt");
        let tls = wait_for("kube-apiserver's certificate", START, || {
            ensure!(process.status()?.is_none(), "kube-apiserver ended:\n{}", process.output());
            // The file is there before it is whole.
            Ok(trust(&certificate).ok())
        })?;
        let mut server = ApiServer { process, etcd, tls, port, _dir: dir };
        server.wait_until("/readyz").await?;
        let definition = definition().to_string();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.ask(&request("POST", path, Some(TOKEN), &definition)).await?.expect(201)?;
        server.wait_until(RESOURCES).await?;
        Ok(server)
    }

    /// Its own process, and that of its etcd, without which it cannot store anything.
    pub fn pids(&mut self) -> Vec<u32> {
        let etcd = self.etcd.process().map(|process| process.id());
        std::iter::once(self.process.id()).chain(etcd).collect()
    }

    async fn ask(&self, request: &[u8]) -> Result<Answer> {
        Connection::open(self.port, Some(&self.tls)).await?.send(request).await
    }

    /// Waits until a GET of the path succeeds.
    async fn wait_until(&mut self, path: &str) -> Result<()> {
        let request = request("GET", path, Some(TOKEN), "");
        let end = Instant::now() + START;
        while self.ask(&request).await.map_or(true, |answer| answer.status != 200) {
            let runs = self.process.status()?.is_none();
            ensure!(
                runs && Instant::now() < end,
                "kube-apiserver does not answer at {path}:\n{}",
                self.process.output()
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    pub async fn clients(&self, first: usize, count: usize, spec: &[u8]) -> Result<Vec<Creator>> {
        let spec: Value = serde_json::from_slice(spec)?;
        let mut creators = Vec::new();
        for number in first..first + count {
            let connection = Connection::open(self.port, Some(&self.tls)).await?;
            creators.push(Creator { connection, number, spec: spec.to_string(), written: 0 });
        }
        Ok(creators)
    }

    /// Kills it and its etcd, and counts in the restarted etcd what was acknowledged.
    pub async fn check(mut self, creators: &[&Vec<Creator>]) -> Result<()> {
        self.process.kill()?;
        let acknowledged: u64 =
            creators.iter().flat_map(|creators| creators.iter()).map(|c| c.written).sum();
        let there = etcd::count_after_restart(&mut self.etcd, PREFIX).await?;
        ensure!(
            there == acknowledged,
            "kube-apiserver acknowledged {acknowledged} resources and has {there}"
        );
        Ok(())
    }
}

fn command(program: &Path, dir: &Path, port: u16, etcd: &Etcd) -> Result<Command> {
    let key = dir.join("accounts.key");
    let public = dir.join("accounts.pub");
    let accounts = rcgen::KeyPair::generate()?;
    std::fs::write(&key, accounts.serialize_pem())?;
    std::fs::write(&public, accounts.public_key_pem())?;
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, format!("{TOKEN},bench,bench,\"system:masters\"\n"))?;
    let mut command = Command::new(program);
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    command
        .arg(format!("--etcd-servers={}", etcd.endpoint()))
        .arg(format!("--secure-port={port}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .args(["--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16"])
        .args(["--authorization-mode=RBAC", "--service-account-issuer=https://bench.invalid"])
        .arg(flag("service-account-key-file", &public))
        .arg(flag("service-account-signing-key-file", &key))
        .arg(flag("token-auth-file", &tokens))
        .arg(flag("cert-dir", &dir.join("certs")));
    Ok(command)
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "benchtokens.bench.wharf.dev" },
        "spec": {
            "group": "bench.wharf.dev",
            "scope": "Cluster",
            "names": { "plural": "benchtokens", "singular": "benchtoken", "kind": "BenchToken" },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                    } },
                } },
            }],
        },
    })
}

pub struct Creator {
    connection: Connection,
    number: usize,
    spec: String,
    written: u64,
}

impl Client for Creator {
    async fn step(&mut self) -> Result<()> {
        let body = format!(
            r#"{{"apiVersion":"bench.wharf.dev/v1","kind":"BenchToken","metadata":{{"name":"t-{}-{}"}},"spec":{}}}"#,
            self.number, self.written, self.spec
        );
        let request = request("POST", RESOURCES, Some(TOKEN), &body);
        self.connection.send(&request).await?.expect(201)?;
        self.written += 1;
        Ok(())
    }
}
