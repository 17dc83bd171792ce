//! `wharf-flex init | mount DIR JSON | unmount DIR`, as kubelet calls it.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    panic,
    path::Path,
    process::ExitCode,
};

use wharf_flex::{Deadlines, Output, SOCKET, answer, frame::Status};

fn main() -> ExitCode {
    // A panic would be a line on stderr, which makes the output unreadable.
    panic::set_hook(Box::new(|_| {}));
    let output = panic::catch_unwind(run).unwrap_or_else(|_| failure("the driver failed"));
    let text = serde_json::to_string(&output)
        .unwrap_or_else(|_| r#"{"status":"Failure","message":"the driver failed"}"#.to_owned());
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    if output.status == Status::Success && written.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
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
