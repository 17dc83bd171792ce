//! The block server and the processes of the proxy as a program of their own.

use std::{
    io::{Write, stdin},
    path::{Path, PathBuf},
    process::ExitCode,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wharf_block::{
    nbd::server::Server,
    proxy::{self, Program, Role},
};

const USAGE: &str = "usage: wharf-block serve DIRECTORY ADDRESS:PORT
       wharf-block start RUN_DIRECTORY (reads the options as JSON from the first line of its input,
                   says where the disk is, and ends when its input does)
       wharf-block stop RUN_DIRECTORY
       wharf-block launch|hold|work RUN_DIRECTORY (the processes of a proxy)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["serve", directory, address] => serve(Path::new(directory), address),
        ["start", run_dir] => start(Path::new(run_dir)),
        ["stop", run_dir] => outcome(proxy::stop(Path::new(run_dir))),
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
        Err(error) => return outcome(Err(error)),
    };
    // Each connection takes two descriptors, and most systems begin with 1,024.
    let limit = getrlimit(Resource::Nofile);
    let _fewer_connections =
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Ok(address) = server.address() {
        say(&format!("listening on {address}"));
    }
    server.run()
}

fn start(run_dir: &Path) -> ExitCode {
    let mut line = String::new();
    let options = stdin().read_line(&mut line).and_then(|_| Ok(serde_json::from_str(&line)?));
    let program = std::env::current_exe().map(|path| Program { path, arguments: Vec::new() });
    let started = match (options, program) {
        (Ok(options), Ok(program)) => proxy::start(&program, run_dir, &options),
        (Err(error), _) | (_, Err(error)) => return outcome(Err(error)),
    };
    match started {
        Ok(started) => say(&started.disk.display().to_string()),
        Err(error) => return outcome(Err(error)),
    }
    outcome(std::io::copy(&mut stdin(), &mut std::io::sink()).map(|_| ()))
}

/// Whoever does not read it has closed the pipe.
fn say(line: &str) {
    let _unread = writeln!(std::io::stdout(), "{line}");
}

fn outcome<E: std::error::Error>(outcome: Result<(), E>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}
