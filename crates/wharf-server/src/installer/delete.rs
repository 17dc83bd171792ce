//! Delete: every host is cleaned, or it is said what is left where.
//!
//! It ends, whatever hosts do. Only for what the server itself lacks for a while, such as its
//! store, it waits: there is no way back from a delete, and without the key nothing is ever cleaned.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use wharf_core::{
    cluster::{ClusterRecord, DeleteMode, NodeSpec, Origin},
    install::{
        components::etcd,
        host::{Leftover as HostLeftover, place},
    },
    operation::Leftover,
};
use wharf_store::StoreError;

use super::{
    Done, Failure, Job, Outcome,
    bundles::Program,
    converge::internal,
    hosts::{Jump, Reach, all},
    world::{identity, key, observe},
};
use crate::{
    engine::Journal,
    vault::{self, Vault},
};

/// A host that reboots is back by then; one that is not is gone.
const PATIENCE: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_secs(5);
const NOT_ALL: &str = "not everything could be removed";

pub async fn delete(job: &Job) -> Outcome<Done> {
    let journal = &job.journal;
    journal.plan(&["clean"]);
    let record = patiently(journal, || record(job)).await?;
    let hosts = all_hosts(&record);
    let left = |reason: &str| {
        let leave = |node: &NodeSpec| leftover(&node.name, reason.to_owned(), everything());
        Done { leftovers: hosts.iter().map(leave).collect() }
    };
    if record.origin == Origin::Imported || job.delete == DeleteMode::Forget {
        return Ok(left("the cluster was forgotten; its machines were left as they are"));
    }
    let means = patiently(journal, || means(job)).await;
    let (vault, program, key) = match means.and_then(|(vault, program)| {
        let key = key(&vault)?;
        Ok((vault, program, key))
    }) {
        Ok(means) => means,
        Err(failure) => return Ok(left(&failure.sentence())),
    };
    let (spec, known, jump) = (&record.spec, &record.nodes, &Jump::default());
    let reach = Reach { spec, key, known, jump };
    let cleaning = Cleaning { reach, program, identity: identity(&vault) };
    let patience = if job.delete == DeleteMode::Clean { PATIENCE } else { Duration::ZERO };
    let clean = async |node: &NodeSpec| Ok(cleaning.clean(journal, "clean", node, patience).await);
    let work = all(hosts.iter().map(clean).collect());
    let leftovers = journal.phase("clean", work).await?.into_iter().flatten().collect();
    Ok(Done { leftovers })
}

/// Tries again for as long as the server lacks something that time or its administrator may give
/// it (`Err`), and says once what that is.
async fn patiently<T, F>(journal: &Journal, mut attempt: impl FnMut() -> F) -> Outcome<T>
where
    F: Future<Output = Result<Outcome<T>, Failure>>,
{
    let mut told = String::new();
    loop {
        match attempt().await {
            Ok(ended) => return ended,
            Err(failure) => {
                let sentence = failure.sentence();
                if told != sentence {
                    journal.log(format!("waiting: {sentence}"));
                    told = sentence;
                }
                tokio::time::sleep(TRY_EVERY).await;
            }
        }
    }
}

async fn record(job: &Job) -> Result<Outcome<ClusterRecord>, Failure> {
    let record = job.app.store.read::<ClusterRecord>(&job.cluster).await.map_err(internal)?;
    Ok(record.map(|record| record.value).ok_or_else(|| Failure::new("the cluster is gone")))
}

/// What cleaning takes. It is less than what an installation takes: no bundle.
async fn means(job: &Job) -> Result<Outcome<(Vault, Program)>, Failure> {
    let program = Program::open(&job.app.config)?;
    match vault::read(&job.app, &job.cluster).await {
        Ok(vault) => Ok(Ok((vault, program))),
        // These stay as they are, however long one waits.
        Err(error @ (StoreError::Unreadable { .. } | StoreError::Unsealable { .. })) => {
            Ok(Err(internal(error)))
        }
        Err(error) => Err(internal(error)),
    }
}

/// Those of the wish and those that were installed once, each once.
fn all_hosts(record: &ClusterRecord) -> Vec<NodeSpec> {
    let mut hosts: BTreeMap<&str, &NodeSpec> = BTreeMap::new();
    let known = record.nodes.values().map(|node| &node.spec);
    for node in known.chain(&record.spec.nodes) {
        hosts.insert(&node.name, node);
    }
    hosts.into_values().cloned().collect()
}

/// Takes hosts of one cluster back to what they were.
pub struct Cleaning<'a> {
    pub reach: Reach<'a>,
    pub program: Program,
    pub identity: Option<&'a str>,
}

impl Cleaning<'_> {
    /// Removes from a host what was made on it; says what is left. If something is, the step has
    /// failed, and the operation goes on.
    pub async fn clean(
        &self,
        journal: &Journal,
        phase: &str,
        node: &NodeSpec,
        patience: Duration,
    ) -> Option<Leftover> {
        let mut left = None;
        let clean = async {
            left = self.clean_patiently(journal, node, patience).await;
            left.as_ref().map_or(Ok(()), |left| Err(failure_of(left)))
        };
        // The step keeps the failure and its log; what it means for the user is what is left.
        let _ = journal.step(phase, &node.name, "clean", clean).await;
        left
    }

    async fn clean_patiently(
        &self,
        journal: &Journal,
        node: &NodeSpec,
        patience: Duration,
    ) -> Option<Leftover> {
        let begun = Instant::now();
        loop {
            let left = match self.try_clean(journal, node).await {
                Ok(items) if items.is_empty() => return None,
                Ok(items) => leftover(&node.name, NOT_ALL.to_owned(), items),
                Err(failure) => leftover(&node.name, failure.sentence(), everything()),
            };
            if begun.elapsed() + TRY_EVERY > patience {
                return Some(left);
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    async fn try_clean(&self, journal: &Journal, node: &NodeSpec) -> Outcome<Vec<String>> {
        let host = self.reach.connect(node).await?;
        // On a bare host nothing is uploaded only to be removed.
        let mut bare = true;
        for path in [place::MADE, place::PROGRAMS, etcd::DATA] {
            bare &= !host.exists(path).await?;
        }
        if bare {
            return Ok(Vec::new());
        }
        let spec = self.reach.spec;
        let facts = observe(spec, &host, &[]).await?;
        let ours = facts.holds(&spec.name, self.identity);
        if let Some(other) = facts.cluster.filter(|_| !ours) {
            let message = match other == spec.name {
                true => format!("it holds another cluster that is named {other} too: left alone"),
                false => format!("it belongs to the cluster {other} now and was left alone"),
            };
            return Err(Failure::on(&node.name, message));
        }
        host.upload_program(&self.program).await?;
        let report = host.remove(&self.program.file).await?;
        for note in &report.notes {
            journal.log_on(&node.name, format!("{}: {note}", node.name));
        }
        let item = |left: HostLeftover| format!("{}: {}", left.item, left.reason);
        Ok(report.leftovers.into_iter().map(item).collect())
    }
}

fn failure_of(left: &Leftover) -> Failure {
    match left.reason == NOT_ALL {
        true => Failure::on(&left.host, format!("{NOT_ALL}: {}", left.items.join("; "))),
        // It was a sentence that names the host.
        false => Failure::new(left.reason.clone()),
    }
}

fn leftover(host: &str, reason: String, items: Vec<String>) -> Leftover {
    Leftover { host: host.to_owned(), reason, items }
}

/// Where to look on a host that could not be cleaned.
fn everything() -> Vec<String> {
    [place::PROGRAMS, place::CONFIG, place::DATA, place::RUN, "/var/lib/kubelet", "wharf-*.service"]
        .map(str::to_owned)
        .to_vec()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use jiff::Timestamp;
    use wharf_core::{
        cluster::{ClusterSecrets, ClusterSpec, NodeRole},
        install::host::Bundled,
        operation::{OperationKind, OperationRecord, Progress},
    };
    use wharf_pki::ClusterPki;

    use super::*;

    #[tokio::test]
    async fn a_host_that_cannot_be_cleaned_fails_its_step_and_is_left() {
        // Nothing listens on the first port.
        let address = Ipv4Addr::LOCALHOST;
        let mut spec = ClusterSpec::new("demo", SocketAddrV4::new(address, 1), "1.36.3");
        spec.ssh.port = 1;
        let roles = vec![NodeRole::Worker];
        let node = NodeSpec { name: "n1".to_owned(), address, roles, host_key: None };
        let pki = ClusterPki::new(Timestamp::now()).unwrap();
        let ssh_key = pki.etcd_ca.key_pem.expose().to_owned();
        let secrets = ClusterSecrets { ssh_key, ..ClusterSecrets::default() };
        let vault = Vault { secrets, pki: Some(pki), ..Vault::default() };
        let (known, jump) = (BTreeMap::new(), Jump::default());
        let reach = Reach { spec: &spec, key: key(&vault).unwrap(), known: &known, jump: &jump };
        let file = Bundled { path: String::new(), sha256: String::new(), size: 0 };
        let program = Program { file, path: "/nowhere".into() };
        let cleaning = Cleaning { reach, program, identity: identity(&vault) };

        let operation = OperationRecord::new("demo", OperationKind::Delete, Timestamp::now());
        let journal = Journal::new("1", operation);
        let left = cleaning.clean(&journal, "clean", &node, Duration::ZERO).await.unwrap();
        assert_eq!((left.host.as_str(), left.items), ("n1", everything()));
        let steps = journal.snapshot().steps;
        let told: Vec<_> = steps.iter().map(|step| (step.host.as_str(), step.state)).collect();
        assert_eq!(told, [("n1", Progress::Failed)]);
    }
}
