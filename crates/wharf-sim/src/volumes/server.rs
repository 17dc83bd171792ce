//! The API server: objects with versions, and writes that are refused when they are too late.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use jiff::Timestamp;
use wharf_core::volume::{
    attach::PodFacts,
    fence::NodeObject,
    garbage::GarbageEntry,
    record::{Change, Entry, Generation, Record},
};

#[derive(Default)]
pub struct Server {
    version: u64,
    pub records: BTreeMap<usize, Record>,
    /// On the PVs.
    pub generations: BTreeMap<usize, Generation>,
    pub leases: BTreeMap<usize, Lease>,
    pub nodes: BTreeMap<usize, NodeObject>,
    pub garbage: BTreeMap<usize, Vec<GarbageEntry>>,
    pub pods: BTreeMap<String, Pod>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub tenure: u64,
    pub renewed: Timestamp,
    pub duration: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub node: usize,
    pub volume: usize,
    /// Kubelet is asked to end it; the object goes when that is done.
    pub deleting: bool,
}

#[derive(Debug, Clone)]
pub enum Ask {
    ReadRecord {
        volume: usize,
    },
    Read {
        volume: usize,
        pod: String,
    },
    /// All volumes and the garbage of the node.
    Survey {
        node: usize,
    },
    ReadLease {
        node: usize,
    },
    /// Renews the lease, or takes it again with the next tenure, if it is still what was seen.
    Renew {
        node: usize,
        seen: Option<Lease>,
        lease: Lease,
    },
    Raise {
        volume: usize,
        from: Generation,
        to: Generation,
    },
    Write {
        volume: usize,
        version: Option<String>,
        entries: Vec<Entry>,
    },
    Change {
        volume: usize,
        change: Change,
    },
    NoteGarbage {
        node: usize,
        entries: Vec<GarbageEntry>,
    },
    DropGarbage {
        node: usize,
        entry: GarbageEntry,
    },
}

#[derive(Debug, Clone)]
pub enum Answer {
    Record(Option<Record>),
    Facts(Rc<Facts>),
    Survey(Rc<Survey>),
    Lease(Option<Lease>),
    Done,
    Conflict,
}

/// What an agent looks through now and then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    pub garbage: Vec<GarbageEntry>,
    /// Of each volume that was ever granted.
    pub volumes: BTreeMap<usize, Facts>,
}

/// All that is asked about one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub record: Option<Record>,
    pub generation: Generation,
    pub pod: Option<PodFacts>,
    /// The UIDs of all pods that want the volume.
    pub pods: BTreeSet<String>,
    pub nodes: BTreeMap<usize, NodeObject>,
    pub leases: BTreeMap<usize, Lease>,
    pub garbage: BTreeMap<usize, Vec<GarbageEntry>>,
}

impl Server {
    pub fn answer(&mut self, ask: &Ask) -> Answer {
        match ask {
            Ask::ReadRecord { volume } => Answer::Record(self.records.get(volume).cloned()),
            Ask::Read { volume, pod } => Answer::Facts(Rc::new(self.facts(*volume, pod))),
            Ask::ReadLease { node } => Answer::Lease(self.leases.get(node).copied()),
            Ask::Survey { node } => {
                let garbage = self.garbage.get(node).cloned().unwrap_or_default();
                let volumes = self.generations.keys().map(|it| (*it, self.facts(*it, "")));
                Answer::Survey(Rc::new(Survey { volumes: volumes.collect(), garbage }))
            }
            Ask::Renew { node, seen, lease } => {
                let known = self.leases.get(node).copied();
                self.when(known == *seen, |server| {
                    server.leases.insert(*node, *lease);
                })
            }
            Ask::Raise { volume, from, to } => {
                let known = self.generations.get(volume).copied().unwrap_or_default();
                self.when(known == *from, |server| {
                    server.generations.insert(*volume, *to);
                })
            }
            Ask::Write { volume, version, entries } => {
                let known = self.records.get(volume).map(|record| &record.version);
                let fits = known == version.as_ref();
                self.when(fits, |server| server.put(*volume, entries.clone()))
            }
            Ask::Change { volume, change } => self.change(*volume, change),
            Ask::NoteGarbage { node, entries } => {
                self.garbage.entry(*node).or_default().extend(entries.iter().cloned());
                Answer::Done
            }
            Ask::DropGarbage { node, entry } => {
                self.garbage.entry(*node).or_default().retain(|one| one != entry);
                Answer::Done
            }
        }
    }

    fn change(&mut self, volume: usize, change: &Change) -> Answer {
        let known = self.records.get(&volume).map(|record| record.version.clone());
        match change {
            Change::Replace { version, entries } => {
                let fits = known.as_ref() == Some(version);
                self.when(fits, |server| server.put(volume, entries.clone()))
            }
            Change::Delete { version } => {
                let fits = known.as_ref() == Some(version);
                self.when(fits, |server| drop(server.records.remove(&volume)))
            }
        }
    }

    fn when(&mut self, fits: bool, act: impl FnOnce(&mut Self)) -> Answer {
        if !fits {
            return Answer::Conflict;
        }
        act(self);
        Answer::Done
    }

    fn put(&mut self, volume: usize, entries: Vec<Entry>) {
        self.version += 1;
        self.records.insert(
            volume,
            Record { version: self.version.to_string(), entries, ..Record::default() },
        );
    }

    fn facts(&self, volume: usize, uid: &str) -> Facts {
        let pod = self.pods.get(uid).map(|pod| PodFacts {
            uid: uid.to_owned(),
            node: node_name(pod.node),
            finished: false,
        });
        let pods = self.pods.iter().filter(|(_, pod)| pod.volume == volume);
        Facts {
            record: self.records.get(&volume).cloned(),
            generation: self.generations.get(&volume).copied().unwrap_or_default(),
            pod,
            pods: pods.map(|(uid, _)| uid.clone()).collect(),
            nodes: self.nodes.clone(),
            leases: self.leases.clone(),
            garbage: self.garbage.clone(),
        }
    }
}

pub fn node_name(node: usize) -> String {
    format!("n{node}")
}

pub fn volume_name(volume: usize) -> String {
    format!("pv{volume}")
}
