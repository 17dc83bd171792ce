//! Files on their way to a host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use wharf_ssh::{Command, SshError, UploadSpec};

use crate::server::{MAY_NOT_SUDO, MAY_SUDO, Server};

const MIB: usize = 1024 * 1024;

/// A file to upload, and where to.
struct Cargo {
    source: PathBuf,
    spec: UploadSpec,
    content: Vec<u8>,
}

fn cargo(server: &Server, remote: &str, size: usize) -> Cargo {
    let content: Vec<u8> = (0..size).map(|n| (n / 7 % 253) as u8).collect();
    let source = server.dir().join(format!("source-{size}"));
    fs::write(&source, &content).unwrap();
    let remote = server.dir().join(remote).to_str().unwrap().to_owned();
    let sha256 = hex::encode(Sha256::digest(&content));
    let spec = UploadSpec { remote, sha256, size: size as u64, mode: 0o755 };
    Cargo { source, spec, content }
}

impl Cargo {
    fn part(&self) -> PathBuf {
        PathBuf::from(format!("{}.part", self.spec.remote))
    }

    fn assert_arrived(&self) {
        assert!(fs::read(&self.spec.remote).unwrap() == self.content, "the content differs");
        let mode = fs::metadata(&self.spec.remote).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert!(!self.part().exists());
    }
}

#[tokio::test]
async fn a_file_arrives_whole_with_its_mode_and_is_not_sent_twice() {
    let server = Server::start();
    let session = server.connect_as(MAY_SUDO).await;
    let cargo = cargo(&server, "a dir/it's $(deep)/-file", 5 * MIB + 3);
    let highest = AtomicU64::new(0);
    let seen = |at| assert!(highest.swap(at, Ordering::Relaxed) <= at);
    let done = session.upload(&cargo.source, &cargo.spec, seen).await.unwrap();
    assert_eq!((done.skipped, done.resumed_from, done.sent), (false, 0, cargo.spec.size));
    assert_eq!(highest.load(Ordering::Relaxed), cargo.spec.size);
    cargo.assert_arrived();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(&cargo.spec.remote).unwrap().uid(), 0);
    let parent = PathBuf::from(&cargo.spec.remote).parent().unwrap().to_owned();
    assert_eq!(fs::metadata(parent).unwrap().permissions().mode() & 0o7777, 0o755);

    fs::set_permissions(&cargo.spec.remote, fs::Permissions::from_mode(0o600)).unwrap();
    let before = fs::metadata(&cargo.spec.remote).unwrap().modified().unwrap();
    let done = session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap();
    assert_eq!((done.skipped, done.sent), (true, 0));
    assert_eq!(fs::metadata(&cargo.spec.remote).unwrap().modified().unwrap(), before);
    cargo.assert_arrived();
}

#[tokio::test]
async fn an_empty_file_arrives() {
    let server = Server::start();
    let session = server.connect().await;
    let cargo = cargo(&server, "empty", 0);
    assert!(!session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap().skipped);
    cargo.assert_arrived();
}

#[tokio::test]
async fn an_interrupted_upload_is_continued() {
    let server = Server::start();
    let session = server.connect().await;
    let cargo = cargo(&server, "file", 3 * MIB);
    fs::write(cargo.part(), &cargo.content[..MIB]).unwrap();
    let done = session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap();
    assert_eq!((done.resumed_from, done.sent), (MIB as u64, 2 * MIB as u64));
    cargo.assert_arrived();

    // Interrupted after the last byte, before it was put into place.
    fs::rename(&cargo.spec.remote, cargo.part()).unwrap();
    let done = session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap();
    assert_eq!((done.resumed_from, done.sent), (cargo.spec.size, 0));
    cargo.assert_arrived();
}

#[tokio::test]
async fn an_upload_that_was_cancelled_goes_on_where_it_stopped() {
    let server = Server::start();
    let session = server.connect().await;
    let cargo = cargo(&server, "file", 60 * MIB);
    let (half, mut reached) = tokio::sync::mpsc::unbounded_channel();
    let progress = |at| {
        if at > 30 * MIB as u64 {
            let _ = half.send(());
        }
    };
    tokio::select! {
        result = session.upload(&cargo.source, &cargo.spec, progress) => panic!("{result:?}"),
        _ = reached.recv() => {}
    }
    // What is still on its way to the host ends with its command.
    crate::commands::until("the first try to end", async || {
        let count = Command::new(["pgrep", "-cx", "cat"]);
        session.exec(&count).await.unwrap().exit != 0
    })
    .await;
    let done = session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap();
    assert!(done.resumed_from > 0 && done.sent < cargo.spec.size, "{done:?}");
    cargo.assert_arrived();
}

#[tokio::test]
async fn a_beginning_that_is_not_ours_is_sent_anew() {
    let server = Server::start();
    let session = server.connect().await;
    let cargo = cargo(&server, "file", 3 * MIB);
    for (rest, tries) in [(vec![b'?'; MIB], 2), (vec![b'?'; 3 * MIB], 1), (vec![b'?'; 4 * MIB], 0)]
    {
        let _ = fs::remove_file(&cargo.spec.remote);
        fs::write(cargo.part(), &rest).unwrap();
        let done = session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap();
        assert_eq!(done.resumed_from, 0, "{tries}");
        cargo.assert_arrived();
    }
    // A file of the same name and size with other content is replaced.
    fs::write(&cargo.spec.remote, vec![b'?'; 3 * MIB]).unwrap();
    session.upload(&cargo.source, &cargo.spec, |_| ()).await.unwrap();
    cargo.assert_arrived();
}

#[tokio::test]
async fn a_file_that_is_not_what_its_checksum_says_never_gets_its_name() {
    let server = Server::start();
    let session = server.connect().await;
    let cargo = cargo(&server, "file", MIB);
    let spec = UploadSpec { sha256: "a".repeat(64), ..cargo.spec.clone() };
    let error = session.upload(&cargo.source, &spec, |_| ()).await.unwrap_err();
    let SshError::Corrupted { host, path } = &error else { panic!("{error:?}") };
    assert_eq!((host.as_str(), path), ("host-a", &spec.remote));
    assert!(!PathBuf::from(&spec.remote).exists() && !cargo.part().exists());
}

#[tokio::test]
async fn what_cannot_be_uploaded_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let session = server.connect().await;
    let cargo = cargo(&server, "file", MIB);
    let bad = |remote: &str| UploadSpec { remote: remote.to_owned(), ..cargo.spec.clone() };
    for spec in [bad("relative"), bad("a/b"), bad("/dir/"), bad("/a\nb"), bad("/a\0b"), bad("/")] {
        let error = session.upload(&cargo.source, &spec, |_| ()).await.unwrap_err();
        assert!(matches!(error, SshError::BadCommand { .. }), "{error:?}");
    }
    let upper = UploadSpec { sha256: cargo.spec.sha256.to_uppercase(), ..cargo.spec.clone() };
    let error = session.upload(&cargo.source, &upper, |_| ()).await.unwrap_err();
    assert!(matches!(error, SshError::BadCommand { .. }), "{error:?}");

    let missing = server.dir().join("missing");
    let error = session.upload(&missing, &cargo.spec, |_| ()).await.unwrap_err();
    assert!(matches!(error, SshError::Source { .. }), "{error:?}");
    let other = UploadSpec { size: 7, ..cargo.spec.clone() };
    let error = session.upload(&cargo.source, &other, |_| ()).await.unwrap_err();
    assert!(matches!(error, SshError::Source { .. }), "{error:?}");
}

#[tokio::test]
async fn a_host_that_cannot_store_the_file_says_why() {
    let server = Server::start();
    let session = server.connect().await;
    let on = |remote: &str| cargo(&server, remote, 8 * MIB);

    let full = on("full/file");
    let disk = server.dir().join("full").to_str().unwrap().to_owned();
    fs::create_dir(&disk).unwrap();
    let mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", &disk];
    session.run(&Command::new(mount)).await.unwrap();
    let error = session.upload(&full.source, &full.spec, |_| ()).await.unwrap_err();
    let SshError::Remote { command, stderr_tail, .. } = &error else { panic!("{error:?}") };
    assert_eq!(command, &format!("receive {}", full.spec.remote));
    assert!(stderr_tail.contains("No space left"), "{stderr_tail}");

    let taken = on("directory");
    fs::create_dir(&taken.spec.remote).unwrap();
    let error = session.upload(&taken.source, &taken.spec, |_| ()).await.unwrap_err();
    assert!(matches!(error, SshError::Remote { .. }), "{error:?}");

    let guest = server.connect_as(MAY_NOT_SUDO).await;
    let file = on("file");
    let error = guest.upload(&file.source, &file.spec, |_| ()).await.unwrap_err();
    assert!(matches!(error, SshError::Remote { .. }), "{error:?}");
}

#[tokio::test]
async fn which_files_are_present_is_asked_in_one_go() {
    let server = Server::start();
    let session = server.connect_as(MAY_SUDO).await;
    let here = cargo(&server, "a b'c$(d)", 1000);
    fs::write(&here.spec.remote, &here.content).unwrap();
    let other_size = UploadSpec { size: 999, ..here.spec.clone() };
    let missing = UploadSpec { remote: "/no/such/file".to_owned(), ..here.spec.clone() };
    let directory = UploadSpec { remote: "/etc".to_owned(), ..here.spec.clone() };
    let specs = [missing, here.spec.clone(), other_size, directory, here.spec.clone()];
    let expected = [false, true, false, false, true];
    assert_eq!(session.present(&specs).await.unwrap(), expected);
    assert!(session.present(&[]).await.unwrap().is_empty());

    let many = vec![here.spec.clone(); 300];
    assert_eq!(session.present(&many).await.unwrap(), vec![true; 300]);
}

#[tokio::test]
async fn a_shell_that_greets_does_not_confuse_us() {
    let server = Server::start();
    fs::write(server.dir().join("home/.bashrc"), "echo Welcome; echo 1; echo 99\n").unwrap();
    let session = server.connect_as(MAY_SUDO).await;
    let output = session.run(&Command::new(["echo", "hello"])).await.unwrap();
    assert_eq!(output.stdout_text(), "Welcome\n1\n99\nhello\n");
    let here = cargo(&server, "file", 1000);
    assert!(!session.upload(&here.source, &here.spec, |_| ()).await.unwrap().skipped);
    assert_eq!(session.present(&[here.spec]).await.unwrap(), [true]);
}
