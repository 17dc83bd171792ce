//! The machines of one cluster that operations keep out of service.

use std::collections::HashMap;

use wharf_core::{
    agents::NodeOperation,
    disruption::{Disruption, Refusal},
};

use crate::disruptions::{Claim, Disruptions};

/// By the node's name: a node has one operation, and as long as that is out, one claim.
#[derive(Default)]
pub struct Claims(HashMap<String, Claim>);

impl Claims {
    /// Makes them those of the operations that are out by what is stored, whoever stored it. What was let
    /// in counts before anybody new is let in.
    pub fn follow(&mut self, guard: &Disruptions, operations: &[&NodeOperation]) {
        operations.iter().for_each(|operation| self.note(guard, operation));
        self.0.retain(|node, _| operations.iter().any(|operation| operation.node == *node));
    }

    /// The same for one. An operation that took the place of another which was out has its claim: the
    /// machine was never back in between.
    pub fn note(&mut self, guard: &Disruptions, operation: &NodeOperation) {
        let NodeOperation { cluster, node, machine, .. } = operation;
        if !operation.is_out() {
            self.0.remove(node);
        } else if !self.0.contains_key(node) {
            self.0.insert(node.clone(), guard.restore(cluster, machine, disruption(operation)));
        }
    }

    /// Asks the guard for an operation that is not out yet, and keeps the claim until it is stored that
    /// it was let in.
    pub fn ask(&mut self, guard: &Disruptions, operation: &NodeOperation) -> Result<(), Refusal> {
        let NodeOperation { cluster, node, machine, .. } = operation;
        let claim = guard.claim(cluster, machine, disruption(operation))?;
        self.0.insert(node.clone(), claim);
        Ok(())
    }
}

fn disruption(operation: &NodeOperation) -> Disruption {
    Disruption { kind: operation.kind, critical: operation.critical }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use wharf_core::{disruption::Kind, operation::OperationState};

    use super::*;

    /// Asked for and not let in yet.
    fn operation(node: &str, kind: Kind) -> NodeOperation {
        let id = format!("{} of {node}", kind.name());
        let asked_for = NodeOperation::new("demo", node, &id, kind, Timestamp::UNIX_EPOCH);
        NodeOperation { critical: true, ..asked_for }
    }

    fn let_in(node: &str, kind: Kind) -> NodeOperation {
        NodeOperation { admitted: true, ..operation(node, kind) }
    }

    /// It was shut down and is not back.
    fn off(node: &str) -> NodeOperation {
        let state = OperationState::Succeeded;
        NodeOperation { state, away: true, ..let_in(node, Kind::Shutdown) }
    }

    fn is_free(guard: &Disruptions) -> bool {
        let other = Disruption { kind: Kind::Repair, critical: true };
        guard.claim("demo", "another machine", other).is_ok()
    }

    #[test]
    fn what_is_out_by_its_record_counts_and_nothing_else() {
        let ended = NodeOperation { away: false, ..off("1") };
        let rows = [
            (operation("1", Kind::Reboot), true),
            (let_in("1", Kind::Reboot), false),
            (off("1"), false),
            (ended, true),
        ];
        let (guard, mut claims) = (Disruptions::default(), Claims::default());
        // Each after each other: a machine that was out before is out no longer than its record says.
        for (before, _) in &rows {
            for (after, free) in &rows {
                claims.follow(&guard, &[before]);
                claims.follow(&guard, &[after]);
                assert_eq!(is_free(&guard), *free, "{after:?} after {before:?}");
            }
        }
        claims.follow(&guard, &[&off("1")]);
        claims.follow(&guard, &[]);
        assert!(is_free(&guard), "the node has left the cluster");
    }

    #[test]
    fn an_operation_of_another_kind_is_let_in_after_a_shutdown_and_its_end_frees_the_machine() {
        let (guard, mut claims) = (Disruptions::default(), Claims::default());
        claims.note(&guard, &off("1"));
        let reboot = operation("1", Kind::Reboot);
        claims.note(&guard, &reboot);
        assert_eq!(claims.ask(&guard, &reboot), Ok(()), "nothing is left of the shutdown");
        let admitted = let_in("1", Kind::Reboot);
        claims.note(&guard, &admitted);
        assert!(!is_free(&guard));
        let state = OperationState::Succeeded;
        claims.note(&guard, &NodeOperation { state, ..admitted });
        assert!(is_free(&guard));
    }

    #[test]
    fn a_machine_that_is_out_all_the_time_is_claimed_all_the_time() {
        let (guard, mut claims) = (Disruptions::default(), Claims::default());
        claims.note(&guard, &off("1"));
        let mut changed = guard.changed("demo");
        changed.mark_unchanged();
        claims.note(&guard, &let_in("1", Kind::Reboot));
        assert!(!changed.has_changed().unwrap(), "nobody else was ever asked in between");
        assert!(!is_free(&guard));
    }
}
