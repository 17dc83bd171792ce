//! Whether volumes reach their storage. What the processes of a volume say about themselves is told to
//! people: as a fault of this agent, and in the volume's record.
//!
//! A task of its own, that neither waits for storage nor for whoever works on a volume.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tracing::info;
use wharf_core::{
    volume::condition::{Condition, STORAGE_AWAY},
    words::chain,
};
use wharf_kube::Cluster;

use super::{
    Shared, Volumes, side_by_side,
    storage::{Trouble, troubles},
};
use crate::{
    device,
    health::Reporter,
    tasks::{Context, Ended},
};

/// A look reads a few small files for each volume.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Whoever writes the record leaves out what was said. Asking for it is dear.
const SAY_AGAIN: Duration = Duration::from_secs(30);
/// For what is to be written; it is tried again.
const CALL: Duration = Duration::from_secs(5);
const LOOK: &str = "the processes of volumes";

pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let mut looks = Looks { volumes, reporter, reported: BTreeSet::new(), told: BTreeMap::new() };
    loop {
        let turn = async {
            looks.turn().await;
            sleep(LOOK_EVERY).await;
        };
        if context.stop.run_until_cancelled(turn).await.is_none() {
            return Ok(());
        }
    }
}

struct Looks {
    volumes: Arc<Volumes>,
    reporter: Reporter,
    /// The volumes with a fault of this agent.
    reported: BTreeSet<String>,
    /// What each volume's record says, and when that was seen to. Of those that are not here nobody
    /// knows: an earlier agent may have written there.
    told: BTreeMap<String, (Option<Trouble>, Instant)>,
}

impl Looks {
    async fn turn(&mut self) {
        let places = self.volumes.places.clone();
        let seen = match tokio::task::spawn_blocking(move || troubles(&places)).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(error)) => return self.reporter.fault(LOOK, &chain(&error)),
            Err(error) => return self.reporter.fault(LOOK, &error.to_string()),
        };
        self.reporter.clear(LOOK);
        self.report(&seen);
        if let Some(api) = self.volumes.cluster() {
            self.say(&api, seen).await;
        }
        self.reporter.ok();
    }

    fn report(&mut self, seen: &BTreeMap<String, Option<Trouble>>) {
        let in_trouble = |volume: &str| seen.get(volume).and_then(Option::as_ref);
        // Also of those that are gone, whether their records ever said it or not.
        self.reported.retain(|volume| {
            let stays = in_trouble(volume).is_some();
            if !stays {
                self.reporter.clear(&subject(volume));
            }
            stays
        });
        for (volume, trouble) in seen {
            if let Some(trouble) = trouble {
                self.reporter.fault(&subject(volume), &trouble.why);
                self.reported.insert(volume.clone());
            }
        }
        self.told.retain(|volume, _| seen.contains_key(volume));
    }

    /// Writes what is news into the records, side by side.
    async fn say(&mut self, api: &Cluster, seen: BTreeMap<String, Option<Trouble>>) {
        let is_due = |volume: &String, trouble: &Option<Trouble>| match self.told.get(volume) {
            None => true,
            Some((told, at)) => told != trouble || (told.is_some() && at.elapsed() > SAY_AGAIN),
        };
        let news = seen.into_iter().filter(|(volume, trouble)| is_due(volume, trouble));
        let node = &self.volumes.node;
        let said = side_by_side(news.map(|(volume, trouble)| async move {
            let saying = say(api, node, &volume, trouble.as_ref());
            let said = match timeout(CALL, saying).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(chain(&error)),
                Err(_) => Err("the API server does not answer".to_owned()),
            };
            (volume, trouble, said)
        }));
        for (volume, trouble, said) in said.await {
            match said {
                Ok(()) => {
                    self.told.insert(volume, (trouble, Instant::now()));
                }
                Err(reason) => info!(volume, reason, "its record does not say so yet"),
            }
        }
    }
}

async fn say(
    api: &Cluster,
    node: &str,
    volume: &str,
    trouble: Option<&Trouble>,
) -> Result<(), wharf_kube::KubeError> {
    match trouble {
        Some(Trouble { reason, why }) => {
            let away = Condition::storage_away(node, reason, why, Timestamp::now());
            api.say(volume, &away).await
        }
        None => api.unsay(volume, STORAGE_AWAY, node).await,
    }
}

fn subject(volume: &str) -> String {
    format!("volume {volume}")
}
