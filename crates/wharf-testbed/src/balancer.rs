//! The balancer of a real agent, alone on a machine, with as many connections as are wanted.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::process::{Process, free_port};
use crate::wait::wait_for;

/// For the agent to listen.
const START: Duration = Duration::from_secs(60);
/// For one step of one connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// So many are opened side by side, far fewer than wait in a listener's queue at a time.
const TOGETHER: usize = 100;

/// How it went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Those that were open at the same time, and passed bytes on both ways at the end.
    pub connections: usize,
    /// Why there are not more of them.
    pub fault: Option<String>,
    pub opened_in: Duration,
    /// The agent's memory after its first connection, and with all of them.
    pub first_kibibytes: u64,
    pub kibibytes: u64,
}

/// Starts an agent, whose command takes the path of its configuration, with a balancer before a
/// server of ours; opens connections through it until there are so many, leaves them alone for a
/// while, and then has each pass a number on and back.
///
/// There is no authority to tell an API server by: then a server that listens counts as ready.
pub fn hold(mut agent: Command, wanted: usize, silence: Duration) -> Result<Held> {
    let dir = tempfile::tempdir()?;
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Whoever waits for a connection that is not passed on shall not wait for ever.
    set_socket_timeout(&server, Timeout::Recv, Some(PATIENCE))?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let network = json!({
        "node": { "name": "n1", "address": "192.0.2.1", "podCidr": "10.42.0.0/24" },
        "clusterCidr": "10.42.0.0/16", "serviceCidr": "10.43.0.0/16", "mode": "none",
        "interface": null, "peers": [],
        "balancer": { "listen": listen, "servers": [server.local_addr()?],
                      "authorityFile": dir.path().join("no-authority") },
    });
    let (file, config) = (dir.path().join("network.json"), dir.path().join("agent.toml"));
    fs::write(&file, network.to_string())?;
    let (run, persist) = (dir.path().join("run"), dir.path().join("persist"));
    fs::write(
        &config,
        format!(
            "node_name = 'n1'\nnetwork_file = {file:?}\nrun_dir = {run:?}\npersist_dir = {persist:?}\n"
        ),
    )?;
    agent.arg(&config);
    let process = Process::spawn(agent)?;
    hold_through(&process, listen, &server, wanted, silence)
        .with_context(|| format!("the agent printed:\n{}", process.output()))
}

fn hold_through(
    agent: &Process,
    through: SocketAddr,
    server: &TcpListener,
    wanted: usize,
    silence: Duration,
) -> Result<Held> {
    wait_for("the balancer to listen", START, || Ok(TcpStream::connect(through).ok()))?;
    open(&mut Vec::new(), 1, through, server)?;
    let first_kibibytes = resident(agent.id())?;
    let begin = Instant::now();
    let mut fault = None;
    let mut pairs = Vec::with_capacity(wanted);
    while pairs.len() < wanted && fault.is_none() {
        let count = TOGETHER.min(wanted - pairs.len());
        fault = open(&mut pairs, count, through, server).err().map(|error| format!("{error:#}"));
    }
    let opened_in = begin.elapsed();
    let kibibytes = resident(agent.id())?;
    std::thread::sleep(silence);
    let connections = alive(&pairs, &mut fault);
    Ok(Held { connections, fault, opened_in, first_kibibytes, kibibytes })
}

/// Both ends of a connection that passes through the balancer.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

/// Opens some more connections. Those that were opened before an error stay.
fn open(
    pairs: &mut Vec<Pair>,
    count: usize,
    through: SocketAddr,
    listener: &TcpListener,
) -> Result<()> {
    let mut clients = BTreeMap::new();
    for number in (pairs.len() as u64..).take(count) {
        let client = patient(TcpStream::connect_timeout(&through, PATIENCE)?)?;
        write(&client, number)?;
        clients.insert(number, client);
    }
    let end = Instant::now() + PATIENCE;
    while let Some(first) = clients.keys().next() {
        ensure!(Instant::now() < end, "connection {first} is not passed on, while others are");
        let accepted = listener.accept();
        let (server, _) = accepted.with_context(|| format!("{first} is not passed on"))?;
        let server = patient(server)?;
        // Whoever only looks whether the server is there says nothing.
        let client = read(&server).ok().and_then(|number| clients.remove(&number));
        pairs.extend(client.map(|client| Pair { client, server }));
    }
    Ok(())
}

/// How many pass a number on to the server and back, each another one. All are asked before any has
/// to answer, as it would be with clients that know nothing of each other.
fn alive(pairs: &[Pair], fault: &mut Option<String>) -> usize {
    let mut steps: Vec<Result<()>> = Vec::with_capacity(pairs.len());
    steps.extend(pairs.iter().zip(0..).map(|(pair, number)| write(&pair.client, number)));
    for ((pair, step), number) in pairs.iter().zip(&mut steps).zip(0..) {
        if step.is_ok() {
            *step = expect(&pair.server, number).and_then(|()| write(&pair.server, !number));
        }
    }
    for ((pair, step), number) in pairs.iter().zip(&mut steps).zip(0_u64..) {
        if step.is_ok() {
            *step = expect(&pair.client, !number);
        }
    }
    let lost =
        steps.iter().zip(0..).find_map(|(step, number)| Some((step.as_ref().err()?, number)));
    if let Some((error, number)) = lost {
        *fault = Some(format!("connection {number} was lost: {error:#}"));
    }
    steps.iter().filter(|step| step.is_ok()).count()
}

fn patient(stream: TcpStream) -> Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn write(mut stream: &TcpStream, number: u64) -> Result<()> {
    Ok(stream.write_all(&number.to_be_bytes())?)
}

fn expect(stream: &TcpStream, number: u64) -> Result<()> {
    let found = read(stream)?;
    ensure!(found == number, "{found} came instead of {number}");
    Ok(())
}

fn read(mut stream: &TcpStream) -> Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The memory of a process, in KiB.
fn resident(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    kibibytes.context("/proc shows no resident memory")
}
