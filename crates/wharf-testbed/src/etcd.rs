//! A real etcd for tests: one process on loopback, or several that form a cluster.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::paths::cache_dir;
use crate::process::{Process, Signal, free_port};
use crate::wait::wait_for;

const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// The certificates of an etcd that speaks TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// With it, clients must show a certificate that this authority signed.
    pub client_authority: Option<PathBuf>,
}

/// What an etcd is started with besides its addresses.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub tls: Option<Tls>,
    /// Further flags, as etcd takes them.
    pub flags: Vec<String>,
}

/// An etcd with its data in a temporary directory. Dropping it ends the process and deletes both.
#[derive(Debug)]
pub struct Etcd {
    binary: PathBuf,
    data: TempDir,
    name: String,
    ports: Ports,
    /// All members, as etcd takes them: `NAME=URL,…`.
    cluster: String,
    options: Options,
    process: Option<Process>,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
    /// Plain HTTP always, so that readiness needs no TLS client here.
    health: u16,
}

impl Ports {
    fn free() -> Result<Self> {
        Ok(Self { client: free_port()?, peer: free_port()?, health: free_port()? })
    }

    fn peer_url(self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }
}

impl Etcd {
    pub fn start() -> Result<Self> {
        Self::start_with(&Options::default())
    }

    pub fn start_with(options: &Options) -> Result<Self> {
        let mut members = Self::start_members(1, options)?;
        members.pop().context("no etcd was started")
    }

    /// That many members of one cluster.
    pub fn start_cluster(count: usize) -> Result<Vec<Self>> {
        Self::start_members(count, &Options::default())
    }

    fn start_members(count: usize, options: &Options) -> Result<Vec<Self>> {
        let binary = find_binary()?;
        let mut members = Self::prepare(count, &binary, options)?;
        Self::run_all(&mut members)?;
        Ok(members)
    }

    fn prepare(count: usize, binary: &Path, options: &Options) -> Result<Vec<Self>> {
        let ports = (0..count).map(|_| Ports::free()).collect::<Result<Vec<_>>>()?;
        let member = |(i, ports): (usize, &Ports)| format!("m{i}={}", ports.peer_url());
        let cluster = ports.iter().enumerate().map(member).collect::<Vec<_>>().join(",");
        let etcd = |(i, ports)| {
            Ok(Self {
                binary: binary.to_owned(),
                data: tempfile::Builder::new().prefix("wharf-etcd-").tempdir()?,
                name: format!("m{i}"),
                ports,
                cluster: cluster.clone(),
                options: options.clone(),
                process: None,
            })
        };
        ports.into_iter().enumerate().map(etcd).collect()
    }

    /// Starts all before it waits for any: a member alone is not healthy.
    fn run_all(members: &mut [Self]) -> Result<()> {
        for member in &mut *members {
            member.run()?;
        }
        members.iter_mut().try_for_each(Self::wait_until_healthy)
    }

    /// The URL that clients connect to; it stays the same over restarts.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme(), self.address())
    }

    /// The same without the scheme: `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.client)
    }

    pub fn data_dir(&self) -> &Path {
        self.data.path()
    }

    /// The running process, to stop and continue it by signals; `None` when it is stopped.
    pub fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// Starts it again on the same data, after `stop` or `kill`, and waits until it is healthy.
    pub fn restart(&mut self) -> Result<()> {
        if self.process.is_some() {
            self.stop()?;
        }
        self.run()?;
        self.wait_until_healthy()
    }

    fn run(&mut self) -> Result<()> {
        self.process = Some(Process::spawn(self.command())?);
        Ok(())
    }

    fn wait_until_healthy(&mut self) -> Result<()> {
        let health = SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.health));
        let process = self.process.as_mut().context("etcd does not run")?;
        let healthy = wait_for("etcd to be healthy", READY_DEADLINE, || {
            if let Some(status) = process.status()? {
                bail!("etcd ended at once ({status})");
            }
            Ok(is_healthy(health).then_some(()))
        });
        healthy.with_context(|| last_lines(&process.output()))
    }

    /// Stops it in the middle of whatever it does: it keeps its connections and answers nobody.
    pub fn pause(&mut self) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.signal(Signal::STOP))
    }

    /// Lets it go on after [`Etcd::pause`].
    pub fn resume(&mut self) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.signal(Signal::CONT))
    }

    /// Stops it in order.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.signal(Signal::TERM)?;
        process.wait(STOP_DEADLINE).map(drop)
    }

    /// Ends it at once.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    fn scheme(&self) -> &'static str {
        if self.options.tls.is_some() { "https" } else { "http" }
    }

    fn command(&self) -> Command {
        let client = self.endpoint();
        let peer = self.ports.peer_url();
        let health = format!("http://127.0.0.1:{}", self.ports.health);
        let mut command = Command::new(&self.binary);
        // Without the caller's ETCD_… settings, which would mix with these.
        command.env_clear().arg("--data-dir").arg(self.data.path()).args(["--name", &self.name]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &self.cluster, "--listen-metrics-urls", &health]);
        command.args(["--log-level", "warn"]);
        command.args(&self.options.flags);
        if let Some(tls) = &self.options.tls {
            command.arg("--cert-file").arg(&tls.certificate).arg("--key-file").arg(&tls.key);
            if let Some(authority) = &tls.client_authority {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(authority);
            }
        }
        command
    }
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().rev().take(5).collect();
    format!("it printed:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
}

fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let timeout = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(r#""health":"true""#))
}

/// `$WHARF_ETCD`, else the one among the built assets.
fn find_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("WHARF_ETCD").map(PathBuf::from) {
        return if path.is_file() { Ok(path) } else { bail!("WHARF_ETCD names no file: {path:?}") };
    }
    wharf_bundle::cache::find("etcd").with_context(|| {
        let place = cache_dir().map(|dir| dir.join("assets")).unwrap_or_default();
        format!("there is no etcd in {place:?}: run `cargo xtask assets`, or set WHARF_ETCD")
    })
}
