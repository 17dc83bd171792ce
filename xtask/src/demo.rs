//! `cargo demo`: a server and a real cluster to play with, in the background, gone with `--down`.

mod cluster;

use std::{
    fs::File,
    net::TcpListener,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use wharf_testbed::ProcessId;

use crate::{needs, target_dir, workspace};

/// A cold machine under load may take this long to start the server.
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(15);
const FIRST_PORT: u16 = 8443;

/// Start a server and a cluster of three machines to play with, and say what to do next
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Stop it, and remove its machines and data
    #[arg(long)]
    down: bool,
}

/// What a later call needs to find the server again.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    server: ProcessId,
    url: String,
}

pub fn run(args: &DemoArgs) -> Result<()> {
    let demo = Demo { dir: wharf_testbed::cache_dir()?.join("demo") };
    if args.down { demo.down() } else { demo.up() }
}

struct Demo {
    dir: PathBuf,
}

impl Demo {
    fn up(&self) -> Result<()> {
        let wharf = build()?;
        let state = match self.running()? {
            Some(state) => {
                eprintln!("the demo runs already");
                state
            }
            None => self.start(&wharf)?,
        };
        let data = self.data_dir();
        let place = cluster::Place { wharf: &wharf, data: &data, dir: &self.dir };
        match cluster::is_possible() {
            true => cluster::up(&place)?,
            false => eprintln!("without root there are no machines: only the server was started"),
        }
        self.tell(&wharf, &state)?;
        if cluster::is_possible() {
            cluster::tell(&place)?;
        }
        Ok(())
    }

    fn start(&self, wharf: &Path) -> Result<State> {
        std::fs::create_dir_all(&self.dir)?;
        let password = self.password()?;
        let port = free_port()?;
        let log = File::options().create(true).append(true).open(self.dir.join("server.log"))?;
        let mut child = Command::new(wharf)
            .args(["server", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"])
            .arg(self.data_dir())
            .arg("--admin-password-file")
            .arg(&password)
            // The machines do not reach the loopback address.
            .env("WHARF_AGENTS_LISTEN", format!("0.0.0.0:{}", free_port()?))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Its own group: the Ctrl-C that ends this command does not reach it.
            .process_group(0)
            .spawn()?;
        let server = i32::try_from(child.id()).ok().and_then(ProcessId::of);
        let server = server.context("the server ended at once")?;
        let state = State { server, url: format!("https://127.0.0.1:{port}") };
        std::fs::write(self.dir.join("state.json"), serde_json::to_vec_pretty(&state)?)?;
        eprintln!("starting the server");
        wharf_testbed::wait_for("the server to answer", START, || {
            if let Some(status) = child.try_wait()? {
                bail!(
                    "the server ended ({status}); {} says why",
                    self.dir.join("server.log").display()
                );
            }
            Ok(self.answers(wharf)?.then_some(()))
        })?;
        Ok(state)
    }

    fn answers(&self, wharf: &Path) -> Result<bool> {
        let mut command = Command::new(wharf);
        command.args(["cluster", "list", "--data-dir"]).arg(self.data_dir());
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.status()?.success())
    }

    fn tell(&self, wharf: &Path, state: &State) -> Result<()> {
        let password = std::fs::read_to_string(self.password_file())?;
        let (wharf, data) = (wharf.display(), self.data_dir());
        println!("address:   {}", state.url);
        println!("user:      admin");
        println!("password:  {}", password.trim());
        println!("authority: {}", data.join("tls/ca.pem").display());
        println!("data:      {}", data.display());
        println!("log:       {}", self.dir.join("server.log").display());
        println!();
        println!("next:");
        println!("  export WHARF_DATA_DIR={}", data.display());
        println!("  {wharf} user add alice --role viewer");
        println!("  {wharf} events --follow");
        println!("  {wharf} login --server {}", state.url);
        println!("  the API's description: {}/api/v1/docs", state.url);
        println!("  cargo demo --down           removes everything again");
        Ok(())
    }

    fn down(&self) -> Result<()> {
        cluster::down()?;
        if let Some(state) = self.running()? {
            eprintln!("stopping the server");
            state.server.terminate(STOP)?;
        }
        match std::fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => {
                eprintln!("the demo is gone");
                Ok(())
            }
        }
    }

    fn running(&self) -> Result<Option<State>> {
        let Ok(text) = std::fs::read(self.dir.join("state.json")) else { return Ok(None) };
        let state: State = serde_json::from_slice(&text).context("reading the demo's state")?;
        Ok(state.server.is_alive().then_some(state))
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn password_file(&self) -> PathBuf {
        self.dir.join("admin-password")
    }

    /// The admin's password, made once for a demo.
    fn password(&self) -> Result<PathBuf> {
        use std::io::{Read, Write};
        let path = self.password_file();
        if path.exists() {
            return Ok(path);
        }
        let mut bytes = [0u8; 12];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

fn build() -> Result<PathBuf> {
    needs::ensure_build()?;
    eprintln!("building wharf (a few minutes the first time)");
    let status = Command::new(env!("CARGO"))
        .current_dir(workspace())
        .args(["build", "--locked", "--package", "wharf"])
        .args(["--package", "wharf-flex", "--package", "wharf-block"])
        .status()?;
    if !status.success() {
        bail!("wharf could not be built");
    }
    Ok(target_dir().join("debug/wharf"))
}

fn free_port() -> Result<u16> {
    (FIRST_PORT..FIRST_PORT + 100)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no port from 8443 on is free")
}
