//! One linked agent: what it says is stored, what changes for its node is sent.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use jiff::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
    sync::oneshot,
    time::{Instant, interval, timeout},
};
use tokio_rustls::server::TlsStream;
use wharf_api::{
    link::{self, ALIVE_EVERY, Down, Hello, Lines, NodeConfig, Report, SILENCE, Up},
    trace::ClusterTrace,
};
use wharf_core::{
    agents::{AgentRecord, DrainSaid, JobPhase, JobSaid},
    cluster::ClusterRecord,
    disruption::Kind,
};
use wharf_pki::{Agent, CertKey};
use wharf_store::{Outcome, StoreError, StoreResult, Txn};

use super::{
    authority::credentials,
    board::{Held, Question},
    config::node_config,
    listener::HANDSHAKE,
};
use crate::{app::App, error::chain};

/// The record of an agent that changes all the time is written this often.
const WRITE_EVERY: Duration = Duration::from_millis(200);
/// After a write that failed, as when the store was away.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// After a look at an agent's certificate that failed, as when the store was away.
const RENEW_AGAIN: Duration = Duration::from_secs(60);
/// What is kept of an agent's words.
const MOST_SENTENCES: usize = 32;
const MOST_CHARACTERS: usize = 500;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the agent closed the link")]
    Closed,
    #[error("nothing was heard for {} s", SILENCE.as_secs())]
    Silent,
    #[error("the agent has another link, or its cluster is gone")]
    Replaced,
    #[error("the server stops")]
    Stopping,
    #[error("{0}")]
    Refused(String),
    #[error("the connection broke")]
    Broken(#[source] std::io::Error),
    #[error("the agent says what cannot be understood")]
    Junk(#[from] link::LinkError),
    #[error("the store failed")]
    Store(#[from] StoreError),
}

pub async fn run(app: App, stream: TlsStream<TcpStream>, address: SocketAddr) {
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let Some((agent, shown)) =
        certificate.and_then(|shown| Some((Agent::of(shown)?, shown.to_vec())))
    else {
        return tracing::debug!(%address, "a certificate names no agent");
    };
    let (cluster, node) = (agent.cluster.clone(), agent.node.clone());
    let (reader, writer) = tokio::io::split(stream);
    let mut wire = Wire { reader, writer, lines: Lines::default() };
    let end = match link(&app, &mut wire, agent, &shown, address).await {
        Ok(never) => match never {},
        Err(end) => end,
    };
    if let End::Refused(reason) = &end {
        let _ = wire.send(&Down::Refused { reason: reason.clone() }).await;
    }
    let _ = timeout(Duration::from_secs(1), wire.writer.shutdown()).await;
    tracing::info!(cluster, node, %address, reason = chain(&end), "an agent's link ended");
}

async fn link(
    app: &App,
    wire: &mut Wire,
    agent: Agent,
    shown: &[u8],
    address: SocketAddr,
) -> Result<std::convert::Infallible, End> {
    let pair = admit(app, &agent).await?;
    let hello = match timeout(HANDSHAKE, wire.next()).await {
        Ok(hello) => hello?,
        Err(_) => return Err(End::Silent),
    };
    let Up::Hello(hello) = hello else {
        return Err(End::Refused("the first word must be hello".to_owned()));
    };
    let held = app.agents.link(&app.store, &agent.cluster, &agent.node).await?;
    let (id, cluster, node) = (held.id, agent.cluster.clone(), agent.node.clone());
    tracing::info!(cluster, node, %address, version = hello.version, "an agent is linked");
    let mut session = Session::new(app.clone(), agent, held, &hello);
    let end = session.speak(wire, shown, pair).await;
    app.agents.unlink(&cluster, &node, id);
    // A server that stops is no member any more, which says as much.
    if !matches!(end, Err(End::Stopping)) {
        session.tell_loss().await;
    }
    end
}

/// Whether the agent is of a node that there is; with the certificate that it should have.
async fn admit(app: &App, agent: &Agent) -> Result<CertKey, End> {
    let record = app.store.read::<ClusterRecord>(&agent.cluster).await?;
    let is_there = record.is_some_and(|record| {
        let record = record.value;
        record.nodes.contains_key(&agent.node) || record.spec.node(&agent.node).is_some()
    });
    let pair = match is_there {
        true => credentials(app, agent, Timestamp::now()).await?,
        false => None,
    };
    let (cluster, node) = (&agent.cluster, &agent.node);
    pair.ok_or_else(|| End::Refused(format!("this server knows no node {node} of {cluster}")))
}

struct Wire {
    reader: ReadHalf<TlsStream<TcpStream>>,
    writer: WriteHalf<TlsStream<TcpStream>>,
    lines: Lines,
}

impl Wire {
    /// The next message. May be dropped at any time; nothing is lost.
    async fn next(&mut self) -> Result<Up, End> {
        loop {
            if let Some(message) = self.lines.take()? {
                return Ok(message);
            }
            let read = self.reader.read_buf(self.lines.buffer()).await;
            match read.map_err(End::Broken)? {
                0 => return Err(End::Closed),
                _ => continue,
            }
        }
    }

    async fn send(&mut self, message: &Down) -> Result<(), End> {
        let bytes = link::line(message)?;
        let write = async {
            self.writer.write_all(&bytes).await?;
            self.writer.flush().await
        };
        match timeout(SILENCE, write).await {
            Ok(written) => written.map_err(End::Broken),
            Err(_) => Err(End::Silent),
        }
    }
}

struct Session {
    app: App,
    agent: Agent,
    held: Held,
    record: AgentRecord,
    /// What the record says that is stored.
    stored: Option<AgentRecord>,
    sent: Option<NodeConfig>,
    questions: HashMap<u64, oneshot::Sender<Result<ClusterTrace, String>>>,
    asked: u64,
}

impl Session {
    fn new(app: App, agent: Agent, held: Held, hello: &Hello) -> Self {
        let record = AgentRecord {
            cluster: agent.cluster.clone(),
            node: agent.node.clone(),
            server: Some(app.me.clone()),
            link: held.id,
            version: short(&hello.version),
            boot_id: short(&hello.boot_id),
            ..AgentRecord::default()
        };
        Self {
            app,
            agent,
            held,
            record,
            stored: None,
            sent: None,
            questions: HashMap::new(),
            asked: 0,
        }
    }

    /// Never ends but by an error.
    async fn speak(
        &mut self,
        wire: &mut Wire,
        shown: &[u8],
        pair: CertKey,
    ) -> Result<std::convert::Infallible, End> {
        let mut known = shown.to_vec();
        self.take_over().await?;
        self.hand_over(wire, &mut known, pair).await?;
        self.send_config(wire).await?;
        let mut alive = interval(ALIVE_EVERY);
        let renew_every = Duration::from_secs(self.app.config.agents.renew_seconds);
        let mut renew_at = Instant::now() + renew_every;
        let mut heard = Instant::now();
        let mut write_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = self.app.stopping.cancelled() => return Err(End::Stopping),
                () = self.held.end.cancelled() => return Err(End::Replaced),
                () = tokio::time::sleep_until(heard + SILENCE) => return Err(End::Silent),
                message = wire.next() => {
                    heard = Instant::now();
                    if self.hear(message?) {
                        write_at.get_or_insert(heard + WRITE_EVERY);
                    }
                }
                () = at(write_at) => {
                    write_at = self.try_write().await?.map(|pause| Instant::now() + pause);
                }
                changed = self.held.facts.changed() => {
                    changed.map_err(|_| End::Replaced)?;
                    self.send_config(wire).await?;
                }
                Some(question) = self.held.questions.recv() => self.ask(wire, question).await?,
                _ = alive.tick() => wire.send(&Down::Alive).await?,
                () = tokio::time::sleep_until(renew_at) => {
                    let looked = self.renew(wire, &mut known).await?;
                    renew_at = Instant::now() + next_look(renew_every, looked);
                }
            }
        }
    }

    /// Looks whether the agent needs a new certificate, and hands it over; whether that could be found
    /// out. A store that is away ends no link: the old certificate has months left.
    async fn renew(&self, wire: &mut Wire, known: &mut Vec<u8>) -> Result<bool, End> {
        let error = match admit(&self.app, &self.agent).await {
            Ok(pair) => return self.hand_over(wire, known, pair).await.map(|()| true),
            Err(End::Store(error)) => error,
            Err(end) => return Err(end),
        };
        let (cluster, node) = (&self.agent.cluster, &self.agent.node);
        tracing::warn!(error = chain(&error), cluster, node, "no look at an agent's certificate");
        self.app.metrics.agent_renewals_failed.inc();
        Ok(false)
    }

    /// Sends the certificate that the agent should have, if it has another one.
    async fn hand_over(
        &self,
        wire: &mut Wire,
        known: &mut Vec<u8>,
        pair: CertKey,
    ) -> Result<(), End> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let Ok(der) = CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()) else {
            return Ok(());
        };
        if der.as_ref() == known.as_slice() {
            return Ok(());
        }
        let (cluster, node) = (&self.agent.cluster, &self.agent.node);
        tracing::info!(cluster, node, "an agent gets a new certificate");
        *known = der.to_vec();
        wire.send(&Down::Credentials {
            certificate_pem: pair.cert_pem,
            key_pem: pair.key_pem.expose().to_owned().into(),
        })
        .await
    }

    async fn send_config(&mut self, wire: &mut Wire) -> Result<(), End> {
        let Some(facts) = self.held.facts.borrow_and_update().clone() else { return Ok(()) };
        let spec = &facts.record.spec;
        let ours = self.app.config.agents_addresses(spec, self.app.agents.port);
        let config = node_config(&facts, &self.agent, &ours);
        if self.sent.as_ref() != Some(&config) {
            wire.send(&Down::Config(Box::new(config.clone()))).await?;
            self.sent = Some(config);
        }
        Ok(())
    }

    async fn ask(&mut self, wire: &mut Wire, question: Question) -> Result<(), End> {
        self.questions.retain(|_, answer| !answer.is_closed());
        self.asked += 1;
        let id = self.asked;
        self.questions.insert(id, question.answer);
        wire.send(&Down::Trace { id, app: question.app }).await
    }

    /// Takes a message in; whether there is something new to store.
    fn hear(&mut self, message: Up) -> bool {
        match message {
            Up::Report(report) => {
                self.take_in(&report);
                true
            }
            Up::Trace { id, trace, error } => {
                if let Some(answer) = self.questions.remove(&id) {
                    let trouble = || error.unwrap_or_else(|| "the agent has no answer".to_owned());
                    // Whoever asked may have gone.
                    let _ = answer.send(trace.ok_or_else(trouble));
                }
                false
            }
            Up::Hello(_) | Up::Alive | Up::Unknown => false,
        }
    }

    fn take_in(&mut self, report: &Report) {
        let sentences = |texts: &[String]| -> Vec<String> {
            texts.iter().take(MOST_SENTENCES).map(|text| short(text)).collect()
        };
        let job = |job: &wharf_api::node_files::NodeJob| {
            let phase = JobPhase::from_name(&job.phase)?;
            let (id, kind, reason) = (short(&job.id), wanted(&job.kind), short(&job.reason));
            Some(JobSaid { id, kind, phase, reason })
        };
        self.record.reported = true;
        self.record.faults = sentences(&report.faults);
        self.record.drain = report.drain.as_ref().map(|drain| DrainSaid {
            status: drain.status,
            reason: short(&drain.reason),
            blocking: sentences(&drain.blocking),
        });
        self.record.wants = report.wants.as_deref().and_then(wanted);
        self.record.jobs = report.jobs.iter().take(MOST_SENTENCES).filter_map(job).collect();
        self.record.base_os = report.base_os.first().map(base_os);
    }

    /// Notes that the agent is linked here, whoever had it before. What it said there still holds
    /// until it speaks.
    async fn take_over(&mut self) -> StoreResult<()> {
        let key = AgentRecord::key(&self.agent.cluster, &self.agent.node);
        // One that cannot be read was written by another version.
        if let Ok(Some(old)) = self.app.store.read::<AgentRecord>(&key).await {
            let old = old.value;
            let AgentRecord { faults, drain, wants, jobs, base_os, .. } = old;
            self.record =
                AgentRecord { faults, drain, wants, jobs, base_os, ..self.record.clone() };
        }
        self.put(Txn::new()).await
    }

    /// Writes what is new; when to try again, if the store is away. That ends no link: the agent could
    /// not open another one either, and has nothing to do with it.
    async fn try_write(&mut self) -> Result<Option<Duration>, End> {
        let error = match self.write().await {
            Ok(()) => return Ok(None),
            Err(End::Store(error)) => error,
            Err(end) => return Err(end),
        };
        let (cluster, node) = (&self.agent.cluster, &self.agent.node);
        tracing::warn!(error = chain(&error), cluster, node, "what an agent says was not stored");
        Ok(Some(WRITE_AGAIN))
    }

    /// Writes what is new, as long as the agent is linked here.
    async fn write(&mut self) -> Result<(), End> {
        if self.stored.as_ref() == Some(&self.record) {
            return Ok(());
        }
        let key = AgentRecord::key(&self.agent.cluster, &self.agent.node);
        let Some(stored) = self.app.store.read::<AgentRecord>(&key).await? else {
            return Err(End::Replaced);
        };
        if stored.value.link != self.record.link || stored.value.server != self.record.server {
            return Err(End::Replaced);
        }
        Ok(self.put(Txn::new().when(stored.unchanged())).await?)
    }

    async fn put(&mut self, txn: Txn) -> StoreResult<()> {
        let now = Timestamp::now();
        self.record.seen_at = Some(now);
        let key = AgentRecord::key(&self.agent.cluster, &self.agent.node);
        let txn = txn.write(&key, &self.record, now, None)?;
        if let Outcome::Committed(_) = self.app.store.commit(txn).await? {
            self.stored = Some(self.record.clone());
        }
        Ok(())
    }

    /// Notes that the link is lost, unless the agent has another one.
    async fn lose(&mut self) -> StoreResult<()> {
        let key = AgentRecord::key(&self.agent.cluster, &self.agent.node);
        let stored = match self.app.store.read::<AgentRecord>(&key).await {
            Ok(Some(stored)) => stored,
            // Somebody else of another version has written it.
            Ok(None) | Err(StoreError::Unreadable { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_ours = stored.value.server.as_ref() == Some(&self.app.me);
        if !is_ours || stored.value.link != self.record.link {
            return Ok(());
        }
        self.record.server = None;
        self.put(Txn::new().when(stored.unchanged())).await
    }

    /// The same, however long the store is away: by a record that says that the agent is linked nobody would
    /// ever let go of a machine that does not come back.
    async fn tell_loss(&mut self) {
        let (cluster, node) = (self.agent.cluster.clone(), self.agent.node.clone());
        while let Err(error) = self.lose().await {
            tracing::warn!(error = chain(&error), cluster, node, "a lost link was not stored yet");
            let pause = tokio::time::sleep(WRITE_AGAIN);
            if self.app.stopping.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }
}

/// When the certificate is looked at again; one look that failed is made up for soon.
fn next_look(every: Duration, looked: bool) -> Duration {
    if looked { every } else { every.min(RENEW_AGAIN) }
}

/// Never, if there is no time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn wanted(name: &str) -> Option<Kind> {
    [Kind::Reboot, Kind::Shutdown, Kind::Update].into_iter().find(|kind| kind.name() == name)
}

fn base_os(status: &wharf_api::node_files::BaseOsStatus) -> String {
    let state = wharf_core::node::status::SwState::from_number(status.state);
    let state = state.map_or("UNKNOWN", |state| state.name());
    let error = if status.error.is_empty() { "" } else { ": " };
    short(&format!("{state}{error}{}", status.error))
}

fn short(text: &str) -> String {
    text.chars().take(MOST_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_a_certificate_that_failed_is_made_up_for_soon() {
        let [second, hour] = [1, 3600].map(Duration::from_secs);
        assert_eq!(next_look(hour, true), hour);
        assert_eq!(next_look(hour, false), RENEW_AGAIN);
        assert_eq!(next_look(second, false), second, "never later than without a failure");
    }
}
