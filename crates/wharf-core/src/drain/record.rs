//! What is stored of a drain that somebody asked for: the wish, how far it is, how it ended.

use std::{
    collections::HashMap,
    mem::{Discriminant, discriminant},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    policy::{Jobs, Ladder, Order, Policy, Sequence},
    report::{Report, Stage, WaitReason, Waiting},
};
use crate::{operation::OperationState, record::Kind};

/// The last drain of a node. The id is `<cluster>/<node>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    pub cluster: String,
    pub node: String,
    /// Tells one drain of a node from the next.
    pub id: String,
    /// By what the cluster's disruption guard knows the machine: its address, or the node's name.
    pub machine: String,
    /// It is a controlplane or an etcd machine.
    pub critical: bool,
    pub options: DrainOptions,
    pub state: OperationState,
    pub requested_by: String,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Somebody wants it to stop.
    pub canceled: bool,
    /// The guard let it in: from then on the machine counts as out of service until the end.
    pub admitted: bool,
    /// It failed because its time was over.
    pub timed_out: bool,
    /// It is over, but its cordon could not be taken back yet.
    pub cordon_left: bool,
    /// While it runs, why it does not go on; afterwards why it failed, or what is to be known.
    pub reason: Option<String>,
    pub progress: Progress,
}

impl Kind for DrainRecord {
    const KIND: &'static str = "drain";
}

impl DrainRecord {
    pub fn key(cluster: &str, node: &str) -> String {
        format!("{cluster}/{node}")
    }

    pub fn is_running(&self) -> bool {
        self.state == OperationState::Running
    }

    /// How it is carried out, in the name of this owner of the cordon.
    pub fn policy(&self, owner: &str) -> Policy {
        self.options.policy(owner, self.started_at)
    }

    /// When it is given up.
    pub fn deadline(&self) -> Timestamp {
        self.options.deadline(self.started_at)
    }
}

/// What whoever asks for a drain may choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainOptions {
    pub timeout_seconds: u32,
    pub jobs: Jobs,
    /// In place of the pods' own grace periods.
    pub grace_period_seconds: Option<u32>,
    /// Pods that are not ready are deleted past their budgets after this time.
    pub delete_unready_after_seconds: Option<u32>,
    /// All pods are.
    pub delete_after_seconds: Option<u32>,
    /// How long the volumes of pods that left are waited for.
    pub wait_volumes_seconds: Option<u32>,
    pub order_by_priority: bool,
    pub cordon_first: bool,
}

impl DrainOptions {
    /// How a drain with these options goes that was begun at this time.
    pub fn policy(&self, owner: &str, begun: Timestamp) -> Policy {
        let seconds = |number: u32| Duration::from_secs(number.into());
        let ladder = Ladder {
            begun,
            unready_after: self.delete_unready_after_seconds.map(seconds),
            any_after: self.delete_after_seconds.map(seconds),
        };
        let has_rungs = ladder.unready_after.is_some() || ladder.any_after.is_some();
        Policy {
            order: if self.cordon_first { Order::CordonFirst } else { Order::RehearseFirst },
            jobs: self.jobs,
            sequence: Sequence { by_priority: self.order_by_priority, ..Sequence::default() },
            ladder: has_rungs.then_some(ladder),
            grace_seconds: self.grace_period_seconds,
            volumes: self.wait_volumes_seconds.map(seconds),
            held_volumes: self.wait_volumes_seconds.map(seconds),
            ..Policy::removal(owner, self.deadline(begun))
        }
    }

    fn deadline(&self, begun: Timestamp) -> Timestamp {
        let timeout = Duration::from_secs(self.timeout_seconds.into());
        begun.checked_add(timeout).unwrap_or(Timestamp::MAX)
    }
}

/// Long enough for slow shutdowns and for budgets that need a person's hand.
pub const TIMEOUT_SECONDS: u32 = 3600;

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            timeout_seconds: TIMEOUT_SECONDS,
            jobs: Jobs::Block,
            grace_period_seconds: None,
            delete_unready_after_seconds: None,
            delete_after_seconds: None,
            wait_volumes_seconds: None,
            order_by_priority: false,
            cordon_first: false,
        }
    }
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// `None` before the first look at the node.
    pub stage: Option<Stage>,
    /// So many pods had to leave, as far as was seen.
    pub total: usize,
    pub left: usize,
    /// So many are terminating and count as gone, since nobody on the node ends them.
    pub given_up: usize,
    /// Those that are left: what blocks comes first, and no more than [`SHOWN`].
    pub pods: Vec<Left>,
}

/// A pod that has to leave yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub namespace: String,
    pub name: String,
    pub reason: String,
    /// Since when that is so.
    pub since: Timestamp,
    /// Whether somebody or something has to move before it can leave.
    pub blocks: bool,
}

/// Twenty kilobytes of a record that is written every second; a full node has little more.
pub const SHOWN: usize = 100;

/// Since when each pod has been waited for, and for which kind of reason.
#[derive(Debug, Default)]
pub struct Ages {
    pods: HashMap<String, (Discriminant<WaitReason>, Timestamp)>,
}

impl Progress {
    /// Takes over what a drain says of itself. The answer is why it does not go on, if so.
    pub fn note(&mut self, report: &Report, ages: &mut Ages, now: Timestamp) -> Option<String> {
        self.stage = Some(report.stage);
        self.left = report.left;
        self.total = self.total.max(report.left);
        self.given_up = report.given_up;
        ages.keep(report);
        let mut pods: Vec<Left> =
            report.waiting.iter().filter_map(|waiting| ages.left(waiting, now)).collect();
        pods.sort_by_key(|left| !left.blocks);
        pods.truncate(SHOWN);
        self.pods = pods;
        report.waiting.iter().find(|waiting| is_in_the_way(waiting)).map(ToString::to_string)
    }
}

/// Volumes have no pod to be listed under.
fn is_in_the_way(waiting: &Waiting) -> bool {
    waiting.blocks() || waiting.pod.is_none()
}

impl Ages {
    fn keep(&mut self, report: &Report) {
        let there: std::collections::HashSet<&str> =
            report.waiting.iter().flat_map(|one| &one.pod).map(|pod| pod.uid.as_str()).collect();
        self.pods.retain(|uid, _| there.contains(uid.as_str()));
    }

    fn left(&mut self, waiting: &Waiting, now: Timestamp) -> Option<Left> {
        let pod = waiting.pod.as_ref()?;
        let kind = discriminant(&waiting.reason);
        let known = self.pods.entry(pod.uid.clone()).or_insert((kind, now));
        if known.0 != kind {
            *known = (kind, now);
        }
        let sentence = waiting.to_string();
        let reason = sentence.strip_prefix(&format!("pod {pod} ")).unwrap_or(&sentence);
        Some(Left {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            reason: reason.to_owned(),
            since: known.1,
            blocks: waiting.blocks(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Budget,
            tests::{at, pod},
        },
        *,
    };

    fn waiting(name: &str, reason: WaitReason) -> Waiting {
        Waiting { pod: Some(pod(name).pod), reason, remark: None }
    }

    fn refused(message: &str) -> WaitReason {
        let budgets = vec![Budget { name: "db".to_owned(), allowed: 0 }];
        WaitReason::Refused { budgets, message: message.to_owned() }
    }

    #[test]
    fn what_blocks_comes_first_with_the_time_since_when_it_does() {
        let (mut progress, mut ages) = (Progress::default(), Ages::default());
        let mut note = |reasons: [(&str, WaitReason); 2], now| {
            let waiting = reasons.map(|(name, reason)| waiting(name, reason)).into();
            let report = Report { stage: Stage::Evicting, left: 2, waiting, given_up: 1 };
            let reason = progress.note(&report, &mut ages, at(now));
            let seconds = |pod: &Left| (pod.name.clone(), pod.since.as_second(), pod.blocks);
            (reason, progress.pods.iter().map(seconds).collect::<Vec<_>>())
        };
        let sentence = "pod default/b is protected by budget db, 0 allowed";
        let (reason, pods) = note([("a", WaitReason::NotYet), ("b", refused("one message"))], 10);
        assert_eq!(reason.as_deref(), Some(sentence));
        assert_eq!(pods, [("b".to_owned(), 10, true), ("a".to_owned(), 10, false)]);
        // Another message is the same reason; another reason begins anew.
        let (_, pods) = note([("a", WaitReason::Terminating), ("b", refused("another"))], 20);
        assert_eq!(pods, [("b".to_owned(), 10, true), ("a".to_owned(), 20, false)]);
        assert_eq!((progress.total, progress.given_up), (2, 1));
        assert_eq!(progress.pods[0].reason, "is protected by budget db, 0 allowed");
        let none = Report { stage: Stage::Evicting, left: 0, waiting: vec![], given_up: 0 };
        assert_eq!(progress.note(&none, &mut ages, at(30)), None);
        assert_eq!((progress.total, progress.left, ages.pods.len()), (2, 0, 0));
    }

    #[test]
    fn more_pods_than_are_shown_are_counted_all_the_same() {
        let (mut progress, mut ages) = (Progress::default(), Ages::default());
        let names = (0..SHOWN + 7).map(|number| format!("p{number}"));
        let waiting: Vec<Waiting> = names.map(|name| waiting(&name, WaitReason::NotYet)).collect();
        let report = Report { stage: Stage::Evicting, left: SHOWN + 7, waiting, given_up: 0 };
        assert_eq!(progress.note(&report, &mut ages, at(1)), None);
        assert_eq!((progress.left, progress.pods.len()), (SHOWN + 7, SHOWN));
    }
}
