//! Carries a drain out: looks, lets `wharf_core::drain` decide, acts, and looks again.
//!
//! Flow: watches tell of the node, its pods and the budgets; every change and every answer calls for
//! another decision. What is asked for runs beside the loop, so that a slow answer about one pod
//! holds up no other.
//!
//! Guarantees: pods leave by eviction, or by deletion where the policy says so, each by its UID; a
//! drain that fails takes its cordon back unless its policy keeps it, and a person's cordon survives
//! it. One that is dropped leaves its cordon: whoever drops it takes it back with
//! [`Cluster::uncordon`], which can also be done after a restart.
//!
//! Assumptions: nobody else drains the same node under the same owner at the same time; two would
//! not do harm, but the first to give up would uncordon.

mod lookups;
pub(crate) mod objects;
mod sight;

pub(crate) use objects::{MIRROR, NodeSeen, PodSeen};

use std::time::Duration;

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, FuturesUnordered},
};
use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};
use wharf_core::drain::{
    Action, Answer, Class, Decision, Failure, Plan, PodFacts, PodRef, Policy, RETRY, Report, Stage,
    Try, Verdict, decide_drain, plan_drain,
};

use self::sight::Sight;
use crate::{
    clock::Clock,
    cluster::Cluster,
    error::{KubeError, Result as KubeResult},
    evict::Eviction,
};

/// The cordon of a drain that failed is not worth more time when the cluster is silent.
const UNDO: Duration = Duration::from_secs(5);
/// The watch shows our cordon long before; only one that is lost is put again.
const CORDON_SHOWS: Duration = Duration::from_secs(1);

/// Who says that it is not the time, and not when it is, is asked again after this.
const LATER: Duration = Duration::from_secs(2);
/// They only make the count of evictions right.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The node is cordoned and empty, or it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// So many evictions and deletions were accepted.
    pub evicted: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The decision gave up; the node is as it was, or `uncordon` says what is left to do.
    #[error("node {node} was not drained: {failure}{}", remark(uncordon.as_ref()))]
    Failed { node: String, failure: Failure, uncordon: Option<KubeError> },
    #[error("node {node} cannot be drained{}", remark(uncordon.as_ref()))]
    Kube {
        node: String,
        #[source]
        source: KubeError,
        uncordon: Option<KubeError>,
    },
}

fn remark(uncordon: Option<&KubeError>) -> String {
    uncordon.map(|error| format!("; it may still be cordoned ({error})")).unwrap_or_default()
}

/// Drains a node. `report` is called whenever there is something new to say.
///
/// # Errors
/// The deadline passed, a person stepped in, or the cluster refuses; the pods that blocked are
/// named.
pub async fn run(
    cluster: &Cluster,
    node: &str,
    policy: &Policy,
    report: impl FnMut(&Report) + Send,
) -> Result<Drained, DrainError> {
    run_as(cluster, cluster, node, policy, Clock::start(), report).await
}

/// The same with two identities: `eyes` may read pods, budgets and what they belong to, `hand` may
/// change the node and evict its pods. A node's own identity is such a hand. The policy's deadline is
/// a time of `clock`.
///
/// # Errors
/// As [`run`].
pub async fn run_as(
    eyes: &Cluster,
    hand: &Cluster,
    node: &str,
    policy: &Policy,
    clock: Clock,
    report: impl FnMut(&Report) + Send,
) -> Result<Drained, DrainError> {
    let mut drain = Drain {
        hand,
        node,
        policy,
        clock,
        sight: Sight::new(eyes, node, policy, clock),
        asked: FuturesUnordered::new(),
        cordoned_at: None,
        evicted: 0,
    };
    let end = drain.run(report).await;
    let node = node.to_owned();
    match end {
        Ok(None) => Ok(Drained { evicted: drain.evicted }),
        Ok(Some((failure, uncordon))) => Err(DrainError::Failed { node, failure, uncordon }),
        Err(source) => {
            let uncordon = if policy.keep_cordon { None } else { drain.uncordon().await.err() };
            Err(DrainError::Kube { source, uncordon, node })
        }
    }
}

/// What a drain would do, without doing it: every eviction that a budget may refuse is rehearsed.
///
/// # Errors
/// There is no such Node, or the API server does not answer or refuses.
pub async fn plan(cluster: &Cluster, node: &str, policy: &Policy) -> KubeResult<Plan> {
    let clock = Clock::start();
    let mut sight = Sight::new(cluster, node, policy, clock);
    let end = Instant::now() + cluster.timeout();
    while !sight.is_complete() {
        match tokio::time::timeout_at(end, sight.next()).await {
            Ok(told) => sight.take(told).await?,
            Err(_) => return Err(sight.failure.take().unwrap_or_else(|| silence(cluster, node))),
        }
    }
    if sight.snapshot.node.is_none() {
        let (what, message) = (format!("plan a drain of node {node}"), "there is none".to_owned());
        return Err(KubeError::Status { what, code: 404, reason: "NotFound".to_owned(), message });
    }
    let first = plan_drain(&sight.snapshot, clock.now(), policy);
    let unknown = sight.snapshot.budgets.is_none();
    let asked = first.pods.iter();
    let asked =
        asked.filter(|pod| pod.class == Class::Evict && (unknown || !pod.budgets.is_empty()));
    let questions = asked.filter_map(|planned| {
        let facts = sight.find(&planned.pod)?.clone();
        Some(Question { facts, kind: Kind::Rehearse, clock, at: clock.now() })
    });
    let questions: Vec<Question> = questions.collect();
    let asked = questions.into_iter().map(|question| question.ask(cluster.clone(), None, false));
    let mut answers = stream::iter(asked).buffer_unordered(policy.parallel.max(1));
    while let Some((question, answer)) = answers.next().await {
        let (last_try, _) = question.judge(&sight, answer);
        sight.note(&question.facts.pod, last_try);
    }
    Ok(plan_drain(&sight.snapshot, clock.now(), policy))
}

fn silence(cluster: &Cluster, node: &str) -> KubeError {
    KubeError::Timeout { what: format!("look at node {node}"), after: cluster.timeout() }
}

/// What a drain remembers between two looks. All of it can be lost without harm.
struct Drain<'a> {
    hand: &'a Cluster,
    node: &'a str,
    policy: &'a Policy,
    clock: Clock,
    sight: Sight<'a>,
    asked: FuturesUnordered<BoxFuture<'static, Answered>>,
    cordoned_at: Option<Instant>,
    evicted: usize,
}

type Answered = (Question, KubeResult<Eviction>);
/// The failure that a decision came to, with what went wrong in undoing; `None` is success.
type End = Option<(Failure, Option<KubeError>)>;

impl Drain<'_> {
    async fn run(&mut self, mut report: impl FnMut(&Report) + Send) -> KubeResult<End> {
        let mut last: Option<Report> = None;
        loop {
            self.take_what_is_there().await?;
            let mut wake_at = self.clock.now().saturating_add(RETRY).unwrap_or(Timestamp::MAX);
            if self.sight.is_complete() {
                let mut decision = self.decide();
                if decision.verdict == Verdict::Done && self.sight.snapshot.node.is_some() {
                    decision = self.decide_afresh().await?;
                }
                wake_at = decision.wake_at;
                if last.as_ref() != Some(&decision.report) {
                    report(&decision.report);
                    last = Some(decision.report);
                }
                let acted = self.act(decision.actions).await;
                match decision.verdict {
                    Verdict::Going => acted?,
                    Verdict::Done => return self.hear_the_last_answers().await.map(|()| None),
                    Verdict::Failed(failure) => return Ok(Some((failure, acted.err()))),
                }
            } else if self.clock.now() >= self.policy.deadline {
                let failure = self.sight.failure.take();
                return Err(failure.unwrap_or_else(|| silence(self.hand, self.node)));
            }
            tokio::select! {
                biased;
                Some(answer) = self.asked.next() => self.note(answer)?,
                told = self.sight.next() => self.sight.take(told).await?,
                () = sleep_until(self.clock.moment(wake_at)) => {}
            }
        }
    }

    /// What has been answered and told by now goes into one decision.
    async fn take_what_is_there(&mut self) -> KubeResult<()> {
        while let Some(Some(answer)) = self.asked.next().now_or_never() {
            self.note(answer)?;
        }
        while let Some(told) = self.sight.next().now_or_never() {
            self.sight.take(told).await?;
        }
        Ok(())
    }

    /// A pod may be seen to be gone before the answer to its eviction comes.
    async fn hear_the_last_answers(&mut self) -> KubeResult<()> {
        let end = Instant::now() + LAST_ANSWERS;
        while let Ok(Some(answer)) = tokio::time::timeout_at(end, self.asked.next()).await {
            self.note(answer)?;
        }
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let now = self.clock.now();
        let decision = decide_drain(&self.sight.snapshot, now, self.policy);
        let emptying = matches!(decision.report.stage, Stage::Evicting | Stage::Detaching);
        let is_empty = emptying && decision.report.left == 0;
        let since = &mut self.sight.snapshot.empty_since;
        *since = is_empty.then(|| since.unwrap_or(now));
        decision
    }

    /// The end is decided on what the API server says now, not on what watches told.
    async fn decide_afresh(&mut self) -> KubeResult<Decision> {
        let refreshed = self.sight.refresh_pods().await;
        let decision = self.decide();
        let now = self.clock.now();
        match refreshed {
            Ok(()) => Ok(decision),
            Err(error) if error.is_transient() && now < self.policy.deadline => {
                let wake_at = now.saturating_add(RETRY).unwrap_or(Timestamp::MAX);
                Ok(Decision { verdict: Verdict::Going, wake_at, ..decision })
            }
            Err(error) => Err(error),
        }
    }

    async fn act(&mut self, actions: Vec<Action>) -> KubeResult<()> {
        for action in actions {
            match action {
                Action::Rehearse(pod) => self.ask(&pod, Kind::Rehearse),
                Action::Evict(pod) => self.ask(&pod, Kind::Evict),
                Action::Delete(pod) => self.ask(&pod, Kind::Delete),
                Action::Uncordon => self.uncordon().await?,
                Action::Cordon => self.cordon().await?,
            }
        }
        Ok(())
    }

    fn ask(&mut self, pod: &PodRef, kind: Kind) {
        let Some(facts) = self.sight.ask(pod) else { return };
        // An eviction by a wrong UID is refused, but first it is counted against the budget.
        let reread = !self.sight.snapshot.budgets_of(&facts).is_empty();
        let question = Question { facts, kind, clock: self.clock, at: self.clock.now() };
        let answer = question.ask(self.hand.clone(), self.policy.grace_seconds, reread);
        self.asked.push(answer.boxed());
    }

    fn note(&mut self, (question, answer): Answered) -> KubeResult<()> {
        if let Err(error) = &answer
            && error.code() == Some(401)
        {
            return answer.map(drop);
        }
        let (last_try, granted) = question.judge(&self.sight, answer);
        match question.kind {
            Kind::Rehearse if granted => self.sight.note_allowed(&question.facts),
            Kind::Evict | Kind::Delete if granted => {
                self.evicted += 1;
                self.sight.note_accepted(&question.facts, question.at);
            }
            Kind::Rehearse | Kind::Evict | Kind::Delete => {}
        }
        self.sight.note(&question.facts.pod, last_try);
        Ok(())
    }

    async fn cordon(&mut self) -> KubeResult<()> {
        if self.cordoned_at.is_some_and(|at| at.elapsed() < CORDON_SHOWS) {
            return Ok(());
        }
        match self.hand.cordon(self.node, &self.policy.owner).await {
            Err(error) if !error.is_transient() && !error.is_not_found() => return Err(error),
            // The next look shows what came of it.
            Ok(_) | Err(_) => self.cordoned_at = Some(Instant::now()),
        }
        Ok(())
    }

    async fn uncordon(&mut self) -> KubeResult<()> {
        let uncordon = self.hand.uncordon(self.node, &self.policy.owner);
        match tokio::time::timeout(UNDO, uncordon).await {
            Ok(result) => result.map(drop),
            Err(_) => {
                let what = format!("uncordon node {}", self.node);
                Err(KubeError::Timeout { what, after: UNDO })
            }
        }
    }
}

/// What is asked about a pod, and when. The pod may be gone when the answer comes.
struct Question {
    facts: PodFacts,
    kind: Kind,
    clock: Clock,
    at: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rehearse,
    Evict,
    Delete,
}

impl Question {
    async fn ask(mut self, cluster: Cluster, grace_seconds: Option<u32>, reread: bool) -> Answered {
        // It is never closed.
        let _turn = cluster.evictions.acquire().await;
        self.at = self.clock.now();
        let answer = match self.kind {
            Kind::Rehearse => cluster.rehearse_eviction(&self.facts.pod).await,
            Kind::Delete => cluster.delete_pod(&self.facts.pod, grace_seconds).await,
            Kind::Evict if !reread => cluster.evict(&self.facts.pod, grace_seconds).await,
            Kind::Evict => match cluster.is_gone(&self.facts.pod).await {
                Ok(true) => Ok(Eviction::Gone),
                Ok(false) => cluster.evict(&self.facts.pod, grace_seconds).await,
                Err(error) => Err(error),
            },
        };
        (self, answer)
    }

    /// What the answer means for the pod, and whether it was granted.
    fn judge(&self, sight: &Sight<'_>, answer: KubeResult<Eviction>) -> (Try, bool) {
        let (mut not_before, mut granted) = (None, false);
        let budgets = || sight.snapshot.budgets_of(&self.facts);
        let answer = match answer {
            // The watch shows it a moment later.
            Ok(Eviction::Gone) => Answer::Accepted,
            Ok(Eviction::Accepted) => {
                granted = true;
                if self.kind == Kind::Rehearse { Answer::Allowed } else { Answer::Accepted }
            }
            Ok(Eviction::Refused { message }) => Answer::Refused { budgets: budgets(), message },
            Ok(Eviction::Later { message, after }) => {
                let after = after.unwrap_or(LATER);
                not_before = self.clock.now().checked_add(after).ok();
                Answer::Later { message }
            }
            // Two budgets on one pod are answered as a fault of the server; it is a refusal.
            Err(error) if error.code() == Some(500) && budgets().len() > 1 => {
                Answer::Refused { budgets: budgets(), message: error.to_string() }
            }
            Err(error) => Answer::Failed { message: error.to_string() },
        };
        let last_try = Try::after(self.facts.last_try.as_ref(), self.at, answer);
        (Try { not_before, ..last_try }, granted)
    }
}
