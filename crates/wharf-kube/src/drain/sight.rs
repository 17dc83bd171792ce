//! What a drain sees: a node, its pods and the budgets, told by watches and kept up to date, so that
//! a look costs nothing and a change is known at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use wharf_core::drain::{
    BudgetFacts, Controller, HeldFor, Pin, PodFacts, PodRef, Policy, Snapshot, Try, Volumes,
};

use super::{
    lookups::{Found, Key, Lookups, Question, Volume},
    objects::{AttachmentSeen, BudgetSeen, MIRROR, NodeSeen, PodSeen, RecordSeen},
};
use crate::{
    clock::Clock,
    cluster::Cluster,
    error::{KubeError, Result},
    watch::{Change, Follow},
};

/// A connection that died without a word is noticed by the end of the watch on it.
const WATCH: Duration = Duration::from_secs(20);
/// What has to be asked about new pods is asked so often at once.
const LOOKUPS: usize = 8;
/// A question that fails for a passing reason is asked again for so long.
const PERSIST: Duration = Duration::from_secs(5);

const PODS: &str = "/api/v1/pods";
const BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// Of volumes of ours, which kubelet tells nobody of. A cluster that does not know them costs one
/// question.
const RECORDS: &str = "/apis/wharf.dev/v1/attachments";

/// Something that a watch told.
pub(super) enum Told {
    Node(Result<Change<NodeSeen>>),
    Pods(Result<Change<PodSeen>>),
    Budgets(Result<Change<BudgetSeen>>),
    Attachments(Result<Change<AttachmentSeen>>),
    Records(Result<Change<RecordSeen>>),
}

pub(super) struct Sight<'a> {
    cluster: Cluster,
    node: &'a str,
    policy: &'a Policy,
    clock: Clock,
    nodes: Follow<NodeSeen>,
    pods: Follow<PodSeen>,
    budgets: Option<Follow<BudgetSeen>>,
    /// Followed once there are volumes to wait for.
    attachments: Option<Follow<AttachmentSeen>>,
    records: Option<Follow<RecordSeen>>,
    /// What has been told for the first time.
    known: Known,
    pub snapshot: Snapshot,
    /// The budgets of all namespaces; those of the pods' are in the snapshot.
    all_budgets: BTreeMap<Key, BudgetFacts>,
    /// What this drain has noted on budgets: that it agreed, and when it was taken from.
    noted: BTreeMap<Key, (bool, Option<Timestamp>)>,
    /// In which the pods are.
    namespaces: BTreeSet<String>,
    lookups: Lookups,
    in_use: Vec<String>,
    attached: BTreeMap<String, String>,
    /// The volumes of ours that the node holds, with the UIDs of the pods that it does so for.
    held: BTreeMap<String, Vec<String>>,
    /// The UIDs of pods with claims that had to leave.
    leaving: BTreeSet<String>,
    /// The last thing that went wrong, until something goes right.
    pub failure: Option<KubeError>,
}

#[derive(Default)]
struct Known {
    node: bool,
    pods: bool,
    budgets: bool,
    attachments: bool,
    records: bool,
}

impl<'a> Sight<'a> {
    pub fn new(cluster: &Cluster, node: &'a str, policy: &'a Policy, clock: Clock) -> Self {
        let this = Some(format!("metadata.name={node}"));
        Self {
            cluster: cluster.clone(),
            node,
            policy,
            clock,
            nodes: Follow::new(cluster.clone(), "/api/v1/nodes", this, WATCH),
            pods: follow_pods(cluster, node),
            budgets: Some(Follow::new(cluster.clone(), BUDGETS, None, WATCH)),
            attachments: None,
            records: None,
            known: Known::default(),
            snapshot: Snapshot::default(),
            all_budgets: BTreeMap::new(),
            noted: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            lookups: Lookups::default(),
            in_use: Vec::new(),
            attached: BTreeMap::new(),
            held: BTreeMap::new(),
            leaving: BTreeSet::new(),
            failure: None,
        }
    }

    /// Waits for a change. May be dropped and called again.
    pub async fn next(&mut self) -> Told {
        let Self { nodes, pods, budgets, attachments, records, .. } = self;
        tokio::select! {
            change = nodes.next() => Told::Node(change),
            change = pods.next() => Told::Pods(change),
            change = next_of(budgets) => Told::Budgets(change),
            change = next_of(attachments) => Told::Attachments(change),
            change = next_of(records) => Told::Records(change),
        }
    }

    /// Whether enough is known to decide.
    pub fn is_complete(&self) -> bool {
        let attachments = self.known.attachments || self.attachments.is_none();
        let records = self.known.records || self.records.is_none();
        self.known.node && self.known.pods && self.known.budgets && attachments && records
    }

    /// Takes in what was told.
    ///
    /// # Errors
    /// The API server refuses to tell of the node or its pods. What may pass is only noted.
    pub async fn take(&mut self, told: Told) -> Result<()> {
        let taken = match told {
            Told::Node(change) => change.map(|change| self.take_node(change)),
            Told::Pods(Ok(change)) => self.take_pods(change).await,
            Told::Pods(Err(error)) => Err(error),
            Told::Budgets(change) => self.take_budgets(change),
            Told::Attachments(change) => self.take_attachments(change),
            Told::Records(change) => self.take_records(change),
        };
        match taken {
            Ok(()) => {
                self.failure = None;
                self.snapshot.silent = None;
            }
            Err(error) if error.is_transient() => self.fail(error),
            // It is asked for anew.
            Err(error @ KubeError::Answer { .. }) => self.fail(error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn fail(&mut self, error: KubeError) {
        self.snapshot.silent = Some(error.to_string());
        self.failure = Some(error);
    }

    /// Looks at the pods afresh, so that nothing depends on a watch that lags behind.
    ///
    /// # Errors
    /// The API server does not answer or refuses.
    pub async fn refresh_pods(&mut self) -> Result<()> {
        let here = ListParams::default().fields(&here(self.node));
        let pods = self.cluster.list(PODS, here).await?;
        self.take_pods(Change::All(pods)).await
    }

    /// Keeps the answer to a question about a pod.
    pub fn note(&mut self, pod: &PodRef, last_try: Try) {
        if let Some(found) = self.find(pod) {
            found.asking = false;
            found.last_try = Some(last_try);
        }
    }

    /// Notes that a pod is being asked about, and says what is known of it.
    pub fn ask(&mut self, pod: &PodRef) -> Option<PodFacts> {
        let found = self.find(pod)?;
        found.asking = true;
        Some(found.clone())
    }

    /// Notes on its budgets that the eviction of a pod, asked for at this time, was accepted.
    pub fn note_accepted(&mut self, pod: &PodFacts, at: Timestamp) {
        self.note_on_budgets(pod, |budget| budget.taken_at = Some(at));
    }

    /// Notes on its budgets that a pod might go.
    pub fn note_allowed(&mut self, pod: &PodFacts) {
        self.note_on_budgets(pod, |budget| budget.agreed |= pod.ready);
    }

    fn note_on_budgets(&mut self, pod: &PodFacts, mut note: impl FnMut(&mut BudgetFacts)) {
        let covering = self.snapshot.budgets_of(pod);
        for budget in self.snapshot.budgets.iter_mut().flatten() {
            let here = budget.namespace == pod.pod.namespace;
            if here && covering.iter().any(|one| one.name == budget.name) {
                note(budget);
                let key = (budget.namespace.clone(), budget.name.clone());
                self.noted.insert(key, (budget.agreed, budget.taken_at));
            }
        }
    }

    pub fn find(&mut self, pod: &PodRef) -> Option<&mut PodFacts> {
        self.snapshot.pods.iter_mut().find(|one| one.pod.uid == pod.uid)
    }

    fn take_node(&mut self, change: Change<NodeSeen>) {
        let node = match change {
            Change::All(nodes) => nodes.into_iter().next(),
            Change::Is(node) => Some(node),
            Change::Gone(_) => None,
            Change::Again => return,
        };
        self.known.node = true;
        self.snapshot.node = node.as_ref().map(NodeSeen::facts);
        let ours = self.snapshot.node.as_ref().filter(|node| {
            let mark = node.cordon.as_ref();
            node.unschedulable && mark.is_some_and(|mark| mark.owner == self.policy.owner)
        });
        if ours.is_some() {
            self.snapshot.cordoned_since.get_or_insert_with(|| self.clock.now());
        }
        self.in_use = node.map(NodeSeen::volumes_in_use).unwrap_or_default();
        self.find_attached();
    }

    async fn take_pods(&mut self, change: Change<PodSeen>) -> Result<()> {
        let taken = match change {
            Change::All(pods) => self.replace_pods(pods).await,
            Change::Is(pod) => self.put_pod(&pod).await,
            Change::Again => Ok(()),
            Change::Gone(pod) => {
                self.snapshot.pods.retain(|one| one.pod.uid != pod.metadata.uid);
                Ok(())
            }
        };
        if taken.is_err() {
            // A change is lost: all are asked for anew.
            self.pods = follow_pods(&self.cluster, self.node);
            self.known.pods = false;
        }
        let mut pods = self.snapshot.pods.iter();
        if pods.any(|pod| !self.namespaces.contains(&pod.pod.namespace)) {
            let names = self.snapshot.pods.iter().map(|pod| pod.pod.namespace.clone());
            self.namespaces = names.collect();
            self.choose_budgets();
        }
        taken
    }

    async fn replace_pods(&mut self, pods: Vec<PodSeen>) -> Result<()> {
        self.look_up(&pods).await?;
        let mut facts: Vec<PodFacts> = pods.iter().map(|pod| self.facts(pod)).collect();
        for pod in &mut facts {
            if let Some(before) = self.find(&pod.pod) {
                (pod.asking, pod.last_try) = (before.asking, before.last_try.take());
            }
        }
        self.snapshot.pods = facts;
        self.known.pods = true;
        pods.iter().for_each(|pod| self.note_volumes(pod));
        Ok(())
    }

    async fn put_pod(&mut self, pod: &PodSeen) -> Result<()> {
        self.look_up(std::slice::from_ref(pod)).await?;
        let mut facts = self.facts(pod);
        match self.find(&facts.pod) {
            Some(before) => {
                (facts.asking, facts.last_try) = (before.asking, before.last_try.take());
                *before = facts;
            }
            None => self.snapshot.pods.push(facts),
        }
        self.note_volumes(pod);
        Ok(())
    }

    fn facts(&self, pod: &PodSeen) -> PodFacts {
        let meta = &pod.metadata;
        let owner = meta.controller();
        PodFacts {
            pod: pod.pod_ref(),
            labels: meta.labels.clone(),
            controller: owner.map_or(Controller::None, |owner| self.controller(owner)),
            mirror: meta.annotations.contains_key(MIRROR),
            finished: pod.is_finished(),
            pending: pod.is_pending(),
            ready: pod.is_ready(),
            terminating: meta.deletion_timestamp.is_some(),
            priority: pod.spec.priority,
            pin: meta.names_its_node().then(|| self.pin(owner)),
            volumes: self.volumes(pod).map(|volume| volume.name.clone()).collect(),
            last_try: None,
            asking: false,
        }
    }

    fn controller(&self, owner: &OwnerReference) -> Controller {
        match owner.kind.as_str() {
            "Job" => Controller::Job,
            // Nobody makes the pod of a set that is gone again, so it leaves like any other.
            "DaemonSet" if self.lookups.sets.get(&owner.uid) == Some(&false) => Controller::None,
            "DaemonSet" => Controller::DaemonSet,
            _ => Controller::Other,
        }
    }

    fn pin(&self, owner: Option<&OwnerReference>) -> Pin {
        let Some(owner) = owner else { return Pin::Pod };
        let maker = self.lookups.makers.get(&owner.uid).cloned();
        maker.unwrap_or_else(|| Pin::Owner { kind: owner.kind.clone(), name: owner.name.clone() })
    }

    fn volumes(&self, pod: &PodSeen) -> impl Iterator<Item = &Volume> {
        let claims = pod.claims().map(|claim| (pod.metadata.namespace.clone(), claim));
        claims.filter_map(|claim| self.lookups.volumes.get(&claim)?.as_ref())
    }

    /// The volumes of a pod that has to leave are waited for later.
    fn note_volumes(&mut self, pod: &PodSeen) {
        let Some(facts) = self.snapshot.pods.iter().find(|one| one.pod.uid == pod.metadata.uid)
        else {
            return;
        };
        if facts.mirror || facts.finished || facts.controller == Controller::DaemonSet {
            return;
        }
        // Only those may hold a volume of ours; the record says so without their claims.
        if pod.claims().next().is_some() {
            self.leaving.insert(pod.metadata.uid.clone());
            if self.records.is_none() && !self.known.records {
                self.records = Some(Follow::new(self.cluster.clone(), RECORDS, None, WATCH));
            }
        }
        let Volumes { drained, .. } = &mut self.snapshot.volumes;
        for name in &facts.volumes {
            if !drained.contains(name) {
                drained.push(name.clone());
            }
        }
        if !drained.is_empty() && self.attachments.is_none() && !self.known.attachments {
            let follow = Follow::new(self.cluster.clone(), ATTACHMENTS, None, WATCH);
            self.attachments = Some(follow);
        }
        self.find_held();
    }

    /// Asks what has to be known of these pods and is not known yet.
    async fn look_up(&mut self, pods: &[PodSeen]) -> Result<()> {
        let mut questions: BTreeMap<String, Question> = BTreeMap::new();
        for pod in pods {
            let namespace = &pod.metadata.namespace;
            let protects = self.policy.protected.is_some();
            if protects && !self.snapshot.namespaces.contains_key(namespace) {
                let path = format!("/api/v1/namespaces/{namespace}");
                questions.insert(path, Question::Namespace(namespace.clone()));
            }
            let owner = pod.metadata.controller();
            if let Some((path, question)) = owner.and_then(|owner| self.about(pod, owner)) {
                questions.insert(path, question);
            }
            for claim in pod.claims().filter(|_| self.policy.volumes.is_some()) {
                let key = (namespace.clone(), claim);
                if !self.lookups.volumes.contains_key(&key) {
                    let (namespace, claim) = &key;
                    let path =
                        format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}");
                    questions.insert(path, Question::Claim(key));
                }
            }
        }
        let cluster = &self.cluster;
        let answers = questions.into_iter().map(|(path, question)| async move {
            cluster.persist(PERSIST, || question.ask(cluster, &path)).await
        });
        let mut answers = stream::iter(answers).buffer_unordered(LOOKUPS);
        while let Some(answer) = answers.next().await {
            match answer? {
                Found::Namespace(name, labels) => {
                    self.snapshot.namespaces.insert(name, labels);
                }
                Found::Set(uid, there) => {
                    self.lookups.sets.insert(uid, there);
                }
                Found::Maker(uid, maker) => {
                    self.lookups.makers.insert(uid, maker);
                }
                Found::Claim(key, volume) => {
                    self.lookups.volumes.insert(key, volume);
                }
            }
        }
        Ok(())
    }

    fn about(&self, pod: &PodSeen, owner: &OwnerReference) -> Option<(String, Question)> {
        let path = |kind: &str| {
            let namespace = &pod.metadata.namespace;
            format!("/apis/apps/v1/namespaces/{namespace}/{kind}/{}", owner.name)
        };
        match owner.kind.as_str() {
            "DaemonSet" if !self.lookups.sets.contains_key(&owner.uid) => {
                Some((path("daemonsets"), Question::Set(owner.uid.clone())))
            }
            "ReplicaSet"
                if pod.metadata.names_its_node()
                    && !self.lookups.makers.contains_key(&owner.uid) =>
            {
                Some((path("replicasets"), Question::Maker(owner.clone())))
            }
            _ => None,
        }
    }

    fn take_budgets(&mut self, change: Result<Change<BudgetSeen>>) -> Result<()> {
        let now = self.clock.now();
        match change {
            // They may not be read: the API server judges alone.
            Err(error) if matches!(error.code(), Some(403 | 404)) => {
                self.budgets = None;
                self.known.budgets = true;
                self.snapshot.budgets = None;
                return Ok(());
            }
            Err(error) => return Err(error),
            Ok(Change::All(budgets)) => {
                let all = budgets.into_iter().map(|budget| (budget.key(), budget.facts(now)));
                self.all_budgets = all.collect();
                self.known.budgets = true;
            }
            Ok(Change::Is(budget)) => {
                self.all_budgets.insert(budget.key(), budget.facts(now));
            }
            Ok(Change::Gone(budget)) => {
                self.all_budgets.remove(&budget.key());
            }
            Ok(Change::Again) => return Ok(()),
        }
        self.choose_budgets();
        Ok(())
    }

    /// Puts those that may cover a pod into the snapshot.
    fn choose_budgets(&mut self) {
        if self.budgets.is_none() || !self.known.budgets {
            return;
        }
        let here = |key: &Key| self.namespaces.contains(&key.0);
        let chosen = self.all_budgets.iter().filter(|(key, _)| here(key)).map(|(key, facts)| {
            let (agreed, taken_at) = self.noted.get(key).copied().unwrap_or_default();
            BudgetFacts { agreed, taken_at, ..facts.clone() }
        });
        self.snapshot.budgets = Some(chosen.collect());
    }

    fn take_attachments(&mut self, change: Result<Change<AttachmentSeen>>) -> Result<()> {
        match change {
            // They may not be read: what kubelet says must do.
            Err(error) if matches!(error.code(), Some(403 | 404)) => self.attachments = None,
            Err(error) => return Err(error),
            Ok(Change::All(all)) => {
                self.attached.clear();
                for one in all {
                    self.put_attachment(one);
                }
            }
            Ok(Change::Is(one)) => self.put_attachment(one),
            Ok(Change::Again) => return Ok(()),
            Ok(Change::Gone(one)) => {
                self.attached.remove(&one.metadata.name);
            }
        }
        self.known.attachments = true;
        self.find_attached();
        Ok(())
    }

    fn put_attachment(&mut self, one: AttachmentSeen) {
        let name = one.metadata.name.clone();
        match one.volume_on(self.node) {
            Some(volume) => self.attached.insert(name, volume),
            None => self.attached.remove(&name),
        };
    }

    fn take_records(&mut self, change: Result<Change<RecordSeen>>) -> Result<()> {
        match change {
            // The cluster has no volumes of ours, or they may not be read.
            Err(error) if matches!(error.code(), Some(403 | 404)) => self.records = None,
            Err(error) => return Err(error),
            Ok(Change::All(all)) => {
                self.held.clear();
                all.into_iter().for_each(|one| self.put_record(one));
            }
            Ok(Change::Is(one)) => self.put_record(one),
            Ok(Change::Again) => return Ok(()),
            Ok(Change::Gone(one)) => {
                self.held.remove(&one.metadata.name);
            }
        }
        self.known.records = true;
        self.find_held();
        Ok(())
    }

    fn put_record(&mut self, one: RecordSeen) {
        let pods = one.pods_on(self.node);
        if pods.is_empty() {
            self.held.remove(&one.metadata.name);
        } else {
            self.held.insert(one.metadata.name, pods);
        }
    }

    fn find_held(&mut self) {
        let held = self.held.iter().flat_map(|(volume, pods)| {
            let leaving = pods.iter().filter(|pod| self.leaving.contains(*pod));
            leaving.map(|pod| HeldFor { volume: volume.clone(), pod_uid: pod.clone() })
        });
        self.snapshot.volumes.held = held.collect();
    }

    fn find_attached(&mut self) {
        let known = self.lookups.volumes.values().flatten();
        let in_use = known.filter_map(|volume| {
            let is_used = self.in_use.contains(volume.in_use.as_ref()?);
            is_used.then_some(&volume.name)
        });
        let names: BTreeSet<&String> = in_use.chain(self.attached.values()).collect();
        self.snapshot.volumes.attached = names.into_iter().cloned().collect();
    }
}

fn here(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn follow_pods(cluster: &Cluster, node: &str) -> Follow<PodSeen> {
    Follow::new(cluster.clone(), PODS, Some(here(node)), WATCH)
}

async fn next_of<T: crate::watch::Followed>(follow: &mut Option<Follow<T>>) -> Result<Change<T>> {
    match follow {
        Some(follow) => follow.next().await,
        None => pending().await,
    }
}
