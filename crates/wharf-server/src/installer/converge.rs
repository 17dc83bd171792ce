//! Create and update: brings hosts and cluster to what the wish says.
//!
//! Both are the same walk through the phases. A create finds nothing installed; an update finds
//! nodes that stay as they are, which get new network files and nothing else.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;
use wharf_core::{
    cluster::{ClusterRecord, NodeRecord, NodeRole, NodeSpec},
    install::{
        allocate::{allocate_pod_cidrs, choose_etcd_starts},
        document::Stage,
        facts::HostFacts,
        host::{Change, HostDocument, HostReport, place},
        preflight::decide_preflight,
    },
    operation::Leftover,
};
use wharf_pki::ClusterPki;
use wharf_store::Txn;

use super::{
    Done, Failure, Job, Outcome,
    bundles::Program,
    cluster,
    delete::Cleaning,
    failure,
    hosts::{Host, all, upload_permits},
    members,
    world::{HostPlan, LOOK_DEADLINE, World, all_changes, bundled_files, in_time, judge},
};
use crate::{agents, vault};

const PHASES: [&str; 13] = [
    "connect",
    "preflight",
    "certificates",
    "upload",
    "prepare",
    "images",
    "etcd",
    "controlplane",
    "nodes",
    "cluster",
    "verify",
    "addons",
    "remove",
];

/// For `sh -c`, with the record of what was made on the host: without one nobody would ever remove
/// the log. Readers of the tracker know it by this name.
const LEAVE_LOG: &str = "\
test -e \"$0\" || exit 0; log=/persist/kubelog/k3s-install.log; \
mkdir -p /persist/kubelog && cat > $log.new && mv $log.new $log";
/// For the log on all hosts: it must not keep anybody from learning how the operation ended.
const LOG_WITHIN: Duration = Duration::from_secs(10);

/// A walk through the phases, with what it has found so far.
pub struct Walk<'a> {
    pub job: &'a Job,
    pub world: World,
    /// The record as it was when the walk began.
    pub record: ClusterRecord,
    pub nodes: BTreeMap<String, NodeRecord>,
    pub hosts: BTreeMap<String, Host>,
    pub facts: BTreeMap<String, HostFacts>,
}

pub async fn converge(job: &Job) -> Outcome<Done> {
    let journal = &job.journal;
    journal.plan(&PHASES);
    let record = job.record().await?;
    let vault = job.vault().await?;
    let world = World::open(&job.app, record.spec.clone(), vault)?;
    let missing = world.supply.missing_helpers();
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        journal.log(format!("nodes get no volumes: no {missing} beside the agent's program"));
    }
    let nodes = record.nodes.clone();
    let (hosts, facts) = (BTreeMap::new(), BTreeMap::new());
    let mut walk = Walk { job, world, record, nodes, hosts, facts };

    walk.hosts = journal.phase("connect", walk.connect()).await?;
    walk.nodes = walk.choose().await?;
    walk.facts = journal.phase("preflight", walk.observe()).await?;
    let pki = journal.phase("certificates", walk.certificates()).await?;
    // From here on hosts are changed, and each keeps what was done to it, however that ends.
    let ended = carry_out(&mut walk, &pki).await;
    walk.leave_log(ended.as_ref().err()).await;
    ended
}

/// What changes the hosts.
async fn carry_out(walk: &mut Walk<'_>, pki: &ClusterPki) -> Outcome<Done> {
    let journal = &walk.job.journal;
    journal.phase("upload", walk.upload(pki)).await?;
    journal.phase("prepare", walk.apply("prepare", pki, Stage::Prepare, |_| true)).await?;
    let images = journal.phase("images", walk.import(pki));
    let control = async {
        journal.phase("etcd", members::ensure(walk, pki)).await?;
        journal.phase("controlplane", walk.controlplane(pki)).await
    };
    both(images, control).await?;
    let nodes = journal.phase("nodes", walk.join(pki));
    let furnish = journal.phase("cluster", cluster::furnish(walk, pki));
    both(nodes, furnish).await?;
    journal.phase("verify", cluster::verify(walk, pki)).await?;
    journal.phase("addons", cluster::extend(walk, pki)).await?;
    walk.settle().await?;
    let leftovers = journal.phase("remove", walk.remove(pki)).await?;
    Ok(Done { leftovers })
}

/// Side by side, both to their end.
async fn both(
    one: impl Future<Output = Outcome<()>>,
    other: impl Future<Output = Outcome<()>>,
) -> Outcome<()> {
    let (one, other) = tokio::join!(one, other);
    let failures = [one.err(), other.err()].into_iter().flatten().collect();
    failure::join(failures).map_or(Ok(()), Err)
}

/// What an operation would do, host by host; touches nothing.
pub async fn plan(world: &mut World, record: Option<&ClusterRecord>) -> Outcome<Vec<HostPlan>> {
    let known = record.map(|record| record.nodes.clone()).unwrap_or_default();
    let nodes = choose_nodes(world, &known, &BTreeMap::new())?;
    let pki = pki_of(world)?;
    let world = &*world;
    let reach = world.reach(&known);
    let end = Instant::now() + LOOK_DEADLINE;
    let look = async |node: &NodeSpec| {
        let host = match in_time(end, &node.name, reach.connect(node)).await {
            Ok(host) => host,
            Err(failure) if known.get(&node.name).is_some_and(|node| node.installed) => {
                let note = format!("left as it is: {}", failure.sentence());
                return Ok(HostPlan { host: node.name.clone(), changes: vec![], note: Some(note) });
            }
            Err(failure) => return Err(failure),
        };
        let plan = async {
            let facts = world.observe(&host, &[]).await?;
            let document = world.document(node, &nodes, &facts, &pki, Stage::Node)?;
            plan_host(world, &host, &facts, &document).await
        };
        in_time(end, &node.name, plan).await
    };
    let mut plans = all(world.spec.nodes.iter().map(look).collect()).await?;
    let leaving = known.keys().filter(|name| world.spec.node(name).is_none());
    plans.extend(leaving.map(|name| HostPlan {
        host: name.clone(),
        changes: Vec::new(),
        note: Some("leaves: it is drained, deleted from the cluster and cleaned".to_owned()),
    }));
    Ok(plans)
}

/// A host that has the agent's program answers for itself; on a bare one everything is missing.
async fn plan_host(
    world: &World,
    host: &Host,
    facts: &HostFacts,
    document: &HostDocument,
) -> Outcome<HostPlan> {
    let missing = host.missing(&bundled_files(document)).await?;
    let bytes: u64 = missing.iter().map(|file| file.size).sum();
    let note = (bytes > 0)
        .then(|| format!("{} files ({} MiB) are uploaded first", missing.len(), bytes >> 20));
    let changes = match facts.cluster {
        Some(_) if !missing.iter().any(|file| file.path == world.supply.wharf.path) => {
            host.plan(document, &world.supply.wharf).await?.changes
        }
        _ => all_changes(document),
    };
    Ok(HostPlan { host: host.name().to_owned(), changes, note })
}

/// The certificates of the cluster and of its agents; what is good stays as it is. Those of agents
/// are in the world's vault afterwards.
fn pki_of(world: &mut World) -> Outcome<ClusterPki> {
    let now = Timestamp::now();
    let mut pki = match &world.vault.pki {
        Some(pki) => pki.clone(),
        None => ClusterPki::new(now).map_err(internal)?,
    };
    pki.ensure(&world.spec, now).map_err(internal)?;
    let (spec, agents) = (&world.spec, &mut world.vault.agents);
    let named: Vec<_> = spec
        .nodes
        .iter()
        .map(|node| agents::agent_of(&spec.name, &pki.etcd_token, &node.name))
        .collect();
    agents.retain(|name, _| spec.node(name).is_some());
    agents::ensure(&world.app.agents.authority, agents, &named, now).map_err(internal)?;
    Ok(pki)
}

/// What is chosen for every node of the wish; what was chosen before stays.
fn choose_nodes(
    world: &World,
    known: &BTreeMap<String, NodeRecord>,
    hosts: &BTreeMap<String, Host>,
) -> Outcome<BTreeMap<String, NodeRecord>> {
    let spec = &world.spec;
    let cidrs = allocate_pod_cidrs(spec, known).map_err(|e| Failure::new(e.to_string()))?;
    let mut starts = choose_etcd_starts(spec, known);
    let mut nodes = known.clone();
    for node in &spec.nodes {
        let Some(pod_cidr) = cidrs.get(&node.name).copied() else { continue };
        let key = hosts.get(&node.name).map(|host| host.session.host_key().as_str().to_owned());
        let chosen = nodes.entry(node.name.clone()).or_insert_with(|| NodeRecord {
            spec: node.clone(),
            pod_cidr,
            host_key: None,
            etcd: None,
            installed: false,
        });
        chosen.spec = node.clone();
        chosen.host_key = key.or_else(|| chosen.host_key.take());
        chosen.etcd = starts.remove(&node.name);
    }
    Ok(nodes)
}

impl Walk<'_> {
    pub fn is_installed(&self, name: &str) -> bool {
        self.record.nodes.get(name).is_some_and(|node| node.installed)
    }

    async fn connect(&self) -> Outcome<BTreeMap<String, Host>> {
        let reach = self.world.reach(&self.record.nodes);
        let connect = async |node: &NodeSpec| {
            let connect = reach.connect(node);
            match self.job.journal.step("connect", &node.name, "connect", connect).await {
                Ok(host) => Ok(Some((node.name.clone(), host))),
                // It stays as it is: the update must not depend on a machine that is down.
                Err(failure) if self.is_installed(&node.name) => {
                    let why = failure.sentence();
                    let text = format!("left as it is, update again once it is back: {why}");
                    self.job.journal.log_on(&node.name, text);
                    Ok(None)
                }
                Err(failure) => Err(failure),
            }
        };
        let hosts = all(self.world.spec.nodes.iter().map(connect).collect()).await?;
        Ok(hosts.into_iter().flatten().collect())
    }

    async fn observe(&self) -> Outcome<BTreeMap<String, HostFacts>> {
        // A machine that is down is no reason against another one.
        let others: Vec<_> = self.hosts.values().map(|host| host.node.address).collect();
        let observe = async |host: &Host| {
            let observe = self.world.observe(host, &others);
            let facts = self.job.journal.step("preflight", host.name(), "facts", observe).await?;
            Ok((host.name().to_owned(), facts))
        };
        let facts = all(self.hosts.values().map(observe).collect()).await?;
        let facts: BTreeMap<String, HostFacts> = facts.into_iter().collect();
        let (spec, identity) = (&self.world.spec, self.world.identity());
        let findings = decide_preflight(spec, &facts, identity, self.world.arch());
        let findings: Vec<_> =
            findings.into_iter().filter(|found| !self.is_installed(&found.node)).collect();
        judge(&findings, &self.job.journal)?;
        Ok(facts)
    }

    /// Chooses addresses and pins host keys, and stores that before any host hears of it.
    async fn choose(&self) -> Outcome<BTreeMap<String, NodeRecord>> {
        let nodes = choose_nodes(&self.world, &self.record.nodes, &self.hosts)?;
        self.job.store_nodes(&nodes).await?;
        if let Some(key) = self.world.jump.host_key().await {
            self.job.pin_jump(&key).await?;
        }
        Ok(nodes)
    }

    async fn certificates(&mut self) -> Outcome<ClusterPki> {
        let before = self.world.vault.clone();
        let pki = pki_of(&mut self.world)?;
        let vault = vault::Vault { pki: Some(pki.clone()), ..self.world.vault.clone() };
        if vault != before {
            self.job.store_vault(&vault).await?;
            self.job.journal.log("certificates were issued");
        }
        self.job.store_expiry(pki.expiry().map_err(internal)?.at).await?;
        Ok(pki)
    }

    pub fn document(&self, host: &Host, pki: &ClusterPki, stage: Stage) -> Outcome<HostDocument> {
        let facts = self.facts.get(host.name());
        let facts = facts.ok_or_else(|| Failure::on(host.name(), "it has no facts"))?;
        self.world.document(&host.node, &self.nodes, facts, pki, stage)
    }

    async fn upload(&self, pki: &ClusterPki) -> Outcome<()> {
        let permits = upload_permits();
        let upload = async |host: &Host| {
            let document = self.document(host, pki, Stage::Node)?;
            let files = bundled_files(&document);
            let journal = &self.job.journal;
            let upload = async {
                let _permit = permits.acquire().await;
                host.upload(&files, &self.world.supply, journal).await
            };
            journal.step("upload", host.name(), "upload", upload).await
        };
        all(self.hosts.values().map(upload).collect()).await.map(|_| ())
    }

    /// Brings hosts to a stage, those that are installed excepted: they are at the last one.
    pub async fn apply(
        &self,
        phase: &str,
        pki: &ClusterPki,
        stage: Stage,
        which: impl Fn(&NodeSpec) -> bool,
    ) -> Outcome<()> {
        let hosts =
            self.hosts.values().filter(|host| which(&host.node) && !self.is_installed(host.name()));
        let work = hosts.map(|host| self.apply_to(phase, host, pki, stage)).collect();
        all(work).await.map(|_| ())
    }

    pub async fn apply_to(
        &self,
        phase: &str,
        host: &Host,
        pki: &ClusterPki,
        stage: Stage,
    ) -> Outcome<HostReport> {
        let document = self.document(host, pki, stage)?;
        let apply = host.apply(&document, &self.world.supply.wharf);
        let name = format!("{stage:?}").to_lowercase();
        let report = self.job.journal.step(phase, host.name(), &name, apply).await?;
        if let Some(text) = tell(&report.changes) {
            self.job.journal.log_on(host.name(), format!("{}: {name}: {text}", host.name()));
        }
        Ok(report)
    }

    /// Brings images to the hosts that are no nodes yet.
    async fn import(&self, pki: &ClusterPki) -> Outcome<()> {
        let import = async |host: &Host| {
            let document = self.document(host, pki, Stage::Node)?;
            let import = host.import(&document, &self.world.supply.wharf);
            self.job.journal.step("images", host.name(), "import", import).await
        };
        let hosts = self.hosts.values().filter(|host| !self.is_installed(host.name()));
        all(hosts.map(import).collect()).await.map(|_| ())
    }

    async fn controlplane(&self, pki: &ClusterPki) -> Outcome<()> {
        let is_control = |node: &NodeSpec| node.is(NodeRole::Controlplane);
        self.apply("controlplane", pki, Stage::Apiserver, is_control).await?;
        cluster::wait_until_it_answers(self, pki).await
    }

    /// New hosts become nodes; those that are there learn of them.
    async fn join(&self, pki: &ClusterPki) -> Outcome<()> {
        self.complete("nodes", pki).await
    }

    /// Brings all hosts to the last stage. Controlplane nodes that run go one after the other: an
    /// API server that has to be told of a new member of etcd starts anew.
    async fn complete(&self, phase: &str, pki: &ClusterPki) -> Outcome<()> {
        let (serving, mut others): (Vec<&Host>, Vec<&Host>) =
            self.hosts.values().partition(|host| {
                host.node.is(NodeRole::Controlplane) && self.is_installed(host.name())
            });
        // The others wait for them, and not all are begun at once.
        others.sort_by_key(|host| !host.node.is(NodeRole::Controlplane));
        let apply = others.into_iter().map(|host| self.apply_to(phase, host, pki, Stage::Node));
        all(apply.collect()).await?;
        for host in serving {
            self.apply_to(phase, host, pki, Stage::Node).await?;
        }
        Ok(())
    }

    /// Leaves its log on each host, where the tracker of its agent looks for it. It helps who looks
    /// for a fault later: an operation neither fails nor waits long for want of it.
    async fn leave_log(&self, failure: Option<&Failure>) {
        let mut record = self.job.journal.snapshot();
        if let Some(failure) = failure {
            record.log_failure(Timestamp::now(), &failure.sentence());
        }
        let leave = async |host: &Host| {
            let words = ["sh", "-c", LEAVE_LOG, place::MADE];
            host.feed(&words, record.render_log_of(host.name()), LOG_WITHIN).await
        };
        let leave = all(self.hosts.values().map(leave).collect());
        let why = match tokio::time::timeout(LOG_WITHIN, leave).await {
            Ok(Ok(_)) => return,
            Ok(Err(failure)) => failure.sentence(),
            Err(_) => format!("{} s were not enough", LOG_WITHIN.as_secs()),
        };
        tracing::warn!(cluster = self.job.cluster, why, "the log was not left on all hosts");
    }

    /// Notes that the nodes of the wish are installed.
    async fn settle(&mut self) -> Outcome<()> {
        for node in self.nodes.values_mut() {
            node.installed |= self.hosts.contains_key(&node.spec.name);
        }
        self.job.store_nodes(&self.nodes).await
    }

    /// Takes out the nodes that the wish no longer names, one after the other; those that stay
    /// forget the way to their pods.
    async fn remove(&mut self, pki: &ClusterPki) -> Outcome<Vec<Leftover>> {
        let mut leftovers = Vec::new();
        let gone: Vec<NodeRecord> = self
            .nodes
            .values()
            .filter(|node| self.world.spec.node(&node.spec.name).is_none())
            .cloned()
            .collect();
        if gone.is_empty() {
            return Ok(leftovers);
        }
        for node in gone {
            let name = &node.spec.name;
            let journal = &self.job.journal;
            // Until nothing of the machine is left in the cluster.
            let turn = cluster::take_turn(self, &node);
            let _out = journal.step("remove", name, "take its turn", turn).await?;
            journal.step("remove", name, "drain", cluster::take_out(self, pki, &node)).await?;
            let reach = self.world.reach(&self.record.nodes);
            let program = Program::open(&self.world.app.config)?;
            let cleaning = Cleaning { reach, program, identity: self.world.identity() };
            leftovers.extend(cleaning.clean(journal, "remove", &node.spec, Duration::ZERO).await);
            self.nodes.remove(name);
            self.job.store_nodes(&self.nodes).await?;
        }
        self.complete("remove", pki).await?;
        Ok(leftovers)
    }
}

impl Job {
    pub async fn record(&self) -> Outcome<ClusterRecord> {
        let record = self.app.store.read::<ClusterRecord>(&self.cluster).await.map_err(internal)?;
        record.map(|record| record.value).ok_or_else(|| Failure::new("the cluster is gone"))
    }

    /// Stores what was chosen for the nodes, if it differs from what is stored.
    pub async fn store_nodes(&self, nodes: &BTreeMap<String, NodeRecord>) -> Outcome<()> {
        if self.record().await?.nodes == *nodes {
            return Ok(());
        }
        let stored = self.fenced.commit(|stored| {
            let record = ClusterRecord { nodes: nodes.clone(), ..stored.value.clone() };
            let gone = stored.value.nodes.keys().filter(|name| !nodes.contains_key(*name));
            let txn = gone.fold(Txn::new(), |txn, node| agents::forget(txn, &stored.id, node));
            txn.write(&stored.id, &record, Timestamp::now(), None)
        });
        stored.await.map(|_| ()).map_err(internal)
    }

    /// Stores the key that the jump host showed at the first contact.
    async fn pin_jump(&self, key: &str) -> Outcome<()> {
        let jump = |record: &ClusterRecord| record.spec.ssh.jump.clone();
        if jump(&self.record().await?).is_none_or(|jump| jump.host_key.is_some()) {
            return Ok(());
        }
        let stored = self.fenced.commit(|stored| {
            let mut record = stored.value.clone();
            if let Some(jump) = &mut record.spec.ssh.jump {
                jump.host_key.get_or_insert_with(|| key.to_owned());
            }
            Txn::new().write(&stored.id, &record, Timestamp::now(), None)
        });
        stored.await.map(|_| ()).map_err(internal)
    }

    /// Stores when the first certificate ends, so that nobody has to open the vault to show it.
    async fn store_expiry(&self, at: Timestamp) -> Outcome<()> {
        if self.record().await?.certificates_expire_at == Some(at) {
            return Ok(());
        }
        let stored = self.fenced.commit(|stored| {
            let certificates_expire_at = Some(at);
            let record = ClusterRecord { certificates_expire_at, ..stored.value.clone() };
            Txn::new().write(&stored.id, &record, Timestamp::now(), None)
        });
        stored.await.map(|_| ()).map_err(internal)
    }

    pub async fn vault(&self) -> Outcome<vault::Vault> {
        vault::read(&self.app, &self.cluster).await.map_err(internal)
    }

    pub async fn store_vault(&self, vault: &vault::Vault) -> Outcome<()> {
        let sealed = vault::seal(&self.app, &self.cluster, vault).map_err(internal)?;
        let stored = self
            .fenced
            .commit(|_| Txn::new().write(&self.cluster, &sealed, Timestamp::now(), None));
        stored.await.map(|_| ()).map_err(internal)
    }
}

/// A few changes by their names, many by their number.
fn tell(changes: &[Change]) -> Option<String> {
    const NAMED: usize = 3;
    let named = |change: &Change| format!("{:?} {}", change.action, change.subject);
    match changes.len() {
        0 => None,
        count if count > NAMED => Some(format!("{count} changes")),
        _ => Some(changes.iter().map(named).collect::<Vec<_>>().join(", ")),
    }
}

/// What the server itself could not do: its store, its keys.
pub fn internal(error: impl std::error::Error) -> Failure {
    Failure::new(crate::error::chain(&error))
}
