//! What applications say: from the files of their containers to where it is wanted.
//!
//! Flow: a [`reader::Reader`] follows the files ([`tail::Tail`]), a [`sink::Sink`] takes the lines, then
//! the cursors are stored. Each sink has a reader and cursors of its own, so that one that is away
//! holds up no other: what it has not taken is still in the files.
//!
//! Guarantees: a sink gets the lines of a container in their order and all of them, as long as
//! the kubelet keeps the files until they are taken. A file gets each line once, whatever is killed
//! when. A journal or a web server may get lines again that it had taken, if the agent was killed before
//! it could note that, and a web server also if its answer was lost: at most those of one delivery,
//! with the same numbers.
//!
//! The files are looked at every [`LOOK_EVERY`] instead of being watched: notices for every line
//! of every container would cost more than a look, and a hundred containers are looked at in a
//! millisecond.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tracing::warn;
use wharf_api::node_files::AppInstanceConfig;
use wharf_core::{
    node::{
        logs::{App, Cursor},
        names::app_name,
    },
    words::chain,
};

use crate::{
    files::Subscription,
    health::Reporter,
    store::{Store, StoreError},
    tasks::{Context, Ended},
};

mod file;
mod http;
mod journal;
mod listed;
mod reader;
mod sink;
mod tail;

use reader::{Entry, Fault, Reader};
use sink::Sink;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A sink that fails is tried again after this time, then after twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub async fn run(context: Context, reporter: Reporter) -> Ended {
    let mut apps = context.files.watch::<AppInstanceConfig>("zedagent");
    if context.stop.run_until_cancelled(apps.complete()).await.is_none() {
        return Ok(());
    }
    let mut posts = Vec::new();
    for sink in Sink::all(&context.config.logs) {
        posts.push(Post::open(&context, reporter.clone(), sink, apps.clone())?);
    }
    reporter.ok();
    let all = join_all(posts.into_iter().map(Post::run));
    let Some(ended) = context.stop.run_until_cancelled(all).await else { return Ok(()) };
    ended.into_iter().collect()
}

type Cursors = BTreeMap<String, Cursor>;

/// One sink, and all that comes to it.
struct Post {
    sink: Sink,
    apps: Subscription<AppInstanceConfig>,
    reporter: Reporter,
    /// In the hands of a thread while it reads.
    reader: Option<Reader>,
    store: Store<Cursors>,
    store_subject: String,
    /// What is to be handed on; empty when all was, and noted.
    entries: Arc<Vec<Entry>>,
    /// They were handed on, but it was not noted.
    delivered: bool,
    /// What was wrong with files at the last look.
    faults: Vec<Fault>,
    not_before: Instant,
    pause: Duration,
}

impl Post {
    fn open(
        context: &Context,
        reporter: Reporter,
        sink: Sink,
        apps: Subscription<AppInstanceConfig>,
    ) -> Result<Self, StoreError> {
        let config = &context.config;
        let path = config.persist_dir.join(format!("wharf/logs-{}.json", sink.name()));
        let store_subject = path.display().to_string();
        let store = Store::<Cursors>::new(path);
        let cursors = match store.load() {
            Err(error @ StoreError::Junk { .. }) => {
                // Lines that come again are better than none.
                warn!(reason = chain(&error), "all logs are read from their beginning");
                None
            }
            loaded => loaded?,
        };
        let reader = Reader::new(
            &config.logs.pods_dir,
            &config.app_namespace,
            cursors.unwrap_or_default(),
            std::time::Instant::now(),
        );
        Ok(Self {
            sink,
            apps,
            reporter,
            reader: Some(reader),
            store,
            store_subject,
            entries: Arc::default(),
            delivered: false,
            faults: Vec::new(),
            not_before: Instant::now(),
            pause: FIRST_PAUSE,
        })
    }

    async fn run(mut self) -> Ended {
        loop {
            let more = self.look().await?;
            let empty = self.entries.is_empty();
            if !empty && Instant::now() >= self.not_before && self.hand_on().await && more {
                continue;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Looks what there is, also while nobody takes it: a file that is open can be read to its end
    /// when its pod is gone. `true`: there may be more than was read.
    async fn look(&mut self) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        let Some(mut reader) = self.reader.take() else { return Err("it has no reader".into()) };
        let (apps, reads) = (apps(&self.apps), self.entries.is_empty());
        let looked = tokio::task::spawn_blocking(move || {
            reader.look(&apps, std::time::Instant::now());
            let read = if reads { Some(reader.read()) } else { None };
            (reader, read)
        });
        let (mut reader, read) = looked.await?;
        self.tell(reader.faults());
        self.reader = Some(reader);
        let Some((entries, more)) = read else { return Ok(true) };
        self.entries = Arc::new(entries);
        Ok(more)
    }

    fn tell(&mut self, faults: Vec<Fault>) {
        for (subject, _) in &self.faults {
            if !faults.iter().any(|(now, _)| now == subject) {
                self.reporter.clear(subject);
            }
        }
        for (subject, reason) in &faults {
            self.reporter.fault(subject, reason);
        }
        self.faults = faults;
    }

    /// Whether the lines were handed on, and that was noted.
    async fn hand_on(&mut self) -> bool {
        let subject = self.sink.subject();
        if !self.delivered {
            if let Err(error) = self.sink.deliver(&self.entries).await {
                return self.failed(&subject, &chain(&error));
            }
            self.reporter.clear(&subject);
            self.delivered = true;
        }
        let cursors = self.reader.as_ref().map(Reader::cursors).unwrap_or_default();
        let subject = self.store_subject.clone();
        if let Err(error) = self.store.save(&cursors).await {
            return self.failed(&subject, &chain(&error));
        }
        self.reporter.clear(&subject);
        (self.entries, self.delivered, self.pause) = (Arc::default(), false, FIRST_PAUSE);
        true
    }

    fn failed(&mut self, subject: &str, reason: &str) -> bool {
        self.reporter.fault(subject, reason);
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        false
    }
}

fn apps(known: &Subscription<AppInstanceConfig>) -> Vec<App> {
    let known = known.current().unwrap_or_default();
    let app = |(uuid, app): (&String, &Arc<AppInstanceConfig>)| App {
        uuid: uuid.clone(),
        kube_name: app_name(&app.display_name, uuid),
        designated: app.is_designated_node_id,
        silent: app.disable_logs,
    };
    known.iter().map(app).collect()
}
