//! Volumes on this node: what kubelet asks for is attached, mounted, and taken away again.
//!
//! Flow: the driver that kubelet runs sends a call over the [`socket`], or kubelet itself calls [`csi`];
//! [`work`] looks at the kernel and the API server and does one step after the other as
//! `wharf_core::volume` decides, each noted in the [`journals`] before it is done; [`claim`] asks for
//! the volume; [`storage`] is what the bytes are on. [`tenure`] keeps the agent's lease, and a process of its own ([`guard`]) cuts
//! self-fencing volumes off when it ends, whatever has become of the agent. [`tidy`] undoes what was
//! left half done, at the start and regularly; [`reach`] tells of volumes that do not reach their storage.
//!
//! Guarantees: as `wharf_core::volume` states them. A mount that fails leaves its directory unmounted.
//!
//! Assumptions: nobody else mounts below our own directory, and the agent sees kubelet's mounts.

mod calls;
mod claim;
mod cleanup;
pub mod csi;
mod driver;
mod elected;
mod growth;
mod guard;
mod journals;
mod kernel;
mod limits;
mod places;
mod reach;
mod sightings;
mod socket;
mod step;
mod storage;
mod stranded;
mod tenure;
mod tidy;
mod unread;
mod work;

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::sync::{Semaphore, watch};
use wharf_core::volume::{
    attach::Policy,
    lease::{SinceBoot, Standing, Tenure, Terms},
    record::Own,
};
use wharf_kube::{Cluster, KubeError};

use crate::{config::Config, kube::Kube, tasks::Tasks};

pub use driver::remove as remove_driver;
pub use guard::run as guard;
use journals::Journals;
pub use places::Places;
pub(crate) use storage::agent_of;

/// What the tasks of this folder share.
pub struct Volumes {
    node: String,
    boot_id: String,
    places: Places,
    policy: Policy,
    terms: Terms,
    journals: Journals,
    reader: watch::Receiver<Option<Cluster>>,
    /// Whoever asks the API server about a volume takes one.
    turns: Arc<Semaphore>,
    /// The lease that is held, or was held last.
    tenure: watch::Receiver<Option<Tenure>>,
    calls: calls::Calls,
    /// One at a time works on a volume.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    sightings: sightings::Sightings,
    /// Steps that did not come back in time, by volume.
    stuck: Mutex<HashMap<String, Vec<limits::Stuck>>>,
    /// Since when the devices of volumes do not answer.
    silent: Mutex<HashMap<String, tokio::time::Instant>>,
    hints: storage::Hints,
    /// How large volumes were after they were last made larger.
    grown: Mutex<HashMap<String, growth::Sizes>>,
    unanswered: tidy::Unanswered,
    stranded: stranded::Stranded,
    /// The node's own identity.
    node_identity: watch::Receiver<Option<Cluster>>,
}

/// Starts what volumes need, where they are wanted.
pub fn start(tasks: &mut Tasks, config: &Config, kube: &Kube) {
    let Some(state_dir) = config.volumes.state_dir.clone() else { return };
    // Before anything is looked at: an agent that does not know its tenure would cut its volumes off.
    let (held, tenure) = watch::channel(tenure::resumed(&state_dir));
    let shared = Shared {
        places: Places::new(state_dir, &config.volumes),
        policy: config.volumes.policy(),
        terms: config.volumes.terms(),
        scan_every: config.volumes.scan_every(),
        reader: kube.reader.clone(),
        node_identity: kube.node.clone(),
        tenure,
        made: Arc::default(),
    };
    let of = shared.clone();
    tasks.start("volumes-lease", move |context, reporter| {
        tenure::run(context, reporter, of.clone(), held.clone())
    });
    let of = shared.clone();
    tasks.start("volumes", move |context, reporter| socket::run(context, reporter, of.clone()));
    let of = shared.clone();
    tasks.start("volumes-csi", move |context, reporter| csi::run(context, reporter, of.clone()));
    let of = shared.clone();
    tasks.start("volumes-elected", move |context, reporter| {
        elected::run(context, reporter, of.clone())
    });
    let of = shared.clone();
    tasks.start("volumes-cleanup", move |context, reporter| {
        cleanup::run(context, reporter, of.clone())
    });
    let of = shared.clone();
    tasks
        .start("volumes-reach", move |context, reporter| reach::run(context, reporter, of.clone()));
    tasks.start("volumes-tidy", move |context, reporter| {
        tidy::run(context, reporter, shared.clone())
    });
}

/// What is known before the node has a name.
#[derive(Clone)]
pub struct Shared {
    places: Places,
    policy: Policy,
    terms: Terms,
    /// How often the elected agent looks at everything.
    scan_every: Duration,
    reader: watch::Receiver<Option<Cluster>>,
    node_identity: watch::Receiver<Option<Cluster>>,
    tenure: watch::Receiver<Option<Tenure>>,
    /// All tasks work on one: it holds the locks.
    made: Arc<Mutex<Option<Arc<Volumes>>>>,
}

impl Shared {
    /// The volumes of this node, for all tasks the same.
    fn volumes(&self, node: &str) -> io::Result<Arc<Volumes>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(volumes) = &*made {
            return Ok(volumes.clone());
        }
        let volumes = Arc::new(Volumes {
            node: node.to_owned(),
            boot_id: boot_id()?,
            places: self.places.clone(),
            policy: self.policy,
            terms: self.terms,
            journals: Journals::open(&self.places)?,
            reader: self.reader.clone(),
            turns: Arc::new(Semaphore::new(QUESTIONS)),
            tenure: self.tenure.clone(),
            calls: calls::Calls::default(),
            locks: Mutex::default(),
            sightings: sightings::Sightings::default(),
            stuck: Mutex::default(),
            silent: Mutex::default(),
            hints: storage::Hints::default(),
            grown: Mutex::default(),
            unanswered: tidy::Unanswered::default(),
            stranded: stranded::Stranded::open(&self.places)?,
            node_identity: self.node_identity.clone(),
        });
        *made = Some(volumes.clone());
        Ok(volumes)
    }
}

impl Volumes {
    /// The way to the cluster, if there is one, for whoever works on a volume.
    fn cluster(&self) -> Option<Cluster> {
        self.way_of_lease().map(|way| way.with_turns(self.turns.clone()))
    }

    /// The same for the lease, on which everything else depends: it waits for nobody.
    fn way_of_lease(&self) -> Option<Cluster> {
        self.reader.borrow().clone()
    }

    fn standing(&self) -> Standing {
        let tenure = *self.tenure.borrow();
        tenure.map_or(Standing::Over, |tenure| tenure.standing(since_boot(), &self.terms))
    }

    /// This node by its present lease. `node_uid` is what the API server says.
    fn own(&self, node_uid: &str) -> Own {
        let tenure = self.tenure.borrow().map_or(0, |tenure| tenure.number);
        Own {
            node: self.node.clone(),
            node_uid: node_uid.to_owned(),
            boot_id: self.boot_id.clone(),
            tenure,
        }
    }

    /// The UID of this node's object. Somebody may have made it anew.
    async fn node_uid(&self, api: &Cluster) -> Result<String, KubeError> {
        let node = api.node_object(&self.node).await?;
        Ok(node.map(|node| node.uid).unwrap_or_default())
    }

    fn lock(&self, volume: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds are forgotten.
        locks.retain(|name, lock| name == volume || Arc::strong_count(lock) > 1);
        locks.entry(volume.to_owned()).or_default().clone()
    }
}

/// Whether something of a volume is on this node, as the journals in a state directory say. Whoever
/// cannot read them does not know.
pub fn are_in_use(state_dir: &Path) -> io::Result<bool> {
    match Journals::below(state_dir).names() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        names => Ok(!names?.is_empty()),
    }
}

/// So many questions about volumes are with the API server at once. A mount asks five, and kubelet may
/// ask for hundreds of mounts: each question needs a connection, whose making costs both sides more than
/// the question. More at once make the server slower, not faster.
const QUESTIONS: usize = 32;

/// So many volumes at once: the API server is asked for each.
const AT_ONCE: usize = 16;

/// Works on volumes side by side, so that one that hangs keeps no other waiting. What comes of it is in
/// no order.
async fn side_by_side<T>(work: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let work: Vec<_> = work.into_iter().collect();
    stream::iter(work).buffer_unordered(AT_ONCE).collect().await
}

/// The clock that counts from boot, also through sleep, and cannot be set.
fn since_boot() -> SinceBoot {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    SinceBoot(Duration::new(seconds, nanos))
}

/// Another after every boot.
fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_in_use_while_there_is_a_journal_and_nobody_knows_if_it_cannot_be_read() {
        let state = tempfile::tempdir().unwrap();
        assert!(!are_in_use(state.path()).unwrap(), "there never was one");
        let journals = state.path().join(journals::DIRECTORY);
        fs::create_dir(&journals).unwrap();
        assert!(!are_in_use(state.path()).unwrap());
        fs::write(journals.join(".pvc-1.json.wharf-new"), "{").unwrap();
        assert!(!are_in_use(state.path()).unwrap(), "nothing was begun with it yet");
        fs::write(journals.join("pvc-1.json"), "{").unwrap();
        assert!(are_in_use(state.path()).unwrap());
        fs::remove_dir_all(&journals).unwrap();
        fs::write(&journals, "no directory").unwrap();
        assert!(are_in_use(state.path()).is_err());
    }
}
