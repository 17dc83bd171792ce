//! The agent's socket, and what comes to it that no driver of ours sends.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream,
    },
    path::Path,
    process::Command,
    thread,
};

use jiff::Timestamp;
use rustix::{process::Uid, thread::set_thread_uid};
use serde_json::json;
use wharf_flex::{
    SOCKET,
    frame::{self, FrameError, Reply, Request, Status, VERSION},
};

use crate::world::World;

const NOBODY: u32 = 65_534;
const MEBIBYTE: usize = 1 << 20;

#[test]
fn the_socket_is_for_root_alone_and_what_is_no_call_disturbs_nobody() {
    let world = World::new();
    world.image("one", 64);
    world.volume("pv-1", "one", &json!({}));
    let pod = world.pod("a");
    let before = world.leftovers();
    let socket = world.driver().with_file_name(SOCKET);
    let meta = fs::metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);

    // Somebody who says nothing keeps nobody waiting.
    let silent = UnixStream::connect(&socket).unwrap();
    let long = format!("{{\"call\":\"unmount\",\"dir\":\"{}\"}}", "x".repeat(MEBIBYTE));
    let length = u32::try_from(long.len()).unwrap().to_be_bytes();
    let large = [&b"WFX"[..], &[VERSION], &length, long.as_bytes()].concat();
    for (bytes, sentence) in [
        (&b"HTTP/1.1 GET /"[..], "what came is not a frame"),
        (b"WFX\x02\0\0\0\x02{}", "the other side speaks version 2 and this one 1"),
        (b"WFX\x01\xff\xff\xff\xff", "a frame of 4294967295 bytes is longer than 65536"),
        (&large, &format!("a frame of {} bytes is longer than 65536", long.len())),
        (b"WFX\x01\0\0\0\x02[]", "the frame holds no valid JSON"),
        (b"WFX\x01\0\0\0\x10{\"call\":\"reboot\"}", "the frame holds no valid JSON"),
    ] {
        let reply = send(&socket, bytes).unwrap();
        assert_eq!(reply.status, Status::Failure);
        assert!(reply.message.starts_with(sentence), "{reply:?}");
    }

    // A call that is too long for any program does not even reach the driver.
    let dir = world.dir_of(&pod, "pv-1").display().to_string();
    let long = json!({ "image": "x".repeat(MEBIBYTE) }).to_string();
    let failed = Command::new(world.driver()).args(["mount", &dir, &long]).output().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::ArgumentListTooLong);
    assert_eq!(world.leftovers(), before);
    assert_eq!(world.record("pv-1"), None);

    let begun = Timestamp::now();
    assert_eq!(world.agent.note("driver"), None);
    assert_eq!(world.call(&["init"]), Ok(()));
    world.wait_until("the handshake to be told", |world| world.agent.note("driver").is_some());
    assert_eq!(world.agent.note("driver").unwrap(), "kubelet found version 0.1.0");
    let health = world.agent.health().unwrap();
    let task = health.tasks.iter().find(|task| task.name == "volumes").unwrap();
    let since: Timestamp = task.conditions.iter().next().unwrap().since.0.unwrap();
    assert!(since >= begun && since <= Timestamp::now(), "{since}");

    others_are_refused(&socket);
    assert_eq!(world.mount(&pod, "pv-1", "one"), Ok(()), "the agent goes on");
    assert_eq!(world.unmount(&pod, "pv-1"), Ok(()));
    assert_eq!(world.leftovers(), before);
    drop(silent);
}

/// Also when somebody has opened the socket and its directories to all: the kernel says who calls.
fn others_are_refused(socket: &Path) {
    let connect = || {
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                // Of this thread alone.
                set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
                let call = frame::encode(&Request::Init { version: "forged".to_owned() }).unwrap();
                send(socket, &call)
            });
            other.join().unwrap()
        })
    };
    let Err(FrameError::Io(refused)) = connect() else { panic!("anybody may connect") };
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);

    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    for dir in socket.ancestors().skip(1).take(3) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let reply = connect().unwrap();
    assert_eq!(reply.status, Status::Failure);
    assert!(reply.message.contains("permission denied"), "{reply:?}");
}

/// Sends bytes and reads the answer. Who is told that it is too much may not get all of it away.
fn send(socket: &Path, bytes: &[u8]) -> Result<Reply, FrameError> {
    let mut stream = UnixStream::connect(socket).map_err(FrameError::Io)?;
    match stream.write_all(bytes) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(FrameError::Io(error)),
        Ok(()) | Err(_) => {}
    }
    frame::read(&mut stream)
}
