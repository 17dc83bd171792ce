//! What the elected node says of the cluster, in the numbers that are published.

use std::collections::BTreeMap;

use super::apps::PodPhase;

/// What the Ready condition of a Node says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    True,
    False,
    /// Its kubelet is silent.
    Unknown,
}

/// 0: unknown; 1: ready; 2: not ready; 3: not reachable.
pub fn node_number(ready: Option<Ready>) -> u8 {
    match ready {
        None => 0,
        Some(Ready::True) => 1,
        Some(Ready::False) => 2,
        Some(Ready::Unknown) => 3,
    }
}

/// 0: unknown; 1: pending; 2: running; 3: succeeded; 4: failed.
pub fn pod_number(phase: PodPhase) -> u8 {
    match phase {
        PodPhase::Unknown => 0,
        PodPhase::Pending => 1,
        PodPhase::Running => 2,
        PodPhase::Succeeded => 3,
        PodPhase::Failed => 4,
    }
}

/// Of a virtual machine, by the phase as KubeVirt writes it; 7 is a phase that nobody knows.
pub fn machine_number(phase: &str) -> u8 {
    const PHASES: [&str; 7] =
        ["", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed"];
    number_of(&PHASES, phase).unwrap_or(7)
}

/// Of a volume, by the state as Longhorn writes it.
pub fn volume_state_number(state: &str) -> u8 {
    const STATES: [&str; 7] =
        ["unknown", "creating", "attached", "detached", "attaching", "detaching", "deleting"];
    number_of(&STATES, state).unwrap_or(0)
}

/// Of a volume, by the word as Longhorn writes it.
pub fn robustness_number(robustness: &str) -> u8 {
    number_of(&["unknown", "healthy", "degraded", "faulted"], robustness).unwrap_or(0)
}

fn number_of(words: &[&str], word: &str) -> Option<u8> {
    let place = words.iter().position(|known| *known == word)?;
    u8::try_from(place).ok()
}

/// Of one copy of a volume, by its state and by how the volume's engine uses it. It counts as in step
/// only where the engine reads from it.
pub fn replica_number(state: &str, mode: Option<&str>) -> u8 {
    match (state, mode) {
        (_, Some("ERR")) | ("error", _) => 3,
        (_, Some("WO")) => 1,
        ("running", Some("RW")) => 2,
        ("stopped", _) => 4,
        ("starting", _) => 5,
        ("stopping", _) => 6,
        _ => 0,
    }
}

/// A DaemonSet of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Daemons {
    pub wanted: u32,
    pub ready: u32,
}

/// 0: there is no storage; 1: failed; 2: degraded; 3: healthy. It is as ill as its worst part, and
/// not healthy with a disk that takes nothing.
pub fn storage_number(daemons: &[Daemons], a_disk_is_full: bool) -> u8 {
    let worst = daemons.iter().map(|one| match one.ready {
        ready if ready >= one.wanted => 3,
        0 => 1,
        _ => 2,
    });
    let limit = if a_disk_is_full { 2 } else { 3 };
    worst.min().unwrap_or(0).min(limit)
}

/// The id of a volume by the name of its claim.
pub fn volume_id(claim: &str) -> &str {
    claim.strip_suffix("-pvc-0").unwrap_or(claim)
}

/// How many pods a namespace has, by their phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodCounts {
    pub all: u32,
    pub running: u32,
    pub pending: u32,
    pub failed: u32,
    pub succeeded: u32,
}

/// Counts the pods of each namespace.
pub fn count_pods<'a>(
    pods: impl IntoIterator<Item = (&'a str, PodPhase)>,
) -> BTreeMap<&'a str, PodCounts> {
    let mut counts: BTreeMap<&str, PodCounts> = BTreeMap::new();
    for (namespace, phase) in pods {
        let count = counts.entry(namespace).or_default();
        count.all += 1;
        match phase {
            PodPhase::Unknown => {}
            PodPhase::Pending => count.pending += 1,
            PodPhase::Running => count.running += 1,
            PodPhase::Succeeded => count.succeeded += 1,
            PodPhase::Failed => count.failed += 1,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_their_published_numbers() {
        let nodes = [None, Some(Ready::True), Some(Ready::False), Some(Ready::Unknown)];
        assert_eq!(nodes.map(node_number), [0, 1, 2, 3]);
        let pods = [PodPhase::Unknown, PodPhase::Pending, PodPhase::Running, PodPhase::Failed];
        assert_eq!(pods.map(pod_number), [0, 1, 2, 4]);
        let machines = ["", "Pending", "Scheduled", "Running", "Failed", "Unknown", "New"];
        assert_eq!(machines.map(machine_number), [0, 1, 3, 4, 6, 7, 7]);
        let states = ["attached", "detached", "deleting", "", "new"];
        assert_eq!(states.map(volume_state_number), [2, 3, 6, 0, 0]);
        assert_eq!(["healthy", "faulted", ""].map(robustness_number), [1, 3, 0]);
        assert_eq!(volume_id("0b1a-pvc-0"), "0b1a");
        assert_eq!(volume_id("other"), "other");
    }

    #[test]
    fn a_copy_is_in_step_only_where_the_engine_reads_from_it() {
        let rows = [
            ("running", Some("RW"), 2),
            ("running", Some("WO"), 1),
            ("running", Some("ERR"), 3),
            ("running", None, 0),
            ("error", None, 3),
            ("stopped", None, 4),
            ("starting", None, 5),
            ("stopping", None, 6),
            ("", None, 0),
        ];
        for (state, mode, expected) in rows {
            assert_eq!(replica_number(state, mode), expected, "{state} {mode:?}");
        }
    }

    #[test]
    fn storage_is_as_ill_as_its_worst_part() {
        let daemons = |ready| Daemons { wanted: 3, ready };
        let rows = [
            (vec![], false, 0),
            (vec![daemons(3), daemons(3)], false, 3),
            (vec![daemons(3), daemons(3)], true, 2),
            (vec![daemons(3), daemons(2)], false, 2),
            (vec![daemons(2), daemons(0)], true, 1),
        ];
        for (daemons, full, expected) in rows {
            assert_eq!(storage_number(&daemons, full), expected, "{daemons:?} {full}");
        }
    }

    #[test]
    fn pods_are_counted_by_namespace_and_phase() {
        use PodPhase::*;
        let pods = [("a", Running), ("b", Pending), ("a", Failed), ("a", Unknown), ("a", Running)];
        let counts = count_pods(pods);
        let all = PodCounts { all: 4, running: 2, failed: 1, ..PodCounts::default() };
        assert_eq!(counts["a"], all);
        assert_eq!((counts["b"].all, counts["b"].pending), (1, 1));
    }
}
