//! Images of a block server of ours: proxy I/O in user space, over FUSE and a loop device.
//!
//! The server refuses whoever has an older generation, also a machine that was stopped and goes on. The
//! processes of a volume outlive the agent.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io,
    path::PathBuf,
    time::Duration,
};

use wharf_block::{
    loops,
    nbd::{ImageName, client::Control},
    proxy::{self, DEFAULT_DEAD_AFTER, DEFAULT_THREADS, Health, Observed, Program},
};
use wharf_core::volume::record::{Entry, Generation};

use super::{
    Device, Hints, Places, Result, Storage, StorageError, Use, below, devices::shown, owner,
    parameter, runs, whole,
};

/// For one question to the block server. Shutting others out waits for what they have under way.
const ANSWER: Duration = Duration::from_secs(20);
/// Below the state directory.
const RUNS: &str = "proxies";

/// What the device of a volume is made of here.
pub fn disk_of(places: &Places, volume: &str) -> Result<PathBuf> {
    Ok(proxy::disk(&below(&runs(places, RUNS), volume)?))
}

/// Ends the processes of a volume, if it has such here.
pub fn end(places: &Places, volume: &str) -> Result<()> {
    Ok(proxy::stop(&below(&runs(places, RUNS), volume)?)?)
}

/// What keeps a volume from its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// One word.
    pub reason: &'static str,
    /// With the server, and what users of the volume see.
    pub why: String,
}

/// How the volumes are that have processes here; `None` for those that reach their server. Looks at
/// nothing that could hang.
pub fn troubles(places: &Places) -> Result<BTreeMap<String, Option<Trouble>>> {
    let failed = |source| StorageError::io("list the volumes of block servers", source);
    let dirs = match fs::read_dir(runs(places, RUNS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        dirs => dirs.map_err(failed)?,
    };
    let mut seen = BTreeMap::new();
    for dir in dirs {
        let dir = dir.map_err(failed)?;
        // One that is being made or taken away has nothing to say.
        if let Some(observed) = proxy::observe(&dir.path())? {
            let volume = dir.file_name().to_string_lossy().into_owned();
            seen.insert(volume, trouble(&observed));
        }
    }
    Ok(seen)
}

fn trouble(observed: &Observed) -> Option<Trouble> {
    let server = format!("the block server {}", observed.options.address);
    let (reason, why) = match &observed.health {
        Some(Health::Serving) => return None,
        Some(Health::Reconnecting { reason }) => {
            ("Reconnecting", format!("{server} does not answer, reads and writes wait: {reason}"))
        }
        Some(Health::Dead { reason, for_good: false }) => {
            ("Dead", format!("{server} is away for too long, reads and writes fail: {reason}"))
        }
        Some(Health::Dead { reason, for_good: true }) => {
            ("Lost", format!("{server} came back without all, reads and writes fail: {reason}"))
        }
        Some(Health::Fenced { reason }) => {
            ("Fenced", format!("{server} has let others in, reads and writes fail: {reason}"))
        }
        // A worker that was killed is replaced, and has nothing to say until then.
        None if observed.holder.is_some() || observed.fuse_minor.is_none() => return None,
        None => ("Killed", format!("nobody carries reads and writes to {server} any more")),
    };
    Some(Trouble { reason, why })
}

pub struct Proxy {
    address: String,
    dead_after: Duration,
    places: Places,
    program: PathBuf,
    hints: Hints,
}

impl Proxy {
    pub fn new(
        parameters: &BTreeMap<String, String>,
        places: &Places,
        hints: &Hints,
    ) -> Result<Self> {
        let seconds = parameters.get("deadAfterSeconds");
        let bad = |value: &String| StorageError::Parameter("deadAfterSeconds", value.clone());
        let seconds = seconds.map(|text| text.parse().map_err(|_| bad(text))).transpose()?;
        Ok(Self {
            address: parameter(parameters, "server")?,
            dead_after: seconds.map_or(DEFAULT_DEAD_AFTER, Duration::from_secs),
            places: places.clone(),
            program: places
                .beside("wharf-block")
                .map_err(|source| StorageError::io("find wharf-block", source))?,
            hints: hints.clone(),
        })
    }

    fn run_dir(&self, volume: &Use) -> Result<PathBuf> {
        below(&runs(&self.places, RUNS), &volume.volume)
    }

    fn ask(&self) -> Result<Control> {
        Ok(Control::connect(&self.address, ANSWER)?)
    }
}

impl Storage for Proxy {
    fn find(&self, volume: &Use) -> Result<Option<Device>> {
        let run_dir = self.run_dir(volume)?;
        if let Some((device, generation)) = self.hints.find(volume, &proxy::disk(&run_dir))? {
            return Ok(Some(shown(&device, generation)));
        }
        // Processes without a device were left by a crash in the middle; nobody uses them.
        proxy::stop(&run_dir)?;
        Ok(None)
    }

    fn map(&self, volume: &Use) -> Result<Device> {
        let image = image(&volume.image)?;
        // Before our generation is known there: it would shut the owner's clients out.
        let known = self.ask()?.own(&image, &volume.volume)?;
        owner::refuse_other(known.owner.as_deref(), &volume.image, &volume.volume)?;
        let options = proxy::Options {
            address: self.address.clone(),
            image,
            generation: volume.generation.0,
            read_only: volume.read_only,
            dead_after: self.dead_after,
            threads: DEFAULT_THREADS,
        };
        let program = Program { path: self.program.clone(), arguments: Vec::new() };
        let started = proxy::start(&program, &self.run_dir(volume)?, &options)?;
        let opened = OpenOptions::new().read(true).write(!volume.read_only).open(&started.disk);
        let disk = opened.map_err(|source| StorageError::io("open the proxy's disk", source))?;
        let device = self.hints.attach(&disk, volume)?;
        Ok(shown(&device, volume.generation))
    }

    fn unmap(&self, volume: &Use, device: &Device) -> Result<()> {
        let run_dir = self.run_dir(volume)?;
        if let Some(device) = self.hints.at(volume, &proxy::disk(&run_dir), &device.path)? {
            self.hints.detach(&device)?;
        }
        Ok(proxy::stop(&run_dir)?)
    }

    /// Whatever hangs gets an error, and nothing leaves this machine any more.
    fn cut(&self, volume: &Use, _device: Option<&Device>) -> Result<()> {
        Ok(proxy::abort(&self.run_dir(volume)?)?)
    }

    fn fence(
        &self,
        volume: &str,
        name: &str,
        _holders: &[Entry],
        generation: Generation,
    ) -> Result<()> {
        let (image, mut server) = (image(name)?, self.ask()?);
        let owner = match server.epoch(&image) {
            // Nobody can write to an image that is gone. One of its name may be made later.
            Err(error) if error.is_missing() => None,
            known => known?.owner,
        };
        // None of ours was ever let in where it is another's, whose clients have nothing to do with us.
        if owner.is_none_or(|owner| owner == volume) {
            server.fence(&image, generation.0)?;
        }
        Ok(())
    }

    fn epoch(&self, name: &str) -> Result<Generation> {
        Ok(Generation(self.ask()?.epoch(&image(name)?)?.epoch))
    }

    fn create(&self, name: &str, bytes: u64) -> Result<()> {
        self.ask()?.create(&image(name)?, whole(bytes))?;
        Ok(())
    }

    fn grow(&self, name: &str, bytes: u64) -> Result<()> {
        let image = image(name)?;
        let mut server = self.ask()?;
        let known = server.epoch(&image)?;
        if known.size < whole(bytes) {
            server.grow(&image, whole(bytes), known.epoch)?;
        }
        Ok(())
    }

    fn delete(&self, volume: &str, name: &str) -> Result<()> {
        let image = image(name)?;
        let mut server = self.ask()?;
        let known = match server.epoch(&image) {
            Err(error) if error.is_missing() => return Ok(()),
            known => known?,
        };
        owner::refuse_other(known.owner.as_deref(), name, volume)?;
        Ok(server.delete(&image, known.epoch.saturating_add(1))?)
    }

    fn refresh(&self, volume: &Use, device: &Device) -> Result<()> {
        let size = self.ask()?.epoch(&image(&volume.image)?)?.size;
        let run_dir = self.run_dir(volume)?;
        proxy::grow(&run_dir, size)?;
        if let Some(device) = self.hints.at(volume, &proxy::disk(&run_dir), &device.path)? {
            loops::grow(&device)?;
        }
        Ok(())
    }
}

fn image(name: &str) -> Result<ImageName> {
    ImageName::new(name).map_err(|_| StorageError::Image(name.chars().take(100).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_processes_say_is_told_with_the_server_and_what_users_see() {
        let options = proxy::Options {
            address: "192.0.2.1:10809".to_owned(),
            image: image("one").unwrap(),
            generation: 1,
            read_only: false,
            dead_after: DEFAULT_DEAD_AFTER,
            threads: DEFAULT_THREADS,
        };
        let observed = |health, fuse_minor| Observed {
            options: options.clone(),
            holder: None,
            worker: None,
            starts: 1,
            fuse_minor,
            health,
            since_unix_seconds: 0,
        };
        let reason = || "no route".to_owned();
        for (health, minor, word, part) in [
            (Some(Health::Reconnecting { reason: reason() }), None, "Reconnecting", "wait: no"),
            (Some(Health::Dead { reason: reason(), for_good: false }), None, "Dead", "fail: no"),
            (Some(Health::Dead { reason: reason(), for_good: true }), None, "Lost", "fail: no"),
            (Some(Health::Fenced { reason: reason() }), None, "Fenced", "fail: no"),
            (None, Some(7), "Killed", "nobody carries"),
        ] {
            let trouble = trouble(&observed(health, minor)).unwrap();
            assert_eq!(trouble.reason, word);
            let is_told = trouble.why.contains("192.0.2.1:10809") && trouble.why.contains(part);
            assert!(is_told, "{trouble:?}");
        }
        assert_eq!(trouble(&observed(Some(Health::Serving), Some(7))), None);
        assert_eq!(trouble(&observed(None, None)), None, "it is being made");
    }
}
