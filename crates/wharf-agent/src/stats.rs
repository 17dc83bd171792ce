//! What the elected node says of the whole cluster.
//!
//! Only who leads follows the cluster: others hold no watch and publish nothing. [`crate::leader`] says
//! who leads and removes what is published when that ends.

use std::{collections::BTreeSet, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use wharf_api::node_files::GLOBAL;
use wharf_core::words::chain;
use wharf_kube::{ClusterWatch, Told};

use crate::{
    health::Reporter,
    kube::{self, Kube},
    tasks::{Context, Ended},
};

mod report;

use report::{Cut, Reported};

const AGENT: &str = "zedkube";
/// Changes come in swarms; the first waits for the others.
const SETTLE: Duration = Duration::from_secs(1);
/// In a cluster that changes all the time it is told so often.
const EVERY: Duration = Duration::from_secs(30);
const SIZE: &str = "the size of KubeClusterInfo";

pub async fn run(
    context: Context,
    reporter: Reporter,
    kube: Kube,
    leads: watch::Receiver<bool>,
) -> Ended {
    let stop = context.stop.clone();
    let mut elected = leads.clone();
    let (faults, reported) = (BTreeSet::new(), Reported::default());
    let mut speaker = Speaker { context, reporter, kube, leads, faults, reported };
    let followed = async {
        loop {
            // Faults are those of who leads.
            speaker.forget_faults();
            wait_until(&mut elected, true).await;
            tokio::select! {
                () = wait_until(&mut elected, false) => {}
                () = speaker.follow() => {}
            }
        }
    };
    stop.run_until_cancelled(followed).await;
    Ok(())
}

async fn wait_until(leads: &mut watch::Receiver<bool>, wanted: bool) {
    if leads.wait_for(|leads| *leads == wanted).await.is_err() {
        // Nobody is elected any more: the agent stops.
        std::future::pending::<()>().await;
    }
}

struct Speaker {
    context: Context,
    reporter: Reporter,
    kube: Kube,
    leads: watch::Receiver<bool>,
    faults: BTreeSet<&'static str>,
    reported: Reported,
}

impl Speaker {
    /// Returns when the way to the cluster was replaced.
    async fn follow(&mut self) {
        let cluster = kube::cluster(&mut self.kube.reader).await;
        let mut watch = cluster.watch_cluster(&self.context.config.app_namespace);
        let mut due: Option<Instant> = None;
        let mut not_before = Instant::now();
        loop {
            let at = due.unwrap_or_else(Instant::now);
            tokio::select! {
                told = watch.next() => {
                    // What is not known as a whole yet is not told in part.
                    if self.take(told) && watch.facts().is_some() {
                        due.get_or_insert_with(|| not_before.max(Instant::now() + SETTLE));
                    }
                }
                Ok(()) = self.kube.reader.changed() => return,
                () = sleep_until(at), if due.is_some() => {
                    not_before = Instant::now() + EVERY;
                    due = match self.publish(&watch) {
                        true => None,
                        false => Some(not_before),
                    };
                }
            }
        }
    }

    /// Whether there is something new.
    fn take(&mut self, told: Told) -> bool {
        match told.news {
            Ok(news) => {
                if self.faults.remove(told.kind) {
                    self.reporter.clear(told.kind);
                }
                news
            }
            Err(error) => {
                self.faults.insert(told.kind);
                self.reporter.fault(told.kind, &chain(&error));
                false
            }
        }
    }

    /// Whether what is published is as it should be.
    fn publish(&mut self, watch: &ClusterWatch) -> bool {
        let Some(facts) = watch.facts() else { return true };
        let (info, cut) = self.reported.describe(&facts);
        match cut {
            Cut::Nothing => self.reporter.clear(SIZE),
            Cut::To { .. } => self.reporter.fault(SIZE, &cut.to_string()),
        }
        self.reporter.ok();
        // As long as this is held nobody ceases to lead.
        let leads = self.leads.borrow();
        !*leads || self.context.files.publish(AGENT, GLOBAL, &info).is_ok()
    }

    fn forget_faults(&mut self) {
        for kind in std::mem::take(&mut self.faults) {
            self.reporter.clear(kind);
        }
        self.reporter.clear(SIZE);
        self.reporter.ok();
    }
}
