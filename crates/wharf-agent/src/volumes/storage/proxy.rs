//! Images of a block server of ours: proxy I/O in user space, over FUSE and a loop device.
//!
//! The server refuses whoever has an older generation, also a machine that was stopped and goes on. The
//! processes of a volume outlive the agent.

use std::{collections::BTreeMap, fs::OpenOptions, path::PathBuf, time::Duration};

use wharf_block::{
    loops,
    nbd::{ImageName, client::Control},
    proxy::{self, DEFAULT_DEAD_AFTER, DEFAULT_THREADS, Program},
};
use wharf_core::volume::record::{Entry, Generation};

use super::{
    Device, Hints, Places, Result, Storage, StorageError, Use, below, devices::shown, parameter,
    runs,
};

/// For one question to the block server. Shutting others out waits for what they have under way.
const ANSWER: Duration = Duration::from_secs(20);
/// Below the state directory.
const RUNS: &str = "proxies";

/// What the device of a volume is made of here.
pub fn disk_of(places: &Places, volume: &str) -> Result<PathBuf> {
    Ok(proxy::disk(&below(&runs(places, RUNS), volume)?))
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
        let options = proxy::Options {
            address: self.address.clone(),
            image: image(&volume.image)?,
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

    fn fence(&self, name: &str, _holders: &[Entry], generation: Generation) -> Result<()> {
        self.ask()?.fence(&image(name)?, generation.0)?;
        Ok(())
    }

    fn epoch(&self, name: &str) -> Result<Generation> {
        Ok(Generation(self.ask()?.epoch(&image(name)?)?.epoch))
    }

    fn create(&self, name: &str, bytes: u64) -> Result<()> {
        self.ask()?.create(&image(name)?, bytes)?;
        Ok(())
    }

    fn grow(&self, name: &str, bytes: u64) -> Result<()> {
        let image = image(name)?;
        let mut server = self.ask()?;
        let known = server.epoch(&image)?;
        if known.size < bytes {
            server.grow(&image, bytes, known.epoch)?;
        }
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        let image = image(name)?;
        let mut server = self.ask()?;
        match server.epoch(&image) {
            Err(error) if error.is_missing() => Ok(()),
            known => Ok(server.delete(&image, known?.epoch.saturating_add(1))?),
        }
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
