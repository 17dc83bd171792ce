//! What the gate sees of its own Node, and whether the cluster answers at all.
//!
//! A watch tells of changes for next to nothing. While something is under way the Node is also asked
//! for every few seconds: a connection that died without a word does not tell.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;
use wharf_core::{drain::NodeFacts, node::gate::Api, words::chain};
use wharf_kube::{Cluster, KubeError, NodeWatch, OwnNode};

use super::{NO_WAY, changed};
use crate::kube::Kube;

/// Between two questions, and for each of them. Both together are how late a silence is noticed.
const ASK_EVERY: Duration = Duration::from_secs(3);
const ASK_FOR: Duration = Duration::from_secs(3);
/// Who has just changed the Node waits for so long to see it.
const SHOWS: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub api: Api,
    /// `None` where it cannot be seen.
    pub node: Option<NodeFacts>,
}

/// Dropping it ends the looking.
pub struct Sight {
    seen: watch::Receiver<Seen>,
    closely: watch::Sender<bool>,
    eye: Eye,
    _task: AbortOnDropHandle<()>,
}

/// For whoever changes the Node and wants to see it.
#[derive(Clone)]
pub struct Eye {
    seen: watch::Receiver<Seen>,
    ask: Arc<Notify>,
}

impl Sight {
    pub fn open(kube: Kube, node: String, boot_id: String) -> Self {
        let silent = Seen { api: Api::Silent("it was not asked yet".to_owned()), node: None };
        let (told, seen) = watch::channel(silent);
        let (closely, close) = watch::channel(false);
        let ask = Arc::new(Notify::new());
        let looker = Looker { kube, node, boot_id, told, close, ask: ask.clone() };
        let task = AbortOnDropHandle::new(tokio::spawn(looker.run()));
        let eye = Eye { seen: seen.clone(), ask };
        Self { seen, closely, eye, _task: task }
    }

    pub fn now(&mut self) -> Seen {
        self.seen.borrow_and_update().clone()
    }

    pub fn eye(&self) -> Eye {
        self.eye.clone()
    }

    /// Whether a silence must be noticed soon.
    pub fn look_closely(&self, closely: bool) {
        self.closely.send_if_modified(|known| std::mem::replace(known, closely) != closely);
    }

    pub async fn changed(&mut self) {
        changed(&mut self.seen).await;
    }
}

impl Eye {
    /// Asks for the Node now, and returns when something was told of it.
    pub async fn look(&mut self) {
        self.seen.mark_unchanged();
        self.ask.notify_one();
        let _ = tokio::time::timeout(SHOWS, self.seen.changed()).await;
    }
}

struct Looker {
    kube: Kube,
    node: String,
    boot_id: String,
    told: watch::Sender<Seen>,
    close: watch::Receiver<bool>,
    ask: Arc<Notify>,
}

impl Looker {
    async fn run(mut self) {
        loop {
            let cluster = self.kube.node.borrow_and_update().clone();
            match cluster {
                Some(cluster) => self.follow(&cluster).await,
                None => {
                    self.told
                        .send_replace(Seen { api: Api::Silent(NO_WAY.to_owned()), node: None });
                    changed(&mut self.kube.node).await;
                }
            }
        }
    }

    /// Until there is reason to begin anew: another identity, or a cluster that was away.
    async fn follow(&mut self, cluster: &Cluster) {
        let mut watch: NodeWatch = cluster.watch_node(&self.node);
        let patient = cluster.with_timeout(ASK_FOR);
        loop {
            let closely = *self.close.borrow_and_update();
            tokio::select! {
                told = watch.next() => {
                    self.tell(told);
                    continue;
                }
                () = changed(&mut self.kube.node) => return,
                () = changed(&mut self.close) => continue,
                () = self.ask.notified() => {}
                () = tokio::time::sleep(ASK_EVERY), if closely => {}
            }
            let was_silent = matches!(self.told.borrow().api, Api::Silent(_));
            let told = patient.look_at_node(&self.node).await;
            let answers = told.is_ok();
            self.tell(told);
            if was_silent && answers {
                return;
            }
        }
    }

    fn tell(&self, told: Result<Option<OwnNode>, KubeError>) {
        let seen = match told {
            Ok(node) => Seen { api: Api::Answers, node: node.map(|node| self.facts(node)) },
            Err(error) if is_silence(&error) => {
                Seen { api: Api::Silent(chain(&error)), node: None }
            }
            // It says no, which is an answer.
            Err(_) => Seen { api: Api::Answers, node: None },
        };
        // Also when it is the same: whoever asked waits for the answer.
        self.told.send_replace(seen);
    }

    /// What a kubelet said before this boot does not make the node ready.
    fn facts(&self, node: OwnNode) -> NodeFacts {
        let stale = !node.boot_id.is_empty() && node.boot_id != self.boot_id;
        let since = stale.then_some(Timestamp::UNIX_EPOCH);
        NodeFacts { unready_since: since.or(node.facts.unready_since), ..node.facts }
    }
}

/// Whether the cluster does not answer, or only says that it cannot. Who does not want this node's
/// certificate, because it is over, is there: nobody goes without a drain for that.
fn is_silence(error: &KubeError) -> bool {
    match error {
        KubeError::Status { code, .. } => matches!(code, 429 | 500..=599),
        KubeError::Unreachable { .. } => !error.is_refusal_of_our_certificate(),
        KubeError::Timeout { .. } => true,
        KubeError::Kubeconfig(_)
        | KubeError::Answer { .. }
        | KubeError::AddressTaken { .. }
        | KubeError::Manifest { .. }
        | KubeError::NotReached { .. }
        | KubeError::PodCidr { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::{AlertDescription, CertificateError, Error as TlsError};

    use super::*;

    #[test]
    fn a_no_is_an_answer_also_when_it_is_about_this_nodes_certificate() {
        let what = || "look".to_owned();
        let status = |code| {
            let (reason, message) = (String::new(), String::new());
            KubeError::Status { what: what(), code, reason, message }
        };
        let broken = |source: io::Error| {
            let source = Box::new(source);
            KubeError::Unreachable { what: what(), source }
        };
        let tls = |error| broken(io::Error::new(io::ErrorKind::InvalidData, error));
        let refused = TlsError::AlertReceived(AlertDescription::CertificateExpired);
        let theirs = TlsError::InvalidCertificate(CertificateError::Expired);
        let rows = [
            (status(401), false),
            (status(403), false),
            (status(404), false),
            (status(429), true),
            (status(503), true),
            (KubeError::Timeout { what: what(), after: ASK_FOR }, true),
            (broken(io::ErrorKind::ConnectionRefused.into()), true),
            (tls(refused), false),
            (tls(TlsError::AlertReceived(AlertDescription::InternalError)), true),
            (tls(theirs), true),
        ];
        for (error, expected) in rows {
            assert_eq!(is_silence(&error), expected, "{error:?}");
        }
    }
}
