//! The calls of kubelet that are under way, through either front end.
//!
//! A call to storage that does not answer lasts for minutes, and kubelet asks again. So the calls to one
//! storage never take all the room: as much as they have must be left for others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::work::VolumeError;

/// In all: each has a task, and a thread while it waits for its storage. A storage alone gets the half of
/// it, which is two volumes for each of the 110 pods that a node has at most.
const MOST: usize = 512;
/// For one volume. One of them works, and the others wait for it. Only a directory may be wanted by more
/// pods of a node at once, and kubelet asks again for those in half a second.
const MOST_OF_VOLUME: usize = 64;
/// Connections to a front end. Whoever finds no room is told so, which takes a connection for a moment.
pub const MOST_CONNECTIONS: usize = MOST + 128;

#[derive(Default)]
pub struct Calls(Arc<Mutex<Counts>>);

/// How many, by storage cluster and volume.
type Counts = BTreeMap<(String, String), usize>;

/// One call, as long as it lives.
pub struct Call {
    of: (String, String),
    all: Arc<Mutex<Counts>>,
}

impl Calls {
    /// Begins a call, or refuses it. A storage without a name is one that nobody knows.
    pub fn begin(&self, storage: &str, volume: &str) -> Result<Call, VolumeError> {
        let mut counts = locked(&self.0);
        let of = (storage.to_owned(), volume.to_owned());
        let of_volume = counts.get(&of).copied().unwrap_or_default();
        let is_of_storage = |key: &(String, String)| key.0 == storage;
        let of_storage = counts.iter().filter(|(key, _)| is_of_storage(key)).map(|(_, it)| it);
        if !has_room(of_volume, of_storage.sum(), counts.values().sum()) {
            return Err(VolumeError::Crowded { storage: storage.to_owned() });
        }
        counts.insert(of.clone(), of_volume + 1);
        Ok(Call { of, all: self.0.clone() })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut counts = locked(&self.all);
        match counts.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => {
                counts.remove(&self.of);
            }
        }
    }
}

fn locked(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether one more call may begin, by those that are under way. A fixed share would either leave most
/// of the room unused or be taken up by two storages that are dead; so there is always less for the next
/// one, but never nothing.
fn has_room(of_volume: usize, of_storage: usize, of_all: usize) -> bool {
    of_volume < MOST_OF_VOLUME && of_storage < MOST.saturating_sub(of_all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_may_have_as_many_calls_as_it_leaves_room_for() {
        for (of_volume, of_storage, of_all, expected) in [
            (0, 0, 0, true),
            // A volume.
            (63, 63, 63, true),
            (64, 64, 64, false),
            // A storage alone.
            (0, 255, 255, true),
            (0, 256, 256, false),
            // A second one beside it.
            (0, 0, 256, true),
            (0, 127, 383, true),
            (0, 128, 384, false),
            // The last place is for who has none yet.
            (0, 0, 511, true),
            (0, 1, 511, false),
            (0, 0, 512, false),
            (0, 0, 600, false),
        ] {
            let has_room = has_room(of_volume, of_storage, of_all);
            assert_eq!(has_room, expected, "{of_volume} {of_storage} {of_all}");
        }
    }

    /// Calls to a storage for as many volumes as it gets room for.
    fn crowd(calls: &Calls, storage: &str) -> Vec<Call> {
        (0..).map_while(|number| calls.begin(storage, &format!("pv-{number}")).ok()).collect()
    }

    #[test]
    fn dead_storages_leave_room_for_a_healthy_one_and_give_theirs_back() {
        let calls = Calls::default();
        let mut dead: Vec<Vec<Call>> =
            (0..4).map(|number| crowd(&calls, &format!("dead-{number}"))).collect();
        let taken: Vec<usize> = dead.iter().map(Vec::len).collect();
        assert_eq!(taken, [256, 128, 64, 32]);
        assert_eq!(crowd(&calls, "well").len(), 16);
        dead.clear();
        assert!(locked(&calls.0).is_empty(), "nothing is remembered of them");
        assert_eq!(crowd(&calls, "well").len(), 256);
    }

    #[test]
    fn a_volume_in_which_everybody_hangs_leaves_room_for_others_of_its_storage() {
        let calls = Calls::default();
        let hanging: Vec<Call> = (0..).map_while(|_| calls.begin("main", "pv-1").ok()).collect();
        assert_eq!(hanging.len(), 64);
        let refused = calls.begin("main", "pv-1").err().unwrap();
        assert!(refused.to_string().contains("main"), "{refused}");
        assert!(calls.begin("main", "pv-2").is_ok());
    }
}
