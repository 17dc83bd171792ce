//! The parts of the agent, each on its own.
//!
//! A task that ends with an error, or by a defect, is a fault in the agent's health and is begun
//! anew, later and later. None waits for another, and none takes another down.

use std::{any::Any, error::Error, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use wharf_core::{install::components::agent::STOP_SECONDS, words::chain};

use crate::{
    config::Config,
    files::Files,
    health::{Health, Reporter},
};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Who worked for so long has not failed in a row.
const LASTED: Duration = Duration::from_secs(300);
/// How long tasks may take to end when the agent stops: a little less than the agent itself may.
const GRACE: Duration = Duration::from_secs(STOP_SECONDS - 2);
/// What one of them may do for its end altogether, so that it is not left in the middle.
pub const LAST_ACTS: Duration = Duration::from_secs(STOP_SECONDS - 3);

/// What every task gets.
#[derive(Clone)]
pub struct Context {
    pub config: Arc<Config>,
    pub files: Files,
    pub health: Health,
    pub stop: CancellationToken,
}

/// How a task ends. `Ok` is for good: it was stopped, or has nothing more to do.
pub type Ended = Result<(), Box<dyn Error + Send + Sync>>;

pub struct Tasks {
    context: Context,
    running: JoinSet<()>,
}

impl Tasks {
    pub fn new(context: Context) -> Self {
        Self { context, running: JoinSet::new() }
    }

    /// Starts a task; `make` begins it, each time anew. It must end soon after `context.stop`.
    pub fn start<F, R>(&mut self, name: &'static str, make: F)
    where
        F: Fn(Context, Reporter) -> R + Send + 'static,
        R: Future<Output = Ended> + Send + 'static,
    {
        let reporter = self.context.health.task(name);
        self.running.spawn(keep(self.context.clone(), reporter, make));
    }

    /// Waits for all of them after the agent was told to stop; who does not end is ended.
    pub async fn ended(mut self) {
        let all = async { while self.running.join_next().await.is_some() {} };
        if timeout(GRACE, all).await.is_err() {
            warn!(tasks = self.running.len(), "tasks did not end in time and are left");
        }
    }
}

async fn keep<F, R>(context: Context, reporter: Reporter, make: F)
where
    F: Fn(Context, Reporter) -> R,
    R: Future<Output = Ended> + Send + 'static,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = Instant::now();
        // On its own, so that a defect ends it alone; it goes with this one.
        let mut running = JoinSet::new();
        running.spawn(make(context.clone(), reporter.clone()));
        let reason = match running.join_next().await {
            None | Some(Ok(Ok(()))) => return,
            Some(Ok(Err(error))) => chain(&*error),
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => panic_text(panic.as_ref()),
                Err(_) => "it was ended".to_owned(),
            },
        };
        if context.stop.is_cancelled() {
            return;
        }
        reporter.failed(&reason);
        if begun.elapsed() >= LASTED {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What a defect said of itself.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it broke by a defect: {}", text.unwrap_or_default())
}
