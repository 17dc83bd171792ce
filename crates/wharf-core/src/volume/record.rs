//! The attachment record: who may use a volume.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{backend::Backend, condition::Condition};
use crate::drain::PodRef;

/// Counts the grants of a volume. The highest one lives on the PV, because the record goes with its
/// last entry; it never falls.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The record of one volume as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// The resource version: a write is refused when it is not this any more.
    pub version: String,
    pub entries: Vec<Entry>,
    /// What is said of the volume, see [`Condition`].
    pub conditions: Vec<Condition>,
}

impl Record {
    pub fn find(&self, key: &EntryKey) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key() == *key)
    }

    /// What its volume is on, as far as its entries tell. One that may be on storage which shuts nobody
    /// out is judged as if it were.
    pub fn backend(&self) -> Backend {
        let said = |entry: &Entry| entry.backend.unwrap_or(Backend::Loopfile);
        let weak = self.entries.iter().map(said).find(|backend| !backend.refuses_old_clients());
        weak.or_else(|| self.entries.first().map(said)).unwrap_or(Backend::Loopfile)
    }

    /// The write that takes one entry out. The record goes with its last entry.
    pub fn without(&self, key: &EntryKey) -> Option<Change> {
        self.find(key)?;
        let others = self.entries.iter().filter(|entry| entry.key() != *key);
        let entries: Vec<Entry> = others.cloned().collect();
        let version = self.version.clone();
        Some(if entries.is_empty() {
            Change::Delete { version }
        } else {
            Change::Replace { version, entries }
        })
    }

    /// The write that says that an entry is attached, if it does not say so yet.
    pub fn attached(&self, key: &EntryKey, device: &str, identity: &str) -> Option<Change> {
        let known = self.find(key).filter(|entry| entry.phase == Phase::Attaching)?;
        let mut new = known.clone();
        new.phase = Phase::Attached;
        new.device = Some(device.to_owned());
        new.identity = identity.to_owned();
        let swap = |entry: &Entry| if entry == known { new.clone() } else { entry.clone() };
        let entries = self.entries.iter().map(swap).collect();
        Some(Change::Replace { version: self.version.clone(), entries })
    }

    /// The write by which a person answers for these entries, if one of them stands yet. What is
    /// being fenced goes on to be.
    pub fn released(&self, keys: &[EntryKey]) -> Option<Change> {
        let is_open = |entry: &Entry| matches!(entry.phase, Phase::Attaching | Phase::Attached);
        let is_meant = |entry: &Entry| is_open(entry) && keys.contains(&entry.key());
        self.entries.iter().find(|entry| is_meant(entry))?;
        let release = |entry: &Entry| {
            let phase = if is_meant(entry) { Phase::Released } else { entry.phase };
            Entry { phase, ..entry.clone() }
        };
        let entries = self.entries.iter().map(release).collect();
        Some(Change::Replace { version: self.version.clone(), entries })
    }
}

/// A write to a record, refused when it has another version by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Replace { version: String, entries: Vec<Entry> },
    Delete { version: String },
}

/// One use of a volume: a pod on a node.
///
/// It names the holder as it was at the time of the grant. Only that is ever fenced: what a name
/// means later may be somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub node: String,
    pub pod_namespace: String,
    pub pod: String,
    pub mount_dir: String,
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    #[serde(default)]
    pub read_only: bool,
    /// Known once it is mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// The client as the backend knows it; empty until it is mapped, where it is known only then.
    #[serde(default)]
    pub identity: String,
    pub generation: Generation,
    pub phase: Phase,
    /// Where the volume's bytes are: it has to be looked after also when its PV is gone.
    #[serde(default)]
    pub storage_cluster: String,
    #[serde(default)]
    pub image: String,
    /// What the volume is on: its storage cluster may be gone when it has to be judged. An older agent
    /// does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// The agent cuts this volume off before its lease ends.
    #[serde(default)]
    pub self_fence: bool,
    /// The tenure of the agent's lease in which the entry was written, see
    /// [`Tenure`](super::lease::Tenure).
    #[serde(default)]
    pub tenure: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Phase {
    /// The volume is claimed; the device may be there or not.
    #[default]
    Attaching,
    Attached,
    /// Somebody who had proof is shutting the holder out. There is no way back.
    Fencing,
    /// A person said that the holder does not write any more. An agent that releases takes its
    /// entry out instead.
    Released,
}

/// One entry beyond doubt: a later one of the same pod on the same node has a new generation, or
/// is of another boot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryKey {
    pub node: String,
    pub boot_id: String,
    pub pod_uid: String,
    pub generation: Generation,
}

impl Entry {
    pub fn key(&self) -> EntryKey {
        EntryKey {
            node: self.node.clone(),
            boot_id: self.boot_id.clone(),
            pod_uid: self.pod_uid.clone(),
            generation: self.generation,
        }
    }

    pub fn pod_ref(&self) -> PodRef {
        PodRef {
            namespace: self.pod_namespace.clone(),
            name: self.pod.clone(),
            uid: self.pod_uid.clone(),
        }
    }

    /// Whether this agent holds the volume by this entry, as long as its tenure lasts. An entry of an
    /// earlier tenure that promised to cut itself off was cut off, and may be taken at any time.
    pub fn is_right_of(&self, own: &Own) -> bool {
        let same = self.node == own.node && self.node_uid == own.node_uid;
        let alive = self.boot_id == own.boot_id && (!self.self_fence || self.tenure == own.tenure);
        let open = matches!(self.phase, Phase::Attaching | Phase::Attached);
        same && alive && open
    }
}

/// This node and its agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Own {
    pub node: String,
    pub node_uid: String,
    pub boot_id: String,
    /// The tenure of the agent's lease that lasts now.
    pub tenure: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_leaves_without_the_others_and_the_record_goes_with_the_last() {
        let entry = |pod: &str| Entry { pod_uid: pod.to_owned(), ..Entry::default() };
        let version = || "7".to_owned();
        let record = Record {
            version: version(),
            entries: vec![entry("a"), entry("b")],
            ..Record::default()
        };
        let left = record.without(&entry("a").key());
        assert_eq!(left, Some(Change::Replace { version: version(), entries: vec![entry("b")] }));
        let last = Record { version: version(), entries: vec![entry("b")], ..Record::default() };
        assert_eq!(last.without(&entry("b").key()), Some(Change::Delete { version: version() }));
        assert_eq!(last.without(&entry("a").key()), None);
        let Some(Change::Replace { entries, .. }) =
            record.attached(&entry("b").key(), "/dev/loop1", "client")
        else {
            panic!("it was not attached")
        };
        assert_eq!(entries[0], entry("a"));
        assert_eq!(
            (entries[1].phase, entries[1].device.as_deref()),
            (Phase::Attached, Some("/dev/loop1"))
        );
        let done = Record { version: version(), entries, ..Record::default() };
        assert_eq!(done.attached(&entry("b").key(), "/dev/loop1", "client"), None);
    }

    #[test]
    fn a_person_releases_what_is_open_and_nothing_else() {
        let entry = |pod: &str, phase| Entry { pod_uid: pod.to_owned(), phase, ..Entry::default() };
        let entries = vec![
            entry("a", Phase::Attached),
            entry("b", Phase::Attached),
            entry("c", Phase::Fencing),
        ];
        let record = Record { version: "7".to_owned(), entries, ..Record::default() };
        let keys: Vec<EntryKey> = ["a", "c"].map(|pod| entry(pod, Phase::Attached).key()).into();
        let Some(Change::Replace { version, entries }) = record.released(&keys) else {
            panic!("nothing was released")
        };
        let phases: Vec<Phase> = entries.iter().map(|entry| entry.phase).collect();
        assert_eq!(phases, [Phase::Released, Phase::Attached, Phase::Fencing]);
        assert_eq!(version, "7");
        let done = Record { version, entries, ..Record::default() };
        assert_eq!(done.released(&keys), None, "a second time changes nothing");
    }

    #[test]
    fn what_may_be_on_storage_that_shuts_nobody_out_is_judged_so() {
        use Backend::{Dir, Loopfile, Proxy, Rbd};
        let rows: [(&[Option<Backend>], Backend); 7] = [
            (&[Some(Proxy)], Proxy),
            (&[Some(Rbd), Some(Rbd)], Rbd),
            (&[Some(Dir)], Dir),
            (&[Some(Proxy), Some(Loopfile)], Loopfile),
            // Entries of an older agent.
            (&[None], Loopfile),
            (&[Some(Proxy), None], Loopfile),
            (&[], Loopfile),
        ];
        for (said, expected) in rows {
            let entry = |backend: &Option<Backend>| Entry { backend: *backend, ..Entry::default() };
            let entries = said.iter().map(entry).collect();
            let record = Record { entries, ..Record::default() };
            assert_eq!(record.backend(), expected, "{said:?}");
        }
    }

    #[test]
    fn the_fields_are_those_of_the_resource() {
        let entry = Entry {
            node: "a".to_owned(),
            device: Some("/dev/loop1".to_owned()),
            generation: Generation(3),
            backend: Some(Backend::Proxy),
            ..Entry::default()
        };
        let json = serde_json::to_value(&entry).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "backend",
            "bootID",
            "device",
            "generation",
            "identity",
            "image",
            "mountDir",
            "node",
            "nodeUID",
            "phase",
            "pod",
            "podNamespace",
            "podUID",
            "readOnly",
            "selfFence",
            "storageCluster",
            "tenure",
        ];
        assert_eq!(names, expected);
        assert_eq!((&json["phase"], &json["backend"]), (&"Attaching".into(), &"proxy".into()));
        assert_eq!(serde_json::from_value::<Entry>(json).unwrap(), entry);
    }
}
