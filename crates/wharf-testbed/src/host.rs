//! One host: its disk, its power and its shell.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, mount};

use crate::base::write_file;
use crate::bed::{Bind, make_key};
use crate::command::{run, tail, tool};
use crate::paths::{BedPaths, HostPaths};
use crate::process::Process;
use crate::procfs::ProcessId;
use crate::state::{HostState, State};
use crate::wait::wait_for;

const SUPERVISE: &str = include_str!("host/supervise.sh");

const TUNNEL_DEADLINE: Duration = Duration::from_secs(60);
/// A boot takes two or three seconds; a machine that compiles beside it may take twenty times that.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// An orderly stop kills what does not stop within 3 s (see the host's system.conf).
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// For the first packet of a host that may still be booting.
const KNOCK_DEADLINE: Duration = Duration::from_millis(500);
const NSPAWN_MARKS: &str = "/run/systemd/nspawn";
/// What ssh returns when it could not run the command at all.
const SSH_FAILED: i32 = 255;

/// Whether a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    On,
    Off,
}

/// A handle to a host of a bed. Handles are cheap; clones mean the same host.
#[derive(Clone, Debug)]
pub struct Host {
    bed: String,
    name: String,
    address: Ipv4Addr,
    bridge: String,
    binds: Vec<Bind>,
    cgroups: Vec<PathBuf>,
    bed_paths: BedPaths,
    paths: HostPaths,
}

impl Host {
    pub(crate) fn new(state: &State, host: &HostState) -> Result<Self> {
        let bed_paths = BedPaths::new(&state.name)?;
        Ok(Self {
            bed: state.name.clone(),
            name: host.name.clone(),
            address: host.address,
            bridge: state.network.bridge(),
            binds: host.binds.clone(),
            cgroups: state.cgroups.iter().map(|bed| bed.join(&host.name)).collect(),
            paths: bed_paths.host(&host.name),
            bed_paths,
        })
    }

    /// Also its host name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The host's `/`, as this machine sees it: to look at files of a host that is off.
    pub fn root(&self) -> PathBuf {
        self.paths.root()
    }

    /// The public host key, as it stands in a known_hosts file after the address.
    pub fn host_key(&self) -> Result<String> {
        let path = self.paths.root().join("etc/ssh/ssh_host_ed25519_key.pub");
        let line = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        Ok(line.split(' ').take(2).collect::<Vec<_>>().join(" ").trim().to_owned())
    }

    /// Runs a command as root. Arguments arrive as they are given; for a shell's powers run
    /// `["sh", "-c", "…"]`. An error means that the command could not be run; its own failure is
    /// in the output's status.
    pub fn ssh(&self, command: &[&str]) -> Result<Output> {
        let quoted: Vec<String> = command.iter().map(|argument| quote(argument)).collect();
        let output = self.ssh_command().args(quoted).stdin(Stdio::null()).output()?;
        if output.status.code().is_none_or(|code| code == SSH_FAILED) {
            let reason = String::from_utf8_lossy(&output.stderr);
            bail!("ssh to {} ({}) failed: {}", self.name, self.address, reason.trim());
        }
        Ok(output)
    }

    /// Runs a command as root and gives what it printed, without the last line's end. An error
    /// if the command fails.
    pub fn run(&self, command: &[&str]) -> Result<String> {
        let output = self.ssh(command)?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            bail!("{command:?} on {} failed ({}): {}", self.name, output.status, reason.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// `ssh` with everything it needs to log in to this host; the caller adds the command.
    pub fn ssh_command(&self) -> Command {
        self.ssh_with(&[])
    }

    /// Joins a port of this machine's loopback address to one of the host's, until it is dropped.
    pub fn tunnel(&self, here: u16, there: u16) -> Result<Process> {
        let join = format!("127.0.0.1:{here}:127.0.0.1:{there}");
        let options = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", &join];
        let mut tunnel = Process::spawn(self.ssh_with(&options))?;
        wait_for("the tunnel", TUNNEL_DEADLINE, || {
            if let Some(status) = tunnel.status()? {
                bail!("the tunnel to {} ended ({status}): {}", self.name, tunnel.output());
            }
            Ok(TcpStream::connect(("127.0.0.1", here)).is_ok().then_some(()))
        })?;
        Ok(tunnel)
    }

    fn ssh_with(&self, options: &[&str]) -> Command {
        let mut command = tool("ssh");
        command.args(options);
        command.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]);
        command.args(["-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR"]);
        // A cut network or a lost host must end a call, not hang it.
        command.args(["-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=3"]);
        command
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", self.bed_paths.known_hosts().display()));
        command.arg("-i").arg(self.bed_paths.key()).arg(format!("root@{}", self.address));
        command.arg("--");
        command
    }

    /// New at every boot.
    pub fn boot_id(&self) -> Result<String> {
        self.run(&["cat", "/proc/sys/kernel/random/boot_id"])
    }

    pub fn power(&self) -> Result<Power> {
        Ok(if self.supervisor()?.is_some() { Power::On } else { Power::Off })
    }

    /// Switches the host on and waits until it answers over SSH.
    pub fn start(&self) -> Result<()> {
        if self.power()? == Power::On {
            bail!("{} is on already", self.name);
        }
        self.start_supervisor()?;
        self.wait_for_boot("").map(drop)
    }

    /// Reboots the host in order and waits until it answers again, under a new boot id.
    pub fn reboot(&self) -> Result<()> {
        let before = self.boot_id()?;
        // The connection may end before the command does; the new boot id is what counts.
        let _ = self.ssh(&["systemctl", "reboot"]);
        self.wait_for_boot(&before).map(drop)
    }

    /// Takes the power away: every process of the host ends at once, without a chance to write.
    ///
    /// The machine's page cache survives, so this proves nothing about fsync. Loop devices are
    /// detached, as a real power cut would do.
    pub fn power_cut(&self) -> Result<()> {
        let Some(supervisor) = self.supervisor()? else { bail!("{} is off already", self.name) };
        // Killing systemd-nspawn itself would let the host run on; its child is the host's init.
        let hosts: Vec<ProcessId> = supervisor
            .children()
            .into_iter()
            .filter(|(_, command)| command == "systemd-nspawn")
            .flat_map(|(nspawn, _)| nspawn.children())
            .map(|(init, _)| init)
            .collect();
        if hosts.is_empty() {
            bail!("{} has no init process: it is just starting or stopping", self.name);
        }
        hosts.into_iter().try_for_each(ProcessId::kill)?;
        // Of a paused host nobody is left to go on but systemd-nspawn, which now has to end.
        for cgroup in &self.cgroups {
            let _ = fs::write(cgroup.join("cgroup.freeze"), "0");
        }
        supervisor.wait_for_end(STOP_DEADLINE)
    }

    /// Stops every process of the host in the middle of what it does, as a hypervisor pauses a
    /// machine. Its kernel, being ours, still takes connections; nobody answers on them.
    pub fn pause(&self) -> Result<()> {
        self.freeze(true)
    }

    /// Lets a paused host go on, as if no time had passed.
    pub fn resume(&self) -> Result<()> {
        self.freeze(false)
    }

    fn freeze(&self, frozen: bool) -> Result<()> {
        let cgroup = self.cgroups.iter().find(|cgroup| cgroup.join("cgroup.freeze").exists());
        let cgroup = cgroup.with_context(|| {
            format!("cannot pause {}: it is off, or there is no unified cgroup tree", self.name)
        })?;
        let number = u8::from(frozen);
        fs::write(cgroup.join("cgroup.freeze"), number.to_string())?;
        let (events, wanted) = (cgroup.join("cgroup.events"), format!("frozen {number}"));
        wait_for("the host's processes to stop or go on", STOP_DEADLINE, || {
            let there = fs::read_to_string(&events)?.lines().any(|line| line == wanted);
            Ok(there.then_some(()))
        })
    }

    /// Shuts the host down in order.
    pub fn power_off(&self) -> Result<()> {
        let Some(supervisor) = self.supervisor()? else { bail!("{} is off already", self.name) };
        let _ = self.ssh(&["systemctl", "poweroff"]);
        supervisor.wait_for_end(STOP_DEADLINE)
    }

    /// What the host printed on its console since its last start.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.paths.console).unwrap_or_default()).into_owned()
    }

    fn supervisor(&self) -> Result<Option<ProcessId>> {
        let state = State::load(&self.bed)?;
        let mut state = state.with_context(|| format!("the test bed {} is gone", self.bed))?;
        Ok(state.host_mut(&self.name)?.supervisor.filter(|supervisor| supervisor.is_alive()))
    }

    /// Makes the disk: the overlay, and what distinguishes this host. Gives its public host key.
    pub(crate) fn prepare(&self, base: &Path) -> Result<String> {
        let paths = &self.paths;
        for directory in
            [paths.root(), paths.upper(), paths.work(), paths.containerd(), paths.kubelet()]
        {
            fs::create_dir_all(&directory).with_context(|| format!("cannot make {directory:?}"))?;
        }
        mount_overlay(base, paths)?;
        let root = paths.root();
        write_file(&root.join("etc/hostname"), 0o644, &format!("{}\n", self.name))?;
        let hosts = format!("127.0.0.1 localhost\n{} {}\n", self.address, self.name);
        write_file(&root.join("etc/hosts"), 0o644, &hosts)?;
        let network = format!("ADDRESS={}\n", self.address);
        write_file(&root.join("etc/testbed-network"), 0o644, &network)?;
        let key = fs::read_to_string(self.bed_paths.key().with_extension("pub"))?;
        write_file(&root.join("root/.ssh/authorized_keys"), 0o600, &key)?;
        make_key(&root.join("etc/ssh/ssh_host_ed25519_key"), &self.name)?;
        self.host_key()
    }

    fn start_supervisor(&self) -> Result<()> {
        let console = File::create(&self.paths.console)?;
        // A session of its own: it outlives the terminal and hears none of its signals.
        let mut supervisor = tool("setsid");
        supervisor.args(["sh", "-c", SUPERVISE, "supervise", "run"]);
        let mut child = self
            .with_environment(&mut supervisor)
            .args(self.nspawn())
            .stdin(Stdio::piped())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .context("cannot start the supervisor of a host")?;
        let process = i32::try_from(child.id()).ok().and_then(ProcessId::of);
        let process = process.context("the supervisor of a host ended at once")?;
        State::update(&self.bed, |state| {
            state.host_mut(&self.name)?.supervisor = Some(process);
            Ok(())
        })?;
        let mut stdin = child.stdin.take().context("the supervisor has no standard input")?;
        stdin.write_all(b"go\n").context("the supervisor of a host ended at once")
    }

    /// Ends whatever is left of a host whose supervisor is gone.
    pub(crate) fn release(&self) -> Result<()> {
        let mut command = tool("sh");
        command.args(["-c", SUPERVISE, "supervise", "release"]);
        run(self.with_environment(&mut command)).map(drop)
    }

    /// systemd-nspawn leaves an empty lock file and an empty directory behind for each machine.
    /// They harm nobody, so a failure to remove them is none of ours.
    pub(crate) fn remove_nspawn_marks(&self) {
        if let Ok(root) = self.paths.root().metadata() {
            let lock = format!("inode-{}:{}", root.dev(), root.ino());
            let _ = fs::remove_file(Path::new(NSPAWN_MARKS).join("locks").join(lock));
        }
        let propagate = Path::new(NSPAWN_MARKS).join("propagate").join(self.machine());
        let _ = fs::remove_dir(propagate);
    }

    /// Beds may have hosts of the same name, but names of machines are for all of them.
    fn machine(&self) -> String {
        format!("{}-{}", self.bed, self.name)
    }

    fn with_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let cgroups: Vec<_> = self.cgroups.iter().map(|path| path.to_string_lossy()).collect();
        command
            .env("TESTBED_DISK", &self.paths.disk)
            .env("TESTBED_ROOT", self.paths.root())
            .env("TESTBED_CGROUPS", cgroups.join(" "))
    }

    fn nspawn(&self) -> Vec<String> {
        let mut command = vec![
            "env".to_owned(),
            // kubelet and kube-proxy write to /proc/sys and /sys.
            "SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes".to_owned(),
            "systemd-nspawn".to_owned(),
            "--quiet".to_owned(),
            format!("--directory={}", self.paths.root().display()),
            format!("--machine={}", self.machine()),
            format!("--hostname={}", self.name),
            format!("--network-bridge={}", self.bridge),
        ];
        let settings = ["--boot", "--register=no", "--keep-unit", "--link-journal=no"];
        command.extend(settings.map(str::to_owned));
        // A host is a machine of one's own: nothing is held back from its root.
        command.extend(["--capability=all", "--system-call-filter=@known"].map(str::to_owned));
        for device in ["/dev/kmsg", "/dev/loop-control", "/dev/fuse"] {
            if Path::new(device).exists() {
                command.push(format!("--bind={device}"));
            }
        }
        let own = [("containerd", self.paths.containerd()), ("kubelet", self.paths.kubelet())];
        for (name, source) in own {
            command.push(format!("--bind={}:/var/lib/{name}", source.display()));
        }
        for bind in &self.binds {
            let option = if bind.read_only { "--bind-ro" } else { "--bind" };
            let (source, target) = (bind.source.display(), bind.target.display());
            command.push(format!("{option}={source}:{target}"));
        }
        command
    }

    /// Waits until the host answers with another boot id than `before`.
    fn wait_for_boot(&self, before: &str) -> Result<String> {
        let what = format!("{} ({}) to answer over SSH", self.name, self.address);
        let knock = SocketAddr::from((self.address, 22));
        let booted = wait_for(&what, BOOT_DEADLINE, || {
            if self.power()? == Power::Off {
                bail!("{} did not boot", self.name);
            }
            if TcpStream::connect_timeout(&knock, KNOCK_DEADLINE).is_err() {
                return Ok(None);
            }
            Ok(self.boot_id().ok().filter(|boot_id| boot_id != before))
        });
        booted.with_context(|| format!("its console ends with:\n{}", tail(&self.paths.console)))
    }
}

fn mount_overlay(base: &Path, paths: &HostPaths) -> Result<()> {
    let layers = [base, &paths.upper(), &paths.work()].map(|path| path.display().to_string());
    if let Some(path) = layers.iter().find(|path| path.contains([':', ',', '\\'])) {
        bail!("a test bed cannot lie in {path}: no colon, comma or backslash in the path, please");
    }
    let [lower, upper, work] = layers;
    let data = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let data = std::ffi::CString::new(data)?;
    mount("overlay", paths.root(), "overlay", MountFlags::empty(), data.as_c_str())
        .with_context(|| format!("cannot mount the overlay {:?}", paths.root()))
}

/// Quotes for the shell that sshd hands a command to.
fn quote(argument: &str) -> String {
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_argument_passes_a_shell_unchanged() {
        for argument in ["", "plain", "two words", "it's", "$HOME `x` \"y\" \\ \n;&"] {
            let script = format!("printf %s {}", quote(argument));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), argument);
        }
    }
}
