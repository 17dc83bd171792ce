//! The etcd back end, for several servers on one store.
//!
//! All keys lie below `/wharf/`. One endpoint is used at a time; when it fails, the next that
//! answers takes its place (`connect.rs`). etcd's revisions are ours plus nothing, except in a
//! store that was restored from a backup: there the key `meta/offset` holds what to add, so that
//! revisions never fall behind those that the backed-up store had handed out.

mod connect;
mod errors;
mod watch;

use std::{sync::Arc, time::Duration};

use etcd_client::{
    CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder, SortTarget,
    TxnOp,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;

pub(crate) use self::{connect::REQUEST_TIMEOUT, watch::EtcdWatch};
use self::{
    connect::{Connections, Repeat},
    errors::code_of,
};
use crate::{
    error::{StoreError, StoreResult},
    limits::prefix_end,
    store::{EtcdOptions, HISTORY_REVISIONS},
    types::{Compare, Entry, LeaseId, Op, Outcome, Page, RawEntry, RawListing, Revision, Txn},
};

pub(crate) const ROOT: &str = "/wharf/";

/// Relative to [`ROOT`]: what to add to etcd's revisions; written by a restore.
pub(crate) const OFFSET_KEY: &str = "meta/offset";
/// Relative to [`ROOT`]: there while a restore is under way.
pub(crate) const RESTORING_KEY: &str = "meta/restoring";

/// Entries in one answer of etcd; longer lists take several, all at one revision.
const CHUNK: usize = 500;

/// How often this server looks whether history can be forgotten. A user who is not etcd's root may
/// not do that; then it is left to etcd's own `--auto-compaction-…` flags.
const COMPACT_INTERVAL: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub(crate) struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    connections: Connections,
    offset: u64,
    closed: CancellationToken,
    /// Ends the background work with the last handle.
    _end: DropGuard,
}

impl Etcd {
    pub(crate) async fn open(endpoints: &[String], options: &EtcdOptions) -> StoreResult<Etcd> {
        options.validate()?;
        let connections = Connections::new(endpoints, options)?;
        let offset = read_offset(&connections).await?;
        let closed = CancellationToken::new();
        let end = closed.clone().drop_guard();
        let shared = Arc::new(Shared { connections, offset, closed: closed.clone(), _end: end });
        let weak = Arc::downgrade(&shared);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(COMPACT_INTERVAL);
            ticks.tick().await;
            while closed.run_until_cancelled(ticks.tick()).await.is_some() {
                let Some(shared) = weak.upgrade() else { return };
                if let Err(error) = (Etcd { shared }).compact(HISTORY_REVISIONS).await {
                    tracing::debug!(%error, "etcd's history was not compacted");
                }
            }
        });
        Ok(Etcd { shared })
    }

    pub(crate) async fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        let mut found = self.range(full_key(key), GetOptions::new()).await?;
        found.take_kvs().into_iter().next().map(|kv| self.entry(kv)).transpose()
    }

    pub(crate) async fn list(&self, prefix: &str, page: &Page) -> StoreResult<RawListing> {
        loop {
            match self.list_at(prefix, page, None).await {
                // The revision was compacted between two chunks: begin again at a newer one.
                Err(StoreError::Compacted { .. }) => tracing::debug!("a long list begins again"),
                done => return done,
            }
        }
    }

    /// A part of a list as it stood at a revision, or stands now. The history may be gone meanwhile
    /// ([`StoreError::Compacted`]).
    pub(crate) async fn list_at(
        &self,
        prefix: &str,
        page: &Page,
        revision: Option<Revision>,
    ) -> StoreResult<RawListing> {
        let mut range = Range::of(prefix, page);
        if range.start >= range.end {
            let revision = match revision {
                Some(revision) => revision,
                None => self.revision().await?,
            };
            return Ok(RawListing { entries: Vec::new(), revision, more: false });
        }
        let mut listing = RawListing { entries: Vec::new(), revision: Revision(0), more: true };
        // etcd takes 0 as the present.
        let mut at = revision.and_then(|revision| self.theirs(revision)).unwrap_or(0);
        loop {
            let wanted = (page.limit - listing.entries.len()).min(CHUNK);
            let options = range.options(wanted, page.descending).with_revision(at);
            let mut found = self.range(range.start.clone(), options).await?;
            at = if at == 0 { header_revision(found.header())? } else { at };
            listing.revision = self.ours(at);
            let kvs = found.take_kvs();
            listing.more = found.count() > kvs.len() as i64;
            if let Some(last) = kvs.last() {
                range.continue_after(last.key(), page.descending);
            }
            let is_last = !listing.more || kvs.is_empty();
            for kv in kvs {
                let leased = kv.lease() != 0;
                listing.entries.push(RawEntry { entry: self.entry(kv)?, leased });
            }
            if is_last || listing.entries.len() >= page.limit {
                return Ok(listing);
            }
        }
    }

    pub(crate) async fn commit(&self, txn: &Txn) -> StoreResult<Outcome> {
        self.ensure_open()?;
        let mut compares = Vec::with_capacity(txn.compares.len());
        for compare in &txn.compares {
            match self.compare(compare) {
                Some(compare) => compares.push(compare),
                None => return Ok(Outcome::Refused),
            }
        }
        let ops: Vec<TxnOp> = txn.ops.iter().map(operation).collect();
        let request = etcd_client::Txn::new().when(compares).and_then(ops);
        let result = self
            .shared
            .connections
            .call(Repeat::OnlyIfNeverSent, |client| {
                let request = request.clone();
                async move { client.kv_client().txn(request).await }
            })
            .await;
        let response = match result {
            Ok(response) => response,
            // The only thing a transaction can fail to find is a lease.
            Err(error) if code_of(&error) == Some(Code::NotFound) => {
                return Err(StoreError::LeaseGone);
            }
            // Without a user it is not the login: this etcd has lower limits than ours.
            Err(error)
                if code_of(&error) == Some(Code::InvalidArgument)
                    && !self.shared.connections.has_user() =>
            {
                return Err(StoreError::BadTxn(format!("etcd does not take it ({error})")));
            }
            Err(error) => return Err(self.shared.connections.explain(error)),
        };
        if !response.succeeded() {
            return Ok(Outcome::Refused);
        }
        Ok(Outcome::Committed(self.ours(header_revision(response.header())?)))
    }

    /// `None` if the condition names a revision that this etcd cannot have.
    fn compare(&self, compare: &Compare) -> Option<etcd_client::Compare> {
        Some(match compare {
            Compare::Absent(key) => {
                etcd_client::Compare::create_revision(full_key(key), CompareOp::Equal, 0)
            }
            Compare::ModifiedAt(key, at) => etcd_client::Compare::mod_revision(
                full_key(key),
                CompareOp::Equal,
                self.theirs(*at)?,
            ),
            Compare::CreatedAt(key, at) => etcd_client::Compare::create_revision(
                full_key(key),
                CompareOp::Equal,
                self.theirs(*at)?,
            ),
        })
    }

    pub(crate) async fn revision(&self) -> StoreResult<Revision> {
        let found = self.range(full_key(""), GetOptions::new().with_count_only()).await?;
        Ok(self.ours(header_revision(found.header())?))
    }

    pub(crate) fn watch(&self, prefix: &str, after: Revision) -> EtcdWatch {
        EtcdWatch::new(self.clone(), prefix, after)
    }

    pub(crate) async fn grant_lease(&self, ttl: Duration) -> StoreResult<LeaseId> {
        // etcd counts whole seconds; rounding up never ends a lease early.
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let granted = self
            .call(Repeat::Always, |client| async move {
                client.lease_client().grant(seconds, None).await
            })
            .await?;
        Ok(LeaseId(granted.id()))
    }

    pub(crate) async fn keep_alive(&self, lease: LeaseId, patience: Duration) -> StoreResult<()> {
        self.ensure_open()?;
        let kept = self
            .shared
            .connections
            .call_within(patience, Repeat::Always, |client| async move {
                client.lease_client().keep_alive(lease.0).await.map(|_| ())
            })
            .await;
        match kept {
            Ok(()) => Ok(()),
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => Err(StoreError::LeaseGone),
            Err(error) => Err(self.shared.connections.explain(error)),
        }
    }

    pub(crate) async fn revoke_lease(&self, lease: LeaseId) -> StoreResult<()> {
        self.ensure_open()?;
        let revoked = self
            .shared
            .connections
            .call(Repeat::Always, |client| async move {
                client.lease_client().revoke(lease.0).await.map(|_| ())
            })
            .await;
        match revoked {
            Ok(()) => Ok(()),
            Err(error) if code_of(&error) == Some(Code::NotFound) => Ok(()),
            Err(error) => Err(self.shared.connections.explain(error)),
        }
    }

    pub(crate) async fn compact(&self, keep: u64) -> StoreResult<()> {
        let found = self.range(full_key(""), GetOptions::new().with_count_only()).await?;
        let current = header_revision(found.header())?;
        let upto =
            current.saturating_sub(i64::try_from(keep).unwrap_or(i64::MAX)).saturating_add(1);
        if upto <= 1 || upto > current {
            return Ok(());
        }
        let compacted = self
            .shared
            .connections
            .call(Repeat::Always, |client| async move {
                client.kv_client().compact(upto, None).await.map(|_| ())
            })
            .await;
        match compacted {
            Ok(()) => Ok(()),
            // Another server, or etcd itself, was there before.
            Err(error) if code_of(&error) == Some(Code::OutOfRange) => Ok(()),
            Err(error) => Err(self.shared.connections.explain(error)),
        }
    }

    /// A store in which a restore was interrupted is not whole.
    pub(crate) async fn refuse_unfinished_restore(&self) -> StoreResult<()> {
        match self.get(RESTORING_KEY).await? {
            None => Ok(()),
            Some(_) => Err(StoreError::BadOptions(format!(
                "a restore into this etcd did not finish; delete the keys below {ROOT} and restore again"
            ))),
        }
    }

    pub(crate) fn close(&self) {
        self.shared.closed.cancel();
    }

    async fn range(&self, key: Vec<u8>, options: GetOptions) -> StoreResult<GetResponse> {
        self.call(Repeat::Always, |client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().get(key, Some(options)).await }
        })
        .await
    }

    async fn call<T, F>(
        &self,
        repeat: Repeat,
        request: impl Fn(connect::Endpoint) -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.ensure_open()?;
        let connections = &self.shared.connections;
        connections.call(repeat, request).await.map_err(|error| connections.explain(error))
    }

    fn ensure_open(&self) -> StoreResult<()> {
        if self.shared.closed.is_cancelled() { Err(StoreError::Closed) } else { Ok(()) }
    }

    fn entry(&self, kv: KeyValue) -> StoreResult<Entry> {
        let (created, modified) = (self.ours(kv.create_revision()), self.ours(kv.mod_revision()));
        let (key, value) = kv.into_key_value();
        Ok(Entry { key: short_key(&key)?, value, created, modified })
    }

    fn ours(&self, revision: i64) -> Revision {
        Revision(u64::try_from(revision).unwrap_or(0).saturating_add(self.shared.offset))
    }

    fn theirs(&self, revision: Revision) -> Option<i64> {
        let revision =
            revision.0.checked_sub(self.shared.offset).filter(|revision| *revision > 0)?;
        i64::try_from(revision).ok()
    }
}

async fn read_offset(connections: &Connections) -> StoreResult<u64> {
    let found = connections
        .call(Repeat::Always, |client| async move {
            client.kv_client().get(full_key(OFFSET_KEY), None).await
        })
        .await
        .map_err(|error| connections.explain(error))?;
    let Some(kv) = found.kvs().first() else { return Ok(0) };
    kv.value_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| StoreError::Unreadable {
        key: OFFSET_KEY.to_owned(),
        reason: "it is not a number".to_owned(),
    })
}

fn operation(op: &Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
            TxnOp::put(full_key(key), value.clone(), options)
        }
        Op::Delete { key } => TxnOp::delete(full_key(key), None::<DeleteOptions>),
    }
}

/// The part of a prefix that is still to be read.
struct Range {
    start: Vec<u8>,
    end: Vec<u8>,
}

impl Range {
    fn of(prefix: &str, page: &Page) -> Range {
        let prefix = format!("{ROOT}{prefix}");
        let end = prefix_end(&prefix).unwrap_or_default();
        let mut range = Range { start: prefix.into_bytes(), end };
        if let Some(after) = &page.after {
            range.continue_after(&full_key(after), page.descending);
        }
        range
    }

    fn continue_after(&mut self, key: &[u8], descending: bool) {
        if descending {
            self.end = self.end.clone().min(key.to_vec());
        } else {
            let next = [key, b"\0"].concat();
            self.start = self.start.clone().max(next);
        }
    }

    fn options(&self, limit: usize, descending: bool) -> GetOptions {
        let options = GetOptions::new().with_range(self.end.clone());
        match (limit, descending) {
            (0, _) => options.with_count_only(),
            // Keys come in ascending order by themselves; asking for it makes etcd sort them all.
            (_, false) => options.with_limit(limit as i64),
            (_, true) => {
                options.with_limit(limit as i64).with_sort(SortTarget::Key, SortOrder::Descend)
            }
        }
    }
}

fn full_key(key: &str) -> Vec<u8> {
    [ROOT.as_bytes(), key.as_bytes()].concat()
}

fn short_key(full: &[u8]) -> StoreResult<String> {
    std::str::from_utf8(full)
        .ok()
        .and_then(|key| key.strip_prefix(ROOT))
        .map(str::to_owned)
        .ok_or_else(|| StoreError::Unreadable {
            key: String::from_utf8_lossy(full).into_owned(),
            reason: "the key is not one of Wharf's".to_owned(),
        })
}

fn header_revision(header: Option<&etcd_client::ResponseHeader>) -> StoreResult<i64> {
    header
        .map(etcd_client::ResponseHeader::revision)
        .ok_or_else(|| StoreError::Backend("etcd answered without a revision".into()))
}
