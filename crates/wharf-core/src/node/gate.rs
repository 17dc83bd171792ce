//! The drain gate: the node is emptied before it is taken out of service.
//!
//! Who wants to reboot, shut down or update the node publishes a request and waits; the gate
//! cordons and drains the node, and publishes how far it is. What the gate knows is a [`Record`] that
//! is stored before anything is done, so that a restart in any state goes on where it was.
//!
//! **Guarantee:** a cordon that somebody else made is neither used up nor taken back. Our own does
//! not outlive the request: it goes when the request is withdrawn, or when the node has come back.
//!
//! **Assumption:** the agent decides once it has read all its files, and decides again at once after
//! each change of the record, so that every state is published on its way.
//!
//! Start reading at [`decide_gate`]; what comes of effects goes back by [`apply`].

mod apply;
mod guard;
mod record;
mod report;

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use super::status::{DrainStatus, Requester};
use crate::drain::{Cordon, NodeFacts};

pub use apply::{Outcome, apply};
pub use guard::{Guard, GuardWord, decide_guard};
pub use record::{End, How, Pause, Phase, Record, Request, Requests, Starting, Turn};
pub use report::{Published, Wait, completion_line, is_waiting_for_drain, name_blockers};

/// Who cordons for the gate, as it is written on the Node.
pub const CORDON_OWNER: &str = "agent";

/// How often a cluster that does not answer, or a lock that others hold, is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// For so long an end is published for one requester before it is for the other. They watch the
/// file, so that seconds are plenty.
const TURN: Duration = Duration::from_secs(10);
/// A failed drain keeps its cordon for so long: whoever asked may ask again, and the pods that have
/// left should not come back in between. Where nobody will, it goes at once.
const HOLD: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub cordon_tries: u32,
    pub cordon_retry: Duration,
    pub drain_tries: u32,
    pub drain_retry: Duration,
    /// Of all tries together, with their pauses. Waiting for a budget is no failed try.
    pub drain_timeout: Duration,
    /// A cluster that has not answered for so long is not drained.
    pub api_skip: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cordon_tries: 10,
            cordon_retry: Duration::from_secs(5),
            drain_tries: 5,
            drain_retry: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(86_400),
            api_skip: Duration::from_secs(300),
        }
    }
}

/// What is known at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Differs from boot to boot.
    pub boot_id: String,
    /// The node belongs to a cluster of several.
    pub clustered: bool,
    pub requests: Requests,
    pub later: Later,
    /// What the force file says.
    pub force: Option<Forced>,
    pub guard: Guard,
    pub api: Api,
    /// `None` where it cannot be seen.
    pub node: Option<NodeFacts>,
    pub worker: Worker,
}

/// Whether somebody who asks no more will ask again: after a failure requests are withdrawn, also by who
/// only pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Later {
    /// Others ask, and do not say.
    Unknown,
    Asks,
    /// Nothing waits for a drain any more.
    Nobody,
}

/// A status that a person wrote by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forced {
    pub status: DrainStatus,
    pub requested_by: Requester,
}

/// The names of the force file; people were told of both, and the first counts.
pub const FORCE_FILES: [&str; 2] =
    ["force-NodeDrainStatus-global.json", "kubeforce-NodeDrainStatus-global.json"];

/// What the force files say, by their numbers: status and requester. One whose numbers mean nothing
/// is passed over.
pub fn choose_force(files: [Option<(u8, u8)>; FORCE_FILES.len()]) -> Option<Forced> {
    files.into_iter().flatten().find_map(|(status, requester)| {
        let status = DrainStatus::from_number(status)?;
        Some(Forced { status, requested_by: Requester::from_number(requester)? })
    })
}

/// Whether the cluster's API answers. A refused connection is no answer, as is a server that only
/// says that it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Api {
    Answers,
    Silent(String),
}

/// What this process has under way for the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    Idle,
    Cordoning,
    Draining,
    /// A cordon that was left is being taken back.
    Uncordoning,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// To be stored before anything else. Then decide again, after the effects have begun.
    pub record: Option<Record>,
    pub publish: Published,
    pub effects: Vec<Effect>,
    /// Why it does not go on.
    pub wait: Option<Wait>,
    /// When to decide again if nothing happens before.
    pub wake_at: Option<Timestamp>,
}

/// Every effect may be begun twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Mark the Node as ours and make it unschedulable; a failure comes back as an [`Outcome`], the
    /// success is seen on the Node.
    Cordon,
    /// Empty the node by the drain engine's gate policy with this deadline. When it gives up, its
    /// cordon stays: the gate says when that goes.
    Drain {
        deadline: Timestamp,
    },
    StopDrain,
    /// Take our own cordon back, and only that.
    Uncordon,
    /// Under both names: it has done what it was for.
    RemoveForceFile,
}

/// Decides the next move of the gate.
pub fn decide_gate(record: &Record, facts: &Facts, now: Timestamp, policy: &Policy) -> Decision {
    let gate = Gate { record, facts, now, policy };
    if record.boot_id != facts.boot_id {
        return gate.begin_boot();
    }
    if record.awaits_ready && gate.is_ready() {
        return gate.change(Record { awaits_ready: false, ..record.clone() });
    }
    if let Some(forced) = facts.force.filter(|forced| forced.status == DrainStatus::Complete) {
        return gate.end_by_force(forced);
    }
    if !facts.clustered && record.phase != Phase::Idle {
        return gate.give_back();
    }
    match &record.phase {
        Phase::Idle => gate.decide_idle(),
        _ if !record.phase.is_end() && facts.requests.is_empty() => gate.give_back(),
        Phase::Requested { since } => gate.move_to(Phase::Starting(Starting::new(*since, now))),
        Phase::Starting(starting) => gate.decide_starting(starting),
        Phase::Draining { begun, .. } => gate.decide_draining(*begun),
        Phase::Pausing(pause) => gate.decide_pausing(pause),
        Phase::Failed { end, .. } => gate.decide_failed(end),
        Phase::Complete { end, how: How::ForcedForOne } => gate.decide_forced_for_one(end),
        Phase::Complete { end, how } => gate.decide_complete(end, *how),
    }
}

/// One look at the gate.
struct Gate<'a> {
    record: &'a Record,
    facts: &'a Facts,
    now: Timestamp,
    policy: &'a Policy,
}

impl Gate<'_> {
    /// What a person forced was about the boot before; forgotten, it would open the gate for ever.
    fn begin_boot(&self) -> Decision {
        let forced = self.facts.force.map(|_| Effect::RemoveForceFile);
        let last_took = self.record.last_took;
        let decision = self.change(Record { last_took, ..Record::new(&self.facts.boot_id) });
        Decision { effects: forced.into_iter().collect(), ..decision }
    }

    fn decide_idle(&self) -> Decision {
        if self.facts.force.is_some() {
            return self.rest(self.leftover_cordon(), Some(Wait::Forced));
        }
        if !self.facts.clustered || self.facts.requests.is_empty() {
            let unready = self.record.awaits_ready && self.has_our_cordon();
            return self.rest(self.leftover_cordon(), unready.then_some(Wait::NodeNotReady));
        }
        match &self.facts.guard {
            Guard::Refuses(reason) => self.rest(Vec::new(), Some(Wait::Guard(reason.clone()))),
            Guard::Open => self.move_to(Phase::Requested { since: self.now }),
        }
    }

    /// With nobody asking, our cordon is from before the last boot, or from a request that was
    /// withdrawn. After a boot the node gets its pods back when it is ready for them.
    fn leftover_cordon(&self) -> Vec<Effect> {
        let mut effects = self.stop_worker();
        let begun = self.facts.worker == Worker::Uncordoning;
        if self.has_our_cordon() && !self.record.awaits_ready && !begun {
            effects.push(Effect::Uncordon);
        }
        effects
    }

    fn decide_starting(&self, starting: &Starting) -> Decision {
        if let Api::Silent(why) = &self.facts.api {
            return self.wait_for_api(starting, why);
        }
        if !starting.silent.is_zero() {
            let (silent, looked) = (Duration::ZERO, self.now);
            return self.move_to(Phase::Starting(Starting { silent, looked, ..starting.clone() }));
        }
        // It may still look like ours: a drain that relied on it would take its end for a person's.
        if self.facts.worker == Worker::Uncordoning {
            return self.rest(Vec::new(), Some(Wait::Uncordon));
        }
        if self.has_our_cordon() {
            return self.move_to(Phase::Draining { begun: self.now, attempt: 1 });
        }
        let fail = |reason: &str| {
            self.move_to(Phase::failed_cordon(reason, &self.facts.requests, self.now))
        };
        if let Some(other) = self.cordon() {
            let wait = Wait::CordonedBy(other.owner.clone());
            let late = is_over(starting.since, self.policy.drain_timeout, self.now);
            return if late { fail(&wait.to_string()) } else { self.rest(Vec::new(), Some(wait)) };
        }
        if starting.tries >= self.policy.cordon_tries {
            return fail(&starting.reason);
        }
        if self.facts.worker != Worker::Idle {
            return self.rest(Vec::new(), Some(Wait::Cordon));
        }
        let retry = self.policy.cordon_retry;
        match starting.last_try.filter(|last| !is_over(*last, retry, self.now)) {
            None => self.rest(vec![Effect::Cordon], Some(Wait::Cordon)),
            Some(last) => {
                let (tries, reason) = (starting.tries, starting.reason.clone());
                let decision = self.rest(Vec::new(), Some(Wait::CordonRetry { tries, reason }));
                self.wake(decision, later(last, retry))
            }
        }
    }

    /// The silence is added up look by look, so that neither a clock that jumps nor a time in which
    /// nobody looked counts as silence.
    fn wait_for_api(&self, starting: &Starting, why: &str) -> Decision {
        let wait = |silent| Wait::Api { silent, of: self.policy.api_skip, why: why.to_owned() };
        let Starting { silent, looked, .. } = *starting;
        if !is_over(looked, LOOK_AGAIN, self.now) {
            return self.wake(self.rest(Vec::new(), Some(wait(silent))), later(looked, LOOK_AGAIN));
        }
        let passed = Duration::try_from(self.now.duration_since(looked)).unwrap_or(Duration::ZERO);
        let silent = silent.saturating_add(passed.min(LOOK_AGAIN.saturating_mul(2)));
        if silent >= self.policy.api_skip {
            let reason = format!("the cluster does not answer, so the node is not drained: {why}");
            let turn = Turn::first(&self.facts.requests, self.now);
            let end = End { at: self.now, turn, reason };
            return self.move_to(Phase::Complete { end, how: How::Skipped });
        }
        let noted = Starting { silent, looked: self.now, ..starting.clone() };
        Decision { wait: Some(wait(silent)), ..self.move_to(Phase::Starting(noted)) }
    }

    fn decide_draining(&self, begun: Timestamp) -> Decision {
        let deadline = later(begun, self.policy.drain_timeout);
        match self.facts.worker {
            Worker::Draining => self.rest(Vec::new(), Some(Wait::Drain)),
            Worker::Uncordoning => self.rest(Vec::new(), Some(Wait::Uncordon)),
            Worker::Idle | Worker::Cordoning => {
                self.rest(vec![Effect::Drain { deadline }], Some(Wait::Drain))
            }
        }
    }

    fn decide_pausing(&self, pause: &Pause) -> Decision {
        let Pause { begun, attempt, since, .. } = *pause;
        if is_over(since, self.policy.drain_retry, self.now) {
            return self.move_to(Phase::Draining { begun, attempt: attempt.saturating_add(1) });
        }
        let (tries, reason) = (self.policy.drain_tries, pause.reason.clone());
        let decision = self.rest(Vec::new(), Some(Wait::DrainRetry { attempt, tries, reason }));
        self.wake(decision, later(since, self.policy.drain_retry))
    }

    fn decide_failed(&self, end: &End) -> Decision {
        let asked = &self.facts.requests;
        if end.turn.is_news(asked) {
            return self.begin_again();
        }
        if let Some(turn) = end.turn.next(asked, self.now) {
            return self.move_to(self.record.phase.with_turn(turn));
        }
        if asked.is_empty() && self.facts.later == Later::Nobody {
            return self.give_back();
        }
        let wait = Some(Wait::Failed(end.reason.clone()));
        if !asked.is_empty() {
            let decision = self.rest(self.stop_worker(), wait);
            return self.wake_for_turn(decision, &end.turn);
        }
        if is_over(end.at, HOLD, self.now) {
            return self.rest(self.leftover_cordon(), wait);
        }
        self.wake(self.rest(self.stop_worker(), wait), later(end.at, HOLD))
    }

    fn decide_complete(&self, end: &End, how: How) -> Decision {
        let asked = &self.facts.requests;
        if asked.is_empty() {
            // Who was told before they asked is given the time to see it.
            let unasked = how == How::Forced && end.turn.answered.is_empty();
            if !unasked || is_over(end.at, HOLD, self.now) {
                return self.give_back();
            }
            return self.wake(self.rest(self.stop_worker(), None), later(end.at, HOLD));
        }
        // Whoever comes later joins, as long as the node is still empty for all that is known.
        let gone = self.facts.node.is_some() && !self.has_our_cordon();
        let stale = match how {
            How::Drained { .. } => gone,
            How::Skipped => self.facts.api == Api::Answers,
            How::Forced | How::ForcedForOne => !end.turn.answered.is_empty(),
        };
        if end.turn.is_news(asked) && stale {
            return self.begin_again();
        }
        match end.turn.next(asked, self.now) {
            Some(turn) => self.move_to(self.record.phase.with_turn(turn)),
            None => {
                let decision = self.rest(self.stop_worker(), None);
                self.wake_for_turn(decision, &end.turn)
            }
        }
    }

    /// What a person said of one who asks is not the other's: that one waits, and gets a drain of its own
    /// when the first does not ask any more.
    fn decide_forced_for_one(&self, end: &End) -> Decision {
        let (asked, one) = (&self.facts.requests, end.turn.requester);
        match (asked.get(one), end.turn.answered.get(one)) {
            (Some(now), Some(answered)) if now == answered => self.rest(self.stop_worker(), None),
            (Some(_), Some(_)) | (None, Some(_)) => self.give_back(),
            (Some(_), None) => {
                let turn = Turn { answered: asked.clone(), ..end.turn.clone() };
                self.move_to(self.record.phase.with_turn(turn))
            }
            (None, None) if is_over(end.at, HOLD, self.now) => self.give_back(),
            (None, None) => self.wake(self.rest(self.stop_worker(), None), later(end.at, HOLD)),
        }
    }

    /// Another request than the ones that were answered: it is not to take that answer for its own.
    fn begin_again(&self) -> Decision {
        self.move_to(Phase::Idle)
    }

    /// The file goes once the record has taken it over.
    fn end_by_force(&self, forced: Forced) -> Decision {
        let turn = Turn::forced(forced.requested_by, &self.facts.requests, self.now);
        let how = match forced.requested_by {
            Requester::Nobody => How::Forced,
            Requester::DeviceOperation | Requester::Update => How::ForcedForOne,
        };
        if let Phase::Complete { end, how: known } = &self.record.phase
            && *known == how
            && end.turn.requester == turn.requester
            && !end.turn.is_news(&self.facts.requests)
        {
            let mut effects = self.stop_worker();
            effects.push(Effect::RemoveForceFile);
            return self.rest(effects, None);
        }
        let reason = "a person said so by the force file".to_owned();
        let end = End { at: self.now, turn, reason };
        self.move_to(Phase::Complete { end, how })
    }

    /// Back to where nobody asks; the cordon goes by a later look.
    fn give_back(&self) -> Decision {
        let decision = self.move_to(Phase::Idle);
        Decision { effects: self.stop_worker(), ..decision }
    }

    fn stop_worker(&self) -> Vec<Effect> {
        match self.facts.worker {
            Worker::Draining => vec![Effect::StopDrain],
            Worker::Idle | Worker::Cordoning | Worker::Uncordoning => Vec::new(),
        }
    }

    fn is_ready(&self) -> bool {
        self.facts.node.as_ref().is_some_and(|node| node.unready_since.is_none())
    }

    fn cordon(&self) -> Option<&Cordon> {
        self.facts.node.as_ref()?.cordon.as_ref()
    }

    fn has_our_cordon(&self) -> bool {
        self.cordon().is_some_and(|cordon| cordon.owner == CORDON_OWNER)
    }

    fn move_to(&self, phase: Phase) -> Decision {
        self.change(Record { phase, ..self.record.clone() })
    }

    fn change(&self, record: Record) -> Decision {
        let publish = Published::of(&record.phase, self.facts);
        let wake_at = Some(self.now);
        Decision { record: Some(record), publish, effects: Vec::new(), wait: None, wake_at }
    }

    fn rest(&self, effects: Vec<Effect>, wait: Option<Wait>) -> Decision {
        let publish = Published::of(&self.record.phase, self.facts);
        // What was begun is to be seen, and is begun again where it is not.
        let unseen = !effects.is_empty();
        let looks = matches!(wait, Some(Wait::Guard(_) | Wait::CordonedBy(_)));
        let wake_at = (unseen || looks).then(|| later(self.now, LOOK_AGAIN));
        Decision { record: None, publish, effects, wait, wake_at }
    }

    fn wake(&self, decision: Decision, at: Timestamp) -> Decision {
        Decision { wake_at: Some(at), ..decision }
    }

    fn wake_for_turn(&self, decision: Decision, turn: &Turn) -> Decision {
        let other = turn.other(&self.facts.requests).is_some();
        if other { self.wake(decision, later(turn.since, TURN)) } else { decision }
    }
}

pub(super) fn later(from: Timestamp, wait: Duration) -> Timestamp {
    from.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Whether the time has passed. A clock that was set back makes it so too: nobody waits for a time
/// that is not coming.
pub fn is_over(since: Timestamp, wait: Duration, now: Timestamp) -> bool {
    now < since || now >= later(since, wait)
}
