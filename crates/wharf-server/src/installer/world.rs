//! Everything that an operation knows: the wish, the record, the secrets, the files, the hosts.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;
use wharf_api::node_files;
use wharf_core::{
    cluster::{ClusterSpec, NodeRecord, NodeSpec},
    install::{
        document::{BundleIndex, DocumentInput, Stage, host_document},
        facts::HostFacts,
        host::{Action, Bundled, Change, Content, HostDocument, Image, Wanted},
        preflight::{Check, Finding, Severity, decide_preflight},
        script::{self, FACTS_SCRIPT},
    },
    node::join::FEWEST_NODES,
};
use wharf_pki::ClusterPki;
use wharf_ssh::Key;

use super::{
    Failure, Outcome,
    bundles::Supply,
    converge::internal,
    credentials::{Links, credentials_of},
    hosts::{Host, Jump, Reach, all},
};
use crate::{agents::membership, app::App, engine::Journal, vault::Vault};

/// What does not change while an operation runs.
pub struct World {
    pub app: App,
    pub spec: ClusterSpec,
    pub vault: Vault,
    pub supply: Supply,
    pub index: BundleIndex,
    pub images: Vec<Image>,
    pub key: Arc<Key>,
    pub jump: Jump,
}

impl World {
    pub fn open(app: &App, spec: ClusterSpec, vault: Vault) -> Outcome<World> {
        let supply = Supply::open(&app.config, &spec.kubernetes_version)?;
        let (index, images) = contents(&supply);
        let (app, key, jump) = (app.clone(), key(&vault)?, Jump::default());
        Ok(World { app, spec, vault, supply, index, images, key, jump })
    }

    /// The architecture of the programs to install.
    pub fn arch(&self) -> &str {
        &self.supply.bundle.manifest().arch
    }

    pub fn identity(&self) -> Option<&str> {
        identity(&self.vault)
    }

    pub fn reach<'a>(&'a self, known: &'a BTreeMap<String, NodeRecord>) -> Reach<'a> {
        Reach { spec: &self.spec, key: self.key.clone(), known, jump: &self.jump }
    }

    /// Asks a host for its facts, and whether it reaches the others.
    pub async fn observe(&self, host: &Host, others: &[Ipv4Addr]) -> Outcome<HostFacts> {
        observe(&self.spec, host, others).await
    }

    /// What a host shall hold at a stage.
    pub fn document(
        &self,
        node: &NodeSpec,
        nodes: &BTreeMap<String, NodeRecord>,
        facts: &HostFacts,
        pki: &ClusterPki,
        stage: Stage,
    ) -> Outcome<HostDocument> {
        let links = Links { authority: &self.app.agents.authority, agents: &self.vault.agents };
        let credentials = credentials_of(pki, &links, &self.spec, node).map_err(internal)?;
        let servers = self.app.config.agents_addresses(&self.spec, self.app.agents.port);
        let membership = self.membership(node, &pki.etcd_token)?;
        let input = DocumentInput {
            spec: &self.spec,
            node,
            nodes,
            facts,
            credentials: &credentials,
            bundle: &self.index,
            images: &self.images,
            stage,
            etcd_token: &pki.etcd_token,
            secrets: &self.vault.secrets,
            servers: &servers,
            membership: membership.as_deref(),
        };
        host_document(&input).map_err(|error| Failure::on(&node.name, error.to_string()))
    }

    /// As the agent itself would write it, so that neither finds the other's text changed. Below so
    /// many nodes there is nothing to wait for and nowhere to drain to.
    fn membership(&self, node: &NodeSpec, identity: &str) -> Outcome<Option<String>> {
        if self.spec.nodes.len() < FEWEST_NODES {
            return Ok(None);
        }
        let config = membership(&self.spec, &node.name, identity);
        let text = config.map(|config| node_files::write(&config).map_err(internal));
        let text = text.transpose()?;
        text.map(|text| String::from_utf8(text).map_err(internal)).transpose()
    }
}

/// What tells a cluster from others of its name; it has one as soon as it has certificates.
pub fn identity(vault: &Vault) -> Option<&str> {
    vault.pki.as_ref().map(|pki| pki.etcd_token.as_str())
}

pub fn key(vault: &Vault) -> Outcome<Arc<Key>> {
    let secrets = &vault.secrets;
    let key = Key::parse(&secrets.ssh_key, &secrets.ssh_key_passphrase);
    key.map(Arc::new).map_err(|error| Failure::new(format!("the SSH key: {error}")))
}

/// Asks a host for its facts, and whether it reaches the others.
pub async fn observe(spec: &ClusterSpec, host: &Host, others: &[Ipv4Addr]) -> Outcome<HostFacts> {
    let others = others.iter().filter(|address| **address != host.node.address);
    let mut arguments = vec![host.node.address.to_string(), spec.ssh.port.to_string()];
    arguments.extend(others.map(ToString::to_string));
    let before = Timestamp::now().as_second();
    let text = host.ask(FACTS_SCRIPT, &arguments).await?;
    let middle = before + (Timestamp::now().as_second() - before) / 2;
    script::parse_facts(&text, middle)
        .map_err(|error| Failure::on(host.name(), format!("its facts: {error}")))
}

/// The files of a document that come from the bundle, each once.
pub fn bundled_files(document: &HostDocument) -> Vec<Bundled> {
    let programs = document.files.iter().filter_map(|file| match &file.content {
        Content::Bundled(bundled) => Some(bundled),
        Content::Text(_) => None,
    });
    let images = document.images.iter().map(|image| &image.archive);
    let mut files: Vec<Bundled> = Vec::new();
    for file in programs.chain(images) {
        if !files.contains(file) {
            files.push(file.clone());
        }
    }
    files
}

/// Everything that a document makes on a host that has none of it.
pub fn all_changes(document: &HostDocument) -> Vec<Change> {
    let change = |action: Action, subject: &str| Change { action, subject: subject.to_owned() };
    let mut all = Vec::new();
    all.extend(document.modules.iter().map(|module| change(Action::LoadModule, module)));
    all.extend(document.sysctls.keys().map(|key| change(Action::SetSysctl, key)));
    let directories = document.directories.iter();
    all.extend(directories.map(|made| change(Action::MakeDirectory, &made.path)));
    all.extend(document.files.iter().map(|file| change(Action::WriteFile, &file.path)));
    all.extend(document.links.iter().map(|link| change(Action::MakeLink, &link.path)));
    all.extend(document.images.iter().map(|image| change(Action::ImportImage, &image.name)));
    for unit in &document.units {
        all.push(change(Action::WriteUnit, &unit.name));
        if unit.wanted == Wanted::Started {
            all.push(change(Action::StartUnit, &unit.name));
        }
    }
    all
}

/// The bundle as documents name its files.
fn contents(supply: &Supply) -> (BundleIndex, Vec<Image>) {
    let bundled = |entry: &wharf_bundle::FileEntry| Bundled {
        path: entry.path.clone(),
        sha256: entry.sha256.to_string(),
        size: entry.size,
    };
    let manifest = supply.bundle.manifest();
    let mut index: BundleIndex =
        manifest.files.iter().map(|entry| (entry.name().to_owned(), bundled(entry))).collect();
    index.insert("wharf".to_owned(), supply.wharf.clone());
    index.extend(supply.helpers().map(|(name, file)| (name.to_owned(), file.clone())));
    let images = supply
        .bundle
        .images()
        .map(|(name, entry)| Image { name: name.to_owned(), archive: bundled(entry) })
        .collect();
    (index, images)
}

/// Looks at the hosts of a wish and says all that is not good about them; touches nothing.
pub async fn preflight(world: &World, known: &BTreeMap<String, NodeRecord>) -> Vec<Finding> {
    let reach = world.reach(known);
    let others: Vec<Ipv4Addr> = world.spec.nodes.iter().map(|node| node.address).collect();
    let end = Instant::now() + LOOK_DEADLINE;
    let look = async |node: &NodeSpec| {
        let facts = async {
            let host = reach.connect(node).await?;
            world.observe(&host, &others).await
        };
        Ok((node.name.clone(), in_time(end, &node.name, facts).await))
    };
    let looked = all(world.spec.nodes.iter().map(look).collect()).await.unwrap_or_default();
    let mut facts = BTreeMap::new();
    let mut findings = Vec::new();
    for (name, outcome) in looked {
        match outcome {
            Ok(found) => {
                facts.insert(name, found);
            }
            Err(failure) => findings.push(Finding {
                node: name,
                check: Check::Connect,
                severity: Severity::Error,
                message: failure.sentence(),
                hint: failure.hint.unwrap_or_default(),
            }),
        }
    }
    findings.extend(decide_preflight(&world.spec, &facts, world.identity(), world.arch()));
    findings
}

/// Shorter than a request may take: one host that hangs must not hide what the others said.
pub const LOOK_DEADLINE: Duration = Duration::from_secs(20);

/// What comes too late is a failure of its host.
pub async fn in_time<T>(
    end: Instant,
    host: &str,
    work: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    let late = || {
        Failure::on(host, format!("it did not answer within {} s", LOOK_DEADLINE.as_secs()))
            .hint("look at the machine: it may hang, or be very busy")
    };
    tokio::time::timeout_at(end, work).await.unwrap_or_else(|_| Err(late()))
}

/// One host's part of a plan.
pub struct HostPlan {
    pub host: String,
    pub changes: Vec<Change>,
    pub note: Option<String>,
}

/// Says something in the journal for each warning, and fails with all errors at once.
pub fn judge(findings: &[Finding], journal: &Journal) -> Outcome<()> {
    let mut errors = Vec::new();
    for finding in findings {
        match finding.severity {
            Severity::Warning => {
                let text = format!("warning: {}: {}", finding.node, finding.message);
                journal.log_on(&finding.node, text);
            }
            Severity::Error => {
                let failure = Failure::on(&finding.node, finding.message.clone());
                errors.push(failure.hint(finding.hint.clone()));
            }
        }
    }
    super::failure::join(errors).map_or(Ok(()), Err)
}
