//! What is said of a volume in its record, beside who may use it: that a pod waits for it, or that a
//! node does not reach its storage. It is for people, and nothing is granted by it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    attach::PodFacts,
    record::{Entry, Record},
};
use crate::drain::PodRef;

/// A pod waits for the volume.
pub const WAITING: &str = "Waiting";
/// A node that holds the volume does not reach its storage.
pub const STORAGE_AWAY: &str = "StorageAway";

/// As many of a kind as anybody reads. The resource has room for both kinds, and a record with those of a
/// thousand nodes would be too large to be stored.
pub const MOST_OF_A_KIND: usize = 50;

/// One is known by its kind and the node that says so.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    /// Since when it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    #[serde(default)]
    pub node: String,
    /// The pod that waits.
    #[serde(default)]
    pub pod_namespace: String,
    #[serde(default)]
    pub pod: String,
    #[serde(rename = "podUID", default)]
    pub pod_uid: String,
}

impl Condition {
    pub fn waiting(node: &str, pod: &PodRef, why: &str, now: Timestamp) -> Self {
        Self {
            message: format!("pod {pod} on node {node} waits: {why}"),
            pod_namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            ..Self::of(WAITING, node, "Held", now)
        }
    }

    pub fn storage_away(node: &str, reason: &str, why: &str, now: Timestamp) -> Self {
        Self {
            message: format!("node {node} does not reach the volume's storage: {why}"),
            ..Self::of(STORAGE_AWAY, node, reason, now)
        }
    }

    fn of(kind: &str, node: &str, reason: &str, now: Timestamp) -> Self {
        Self {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            // Kubernetes writes whole seconds.
            last_transition_time: Timestamp::from_second(now.as_second()).ok(),
            node: node.to_owned(),
            ..Self::default()
        }
    }

    fn is(&self, kind: &str, node: &str) -> bool {
        self.kind == kind && self.node == node
    }
}

impl Record {
    /// The conditions with this one among them, in the place of the one that the same node has said of
    /// it before; `None` when it says nothing new, or so many others say it that nobody needs one more.
    pub fn said(&self, new: Condition) -> Option<Vec<Condition>> {
        let old = self.conditions.iter().find(|one| one.is(&new.kind, &new.node));
        let is_known = |old: &Condition| {
            (&old.reason, &old.message, &old.pod_uid) == (&new.reason, &new.message, &new.pod_uid)
        };
        let others = self.conditions.iter().filter(|one| one.kind == new.kind).count();
        if old.is_some_and(is_known) || (old.is_none() && others >= MOST_OF_A_KIND) {
            return None;
        }
        // What only has another reason began when it began.
        let since = old.filter(|old| old.pod_uid == new.pod_uid);
        let since = since.map_or(new.last_transition_time, |old| old.last_transition_time);
        let mut all = self.conditions.clone();
        all.retain(|one| !one.is(&new.kind, &new.node));
        all.push(Condition { last_transition_time: since, ..new });
        Some(all)
    }

    /// The conditions without what a node has said; `None` when it has not.
    pub fn unsaid(&self, kind: &str, node: &str) -> Option<Vec<Condition>> {
        let (gone, others): (Vec<_>, Vec<_>) =
            self.conditions.iter().cloned().partition(|one| one.is(kind, node));
        (!gone.is_empty()).then_some(others)
    }

    /// Whether a pod that waited does not wait any more: it is gone or has finished, is elsewhere, or
    /// has the volume. `pod` is what there is of its name.
    pub fn is_over(&self, waiting: &Condition, pod: Option<&PodFacts>) -> bool {
        let is_there = pod.is_some_and(|pod| {
            pod.uid == waiting.pod_uid && pod.node == waiting.node && !pod.finished
        });
        let holds = |entry: &Entry| entry.pod_uid == waiting.pod_uid && entry.node == waiting.node;
        !is_there || self.entries.iter().any(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(uid: &str) -> PodRef {
        PodRef { namespace: "default".to_owned(), name: "db-0".to_owned(), uid: uid.to_owned() }
    }

    #[test]
    fn a_node_says_each_thing_once_and_since_when_it_is_so() {
        let away = |node, reason, second| Condition::storage_away(node, reason, reason, at(second));
        let mut record = Record::default();
        record.conditions = record.said(away("a", "Reconnecting", 1)).unwrap();
        assert_eq!(record.said(away("a", "Reconnecting", 5)), None, "nothing new");
        record.conditions = record.said(away("a", "Dead", 5)).unwrap();
        assert_eq!(record.conditions, [away("a", "Dead", 1)], "it began with the first");
        record.conditions = record.said(away("b", "Dead", 7)).unwrap();
        let waits = Condition::waiting("a", &pod("u"), "it is held", at(8));
        assert_eq!(waits.message, "pod default/db-0 on node a waits: it is held");
        record.conditions = record.said(waits.clone()).unwrap();
        assert_eq!(record.conditions.len(), 3);
        let next = Condition::waiting("a", &pod("v"), "it is held", at(9));
        let said = record.said(next.clone()).unwrap();
        assert_eq!(said.last(), Some(&next), "another pod waits since another time");
        assert_eq!(record.unsaid(WAITING, "b"), None);
        record.conditions = record.unsaid(STORAGE_AWAY, "a").unwrap();
        assert_eq!(record.conditions, [away("b", "Dead", 7), waits]);
    }

    #[test]
    fn a_condition_of_every_node_of_a_large_cluster_still_fits_into_the_record() {
        let away = |node: usize, reason| {
            Condition::storage_away(&format!("n{node}"), reason, reason, at(0))
        };
        let mut record = Record::default();
        for node in 0..200 {
            record.conditions = record.said(away(node, "Dead")).unwrap_or(record.conditions);
        }
        assert_eq!(record.conditions.len(), MOST_OF_A_KIND);
        let changed = record.said(away(0, "Fenced")).expect("who said it may change it");
        assert_eq!(changed.len(), MOST_OF_A_KIND);
        let waits = Condition::waiting("n199", &pod("u"), "it is held", at(0));
        record.conditions = record.said(waits).expect("another kind has its own room");
        let schema = crate::install::manifests::render_volumes();
        let of_conditions = schema.split_once(" conditions:\n").unwrap().1;
        let of_all = of_conditions.split_once(" items:\n").unwrap().0;
        assert!(of_all.contains(&format!("maxItems: {}\n", 2 * MOST_OF_A_KIND)), "{of_all}");
    }

    #[test]
    fn who_is_gone_elsewhere_or_served_waits_no_more() {
        let waits = Condition::waiting("a", &pod("u"), "it is held", at(0));
        let facts = |uid: &str, node: &str, finished| {
            Some(PodFacts { uid: uid.to_owned(), node: node.to_owned(), finished })
        };
        let mut record = Record::default();
        for (pod, is_over) in [
            (facts("u", "a", false), false),
            (facts("u", "a", true), true),
            (facts("u", "b", false), true),
            (facts("v", "a", false), true),
            (None, true),
        ] {
            assert_eq!(record.is_over(&waits, pod.as_ref()), is_over, "{pod:?}");
        }
        let (node, pod_uid) = ("a".to_owned(), "u".to_owned());
        record.entries = vec![Entry { node, pod_uid, ..Entry::default() }];
        assert!(record.is_over(&waits, facts("u", "a", false).as_ref()), "it has it");
    }

    #[test]
    fn the_fields_are_those_of_the_resource_and_older_ones_can_be_read() {
        let waits = Condition::waiting("a", &pod("u"), "it is held", at(0));
        let json = serde_json::to_value(&waits).unwrap();
        assert_eq!((&json["type"], &json["podUID"]), (&"Waiting".into(), &"u".into()));
        assert_eq!(json["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(serde_json::from_value::<Condition>(json).unwrap(), waits);
        let old = r#"{"type":"Waiting","status":"True","reason":"Held","message":"m",
                      "lastTransitionTime":"1970-01-01T00:00:00Z"}"#;
        let old: Condition = serde_json::from_str(old).unwrap();
        assert!(Record::default().is_over(&old, None), "it does not say who waits");
    }
}
