//! Images of a Ceph cluster, spoken to by Ceph's own programs.
//!
//! A volume's client is a process of its own (`rbd/client.rs`); a loop device lies on the file that it
//! shows. Whoever has an older generation is refused by the ledger beside the image
//! ([`wharf_core::volume::rbd`]) before it can write, and by its address after that. What is looked up
//! or cut off on this node asks the cluster nothing: it may be gone.

mod client;
mod cluster;
mod command;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::OpenOptions,
    io,
    path::PathBuf,
    time::Duration,
};

use tracing::info;
use wharf_block::loops;
use wharf_core::{
    volume::{
        rbd::{BadParameter, Key, Ledger, Parameters, Unadmitted},
        record::{Entry, Generation},
    },
    words::chain,
};

use super::{
    Device, Hints, Places, Result, Storage, StorageError, Use, below, check_image, devices::shown,
    owner, runs, whole,
};
use client::{Client, Ended, Note};
use cluster::Cluster;

/// A client that leaves says so; a cluster that does not answer by then hears it another way.
const GOOD_BYE: Duration = Duration::from_secs(5);
/// Below the state directory.
const RUNS: &str = "rbd";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Parameter(#[from] BadParameter),
    #[error("the keyring {path} cannot be used: {why}")]
    Keyring { path: String, why: String },
    #[error("{program} failed: {said}")]
    Program { program: String, said: String },
    #[error("{program} did not end within {seconds} s")]
    Slow { program: String, seconds: u64 },
    #[error("cannot run {program}")]
    Run {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("the answer of {name} cannot be read")]
    Answer {
        name: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("image {image} is in use by a client that Wharf does not know, {address}")]
    Foreign { image: String, address: String },
    #[error("which client of image {image} is ours cannot be told: {found} came at once")]
    Unclear { image: String, found: usize },
    #[error("the client of the image did not end")]
    StillThere,
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// What the device of a volume is made of here.
pub fn disk_of(places: &Places, volume: &str) -> Result<PathBuf> {
    Ok(client(places, volume)?.disk())
}

/// Ends the client of a volume, if it has one here.
pub fn end(places: &Places, volume: &str) -> Result<()> {
    client(places, volume)?.end()?;
    Ok(())
}

fn client(places: &Places, volume: &str) -> Result<Client> {
    Ok(Client::new(below(&runs(places, RUNS), volume)?))
}

pub struct Rbd {
    parameters: Parameters,
    places: Places,
    hints: Hints,
}

impl Rbd {
    pub fn new(
        parameters: &BTreeMap<String, String>,
        places: &Places,
        hints: &Hints,
    ) -> Result<Self> {
        let parameters = Parameters::parse(parameters).map_err(Error::from)?;
        Ok(Self { parameters, places: places.clone(), hints: hints.clone() })
    }

    fn cluster(&self) -> Result<Cluster> {
        Ok(Cluster::new(&self.parameters, &self.places)?)
    }

    fn client(&self, volume: &Use) -> Result<Client> {
        client(&self.places, &volume.volume)
    }

    /// Starts the client of a volume that is written to, and says who it is. Nobody uses it yet.
    fn join(&self, cluster: &Cluster, volume: &Use, client: &Client) -> Result<String> {
        let Use { image, generation, .. } = volume;
        let known = cluster.ledger(image)?;
        admit(&known, volume)?;
        let ours = Key::Volume(volume.volume.clone());
        for key in [&ours, &Key::Epoch(*generation)] {
            if !known.contains(key) {
                cluster.note(image, key)?;
            }
        }
        let ledger = cluster.ledger(image)?;
        if let Err(refused) = admit(&ledger, volume) {
            if !known.contains(&ours) {
                // Two volumes came to a fresh image at once: neither has it.
                cluster.forget(image, &ours, GOOD_BYE)?;
            }
            return Err(refused);
        }
        // Of one grant there is one client, too: an earlier one was left by a crash.
        let mut out = ledger.writers(|of| of <= *generation);
        let before = cluster.watchers(image)?;
        for address in cluster.lockers(image)? {
            if before.contains(&address) && !out.contains(&address) {
                return Err(Error::Foreign { image: image.clone(), address }.into());
            }
            out.insert(address);
        }
        shut_out(cluster, image, &ledger, &out)?;
        client.start(cluster, image, false)?;
        let after = cluster.watchers(image)?;
        let new: Vec<&String> = after.difference(&before).collect();
        let [address] = new.as_slice() else {
            return Err(Error::Unclear { image: image.clone(), found: new.len() }.into());
        };
        let (generation, address) = (*generation, (*address).clone());
        cluster.note(image, &Key::Writer { generation, address: address.clone() })?;
        admit(&cluster.ledger(image)?, volume)?;
        Ok(address)
    }

    /// Makes the image the volume's, if it is nobody's, for one that only reads.
    fn own(&self, cluster: &Cluster, volume: &Use) -> Result<()> {
        let known = cluster.ledger(&volume.image)?;
        admit(&known, volume)?;
        let ours = Key::Volume(volume.volume.clone());
        if known.contains(&ours) {
            return Ok(());
        }
        cluster.note(&volume.image, &ours)?;
        let admitted = admit(&cluster.ledger(&volume.image)?, volume);
        if admitted.is_err() {
            cluster.forget(&volume.image, &ours, GOOD_BYE)?;
        }
        admitted
    }

    fn begin(&self, volume: &Use, client: &Client) -> Result<Device> {
        let cluster = self.cluster()?;
        let Use { image, generation, read_only, .. } = volume;
        if cluster.size(image)?.is_none() {
            return Err(self.missing(image));
        }
        let identity = if *read_only {
            self.own(&cluster, volume)?;
            client.start(&cluster, image, true)?;
            String::new()
        } else {
            self.join(&cluster, volume, client)?
        };
        client.write_note(&Note { generation: *generation, identity: identity.clone() })?;
        let opened = OpenOptions::new().read(true).write(!read_only).open(client.disk());
        let disk = opened.map_err(|source| StorageError::io("open the client's file", source))?;
        let device = self.hints.attach(&disk, volume)?;
        Ok(Device { identity, ..shown(&device, *generation) })
    }

    fn missing(&self, image: &str) -> StorageError {
        StorageError::NoImage(format!("{}/{image}", self.parameters.pool))
    }

    /// A client that ended in order is not shut out later. It does no harm if that is not told.
    fn say_good_bye(&self, volume: &Use, note: Note) {
        let Note { generation, identity: address } = note;
        if address.is_empty() {
            return;
        }
        let told = self.cluster().and_then(|cluster| {
            // One that broke down is remembered for a while; one that ended in order is not.
            if !cluster.watchers(&volume.image)?.contains(&address) {
                let key = Key::Writer { generation, address };
                cluster.forget(&volume.image, &key, GOOD_BYE)?;
            }
            Ok(())
        });
        if let Err(error) = told {
            info!(volume = volume.volume, reason = chain(&error), "it stays in the ledger");
        }
    }
}

impl Storage for Rbd {
    fn find(&self, volume: &Use) -> Result<Option<Device>> {
        let client = self.client(volume)?;
        client.trim_log();
        let Some((device, generation)) = self.hints.find(volume, &client.disk())? else {
            // A client without a device was left by a crash in the middle; nobody uses it.
            client.end()?;
            return Ok(None);
        };
        let note = client.note()?.filter(|note| note.generation == generation);
        let identity = note.map(|note| note.identity).unwrap_or_default();
        Ok(Some(Device { identity, ..shown(&device, generation) }))
    }

    fn map(&self, volume: &Use) -> Result<Device> {
        check_image(&volume.image)?;
        std::fs::create_dir_all(self.places.state_dir.join(RUNS))
            .map_err(|source| StorageError::io("make a directory for clients", source))?;
        let client = self.client(volume)?;
        self.begin(volume, &client).inspect_err(|_| {
            // What failed to start must not stay half started; the first error says why.
            let _second = client.end();
        })
    }

    fn unmap(&self, volume: &Use, device: &Device) -> Result<()> {
        let client = self.client(volume)?;
        if let Some(device) = self.hints.at(volume, &client.disk(), &device.path)? {
            self.hints.detach(&device)?;
        }
        let note = client.note()?;
        match (client.end()?, note) {
            (Ended::InOrder, Some(note)) => self.say_good_bye(volume, note),
            // What it sent last may arrive yet: the next one has it shut out.
            (Ended::InOrder | Ended::Before | Ended::Killed, _) => {}
        }
        Ok(())
    }

    fn cut(&self, volume: &Use, _device: Option<&Device>) -> Result<()> {
        let client = self.client(volume)?;
        client.abort()?;
        // Without its client the device does not even say whose it is. It goes with its last user.
        Ok(loops::release(&client.disk())?)
    }

    fn fence(
        &self,
        volume: &str,
        image: &str,
        holders: &[Entry],
        generation: Generation,
    ) -> Result<()> {
        check_image(image)?;
        let cluster = self.cluster()?;
        if cluster.ledger(image)?.owner_but(volume).is_some() {
            // None of ours was ever let in, and the owner's clients have nothing to do with us.
            return Ok(());
        }
        cluster.note(image, &Key::Epoch(generation))?;
        let ledger = cluster.ledger(image)?;
        let mut out = ledger.writers(|of| of < generation);
        let identities = holders.iter().map(|holder| holder.identity.clone());
        out.extend(identities.filter(|identity| !identity.is_empty()));
        // Who came so far that nobody knows its address sees the epoch before it writes. That it has
        // the image open is known all the same.
        if holders.iter().any(|holder| holder.identity.is_empty() && !holder.read_only) {
            let later = ledger.writers(|of| of >= generation);
            out.extend(cluster.watchers(image)?.difference(&later).cloned());
        }
        shut_out(&cluster, image, &ledger, &out)
    }

    fn epoch(&self, image: &str) -> Result<Generation> {
        check_image(image)?;
        let cluster = self.cluster()?;
        if cluster.size(image)?.is_none() {
            return Err(self.missing(image));
        }
        Ok(cluster.ledger(image)?.epoch())
    }

    fn create(&self, image: &str, bytes: u64) -> Result<()> {
        check_image(image)?;
        Ok(self.cluster()?.create(image, whole(bytes))?)
    }

    fn grow(&self, image: &str, bytes: u64) -> Result<()> {
        check_image(image)?;
        let cluster = self.cluster()?;
        match cluster.size(image)? {
            None => Err(self.missing(image)),
            Some(size) if size >= whole(bytes) => Ok(()),
            Some(_) => Ok(cluster.resize(image, whole(bytes))?),
        }
    }

    fn delete(&self, volume: &str, image: &str) -> Result<()> {
        check_image(image)?;
        let cluster = self.cluster()?;
        let known = cluster.ledger(image)?;
        owner::refuse_other(known.owner_but(volume), image, volume)?;
        let epoch = known.epoch();
        if cluster.size(image)?.is_some() {
            cluster.note(image, &Key::Epoch(epoch.next()))?;
        }
        // Ceph refuses while somebody has it open.
        cluster.remove(image)?;
        let ledger = cluster.ledger(image)?;
        for key in ledger.of_image().iter().chain(&ledger.outdated(&BTreeSet::new())) {
            cluster.forget(image, key, GOOD_BYE)?;
        }
        Ok(())
    }

    fn refresh(&self, volume: &Use, device: &Device) -> Result<()> {
        let image = &volume.image;
        let size = self.cluster()?.size(image)?.ok_or_else(|| self.missing(image))?;
        let client = self.client(volume)?;
        client.resize(size)?;
        if let Some(device) = self.hints.at(volume, &client.disk(), &device.path)? {
            loops::grow(&device)?;
        }
        Ok(())
    }
}

fn admit(ledger: &Ledger, volume: &Use) -> Result<()> {
    let Use { image, generation: ours, .. } = volume;
    let image = image.clone();
    ledger.admit(&volume.volume, *ours).map_err(|refused| match refused {
        Unadmitted::Taken { by } => StorageError::Taken { image, by },
        Unadmitted::Later { epoch } => StorageError::Later { image, epoch, ours: *ours },
    })
}

/// Shuts clients out, and only then forgets them.
fn shut_out(cluster: &Cluster, image: &str, ledger: &Ledger, out: &BTreeSet<String>) -> Result<()> {
    for address in out {
        cluster.shut_out(address)?;
    }
    for key in ledger.outdated(out) {
        cluster.forget(image, &key, GOOD_BYE)?;
    }
    Ok(())
}
