//! The document that says what a host shall hold, and the report on what was done about it.
//!
//! The server makes the document, `wharf agent host` on the host carries it out. Both are the same
//! version: the server uploads its own program before it asks for anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where everything of ours lies on a host.
pub mod place {
    /// Programs, by their checksum, and links to those in use.
    pub const PROGRAMS: &str = "/opt/wharf";
    /// Configuration, certificates, kubeconfigs.
    pub const CONFIG: &str = "/etc/wharf";
    /// What the components and the agent keep.
    pub const DATA: &str = "/var/lib/wharf";
    /// What lives until the next boot.
    pub const RUN: &str = "/run/wharf";
    /// A bundle that came with the machine's image; its files are used instead of being uploaded.
    pub const PRELOADED: &str = "/usr/share/wharf/bundle";
    /// What was made on this host, so that exactly that can be removed.
    pub const MADE: &str = "/var/lib/wharf/made.json";
    pub const UNITS: &str = "/etc/systemd/system";
}

/// What a host shall hold. Everything is in the order in which it is made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostDocument {
    /// The cluster it is for; another cluster's host is refused.
    pub cluster: String,
    /// Tells clusters of one name apart: chance made it when the cluster was.
    pub identity: String,
    pub modules: Vec<String>,
    /// By their names with dots: `net.ipv4.ip_forward`.
    pub sysctls: BTreeMap<String, String>,
    pub directories: Vec<Directory>,
    pub files: Vec<File>,
    pub links: Vec<Link>,
    pub images: Vec<Image>,
    pub units: Vec<Unit>,
    /// What the components make by themselves and a removal takes away: directories whose content
    /// goes, network links, nft tables.
    pub grown: Grown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    pub path: String,
    pub mode: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub path: String,
    pub mode: u32,
    pub content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Content {
    /// Small, and possibly secret: never logged, never part of a report.
    Text(String),
    /// A file of the bundle that must be on the host already, under [`uploaded_path`] or in
    /// [`place::PRELOADED`]; the document's file becomes a link to it.
    Bundled(Bundled),
}

/// A file of the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundled {
    /// Its path in the bundle: `bin/kubelet`.
    pub path: String,
    pub sha256: String,
    pub size: u64,
}

/// Where an uploaded file lies on a host: by its checksum, so that versions live side by side and
/// a file that is there is a file that is right.
pub fn uploaded_path(sha256: &str) -> String {
    format!("{}/files/{sha256}", place::PROGRAMS)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub path: String,
    pub target: String,
}

/// An image that containerd shall have, from an archive of the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Its full name: `wharf.dev/pause:1`.
    pub name: String,
    pub archive: Bundled,
}

/// A unit of systemd that shall be there, enabled, and in this state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// With its suffix: `wharf-kubelet.service`.
    pub name: String,
    pub text: String,
    pub wanted: Wanted,
    /// Files whose change means that the unit must be restarted. Its own text counts always.
    pub inputs: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// There and enabled, but not started yet: a later phase does.
    Present,
    Started,
}

/// What a removal takes away although no document made it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grown {
    /// Removed with all below them, after everything mounted there was unmounted. A directory that
    /// was there before the first document is emptied and kept.
    pub directories: Vec<String>,
    pub links: Vec<String>,
    /// As `family name`: `ip kube-proxy`.
    pub nft_tables: Vec<String>,
    /// Cgroups below each hierarchy, whose processes are ended first: `kubepods`.
    pub cgroups: Vec<String>,
    /// Namespaces in `/run/netns` that begin with this belong to pods.
    pub netns_prefixes: Vec<String>,
    /// Directories that others use too: a removal takes out of them what it knows as ours, and then
    /// the directory, if it is empty and was not there before the first document.
    #[serde(default)]
    pub shared: Vec<String>,
}

/// What was done, or with `dry_run` would be done, for a document.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostReport {
    /// One entry for each change, in order; empty when everything was as it should be.
    pub changes: Vec<Change>,
    /// Units that run now, with the id of their main process.
    pub running: BTreeMap<String, u32>,
    pub failure: Option<HostFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub action: Action,
    /// The path, unit, image, module or key that changed.
    pub subject: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    LoadModule,
    SetSysctl,
    MakeDirectory,
    WriteFile,
    MakeLink,
    ImportImage,
    WriteUnit,
    StartUnit,
    RestartUnit,
    StopUnit,
    Remove,
}

/// Why a host is not as it should be; what went before has been done and is reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFailure {
    /// What was tried: `start wharf-etcd.service`.
    pub step: String,
    pub message: String,
    /// The last lines of the unit's journal or the command's errors.
    pub detail: String,
    pub hint: Option<String>,
}

/// What a removal took away, or with `dry_run` would take away, and what it could not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovalReport {
    /// In order; empty when nothing of ours was there.
    pub changes: Vec<Change>,
    /// Empty when the host is as it was before.
    pub leftovers: Vec<Leftover>,
    /// What was left on purpose because others need it now.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Something of ours that is still on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leftover {
    /// The path, unit, link, table or cgroup.
    pub item: String,
    pub reason: String,
}
