//! What is out of service in the clusters that this server owns.
//!
//! Everything that takes a machine out is decided by the owner of its cluster, so the guard of a
//! cluster lives in the owner's memory, under one lock. What is out already when a server takes a
//! cluster over is put back from what is stored: until that is done, nobody is let in
//! ([`Disruptions::opened`]).
//!
//! Guarantees: a machine is judged and noted in one step, so two that ask at once do not both see
//! an empty guard. A [`Claim`] ends when it is dropped, also by a panic.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;
use wharf_core::disruption::{Disruption, Guard, Refusal};

/// The guards of all owned clusters.
#[derive(Default)]
pub struct Disruptions {
    clusters: Mutex<HashMap<String, Arc<Cluster>>>,
}

/// Whose stored disruptions have to be known before anything new is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Drains,
    Repairs,
    /// Reboots, shutdowns and updates.
    Operations,
}

/// A machine that is noted as out of service until this is dropped.
pub struct Claim {
    cluster: Arc<Cluster>,
    machine: String,
}

#[derive(Default)]
struct Cluster {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// Under which epoch the cluster is ours; `None` while it is not.
    epoch: Option<u64>,
    drains_loaded: bool,
    repairs_loaded: bool,
    operations_loaded: bool,
    repairs: Vec<(String, Disruption)>,
    /// Everything but repairs.
    others: Guard,
    /// How many claims share a machine.
    shares: HashMap<String, usize>,
}

impl Disruptions {
    /// Begins to guard a cluster that this server took over. Claims of an earlier ownership that
    /// are still held count until they end.
    pub fn own(&self, cluster: &str, epoch: u64) {
        self.cluster(cluster).change(|state| {
            state.epoch = Some(epoch);
            state.drains_loaded = false;
            state.repairs_loaded = false;
            state.operations_loaded = false;
        });
    }

    /// The cluster is not ours any more.
    pub fn disown(&self, cluster: &str, epoch: u64) {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = clusters.get(cluster) else { return };
        known.change(|state| {
            if state.epoch == Some(epoch) {
                state.epoch = None;
                state.repairs.clear();
            }
        });
        if Arc::strong_count(known) == 1 && known.state().epoch.is_none() {
            clusters.remove(cluster);
        }
    }

    /// Says that what is stored of one part has been noted, under the epoch of whoever says so.
    pub fn loaded(&self, cluster: &str, epoch: u64, part: Part) {
        self.cluster(cluster).change(|state| {
            if state.epoch == Some(epoch) {
                match part {
                    Part::Drains => state.drains_loaded = true,
                    Part::Repairs => state.repairs_loaded = true,
                    Part::Operations => state.operations_loaded = true,
                }
            }
        });
    }

    /// Returns once all that was out of service before is noted. Whoever is about to claim waits
    /// for this.
    pub async fn opened(&self, cluster: &str) {
        let cluster = self.cluster(cluster);
        let mut changed = cluster.changed.subscribe();
        // The sender lives as long as `cluster`.
        let _ = changed.wait_for(|_| cluster.state().is_open()).await;
    }

    /// Decides about repairs: `decide` gets everything that is out but is no repair, and returns
    /// the machines that repairs have in hand from now on.
    pub fn decide_repairs<R>(
        &self,
        cluster: &str,
        decide: impl FnOnce(&Guard) -> (R, Vec<(String, Disruption)>),
    ) -> R {
        let cluster = self.cluster(cluster);
        let mut state = cluster.state();
        let (answer, repairs) = decide(&state.others);
        let is_new = state.repairs != repairs;
        state.repairs = repairs;
        drop(state);
        if is_new {
            cluster.tell();
        }
        answer
    }

    /// Takes a machine out of service for anything but a repair. Whoever has it out for the same
    /// purpose already shares it.
    ///
    /// # Errors
    /// What is out of service already forbids it for now.
    pub fn claim(
        &self,
        cluster: &str,
        machine: &str,
        wanted: Disruption,
    ) -> Result<Claim, Refusal> {
        let cluster = self.cluster(cluster);
        let mut state = cluster.state();
        state.all().admit(machine, wanted, usize::MAX)?;
        state.note(machine, wanted);
        drop(state);
        Ok(Claim::of(cluster, machine))
    }

    /// Notes a machine that was out of service before this server took the cluster over.
    pub fn restore(&self, cluster: &str, machine: &str, known: Disruption) -> Claim {
        let cluster = self.cluster(cluster);
        cluster.state().note(machine, known);
        Claim::of(cluster, machine)
    }

    /// Wakes whoever waits for the guard to change.
    pub fn changed(&self, cluster: &str) -> watch::Receiver<u64> {
        self.cluster(cluster).changed.subscribe()
    }

    fn cluster(&self, name: &str) -> Arc<Cluster> {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.entry(name.to_owned()).or_default().clone()
    }
}

impl Cluster {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole after every change, also after one in a task that panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.tell();
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.epoch.is_some() && self.drains_loaded && self.repairs_loaded && self.operations_loaded
    }

    /// Everything that is out, repairs too.
    fn all(&self) -> Guard {
        let mut all = self.others.clone();
        for (machine, repair) in &self.repairs {
            all.begin(machine, *repair);
        }
        all
    }

    fn note(&mut self, machine: &str, disruption: Disruption) {
        self.others.begin(machine, disruption);
        *self.shares.entry(machine.to_owned()).or_default() += 1;
    }

    fn end(&mut self, machine: &str) {
        let Some(shares) = self.shares.get_mut(machine) else { return };
        *shares -= 1;
        if *shares == 0 {
            self.shares.remove(machine);
            self.others.end(machine);
        }
    }
}

impl Claim {
    fn of(cluster: Arc<Cluster>, machine: &str) -> Self {
        cluster.tell();
        Self { cluster, machine: machine.to_owned() }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.cluster.change(|state| state.end(&self.machine));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wharf_core::disruption::Kind;

    use super::*;

    const WORKER: Disruption = Disruption { kind: Kind::Drain, critical: false };
    const CRITICAL: Disruption = Disruption { kind: Kind::Drain, critical: true };
    const REPAIR: Disruption = Disruption { kind: Kind::Repair, critical: true };

    fn opened() -> Disruptions {
        let all = Disruptions::default();
        all.own("demo", 1);
        all.loaded("demo", 1, Part::Drains);
        all.loaded("demo", 1, Part::Repairs);
        all.loaded("demo", 1, Part::Operations);
        all
    }

    async fn is_open(all: &Disruptions) -> bool {
        tokio::time::timeout(Duration::from_millis(10), all.opened("demo")).await.is_ok()
    }

    #[test]
    fn claims_and_repairs_are_judged_together_and_a_claim_ends_when_it_is_dropped() {
        let all = opened();
        let begin = |machine: &str| {
            all.decide_repairs("demo", |guard| {
                let admitted = guard.admit(machine, REPAIR, 9);
                let repairs = match admitted {
                    Ok(()) => vec![(machine.to_owned(), REPAIR)],
                    Err(_) => Vec::new(),
                };
                (admitted.is_ok(), repairs)
            })
        };
        let first = all.claim("demo", "a", CRITICAL).ok().unwrap();
        assert!(!begin("b"), "a drain of a critical machine keeps a repair of another away");
        drop(first);
        assert!(begin("b"));
        let refused = all.claim("demo", "a", CRITICAL).err();
        assert_eq!(
            refused,
            Some(Refusal::Critical { machine: "b".to_owned(), kind: Kind::Repair })
        );
        let same = all.claim("demo", "b", CRITICAL).err();
        assert_eq!(same, Some(Refusal::SameMachine(Kind::Repair)));
        assert!(all.claim("demo", "c", WORKER).is_ok());
        assert!(all.claim("other", "a", CRITICAL).is_ok(), "each cluster has its own");
        all.decide_repairs("demo", |_| ((), Vec::new()));
        assert!(all.claim("demo", "a", CRITICAL).is_ok());
    }

    #[test]
    fn a_machine_is_free_when_the_last_who_shares_it_is_done() {
        let all = opened();
        let (one, two) = (all.claim("demo", "a", CRITICAL), all.claim("demo", "a", CRITICAL));
        drop(one);
        assert!(all.claim("demo", "b", CRITICAL).is_err());
        drop(two);
        assert!(all.claim("demo", "b", CRITICAL).is_ok());
    }

    #[test]
    fn whoever_waits_is_told_of_changes_and_only_of_those() {
        let all = opened();
        let mut changed = all.changed("demo");
        all.decide_repairs("demo", |_| ((), Vec::new()));
        assert!(!changed.has_changed().unwrap());
        let claim = all.claim("demo", "a", WORKER);
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        drop(claim);
        assert!(changed.has_changed().unwrap());
    }

    #[tokio::test]
    async fn nobody_is_let_in_before_all_that_was_out_is_known_under_the_present_epoch() {
        let all = Disruptions::default();
        assert!(!is_open(&all).await, "it is nobody's");
        all.own("demo", 1);
        all.loaded("demo", 1, Part::Drains);
        assert!(!is_open(&all).await);
        all.loaded("demo", 1, Part::Repairs);
        assert!(!is_open(&all).await);
        all.loaded("demo", 1, Part::Operations);
        assert!(is_open(&all).await);

        let held = all.restore("demo", "a", CRITICAL);
        all.disown("demo", 1);
        assert!(!is_open(&all).await, "it is another's");
        all.own("demo", 3);
        all.loaded("demo", 1, Part::Drains);
        all.loaded("demo", 1, Part::Repairs);
        all.loaded("demo", 1, Part::Operations);
        assert!(!is_open(&all).await, "an earlier task says nothing about now");
        all.loaded("demo", 3, Part::Drains);
        all.loaded("demo", 3, Part::Repairs);
        all.loaded("demo", 3, Part::Operations);
        assert!(is_open(&all).await);
        assert!(all.claim("demo", "b", CRITICAL).is_err(), "what is held still counts");
        drop(held);
        all.disown("demo", 3);
        assert!(all.clusters.lock().unwrap().is_empty(), "nothing is kept of it");
    }
}
