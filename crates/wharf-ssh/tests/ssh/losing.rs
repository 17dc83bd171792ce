//! Connections that end, or only seem to live.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use wharf_ssh::{Command, Limits, Output, Session, SshError, UploadSpec};

use crate::commands::until;
use crate::server::Server;

type Running = tokio::task::JoinHandle<Result<Output, SshError>>;

/// Commands that are under way on the host when this returns.
async fn start_sleepers(server: &Server, session: &Session, count: usize) -> Vec<Running> {
    let file = |number: usize| server.dir().join(format!("started-{number}"));
    let mut running = Vec::new();
    for number in 0..count {
        let session = session.clone();
        let path = file(number).to_str().unwrap().to_owned();
        let command = Command::new(["sh", "-c", "touch \"$1\"; exec sleep 600", "sh", &path]);
        running.push(tokio::spawn(async move { session.exec(&command).await }));
    }
    until("the commands to start", async || (0..count).all(|number| file(number).exists())).await;
    running
}

async fn assert_lost(running: Vec<Running>) {
    for task in running {
        let error = task.await.unwrap().unwrap_err();
        let SshError::Lost { host, doing, .. } = &error else { panic!("{error:?}") };
        assert_eq!(host, "host-a");
        assert!(doing.starts_with("run `sh -c"), "{doing}");
    }
}

#[tokio::test]
async fn a_connection_that_dies_ends_all_commands_on_it() {
    let server = Server::start();
    let session = server.connect().await;
    // More than run at once: those that wait for their turn end as well.
    let mut running = start_sleepers(&server, &session, 8).await;
    for _ in 0..4 {
        let session = session.clone();
        running.push(tokio::spawn(async move {
            session.exec(&Command::new(["sh", "-c", "true"])).await
        }));
    }
    assert!(session.is_alive());
    server.signal_serving(Signal::KILL);
    assert_lost(running).await;
    session.ended().await;
    assert!(!session.is_alive());
    let error = session.exec(&Command::new(["true"])).await.unwrap_err();
    assert!(matches!(error, SshError::Lost { .. }), "{error:?}");
}

#[tokio::test]
async fn a_host_that_hangs_is_noticed_by_its_silence() {
    let server = Server::start();
    let session = server.connect().await;
    let running = start_sleepers(&server, &session, 3).await;
    server.signal_serving(Signal::STOP);
    let begin = Instant::now();
    assert_lost(running).await;
    let took = begin.elapsed();
    println!("a stopped host was noticed after {took:?}");
    assert!(took > Duration::from_secs(5) && took < Duration::from_secs(25), "{took:?}");
    assert!(!session.is_alive());
}

#[tokio::test]
async fn a_host_that_is_idle_but_answers_stays_connected() {
    let server = Server::start();
    let limits = Limits {
        keep_alive: Duration::from_millis(200),
        keep_alive_missed: 3,
        ..Limits::default()
    };
    let session = Session::connect(&server.target(), &limits).await.unwrap();
    let idle = Command::new(["sleep", "3"]);
    assert_eq!(session.exec(&idle).await.unwrap().exit, 0);
    assert!(session.is_alive());
}

#[tokio::test]
async fn a_host_that_hangs_in_the_middle_of_an_upload_is_noticed() {
    let server = Server::start();
    let limits = Limits { keep_alive: Duration::from_secs(1), ..Limits::default() };
    let session = Session::connect(&server.target(), &limits).await.unwrap();
    // Much more than all buffers on the way can hold.
    let source = server.dir().join("source");
    let size = 400 * 1024 * 1024;
    std::fs::File::create(&source).unwrap().set_len(size).unwrap();
    let remote = server.dir().join("remote").to_str().unwrap().to_owned();
    let spec = UploadSpec { remote, sha256: "0".repeat(64), size, mode: 0o644 };
    let stopped = std::sync::Once::new();
    let result = session.upload(&source, &spec, |at| {
        if at > size / 20 {
            stopped.call_once(|| server.signal_serving(Signal::STOP));
        }
    });
    let result = tokio::time::timeout(Duration::from_secs(30), result).await;
    let error = result.expect("it was noticed in time").unwrap_err();
    let SshError::Lost { doing, .. } = &error else { panic!("{error:?}") };
    assert!(doing.starts_with("receive "), "{doing}");
}

#[tokio::test]
async fn closing_a_session_ends_what_runs_on_it() {
    let server = Server::start();
    let session = server.connect().await;
    let running = start_sleepers(&server, &session, 2).await;
    session.close().await;
    assert!(!session.is_alive());
    assert_lost(running).await;
    server.wait_until_nobody_is_connected();
}

#[tokio::test]
async fn a_session_that_nobody_holds_is_closed() {
    let server = Server::start();
    let session = server.connect().await;
    let clone = session.clone();
    drop(session);
    assert_eq!(clone.run(&Command::new(["echo", "on"])).await.unwrap().stdout, b"on\n");
    assert!(!server.serving().is_empty());
    drop(clone);
    until("the end of the connection", async || server.serving().is_empty()).await;
}
