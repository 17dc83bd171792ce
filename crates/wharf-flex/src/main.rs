//! `wharf-flex init | mount DIR JSON | unmount DIR`, as kubelet calls it.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    panic,
    path::Path,
    process::{self, ExitCode},
};

use wharf_flex::{Deadlines, Output, SOCKET, answer, frame::Status};

fn main() -> ExitCode {
    // A panic would be a line on stderr, which makes the output unreadable, and no answer. The hook
    // works also where panics abort.
    panic::set_hook(Box::new(|_| {
        print(&failure("the driver failed"));
        process::exit(1);
    }));
    let output = run();
    if print(&output) && output.status == Status::Success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the one answer; false when nobody reads it.
fn print(output: &Output) -> bool {
    let text = serde_json::to_string(output)
        .unwrap_or_else(|_| r#"{"status":"Failure","message":"the driver failed"}"#.to_owned());
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_ok()
}

fn run() -> Output {
    let arguments: Result<Vec<String>, OsString> =
        env::args_os().skip(1).map(OsString::into_string).collect();
    let Ok(arguments) = arguments else {
        return failure("the arguments are not valid text");
    };
    let Ok(driver) = env::current_exe() else {
        return failure("the driver does not know where it is installed");
    };
    // From inside its directory the socket has a short name: the kernel takes none over 107 bytes,
    // and a plugin directory may be longer.
    let entered = driver.parent().map(env::set_current_dir);
    if !matches!(entered, Some(Ok(()))) {
        return failure("the driver cannot enter the directory in which it is installed");
    }
    answer(&arguments, Path::new(SOCKET), &Deadlines::default())
}

fn failure(message: &str) -> Output {
    Output { status: Status::Failure, message: message.to_owned(), capabilities: None }
}
