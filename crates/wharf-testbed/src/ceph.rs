//! A real Ceph for tests: one monitor and one OSD that keeps everything in memory, both on loopback.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::command::{run, tool};
use crate::debian;
use crate::process::{Process, Signal, free_port};
use crate::wait::wait_for;

const READY_DEADLINE: Duration = Duration::from_secs(90);
/// For a single question while it starts; then it is asked again.
const ANSWER_SECONDS: &str = "15";
const POOL: &str = "volumes";
const USER: &str = "wharf";

/// A running Ceph. Dropping it ends both processes and deletes its data.
#[derive(Debug)]
pub struct Ceph {
    dir: TempDir,
    port: u16,
    monitor: Option<Process>,
    osd: Option<Process>,
}

impl Ceph {
    /// Starts it with a pool for block devices, and a user who has the rights that Ceph's manual gives
    /// to clients of one, and no others.
    pub fn start() -> Result<Self> {
        debian::ensure(
            "Ceph",
            &[
                ("ceph-mon", "ceph-mon"),
                ("ceph-osd", "ceph-osd"),
                ("ceph", "ceph-common"),
                ("rados", "ceph-common"),
                ("uuidgen", "uuid-runtime"),
            ],
        )?;
        let dir = tempfile::Builder::new().prefix("wharf-ceph-").tempdir()?;
        // The daemons run as we do, and keep nothing elsewhere.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        let mut ceph = Self { dir, port: free_port()?, monitor: None, osd: None };
        ceph.start_monitor()?;
        ceph.start_osd()?;
        ceph.make_pool()?;
        Ok(ceph)
    }

    /// As `mon_host` of Ceph's configuration.
    pub fn monitors(&self) -> String {
        format!("v2:127.0.0.1:{}", self.port)
    }

    pub fn pool(&self) -> &'static str {
        POOL
    }

    pub fn user(&self) -> &'static str {
        USER
    }

    /// The keyring of the user.
    pub fn keyring(&self) -> PathBuf {
        self.path("user.keyring")
    }

    /// Runs `ceph`, `rbd` or `rados` as an administrator.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.program(program);
        command.arg("--keyring").arg(self.path("keyring"));
        run(command.args(arguments))
    }

    /// Stops both in the middle of whatever they do, or lets them go on.
    pub fn freeze(&mut self, is_frozen: bool) -> Result<()> {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        for process in self.monitor.iter_mut().chain(&mut self.osd) {
            process.signal(signal)?;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = tool(name);
        command.env_remove("CEPH_ARGS").arg("--conf").arg(self.path("ceph.conf"));
        command
    }

    fn start_monitor(&mut self) -> Result<()> {
        let fsid = run(&mut tool("uuidgen"))?;
        let fsid = fsid.trim();
        fs::write(self.path("ceph.conf"), configuration(self.dir.path(), fsid, &self.monitors()))?;
        let keyring = self.path("keyring");
        for (name, caps) in [("mon.", &["mon"][..]), ("client.admin", &["mon", "osd", "mgr"])] {
            let mut command = tool("ceph-authtool");
            command.arg(&keyring).args(["--gen-key", "-n", name]);
            if name == "mon." {
                command.arg("-C");
            }
            for cap in caps {
                command.args(["--cap", cap, "allow *"]);
            }
            run(&mut command)?;
        }
        let map = self.path("monmap");
        let address = format!("[{}]", self.monitors());
        run(tool("monmaptool")
            .args(["--create", "--addv", "a", &address, "--fsid", fsid])
            .arg(&map))?;
        let mut make = self.program("ceph-mon");
        make.args(["-i", "a", "--mkfs", "--monmap"]).arg(&map).arg("--keyring").arg(&keyring);
        run(&mut make)?;
        let mut command = self.program("ceph-mon");
        command.args(["-i", "a", "-f"]);
        self.monitor = Some(Process::spawn(command)?);
        Ok(())
    }

    fn start_osd(&mut self) -> Result<()> {
        let uuid = run(&mut tool("uuidgen"))?;
        let uuid = uuid.trim();
        self.ask(&["osd", "new", uuid])?;
        let (data, keyring) = (self.path("osd"), self.path("osd/keyring"));
        fs::create_dir(data)?;
        run(tool("ceph-authtool").arg("-C").arg(&keyring).args(["-n", "osd.0", "--gen-key"]))?;
        let file = keyring.to_string_lossy();
        self.ask(&[
            "auth",
            "add",
            "osd.0",
            "osd",
            "allow *",
            "mon",
            "allow profile osd",
            "-i",
            &file,
        ])?;
        let mut make = self.program("ceph-osd");
        make.args(["-i", "0", "--mkfs", "--osd-uuid", uuid, "--monmap"]).arg(self.path("monmap"));
        run(&mut make)?;
        let mut command = self.program("ceph-osd");
        command.args(["-i", "0", "-f"]);
        self.osd = Some(Process::spawn(command)?);
        Ok(())
    }

    fn make_pool(&mut self) -> Result<()> {
        self.ask(&["osd", "pool", "create", POOL, "8"])?;
        self.ask(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
        let (user, keyring) = (format!("client.{USER}"), self.keyring());
        let caps = format!("profile rbd pool={POOL}");
        let file = keyring.to_string_lossy();
        let caps = ["mon", "profile rbd", "osd", caps.as_str(), "-o", &file];
        self.ask(&[&["auth", "get-or-create", &user][..], &caps].concat())?;
        fs::set_permissions(&keyring, fs::Permissions::from_mode(0o600))?;
        // Only a write that comes back says that the OSD serves.
        let write = ["--pool", POOL, "setomapval", "ready", "key", "value"];
        wait_for("Ceph to serve", READY_DEADLINE, || {
            let mut command = tool("timeout");
            command.args([ANSWER_SECONDS, "rados", "--conf"]).arg(self.path("ceph.conf"));
            command.arg("--keyring").arg(self.path("keyring")).args(write);
            Ok(run(&mut command).is_ok().then_some(()))
        })?;
        self.run("rados", &["--pool", POOL, "rm", "ready"]).map(drop)
    }

    /// Asks the monitor until it answers: it has just been started, and all of this may be done twice.
    fn ask(&mut self, words: &[&str]) -> Result<String> {
        let mut last = None;
        let answer = wait_for("Ceph's monitor to answer", READY_DEADLINE, || {
            let limit = ["--connect-timeout", ANSWER_SECONDS];
            match self.run("ceph", &[&limit, words].concat()) {
                Ok(answer) => Ok(Some(answer)),
                Err(error) => {
                    last = Some(error);
                    Ok(None)
                }
            }
        });
        let said = self.monitor.as_ref().map(Process::output).unwrap_or_default();
        answer.with_context(|| format!("{last:?}; the monitor said:\n{said}"))
    }
}

fn configuration(dir: &Path, fsid: &str, monitors: &str) -> String {
    let dir = dir.display();
    // A monitor would end by itself where the disk has less than 5 % left.
    format!(
        "[global]\nfsid = {fsid}\nmon_host = {monitors}\npublic_network = 127.0.0.0/8\n\
         ms_bind_msgr1 = false\nrun_dir = {dir}\nadmin_socket =\npid_file =\nlog_file =\n\
         log_to_stderr = true\nerr_to_stderr = true\nmon_cluster_log_file = {dir}/cluster.log\n\
         crash_dir = {dir}\nosd_crush_chooseleaf_type = 0\nosd_pool_default_size = 1\n\
         osd_pool_default_min_size = 1\nmon_allow_pool_size_one = true\n\
         auth_allow_insecure_global_id_reclaim = false\nosd_objectstore = memstore\n\
         memstore_device_bytes = 2147483648\nosd_client_watch_timeout = 5\n\
         mon_data = {dir}/mon\nmon_data_avail_crit = 0\n\
         [osd]\nosd_data = {dir}/osd\nkeyring = {dir}/osd/keyring\n"
    )
}
