//! Waiting for a condition: the only place with a poll interval.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Short beside anything waited for here (a boot takes seconds), long beside the cost of a look.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A process-wide flag, because a signal is sent to the process and not to one of its beds.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Waits until `attempt` gives a value.
///
/// `Ok(None)` means "not yet"; an error ends the wait at once, because it cannot get better.
/// `what` completes the sentence "timed out waiting for …".
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait(deadline, || {
        if interrupted() {
            bail!("interrupted while waiting for {what}");
        }
        attempt()
    })?
    .ok_or_else(|| anyhow::anyhow!("timed out after {deadline:?} waiting for {what}"))
}

/// From now on SIGINT and SIGTERM end every wait with an error instead of ending the process, so
/// that the caller can remove what it has made. There is no way back.
pub fn interrupt_on_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Waits deaf to signals: cleaning up is what a signal asks for, so it must not stop that.
/// `None` when the deadline passed.
pub(crate) fn wait<T>(
    deadline: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = attempt()? {
            return Ok(Some(value));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait_with_its_value() {
        let mut looks = 0;
        let value = wait_for("the third look", Duration::from_secs(5), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn a_passed_deadline_names_what_was_waited_for() {
        let result: Result<()> =
            wait_for("rain in the desert", Duration::from_millis(30), || Ok(None));
        let message = result.unwrap_err().to_string();
        assert!(message.contains("waiting for rain in the desert"), "{message}");
    }

    #[test]
    fn an_error_ends_the_wait_at_once() {
        let begin = Instant::now();
        let result: Result<()> = wait_for("nothing", Duration::from_secs(60), || bail!("hopeless"));
        assert_eq!(result.unwrap_err().to_string(), "hopeless");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}
