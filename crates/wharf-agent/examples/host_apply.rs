//! `host_apply apply|remove [--dry-run]`: what `wharf agent host` does, as a small program that
//! tests put on a host.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dry_run = arguments.iter().any(|argument| argument == "--dry-run");
    match arguments.first().map(String::as_str) {
        Some("apply") => wharf_agent::host::run_apply(dry_run),
        Some("remove") => wharf_agent::host::run_remove(dry_run),
        _ => {
            eprintln!("usage: host_apply apply|remove [--dry-run]");
            ExitCode::from(2)
        }
    }
}
