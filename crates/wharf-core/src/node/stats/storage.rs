//! Volumes of applications, as Longhorn keeps them: claims, volumes, their copies and engines put
//! together.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::number_of;

/// All by their names.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Of the applications' namespace.
    pub claims: &'a BTreeMap<String, Claim>,
    pub volumes: &'a BTreeMap<String, Volume>,
    pub replicas: &'a BTreeMap<String, Replica>,
    pub engines: &'a BTreeMap<String, Engine>,
    pub daemons: &'a BTreeMap<String, Daemons>,
    /// By node, whether one of its disks takes nothing more.
    pub full_disks: &'a BTreeMap<String, bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    pub status: u8,
    pub created: Option<Timestamp>,
    pub bytes: u64,
    /// Empty until it is bound.
    pub volume: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    pub state: u8,
    pub robustness: u8,
    pub bytes: u64,
}

/// One copy of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replica {
    pub volume: String,
    pub node: String,
    /// As Longhorn writes it.
    pub state: String,
}

/// Who writes to the copies of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Engine {
    pub volume: String,
    /// By the names of the replicas.
    pub copies: BTreeMap<String, Copied>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Copied {
    /// As Longhorn writes it: RW, WO, ERR.
    pub mode: String,
    /// How far it is, in percent.
    pub progress: u8,
}

/// A DaemonSet of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Daemons {
    pub wanted: u32,
    pub ready: u32,
}

/// What is told of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReport<'a> {
    pub name: &'a str,
    pub id: &'a str,
    pub claim: &'a Claim,
    pub volume: Volume,
    pub substate: u8,
    pub replicas: Vec<ReplicaReport<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaReport<'a> {
    pub name: &'a str,
    pub node: &'a str,
    pub progress: u8,
    pub status: u8,
}

/// Every claim of an application, with what Longhorn has for it.
pub fn describe_volumes<'a>(facts: &Facts<'a>) -> Vec<VolumeReport<'a>> {
    // While a volume moves it has two engines; one that does not know a copy says nothing of it.
    let used: BTreeMap<(&str, &str), &Copied> = facts.engines.values().flat_map(copies).collect();
    let mut replicas: BTreeMap<&str, Vec<ReplicaReport<'a>>> = BTreeMap::new();
    for (name, replica) in facts.replicas {
        let copied = used.get(&(replica.volume.as_str(), name.as_str())).copied();
        let report = describe_replica(name, replica, copied);
        replicas.entry(&replica.volume).or_default().push(report);
    }
    let describe = |(name, claim): (&'a String, &'a Claim)| {
        let volume = facts.volumes.get(&claim.volume).copied().unwrap_or_default();
        let replicas = replicas.remove(claim.volume.as_str()).unwrap_or_default();
        let substate = substate_number(volume.robustness, &replicas);
        VolumeReport { name, id: volume_id(name), claim, volume, substate, replicas }
    };
    facts.claims.iter().map(describe).collect()
}

/// By volume and replica.
fn copies(engine: &Engine) -> impl Iterator<Item = ((&str, &str), &Copied)> {
    let copies = engine.copies.iter();
    copies.map(|(replica, copied)| ((engine.volume.as_str(), replica.as_str()), copied))
}

fn describe_replica<'a>(
    name: &'a str,
    replica: &'a Replica,
    copied: Option<&Copied>,
) -> ReplicaReport<'a> {
    let mode = copied.map(|copied| copied.mode.as_str());
    let status = replica_number(&replica.state, mode);
    let progress = match status {
        ONLINE => 100,
        REBUILDING => copied.map_or(0, |copied| copied.progress.min(100)),
        _ => 0,
    };
    ReplicaReport { name, node: &replica.node, progress, status }
}

const REBUILDING: u8 = 1;
const ONLINE: u8 = 2;

/// Of one copy of a volume, by its state and by how the volume's engine uses it. It counts as in step
/// only where the engine reads from it.
pub fn replica_number(state: &str, mode: Option<&str>) -> u8 {
    match (state, mode) {
        (_, Some("ERR")) | ("error", _) => 3,
        (_, Some("WO")) => REBUILDING,
        ("running", Some("RW")) => ONLINE,
        ("stopped", _) => 4,
        ("starting", _) => 5,
        ("stopping", _) => 6,
        _ => 0,
    }
}

/// What a volume lacks. 0: unknown; 1: nothing; two copies are good, and 2: another is being made,
/// 3: none is; one copy is good, and 4: another is being made, 5: none is; 6: it failed.
fn substate_number(robustness: u8, replicas: &[ReplicaReport<'_>]) -> u8 {
    let count = |status| replicas.iter().filter(|replica| replica.status == status).count();
    match (robustness, count(ONLINE), count(REBUILDING)) {
        (3, ..) => 6,
        (1, _, 0) => 1,
        (1 | 2, 0, _) | (0, ..) => 0,
        (_, 1, 0) => 5,
        (_, 1, _) => 4,
        (_, _, 0) => 3,
        _ => 2,
    }
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

/// Of a claim, by its phase. 1: bound; 2: pending; 5: its volume is lost.
pub fn claim_number(phase: &str) -> u8 {
    match phase {
        "Bound" => 1,
        "Pending" => 2,
        "Lost" => 5,
        _ => 0,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_their_published_numbers() {
        let states = ["attached", "detached", "deleting", "", "new"];
        assert_eq!(states.map(volume_state_number), [2, 3, 6, 0, 0]);
        assert_eq!(["healthy", "faulted", ""].map(robustness_number), [1, 3, 0]);
        assert_eq!(["Bound", "Pending", "Lost", "new"].map(claim_number), [1, 2, 5, 0]);
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
    fn what_a_volume_lacks_is_told_by_its_copies() {
        let copies = |online: usize, rebuilding: usize| {
            let copy = |status| ReplicaReport { name: "r", node: "", progress: 0, status };
            let online = std::iter::repeat_n(copy(ONLINE), online);
            online.chain(std::iter::repeat_n(copy(REBUILDING), rebuilding)).collect::<Vec<_>>()
        };
        let rows = [
            (1, 3, 0, 1),
            (1, 2, 1, 2),
            (2, 2, 1, 2),
            (2, 2, 0, 3),
            (2, 1, 2, 4),
            (2, 1, 0, 5),
            (2, 0, 1, 0),
            (3, 2, 0, 6),
            (0, 3, 0, 0),
        ];
        for (robustness, online, rebuilding, expected) in rows {
            let number = substate_number(robustness, &copies(online, rebuilding));
            assert_eq!(number, expected, "{robustness} {online} {rebuilding}");
        }
    }

    #[test]
    fn a_claim_is_told_with_its_volume_and_the_copies_as_their_engine_sees_them() {
        let map = |name: &str| name.to_owned();
        let claim = Claim { status: 1, bytes: 7, volume: map("pvc-1"), created: None };
        let claims = [(map("a-pvc-0"), claim), (map("b"), Claim::default())].into();
        let volume = Volume { state: 2, robustness: 2, bytes: 5 };
        let replica =
            |state: &str| Replica { volume: map("pvc-1"), node: map("n1"), state: map(state) };
        let replicas = [(map("r1"), replica("running")), (map("r2"), replica("running"))].into();
        let copied = |mode: &str, progress| Copied { mode: map(mode), progress };
        let copies = [(map("r1"), copied("RW", 0)), (map("r2"), copied("WO", 40))].into();
        let engine = Engine { volume: map("pvc-1"), copies };
        let facts = Facts {
            claims: &claims,
            volumes: &[(map("pvc-1"), volume)].into(),
            replicas: &replicas,
            engines: &[(map("e0"), Engine::default()), (map("e1"), engine)].into(),
            daemons: &BTreeMap::new(),
            full_disks: &BTreeMap::new(),
        };
        let told = describe_volumes(&facts);
        let copy = |name, progress, status| ReplicaReport { name, node: "n1", progress, status };
        assert_eq!((told[0].name, told[0].id, told[0].substate), ("a-pvc-0", "a", 4));
        assert_eq!(told[0].replicas, [copy("r1", 100, 2), copy("r2", 40, 1)]);
        assert_eq!(
            (told[1].name, told[1].volume, told[1].replicas.len()),
            ("b", Volume::default(), 0)
        );
    }
}
