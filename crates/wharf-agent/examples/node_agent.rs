//! `wharf agent` without the rest of the program, for tests on real hosts.

use std::path::Path;

use wharf_agent::config::Config;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if command == "remove" {
        for removed in runtime.block_on(wharf_agent::network::remove(false))? {
            println!("{removed}");
        }
        return Ok(());
    }
    let config = Config::load(Path::new(&command))?;
    wharf_agent::init_logging("info")?;
    runtime.block_on(wharf_agent::run(config))?;
    Ok(())
}
