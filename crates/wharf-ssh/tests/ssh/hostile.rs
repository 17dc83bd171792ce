//! Servers that are none, or mean no good.

use std::sync::Arc;
use std::time::{Duration, Instant};

use russh::server;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wharf_ssh::{Command, Key, Limits, Session, SshError, Target};

use crate::server::keygen;

/// Connects to a server that does `act`, with short limits.
async fn meet<F: Future<Output = ()> + Send + 'static>(
    act: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (SshError, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        act(stream).await;
    });
    let dir = TempDir::new().unwrap();
    let pem = keygen(&dir.path().join("key"), &["-t", "ed25519"], "");
    let target = Target {
        host: "trap".to_owned(),
        address: "127.0.0.1".to_owned(),
        port,
        user: "root".to_owned(),
        key: Arc::new(Key::parse(&pem, "").unwrap()),
        pinned: None,
    };
    let limits = Limits { connect: Duration::from_secs(1), ..Limits::default() };
    let begin = Instant::now();
    let error = Session::connect(&target, &limits).await.unwrap_err();
    let took = begin.elapsed();
    // The server ends because we hung up, not because it chose to.
    tokio::time::timeout(Duration::from_secs(10), server).await.unwrap().unwrap();
    (error, took)
}

async fn read_until_hung_up(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
}

/// Says `line` again and again, slowly, until the other side hangs up.
async fn say_slowly(mut stream: TcpStream, line: &'static [u8]) {
    while stream.write_all(line).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn assert_timed_out(error: &SshError, took: Duration) {
    assert!(matches!(error, SshError::TimedOut { .. }), "{error:?}");
    assert_eq!(error.host(), "trap");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_hung_up_on() {
    let (error, took) = meet(read_until_hung_up).await;
    assert_timed_out(&error, took);
}

#[tokio::test]
async fn a_server_that_stops_after_its_greeting_is_hung_up_on() {
    let (error, took) = meet(async |mut stream: TcpStream| {
        stream.write_all(b"SSH-2.0-trap\r\n").await.unwrap();
        read_until_hung_up(stream).await;
    })
    .await;
    assert_timed_out(&error, took);
}

#[tokio::test]
async fn a_server_that_drips_is_hung_up_on() {
    let (error, took) = meet(|stream| say_slowly(stream, b"x")).await;
    assert_timed_out(&error, took);
}

#[tokio::test]
async fn a_server_that_drips_into_the_key_exchange_is_hung_up_on() {
    let (error, took) = meet(async |mut stream: TcpStream| {
        stream.write_all(b"SSH-2.0-trap\r\n").await.unwrap();
        // The beginning of a packet of 30,000 bytes.
        stream.write_all(&30_000_u32.to_be_bytes()).await.unwrap();
        say_slowly(stream, b"\x04").await;
    })
    .await;
    assert_timed_out(&error, took);
}

#[tokio::test]
async fn what_does_not_speak_ssh_is_told_so() {
    let (error, _) = meet(|stream| say_fast(stream, b"HTTP/1.1 400 Bad Request\r\n")).await;
    assert!(matches!(error, SshError::Protocol { .. }), "{error:?}");
    let (error, _) = meet(|stream| say_fast(stream, &[b'x'; 1000])).await;
    assert!(matches!(error, SshError::Protocol { .. }), "{error:?}");
}

/// Says `line` as fast as it is taken.
async fn say_fast(mut stream: TcpStream, line: &'static [u8]) {
    while stream.write_all(line).await.is_ok() {}
}

#[tokio::test]
async fn a_packet_of_four_gigabytes_is_not_waited_for() {
    let (error, _) = meet(async |mut stream: TcpStream| {
        stream.write_all(b"SSH-2.0-trap\r\n").await.unwrap();
        stream.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        read_until_hung_up(stream).await;
    })
    .await;
    assert!(matches!(error, SshError::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_hangs_up_is_unreachable() {
    let (error, _) = meet(async |stream: TcpStream| drop(stream)).await;
    assert!(matches!(error, SshError::Unreachable { .. }), "{error:?}");
}

/// Lets everybody in, and closes what it is asked to run.
struct Mute;

impl server::Handler for Mute {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _: &str,
        _: server::VerifiedPublicKey<'_>,
    ) -> Result<server::Auth, russh::Error> {
        Ok(server::Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _: russh::Channel<server::Msg>,
        reply: server::ChannelOpenHandle,
        _: &mut server::Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: russh::ChannelId,
        _: &[u8],
        session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        session.channel_success(channel)?;
        session.close(channel)
    }
}

#[tokio::test]
async fn a_command_that_ends_without_a_word_is_not_a_lost_connection() {
    let dir = TempDir::new().unwrap();
    let pem = keygen(&dir.path().join("key"), &["-t", "ed25519"], "");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let keys = vec![russh::keys::decode_secret_key(&pem, None).unwrap()];
    let config = Arc::new(server::Config { keys, ..server::Config::default() });
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let running = server::run_stream(config, stream, Mute).await.unwrap();
        let _ = running.await;
    });
    let target = Target {
        host: "mute".to_owned(),
        address: "127.0.0.1".to_owned(),
        port,
        user: "root".to_owned(),
        key: Arc::new(Key::parse(&pem, "").unwrap()),
        pinned: None,
    };
    let session = Session::connect(&target, &Limits::default()).await.unwrap();
    for _ in 0..2 {
        let error = session.exec(&Command::new(["true"])).await.unwrap_err();
        assert!(matches!(error, SshError::Unanswered { .. }), "{error:?}");
    }
    drop(session);
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
}
