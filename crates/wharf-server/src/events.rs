//! The event bus: every change of a record, published to whoever listens.
//!
//! One task watches the store and turns changes into [`Published`] events, once for all listeners.
//! A listener that cannot keep up falls out of the ring, learns what it lost, and never delays a
//! writer or another listener. What the store keeps for itself (`meta/`) and the audit log, which
//! has its own list, are not published.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use wharf_api::event::Event;
use wharf_core::access::Role;
use wharf_store::{Change, Revision, Store, StoreError, StoreResult, Watch, typed::Envelope};

/// How far a listener may fall behind before it loses events; some hundred kilobytes in all.
const RING: usize = 4096;
/// How long to wait before a watch that broke is opened again.
const RETRY: Duration = Duration::from_millis(500);

/// An event as it goes to every listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub event: Event,
    /// The event as JSON, encoded once.
    pub json: String,
    /// All events up to this revision have been seen once this one has: where to resume. It is
    /// below the event's own revision while others of the same transaction follow.
    pub complete: Revision,
}

impl Published {
    /// Viewers see what belongs to their clusters; the rest is for admins.
    pub fn is_for(&self, role: &Role) -> bool {
        match (role, &self.event.cluster) {
            (Role::Admin, _) => true,
            (Role::Viewer { .. }, Some(cluster)) => role.sees_cluster(cluster),
            (Role::Viewer { .. }, None) => false,
        }
    }
}

/// Where listeners subscribe.
#[derive(Clone)]
pub struct Hub {
    sender: broadcast::Sender<Live>,
    /// Everything up to here has been sent or is being sent.
    position: Arc<AtomicU64>,
    store: Store,
}

/// What goes to all listeners.
#[derive(Clone)]
enum Live {
    Event(Arc<Published>),
    /// The history was compacted before it could be read: events up to here are missing.
    Gap(Revision),
}

/// What a listener gets next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    Event(Arc<Published>),
    /// Events were lost; the next ones are later than this revision.
    Lost {
        resumed_at: Revision,
        reason: &'static str,
    },
}

const FORGOTTEN: &str = "the history does not reach back that far";

impl Hub {
    pub fn new(store: Store, position: Revision) -> Self {
        let (sender, _) = broadcast::channel(RING);
        Self { sender, position: Arc::new(AtomicU64::new(position.0)), store }
    }

    fn position(&self) -> Revision {
        Revision(self.position.load(Ordering::Acquire))
    }

    /// Everything after `after`; without it, everything from now on.
    pub async fn subscribe(&self, after: Option<Revision>) -> StoreResult<Subscription> {
        // First the live feed, then the position: what is sent from here on is in the feed, what
        // was sent before is up to the position, and what is in both is passed over.
        let live = self.sender.subscribe();
        let here = self.position();
        let mut subscription = Subscription {
            hub: self.clone(),
            live,
            seen: here,
            begun: here,
            replay: None,
            backlog: Vec::new().into_iter(),
            loss: None,
        };
        // The bus may be a moment behind the store, which has told its writers already.
        let now = here.max(self.store.revision().await?);
        subscription.begun = now;
        match after {
            None => subscription.seen = now,
            Some(after) if after > now => {
                subscription.lose(now, "that revision is not of this store");
            }
            Some(after) if after < here => match self.store.watch("", after).await {
                Ok(watch) => subscription.replay = Some(Replay { watch, reached: after }),
                Err(StoreError::Compacted { .. }) => subscription.lose(here, FORGOTTEN),
                Err(error) => return Err(error),
            },
            Some(after) => subscription.seen = after,
        }
        Ok(subscription)
    }

    /// Publishes the store's changes until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.publish_for_ever() => {}
        }
    }

    async fn publish_for_ever(&self) {
        loop {
            let error = match self.store.watch("", self.position()).await {
                Ok(mut watch) => loop {
                    match watch.next().await {
                        Ok(changes) => self.publish(&changes),
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            match error {
                StoreError::Closed => return,
                StoreError::Compacted { oldest } => {
                    tracing::error!(%oldest, "events were lost: the history is gone");
                    let resumed_at = Revision(oldest.0.saturating_sub(1));
                    self.position.store(resumed_at.0, Ordering::Release);
                    self.send(Live::Gap(resumed_at));
                }
                error => {
                    tracing::warn!(?error, "the watch of the store broke; it is opened again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// The position goes first: whoever subscribes while the events are on their way reads them
    /// from the store.
    fn publish(&self, changes: &[Change]) {
        if let Some(last) = changes.last() {
            self.position.store(last.revision().0, Ordering::Release);
        }
        if self.sender.receiver_count() == 0 {
            return;
        }
        for published in published_of(changes, Timestamp::now()) {
            self.send(Live::Event(Arc::new(published)));
        }
    }

    fn send(&self, live: Live) {
        // An error means that nobody listens, and then nobody misses it.
        self.sender.send(live).ok();
    }
}

/// One listener's place in the stream.
pub struct Subscription {
    hub: Hub,
    live: broadcast::Receiver<Live>,
    /// Live events up to here are passed over: they are replayed, or lost.
    seen: Revision,
    /// What the store was at when the listener came.
    begun: Revision,
    replay: Option<Replay>,
    backlog: std::vec::IntoIter<Published>,
    loss: Option<Delivery>,
}

/// What happened before the live feed, read from the store's history page by page.
struct Replay {
    watch: Watch,
    reached: Revision,
}

impl Subscription {
    /// Whether an event happened after the listener came, and is not told from the past.
    pub fn is_news(&self, event: &Event) -> bool {
        event.revision > self.begun.0
    }

    /// Where a listener that has seen nothing yet would resume.
    pub fn position(&self) -> Revision {
        self.replay.as_ref().map_or(self.seen, |replay| replay.reached)
    }

    /// The next event; `None` when the server stops.
    pub async fn next(&mut self) -> StoreResult<Option<Delivery>> {
        loop {
            if let Some(loss) = self.loss.take() {
                return Ok(Some(loss));
            }
            if let Some(published) = self.backlog.next() {
                return Ok(Some(Delivery::Event(Arc::new(published))));
            }
            if self.replay.is_some() {
                self.turn_page().await?;
                continue;
            }
            match self.live.recv().await {
                Ok(Live::Event(published)) if published.event.revision <= self.seen.0 => {}
                Ok(Live::Event(published)) => return Ok(Some(Delivery::Event(published))),
                Ok(Live::Gap(resumed_at)) if resumed_at <= self.seen => {}
                Ok(Live::Gap(resumed_at)) => self.lose(resumed_at, FORGOTTEN),
                Err(broadcast::error::RecvError::Closed) => return Ok(None),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.live = self.hub.sender.subscribe();
                    self.lose(self.hub.position(), "the listener was too slow");
                }
            }
        }
    }

    /// Reads the next part of the history, up to where the live feed begins.
    async fn turn_page(&mut self) -> StoreResult<()> {
        let Some(replay) = &mut self.replay else { return Ok(()) };
        if replay.reached >= self.seen {
            self.replay = None;
            return Ok(());
        }
        match replay.watch.next().await {
            Ok(changes) => {
                replay.reached = changes.last().map_or(replay.reached, Change::revision);
                // What is later than the live feed's beginning comes from there.
                let until = self.seen;
                let page = changes.into_iter().filter(|change| change.revision() <= until);
                let page: Vec<Change> = page.collect();
                self.backlog = published_of(&page, Timestamp::now()).into_iter();
                Ok(())
            }
            Err(StoreError::Compacted { .. }) => {
                self.replay = None;
                self.lose(self.seen, FORGOTTEN);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn lose(&mut self, resumed_at: Revision, reason: &'static str) {
        self.seen = resumed_at;
        self.loss = Some(Delivery::Lost { resumed_at, reason });
    }
}

/// What the bus wants to know of a record.
#[derive(Deserialize)]
struct Glimpse {
    #[serde(default)]
    cluster: Option<String>,
}

/// Turns changes, whole transactions in order, into events. `now` is the time of those that carry
/// none: keys that vanished with their lease.
fn published_of(changes: &[Change], now: Timestamp) -> Vec<Published> {
    let mut published = Vec::new();
    for txn in changes.chunk_by(|a, b| a.revision() == b.revision()) {
        let time = txn.iter().find_map(written_at).unwrap_or(now);
        let mut of_txn: Vec<Published> =
            txn.iter().filter_map(|change| event_of(change, time)).collect();
        if let Some(last) = of_txn.last_mut() {
            last.complete = Revision(last.event.revision);
        }
        published.append(&mut of_txn);
    }
    published
}

fn written_at(change: &Change) -> Option<Timestamp> {
    match change {
        Change::Put(entry) => {
            serde_json::from_slice::<Envelope<serde::de::IgnoredAny>>(&entry.value)
                .ok()
                .map(|envelope| envelope.at)
        }
        Change::Deleted { .. } => None,
    }
}

fn event_of(change: &Change, time: Timestamp) -> Option<Published> {
    let (kind, id) = change.key().split_once('/')?;
    // What was seen of the nodes is written with `health`, which tells of both; so is whose an
    // operation is with the operation.
    if matches!(kind, "meta" | "audit" | "vault" | "nodehealth" | "operationof") {
        return None;
    }
    let revision = change.revision();
    let own_cluster = match kind {
        "cluster" => Some(id),
        // Below the name of its cluster.
        "repair" | "drain" => id.split_once('/').map(|(cluster, _)| cluster),
        _ => None,
    };
    let own_cluster = own_cluster.map(str::to_owned);
    let (type_, cluster) = match change {
        Change::Deleted { .. } => (default_type(kind, "deleted"), own_cluster),
        Change::Put(entry) => {
            let envelope: Option<Envelope<Glimpse>> = serde_json::from_slice(&entry.value).ok();
            let verb = if entry.created == entry.modified { "created" } else { "updated" };
            let named = envelope.as_ref().and_then(|e| e.event.clone());
            let type_ = named.unwrap_or_else(|| default_type(kind, verb));
            (type_, own_cluster.or_else(|| envelope.and_then(|e| e.data.cluster)))
        }
    };
    let event =
        Event { type_, cluster, resource: change.key().to_owned(), revision: revision.0, time };
    let json = serde_json::to_string(&event).ok()?;
    Some(Published { event, json, complete: Revision(revision.0.saturating_sub(1)) })
}

/// `cluster.created` and `cluster.deleted` have a meaning of their own, told by the one who writes
/// the record: the cluster runs, or its deletion began. The record's coming and going says neither.
fn default_type(kind: &str, verb: &str) -> String {
    match (kind, verb) {
        ("cluster", "created") => "cluster.updated".to_owned(),
        ("cluster", "deleted") => "cluster.removed".to_owned(),
        _ => format!("{kind}.{verb}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use wharf_core::access::Scope;
    use wharf_store::Entry;

    use super::*;

    fn put(key: &str, created: u64, modified: u64, event: &str, data: &str) -> Change {
        let event =
            if event.is_empty() { String::new() } else { format!("\"event\":\"{event}\",") };
        Change::Put(Entry {
            key: key.to_owned(),
            value: format!(r#"{{"schema":1,"at":"2026-01-02T03:04:05Z",{event}"data":{data}}}"#)
                .into_bytes(),
            created: Revision(created),
            modified: Revision(modified),
        })
    }

    fn deleted(key: &str, revision: u64) -> Change {
        Change::Deleted { key: key.to_owned(), revision: Revision(revision) }
    }

    #[test]
    fn changes_become_events_with_type_cluster_and_time() {
        let changes = [
            put("user/a", 1, 1, "", "{}"),
            put("user/a", 1, 2, "", "{}"),
            put("cluster/c", 3, 3, "", "{}"),
            put("cluster/c", 3, 4, "cluster.created", "{}"),
            put("operation/7", 5, 5, "", r#"{"cluster":"c"}"#),
            deleted("user/a", 6),
            put("audit/1", 6, 6, "", "{}"),
            put("meta/schema", 7, 7, "", "{}"),
            put("audit/2", 8, 8, "", "{}"),
            deleted("cluster/c", 8),
        ];
        let later = "2030-01-01T00:00:00Z".parse().unwrap();
        let events: Vec<(String, Option<String>, u64)> = published_of(&changes, later)
            .into_iter()
            .map(|p| {
                assert_eq!(p.event.time.to_string(), "2026-01-02T03:04:05Z", "{p:?}");
                (p.event.type_, p.event.cluster, p.event.revision)
            })
            .collect();
        let c = Some("c".to_owned());
        assert_eq!(
            events,
            [
                ("user.created".to_owned(), None, 1),
                ("user.updated".to_owned(), None, 2),
                ("cluster.updated".to_owned(), c.clone(), 3),
                ("cluster.created".to_owned(), c.clone(), 4),
                ("operation.created".to_owned(), c, 5),
                ("user.deleted".to_owned(), None, 6),
                ("cluster.removed".to_owned(), Some("c".to_owned()), 8),
            ]
        );
    }

    #[test]
    fn a_resume_point_never_splits_a_transaction() {
        let changes =
            [put("user/a", 4, 4, "", "{}"), put("user/b", 4, 4, "", "{}"), deleted("user/c", 5)];
        let complete: Vec<u64> =
            published_of(&changes, Timestamp::UNIX_EPOCH).iter().map(|p| p.complete.0).collect();
        assert_eq!(complete, [3, 4, 5]);
    }

    #[test]
    fn viewers_see_only_their_clusters() {
        let changes = [
            put("user/a", 1, 1, "", "{}"),
            put("cluster/c", 2, 2, "", "{}"),
            put("cluster/d", 3, 3, "", "{}"),
        ];
        let events = published_of(&changes, Timestamp::UNIX_EPOCH);
        let seen = |role: &Role| events.iter().map(|e| e.is_for(role)).collect::<Vec<_>>();
        assert_eq!(seen(&Role::Admin), [true, true, true]);
        assert_eq!(seen(&Role::Viewer { clusters: Scope::All }), [false, true, true]);
        let only_c = Scope::Only(BTreeSet::from(["c".to_owned()]));
        assert_eq!(seen(&Role::Viewer { clusters: only_c }), [false, true, false]);
    }
}
