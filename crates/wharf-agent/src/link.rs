//! The link to the server: what the node is to know comes down, how the node is goes up.
//!
//! One TLS connection, opened by the agent with the certificate that the installer placed; the
//! messages are in [`wharf_api::link`]. What came last is saved ([`saved`]) and published again when
//! the agent starts, so that neither a lost link nor a restart changes anything on the node.
//!
//! Start reading at [`run`]; [`speak`] is one connection.

use std::{collections::VecDeque, path::PathBuf, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use wharf_core::{
    agents::{GRACE, config_get},
    words::chain,
};

use crate::{
    aside::aside,
    config::Config,
    health::Reporter,
    tasks::{Context, Ended},
    tracker::Tracker,
};

mod publish;
mod report;
mod saved;
mod speak;
mod trace;
mod wire;

use publish::Publisher;
use report::Reports;
use saved::Saved;

/// For what is still to be said when the agent stops.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Between two tries, at first and in the end; each is drawn between half of it and one and a half.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Who was linked for so long has not failed in a row.
const LASTED: Duration = Duration::from_secs(60);

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("no server is known")]
    NoServer,
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds no certificate with its key", path.display())]
    Identity {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot reach the server")]
    Connect(#[source] std::io::Error),
    #[error("the server does not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the connection broke")]
    Broken(#[source] std::io::Error),
    #[error("the server closed the link")]
    Closed,
    #[error("nothing was heard of the server for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the server refuses this agent: {0}")]
    Refused(String),
    #[error("the server says what cannot be understood")]
    Junk(#[from] wharf_api::link::LinkError),
    #[error("this node belongs to {name}, and the server speaks to {told}")]
    NotMe { name: String, told: String },
}

/// Whether there is a link, for whoever asks if the node reaches its controller.
#[derive(Debug, Clone, Copy)]
struct Standing {
    linked: bool,
    saved: bool,
    since: Instant,
}

/// Keeps the link until the agent stops.
pub async fn run(context: Context, reporter: Reporter, tracker: Tracker) -> Ended {
    let stop = context.stop.clone();
    let saved = Saved::new(&context.config.persist_dir);
    let mut publisher = Publisher::new(context.clone(), reporter.clone());
    let known = match aside(|| saved.read()) {
        Ok(known) => known,
        Err(reason) => {
            reporter.fault("the saved configuration", &reason);
            None
        }
    };
    if let Some(config) = &known {
        publisher.publish(config).await;
    }
    publisher.guard_unknown();
    let standing = Standing { linked: false, saved: known.is_some(), since: Instant::now() };
    let (standing, stands) = watch::channel(standing);
    let mut link = Link {
        servers: Servers::new(&context.config, known.as_ref().map_or(&[], |known| &known.servers)),
        reports: Reports::new(&context),
        context: context.clone(),
        tracker,
        reporter,
        publisher,
        saved,
        standing,
        owed_identity: None,
    };
    let stopped = async {
        stop.cancelled().await;
        sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = stopped => {}
        () = tell_standing(&context, stands) => {}
        () = link.keep() => {}
    }
    Ok(())
}

struct Link {
    context: Context,
    tracker: Tracker,
    reporter: Reporter,
    publisher: Publisher,
    reports: Reports,
    saved: Saved,
    servers: Servers,
    standing: watch::Sender<Standing>,
    /// A new certificate with its key that could not be kept yet.
    owed_identity: Option<String>,
}

impl Link {
    /// Connects again and again, until the agent stops.
    async fn keep(&mut self) {
        let stop = self.context.stop.clone();
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = Instant::now();
            let ended = match self.servers.next() {
                Some(server) => match self.speak(&server).await {
                    Ok(()) => return,
                    Err(error) => (server, error),
                },
                None => ("the server".to_owned(), LinkError::NoServer),
            };
            self.lost();
            let (server, error) = ended;
            self.reporter.fault("the link", &format!("{server}: {}", chain(&error)));
            if begun.elapsed() >= LASTED {
                pause = FIRST_PAUSE;
            }
            if stop.run_until_cancelled(sleep(jitter(pause))).await.is_none() {
                return;
            }
            // All that are known are tried before anybody waits longer.
            if self.servers.is_round_over() {
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// The link stands, and the configuration that came over it is in use.
    fn linked(&mut self) {
        self.reporter.ok();
        self.reporter.clear("the link");
        self.standing.send_if_modified(|standing| {
            let news = !standing.linked;
            (standing.linked, standing.saved) = (true, true);
            news
        });
    }

    fn lost(&mut self) {
        let was_linked = self.standing.borrow().linked;
        if was_linked {
            self.standing.send_modify(|standing| {
                (standing.linked, standing.since) = (false, Instant::now());
            });
        }
        self.publisher.guard_unknown();
    }
}

/// Publishes what the link's health means, at each change and when a loss has lasted.
async fn tell_standing(context: &Context, mut stands: watch::Receiver<Standing>) {
    loop {
        let Standing { linked, saved, since } = *stands.borrow_and_update();
        publish::standing(context, config_get(linked, saved, since.elapsed()));
        let left = GRACE.saturating_sub(since.elapsed());
        let told = tokio::select! {
            changed = stands.changed() => changed.is_ok(),
            () = sleep(left), if !linked && !left.is_zero() => true,
        };
        if !told {
            return std::future::pending().await;
        }
    }
}

/// Where servers may be: as the configuration says, and as servers have said.
struct Servers {
    configured: Vec<String>,
    all: Vec<String>,
    round: VecDeque<String>,
}

impl Servers {
    fn new(config: &Config, learned: &[String]) -> Self {
        let configured = config.server.as_deref().unwrap_or_default().split(',');
        let configured = configured.map(str::trim).filter(|server| !server.is_empty());
        let mut servers = Self {
            configured: configured.map(str::to_owned).collect(),
            all: Vec::new(),
            round: VecDeque::new(),
        };
        servers.learn(learned);
        servers
    }

    fn learn(&mut self, learned: &[String]) {
        let mut all = self.configured.clone();
        all.extend(learned.iter().filter(|server| !self.configured.contains(server)).cloned());
        self.all = all;
    }

    /// The next to try.
    fn next(&mut self) -> Option<String> {
        if self.round.is_empty() {
            self.round = self.all.iter().cloned().collect();
        }
        self.round.pop_front()
    }

    fn is_round_over(&self) -> bool {
        self.round.is_empty()
    }

    /// This one answered: it is the first to be tried again.
    fn prefer(&mut self, server: &str) {
        self.round = self.all.iter().filter(|known| *known != server).cloned().collect();
        self.round.push_front(server.to_owned());
    }
}

/// So that a thousand agents do not come back at the same moment.
fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + rand::random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_are_tried_in_turn_and_the_one_that_answered_first() {
        let config = Config { server: Some("a:1, b:2".to_owned()), ..Config::default() };
        let mut servers = Servers::new(&config, &["c:3".to_owned(), "a:1".to_owned()]);
        let round = |servers: &mut Servers| -> Vec<String> {
            let mut seen = vec![servers.next().unwrap()];
            while !servers.is_round_over() {
                seen.extend(servers.next());
            }
            seen
        };
        assert_eq!(round(&mut servers), ["a:1", "b:2", "c:3"]);
        servers.prefer("c:3");
        assert_eq!(round(&mut servers), ["c:3", "a:1", "b:2"]);
        servers.learn(&[]);
        assert_eq!(round(&mut servers), ["a:1", "b:2"], "what is configured stays");
        let mut nobody = Servers::new(&Config::default(), &[]);
        assert_eq!(nobody.next(), None);
    }
}
