//! Ceph as it is asked here: by its own programs.

use std::{
    collections::BTreeSet, fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command,
    time::Duration,
};

use serde::Deserialize;
use wharf_core::volume::rbd::{Key, Ledger, Parameters};

use super::{
    Error,
    command::{Ran, program, run},
};
use crate::{
    host::files,
    volumes::{Places, storage::StorageError},
};

/// For one question. They take some hundredths of a second.
const ANSWER: Duration = Duration::from_secs(15);
/// Removing an image takes as long as it has objects; what was begun goes on with the next try.
const REMOVE: Duration = Duration::from_secs(80);
/// For ever, in the terms of a cluster: a machine that was stopped may go on after any time.
const SHUT_OUT_SECONDS: u64 = 10 * 365 * 24 * 3600;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

pub struct Cluster {
    pub parameters: Parameters,
    pub conf: PathBuf,
}

#[derive(Deserialize)]
struct Status {
    watchers: Vec<Client>,
}

#[derive(Deserialize)]
struct Client {
    address: String,
}

#[derive(Deserialize)]
struct Info {
    size: u64,
}

impl Cluster {
    /// Writes the configuration of the programs; asks nobody yet.
    pub fn new(parameters: &Parameters, places: &Places) -> Result<Self, Error> {
        let keyring = &parameters.keyring;
        let bad = |why: String| Error::Keyring { path: keyring.clone(), why };
        let mode = fs::metadata(keyring).map_err(|error| bad(error.to_string()))?.permissions();
        if mode.mode() & 0o077 != 0 {
            return Err(bad("others than its owner can use it; say chmod 600".to_owned()));
        }
        let text = parameters.render_conf();
        let sum: String = files::sha256(text.as_bytes()).chars().take(16).collect();
        let dir = places.state_dir.join("ceph");
        let conf = dir.join(format!("{sum}.conf"));
        let written = || {
            if fs::read_to_string(&conf).is_ok_and(|known| known == text) {
                return Ok(());
            }
            fs::create_dir_all(&dir)?;
            files::write_durably(&conf, 0o600, text.as_bytes())
        };
        written().map_err(|source| Error::Io { what: "write Ceph's configuration", source })?;
        Ok(Self { parameters: parameters.clone(), conf })
    }

    /// `None` when there is no such image.
    pub fn size(&self, image: &str) -> Result<Option<u64>, Error> {
        let info: Option<Info> = self.ask(image, &["info"])?;
        Ok(info.map(|info| info.size))
    }

    /// The clients that have the image open to write.
    pub fn watchers(&self, image: &str) -> Result<BTreeSet<String>, Error> {
        let status: Option<Status> = self.ask(image, &["status"])?;
        let watchers = status.into_iter().flat_map(|status| status.watchers);
        Ok(watchers.map(|client| client.address).collect())
    }

    /// The clients that have Ceph's own lock of the image.
    pub fn lockers(&self, image: &str) -> Result<BTreeSet<String>, Error> {
        let lockers: Option<Vec<Client>> = self.ask(image, &["lock", "ls"])?;
        Ok(lockers.into_iter().flatten().map(|client| client.address).collect())
    }

    pub fn create(&self, image: &str, bytes: u64) -> Result<(), Error> {
        let size = format!("{bytes}B");
        let ran = self.rbd(image, &["create", "--size", &size], ANSWER)?;
        if ran.code == Some(EEXIST) { Ok(()) } else { ran.succeeded("rbd create").map(drop) }
    }

    pub fn resize(&self, image: &str, bytes: u64) -> Result<(), Error> {
        let size = format!("{bytes}B");
        let ran = self.rbd(image, &["resize", "--no-progress", "--size", &size], ANSWER)?;
        ran.succeeded("rbd resize").map(drop)
    }

    pub fn remove(&self, image: &str) -> Result<(), Error> {
        let ran = self.rbd(image, &["rm", "--no-progress"], REMOVE)?;
        if ran.code == Some(ENOENT) { Ok(()) } else { ran.succeeded("rbd rm").map(drop) }
    }

    /// From now on nothing that this client sends is carried out.
    pub fn shut_out(&self, address: &str) -> Result<(), Error> {
        let seconds = SHUT_OUT_SECONDS.to_string();
        let mut command = self.program("ceph");
        command.args(["osd", "blocklist", "add", address, &seconds]);
        run(command, ANSWER)?.succeeded("ceph osd blocklist").map(drop)
    }

    /// The ledger of an image, which is made if there is none: the program does not tell what is
    /// missing from what failed.
    pub fn ledger(&self, image: &str) -> Result<Ledger, Error> {
        let list = || self.rados(&["listomapkeys", &object(image)], ANSWER);
        let ran = list()?;
        if ran.code == Some(0) {
            return Ok(Ledger::parse(&ran.stdout));
        }
        self.rados(&["create", &object(image)], ANSWER)?;
        Ok(Ledger::parse(&list()?.succeeded("rados listomapkeys")?))
    }

    pub fn note(&self, image: &str, key: &Key) -> Result<(), Error> {
        let set = ["setomapval", &object(image), &key.to_string(), "1"];
        self.rados(&set, ANSWER)?.succeeded("rados setomapval").map(drop)
    }

    pub fn forget(&self, image: &str, key: &Key, within: Duration) -> Result<(), Error> {
        let remove = ["rmomapkey", &object(image), &key.to_string()];
        self.rados(&remove, within)?.succeeded("rados rmomapkey").map(drop)
    }

    fn ask<T: serde::de::DeserializeOwned>(
        &self,
        image: &str,
        words: &[&str],
    ) -> Result<Option<T>, Error> {
        let name = format!("rbd {}", words.join(" "));
        let words = [words, &["--format", "json"]].concat();
        let ran = self.rbd(image, &words, ANSWER)?;
        if ran.code == Some(ENOENT) {
            return Ok(None);
        }
        let text = ran.succeeded(&name)?;
        serde_json::from_str(&text).map(Some).map_err(|source| Error::Answer { name, source })
    }

    fn rbd(&self, image: &str, words: &[&str], within: Duration) -> Result<Ran, Error> {
        let mut command = self.program("rbd");
        command.args(words).arg(format!("{}/{image}", self.parameters.pool));
        run(command, within)
    }

    fn rados(&self, words: &[&str], within: Duration) -> Result<Ran, Error> {
        let mut command = self.program("rados");
        command.args(["--pool", &self.parameters.pool]).args(words);
        run(command, within)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = program(name);
        command.arg("--conf").arg(&self.conf).args(["--id", &self.parameters.user]);
        command
    }
}

impl From<Error> for StorageError {
    fn from(error: Error) -> Self {
        Self::Rbd(Box::new(error))
    }
}

/// Where the ledger of an image is, beside Ceph's own objects of it.
fn object(image: &str) -> String {
    format!("wharf.{image}")
}
