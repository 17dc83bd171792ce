//! A real server process on a data directory of its own, and the real command line against it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use wharf_testbed::{process::Process, wait_for};

pub const PASSWORD: &str = "correct horse battery";
/// Test machines are noisy; whatever takes this long has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A user's home with the server's data in it; all is gone at the end.
pub struct World {
    pub home: TempDir,
    pub server: Option<Process>,
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl World {
    /// A home without a server.
    pub fn empty() -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        Self { home, server: None }
    }

    pub fn with_server() -> Self {
        let mut world = Self::empty();
        world.start("127.0.0.1:0", &[]);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    pub fn password_file(&self) -> String {
        self.path("password").display().to_string()
    }

    /// Starts the server and waits until it is ready.
    pub fn start(&mut self, listen: &str, more: &[&str]) {
        let data_dir = self.data_dir().display().to_string();
        let password_file = self.password_file();
        let args = ["server", "--data-dir", &data_dir, "--listen", listen];
        let mut command =
            self.command(&[&args[..], &["--admin-password-file", &password_file], more].concat());
        command.stdin(Stdio::null());
        let mut process = Process::spawn(command).unwrap();
        let socket = self.data_dir().join("wharf.sock");
        wait_for("the server to be ready", DEADLINE, || {
            if let Some(status) = process.status()? {
                anyhow::bail!("the server ended with {status}:\n{}", process.output());
            }
            Ok(is_ready(&socket).then_some(()))
        })
        .unwrap();
        self.server = Some(process);
    }

    /// Kills the server as a power cut would; its socket stays behind.
    pub fn kill_server(&mut self) {
        self.server.take().unwrap().kill().unwrap();
    }

    /// `https://127.0.0.1:PORT` of the running server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    pub fn address(&self) -> String {
        // A server is ready before it has told the others that it is there.
        wait_for("the server to be a member", DEADLINE, || {
            let members = self.local(&["members", "-o", "json"]).json();
            Ok(members[0]["address"].as_str().map(str::to_owned))
        })
        .unwrap()
    }

    /// Runs a command in this home, with nothing on stdin.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_with_input(args, "")
    }

    /// The same, through the local server's socket.
    pub fn local(&self, args: &[&str]) -> Ran {
        let dir = self.data_dir().display().to_string();
        self.run(&[args, &["--data-dir", &dir]].concat())
    }

    pub fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not read its input may be gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = Ran {
            exit: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        };
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {ran:?}");
        ran
    }

    /// The binary with an environment that holds nothing of the user who runs the tests.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wharf"));
        command.args(args).env_clear().env("HOME", self.home.path()).current_dir(self.home.path());
        command
    }
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub fn exits(self, exit: i32) -> Self {
        assert_eq!(self.exit, exit, "{self:?}");
        self
    }

    /// Failed with this code, with `error:` and a hint that holds `hint`.
    #[track_caller]
    pub fn fails(self, exit: i32, hint: &str) -> Self {
        assert_eq!(self.exit, exit, "{self:?}");
        assert!(self.stderr.contains("error: "), "{self:?}");
        let hints = self.stderr.split_once("hint: ").map_or("", |(_, hint)| hint);
        assert!(hints.contains(hint), "no hint {hint:?}: {self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.exit, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn is_ready(socket: &Path) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
