//! The record of what was made on this host, so that exactly that can be removed.
//!
//! **Invariant:** a thing stands in the record, on the disk, before it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};
use wharf_core::install::host::{Grown, HostFailure, place};

use super::failure::{Telling, failure};
use super::files;
use super::root::Root;

/// The record's format. A later one will know how to read earlier ones.
const FORMAT: u32 = 1;

/// The four directories that carry our name. Others may have something in them too, as a server of
/// ours has its store, so only what documents name there is ours.
pub const PLACES: [&str; 4] = [place::PROGRAMS, place::CONFIG, place::DATA, place::RUN];

/// Where named network namespaces are. Whoever makes the first one makes the directory.
pub const NAMESPACES: &str = "/run/netns";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    format: u32,
    pub cluster: String,
    #[serde(default)]
    pub identity: String,
    pub directories: BTreeSet<String>,
    /// Files, symbolic links and unit files.
    pub files: BTreeSet<String>,
    /// In the order in which they are started.
    pub units: Vec<String>,
    pub sysctls: BTreeMap<String, Setting>,
    /// Modules that were not loaded before. They stay loaded until the next boot: others may have
    /// begun to use them, and an unused one harms nobody.
    pub modules: BTreeSet<String>,
    pub grown: Grown,
    /// Directories of `grown` that were there before us: they stay.
    pub kept: BTreeSet<String>,
}

/// A setting of the kernel that we changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub former: String,
    pub ours: String,
}

impl Made {
    pub fn new(cluster: &str, identity: &str) -> Self {
        Self {
            format: FORMAT,
            cluster: cluster.to_owned(),
            identity: identity.to_owned(),
            directories: BTreeSet::new(),
            files: BTreeSet::new(),
            units: Vec::new(),
            sysctls: BTreeMap::new(),
            modules: BTreeSet::new(),
            grown: Grown::default(),
            kept: BTreeSet::new(),
        }
    }

    /// Whether what is at this path is ours to overwrite or remove.
    pub fn owns(&self, path: &str) -> bool {
        self.files.contains(path) || self.directories.contains(path)
    }

    /// Joins what a removal takes away: what an earlier document let grow may still be there.
    pub fn add_grown(&mut self, grown: &Grown) {
        join(&mut self.grown.directories, &grown.directories);
        join(&mut self.grown.links, &grown.links);
        join(&mut self.grown.nft_tables, &grown.nft_tables);
        join(&mut self.grown.cgroups, &grown.cgroups);
        join(&mut self.grown.netns_prefixes, &grown.netns_prefixes);
        join(&mut self.grown.shared, &grown.shared);
    }

    pub fn load(root: &Root) -> Result<Option<Self>, HostFailure> {
        let step = format!("read {}", place::MADE);
        let text = match fs::read(root.path(place::MADE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failure(step, error.to_string())),
        };
        let made: Self = serde_json::from_slice(&text).map_err(|error| {
            failure(&step, format!("the record of what was made cannot be read: {error}"))
                .hint("it may come from a newer version; otherwise restore it from a backup")
        })?;
        if made.format > FORMAT {
            let text =
                format!("the record has format {}, this program knows {FORMAT}", made.format);
            return Err(failure(step, text).hint("use a newer version of wharf"));
        }
        Ok(Some(made))
    }

    pub fn store(&self, root: &Root) -> Result<(), HostFailure> {
        let told = |error: io::Error| failure(format!("write {}", place::MADE), error.to_string());
        let text = serde_json::to_vec_pretty(self).map_err(|error| told(error.into()))?;
        fs::create_dir_all(root.path(place::DATA)).map_err(told)?;
        files::write_durably(&root.path(place::MADE), 0o600, &text).map_err(told)
    }
}

fn join(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}
