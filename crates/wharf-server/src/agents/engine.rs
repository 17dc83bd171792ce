//! One task for each cluster that this server owns: it lets operations on nodes in, and follows them
//! by what the agents say.
//!
//! Flow: read the records, decide about each ([`decide_operation`]), write, wait for the next change.
//! A crash anywhere is a new look at the records. Whatever was let in counts as out of service
//! before anybody new is let in.

mod claims;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use wharf_core::{
    agents::{AgentRecord, Next, NodeOperation, Returned, Seen, decide_operation},
    cluster::ClusterRecord,
    disruption::Kind,
    operation::{OperationRecord, OperationState},
};
use wharf_store::{Outcome, Stored, Txn, Watch, typed::key_of};

use self::claims::Claims;
use super::{Known, known, operations::journal};
use crate::{
    access::new_id,
    clusters::{self, nodes, operations},
    disruptions::Part,
    engine::{Fenced, FencedError, Member, OwnedCluster},
    error::chain,
};

/// For one look at a cluster; the operations of its other nodes wait for it.
const LOOK: Duration = Duration::from_secs(10);

/// Carries out the operations of a cluster's nodes until told to stop.
pub async fn keep(owned: OwnedCluster, stop: CancellationToken) {
    let fenced = owned.fenced();
    let mut engine = Engine { owned, fenced, claims: Claims::default() };
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            Err(error) = engine.follow() => error,
        };
        if !engine.owned.goes_on(ended, "operations of nodes", &stop).await {
            return;
        }
    }
}

struct Engine {
    owned: OwnedCluster,
    fenced: Fenced,
    claims: Claims,
}

impl Engine {
    /// Never ends but by an error.
    async fn follow(&mut self) -> Result<std::convert::Infallible, FencedError> {
        let OwnedCluster { app, cluster, epoch } = self.owned.clone();
        let now = app.store.revision().await?;
        let watch = async |prefix: String| app.store.watch(&prefix, now).await;
        let mut watches = [
            watch(key_of::<NodeOperation>(&NodeOperation::key(&cluster, ""))).await?,
            watch(key_of::<AgentRecord>(&AgentRecord::key(&cluster, ""))).await?,
            watch(key_of::<Member>("")).await?,
        ];
        let mut guard = app.disruptions.changed(&cluster);
        let all = known(&app.store, &cluster).await?;
        self.follow_claims(&all);
        app.disruptions.loaded(&cluster, epoch, Part::Operations);
        app.disruptions.opened(&cluster).await;
        loop {
            guard.mark_unchanged();
            let all = known(&app.store, &cluster).await?;
            let wake = self.look(&all).await?;
            tokio::select! {
                changed = next(&mut watches) => changed?,
                _ = guard.changed() => {}
                () = tokio::time::sleep(wake.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    fn follow_claims(&mut self, all: &Known) {
        let operations: Vec<_> = all.operations.iter().map(|stored| &stored.value).collect();
        self.claims.follow(&self.owned.app.disruptions, &operations);
    }

    /// Looks at all operations; when to look again although nothing changed.
    async fn look(&mut self, all: &Known) -> Result<Option<Duration>, FencedError> {
        let mut wake: Option<Duration> = None;
        self.follow_claims(all);
        for operation in &all.operations {
            let silent = AgentRecord::default();
            let agent = all.agents.iter().find(|agent| agent.node == operation.value.node);
            let agent = agent.unwrap_or(&silent);
            let linked = agent.is_linked(&all.members);
            if let Some(taken) = operation.value.taken_over(agent) {
                // That is a change, and so it is looked at again.
                self.write(operation, &taken, None).await?;
                continue;
            }
            let decide = |returned: &Returned| {
                decide_operation(&operation.value, agent, linked, returned, Timestamp::now())
            };
            let mut next = decide(&Returned::NotAsked);
            if next == Next::LookForReturn {
                next = decide(&self.returned(&operation.value, agent).await);
            }
            if let Next::WaitFor(time, _) | Next::LookAgain(time) = &next {
                wake = Some(wake.map_or(*time, |known| known.min(*time)));
            }
            self.act(operation, next).await?;
        }
        for agent in &all.agents {
            let mut operations = all.operations.iter().map(|operation| &operation.value);
            let last = operations.find(|operation| operation.node == agent.node);
            let busy = last.is_some_and(NodeOperation::is_running);
            // What it said before its link was lost may not hold any more.
            let kind = agent.wants_by_itself(last).filter(|_| agent.reported);
            if let Some(kind) = kind.filter(|_| !busy && agent.is_linked(&all.members)) {
                self.let_in_local(agent, kind).await?;
            }
        }
        Ok(wake)
    }

    async fn act(&mut self, stored: &Stored<NodeOperation>, next: Next) -> Result<(), FencedError> {
        let old = &stored.value;
        match next {
            Next::Ask => match self.claims.ask(&self.owned.app.disruptions, old) {
                Ok(()) => {
                    let new = NodeOperation { admitted: true, reason: None, ..old.clone() };
                    self.write(stored, &new, Some("let in by the cluster's guard")).await
                }
                Err(refusal) => self.wait(stored, refusal.to_string()).await,
            },
            Next::Wait(reason) | Next::WaitFor(_, reason) => self.wait(stored, reason).await,
            Next::End { state, reason, away } => {
                let ended_at = Some(Timestamp::now());
                let new = NodeOperation { state, reason, away, ended_at, ..old.clone() };
                self.write(stored, &new, None).await
            }
            Next::Back => {
                let new = NodeOperation { away: false, ..old.clone() };
                self.write(stored, &new, None).await
            }
            Next::LookForReturn | Next::LookAgain(_) | Next::Nothing => Ok(()),
        }
    }

    /// Asks the cluster whether it has the machine back.
    async fn returned(&self, operation: &NodeOperation, agent: &AgentRecord) -> Returned {
        let OwnedCluster { app, cluster, .. } = &self.owned;
        let looked = async {
            let record = app.store.read::<ClusterRecord>(cluster).await.map_err(|it| chain(&it))?;
            let Some(record) = record else { return Err("it is gone".to_owned()) };
            let api = clusters::connect(app, &record.value).await?;
            let node = api.look_at_node(&operation.node).await.map_err(|it| chain(&it))?;
            let etcd = if operation.critical { api.etcd_health().await } else { BTreeMap::new() };
            Ok(node.map(|node| {
                let ready = node.facts.unready_since.is_none();
                Seen { boot_id: node.boot_id, ready, etcd }
            }))
        };
        match tokio::time::timeout(LOOK, looked).await {
            Err(_) => Returned::NotYet("the cluster does not answer".to_owned()),
            Ok(Err(reason)) => Returned::NotYet(format!("the cluster does not answer: {reason}")),
            Ok(Ok(seen)) => Returned::judge(seen.as_ref(), &agent.boot_id),
        }
    }

    async fn wait(
        &mut self,
        stored: &Stored<NodeOperation>,
        reason: String,
    ) -> Result<(), FencedError> {
        if stored.value.reason.as_deref() == Some(reason.as_str()) {
            return Ok(());
        }
        let new = NodeOperation { reason: Some(reason.clone()), ..stored.value.clone() };
        self.write(stored, &new, Some(&reason)).await
    }

    /// Writes the record and its journal, and what follows for the guard. That somebody else has changed
    /// the record meanwhile is no fault: it is looked at again.
    async fn write(
        &mut self,
        old: &Stored<NodeOperation>,
        new: &NodeOperation,
        line: Option<&str>,
    ) -> Result<(), FencedError> {
        let now = Timestamp::now();
        let mut txn = Txn::new().replace(old, new, now)?;
        if let Some(journal) = self.owned.app.store.read::<OperationRecord>(&new.id).await? {
            let mut record = journal.value.clone();
            line.into_iter().for_each(|line| record.log(now, line));
            if !new.is_running() && record.state == OperationState::Running {
                end_journal(&mut record, new, now);
            }
            txn = txn.replace(&journal, &record, now)?;
        }
        if let Outcome::Committed(_) = self.fenced.try_commit(&txn).await? {
            let OwnedCluster { app, cluster, .. } = &self.owned;
            self.claims.note(&app.disruptions, new);
            if old.value.is_out() && !new.is_out() {
                app.nudge(cluster);
            }
        }
        Ok(())
    }

    /// A drain that somebody asked for on the node itself waits for the guard, too.
    async fn let_in_local(&self, agent: &AgentRecord, kind: Kind) -> Result<(), FencedError> {
        let OwnedCluster { app, cluster, .. } = &self.owned;
        let now = Timestamp::now();
        let Some(record) = app.store.read::<ClusterRecord>(cluster).await? else { return Ok(()) };
        let asked_for = nodes::asked_for(&record.value);
        let Some(node) = asked_for.iter().find(|node| node.name == agent.node) else {
            return Ok(());
        };
        let key = NodeOperation::key(cluster, &agent.node);
        let old = app.store.read::<NodeOperation>(&key).await?;
        // Somebody has asked for one meanwhile.
        if old.as_ref().is_some_and(|old| old.value.is_running()) {
            return Ok(());
        }
        let operation = NodeOperation {
            machine: node.machine(),
            critical: node.is_critical(),
            local: true,
            requested_by: "the node itself".to_owned(),
            // A machine that is out already does not go out for it.
            admitted: old.as_ref().is_some_and(|old| old.value.is_out()),
            taken_in: Some(agent.boot_id.clone()).filter(|boot_id| !boot_id.is_empty()),
            ..NodeOperation::new(cluster, &agent.node, &new_id(now), kind, now)
        };
        let txn = operations::create(Txn::new(), &operation.id, &journal(&operation, now), now)?;
        let txn = match &old {
            Some(old) => txn.replace(old, &operation, now)?,
            None => txn.create(&key, &operation, now)?,
        };
        self.fenced.try_commit(&txn).await.map(drop)
    }
}

fn end_journal(record: &mut OperationRecord, operation: &NodeOperation, now: Timestamp) {
    record.state = operation.state;
    record.ended_at = Some(now);
    let reason = operation.reason.clone();
    let text = match (operation.state, &reason) {
        (OperationState::Failed, Some(reason)) => format!("failed: {reason}"),
        (OperationState::Succeeded, Some(reason)) => format!("done: {reason}"),
        (OperationState::Canceled, Some(reason)) => format!("canceled: {reason}"),
        (state, _) => state.name().to_owned(),
    };
    record.log(now, text);
    if operation.state == OperationState::Failed {
        record.error = reason;
    }
}

/// Waits until one of the prefixes changes.
async fn next(watches: &mut [Watch; 3]) -> Result<(), FencedError> {
    let [operations, agents, members] = watches;
    tokio::select! {
        changes = operations.next() => changes.map(drop)?,
        changes = agents.next() => changes.map(drop)?,
        changes = members.next() => changes.map(drop)?,
    }
    Ok(())
}
