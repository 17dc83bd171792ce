//! Pods whose volumes were cut off. They go on running with a file system that fails, and nobody but us
//! knows why: they are deleted, so that whoever made them makes them anew.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use tracing::{info, warn};
use wharf_core::{drain::PodRef, volume::journal::Journal};
use wharf_kube::{Cluster, KubeError};

use super::{Places, Volumes};
use crate::host::files;

/// On the disk, because an agent that is started anew finds no trace of them.
pub struct Stranded {
    path: PathBuf,
    pods: Mutex<BTreeSet<PodRef>>,
}

const FORBIDDEN: u16 = 403;

/// Namespace, name and UID.
type Row = (String, String, String);

impl Stranded {
    pub fn open(places: &Places) -> io::Result<Self> {
        let path = places.state_dir.join("stranded.json");
        let rows: Vec<Row> = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => serde_json::from_slice(&text?)?,
        };
        let pods = rows.into_iter().map(|(namespace, name, uid)| PodRef { namespace, name, uid });
        Ok(Self { path, pods: Mutex::new(pods.collect()) })
    }

    /// Notes the pods of a volume that was cut off.
    pub fn add(&self, journal: &Journal) -> io::Result<()> {
        let entries = journal.pods.iter().filter_map(|pod| pod.entry.as_ref());
        let pods: Vec<PodRef> = entries.map(|entry| entry.pod_ref()).collect();
        self.change(|known| known.extend(pods))
    }

    /// Deletes them with the node's own identity, to which Kubernetes allows its own pods alone. One that
    /// somebody refuses to have deleted keeps no other.
    pub async fn delete(&self, node: &Cluster) -> Result<(), KubeError> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut done = Ok(());
        for pod in pods {
            match node.delete_pod(&pod, None).await {
                Ok(_) => warn!(%pod, "deleted, because its volume had to be cut off"),
                // A node may not even look at pods of others: one of the same name is elsewhere by now.
                Err(error) if error.code() == Some(FORBIDDEN) => info!(%pod, "it is gone"),
                Err(error) if error.code().is_some() => {
                    done = done.and(Err(error));
                    continue;
                }
                // Nobody answers.
                Err(error) => return Err(error),
            }
            let forgotten = self.change(|known| {
                known.remove(&pod);
            });
            if let Err(error) = forgotten {
                warn!(%error, "it is deleted once more");
            }
        }
        done
    }

    fn change(&self, act: impl FnOnce(&mut BTreeSet<PodRef>)) -> io::Result<()> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut pods);
        let row = |pod: &PodRef| (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
        let rows: Vec<Row> = pods.iter().map(row).collect();
        files::write(&self.path, 0o600, &serde_json::to_vec(&rows)?)
    }
}

impl Volumes {
    /// Ends the pods whose volumes were cut off, or nothing yet while the node's identity is not known.
    pub async fn end_stranded(&self) -> Result<(), KubeError> {
        let node = self.node_identity.borrow().clone();
        match node {
            Some(node) => self.stranded.delete(&node).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wharf_core::volume::{
        backend::Backend,
        journal::{DeviceStage, PodStage, PodUse},
        record::Entry,
    };

    use super::*;

    #[test]
    fn pods_of_a_volume_that_was_cut_off_are_known_after_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::of_guard(dir.path().to_owned(), "/k".into(), None);
        let stranded = Stranded::open(&places).unwrap();
        let entry = Entry { pod: "a".to_owned(), pod_uid: "u".to_owned(), ..Entry::default() };
        let pod = PodUse {
            mount_dir: "/k/a".to_owned(),
            pod_uid: "u".to_owned(),
            stage: PodStage::Bound,
            entry: Some(entry.clone()),
        };
        let journal = Journal {
            volume: "pv".to_owned(),
            storage_cluster: "main".to_owned(),
            image: "pv".to_owned(),
            backend: Backend::Loopfile,
            parameters: BTreeMap::new(),
            fs_type: String::new(),
            mount_options: String::new(),
            boot_id: "b".to_owned(),
            device: DeviceStage::Staging,
            cut: true,
            pods: vec![pod],
        };
        stranded.add(&journal).unwrap();
        let again = Stranded::open(&places).unwrap();
        assert_eq!(*again.pods.lock().unwrap(), BTreeSet::from([entry.pod_ref()]));
    }
}
