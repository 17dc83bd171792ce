//! The client of one volume: a process that shows an image of Ceph as a file, over FUSE.
//!
//! It has a process group of its own and outlives the agent. It is found again by its arguments,
//! which name its file and are nobody else's: so nothing has to be written down between its start and a
//! crash. One process has one volume, so that its address can be shut out alone.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::AsRawFd,
        unix::{fs::DirBuilderExt, net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wharf_block::proxy::mounts;
use wharf_core::volume::record::Generation;

use super::{Error, cluster::Cluster, command::program};
use crate::host::files;

const PROGRAM: &str = "qemu-storage-daemon";
/// To the first look at the image. A cluster that is slower does not serve.
const START_WITHIN: Duration = Duration::from_secs(20);
/// To write what is left and say good-bye to the cluster, which may not answer any more.
const END_WITHIN: Duration = Duration::from_secs(5);
const KILL_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Sizes are remembered for a second.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// A client that was shut out writes a line for every request that fails.
const MOST_LOG: u64 = 1 << 20;
/// QEMU says other things between our question and its answer.
const MOST_LINES: usize = 100;
const NODE: &str = "disk";

/// What is known of a client once it may be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub generation: Generation,
    /// Its address as the cluster knows it; empty for one that only reads.
    pub identity: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Nothing ran, or it has died before: what it sent last may be under way.
    Before,
    InOrder,
    Killed,
}

pub struct Client {
    dir: PathBuf,
}

impl Client {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Starts it and waits until it serves the image.
    pub fn start(&self, cluster: &Cluster, image: &str, read_only: bool) -> Result<(), Error> {
        let prepared = || {
            // Whoever reaches its socket can do with the image what it likes.
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            File::create(self.disk())?;
            OpenOptions::new().create(true).append(true).open(self.log())
        };
        let log = prepared().map_err(io("prepare the client of the image"))?;
        let mut command = program(PROGRAM);
        command.current_dir(&self.dir).process_group(0);
        command.arg("--blockdev").arg(blockdev(cluster, image, read_only).to_string());
        command.arg("--export").arg(self.export(!read_only).to_string());
        command.args(["--chardev", "socket,id=control,path=control,server=on,wait=off"]);
        command.args(["--monitor", "chardev=control"]);
        // Both ends of its speech are the file's: a pipe would end with the agent.
        let out = log.try_clone().map_err(io("prepare the client of the image"))?;
        let started = command.stdout(out).stderr(log).spawn();
        let mut client =
            started.map_err(|source| Error::Run { program: PROGRAM.to_owned(), source })?;
        let served = self.wait_until_serving(&mut client);
        thread::spawn(move || client.wait());
        served
    }

    fn wait_until_serving(&self, client: &mut Child) -> Result<(), Error> {
        let deadline = Instant::now() + START_WITHIN;
        loop {
            let ended = client.try_wait().map_err(io("look for the client"))?;
            if mounts::fuse_minor(&self.disk()).map_err(io("look for the client's file"))?.is_some()
            {
                return Ok(());
            }
            if let Some(status) = ended {
                return Err(Error::failed(PROGRAM, &format!("{} ({status})", self.said())));
            }
            if Instant::now() >= deadline {
                let seconds = START_WITHIN.as_secs();
                return Err(Error::Slow { program: PROGRAM.to_owned(), seconds });
            }
            thread::sleep(PAUSE);
        }
    }

    pub fn note(&self) -> Result<Option<Note>, Error> {
        let what = "read what is known of the client";
        match fs::read(self.dir.join("client.json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => {
                let text = text.map_err(io(what))?;
                serde_json::from_slice(&text).map(Some).map_err(|error| io(what)(error.into()))
            }
        }
    }

    pub fn write_note(&self, note: &Note) -> Result<(), Error> {
        let text = serde_json::to_vec(note).map_err(io::Error::from);
        text.and_then(|text| files::write(&self.dir.join("client.json"), 0o600, &text))
            .map_err(io("note what is known of the client"))
    }

    /// Says to it how large its image is now.
    pub fn resize(&self, bytes: u64) -> Result<(), Error> {
        let what = "let the client see the new size";
        let asked = || -> io::Result<()> {
            let mut control = self.control()?;
            control.ask(&json!({ "execute": "qmp_capabilities" }))?;
            let arguments = json!({ "node-name": NODE, "size": bytes });
            control.ask(&json!({ "execute": "block_resize", "arguments": arguments }))?;
            self.wait_for_size(bytes)
        };
        asked().map_err(io(what))
    }

    /// The kernel remembers the old size for a moment, and a loop device asks only once.
    fn wait_for_size(&self, bytes: u64) -> io::Result<()> {
        let deadline = Instant::now() + SEEN_WITHIN;
        while fs::metadata(self.disk())?.len() < bytes {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn control(&self) -> io::Result<Control> {
        // Names of sockets are short, those of directories are not.
        let dir = File::open(&self.dir)?;
        let path = format!("/proc/self/fd/{}/control", dir.as_raw_fd());
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(Control(BufReader::new(stream)))
    }

    /// Ends every request with an error, now and from now on, and the process with it, so that nothing
    /// more leaves this machine. The cluster is not asked.
    pub fn abort(&self) -> Result<(), Error> {
        let minor = mounts::fuse_minor(&self.disk()).map_err(io("look for the client's file"))?;
        if let Some(minor) = minor {
            mounts::abort(minor).map_err(io("abort the client's connection"))?;
        }
        self.kill()
    }

    /// Unmounts, ends the process, sees that both are gone, and removes the directory.
    pub fn end(&self) -> Result<Ended, Error> {
        if !self.dir.exists() {
            return Ok(Ended::Before);
        }
        let was_there = !self.processes()?.is_empty();
        mounts::unmount(&self.disk()).map_err(io("unmount the client's file"))?;
        self.signal(Signal::TERM)?;
        let in_order = self.wait_for_end(END_WITHIN)?;
        self.kill()?;
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io("remove the client's directory")(error));
            }
            Ok(()) | Err(_) => {}
        }
        Ok(match (was_there, in_order) {
            (false, _) => Ended::Before,
            (true, true) => Ended::InOrder,
            (true, false) => Ended::Killed,
        })
    }

    fn kill(&self) -> Result<(), Error> {
        self.signal(Signal::KILL)?;
        if self.wait_for_end(KILL_WITHIN)? { Ok(()) } else { Err(Error::StillThere) }
    }

    fn wait_for_end(&self, within: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + within;
        while !self.processes()?.is_empty() {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(PAUSE);
        }
        Ok(true)
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        for pid in self.processes()? {
            let sent = pidfd_open(pid, PidfdFlags::empty()).and_then(|process| {
                // The handle stands for one process; looking after it is opened leaves no gap.
                if self.is_ours(pid) { pidfd_send_signal(process, signal) } else { Ok(()) }
            });
            match sent {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(io("end the client")(error.into())),
            }
        }
        Ok(())
    }

    /// Those that serve our file, or are about to.
    fn processes(&self) -> Result<Vec<Pid>, Error> {
        let all = fs::read_dir("/proc").map_err(io("look for the client"))?.flatten();
        let numbers = all.filter_map(|process| process.file_name().to_str()?.parse().ok());
        Ok(numbers.filter_map(Pid::from_raw).filter(|pid| self.is_ours(*pid)).collect())
    }

    fn is_ours(&self, pid: Pid) -> bool {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let exports = [true, false].map(|writable| self.export(writable).to_string());
        line.split(|byte| *byte == 0)
            .any(|argument| exports.iter().any(|export| export.as_bytes() == argument))
    }

    fn export(&self, writable: bool) -> Value {
        json!({
            "type": "fuse", "id": NODE, "node-name": NODE, "mountpoint": self.disk(),
            "writable": writable, "growable": false,
        })
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Empties a log that has become long.
    pub fn trim_log(&self) {
        if fs::metadata(self.log()).is_ok_and(|log| log.len() > MOST_LOG) {
            // It is appended to, so that the client goes on at the beginning.
            let _stays = OpenOptions::new().write(true).truncate(true).open(self.log());
        }
    }
}

fn blockdev(cluster: &Cluster, image: &str, read_only: bool) -> Value {
    json!({
        "driver": "rbd", "node-name": NODE, "pool": cluster.parameters.pool, "image": image,
        "user": cluster.parameters.user, "conf": cluster.conf, "read-only": read_only,
        "discard": "unmap",
    })
}

fn io(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// The way to tell a running client something.
struct Control(BufReader<UnixStream>);

impl Control {
    fn ask(&mut self, question: &Value) -> io::Result<()> {
        self.0.get_mut().write_all(format!("{question}\n").as_bytes())?;
        for _ in 0..MOST_LINES {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}
