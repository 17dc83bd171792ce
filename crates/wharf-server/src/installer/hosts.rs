//! The hosts of an operation: connections, and the few things that are done on them.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use serde::de::DeserializeOwned;
use wharf_core::{
    cluster::{ClusterSpec, NodeRecord, NodeSpec},
    install::host::{Bundled, HostDocument, HostReport, RemovalReport, place, uploaded_path},
};
use wharf_ssh::{Command, HostKey, Key, Limits, Session, SshError, Target, UploadSpec};

use super::{
    Failure, Outcome,
    bundles::{Program, Supply},
    failure,
};
use crate::engine::Journal;

/// Hosts that are worked on at once. More would only wait for the server's own processor.
const HOSTS_AT_ONCE: usize = 32;
/// Uploads at once: each takes the whole line by itself.
const UPLOADS_AT_ONCE: usize = 5;
/// A jump host that did not answer is asked again after this time; until then its silence is the
/// answer to all.
const JUMP_AGAIN: Duration = Duration::from_secs(2);
const FACTS_DEADLINE: Duration = Duration::from_secs(30);
const TRY_EVERY: Duration = Duration::from_millis(200);
/// A document starts units and imports images; a slow machine takes a minute.
const APPLY_DEADLINE: Duration = Duration::from_secs(300);

/// One host with its open connection.
#[derive(Clone)]
pub struct Host {
    pub node: NodeSpec,
    pub session: Session,
}

/// How hosts are reached.
pub struct Reach<'a> {
    pub spec: &'a ClusterSpec,
    pub key: Arc<Key>,
    pub known: &'a BTreeMap<String, NodeRecord>,
    pub jump: &'a Jump,
}

/// The one connection to the jump host that all hosts of an operation share: sshd turns away some
/// of those who log in at the same time (`MaxStartups`).
#[derive(Default)]
pub struct Jump {
    last: tokio::sync::Mutex<Option<(Instant, Outcome<Session>)>>,
}

impl Jump {
    /// Connects, unless the connection stands. Whoever comes meanwhile waits for its outcome, so the
    /// lock is held until it is known.
    async fn connect(&self, target: &Target) -> Outcome<Session> {
        let mut last = self.last.lock().await;
        match &*last {
            Some((_, Ok(session))) if session.is_alive() => return Ok(session.clone()),
            Some((at, Err(failure))) if at.elapsed() < JUMP_AGAIN => return Err(failure.clone()),
            Some(_) | None => {}
        }
        let result = Session::connect(target, &Limits::default()).await.map_err(failed);
        *last = Some((Instant::now(), result.clone()));
        result
    }

    /// What the jump host showed, if it was needed.
    pub async fn host_key(&self) -> Option<String> {
        let last = self.last.lock().await;
        let (_, session) = last.as_ref()?;
        Some(session.as_ref().ok()?.host_key().as_str().to_owned())
    }
}

impl Reach<'_> {
    pub async fn connect(&self, node: &NodeSpec) -> Outcome<Host> {
        let (target, limits) = (self.target(node)?, Limits::default());
        let session = match self.jump_target()? {
            None => Session::connect(&target, &limits).await,
            Some(jump) => self.jump.connect(&jump).await?.connect_through(&target, &limits).await,
        };
        let session = session.map_err(failed)?;
        session.ensure_root().await.map_err(failed)?;
        Ok(Host { node: node.clone(), session })
    }

    fn target(&self, node: &NodeSpec) -> Outcome<Target> {
        let pinned = self.known.get(&node.name).filter(|known| known.spec.address == node.address);
        let pinned = pinned.and_then(|known| known.host_key.as_ref());
        // A key that the user gives replaces one that was pinned: the machine was installed anew.
        let pinned = node.host_key.as_ref().or(pinned);
        let pinned = parse_key(&node.name, pinned)?;
        let ssh = &self.spec.ssh;
        Ok(Target {
            host: node.name.clone(),
            address: node.address.to_string(),
            port: ssh.port,
            user: ssh.user.clone(),
            key: self.key.clone(),
            pinned,
        })
    }

    fn jump_target(&self) -> Outcome<Option<Target>> {
        let Some(jump) = &self.spec.ssh.jump else { return Ok(None) };
        Ok(Some(Target {
            host: jump.host.clone(),
            address: jump.host.clone(),
            port: jump.port,
            user: jump.user.clone(),
            key: self.key.clone(),
            pinned: parse_key(&jump.host, jump.host_key.as_ref())?,
        }))
    }
}

fn parse_key(host: &str, text: Option<&String>) -> Outcome<Option<HostKey>> {
    let parsed = text.map(|text| HostKey::parse(text)).transpose();
    parsed.map_err(|error| Failure::on(host, format!("its host key: {error}")))
}

/// Does something on many hosts at once. All are carried to their end, also when one fails, so
/// that the user learns of all that is wrong.
pub async fn all<T, F: Future<Output = Outcome<T>>>(work: Vec<F>) -> Outcome<Vec<T>> {
    let results: Vec<Outcome<T>> = stream::iter(work).buffered(HOSTS_AT_ONCE).collect().await;
    let (done, failures): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    match failure::join(failures.into_iter().filter_map(Result::err).collect()) {
        Some(failure) => Err(failure),
        None => Ok(done.into_iter().filter_map(Result::ok).collect()),
    }
}

/// Tries again until it succeeds or the time is up: what has just started comes and goes.
pub async fn persist<T, F>(within: Duration, mut attempt: impl FnMut() -> F) -> Outcome<T>
where
    F: Future<Output = Outcome<T>>,
{
    let end = Instant::now() + within;
    loop {
        match attempt().await {
            Err(_) if Instant::now() + TRY_EVERY < end => tokio::time::sleep(TRY_EVERY).await,
            ended => return ended,
        }
    }
}

impl Host {
    pub fn name(&self) -> &str {
        &self.node.name
    }

    /// Runs a script of ours that only looks.
    pub async fn ask(&self, script: &str, arguments: &[String]) -> Outcome<String> {
        let words = ["sh", "-s", "--"].map(str::to_owned).into_iter().chain(arguments.to_vec());
        let command = Command::new(words).stdin(script.to_owned()).timeout(FACTS_DEADLINE);
        Ok(self.session.run(&command).await.map_err(failed)?.stdout_text())
    }

    /// Puts the files there that a document needs and the host lacks.
    pub async fn upload(
        &self,
        files: &[Bundled],
        supply: &Supply,
        journal: &Journal,
    ) -> Outcome<()> {
        // The agent's program runs from the place of uploads, also where a bundle came with the
        // machine.
        let mut missing = self.not_uploaded(std::slice::from_ref(&supply.wharf)).await?;
        let others = files.iter().filter(|file| **file != supply.wharf).cloned();
        missing.extend(self.missing(&others.collect::<Vec<_>>()).await?);
        for file in missing {
            let mib = file.size >> 20;
            let text = format!("{}: uploading {} ({mib} MiB)", self.name(), file.path);
            journal.log_on(self.name(), text);
            self.upload_one(&file, supply).await?;
        }
        Ok(())
    }

    async fn upload_one(&self, file: &Bundled, supply: &Supply) -> Outcome<()> {
        self.upload_from(&supply.path_of(file)?, file).await
    }

    async fn upload_from(&self, source: &Path, file: &Bundled) -> Outcome<()> {
        let spec = upload_spec(file, uploaded_path(&file.sha256));
        self.session.upload(source, &spec, |_| {}).await.map(|_| ()).map_err(failed)
    }

    /// Puts the agent's program there, if it is not.
    pub async fn upload_program(&self, program: &Program) -> Outcome<()> {
        let missing = self.not_uploaded(std::slice::from_ref(&program.file)).await?;
        if missing.is_empty() {
            Ok(())
        } else {
            self.upload_from(&program.path, &program.file).await
        }
    }

    /// Of these files, those that are neither uploaded nor came with the machine's image.
    pub async fn missing(&self, files: &[Bundled]) -> Outcome<Vec<Bundled>> {
        let missing = self.not_uploaded(files).await?;
        self.not_at(&missing, |file| format!("{}/{}", place::PRELOADED, file.path)).await
    }

    async fn not_uploaded(&self, files: &[Bundled]) -> Outcome<Vec<Bundled>> {
        self.not_at(files, |file| uploaded_path(&file.sha256)).await
    }

    async fn not_at(
        &self,
        files: &[Bundled],
        place: impl Fn(&Bundled) -> String,
    ) -> Outcome<Vec<Bundled>> {
        let specs: Vec<_> = files.iter().map(|file| upload_spec(file, place(file))).collect();
        let there = self.session.present(&specs).await.map_err(failed)?;
        let missing = files.iter().zip(there).filter(|(_, there)| !there);
        Ok(missing.map(|(file, _)| file.clone()).collect())
    }

    /// Makes the host as the document says.
    pub async fn apply(&self, document: &HostDocument, wharf: &Bundled) -> Outcome<HostReport> {
        self.agent(wharf, &["agent", "host", "apply"], document).await
    }

    /// Imports the images of a document, which may be done beside [`Self::apply`].
    pub async fn import(&self, document: &HostDocument, wharf: &Bundled) -> Outcome<HostReport> {
        self.agent(wharf, &["agent", "host", "import"], document).await
    }

    /// What [`Self::apply`] would do.
    pub async fn plan(&self, document: &HostDocument, wharf: &Bundled) -> Outcome<HostReport> {
        self.agent(wharf, &["agent", "host", "apply", "--dry-run"], document).await
    }

    async fn agent(
        &self,
        wharf: &Bundled,
        arguments: &[&str],
        document: &HostDocument,
    ) -> Outcome<HostReport> {
        let json = serde_json::to_vec(document)
            .map_err(|error| Failure::on(self.name(), format!("its document: {error}")))?;
        let report: HostReport = self.ask_agent(wharf, arguments, json).await?;
        match report.failure {
            Some(failure) => Err(Failure::of_host(self.name(), failure)),
            None => Ok(report),
        }
    }

    /// Takes away what was made; says what is left.
    pub async fn remove(&self, wharf: &Bundled) -> Outcome<RemovalReport> {
        self.ask_agent(wharf, &["agent", "host", "remove"], Vec::new()).await
    }

    /// Runs the agent's program on the host. Its report says what went wrong, so its exit code
    /// matters only where there is no report.
    async fn ask_agent<T: DeserializeOwned>(
        &self,
        wharf: &Bundled,
        arguments: &[&str],
        stdin: Vec<u8>,
    ) -> Outcome<T> {
        let program = uploaded_path(&wharf.sha256);
        let argv = std::iter::once(program.as_str()).chain(arguments.iter().copied());
        let command = Command::new(argv).stdin(stdin).as_root().timeout(APPLY_DEADLINE);
        let output = self.session.exec(&command).await.map_err(failed)?;
        serde_json::from_slice(&output.stdout).map_err(|error| Failure {
            exit_code: Some(output.exit),
            stderr_tail: Some(output.stderr_text()),
            ..Failure::on(self.name(), format!("the agent's report cannot be read: {error}"))
        })
    }

    /// Runs a program of ours on the host as root.
    pub async fn run(&self, argv: &[&str], deadline: Duration) -> Outcome<String> {
        let command = Command::new(argv.iter().copied()).as_root().timeout(deadline);
        Ok(self.session.run(&command).await.map_err(failed)?.stdout_text())
    }

    /// Runs a program of ours on the host as root, which reads this text.
    pub async fn feed(&self, argv: &[&str], text: String, deadline: Duration) -> Outcome<()> {
        let command = Command::new(argv.iter().copied());
        let command = command.stdin(text).as_root().timeout(deadline);
        self.session.run(&command).await.map(drop).map_err(failed)
    }

    pub async fn exists(&self, path: &str) -> Outcome<bool> {
        let command = Command::new(["test", "-e", path]).as_root();
        Ok(self.session.exec(&command).await.map_err(failed)?.success())
    }
}

fn upload_spec(file: &Bundled, remote: String) -> UploadSpec {
    UploadSpec { remote, sha256: file.sha256.clone(), size: file.size, mode: 0o755 }
}

/// How many uploads may run at once, as a permit for each.
pub fn upload_permits() -> Arc<tokio::sync::Semaphore> {
    Arc::new(tokio::sync::Semaphore::new(UPLOADS_AT_ONCE))
}

pub fn failed(error: SshError) -> Failure {
    let hint = error.hint();
    let host = error.host().to_owned();
    let (message, exit_code, stderr_tail) = match error {
        SshError::Remote { command, exit, stderr_tail, .. } => {
            (format!("`{command}` failed"), Some(exit), Some(stderr_tail))
        }
        other => (crate::error::chain(&other), None, None),
    };
    Failure { host, message, exit_code, stderr_tail, hint }
}
