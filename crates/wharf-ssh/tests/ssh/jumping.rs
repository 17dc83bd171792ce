//! Hosts behind other hosts.

use wharf_ssh::{Command, HostKey, Limits, Session, SshError, Target};

use crate::commands::until;
use crate::server::{MAY_NOT_SUDO, Server};

fn behind(inner: &Server) -> Target {
    Target { host: "host-b".to_owned(), ..inner.target() }
}

#[tokio::test]
async fn a_host_is_reached_through_another() {
    let (outer, inner) = (Server::start(), Server::start());
    let jump = Target {
        host: "gate".to_owned(),
        user: MAY_NOT_SUDO.to_owned(),
        pinned: Some(outer.host_key("ed25519")),
        ..outer.target()
    };
    let gate = Session::connect(&jump, &Limits::default()).await.unwrap();
    let target = Target { pinned: Some(inner.host_key("ed25519")), ..behind(&inner) };
    let session = gate.connect_through(&target, &Limits::default()).await.unwrap();
    let other = gate.connect_through(&target, &Limits::default()).await.unwrap();
    drop(gate);
    // sshd has two processes for each; the one that checked the key ends a moment later.
    until("one log-in for all", async || outer.serving().len() == 2).await;
    let output = session.run(&Command::new(["sh", "-c", "echo $SSH_CONNECTION"])).await.unwrap();
    assert!(output.stdout_text().trim().ends_with(&inner.port.to_string()));
    assert_eq!(session.host_key(), &inner.host_key("ed25519"));

    // Much data in both directions at once, which two sessions inside each other could block on.
    let input = vec![b'x'; 16 * 1024 * 1024];
    let echo = Command::new(["cat"]).stdin(input.clone());
    let (a, b, c) = tokio::join!(session.run(&echo), session.run(&echo), other.run(&echo));
    assert!([a, b, c].map(Result::unwrap).iter().all(|echoed| echoed.stdout == input));

    drop((session, other));
    until("the end of both connections", async || {
        outer.serving().is_empty() && inner.serving().is_empty()
    })
    .await;
}

#[tokio::test]
async fn errors_tell_the_jump_host_from_the_host() {
    let (outer, inner) = (Server::start(), Server::start());
    let jump = Target { host: "gate".to_owned(), ..outer.target() };

    let wrong = HostKey::parse(&inner.host_key("ecdsa").fingerprint()).unwrap();
    let changed = Target { pinned: Some(wrong), ..jump.clone() };
    let error = Session::connect(&changed, &Limits::default()).await.unwrap_err();
    assert!(matches!(error, SshError::HostKeyChanged { .. }), "{error:?}");
    assert_eq!(error.host(), "gate");

    let port = wharf_testbed::process::free_port().unwrap();
    let gate = Session::connect(&jump, &Limits::default()).await.unwrap();
    let target = Target { port, ..behind(&inner) };
    let error = gate.connect_through(&target, &Limits::default()).await.unwrap_err();
    let SshError::Unreachable { host, source } = &error else { panic!("{error:?}") };
    assert_eq!(host, "host-b");
    assert!(source.to_string().contains("through gate"), "{source}");

    // Losing the jump host loses the host behind it.
    let session = gate.connect_through(&behind(&inner), &Limits::default()).await.unwrap();
    outer.signal_serving(rustix::process::Signal::KILL);
    let error = session.exec(&Command::new(["sleep", "60"])).await.unwrap_err();
    assert!(matches!(error, SshError::Lost { .. }), "{error:?}");
    assert_eq!(error.host(), "host-b");
}
