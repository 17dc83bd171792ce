//! A watcher of the etcd back end, which survives the loss of its connection.

use std::time::Duration;

use etcd_client::{Event, EventType, GetOptions, WatchOptions, WatchResponse, WatchStream};

use super::{Etcd, full_key, header_revision, short_key};
use crate::{
    error::{StoreError, StoreResult},
    types::{Change, Revision},
};

/// Pauses between tries to reach etcd again: soon at first, then without pressing it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// As long as any other request.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct EtcdWatch {
    etcd: Etcd,
    prefix: String,
    /// Everything up to this revision of etcd's was delivered or is not below the prefix.
    position: i64,
    stream: Option<WatchStream>,
}

impl EtcdWatch {
    pub(super) fn new(etcd: Etcd, prefix: &str, after: Revision) -> EtcdWatch {
        // What was before the restored store's first revision is gone: etcd says so for 0, and
        // a fresh etcd, where nothing was before, delivers everything.
        let position = etcd.theirs(after).unwrap_or(0);
        EtcdWatch { etcd, prefix: prefix.to_owned(), position, stream: None }
    }

    pub(crate) async fn next(&mut self) -> StoreResult<Vec<Change>> {
        let closed = self.etcd.shared.closed.clone();
        closed
            .run_until_cancelled(self.next_until_closed())
            .await
            .unwrap_or(Err(StoreError::Closed))
    }

    async fn next_until_closed(&mut self) -> StoreResult<Vec<Change>> {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(stream) = &mut self.stream else {
                match self.connect().await {
                    Ok(stream) => self.stream = Some(stream),
                    Err(error @ (StoreError::Denied { .. } | StoreError::Compacted { .. })) => {
                        return Err(error);
                    }
                    Err(error) => {
                        tracing::debug!(%error, prefix = self.prefix, "the watch cannot connect yet");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
                continue;
            };
            match stream.message().await {
                Ok(Some(response)) => {
                    if let Some(changes) = self.take(&response)? {
                        return Ok(changes);
                    }
                }
                Ok(None) => self.stream = None,
                Err(error) => {
                    tracing::debug!(%error, prefix = self.prefix, "the watch lost its connection");
                    self.stream = None;
                }
            }
        }
    }

    /// Finds an endpoint that answers, and watches there from the present position.
    async fn connect(&self) -> StoreResult<WatchStream> {
        if self.etcd.shared.offset > 0 && self.position == 0 {
            return Err(StoreError::Compacted { oldest: self.etcd.ours(1) });
        }
        let count = GetOptions::new().with_prefix().with_count_only();
        self.etcd.range(full_key(&self.prefix), count).await?;
        let connections = &self.etcd.shared.connections;
        let options = WatchOptions::new()
            .with_prefix()
            .with_progress_notify()
            .with_start_revision(self.position.saturating_add(1));
        let open = async {
            let mut client = connections.active().await?.watch_client();
            client.watch(full_key(&self.prefix), Some(options)).await
        };
        match tokio::time::timeout(OPEN_TIMEOUT, open).await {
            Ok(opened) => opened.map_err(|error| connections.explain(error)),
            Err(elapsed) => Err(StoreError::Backend(Box::new(elapsed))),
        }
    }

    /// Takes in what etcd sent; `None` if there is nothing to report.
    fn take(&mut self, response: &WatchResponse) -> StoreResult<Option<Vec<Change>>> {
        if response.compact_revision() > 0 {
            self.stream = None;
            let oldest = self.etcd.ours(response.compact_revision());
            return Err(StoreError::Compacted { oldest });
        }
        if response.canceled() {
            self.stream = None;
            return Ok(None);
        }
        if response.created() {
            return Ok(None);
        }
        let changes = response
            .events()
            .iter()
            .filter_map(|event| self.change(event).transpose())
            .collect::<StoreResult<Vec<_>>>()?;
        // Without events it is a notice of progress: all up to there has been sent.
        let seen = match response.events().last().and_then(Event::kv) {
            Some(kv) => kv.mod_revision(),
            None => header_revision(response.header())?,
        };
        self.position = self.position.max(seen);
        Ok((!changes.is_empty()).then_some(changes))
    }

    fn change(&self, event: &Event) -> StoreResult<Option<Change>> {
        let Some(kv) = event.kv() else { return Ok(None) };
        Ok(Some(match event.event_type() {
            EventType::Put => Change::Put(self.etcd.entry(kv.clone())?),
            EventType::Delete => Change::Deleted {
                key: short_key(kv.key())?,
                revision: self.etcd.ours(kv.mod_revision()),
            },
        }))
    }
}
