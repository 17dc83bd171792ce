//! `wharf agent` without the rest of the program, for tests on real hosts.

use std::path::PathBuf;

use wharf_agent::config::Config;

fn main() -> anyhow::Result<()> {
    let config = std::env::args_os().nth(1).map(PathBuf::from).unwrap_or_default();
    let config = Config::load(&config)?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(wharf_agent::run(config))?;
    Ok(())
}
