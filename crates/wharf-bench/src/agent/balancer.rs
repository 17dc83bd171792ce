//! The balancer of a node: what it adds to an API call, and how many connections it holds.
//!
//! The client runs on the node, as kubelet does, and asks the real API server on another machine: in
//! turn directly and through the agent.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{Stream, StreamExt, stream};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use wharf_core::install::network::BALANCER;
use wharf_testbed::Host;

use super::{
    AgentArgs,
    cluster::{World, look},
};
use crate::{
    drive::{self, Figures},
    fleet::{limit, server::resident_mebibytes},
    http::{Connection, request, trust_with},
    install::machines::{load, run_script},
    report::{Report, Row},
};

const ADDED_MILLISECONDS: f64 = 0.2;
const CALLS: usize = 3000;
/// Before anything is counted: connections, caches and the API server's own warm up.
const WARM_UP: usize = 200;
const API_PORT: u16 = 6443;
const CALL: &str = "/api/v1/namespaces/default";
/// Handshakes and calls at once; more would only wait for the processor.
const AT_ONCE: usize = 32;
/// For one connection or one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long all connections are left alone before each is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(15);
/// What the balancer keeps for the rest of the agent, and the node's own connections, of two files each.
const OTHER_FILES: u64 = 224 + 200;
/// Where the client and its files lie on the node.
const PLACE: &str = "/root/bench-balancer";

pub fn run(args: &AgentArgs, world: &World, report: &mut Report) -> Result<()> {
    let node = world.node()?;
    let place = node.root().join(PLACE.trim_start_matches('/'));
    std::fs::create_dir_all(&place)?;
    std::fs::copy(std::env::current_exe()?, place.join("client"))?;
    write_identity(world, &place)?;
    let direct = SocketAddr::new(IpAddr::V4(world.controlplane()?.address()), API_PORT).to_string();
    eprintln!("agent: {CALLS} calls directly and through the balancer, in turn");
    let called: Called = client(node, &["agent-calls", "--direct", &direct])?;
    let added = called.through.p50() - called.direct.p50();
    report.add(
        limit("added by the balancer to an API call, median", added, ADDED_MILLISECONDS, "ms").detail(
            format!(
                "{CALLS} reads of a namespace each: p50 {:.3} and {:.3} ms, p99 {:.2} and {:.2} ms; load {}",
                called.direct.p50(),
                called.through.p50(),
                called.direct.p99(),
                called.through.p99(),
                load()
            ),
        ),
    );
    hold(args, world, node, report)
}

fn hold(args: &AgentArgs, world: &World, node: &Host, report: &mut Report) -> Result<()> {
    let wanted = u64::from(args.connections).min(possible());
    let connections = wanted.to_string();
    eprintln!("agent: {connections} connections through the balancer");
    let agent = world.agent()?;
    let before = look(node, &[agent])?;
    let number = agent.to_string();
    let held: Held =
        client(node, &["agent-hold", "--connections", &connections, "--agent", &number])?;
    ensure!(world.agent()? == agent, "the agent was started anew");
    world.wait_until_well()?;
    let before = before.first().map_or(f64::NAN, |sample| sample.resident);
    let mebibytes = held.agent_mebibytes - before;
    let name = "connections held before an API server";
    let row = Row::rate(name, held.alive as f64, "possible here", wanted as f64, "");
    report.add(row.goal(1.0).detail(format!(
        "{} of {wanted} answered after {} s of silence; opened in {:.0} s",
        held.alive,
        SILENCE.as_secs(),
        held.opened_in
    )));
    let row = Row::alone("memory of the agent with these connections", held.agent_mebibytes, "MiB");
    let each = mebibytes * 1024.0 / wanted as f64;
    report.add(row.detail(format!("{before:.1} MiB before; {each:.1} KiB for each")));
    Ok(())
}

/// How many there can be where the machine does not allow the open files that the agent's unit asks for.
fn possible() -> u64 {
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    files.saturating_sub(OTHER_FILES) / 2
}

/// Runs the client on the node; the last line that it prints is its result.
fn client<T: DeserializeOwned>(node: &Host, words: &[&str]) -> Result<T> {
    let script =
        format!("cd {PLACE} && ulimit -n \"$(ulimit -Hn)\" && exec ./client worker \"$@\"");
    let text = run_script(node, "bash", &script, words)?;
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("the client printed {text:?}"))
}

/// The administrator's certificate and key, and the cluster's authority.
fn write_identity(world: &World, place: &Path) -> Result<()> {
    let words = ["config", "view", "--raw", "--minify", "-o", "json"];
    let config: Value = serde_json::from_str(&world.kubectl.ask(&words)?)?;
    let data = |pointer: &str| -> Result<Vec<u8>> {
        let text = config.pointer(pointer).and_then(Value::as_str);
        Ok(STANDARD.decode(text.with_context(|| format!("the kubeconfig has no {pointer}"))?)?)
    };
    let authority = data("/clusters/0/cluster/certificate-authority-data")?;
    let mut identity = data("/users/0/user/client-certificate-data")?;
    identity.extend(data("/users/0/user/client-key-data")?);
    std::fs::write(place.join("authority.pem"), authority)?;
    std::fs::write(place.join("identity.pem"), identity)?;
    Ok(())
}

#[derive(Debug, clap::Args)]
pub struct Calls {
    /// The API server itself
    #[arg(long)]
    direct: SocketAddr,
}

#[derive(Debug, Serialize, Deserialize)]
struct Called {
    direct: Figures,
    through: Figures,
}

#[derive(Debug, clap::Args)]
pub struct Hold {
    #[arg(long)]
    connections: usize,
    /// The agent's process
    #[arg(long)]
    agent: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Held {
    /// That answered after the silence.
    alive: usize,
    opened_in: f64,
    agent_mebibytes: f64,
}

/// What [`write_identity`] wrote.
fn identity() -> Result<TlsConnector> {
    trust_with(Path::new("authority.pem"), Path::new("identity.pem"))
}

/// Calls on the node, in turn directly and through the balancer.
pub fn work_calls(args: &Calls) -> Result<()> {
    let called = drive::runtime()?.block_on(async {
        let tls = identity()?;
        let mut direct = Connection::open_at(args.direct, Some(&tls)).await?;
        let mut through = Connection::open_at(BALANCER.into(), Some(&tls)).await?;
        let call = request("GET", CALL, None, "");
        let (mut directly, mut balanced) = (Vec::new(), Vec::new());
        for number in 0..WARM_UP + CALLS {
            // Who is first has the colder caches: that changes too.
            let order = if number % 2 == 0 { [false, true] } else { [true, false] };
            for is_balanced in order {
                let (connection, times) = match is_balanced {
                    true => (&mut through, &mut balanced),
                    false => (&mut direct, &mut directly),
                };
                let begin = Instant::now();
                let answer = connection.send(&call).await?.expect(200)?;
                if number >= WARM_UP {
                    times.push(begin.elapsed());
                }
                let name = answer.json()?;
                let name = name.pointer("/metadata/name").and_then(Value::as_str);
                ensure!(name == Some("default"), "not the namespace that was asked for");
            }
        }
        let figures = |times: Vec<Duration>| {
            let mut figures = Figures::default();
            figures.add_round(times.iter().sum(), &times);
            figures
        };
        anyhow::Ok(Called { direct: figures(directly), through: figures(balanced) })
    })?;
    println!("{}", serde_json::to_string(&called)?);
    Ok(())
}

/// Opens connections on the node, leaves them alone, and asks each for a sign of life.
pub fn work_hold(args: &Hold) -> Result<()> {
    let held = drive::runtime()?.block_on(async {
        let begin = Instant::now();
        let tls = identity()?;
        let call = &request("GET", CALL, None, "");
        let opened = stream::iter(0..args.connections)
            .map(async |_| {
                let open = async {
                    let mut connection = Connection::open_at(BALANCER.into(), Some(&tls)).await?;
                    // The API server soon closes a connection that has never asked for anything.
                    connection.send(call).await?.expect(200)?;
                    Ok(connection)
                };
                // Those that are too many for the balancer's machine wait until others end.
                timeout(PATIENCE, open).await.context("a connection was not taken")?
            })
            .buffer_unordered(AT_ONCE);
        let connections = successes(opened).await;
        let opened_in = begin.elapsed().as_secs_f64();
        tokio::time::sleep(SILENCE).await;
        let agent_mebibytes = resident_mebibytes(args.agent)?;
        let asked = stream::iter(connections)
            .map(|mut connection| async move {
                let answer = timeout(PATIENCE, connection.send(call)).await;
                answer.context("a connection does not answer")??.expect(200)?;
                // Given back, so that all are open until the last has answered.
                Ok(connection)
            })
            .buffer_unordered(AT_ONCE);
        let alive = successes(asked).await.len();
        anyhow::Ok(Held { alive, opened_in, agent_mebibytes })
    })?;
    println!("{}", serde_json::to_string(&held)?);
    Ok(())
}

/// What went well; the rest is told on standard error.
async fn successes<T>(results: impl Stream<Item = Result<T>>) -> Vec<T> {
    let tell = |error: &anyhow::Error| eprintln!("{error:#}");
    results.filter_map(async |result| result.inspect_err(tell).ok()).collect().await
}
