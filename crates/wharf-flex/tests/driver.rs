//! The driver as kubelet runs it, beside agents of all kinds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use wharf_flex::{
    Deadlines, SOCKET, answer,
    frame::{self, Reply, Request, Status},
};

/// A plugin directory with the driver in it.
struct Installed {
    dir: TempDir,
}

impl Installed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let installed = Self { dir };
        std::fs::copy(env!("CARGO_BIN_EXE_wharf-flex"), installed.driver()).unwrap();
        installed
    }

    fn driver(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    /// An agent that does this with its first caller.
    fn agent<T: Send + 'static>(
        &self,
        serve: impl FnOnce(UnixStream) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        thread::spawn(move || serve(listener.accept().unwrap().0))
    }

    /// What the driver prints and whether it exits with 0.
    fn run(&self, arguments: &[&str]) -> (serde_json::Value, bool) {
        let mut driver = Command::new(self.driver());
        driver.args(arguments).stdin(Stdio::null()).env_clear().current_dir("/");
        let output = loop {
            match driver.output() {
                // Another test forked while this one's driver was being copied.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
                result => break result.unwrap(),
            }
        };
        assert!(output.stderr.is_empty(), "kubelet reads stderr too");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        (serde_json::from_str(&text).unwrap(), output.status.success())
    }
}

fn success(mut stream: UnixStream) -> Request {
    let request = frame::read(&mut stream).unwrap();
    let reply = Reply { status: Status::Success, message: String::new() };
    frame::write(&mut stream, &reply).unwrap();
    request
}

#[test]
fn init_answers_without_the_agent_and_tells_it_when_it_is_there() {
    let installed = Installed::new();
    let expected = serde_json::json!({
        "status": "Success",
        "capabilities": { "attach": false, "supportsMetrics": true },
    });
    assert_eq!(installed.run(&["init"]), (expected.clone(), true));
    let agent = installed.agent(success);
    assert_eq!(installed.run(&["init"]), (expected, true));
    assert!(matches!(agent.join().unwrap(), Request::Init { .. }));
}

#[test]
fn init_answers_beside_an_agent_that_hangs() {
    let installed = Installed::new();
    // Nobody ever accepts.
    let _listener = UnixListener::bind(installed.socket()).unwrap();
    let (answer, ok) = installed.run(&["init"]);
    assert_eq!((answer["status"].as_str(), ok), (Some("Success"), true));
}

#[test]
fn calls_reach_the_agent_and_its_answer_reaches_kubelet() {
    let installed = Installed::new();
    let agent = installed.agent(success);
    let options = r#"{"image":"img","kubernetes.io/readwrite":"rw"}"#;
    let (answer, ok) = installed.run(&["mount", "/pods/u/pv", options]);
    assert_eq!((answer, ok), (serde_json::json!({ "status": "Success" }), true));
    let Request::Mount { dir, options } = agent.join().unwrap() else { panic!() };
    assert_eq!((dir.as_str(), options["image"].as_str()), ("/pods/u/pv", "img"));

    std::fs::remove_file(installed.socket()).unwrap();
    let agent = installed.agent(|mut stream| {
        let request = frame::read::<Request>(&mut stream).unwrap();
        let message = "pod default/web on node b holds the volume".to_owned();
        frame::write(&mut stream, &Reply { status: Status::Failure, message }).unwrap();
        request
    });
    let (answer, ok) = installed.run(&["unmount", "/pods/u/pv"]);
    let message = "pod default/web on node b holds the volume";
    let expected = serde_json::json!({ "status": "Failure", "message": message });
    assert_eq!((answer, ok), (expected, false));
    assert!(matches!(agent.join().unwrap(), Request::Unmount { .. }));
}

#[test]
fn without_an_agent_the_call_fails_with_a_sentence() {
    let installed = Installed::new();
    for call in [&["mount", "/pods/u/pv", "{}"][..], &["unmount", "/pods/u/pv"]] {
        let (answer, ok) = installed.run(call);
        assert_eq!((answer["status"].as_str(), ok), (Some("Failure"), false));
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with("the agent on this node cannot be reached"), "{message}");
    }
}

#[test]
fn calls_that_are_not_ours_are_not_supported_and_malformed_ones_fail() {
    let installed = Installed::new();
    for call in ["attach", "detach", "waitforattach", "mountdevice", "getvolumename", "expandfs"] {
        let (answer, ok) = installed.run(&[call, "x", "y"]);
        assert_eq!((answer["status"].as_str(), ok), (Some("Not supported"), false), "{call}");
    }
    let long = format!("{{\"image\":\"{}\"}}", "x".repeat(100_000));
    for (call, sentence) in [
        (&["mount", "/d"][..], "`mount` was called with 1 arguments"),
        (&["unmount"], "`unmount` was called with 0 arguments"),
        (&["init", "x"], "`init` was called with 1 arguments"),
        (&[], "there is no call; kubelet runs `init`, `mount` and `unmount`"),
        (&["mount", "/d", "nonsense"], "the options are not a flat JSON object"),
        (&["mount", "/d", r#"{"a":{"b":1}}"#], "the options are not a flat JSON object"),
        (&["mount", "/d", &long], "the options are longer than 65536 bytes"),
    ] {
        let (answer, ok) = installed.run(call);
        assert_eq!((answer["message"].as_str(), ok), (Some(sentence), false));
    }
}

#[test]
fn garbage_and_huge_answers_are_failures() {
    let answers: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what came is not a frame"),
        (b"WFX\x01\x7f\xff\xff\xff", "a frame of 2147483647 bytes is longer than 65536"),
        (b"WFX\x01\0\0\0\x02{}", "the frame holds no valid JSON"),
        (b"", "the connection ended early"),
    ];
    for (bytes, sentence) in answers {
        let installed = Installed::new();
        let agent = installed.agent(move |mut stream| {
            frame::read::<Request>(&mut stream).unwrap();
            stream.write_all(bytes).unwrap();
        });
        let (answer, ok) = installed.run(&["unmount", "/pods/u/pv"]);
        agent.join().unwrap();
        let message = answer["message"].as_str().unwrap();
        assert!(!ok && message.contains(sentence), "{message}");
    }
}

#[test]
fn an_agent_that_hangs_or_drips_is_given_up_at_the_deadline() {
    let short = Deadlines { unmount: Duration::from_millis(300), ..Deadlines::default() };
    let serve: [fn(UnixStream); 2] = [
        |mut stream| {
            // It reads, and never answers; the end of the stream ends it.
            let _ = stream.read_to_end(&mut Vec::new());
        },
        |mut stream| {
            let mut bytes = b"WFX\x01\0\0\x40\0".to_vec();
            bytes.resize(10_000, b' ');
            for byte in bytes {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        },
    ];
    for serve in serve {
        let installed = Installed::new();
        // Left alone: the driver's side of the stream lives as long as this process.
        let _agent = installed.agent(serve);
        let begin = Instant::now();
        let call = ["unmount", "/pods/u/pv"].map(str::to_owned);
        let output = answer(&call, &installed.socket(), &short);
        assert_eq!(output.status, Status::Failure);
        assert_eq!(output.message, "the agent has not answered within 0.3 s");
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_plugin_directory_that_is_too_long_for_a_socket_works() {
    let outer = tempfile::tempdir().unwrap();
    let deep = outer.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let installed = Installed { dir: tempfile::tempdir_in(&deep).unwrap() };
    std::fs::copy(env!("CARGO_BIN_EXE_wharf-flex"), installed.driver()).unwrap();
    // The agent listens by a short way to the same place.
    let short = outer.path().join("s");
    std::os::unix::fs::symlink(installed.dir.path(), &short).unwrap();
    let listener = UnixListener::bind(short.join(SOCKET)).unwrap();
    let agent = thread::spawn(move || success(listener.accept().unwrap().0));
    let (answer, ok) = installed.run(&["unmount", "/pods/u/pv"]);
    assert_eq!((answer["status"].as_str(), ok), (Some("Success"), true));
    agent.join().unwrap();
}
