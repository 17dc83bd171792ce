//! No wait for storage is without an end: not for a step, nor for whoever has a volume's lock.

use std::{
    io,
    sync::PoisonError,
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    time::{Instant, timeout, timeout_at},
};
use tracing::warn;
use wharf_core::volume::journal::Journal;

use super::{
    Volumes,
    kernel::KernelError,
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
    /// The lock of a volume, if it is had before nobody waits for it any more.
    pub async fn lock_by(&self, volume: &str, answer_by: Instant) -> Result<OwnedMutexGuard<()>> {
        let locked = timeout_at(answer_by, self.lock(volume).lock_owned()).await;
        locked.map_err(|_| VolumeError::Busy)
    }

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
        let (running, receiver) =
            start(step).map_err(|source| KernelError::call("start a thread", source))?;
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

    /// For how long the device of a volume has not answered, which it does not now.
    pub fn silent_for(&self, volume: &str) -> Duration {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.entry(volume.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    /// The device has answered, or is not there.
    pub fn answered(&self, volume: &str) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
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

/// Begins what may never come back, on a thread of its own: the runtime's threads for what blocks are few, and
/// journals and the lease need them. A volume has one that hangs, and one for each way to set it free.
fn start<T: Send + 'static>(
    step: impl FnOnce() -> T + Send + 'static,
) -> io::Result<(JoinHandle<()>, oneshot::Receiver<T>)> {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // Nobody listens any more when it comes too late.
        let _late = sender.send(step());
    };
    let running = thread::Builder::new().name("volume-step".to_owned()).spawn(run)?;
    Ok((running, receiver))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_step_that_hangs_takes_no_thread_from_others_who_block() {
        let (free, hang) = mpsc::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (running, receiver) = start(move || hang.recv().is_err()).unwrap();
            let other = tokio::task::spawn_blocking(|| "done");
            let other = timeout(Duration::from_secs(60), other).await;
            drop(free);
            assert_eq!(other.unwrap().unwrap(), "done");
            assert!(receiver.await.unwrap(), "it comes back when it is set free");
            running.join().unwrap();
        });
    }
}
