//! Carries a drain out: looks, lets `wharf_core::drain` decide, acts, and looks again.
//!
//! Guarantees: pods leave by eviction alone, each by its UID; a drain that fails takes its cordon
//! back, and a person's cordon survives it. One that is dropped leaves its cordon: whoever drops it
//! takes it back with [`Cluster::uncordon`], which can also be done after a restart.
//!
//! Assumptions: nobody else drains the same node under the same owner at the same time; two would
//! not do harm, but the first to give up would uncordon.

mod observe;

pub(crate) use observe::MIRROR;

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use wharf_core::drain::{
    Action, Answer, Decision, Failure, Plan, PodRef, Policy, Report, Stage, Try, Verdict,
    decide_drain, plan_drain,
};

use crate::{cluster::Cluster, error::KubeError, evict::Eviction};

/// The cordon of a drain that failed is not worth more time when the cluster is silent.
const UNDO: Duration = Duration::from_secs(5);

/// The node is cordoned and empty, or it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// So many evictions were accepted.
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
    let mut drain = Drain::new(cluster, node, policy);
    let end = drain.run(report).await;
    let node = node.to_owned();
    match end {
        Ok(None) => Ok(Drained { evicted: drain.evicted }),
        Ok(Some((failure, uncordon))) => Err(DrainError::Failed { node, failure, uncordon }),
        Err(source) => {
            Err(DrainError::Kube { source, uncordon: drain.uncordon().await.err(), node })
        }
    }
}

/// What a drain would do, without doing it.
///
/// # Errors
/// The API server does not answer or refuses.
pub async fn plan(cluster: &Cluster, node: &str, policy: &Policy) -> Result<Plan, KubeError> {
    let mut drain = Drain::new(cluster, node, policy);
    let snapshot = drain.observe().await?;
    Ok(plan_drain(&snapshot, Timestamp::now(), policy))
}

/// What a drain remembers between two looks. All of it can be lost without harm.
struct Drain<'a> {
    cluster: &'a Cluster,
    node: &'a str,
    policy: &'a Policy,
    /// The last answer for each pod, by UID.
    tries: HashMap<String, Try>,
    /// Whether a DaemonSet is there, by UID.
    sets: HashMap<String, bool>,
    empty_since: Option<Timestamp>,
    evicted: usize,
}

impl<'a> Drain<'a> {
    fn new(cluster: &'a Cluster, node: &'a str, policy: &'a Policy) -> Self {
        Self {
            cluster,
            node,
            policy,
            tries: HashMap::new(),
            sets: HashMap::new(),
            empty_since: None,
            evicted: 0,
        }
    }

    /// The failure that the decision came to, with what went wrong in undoing; `None` is success.
    async fn run(
        &mut self,
        mut report: impl FnMut(&Report) + Send,
    ) -> Result<Option<(Failure, Option<KubeError>)>, KubeError> {
        let mut last = None;
        loop {
            let decision = match self.decide().await {
                Ok(decision) => decision,
                Err(error) if error.is_transient() && Timestamp::now() < self.policy.deadline => {
                    tokio::time::sleep(self.policy.retry).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if last.as_ref() != Some(&decision.report) {
                report(&decision.report);
                last = Some(decision.report);
            }
            let acted = self.act(&decision.actions).await;
            match decision.verdict {
                Verdict::Going => acted?,
                Verdict::Done => return Ok(None),
                Verdict::Failed(failure) => return Ok(Some((failure, acted.err()))),
            }
            sleep_until(decision.wake_at).await;
        }
    }

    async fn decide(&mut self) -> Result<Decision, KubeError> {
        let snapshot = self.observe().await?;
        let now = Timestamp::now();
        let decision = decide_drain(&snapshot, now, self.policy);
        let emptying = matches!(decision.report.stage, Stage::Evicting | Stage::Detaching);
        let is_empty = emptying && decision.report.left == 0;
        self.empty_since = is_empty.then(|| self.empty_since.unwrap_or(now));
        Ok(decision)
    }

    async fn act(&mut self, actions: &[Action]) -> Result<(), KubeError> {
        let pods = actions.iter().filter_map(|action| match action {
            Action::Rehearse(pod) | Action::Evict(pod) | Action::Delete(pod) => Some((pod, action)),
            Action::Cordon | Action::Uncordon => None,
        });
        let (cluster, grace) = (self.cluster, self.policy.grace_seconds);
        let evictions = pods.map(|(pod, action)| async move {
            let rehearse = matches!(action, Action::Rehearse(_));
            let answer = match action {
                Action::Delete(_) => cluster.delete_pod(pod, grace).await,
                _ => cluster.evict(pod, rehearse).await,
            };
            (pod, rehearse, answer)
        });
        for (pod, rehearse, answer) in join_all(evictions).await {
            self.note(pod, rehearse, answer);
        }
        if actions.contains(&Action::Uncordon) {
            self.uncordon().await?;
        }
        if actions.contains(&Action::Cordon) {
            match self.cluster.cordon(self.node, &self.policy.owner).await {
                Err(error) if !error.is_transient() && !error.is_not_found() => return Err(error),
                // The next look shows what came of it.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn note(&mut self, pod: &PodRef, rehearse: bool, answer: Result<Eviction, KubeError>) {
        let answer = match answer {
            Ok(Eviction::Gone) => {
                self.tries.remove(&pod.uid);
                return;
            }
            Ok(Eviction::Accepted) if rehearse => Answer::Allowed,
            Ok(Eviction::Accepted) => {
                self.evicted += 1;
                Answer::Accepted
            }
            // No budget says no: the API server is busy.
            Ok(Eviction::Refused { budgets, message }) if budgets.is_empty() => {
                Answer::Later { message }
            }
            Ok(Eviction::Refused { budgets, message }) => Answer::Refused { budgets, message },
            Err(error) => Answer::Failed { message: error.to_string() },
        };
        let answered = Try::after(self.tries.get(&pod.uid), Timestamp::now(), answer);
        self.tries.insert(pod.uid.clone(), answered);
    }

    async fn uncordon(&self) -> Result<(), KubeError> {
        let uncordon = self.cluster.uncordon(self.node, &self.policy.owner);
        match tokio::time::timeout(UNDO, uncordon).await {
            Ok(result) => result.map(drop),
            Err(_) => {
                let what = format!("uncordon node {}", self.node);
                Err(KubeError::Timeout { what, after: UNDO })
            }
        }
    }
}

async fn sleep_until(time: Timestamp) {
    let pause = time.duration_since(Timestamp::now()).max(SignedDuration::ZERO);
    tokio::time::sleep(pause.unsigned_abs()).await;
}
