//! What is missing on a host: from the document, the record of what was made and what was found.
//!
//! Nothing here looks at the machine. [`decide_ground`] lists what to do before units are started,
//! [`decide_starts`] which units to start, [`record`] what must be on the disk before any of it.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::install::host::{
    Action, Bundled, Change, Content, HostDocument, HostFailure, Image, Unit, Wanted, place,
    uploaded_path,
};

use super::failure::{Telling, failure};
use super::files::{Found, sha256};
use super::kernel::plain;
use super::made::{Made, NAMESPACES, Setting};
use super::paths::{ancestors, is_sound, may_remove_file, may_remove_tree};
use super::units::{Activity, Start, UnitState, unit_path};

/// For a directory that no document names, on the way to one that does.
const PLAIN_DIRECTORY: u32 = 0o755;
pub(crate) const UNIT_MODE: u32 = 0o644;

/// What was found on the host, as far as the document and the record speak of it.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Every path of [`concerned_paths`].
    pub paths: BTreeMap<String, Found>,
    pub missing_modules: BTreeSet<String>,
    pub sysctls: BTreeMap<String, Option<String>>,
    /// Where files of the bundle lie, by checksum.
    pub sources: BTreeMap<String, String>,
    pub units: BTreeMap<String, UnitState>,
}

impl Observed {
    fn at(&self, path: &str) -> &Found {
        self.paths.get(path).unwrap_or(&Found::Nothing)
    }

    fn sysctl(&self, key: &str) -> Option<String> {
        self.sysctls.get(key).cloned().flatten()
    }

    fn unit(&self, name: &str) -> UnitState {
        self.units.get(name).cloned().unwrap_or_default()
    }
}

/// One thing to do. They are done in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<'a> {
    LoadModule(&'a str),
    SetSysctl { key: &'a str, value: &'a str },
    MakeDirectory { path: &'a str, mode: u32 },
    WriteText { path: &'a str, mode: u32, text: &'a str },
    PointTo { path: &'a str, target: String, action: Action },
    WriteUnit { unit: &'a Unit, file: bool, enable: bool },
    StopUnit(&'a str),
    RemoveFile(&'a str),
}

impl Step<'_> {
    pub fn change(&self) -> Change {
        let (action, subject) = match self {
            Step::LoadModule(name) => (Action::LoadModule, *name),
            Step::SetSysctl { key, .. } => (Action::SetSysctl, *key),
            Step::MakeDirectory { path, .. } => (Action::MakeDirectory, *path),
            Step::WriteText { path, .. } => (Action::WriteFile, *path),
            Step::PointTo { path, action, .. } => (*action, *path),
            Step::WriteUnit { unit, .. } => (Action::WriteUnit, unit.name.as_str()),
            Step::StopUnit(name) => (Action::StopUnit, *name),
            Step::RemoveFile(path) => (Action::Remove, *path),
        };
        Change { action, subject: subject.to_owned() }
    }
}

/// Refuses a document that no host can follow, and the host of another cluster.
pub fn check(document: &HostDocument, made: Option<&Made>) -> Result<(), HostFailure> {
    let of_other =
        |made: &&Made| (&made.cluster, &made.identity) != (&document.cluster, &document.identity);
    if let Some(made) = made.filter(of_other) {
        let (theirs, ours) = (&made.cluster, &document.cluster);
        let message = match theirs == ours {
            true => format!("the host holds another cluster that is named {ours} too"),
            false => format!("the host belongs to cluster {theirs}, the document is for {ours}"),
        };
        return Err(failure("read the document", message).hint(format!(
            "delete that cluster, or clean the host with `{}/bin/wharf agent host remove` on it",
            place::PROGRAMS
        )));
    }
    let bad =
        |path: &str| Err(failure("read the document", format!("{path:?} may not be written")));
    let files = document.files.iter().map(|file| file.path.as_str());
    for path in files.chain(document.links.iter().map(|link| link.path.as_str())) {
        if !may_remove_file(path) {
            return bad(path);
        }
    }
    for directory in &document.directories {
        if !is_sound(&directory.path) {
            return bad(&directory.path);
        }
    }
    for path in &document.grown.directories {
        if !may_remove_tree(path) {
            let message = format!("{path:?} may not be removed, so it may not be used");
            return Err(failure("read the document", message));
        }
    }
    for unit in &document.units {
        if unit.name.contains('/') || unit.name.starts_with(['-', '.']) || !unit.name.contains('.')
        {
            return bad(&unit.name);
        }
    }
    Ok(())
}

/// All paths that a decision looks at.
pub fn concerned_paths(document: &HostDocument, made: Option<&Made>) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for path in named_paths(document) {
        paths.extend(ancestors(&path).map(str::to_owned));
        paths.insert(path);
    }
    paths.extend(document.units.iter().flat_map(|unit| unit.inputs.iter().cloned()));
    paths.extend(document.grown.directories.iter().cloned());
    paths.extend(document.grown.shared.iter().cloned());
    paths.insert(NAMESPACES.to_owned());
    paths.extend(made.iter().flat_map(|made| made.files.iter().cloned()));
    paths
}

/// Every file, link, unit file and directory that the document wants.
fn named_paths(document: &HostDocument) -> BTreeSet<String> {
    let directories = document.directories.iter().map(|directory| directory.path.clone());
    directories.chain(named_files(document)).collect()
}

fn named_files(document: &HostDocument) -> BTreeSet<String> {
    let files = document.files.iter().map(|file| file.path.clone());
    let links = document.links.iter().map(|link| link.path.clone());
    let units = document.units.iter().map(|unit| unit_path(&unit.name));
    files.chain(links).chain(units).collect()
}

/// Everything up to the start of units. An error means that nothing may be touched.
///
/// `dry_run`: files of the bundle that are not on the host are taken as uploaded.
pub fn decide_ground<'a>(
    document: &'a HostDocument,
    made: &'a Made,
    observed: &Observed,
    dry_run: bool,
) -> Result<Vec<Step<'a>>, HostFailure> {
    let mut steps = decide_stale(document, made, observed);
    let missing = |module: &&String| observed.missing_modules.contains(*module);
    steps.extend(document.modules.iter().filter(missing).map(|name| Step::LoadModule(name)));
    for (key, value) in &document.sysctls {
        if observed.sysctl(key) != Some(plain(value)) {
            steps.push(Step::SetSysctl { key, value });
        }
    }
    decide_directories(document, made, observed, &mut steps)?;
    decide_files(document, made, observed, dry_run, &mut steps)?;
    for link in &document.links {
        let wanted = Found::Link { target: link.target.clone(), to_directory: false };
        if needs_writing(&link.path, &wanted, made, observed)? {
            let (path, target) = (link.path.as_str(), link.target.clone());
            steps.push(Step::PointTo { path, target, action: Action::MakeLink });
        }
    }
    decide_unit_files(document, made, observed, &mut steps)?;
    Ok(steps)
}

/// What an earlier document wanted and this one does not.
fn decide_stale<'a>(document: &HostDocument, made: &'a Made, observed: &Observed) -> Vec<Step<'a>> {
    let named = named_files(document);
    let wanted = |name: &str| document.units.iter().any(|unit| unit.name == name);
    let mut steps = Vec::new();
    steps.extend(
        made.units.iter().rev().filter(|name| !wanted(name)).map(|name| Step::StopUnit(name)),
    );
    for (key, setting) in &made.sysctls {
        let restored = observed.sysctl(key).as_ref() == Some(&setting.former);
        if !document.sysctls.contains_key(key) && !restored {
            steps.push(Step::SetSysctl { key, value: &setting.former });
        }
    }
    for path in made.files.iter().filter(|path| !named.contains(*path)) {
        if *observed.at(path) != Found::Nothing {
            steps.push(Step::RemoveFile(path));
        }
    }
    steps
}

/// Directories, parents first, and those on the way to anything that the document names.
fn decide_directories<'a>(
    document: &'a HostDocument,
    made: &Made,
    observed: &Observed,
    steps: &mut Vec<Step<'a>>,
) -> Result<(), HostFailure> {
    let mut wanted: BTreeMap<&str, Option<u32>> = BTreeMap::new();
    let files = document.files.iter().map(|file| file.path.as_str());
    let links = document.links.iter().map(|link| link.path.as_str());
    for path in files.chain(links).chain(document.directories.iter().map(|d| d.path.as_str())) {
        for ancestor in ancestors(path) {
            wanted.entry(ancestor).or_default();
        }
    }
    for directory in &document.directories {
        wanted.insert(&directory.path, Some(directory.mode));
    }
    for (path, mode) in wanted {
        let make = match observed.at(path) {
            Found::Nothing => true,
            // What somebody else made keeps its mode; a link to a directory is their choice. A
            // component may close its own directory further, as containerd does at every start.
            Found::Directory { mode: found, .. } => {
                made.owns(path) && mode.is_some_and(|mode| found & !mode != 0)
            }
            Found::Link { to_directory: true, .. } => false,
            Found::Link { .. } | Found::File { .. } | Found::Other => {
                return Err(failure(format!("make {path}"), format!("{path} is not a directory"))
                    .hint("move it away, then try again"));
            }
        };
        if make {
            steps.push(Step::MakeDirectory { path, mode: mode.unwrap_or(PLAIN_DIRECTORY) });
        }
    }
    Ok(())
}

fn decide_files<'a>(
    document: &'a HostDocument,
    made: &Made,
    observed: &Observed,
    dry_run: bool,
    steps: &mut Vec<Step<'a>>,
) -> Result<(), HostFailure> {
    let mut absent: Vec<&str> = Vec::new();
    for file in &document.files {
        match &file.content {
            Content::Text(text) => {
                let wanted = Found::File { mode: file.mode, sha256: sha256(text.as_bytes()) };
                if needs_writing(&file.path, &wanted, made, observed)? {
                    steps.push(Step::WriteText { path: &file.path, mode: file.mode, text });
                }
            }
            Content::Bundled(bundled) => {
                let Some(target) = source(bundled, observed, dry_run) else {
                    absent.push(&bundled.path);
                    continue;
                };
                let wanted = Found::Link { target: target.clone(), to_directory: false };
                if needs_writing(&file.path, &wanted, made, observed)? {
                    let (path, action) = (file.path.as_str(), Action::WriteFile);
                    steps.push(Step::PointTo { path, target, action });
                }
            }
        }
    }
    if absent.is_empty() { Ok(()) } else { Err(absent_from_bundle(&absent)) }
}

pub(crate) fn source(bundled: &Bundled, observed: &Observed, dry_run: bool) -> Option<String> {
    let found = observed.sources.get(&bundled.sha256).cloned();
    found.or_else(|| dry_run.then(|| uploaded_path(&bundled.sha256)))
}

pub(crate) fn absent_from_bundle(paths: &[&str]) -> HostFailure {
    let message = format!("not on the host, or not with the right checksum: {}", paths.join(", "));
    failure("find files of the bundle", message).hint(format!(
        "remove what is damaged from {} or {}/files on the host, then try again: it is uploaded",
        place::PRELOADED,
        place::PROGRAMS
    ))
}

/// Whether there is something to do at this path; an error if what is there is not ours.
fn needs_writing(
    path: &str,
    wanted: &Found,
    made: &Made,
    observed: &Observed,
) -> Result<bool, HostFailure> {
    let found = observed.at(path);
    let same = match (found, wanted) {
        (Found::Link { target: found, .. }, Found::Link { target: wanted, .. }) => found == wanted,
        (found, wanted) => found == wanted,
    };
    match found {
        _ if same => Ok(false),
        Found::Nothing => Ok(true),
        Found::Directory { .. } | Found::Other => {
            Err(failure(format!("write {path}"), format!("{path} is not a file"))
                .hint("move it away, then try again"))
        }
        Found::File { .. } | Found::Link { .. } if made.owns(path) => Ok(true),
        Found::File { .. } | Found::Link { .. } => {
            let message = format!("{path} was there before and is not ours");
            Err(failure(format!("write {path}"), message)
                .hint("move it away if nothing needs it, then try again"))
        }
    }
}

fn decide_unit_files<'a>(
    document: &'a HostDocument,
    made: &Made,
    observed: &Observed,
    steps: &mut Vec<Step<'a>>,
) -> Result<(), HostFailure> {
    for unit in &document.units {
        let wanted = Found::File { mode: UNIT_MODE, sha256: sha256(unit.text.as_bytes()) };
        let file = needs_writing(&unit_path(&unit.name), &wanted, made, observed)?;
        // Without such a section it has no place in the boot, and cannot be enabled.
        let enable = unit.text.contains("[Install]") && !observed.unit(&unit.name).enabled;
        if file || enable {
            steps.push(Step::WriteUnit { unit, file, enable });
        }
    }
    Ok(())
}

/// What the record must say, on the disk, before the steps are done.
pub fn record(
    made: &Made,
    steps: &[Step<'_>],
    document: &HostDocument,
    observed: &Observed,
) -> Made {
    let mut record = made.clone();
    for step in steps {
        match step {
            Step::LoadModule(name) => drop(record.modules.insert((*name).to_owned())),
            Step::SetSysctl { key, value } => {
                if let Some(former) = observed.sysctl(key) {
                    record_sysctl(&mut record, key, &former, value);
                }
            }
            Step::MakeDirectory { path, .. } => {
                if *observed.at(path) == Found::Nothing {
                    record.directories.insert((*path).to_owned());
                }
            }
            Step::WriteText { path, .. } | Step::PointTo { path, .. } => {
                record.files.insert((*path).to_owned());
            }
            Step::WriteUnit { unit, file, .. } => {
                if *file {
                    record.files.insert(unit_path(&unit.name));
                }
            }
            Step::StopUnit(_) | Step::RemoveFile(_) => {}
        }
    }
    let stale = made.units.iter().filter(|name| !document.units.iter().any(|u| u.name == **name));
    let named = document.units.iter().map(|unit| &unit.name);
    record.units = stale.chain(named).cloned().collect();
    let first = made.grown.netns_prefixes.is_empty() && !document.grown.netns_prefixes.is_empty();
    if first && *observed.at(NAMESPACES) == Found::Nothing {
        record.directories.insert(NAMESPACES.to_owned());
    }
    let (known, named) = (&made.grown, &document.grown);
    for path in named.directories.iter().chain(&named.shared) {
        let old = known.directories.contains(path) || known.shared.contains(path);
        if !old && !record.owns(path) && *observed.at(path) != Found::Nothing {
            record.kept.insert(path.clone());
        }
    }
    record.add_grown(&document.grown);
    record
}

/// The first value that was found is the one to restore; what is ours changes with documents.
pub fn record_sysctl(made: &mut Made, key: &str, former: &str, ours: &str) {
    let new = || Setting { former: former.to_owned(), ours: String::new() };
    made.sysctls.entry(key.to_owned()).or_insert_with(new).ours = plain(ours);
}

/// What the record says after the steps were done: what was taken away is no longer ours.
pub fn record_done(made: &Made, document: &HostDocument) -> Made {
    let mut record = made.clone();
    let named = named_files(document);
    record.files.retain(|path| named.contains(path));
    record.units.retain(|name| document.units.iter().any(|unit| unit.name == *name));
    record.sysctls.retain(|key, _| document.sysctls.contains_key(key));
    record
}

/// The units to start, and those to start anew because what they were started with has changed.
pub fn decide_starts<'a>(document: &'a HostDocument, observed: &Observed) -> Vec<Start<'a>> {
    let wanted = document.units.iter().filter(|unit| unit.wanted == Wanted::Started);
    let starts = wanted.filter_map(|unit| {
        let state = observed.unit(&unit.name);
        let fingerprint = fingerprint(unit, document, observed);
        let same = state.fingerprint.as_ref() == Some(&fingerprint);
        let restart = match state.active {
            Activity::Active if same => return None,
            Activity::Active => true,
            // It may wait for others, as etcd does: it must not begin again.
            Activity::Changing => !same,
            Activity::Inactive | Activity::Failed => false,
        };
        Some(Start { unit, restart, fingerprint })
    });
    starts.collect()
}

/// Stands for everything that a unit is started with. A program of the bundle counts by its
/// checksum and not by where it lies.
fn fingerprint(unit: &Unit, document: &HostDocument, observed: &Observed) -> String {
    let mut text = format!("unit {}\n", sha256(unit.text.as_bytes()));
    for path in &unit.inputs {
        let file = document.files.iter().find(|file| file.path == *path);
        let link = document.links.iter().find(|link| link.path == *path);
        let content = match (file.map(|file| &file.content), link, observed.at(path)) {
            (Some(Content::Text(text)), _, _) => sha256(text.as_bytes()),
            (Some(Content::Bundled(bundled)), _, _) => bundled.sha256.clone(),
            (None, Some(link), _) => link.target.clone(),
            (None, None, Found::File { sha256, .. }) => sha256.clone(),
            (None, None, Found::Link { target, .. }) => target.clone(),
            (None, None, Found::Nothing | Found::Directory { .. } | Found::Other) => String::new(),
        };
        text.push_str(&format!("{path} {content}\n"));
    }
    sha256(text.as_bytes())
}

/// The images that are not there yet.
pub fn decide_images<'a>(document: &'a HostDocument, present: &BTreeSet<String>) -> Vec<&'a Image> {
    document.images.iter().filter(|image| !present.contains(&image.name)).collect()
}

#[cfg(test)]
mod tests;
