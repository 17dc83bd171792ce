//! How each application is: `ENClusterAppStatus`, and where this agent plays them, what zedmanager and
//! domainmgr say.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::info;
use wharf_api::node_files::{
    AppInstanceConfig, AppInstanceStatus, DomainStatus, EnClusterAppStatus,
};
use wharf_core::node::{
    app_reports::PodWord,
    apps::{App, AppStatus, Seen, decide_app},
    names::app_name,
};
use wharf_kube::Clock;

use super::{Hosted, pods::Sight};
use crate::{
    config::{Config, Role},
    device,
    files::{Files, FilesError, Subscription},
    health::Reporter,
    tasks::{Context, Ended},
};

mod words;

const ZEDKUBE: &str = "zedkube";
const ZEDMANAGER: &str = "zedmanager";
const DOMAINMGR: &str = "domainmgr";
/// Changes that come together are looked at together.
const GATHER: Duration = Duration::from_millis(200);
/// While somebody is waited for, time itself changes what is said.
const LOOK_WAITING: Duration = Duration::from_secs(10);
/// What others removed is written again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// A container without a virtual machine around it.
const NATIVE: u8 = 4;
/// The port of a console at display 0.
const FIRST_PORT: u32 = 5900;

/// Tells of every application that the node was told of, and in `hosted` which of them are here, as far
/// as the cluster has said.
pub async fn run(
    context: Context,
    reporter: Reporter,
    mut sight: watch::Receiver<Sight>,
    hosted: watch::Sender<Option<Vec<Hosted>>>,
) -> Ended {
    announce(&context);
    let Some(here) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let mut teller = Teller::new(&context, here);
    let mut whole_at = Instant::now();
    loop {
        let seen = sight.borrow_and_update().clone();
        let whole = Instant::now() >= whole_at;
        if teller.look(&seen, whole) {
            reporter.ok();
            if whole {
                whole_at = Instant::now() + LOOK_AGAIN;
            }
            if seen.silent_since.is_none() {
                let here = Some(teller.hosted());
                hosted.send_if_modified(|known| {
                    let news = *known != here;
                    *known = here;
                    news
                });
            }
        }
        let pause = if teller.waits() { LOOK_WAITING } else { LOOK_AGAIN };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = teller.apps.changed() => {}
            Ok(()) = sight.changed() => {}
            () = sleep(pause) => {}
        }
        if context.stop.run_until_cancelled(sleep(GATHER)).await.is_none() {
            return Ok(());
        }
    }
}

/// Says who publishes here, also while there is nothing to publish.
fn announce(context: &Context) {
    context.files.announce::<EnClusterAppStatus>(ZEDKUBE);
    if context.config.plays(Role::Zedmanager) {
        context.files.announce::<AppInstanceStatus>(ZEDMANAGER);
    }
    if context.config.plays(Role::Domainmgr) {
        context.files.announce::<DomainStatus>(DOMAINMGR);
    }
}

/// What was said of an application, and of what.
struct Told {
    config: Arc<AppInstanceConfig>,
    status: AppStatus,
    word: Option<PodWord>,
    /// Everything could be written.
    published: bool,
}

struct Teller {
    config: Arc<Config>,
    files: Files,
    apps: Subscription<AppInstanceConfig>,
    here: String,
    clock: Clock,
    told: BTreeMap<String, Told>,
}

impl Teller {
    fn new(context: &Context, here: String) -> Self {
        Self {
            config: context.config.clone(),
            files: context.files.clone(),
            apps: context.files.watch("zedagent"),
            here,
            clock: Clock::start(),
            told: BTreeMap::new(),
        }
    }

    /// Tells what changed, or with `whole` everything. `false` while nothing can be said.
    fn look(&mut self, sight: &Sight, whole: bool) -> bool {
        let Some((configs, seen)) = self.apps.current().zip(self.seen(sight)) else {
            return false;
        };
        let apps: Vec<App> = configs.iter().map(|(key, config)| to_app(key, config)).collect();
        for (app, config) in apps.iter().zip(configs.values()) {
            self.tell(app, &apps, config, (&seen, sight), whole);
        }
        self.take_back(whole);
        true
    }

    /// `None` until the cluster has told of everything once, or is found to be silent.
    fn seen(&self, sight: &Sight) -> Option<Seen> {
        if let Some(since) = sight.silent_since {
            return Some(Seen::Silent { since: self.clock.time_of(since) });
        }
        let (pods, machines) = (sight.pods.as_ref()?, sight.machines.as_ref()?);
        Some(Seen::Objects {
            pods: pods.values().map(|pod| pod.pod.clone()).collect(),
            machines: machines.values().map(|machine| (**machine).clone()).collect(),
        })
    }

    fn tell(
        &mut self,
        app: &App,
        all: &[App],
        config: &Arc<AppInstanceConfig>,
        (seen, sight): (&Seen, &Sight),
        whole: bool,
    ) {
        let told = self.told.get(&app.uuid);
        // After a restart what was published last counts.
        let last = told.map(|told| told.status.clone()).or_else(|| self.published(&app.uuid));
        let limit = Duration::from_secs(self.config.unknown_to_halting_seconds);
        let now = self.clock.now();
        let status = decide_app(app, all, seen, last.as_ref(), &self.here, now, limit);
        let pod = sight.pods.as_ref().and_then(|pods| pods.get(&status.pod_name));
        let word = pod.map(|pod| PodWord { started: pod.started, trouble: pod.trouble.clone() });
        let same = told.is_some_and(|told| {
            let unchanged = Arc::ptr_eq(&told.config, config) && told.status == status;
            told.published && unchanged && told.word == word
        });
        if same && !whole {
            return;
        }
        if last.is_none_or(|last| last.kube_status != status.kube_status) {
            let (state, node) = (status.domain.name(), &status.node_name);
            info!(app = app.kube_name, state, node, "ENClusterAppStatus changes");
        }
        let published = self.publish(app, config, &status, word.as_ref()).is_ok();
        let told = Told { config: config.clone(), status, word, published };
        self.told.insert(app.uuid.clone(), told);
    }

    fn published(&self, key: &str) -> Option<AppStatus> {
        let file = self.files.read::<EnClusterAppStatus>(ZEDKUBE, key).ok()??;
        Some(words::read_status(&file))
    }

    /// Everything is tried; the first failure is told.
    fn publish(
        &self,
        app: &App,
        config: &AppInstanceConfig,
        status: &AppStatus,
        word: Option<&PodWord>,
    ) -> Result<(), FilesError> {
        let key = &app.uuid;
        let mut done = vec![self.files.publish(ZEDKUBE, key, &words::status(app, config, status))];
        if self.config.plays(Role::Zedmanager) {
            let before = self.files.read(ZEDMANAGER, key).ok().flatten().unwrap_or_default();
            let file = words::instance(app, config, status, word, &self.here, &before);
            done.push(self.files.publish(ZEDMANAGER, key, &file));
        }
        if self.config.plays(Role::Domainmgr) {
            let before = self.files.read(DOMAINMGR, key).ok().flatten().unwrap_or_default();
            let file = words::domain(app, config, status, word, &before);
            done.push(self.files.publish(DOMAINMGR, key, &file));
        }
        done.into_iter().collect::<Result<Vec<bool>, _>>().map(drop)
    }

    /// What is said of applications that are not wanted any more goes. A configuration that cannot
    /// be read is none that is gone.
    fn take_back(&mut self, whole: bool) {
        let is_gone = |key: &String| self.apps.get(key) == Some(None);
        let mut gone: Vec<String> = self.told.keys().filter(|key| is_gone(key)).cloned().collect();
        if whole {
            let left = self.files.keys::<EnClusterAppStatus>(ZEDKUBE).unwrap_or_default();
            gone.extend(left.into_iter().filter(is_gone));
        }
        for key in gone {
            let mut done = vec![self.files.unpublish::<EnClusterAppStatus>(ZEDKUBE, &key)];
            if self.config.plays(Role::Zedmanager) {
                done.push(self.files.unpublish::<AppInstanceStatus>(ZEDMANAGER, &key));
            }
            if self.config.plays(Role::Domainmgr) {
                done.push(self.files.unpublish::<DomainStatus>(DOMAINMGR, &key));
            }
            if done.iter().all(Result::is_ok) {
                self.told.remove(&key);
            }
        }
    }

    /// The applications whose pods are here.
    fn hosted(&self) -> Vec<Hosted> {
        let here = self.told.iter().filter(|(_, told)| told.status.node_name == self.here);
        here.map(|(key, told)| Hosted {
            key: key.clone(),
            config: told.config.clone(),
            pod_name: told.status.pod_name.clone(),
        })
        .collect()
    }

    /// Whether time alone may change what is said, or what could not be written is to be.
    fn waits(&self) -> bool {
        let waits = |told: &Told| told.status.unknown_since.is_some() || !told.published;
        self.told.values().any(waits)
    }
}

fn to_app(key: &str, config: &AppInstanceConfig) -> App {
    let machine = &config.fixed_resources;
    let has_console = machine.virtualization_mode != NATIVE && machine.enable_vnc;
    App {
        uuid: key.to_owned(),
        kube_name: app_name(&config.display_name, key),
        activate: config.activate,
        designated: config.is_designated_node_id,
        vnc_port: if has_console { FIRST_PORT.saturating_add(machine.vnc_display) } else { 0 },
    }
}
