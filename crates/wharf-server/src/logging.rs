//! Logs: readable lines on a terminal, JSON elsewhere, always on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::error::ServerError;

/// Sets up logging for the process. A second call, as in tests, changes nothing.
pub fn init(filter: &str) -> Result<(), ServerError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| ServerError::BadLogFilter {
        filter: filter.to_owned(),
        reason: error.to_string(),
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let set = if std::io::stderr().is_terminal() {
        registry.with(lines.with_target(false)).try_init()
    } else {
        registry.with(lines.json().flatten_event(true)).try_init()
    };
    if set.is_err() {
        tracing::debug!("logging was set up before");
    }
    Ok(())
}
