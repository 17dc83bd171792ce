//! Durable writes through the REST API, against etcd and kube-apiserver.
//!
//! All servers run at once and take turns, so that each has the same disk and the same neighbours.

use std::time::Duration;

use anyhow::{Context, Result};
use wharf_testbed::etcd::Etcd;

use super::{
    StoreArgs,
    apiserver::ApiServer,
    etcd,
    server::{Launch, Server},
};
use crate::{
    drive::{self, Client, Figures},
    guard,
    report::{Report, Row},
    usage::Usage,
    worker::ROUNDS,
};

const CLIENTS: usize = 64;
/// Enough to see that each write is synced.
const SYNCED_WRITES: usize = 200;

/// At least 3 times etcd's rate, at most a third of its latency, an eighth of kube-apiserver's.
const GOAL_ETCD: f64 = 1.0 / 3.0;
const GOAL_APISERVER: f64 = 1.0 / 8.0;

/// One system under load: its clients, and what they and the processes have shown so far.
struct Side<C> {
    pids: Vec<u32>,
    one: Vec<C>,
    many: Vec<C>,
    one_figures: Figures,
    many_figures: Figures,
    many_cpu: Duration,
}

impl<C: Client> Side<C> {
    fn new(pids: Vec<u32>, one: Vec<C>, many: Vec<C>) -> Side<C> {
        let (one_figures, many_figures) = Default::default();
        Side { pids, one, many, one_figures, many_figures, many_cpu: Duration::ZERO }
    }

    async fn round_of_one(&mut self, time: Duration) -> Result<()> {
        let clients = std::mem::take(&mut self.one);
        self.one = drive::round(clients, time, &mut self.one_figures).await?;
        Ok(())
    }

    async fn round_of_many(&mut self, time: Duration) -> Result<()> {
        let clients = std::mem::take(&mut self.many);
        let before = self.usage()?;
        self.many = drive::round(clients, time, &mut self.many_figures).await?;
        self.many_cpu += self.usage()?.since(before).cpu;
        Ok(())
    }

    fn usage(&self) -> Result<Usage> {
        self.pids.iter().try_fold(Usage::default(), |sum, pid| Ok(sum + Usage::of(*pid)?))
    }

    /// The servers' processor time for one write, in microseconds.
    fn cpu_a_write(&self) -> f64 {
        self.many_cpu.as_secs_f64() * 1e6 / self.many_figures.count.max(1) as f64
    }
}

pub fn run(args: &StoreArgs, report: &mut Report) -> Result<()> {
    drive::runtime()?.block_on(measure(args, report))
}

async fn measure(args: &StoreArgs, report: &mut Report) -> Result<()> {
    eprintln!("rest: counting the server's syncs");
    // The peers store as many bytes. (The server itself stores an audit record with each token.)
    let value = check_synced(args).await?;
    eprintln!("rest: starting the server, etcd and kube-apiserver");
    let (server, https) =
        (Server::start(Launch::plain(args)).await?, Server::start(Launch::https(args)).await?);
    let mut etcd = Etcd::start()?;
    let mut apiserver = ApiServer::start().await?;
    let etcd_pid = etcd.process().context("etcd ended")?.id();

    let mut ours =
        Side::new(vec![server.pid()], server.clients(1).await?, server.clients(CLIENTS).await?);
    let mut ours_https = Side::new(vec![https.pid()], https.clients(1).await?, Vec::new());
    let endpoint = etcd.endpoint();
    let mut etcds = Side::new(
        vec![etcd_pid],
        etcd::clients(&endpoint, CLIENTS, 1, &value).await?,
        etcd::clients(&endpoint, 0, CLIENTS, &value).await?,
    );
    let mut apiservers = Side::new(
        apiserver.pids(),
        apiserver.clients(CLIENTS, 1, &value).await?,
        apiserver.clients(0, CLIENTS, &value).await?,
    );
    let time = Duration::from_secs_f64(args.seconds / f64::from(ROUNDS));
    for round in 1..=ROUNDS {
        eprintln!("rest: round {round} of {ROUNDS}");
        ours.round_of_one(time).await?;
        etcds.round_of_one(time).await?;
        ours_https.round_of_one(time).await?;
        apiservers.round_of_one(time).await?;
        ours.round_of_many(time).await?;
        etcds.round_of_many(time).await?;
        apiservers.round_of_many(time).await?;
    }
    add_rows(report, &ours, &ours_https, &etcds, &apiservers)?;

    eprintln!("rest: looking for everything that was acknowledged");
    server.check(&[&ours.one, &ours.many]).await?;
    https.check(&[&ours_https.one]).await?;
    etcd::check(etcd, &[&etcds.one, &etcds.many]).await?;
    apiserver.check(&[&apiservers.one, &apiservers.many]).await
}

fn add_rows<O: Client, E: Client, A: Client>(
    report: &mut Report,
    ours: &Side<O>,
    https: &Side<O>,
    etcd: &Side<E>,
    apiserver: &Side<A>,
) -> Result<()> {
    const ETCD: &str = "etcd put";
    const APISERVER: &str = "kube-apiserver create";
    let rates = |mine: &Figures, other: &Figures| {
        format!("p99 {:.2} against {:.2} ms", mine.p99(), other.p99())
    };
    let (mine, its) = (&ours.many_figures, &etcd.many_figures);
    let row = Row::rate("REST writes, 64 clients", mine.rate(), ETCD, its.rate(), "writes/s");
    report.add(row.goal(GOAL_ETCD).detail(rates(mine, its)));
    let its = &apiserver.many_figures;
    let row = Row::rate("REST writes, 64 clients", mine.rate(), APISERVER, its.rate(), "writes/s");
    report.add(row.detail(rates(mine, its)));

    let (mine, its) = (&ours.one_figures, &etcd.one_figures);
    let row = Row::cost("REST write, 1 client, p50", mine.p50(), ETCD, its.p50(), "ms");
    report.add(row.goal(GOAL_ETCD).detail(rates(mine, its)));
    let (mine, its) = (&https.one_figures, &apiserver.one_figures);
    let row =
        Row::cost("REST write over TLS, 1 client, p50", mine.p50(), APISERVER, its.p50(), "ms");
    report.add(row.goal(GOAL_APISERVER).detail(rates(mine, its)));

    let mine = ours.cpu_a_write();
    let cpu = "server's processor time a write";
    report.add(Row::cost(cpu, mine, ETCD, etcd.cpu_a_write(), "µs"));
    report.add(Row::cost(cpu, mine, APISERVER, apiserver.cpu_a_write(), "µs"));
    let mine = ours.usage()?.peak_mebibytes;
    report.add(Row::cost("server's memory", mine, ETCD, etcd.usage()?.peak_mebibytes, "MiB"));
    let its = apiserver.usage()?.peak_mebibytes;
    report.add(Row::cost("server's memory", mine, "kube-apiserver and its etcd", its, "MiB"));
    Ok(())
}

/// Counts the server's syncs in a short run of one client; a record that it stored.
async fn check_synced(args: &StoreArgs) -> Result<Vec<u8>> {
    let server = Server::start(Launch::traced(args)).await?;
    let mut clients = server.clients(1).await?;
    let before = server.syncs()?;
    for client in &mut clients {
        while client.made() < SYNCED_WRITES {
            client.step().await?;
        }
    }
    let syncs = server.syncs()?.saturating_sub(before);
    guard::check_count("the server", SYNCED_WRITES as u64, syncs)?;
    server.into_record().await
}
