//! The block server and the processes of the proxy as a program of their own.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use wharf_block::{
    nbd::server::Server,
    proxy::{self, Role},
};

const USAGE: &str = "usage: wharf-block serve DIRECTORY ADDRESS:PORT
       wharf-block launch|hold|work RUN_DIRECTORY (used by the agent)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["serve", directory, address] => serve(Path::new(directory), address),
        [role, run_dir] => match Role::parse(role) {
            Some(role) => proxy::run(role, &PathBuf::from(run_dir)),
            None => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn serve(directory: &Path, address: &str) -> ExitCode {
    let server = match Server::bind(address, directory) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("error: {error}");
            let source = std::error::Error::source(&error);
            source.into_iter().for_each(|source| eprintln!("  because: {source}"));
            return ExitCode::FAILURE;
        }
    };
    if let Ok(address) = server.address() {
        // Whoever reads it wants to know the port; whoever does not has closed the pipe.
        let _unread = writeln!(std::io::stdout(), "listening on {address}");
    }
    server.run()
}
