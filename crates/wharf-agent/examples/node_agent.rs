//! `wharf agent` without the rest of the program, for tests on real hosts.

use std::path::PathBuf;

use wharf_agent::{config::Config, volumes::Places};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [
        _,
        "agent",
        "volume-guard",
        "--state-dir",
        state_dir,
        "--kubelet-root",
        root,
        more @ ..,
    ] = arguments.as_slice()
    {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        let reboot = more.get(1).map(PathBuf::from);
        let places = Places::of_guard(state_dir.into(), root.into(), reboot);
        return Ok(wharf_agent::volumes::guard(&places)?);
    }
    let config = std::env::args_os().nth(1).map(PathBuf::from).unwrap_or_default();
    let config = Config::load(&config)?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(wharf_agent::run(config))?;
    Ok(())
}
