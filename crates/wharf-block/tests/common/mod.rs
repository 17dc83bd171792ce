//! Images, devices and mounts for the tests, taken down again also when a test fails.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    mount::{MountFlags, UnmountFlags},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;
use wharf_block::{
    loops::{self, Device, Options},
    nbd::{
        Export, ImageName,
        client::{Connection, Control, Error, Identity},
    },
};

pub const MIB: u64 = 1 << 20;

pub fn ensure_tools() {
    let needs = [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("fio", "fio")];
    wharf_testbed::debian::ensure("the tests of block devices", &needs).unwrap();
}

/// A sparse file of this size.
pub fn image(dir: &Path, name: &str, size: u64) -> (PathBuf, File) {
    let path = dir.join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(size).unwrap();
    (path, file)
}

/// A loop device that goes away with this value.
pub struct Attached(pub Device);

impl Attached {
    pub fn new(file: &File, tag: &str) -> Self {
        let options = Options { read_only: false, direct_io: true, tag };
        Self(loops::attach(file, options).unwrap())
    }

    /// What a search finds when it finds this device and no other.
    pub fn found(&self) -> &[Device] {
        std::slice::from_ref(&self.0)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let detached = loops::detach(&self.0);
        assert!(detached.is_ok() || thread::panicking(), "{detached:?}");
    }
}

/// A mount that goes away with this value.
pub struct Mounted(pub TempDir);

impl Mounted {
    pub fn new(source: &Path, kind: &str) -> Self {
        let dir = TempDir::new().unwrap();
        rustix::mount::mount(source, dir.path(), kind, MountFlags::empty(), None).unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = rustix::mount::unmount(self.path(), UnmountFlags::empty())
            .or_else(|_| rustix::mount::unmount(self.path(), UnmountFlags::DETACH));
        assert!(unmounted.is_ok() || thread::panicking(), "{unmounted:?}");
    }
}

pub fn mkfs(kind: &str, device: &Path) {
    ensure_tools();
    let (program, quick) = match kind {
        "ext4" => ("mkfs.ext4", vec!["-q", "-F"]),
        "xfs" => ("mkfs.xfs", vec!["-q", "-f"]),
        other => panic!("{other} is not made here"),
    };
    let output = Command::new(program).args(quick).arg(device).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the condition holds.
pub fn wait_for(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come within {within:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A block server in a process of its own, ended with this value.
pub struct BlockServer {
    pub dir: TempDir,
    pub address: String,
    process: Option<Child>,
}

impl BlockServer {
    pub fn start() -> Self {
        let mut server =
            Self { dir: TempDir::new().unwrap(), address: "127.0.0.1:0".to_owned(), process: None };
        server.run();
        server
    }

    /// Starts it where it was before.
    pub fn run(&mut self) {
        self.spawn(Command::new(env!("CARGO_BIN_EXE_wharf-block")));
    }

    /// The same on a machine that was started anew, for all that the server can see.
    pub fn run_in_boot(&mut self, boot: &str) {
        let file = self.dir.path().join(boot);
        std::fs::write(&file, boot).unwrap();
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(file);
        command.arg(env!("CARGO_BIN_EXE_wharf-block"));
        self.spawn(command);
    }

    fn spawn(&mut self, mut command: Command) {
        let mut child = command
            .arg("serve")
            .args([self.dir.path().as_os_str(), self.address.as_ref()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.process = Some(child);
        self.address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_child(self.process.as_ref().unwrap());
        kill_process(process, signal).unwrap();
    }

    pub fn control(&self) -> Control {
        Control::connect(&self.address, Duration::from_secs(20)).unwrap()
    }

    pub fn create(&self, image: &str, size: u64) -> ImageName {
        let image = ImageName::new(image).unwrap();
        self.control().create(&image, size).unwrap();
        image
    }

    pub fn open(
        &self,
        image: &ImageName,
        generation: u64,
        session: &str,
    ) -> Result<Connection, Error> {
        let identity = Identity { session: session.to_owned(), slot: 0, read_only: false };
        let export = Export { image: image.clone(), generation };
        Connection::open(&self.address, &export, &identity, Duration::from_secs(20))
    }

    /// The image as it lies in the server's directory.
    pub fn image_file(&self, image: &ImageName) -> PathBuf {
        self.dir.path().join(format!("{image}.img"))
    }
}

impl Drop for BlockServer {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.signal(Signal::CONT);
        }
        self.kill();
    }
}
