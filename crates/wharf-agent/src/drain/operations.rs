//! Reboots, shutdowns and updates that wait at the gate.

mod published;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};
use wharf_api::node_files::NodeWish;
use wharf_core::{
    node::{
        gate::{Later, Published, Requests},
        requester::{
            Decision, Effect, Facts, Image, Job, Journal, Outcome, Phase, Power, UpdateWish, Wish,
            apply, decide_jobs,
        },
        status::DrainStatus,
    },
    words::chain,
};
use wharf_kube::Clock;

use self::published::Publisher;
use super::{
    STORE_AGAIN, Said, Waiting, boot_id, changed,
    command::{self, Orders},
    image::Images,
    wishes::{self, Wishes},
};
use crate::{
    aside::aside,
    config::{Config, Role},
    health::{AGENT, Reporter},
    programs::Mark,
    store::{Store, StoreError},
    tasks::{Context, Ended},
};

/// A job goes through fewer states than this; who changes without end is made to pause.
const MOST_STEPS: usize = 20;
/// What others removed is written again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
const STORE: &str = "the journal of operations";
const LEFT: &str = "an update that an earlier agent began";
const UPDATE_HINT: &str = "put the program that installs an image there, or set update_command in the \
                           agent's configuration";

#[derive(Debug, thiserror::Error)]
pub enum OperationsError {
    #[error("the kernel does not say which boot this is")]
    Boot(#[source] std::io::Error),
    /// Begun without it, an operation might be done twice.
    #[error("the journal of operations cannot be used; to forget all operations, remove it")]
    Journal(#[source] StoreError),
}

/// Whether this agent plays one of those who take a node out of service.
pub fn is_wanted(config: &Config) -> bool {
    [Role::Zedagent, Role::Nodeagent, Role::Baseosmgr].into_iter().any(|role| config.plays(role))
}

/// Carries wishes out until the agent stops.
///
/// # Errors
/// What was begun before is not known.
pub async fn run(
    context: Context,
    reporter: Reporter,
    orders: Orders,
    (mut gate, waiting): (watch::Receiver<Option<Said>>, Waiting),
) -> Ended {
    let stop = context.stop.clone();
    let mut operations = Operations::open(&context, reporter, orders, waiting)?;
    if stop.run_until_cancelled(operations.end_left()).await.is_none() {
        return Ok(());
    }
    loop {
        let said = gate.borrow_and_update().clone();
        let wake = match said {
            Some(said) => operations.look(&said).await,
            None => operations.before_the_gate_speaks(),
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = changed(&mut gate) => {}
            () = operations.wait(wake) => {}
        }
    }
}

struct Operations {
    config: Arc<Config>,
    boot_id: String,
    clock: Clock,
    orders: Orders,
    wishes: Wishes,
    images: Images,
    publisher: Publisher,
    waiting: Waiting,
    reporter: Reporter,
    /// On all programs that are started here.
    mark: Mark,
    store: Store<Journal>,
    journal: Journal,
    /// What came of an effect and is not stored yet.
    outcome: Option<Outcome>,
    commanding: Option<AbortOnDropHandle<Outcome>>,
    ordering: Option<AbortOnDropHandle<Option<Outcome>>>,
    /// For this job the node was told to go down, and no more was heard of that than that it may.
    ordered: Option<String>,
}

impl Operations {
    fn open(
        context: &Context,
        reporter: Reporter,
        orders: Orders,
        waiting: Waiting,
    ) -> Result<Self, OperationsError> {
        let folder = context.config.persist_dir.join(AGENT);
        let store = Store::new(folder.join("operations.json"));
        let journal = store.load().map_err(OperationsError::Journal)?.unwrap_or_default();
        Ok(Self {
            boot_id: boot_id().map_err(OperationsError::Boot)?,
            mark: Mark::new(&folder, "operations"),
            clock: Clock::start(),
            orders,
            wishes: Wishes::open(context),
            images: Images::new(folder.join("images")),
            publisher: Publisher::new(context, reporter.clone()),
            config: context.config.clone(),
            waiting,
            reporter,
            store,
            journal,
            outcome: None,
            commanding: None,
            ordering: None,
            ordered: None,
        })
    }

    /// An agent that was killed while an update was put in place left its command running. What it
    /// came to cannot be known any more. Before the job counts as failed, the node is given back and
    /// another update may begin, it is ended.
    async fn end_left(&self) {
        let update = self.journal.update.as_ref();
        if !update.is_some_and(|job| matches!(job.phase, Phase::Commanding { .. })) {
            return;
        }
        while let Err(error) = self.mark.end_all().await {
            self.reporter.fault(LEFT, &chain(&error));
            sleep(STORE_AGAIN).await;
        }
        self.reporter.clear(LEFT);
    }

    /// The gate waits for requests that cannot be read. Ours are known, and written again.
    fn before_the_gate_speaks(&self) -> Instant {
        self.publisher.mend_requests(&self.journal.requests_in(&self.boot_id));
        Instant::now() + LOOK_AGAIN
    }

    /// Decides until nothing changes any more; when to look again.
    async fn look(&mut self, said: &Said) -> Instant {
        for _ in 0..MOST_STEPS {
            let Some(wishes) = self.wishes.read() else { return Instant::now() + LOOK_AGAIN };
            if !self.take_outcome().await {
                return Instant::now() + STORE_AGAIN;
            }
            self.want_image(&wishes);
            let facts = self.facts(&wishes, said);
            let retry = Duration::from_secs(self.config.drain_retry_seconds);
            let decision = decide_jobs(&self.journal, &facts, self.clock.now(), retry);
            if let Some(journal) = &decision.journal {
                let before = self.journal.clone();
                if !self.save(journal.clone()).await {
                    return Instant::now() + STORE_AGAIN;
                }
                log_changes(&before, journal, said);
            }
            self.want_image(&wishes);
            self.tell_waiting();
            let told = self.tell(&wishes, said, &decision);
            let (moved, wake_at) = (decision.journal.is_some(), decision.wake_at);
            decision.effects.into_iter().for_each(|effect| self.begin(effect, &wishes));
            if !moved {
                self.wishes.remove_what_is_over(&self.journal);
                self.reporter.ok();
                let now = Instant::now();
                let wake = wake_at.map_or(now + LOOK_AGAIN, |at| self.clock.moment(at));
                return wake.min(now + if told { LOOK_AGAIN } else { STORE_AGAIN });
            }
        }
        Instant::now() + STORE_AGAIN
    }

    /// Returns when there is something new to decide on.
    async fn wait(&mut self, wake: Instant) {
        tokio::select! {
            outcome = ended(&mut self.commanding) => {
                let lost = |error| Outcome::CommandFailed(format!("the update was lost: {error}"));
                self.outcome = Some(outcome.unwrap_or_else(lost));
                self.commanding = None;
            }
            outcome = ended(&mut self.ordering) => {
                self.ordering = None;
                self.outcome = outcome.unwrap_or_else(|error| {
                    Some(Outcome::LeaveFailed(format!("the order was lost: {error}")))
                });
                if self.outcome.is_some() {
                    self.ordered = None;
                }
            }
            () = self.wishes.changed() => {}
            () = self.images.changed() => {}
            () = sleep_until(wake) => {}
        }
    }

    fn facts(&self, wishes: &[Arc<NodeWish>], said: &Said) -> Facts {
        let plays = |role| self.config.plays(role);
        let devices = wishes.iter().filter(|_| plays(Role::Zedagent)).filter_map(|wish| {
            let (id, canceled) = (wish.id.clone(), wish.canceled);
            let (power, taken_in) = (wishes::power(&wish.kind)?, wishes::taken_in(wish));
            Some(Wish { id, power, canceled, taken_in })
        });
        let updates = wishes.iter().filter(|wish| wish.kind == wishes::UPDATE_KIND);
        let updates = updates.filter(|_| plays(Role::Baseosmgr)).map(|wish| UpdateWish {
            id: wish.id.clone(),
            image: self.image(&wish.id),
            activate: true,
            canceled: wish.canceled,
            taken_in: wishes::taken_in(wish),
        });
        Facts {
            boot_id: self.boot_id.clone(),
            device_operations: devices.collect(),
            updates: updates.collect(),
            drain: self.word(said),
            commanding: self.commanding.is_some(),
            ordered: self.ordered.clone(),
        }
    }

    /// What the gate says to our requests. As long as it has not seen them it has not answered them.
    fn word(&self, said: &Said) -> Published {
        let (ours, seen) = (self.journal.requests(), &said.requests);
        let plays = |role| self.config.plays(role);
        let device = !plays(Role::Zedagent) || ours.device_operation == seen.device_operation;
        let update = !plays(Role::Baseosmgr) || ours.update == seen.update;
        match said.published.status {
            DrainStatus::Unknown | DrainStatus::NotSupported => said.published,
            _ if device && update => said.published,
            _ => Published { status: DrainStatus::Requested, ..said.published },
        }
    }

    /// Without a command that can be run an image is of no use, and no drain is begun for it. What runs
    /// already may put another program in the place of its own.
    fn image(&self, id: &str) -> Image {
        let update = self.journal.update.as_ref().filter(|job| job.id == id);
        let runs = update.is_some_and(|job| matches!(job.phase, Phase::Commanding { .. }));
        match aside(|| command::check(&self.config.update_command)) {
            Err(error) if !runs => Image::Failed(format!("{error}; {UPDATE_HINT}")),
            Ok(()) | Err(_) => self.images.state(id),
        }
    }

    /// The image of the update that is under way is fetched, and no other.
    fn want_image(&mut self, wishes: &[Arc<NodeWish>]) {
        let job = self.journal.update.as_ref().filter(|job| !job.is_over());
        let wish = job.and_then(|job| wishes.iter().find(|wish| wish.id == job.id));
        self.images.want(wish.map(Arc::as_ref));
    }

    /// Only who asks in both names can say that nobody will.
    fn tell_waiting(&self) {
        let asks_for_all =
            [Role::Zedagent, Role::Baseosmgr].iter().all(|one| self.config.plays(*one));
        let now = match self.journal.waits() {
            true => Later::Asks,
            false if asks_for_all => Later::Nobody,
            false => Later::Unknown,
        };
        self.waiting.send_if_modified(|known| std::mem::replace(known, now) != now);
    }

    fn tell(&mut self, wishes: &[Arc<NodeWish>], said: &Said, decision: &Decision) -> bool {
        let update = self.journal.update.as_ref();
        let image = update.map(|job| self.image(&job.id));
        let wish = update.and_then(|job| wishes.iter().find(|wish| wish.id == job.id));
        self.publisher.tell(&self.journal, decision, said, image.as_ref(), wish.map(Arc::as_ref))
    }

    /// Whether nothing is left to be stored.
    async fn take_outcome(&mut self) -> bool {
        let Some(outcome) = self.outcome.clone() else { return true };
        let mut next = self.journal.clone();
        if apply(&mut next, outcome, self.clock.now()) {
            log_ends(&self.journal, &next);
            if !self.save(next).await {
                return false;
            }
        }
        self.outcome = None;
        true
    }

    async fn save(&mut self, journal: Journal) -> bool {
        match self.store.save(&journal).await {
            Ok(()) => {
                self.reporter.clear(STORE);
                self.journal = journal;
                true
            }
            Err(error) => {
                self.reporter.fault(STORE, &chain(&error));
                false
            }
        }
    }

    fn begin(&mut self, effect: Effect, wishes: &[Arc<NodeWish>]) {
        match effect {
            Effect::Leave { id, power } => self.leave(id, power),
            Effect::Command { id } => {
                let Some(wish) = wishes.iter().find(|wish| wish.id == id) else { return };
                let (command, image) = (self.config.update_command.clone(), self.images.path(wish));
                info!(id, "baseOsHandleStatusUpdateUUID: the update is put in place");
                let mark = self.mark.clone();
                self.commanding = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                    match command::update(&command, &image, &mark).await {
                        Ok(()) => Outcome::Commanded,
                        Err(error) => Outcome::CommandFailed(chain(&error)),
                    }
                })));
            }
        }
    }

    fn leave(&mut self, id: String, power: Power) {
        info!(id, ?power, "scheduleDeviceOperation: the node goes down now");
        let (orders, mark) = (self.orders.clone(), self.mark.clone());
        self.ordered = Some(id);
        self.ordering = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let error = orders.give(power, &mark).await.err()?;
            Some(Outcome::LeaveFailed(chain(&error)))
        })));
    }
}

async fn ended<T>(task: &mut Option<AbortOnDropHandle<T>>) -> Result<T, tokio::task::JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

/// The jobs that are not as they were, each with the word that people search the log for.
fn changes<'a>(
    before: &'a Journal,
    after: &'a Journal,
) -> impl Iterator<Item = (&'static str, &'a Job)> {
    let slots = [
        ("scheduleDeviceOperation", &before.device_operation, &after.device_operation),
        ("baseOsHandleStatusUpdateUUID", &before.update, &after.update),
    ];
    let changed = slots.into_iter().filter(|(_, old, new)| old != new);
    changed.filter_map(|(word, _, new)| Some((word, new.as_ref()?)))
}

fn log_changes(before: &Journal, after: &Journal, said: &Said) {
    let status = said.published.status.name();
    for (word, job) in changes(before, after) {
        let (id, kind, phase) = (&job.id, job.kind, published::phase(&job.phase));
        info!(id, ?kind, status, "{word}: the operation is {phase}");
    }
    if before.requests() != after.requests() {
        let Requests { device_operation, update } = after.requests();
        let (device, update) = (device_operation.is_some(), update.is_some());
        info!(device, update, "NodeDrainRequest is asked for by these");
    }
}

fn log_ends(before: &Journal, after: &Journal) {
    for (word, job) in changes(before, after) {
        if let Job { id, phase: Phase::Failed { reason, .. }, .. } = job {
            warn!(id, reason, "{word}: the operation failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::node::requester::Kind;

    use super::*;

    #[test]
    fn what_becomes_of_an_update_is_logged_under_the_word_for_updates() {
        let job = |kind, phase| Some(Job { id: "a".to_owned(), kind, phase });
        let (at, reason) = (jiff::Timestamp::UNIX_EPOCH, "exit 1".to_owned());
        let waiting = Phase::Preparing { request: None };
        let before = Journal {
            device_operation: job(Kind::Reboot, Phase::Done { at }),
            update: job(Kind::Update, waiting.clone()),
            ..Journal::default()
        };
        let words = |after: &Journal| {
            changes(&before, after).map(|(word, _)| word.to_owned()).collect::<Vec<_>>()
        };
        let update = job(Kind::Update, Phase::Failed { at, reason });
        let failed = Journal { update, ..before.clone() };
        assert_eq!(words(&failed), ["baseOsHandleStatusUpdateUUID"]);
        let device_operation = job(Kind::Shutdown, waiting);
        let shutdown = Journal { device_operation, ..before.clone() };
        assert_eq!(words(&shutdown), ["scheduleDeviceOperation"]);
        assert_eq!(words(&before), [""; 0]);
    }
}
