//! No wait for storage is without an end: not for a step, nor for whoever has a volume's lock.

use std::{sync::PoisonError, time::Duration};

use tokio::{
    sync::OwnedMutexGuard,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tracing::warn;
use wharf_core::volume::journal::Journal;

use super::{
    Volumes,
    work::{VolumeError, use_of},
};

/// For one step with the kernel or the storage. Making a file system may take the longest.
pub const STEP: Duration = Duration::from_secs(95);
/// For a look. Storage that lives answers in milliseconds, and everybody else who wants the volume waits
/// as long.
const LOOK: Duration = Duration::from_secs(10);
/// Whoever works on a volume for longer may hang in it. Who is not asked by anybody comes again later.
const GIVEN_BACK: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, VolumeError>;

/// A step that did not come back in time.
pub struct Stuck {
    running: JoinHandle<()>,
    what: &'static str,
    begun: Instant,
}

impl Volumes {
    /// The lock of a volume, if whoever has it gives it back soon.
    pub async fn lock_soon(&self, volume: &str) -> Result<OwnedMutexGuard<()>> {
        let locked = timeout(GIVEN_BACK, self.lock(volume).lock_owned()).await;
        locked.map_err(|_| VolumeError::Busy)
    }

    /// The lock of a volume that has to be cut off in any case: who hangs in it comes loose by that.
    pub async fn lock_by_force(&self, journal: &Journal) -> Result<OwnedMutexGuard<()>> {
        let volume = &journal.volume;
        if let Ok(held) = self.lock_soon(volume).await {
            return Ok(held);
        }
        warn!(volume, "somebody hangs in the volume: it is cut off");
        let storage = self.storage(journal)?;
        let used = use_of(journal, &self.boot_id, &self.places);
        let cut = move || Ok(storage.cut(&used, None)?);
        self.by_force(volume, "cut off what hangs", cut).await?;
        let freed = timeout(LOOK, self.lock(volume).lock_owned()).await;
        freed.map_err(|_| VolumeError::Busy)
    }

    /// Runs what may block, with a limit. While one hangs, nothing else of this volume is begun.
    pub async fn blocking<T: Send + 'static>(
        &self,
        volume: &str,
        what: &'static str,
        step: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.refuse_stuck(volume, |_| true)?;
        self.limited(volume, what, STEP, step).await
    }

    /// The same for what only looks.
    pub async fn observe<T: Send + 'static>(
        &self,
        volume: &str,
        what: &'static str,
        look: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.refuse_stuck(volume, |_| true)?;
        self.limited(volume, what, LOOK, look).await
    }

    /// The same for what sets free: also while others hang, but not twice.
    pub async fn by_force<T: Send + 'static>(
        &self,
        volume: &str,
        what: &'static str,
        step: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.refuse_stuck(volume, |one| one == what)?;
        self.limited(volume, what, STEP, step).await
    }

    async fn limited<T: Send + 'static>(
        &self,
        volume: &str,
        what: &'static str,
        within: Duration,
        step: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let begun = Instant::now();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let running = tokio::task::spawn_blocking(move || {
            // Nobody listens any more when it comes too late.
            let _late = sender.send(step());
        });
        match timeout(within, receiver).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(VolumeError::Endless),
            Err(_) => {
                let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
                let of_volume = stuck.entry(volume.to_owned()).or_default();
                of_volume.push(Stuck { running, what, begun });
                Err(VolumeError::Slow { what, seconds: within.as_secs() })
            }
        }
    }

    fn refuse_stuck(&self, volume: &str, is_meant: impl Fn(&str) -> bool) -> Result<()> {
        match self.oldest_stuck(volume, is_meant) {
            None => Ok(()),
            Some((what, since)) => Err(VolumeError::Stuck { what, seconds: since.as_secs() }),
        }
    }

    /// Of the volume's steps that are meant, the one that has not come back for the longest.
    pub fn oldest_stuck(
        &self,
        volume: &str,
        is_meant: impl Fn(&str) -> bool,
    ) -> Option<(&'static str, Duration)> {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.retain(|_, steps| {
            steps.retain(|step| !step.running.is_finished());
            !steps.is_empty()
        });
        let meant = stuck.get(volume)?.iter().filter(|step| is_meant(step.what));
        let oldest = meant.min_by_key(|step| step.begun)?;
        Some((oldest.what, oldest.begun.elapsed()))
    }
}
