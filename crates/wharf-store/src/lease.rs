//! Holding a key: membership and leadership.

use std::time::Duration;

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    error::{StoreError, StoreResult},
    store::Store,
    types::{Compare, LeaseId, Outcome, Revision, Txn},
};

/// How often a keep-alive begins in one time to live. One that fails is repeated at once, so that
/// there is time for several more before the key is lost.
const KEEP_ALIVES_PER_TTL: u32 = 3;
/// An endpoint that has not answered after this part of the time to live is left for the next one:
/// after the pause, three may be silent before the key is lost.
const ENDPOINT_TRIES_PER_TTL: u32 = 6;
/// Between a failed keep-alive and the next: soon, but not a flood against a store that refuses.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

impl Store {
    /// Creates `key`, bound to a fresh lease that is kept alive as long as [`Held`] lives;
    /// `None` if somebody else has the key.
    pub async fn hold(
        &self,
        key: &str,
        value: impl Into<Vec<u8>>,
        ttl: Duration,
    ) -> StoreResult<Option<Held>> {
        // From before the grant, so that this side never believes longer than the store.
        let asked_at = Instant::now();
        let lease = self.grant_lease(ttl).await?;
        let txn = Txn::new().when(Compare::Absent(key.to_owned())).put_leased(key, value, lease);
        match self.commit(txn).await {
            Ok(Outcome::Committed(epoch)) => {
                Ok(Some(Held::start(self.clone(), key, epoch, lease, ttl, asked_at)))
            }
            Ok(Outcome::Refused) => {
                self.revoke_lease(lease).await.ok();
                Ok(None)
            }
            Err(error) => {
                self.revoke_lease(lease).await.ok();
                Err(error)
            }
        }
    }
}

/// A key that is held. Dropping it stops the keep-alive, so that the key goes when its time to
/// live has passed; [`Held::release`] gives it up at once.
///
/// Holding is a belief with a deadline. What must not be done by two holders is guarded by
/// [`Held::still_held`] in the transaction, not by asking [`Held::is_lost`] first.
pub struct Held {
    store: Store,
    key: String,
    epoch: Revision,
    lease: LeaseId,
    state: watch::Receiver<State>,
    keeper: JoinHandle<()>,
}

#[derive(Clone, Copy)]
struct State {
    /// Unless it is kept alive, the store may give the key away from then on.
    deadline: Instant,
    gone: bool,
}

impl State {
    fn is_lost(self) -> bool {
        self.gone || Instant::now() >= self.deadline
    }
}

impl Held {
    fn start(
        store: Store,
        key: &str,
        epoch: Revision,
        lease: LeaseId,
        ttl: Duration,
        asked_at: Instant,
    ) -> Held {
        let (sender, state) = watch::channel(State { deadline: asked_at + ttl, gone: false });
        let keeper = tokio::spawn(keep(store.clone(), lease, ttl, asked_at, sender));
        Held { store, key: key.to_owned(), epoch, lease, state, keeper }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Grows from one holder of the key to the next.
    pub fn epoch(&self) -> Revision {
        self.epoch
    }

    /// The condition that makes a transaction impossible once the key has another holder.
    pub fn still_held(&self) -> Compare {
        Compare::CreatedAt(self.key.clone(), self.epoch)
    }

    /// Whether the time to live has passed without a keep-alive, by the local monotonic clock;
    /// true at once for a process that was stopped for longer.
    pub fn is_lost(&self) -> bool {
        self.state.borrow().is_lost()
    }

    /// Returns as soon as the key is lost.
    pub async fn lost(&self) {
        let mut state = self.state.clone();
        loop {
            let now = *state.borrow_and_update();
            if now.is_lost() {
                return;
            }
            tokio::select! {
                () = sleep_until(now.deadline) => {}
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Gives the key up now.
    pub async fn release(self) -> StoreResult<()> {
        self.keeper.abort();
        self.store.revoke_lease(self.lease).await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Keeps the lease alive until it is gone; a failed try is repeated while there is time.
async fn keep(
    store: Store,
    lease: LeaseId,
    ttl: Duration,
    granted_at: Instant,
    state: watch::Sender<State>,
) {
    let mut next_at = granted_at + ttl / KEEP_ALIVES_PER_TTL;
    loop {
        sleep_until(next_at).await;
        let asked_at = Instant::now();
        let State { deadline, .. } = *state.borrow();
        // A key that was lost once, be it while this process was stopped, stays lost.
        if asked_at >= deadline {
            break;
        }
        let patience = ttl / ENDPOINT_TRIES_PER_TTL;
        match timeout_at(deadline, store.keep_alive_within(lease, patience)).await {
            Ok(Ok(())) => {
                state.send_modify(|state| state.deadline = asked_at + ttl);
                next_at = asked_at + ttl / KEEP_ALIVES_PER_TTL;
            }
            Ok(Err(StoreError::LeaseGone | StoreError::Closed)) => break,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a keep-alive failed");
                next_at = Instant::now() + RETRY_PAUSE;
            }
            Err(_) => {
                tracing::debug!("no keep-alive was answered in time");
                break;
            }
        }
    }
    state.send_modify(|state| state.gone = true);
}
