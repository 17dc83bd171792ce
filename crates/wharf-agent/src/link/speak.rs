//! One connection to a server, from hello to its end.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use wharf_api::link::{ALIVE_EVERY, Down, Hello, NodeConfig, Report, SILENCE, Up};

use super::{Link, LinkError, trace, wire::Wire};
use crate::{aside::aside, host::files};

/// Things change together: the report waits a moment for the others.
const GATHER: Duration = Duration::from_millis(100);
/// The key is in it.
const IDENTITY_MODE: u32 = 0o600;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl Link {
    /// Ends by an error, or when the agent stops and has said its last words.
    pub(super) async fn speak(&mut self, server: &str) -> Result<(), LinkError> {
        let stop = self.context.stop.clone();
        let mut wire = Wire::open(&self.context.config, server).await?;
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = Hello { version, boot_id: boot_id.trim().to_owned() };
        wire.send(&Up::Hello(hello)).await?;
        self.reports.complete().await;
        let mut alive = interval(ALIVE_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let mut sent: Option<Report> = None;
        let mut report_at = Some(Instant::now());
        let mut traces = FuturesUnordered::new();
        let mut address = None;
        loop {
            tokio::select! {
                // That the node goes down is known to nobody else.
                () = stop.cancelled() => {
                    let report = self.reports.last(&self.context.files);
                    if sent.as_ref() != Some(&report) {
                        wire.send(&Up::Report(Box::new(report))).await?;
                    }
                    return Ok(());
                }
                () = sleep_until(heard + SILENCE) => return Err(LinkError::Silent(SILENCE)),
                message = wire.next() => {
                    heard = Instant::now();
                    match message? {
                        Down::Config(config) => {
                            address = trace::own_address(&config);
                            self.take_over(server, &config).await?;
                        }
                        Down::Credentials { certificate_pem, key_pem } => {
                            // One file, so that certificate and key cannot fall apart.
                            self.owed_identity = Some(format!("{certificate_pem}{}", key_pem.0));
                            self.keep_identity();
                        }
                        Down::Trace { id, app } => {
                            let (tracker, reporter) = (self.tracker.clone(), self.reporter.clone());
                            traces.push(trace::answer(tracker, reporter, address, id, app));
                        }
                        Down::Refused { reason } => return Err(LinkError::Refused(reason)),
                        Down::Alive | Down::Unknown => {}
                    }
                }
                () = self.reports.changed() => {
                    report_at.get_or_insert(Instant::now() + GATHER);
                }
                () = at(report_at) => {
                    report_at = None;
                    let report = self.reports.now();
                    if sent.as_ref() != Some(&report) {
                        wire.send(&Up::Report(Box::new(report.clone()))).await?;
                        sent = Some(report);
                    }
                }
                Some(answer) = traces.next(), if !traces.is_empty() => wire.send(&answer).await?,
                _ = alive.tick() => {
                    self.keep_identity();
                    wire.send(&Up::Alive).await?;
                }
            }
        }
    }

    /// Makes a configuration that came the one that holds.
    async fn take_over(&mut self, server: &str, config: &NodeConfig) -> Result<(), LinkError> {
        let (name, told) = (&self.context.config.node_name, &config.node.device_name);
        if !name.is_empty() && name != told {
            return Err(LinkError::NotMe { name: name.clone(), told: told.clone() });
        }
        self.servers.learn(&config.servers);
        self.servers.prefer(server);
        match aside(|| self.saved.write(config)) {
            Ok(()) => self.reporter.clear("saving the configuration"),
            Err(reason) => self.reporter.fault("saving the configuration", &reason),
        }
        self.publisher.publish(config).await;
        self.publisher.guard(&config.guard);
        self.linked();
        Ok(())
    }

    /// Keeps a new certificate for the next connection, if there is one. The server sends it once in a
    /// connection, which may last longer than the old one: a disk that is full now is tried again.
    fn keep_identity(&mut self) {
        let Some(text) = &self.owed_identity else { return };
        let path = &self.context.config.link_identity;
        let subject = "keeping a new certificate";
        match aside(|| files::write_durably(path, IDENTITY_MODE, text.as_bytes())) {
            Ok(()) => {
                self.owed_identity = None;
                self.reporter.clear(subject);
                tracing::info!(file = %path.display(), "the link has a new certificate");
            }
            Err(error) => self.reporter.fault(subject, &format!("{}: {error}", path.display())),
        }
    }
}

/// Never, if there is no time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
