//! Logs of what runs for long: readable lines on a terminal, JSON elsewhere, always on standard
//! error.

use std::io::IsTerminal;

use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::failure::Told;

/// Sets up logging for the process.
pub fn init(filter: &str) -> anyhow::Result<()> {
    let filter: Targets = filter.parse().map_err(|error| {
        Told::usage(format!("{filter:?} is not a filter for log lines: {error}"))
            .hint("write a level (`info`) or levels of parts (`wharf_server=debug,info`)")
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        registry.with(lines.with_target(false)).try_init()?;
    } else {
        registry.with(lines.json().flatten_event(true)).try_init()?;
    }
    Ok(())
}
