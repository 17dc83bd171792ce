//! A real sshd on a free port of the loopback address, with users, keys and sudo rules of its own.
//!
//! It runs in its own mount namespace, where `/etc/passwd` and its like are ours, and in its own
//! process namespace, which ends with the test, whatever state its processes are in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wharf_ssh::{HostKey, Key, Limits, Session, Target};
use wharf_testbed::process::{Process, free_port};
use wharf_testbed::{debian, wait_for};

pub const DEADLINE: Duration = Duration::from_secs(30);

/// A user who may become root by sudo without a password, and one who may not.
pub const MAY_SUDO: &str = "wharf-admin";
pub const MAY_NOT_SUDO: &str = "wharf-guest";

const START: &str = r#"
set -e
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/sshd
for name in passwd group shadow sudoers; do mount --bind "$1/$name" "/etc/$name"; done
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"#;

pub struct Server {
    pub port: u16,
    pub key: Arc<Key>,
    process: Process,
    dir: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// `more` goes into the server's configuration.
    pub fn start_with(more: &str) -> Self {
        ensure_tools();
        let dir = TempDir::new().unwrap();
        let key = prepare(dir.path());
        // Somebody may take the port first.
        for _ in 0..5 {
            let port = free_port().unwrap();
            fs::write(dir.path().join("sshd_config"), config(dir.path(), port, more)).unwrap();
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "--pid", "--fork"]);
            command.args(["--kill-child", "--mount-proc", "sh", "-c", START, "sh"]).arg(dir.path());
            let mut process = Process::spawn(command).unwrap();
            if process.wait_for_output("Server listening on", DEADLINE).is_ok() {
                return Self { port, key: Arc::new(key), process, dir };
            }
            assert!(process.output().contains("already in use"), "{}", process.output());
        }
        panic!("no free port for sshd");
    }

    pub fn target(&self) -> Target {
        Target {
            host: "host-a".to_owned(),
            address: "127.0.0.1".to_owned(),
            port: self.port,
            user: "root".to_owned(),
            key: self.key.clone(),
            pinned: None,
        }
    }

    pub async fn connect(&self) -> Session {
        self.connect_as("root").await
    }

    pub async fn connect_as(&self, user: &str) -> Session {
        let target = Target { user: user.to_owned(), ..self.target() };
        Session::connect(&target, &Limits::default()).await.unwrap()
    }

    pub fn host_key(&self, kind: &str) -> HostKey {
        let path = self.dir.path().join(format!("host_{kind}.pub"));
        HostKey::parse(&fs::read_to_string(path).unwrap()).unwrap()
    }

    pub fn log(&self) -> String {
        self.process.output()
    }

    /// A directory that the server's users and the test both see.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Lets the owner of this public key in, too.
    pub fn trust(&self, public_key: &str) {
        let path = self.dir.path().join("authorized_keys");
        let all = fs::read_to_string(&path).unwrap() + public_key + "\n";
        fs::write(path, all).unwrap();
    }

    /// The processes of sshd that serve connections, without the commands that they started.
    pub fn serving(&self) -> Vec<Pid> {
        let processes = processes();
        let children = |of: i32| {
            let own = processes.iter().filter(move |process| process.parent == of);
            own.filter(|process| process.name == "sshd").map(|process| process.pid)
        };
        let listener = children(self.process.id().cast_signed());
        let mut found: Vec<i32> = listener.flat_map(children).collect();
        let mut next = 0;
        while next < found.len() {
            found.extend(children(found[next]).collect::<Vec<_>>());
            next += 1;
        }
        found.into_iter().filter_map(Pid::from_raw).collect()
    }

    pub fn signal_serving(&self, signal: Signal) {
        let serving = self.serving();
        assert!(!serving.is_empty(), "nobody is connected");
        for pid in serving {
            // An error means that it went with its parent.
            let _ = kill_process(pid, signal);
        }
    }

    pub fn wait_until_nobody_is_connected(&self) {
        wait_for("the end of all connections", DEADLINE, || {
            Ok(self.serving().is_empty().then_some(()))
        })
        .unwrap();
    }
}

/// Once for all tests of this program: two installations at once get into each other's way.
fn ensure_tools() {
    static DONE: OnceLock<()> = OnceLock::new();
    let needs = [
        ("/usr/sbin/sshd", "openssh-server"),
        ("ssh-keygen", "openssh-client"),
        ("sudo", "sudo"),
        ("unshare", "util-linux"),
        ("pgrep", "procps"),
    ];
    DONE.get_or_init(|| debian::ensure("the test of the SSH client", &needs).unwrap());
}

struct ProcessStat {
    pid: i32,
    parent: i32,
    name: String,
}

fn processes() -> Vec<ProcessStat> {
    let stat_of = |path: PathBuf| -> Option<ProcessStat> {
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let (before, after_name) = stat.rsplit_once(") ")?;
        let name = before.split_once('(')?.1.to_owned();
        Some(ProcessStat { pid, parent: after_name.split(' ').nth(1)?.parse().ok()?, name })
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| stat_of(entry.path())).collect()
}

fn config(dir: &Path, port: u16, more: &str) -> String {
    let dir = dir.display();
    format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host_ed25519\n\
         HostKey {dir}/host_ecdsa\nAuthorizedKeysFile {dir}/authorized_keys\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\nMaxStartups 100\nLogLevel VERBOSE\nPidFile none\n\
         UseDNS no\n{more}\n"
    )
}

fn prepare(dir: &Path) -> Key {
    let home = dir.join("home");
    fs::create_dir(&home).unwrap();
    // The users below must be able to reach it.
    open_to_all(dir);
    open_to_all(&home);
    // This machine's root may have a shell with a slow start; ours has none.
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let others: String =
        passwd.lines().filter(|line| !line.starts_with("root:")).flat_map(|l| [l, "\n"]).collect();
    let mut passwd = format!("root:x:0:0:root:{}:/bin/bash\n{others}", home.display());
    let mut group = fs::read_to_string("/etc/group").unwrap();
    let mut shadow = fs::read_to_string("/etc/shadow").unwrap();
    for (user, id) in [(MAY_SUDO, 64_001), (MAY_NOT_SUDO, 64_002)] {
        passwd += &format!("{user}:x:{id}:{id}::{}:/bin/bash\n", home.display());
        group += &format!("{user}:x:{id}:\n");
        shadow += &format!("{user}:*:19000:0:99999:7:::\n");
    }
    let sudoers = format!("root ALL=(ALL) ALL\n{MAY_SUDO} ALL=(ALL) NOPASSWD: ALL\n");
    for (name, text, mode) in [
        ("passwd", passwd, 0o644),
        ("group", group, 0o644),
        ("shadow", shadow, 0o600),
        ("sudoers", sudoers, 0o440),
    ] {
        fs::write(dir.join(name), text).unwrap();
        set_mode(&dir.join(name), mode);
    }
    keygen(&dir.join("host_ed25519"), &["-t", "ed25519"], "");
    keygen(&dir.join("host_ecdsa"), &["-t", "ecdsa"], "");
    let pem = keygen(&dir.join("user"), &["-t", "ed25519"], "");
    fs::copy(dir.join("user.pub"), dir.join("authorized_keys")).unwrap();
    Key::parse(&pem, "").unwrap()
}

fn open_to_all(dir: &Path) {
    set_mode(dir, 0o777);
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes a key with `ssh-keygen`; gives the private half's text.
pub fn keygen(path: &Path, arguments: &[&str], passphrase: &str) -> String {
    ensure_tools();
    let status = Command::new("ssh-keygen")
        .args(["-q", "-C", "somebody@somewhere", "-N", passphrase, "-f"])
        .arg(path)
        .args(arguments)
        .status()
        .unwrap();
    assert!(status.success());
    fs::read_to_string(path).unwrap()
}
