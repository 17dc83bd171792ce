//! The server that is measured.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use wharf_testbed::process::{Process, Signal};

use super::fakes::Fakes;
use crate::{
    http::{Connection, request, trust},
    temp_dir,
};

const PASSWORD: &str = "correct horse battery";
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);
const LIST: &str = "/api/v1/clusters";
/// Imports at once: more would only wait for each other.
const IMPORTERS: usize = 8;
/// On a slow machine the probes of those that are there already keep a new one waiting too long.
const IMPORT_TRIES: usize = 5;

pub struct Server {
    wharf: PathBuf,
    dir: TempDir,
    process: Process,
    port: u16,
    tls: TlsConnector,
    token: String,
}

impl Server {
    pub async fn start(wharf: &Path) -> Result<Server> {
        let dir = temp_dir()?;
        std::fs::write(dir.path().join("password"), PASSWORD)?;
        let (process, port) = spawn(wharf, dir.path())?;
        let tls = trust(&dir.path().join("data/tls/ca.pem"))?;
        let mut connection = Connection::open(port, Some(&tls)).await?;
        let body = json!({"password": PASSWORD}).to_string();
        let login = request("POST", "/api/v1/users/admin?action=login", None, &body);
        let answer = connection.send(&login).await?.expect(200)?.json()?;
        let token = answer.get("token").and_then(Value::as_str).context("no token")?.to_owned();
        Ok(Server { wharf: wharf.to_owned(), dir, process, port, tls, token })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn wharf(&self) -> &Path {
        &self.wharf
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(STOP)?;
        ensure!(status.success(), "the server ended with {status}:\n{}", self.process.output());
        Ok(())
    }

    pub fn start_again(&mut self) -> Result<()> {
        (self.process, self.port) = spawn(&self.wharf, self.dir.path())?;
        Ok(())
    }

    pub async fn connect(&self) -> Result<Connection> {
        Connection::open(self.port, Some(&self.tls)).await
    }

    pub fn list_request(&self) -> Vec<u8> {
        request("GET", LIST, Some(&self.token), "")
    }

    /// Makes requests in the admin's name.
    pub fn requester(&self) -> impl Fn(&str, &str, &str) -> Vec<u8> + Send + use<> {
        let token = self.token.clone();
        move |method, path, body| request(method, path, Some(&token), body)
    }

    pub async fn list(&self) -> Result<Value> {
        self.connect().await?.send(&self.list_request()).await?.expect(200)?.json()
    }

    /// Registers all clusters, several at once.
    pub async fn import(&self, fakes: &Fakes) -> Result<()> {
        let requests: Result<Vec<Vec<u8>>> = (0..fakes.count())
            .map(|number| {
                let path = format!("{LIST}/fleet-{number:04}?action=import");
                let body = json!({"kubeConfig": fakes.kubeconfig(number)?}).to_string();
                Ok(request("POST", &path, Some(&self.token), &body))
            })
            .collect();
        let requests = Arc::new(requests?);
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..IMPORTERS {
            let (requests, next) = (requests.clone(), next.clone());
            let mut connection = self.connect().await?;
            tasks.spawn(async move {
                while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    import_one(&mut connection, request).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn import_one(connection: &mut Connection, request: &[u8]) -> Result<()> {
    for _ in 1..IMPORT_TRIES {
        let answer = connection.send(request).await?;
        if answer.status == 200 {
            return Ok(());
        }
        eprintln!("fleet: an import was refused with {}, again", answer.status);
    }
    connection.send(request).await?.expect(200).map(drop)
}

fn spawn(wharf: &Path, dir: &Path) -> Result<(Process, u16)> {
    let mut command = Command::new(wharf);
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.join("data"));
    command.arg("--admin-password-file").arg(dir.join("password"));
    let mut process = Process::spawn(command)?;
    process.wait_for_output("\"serving http", START)?;
    let log = process.output();
    let line = log.lines().find(|line| line.contains("\"serving http")).unwrap_or_default();
    let line: Value = serde_json::from_str(line).context("the server does not say its port")?;
    let port = line.get("address").and_then(Value::as_str).and_then(|a| a.rsplit_once(':'));
    let port = port.and_then(|(_, port)| port.parse().ok());
    Ok((process, port.context("the server does not say its port")?))
}

/// The memory of a process that is in use right now.
pub fn resident_mebibytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    let kibibytes: f64 = kibibytes.context("/proc shows no resident memory")?;
    Ok(kibibytes / 1024.0)
}
