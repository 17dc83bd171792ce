//! ansible-core in an environment of its own, and its Python on the machines.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use wharf_testbed::{Bind, TestBed};

use super::{bind, list};
use crate::temp_dir;

const VERSION: &str = "2.19.14";
/// Debian's: the machines are Debian too, and have the libraries that it needs.
const PYTHON: &str = "/usr/bin/python3";

pub struct Ansible {
    playbook: PathBuf,
}

impl Ansible {
    /// Installed once into the cache.
    pub fn ensure() -> Result<Ansible> {
        let dir = wharf_testbed::cache_dir()?.join("tools").join(format!("ansible-core-{VERSION}"));
        let (mark, playbook) = (dir.join("complete"), dir.join("bin/ansible-playbook"));
        if !mark.exists() {
            let needs = [(PYTHON, "python3"), ("/usr/lib/python3/dist-packages", "python3-venv")];
            wharf_testbed::debian::ensure("the benchmark against Ansible", &needs)?;
            eprintln!("installing ansible-core {VERSION}, once");
            run(Command::new(PYTHON).args(["-m", "venv", "--clear"]).arg(&dir))?;
            let wanted = format!("ansible-core=={VERSION}");
            run(Command::new(dir.join("bin/pip")).args(["install", "--quiet", &wanted]))?;
            std::fs::write(&mark, "")?;
        }
        Ok(Ansible { playbook })
    }

    /// Runs all steps on all machines; seconds.
    pub fn play(&self, bed: &TestBed) -> Result<f64> {
        let dir = temp_dir()?;
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("hosts"), render_inventory(bed)?)?;
        std::fs::write(path("steps.yaml"), serde_json::to_vec(&list::playbook())?)?;
        let mut command = Command::new(&self.playbook);
        command.arg("-i").arg(path("hosts")).arg(path("steps.yaml"));
        command.env("ANSIBLE_FORKS", bed.hosts().len().to_string());
        command.env("ANSIBLE_PIPELINING", "True");
        command.env("ANSIBLE_HOME", path("home")).env("LC_ALL", "C.UTF-8");
        // A socket's path must be short.
        let sockets = tempfile::Builder::new().prefix("wb").tempdir_in("/tmp")?;
        command.env("ANSIBLE_SSH_CONTROL_PATH_DIR", sockets.path());
        // Connections stay for the run, as by default, and not much longer.
        let share = "-o ControlMaster=auto -o ControlPersist=10s";
        command.env("ANSIBLE_SSH_ARGS", share);
        let begin = Instant::now();
        let printed = run(&mut command)?;
        let seconds = begin.elapsed().as_secs_f64();
        let done = format!("changed={}", list::COUNT);
        let hosts = printed.lines().filter(|line| line.contains(&done)).count();
        ensure!(hosts == bed.hosts().len(), "Ansible changed {hosts} machines:\n{printed}");
        Ok(seconds)
    }
}

fn render_inventory(bed: &TestBed) -> Result<String> {
    let mut text = String::new();
    for host in bed.hosts() {
        writeln!(text, "{} ansible_host={}", host.name(), host.address())?;
    }
    let (key, known) = (bed.ssh_key_path()?, bed.known_hosts_path()?);
    writeln!(
        text,
        "[all:vars]\nansible_user=root\nansible_python_interpreter={}\n\
         ansible_ssh_private_key_file={}\nansible_ssh_common_args=-o UserKnownHostsFile={}",
        python()?.display(),
        key.display(),
        known.display()
    )?;
    Ok(text)
}

/// The program behind the usual name, with its version.
fn python() -> Result<PathBuf> {
    Path::new(PYTHON).canonicalize().context("there is no Python")
}

/// Python and its library, as the machines shall have them.
pub fn python_binds() -> Result<Vec<Bind>> {
    let program = python()?;
    let name = program.file_name().context("Python has no name")?;
    Ok(vec![bind(&program), bind(&Path::new("/usr/lib").join(name))])
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{command:?} failed:\n{}{}", text(&output.stdout), text(&output.stderr));
    }
    Ok(text(&output.stdout))
}
