//! Wharf's server, and a client that makes tokens.

use std::{
    collections::HashSet,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use wharf_store::{Page, StoreError};
use wharf_testbed::process::Process;

use super::{StoreArgs, temp_dir};
use crate::{
    drive::Client,
    guard,
    http::{Connection, request, trust},
    worker,
};

const PASSWORD: &str = "correct horse battery";
const START: Duration = Duration::from_secs(30);

pub struct Server {
    args: Launch,
    dir: TempDir,
    process: Process,
    pub port: u16,
    pub tls: Option<TlsConnector>,
    token: String,
}

/// How the server is started.
#[derive(Debug, Clone)]
pub struct Launch {
    wharf: PathBuf,
    https: bool,
    fsync_off: bool,
    /// Count its syncs; it is slower then.
    trace: bool,
}

impl Launch {
    pub fn plain(args: &StoreArgs) -> Launch {
        let wharf = args.output.wharf.clone();
        Launch { wharf, https: false, fsync_off: args.fsync_off, trace: false }
    }

    pub fn https(args: &StoreArgs) -> Launch {
        Launch { https: true, ..Launch::plain(args) }
    }

    pub fn traced(args: &StoreArgs) -> Launch {
        Launch { trace: true, ..Launch::plain(args) }
    }
}

impl Server {
    pub async fn start(args: Launch) -> Result<Server> {
        let dir = temp_dir()?;
        std::fs::write(dir.path().join("password"), PASSWORD)?;
        let (process, port) = spawn(&args, &dir)?;
        let authority = dir.path().join("data/tls/ca.pem");
        let tls = if args.https { Some(trust(&authority)?) } else { None };
        let mut connection = Connection::open(port, tls.as_ref()).await?;
        let body = format!(r#"{{"password":"{PASSWORD}"}}"#);
        let login = request("POST", "/api/v1/users/admin?action=login", None, &body);
        let answer = connection.send(&login).await?.expect(200)?.json()?;
        let token = answer.get("token").and_then(Value::as_str).context("no token")?.to_owned();
        Ok(Server { args, dir, process, port, tls, token })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub async fn clients(&self, count: usize) -> Result<Vec<TokenMaker>> {
        let body = r#"{"description":"bench"}"#;
        let request = request("POST", "/api/v1/users/admin/tokens", Some(&self.token), body);
        let mut clients = Vec::new();
        for _ in 0..count {
            let connection = Connection::open(self.port, self.tls.as_ref()).await?;
            clients.push(TokenMaker { connection, request: request.clone(), ids: Vec::new() });
        }
        Ok(clients)
    }

    /// The syncs so far, of a traced server.
    pub fn syncs(&self) -> Result<u64> {
        guard::count_syncs(&self.dir.path().join("trace"))
    }

    /// Kills the server, and reads from its store the record of a token.
    pub async fn into_record(mut self) -> Result<Vec<u8>> {
        self.process.kill()?;
        let data = self.dir.path().join("data");
        let end = Instant::now() + START;
        let store = loop {
            // A traced server dies a moment after what traces it.
            match worker::open(&data).await {
                Err(error) if is_in_use(&error) && Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                opened => break opened?,
            }
        };
        let page = Page { after: None, limit: 1, descending: true };
        let token = store.list("token/", page).await?.entries.pop();
        store.close().await;
        Ok(token.context("there is no token in the store")?.value)
    }

    /// Kills the server, starts it again, and finds every token that was acknowledged.
    pub async fn check(mut self, makers: &[&Vec<TokenMaker>]) -> Result<()> {
        self.process.kill()?;
        let (_process, port) = spawn(&self.args, &self.dir)?;
        let mut connection = Connection::open(port, self.tls.as_ref()).await?;
        let list = request("GET", "/api/v1/users/admin/tokens", Some(&self.token), "");
        let answer = connection.send(&list).await?.expect(200)?.json()?;
        let tokens = answer.get("data").and_then(Value::as_array).context("no list of tokens")?;
        let there: HashSet<&str> =
            tokens.iter().filter_map(|token| token.get("id")?.as_str()).collect();
        for id in makers.iter().flat_map(|makers| makers.iter()).flat_map(|maker| &maker.ids) {
            ensure!(there.contains(id.as_str()), "the token {id} was acknowledged and is gone");
        }
        Ok(())
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::InUse { .. }))
}

fn spawn(args: &Launch, dir: &TempDir) -> Result<(Process, u16)> {
    let mut command = Command::new(&args.wharf);
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path().join("data"));
    command.arg("--admin-password-file").arg(dir.path().join("password"));
    if !args.https {
        command.arg("--http");
    }
    if args.fsync_off {
        command = guard::unsynced(&command);
    }
    if args.trace {
        command = guard::traced(&command, &dir.path().join("trace"));
    }
    let mut process = Process::spawn(command)?;
    process.wait_for_output("\"serving http", START)?;
    let port = listening_port(&process.output()).context("the server does not say its port")?;
    Ok((process, port))
}

/// The port in the log line that says that the server serves.
fn listening_port(log: &str) -> Option<u16> {
    let line = log.lines().find(|line| line.contains("\"serving http"))?;
    let line: Value = serde_json::from_str(line).ok()?;
    line.get("address")?.as_str()?.rsplit_once(':')?.1.parse().ok()
}

pub struct TokenMaker {
    connection: Connection,
    request: Vec<u8>,
    /// The tokens that the server said are there.
    ids: Vec<String>,
}

impl TokenMaker {
    pub fn made(&self) -> usize {
        self.ids.len()
    }
}

impl Client for TokenMaker {
    async fn step(&mut self) -> Result<()> {
        let answer = self.connection.send(&self.request).await?.expect(201)?;
        let id = find_id(&answer.body).context("the answer has no id")?;
        self.ids.push(id);
        Ok(())
    }
}

/// The id, without reading all of the JSON: the driver must cost little.
fn find_id(body: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"id\":\"";
    let begin = body.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let rest = body.get(begin..)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    String::from_utf8(rest.get(..end)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_in_the_answer() {
        assert_eq!(find_id(br#"{"type":"token","id":"x7","user":"a"}"#).as_deref(), Some("x7"));
        assert_eq!(find_id(br#"{"type":"token"}"#), None);
        assert_eq!(find_id(br#"{"id":"x"#), None);
    }

    #[test]
    fn the_port_is_read_from_the_log() {
        let log = "noise\n{\"message\":\"serving http\",\"address\":\"127.0.0.1:4711\"}\n";
        assert_eq!(listening_port(log), Some(4711));
        assert_eq!(listening_port("noise"), None);
    }
}
