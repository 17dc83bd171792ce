//! The gate's task.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::warn;
use wharf_core::{
    node::gate::{
        CORDON_OWNER, Decision, Effect, Facts, How, Later, Outcome, Phase, Policy, Record, apply,
        decide_gate,
    },
    words::chain,
};
use wharf_kube::Clock;

use super::{
    LOOK, STORE_AGAIN, Said, Word, boot_id, changed,
    inputs::{self, Inputs, wait_for_node_name},
    publish::{Publisher, reason},
    sight::Sight,
    worker::{Progress, Worker},
};
use crate::{
    config::Config,
    health::{AGENT, Reporter},
    kube::Kube,
    store::Store,
    tasks::{Context, Ended},
};

/// A drain goes through fewer states than this; who changes without end is made to pause.
const MOST_STEPS: usize = 20;
/// What others removed is written again after this time.
const WRITE_AGAIN: Duration = Duration::from_secs(30);
const STORE: &str = "the record of the drain";

/// Runs the gate until the agent stops. A drain under way then ends here; its cordon and its record
/// stay, and the next process goes on with them.
///
/// # Errors
/// The kernel does not say which boot this is.
pub async fn run(
    context: Context,
    reporter: Reporter,
    kube: Kube,
    (word, waits): (Word, watch::Receiver<Later>),
) -> Ended {
    let stop = context.stop.clone();
    let mut gate = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        gate = Gate::open(&context, reporter, kube, (word, waits)) => gate?,
    };
    loop {
        let wake = gate.look().await;
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = gate.wait(wake) => {}
        }
    }
}

struct Gate {
    boot_id: String,
    policy: Policy,
    clock: Clock,
    inputs: Inputs,
    /// Whether an operation of this agent waits.
    waits: watch::Receiver<Later>,
    sight: Sight,
    worker: Worker,
    progress: watch::Receiver<Progress>,
    publisher: Publisher,
    reporter: Reporter,
    store: Store<Record>,
    record: Record,
    /// What came of an effect and is not stored yet.
    outcome: Option<Outcome>,
    /// What the files said at the last look.
    said: Option<inputs::Said>,
    written_at: Instant,
}

impl Gate {
    async fn open(
        context: &Context,
        reporter: Reporter,
        kube: Kube,
        (word, waits): (Word, watch::Receiver<Later>),
    ) -> std::io::Result<Self> {
        let boot_id = boot_id()?;
        let config = &context.config;
        let store = Store::new(config.persist_dir.join(AGENT).join("drain-gate.json"));
        let record = store.load().unwrap_or_else(|error| {
            // The cordon stands on the Node, and who asks asks again.
            warn!(reason = chain(&error), "the record of the drain is lost and begun anew");
            None
        });
        let record = record.unwrap_or_else(|| Record::new(&boot_id));
        let publisher =
            Publisher::new(context.files.clone(), reporter.clone(), word, &config.run_dir);
        // The run directory is lost at a boot, before anybody may have looked at it.
        record.last_took.into_iter().for_each(|took| publisher.publish_took(took));
        let node = wait_for_node_name(context).await;
        let worker = Worker::new(kube.clone(), node.clone());
        Ok(Self {
            record,
            inputs: Inputs::open(context),
            waits,
            sight: Sight::open(kube, node, boot_id.clone()),
            progress: worker.follow_progress(),
            worker,
            publisher,
            policy: policy(config),
            clock: Clock::start(),
            reporter,
            store,
            boot_id,
            outcome: None,
            said: None,
            written_at: Instant::now(),
        })
    }

    /// Decides until nothing changes any more; when to look again.
    async fn look(&mut self) -> Instant {
        for _ in 0..MOST_STEPS {
            self.said = self.inputs.read(&self.reporter);
            let Some(said) = self.said.clone() else { return Instant::now() + WRITE_AGAIN };
            if !self.take_outcome(&said).await {
                return Instant::now() + STORE_AGAIN;
            }
            let facts = self.facts(said);
            let decision = decide_gate(&self.record, &facts, self.clock.now(), &self.policy);
            if let Some(record) = &decision.record
                && !self.save(record.clone()).await
            {
                return Instant::now() + STORE_AGAIN;
            }
            let told = self.tell(&facts, &decision);
            let (moved, wake_at) = (decision.record.is_some(), decision.wake_at);
            decision.effects.iter().for_each(|effect| self.begin(effect));
            if !moved {
                self.reporter.ok();
                let now = Instant::now();
                let wake = wake_at.map_or(now + WRITE_AGAIN, |at| self.clock.moment(at));
                return if told { wake } else { wake.min(now + STORE_AGAIN) };
            }
        }
        Instant::now() + LOOK
    }

    /// Returns when there is something new to decide on.
    async fn wait(&mut self, wake: Instant) {
        loop {
            let look = (Instant::now() + LOOK).min(wake);
            tokio::select! {
                outcome = self.worker.ended() => {
                    self.outcome = outcome;
                    return;
                }
                () = self.inputs.changed() => return,
                () = changed(&mut self.waits) => return,
                () = self.sight.changed() => return,
                () = changed(&mut self.progress) => return,
                () = sleep_until(look) => {}
            }
            if self.written_at.elapsed() >= WRITE_AGAIN {
                self.written_at = Instant::now();
                self.publisher.write_again();
                return;
            }
            // The force files tell nobody of their changes.
            if Instant::now() >= wake || self.inputs.read(&self.reporter) != self.said {
                return;
            }
        }
    }

    fn facts(&mut self, said: inputs::Said) -> Facts {
        let seen = self.sight.now();
        Facts {
            boot_id: self.boot_id.clone(),
            clustered: said.clustered,
            requests: said.requests,
            later: *self.waits.borrow_and_update(),
            force: said.force,
            guard: said.guard,
            api: seen.api,
            node: seen.node,
            worker: self.worker.what(),
        }
    }

    /// Whether nothing is left to be stored.
    async fn take_outcome(&mut self, said: &inputs::Said) -> bool {
        let Some(outcome) = self.outcome.clone() else { return true };
        let mut next = self.record.clone();
        let now = self.clock.now();
        if apply(&mut next, outcome, &said.requests, now, &self.policy) {
            if !self.save(next).await {
                return false;
            }
            if let Phase::Complete { how: How::Drained { took }, .. } = self.record.phase {
                self.publisher.tell_completion(took);
            }
        }
        self.outcome = None;
        true
    }

    async fn save(&mut self, record: Record) -> bool {
        match self.store.save(&record).await {
            Ok(()) => {
                self.reporter.clear(STORE);
                self.record = record;
                true
            }
            Err(error) => {
                self.reporter.fault(STORE, &chain(&error));
                false
            }
        }
    }

    fn tell(&mut self, facts: &Facts, decision: &Decision) -> bool {
        let progress = self.progress.borrow_and_update().clone();
        let wait = decision.wait.as_ref();
        let said = Said {
            published: decision.publish,
            requests: facts.requests.clone(),
            reason: reason(&self.record.phase, wait, &progress),
        };
        let cordon = facts.node.as_ref().and_then(|node| node.cordon.as_ref());
        let ours = cordon.is_some_and(|cordon| cordon.owner == CORDON_OWNER);
        self.sight.look_closely(self.record.phase != Phase::Idle || ours);
        self.publisher.tell(said, &progress.blocking, wait)
    }

    fn begin(&mut self, effect: &Effect) {
        match effect {
            Effect::Cordon => self.worker.cordon(self.sight.eye()),
            Effect::Drain { deadline } => self.worker.drain(*deadline, self.clock),
            Effect::StopDrain => self.worker.stop(),
            Effect::Uncordon => self.worker.uncordon(self.sight.eye()),
            Effect::RemoveForceFile => {
                if let Err(error) = self.inputs.remove_force_files() {
                    self.reporter.fault("the force file", &chain(&error));
                }
            }
        }
    }
}

fn policy(config: &Config) -> Policy {
    Policy {
        cordon_retry: Duration::from_secs(config.cordon_retry_seconds),
        drain_retry: Duration::from_secs(config.drain_retry_seconds),
        drain_timeout: Duration::from_secs(config.drain_timeout_seconds),
        api_skip: Duration::from_secs(config.api_skip_seconds),
        ..Policy::default()
    }
}
