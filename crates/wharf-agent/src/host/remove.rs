//! Taking away everything that was made on a host, and nothing else.
//!
//! A removal goes on after an error: what could not be taken away is a [`Leftover`] with its
//! reason, and the record stays so that the removal can be repeated. It works on a host that was
//! installed only in part, and twice.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wharf_block::loops;
use wharf_core::install::components::{NAMES, etcd};
use wharf_core::install::credentials::path as pki;
use wharf_core::install::host::{Action, Change, HostFailure, Leftover, RemovalReport, place};

use super::bundled::STATE;
use super::failure::told;
use super::made::{Made, NAMESPACES, PLACES};
use super::paths::{ancestors, is_below, may_remove_file, may_remove_tree};
use super::root::{Root, wait_until};
use super::units::{self, Activity};
use super::{files, kernel, mounts};

mod cgroups;
mod devices;
mod network;
mod pods;
mod processes;
mod tree;

/// Killed processes need a moment to be gone, and their cgroups with them.
const END_DEADLINE: Duration = Duration::from_secs(20);

/// Where the server puts files of the bundle, before there is a document and a record.
const UPLOADS: &str = "/opt/wharf/files";

/// Others need it as soon as they run containers.
const FORWARDING: &str = "net.ipv4.ip_forward";

/// Removes what the record names, as far as it can.
///
/// Flow: stop units; end containers; take away their namespaces, links, tables and routes; unmount;
/// remove directories, files and units; restore settings; remove our own places, the record last.
/// Guarantees: nothing is unmounted or removed below a unit that still runs.
pub fn remove(root: &Root, dry_run: bool) -> RemovalReport {
    let report = RemovalReport::default();
    let mut removal =
        Removal { root, made: Made::new("", ""), dry_run, report, may_be_repeated: false };
    if let Err(failure) = removal.run() {
        removal.failed(place::MADE, &failure);
    }
    removal.report
}

/// Ends the guard of volumes that keeps its state in this directory.
pub(crate) fn end_guards(root: &Root, state_dir: &str) {
    processes::kill(root, &processes::guards(root, state_dir));
}

/// Takes a directory away with all below it, but for what is mounted there. Says what is left, and
/// why.
pub(crate) fn remove_tree(root: &Root, path: &str) -> Vec<(PathBuf, String)> {
    tree::remove(root, &root.path(path), false)
}

struct Removal<'a> {
    root: &'a Root,
    made: Made,
    dry_run: bool,
    report: RemovalReport,
    /// Whether something is left that another try might take away.
    may_be_repeated: bool,
}

impl Removal<'_> {
    fn run(&mut self) -> Result<(), HostFailure> {
        let _lock = self.root.lock()?;
        match Made::load(self.root)? {
            Some(made) => self.made = made,
            // Nothing was ever made, though files may have been uploaded; or a removal was killed
            // after it had removed the record, and an empty place is left.
            None => self.name_what_has_no_record(),
        }
        if !self.stop_units() {
            self.keep_the_record();
            return Ok(());
        }
        self.end_containers();
        let pods = pods::ours(self.root, &self.made.grown.directories);
        self.remove_shim_sockets();
        self.remove_network(&pods);
        self.remove_from_shared(&pods);
        self.remove_cgroups();
        self.unmount();
        self.detach_devices();
        self.remove_trees(|tree| !is_below(tree, place::PROGRAMS));
        self.remove_files();
        self.remove_directories();
        self.forget_units();
        self.restore_sysctls();
        // The program that runs this lies in one of them, which Linux does not mind.
        self.remove_trees(|tree| is_below(tree, place::PROGRAMS));
        self.remove_places();
        Ok(())
    }

    /// Does something, or in a dry run only says so.
    fn act(&mut self, action: Action, subject: &str, effect: impl FnOnce(&Root) -> io::Result<()>) {
        let done = if self.dry_run { Ok(()) } else { effect(self.root) };
        match done {
            Ok(()) => {
                self.report.changes.push(Change { action, subject: subject.to_owned() });
            }
            Err(error) => self.left(subject, error.to_string()),
        }
    }

    fn left(&mut self, item: &str, reason: impl Into<String>) {
        self.may_be_repeated = true;
        self.report.leftovers.push(Leftover { item: item.to_owned(), reason: reason.into() });
    }

    fn failed(&mut self, item: &str, failure: &HostFailure) {
        self.left(item, told(failure));
    }

    /// What looks like ours and may be, but nobody can say what else it was made with.
    fn name_what_has_no_record(&mut self) {
        let units = NAMES.map(|name| units::unit_path(&format!("wharf-{name}.service")));
        let data = [etcd::DATA, pki::DIRECTORY].map(str::to_owned);
        for path in units.into_iter().chain(data) {
            if self.root.path(&path).symlink_metadata().is_ok() {
                let reason = format!("{} is gone, which says what was made here", place::MADE);
                self.left(&path, reason);
            }
        }
    }

    /// `false` when one may still run.
    fn stop_units(&mut self) -> bool {
        let names: Vec<String> = self.made.units.clone();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let states = match units::observe(self.root, &names) {
            Ok(states) => states,
            Err(failure) => {
                self.failed("units", &failure);
                return false;
            }
        };
        let runs =
            |name: &&str| states.get(*name).is_some_and(|state| state.active != Activity::Inactive);
        for name in names.iter().rev().filter(|name| runs(name)) {
            let (action, subject) = (Action::StopUnit, (*name).to_owned());
            self.report.changes.push(Change { action, subject });
        }
        let stopped = if self.dry_run { Ok(()) } else { units::stop(self.root, &names) };
        stopped.map_err(|failure| self.failed(&names.join(", "), &failure)).is_ok()
    }

    /// Devices of volumes, now that nothing of them is mounted.
    fn detach_devices(&mut self) {
        match devices::ours(self.root) {
            Ok(found) => {
                for device in found {
                    let subject = device.path.display().to_string();
                    self.act(Action::Remove, &subject, |_| {
                        loops::detach(&device).map_err(io::Error::other)
                    });
                }
            }
            Err(error) => self.left("loop devices", error.to_string()),
        }
    }

    fn cgroups(&mut self) -> Vec<PathBuf> {
        cgroups::directories(self.root, &self.made.grown.cgroups).unwrap_or_else(|error| {
            self.left("cgroups", format!("mounts cannot be read: {error}"));
            Vec::new()
        })
    }

    /// Containers outlive containerd, so they are ended one by one: what lives in the pods'
    /// cgroups, and the processes of our containerd that watch over them.
    fn end_containers(&mut self) {
        let root = self.root;
        let cgroups = self.cgroups();
        if self.dry_run {
            return;
        }
        let victims = || {
            let mut pids = cgroups::processes(&cgroups);
            pids.extend(processes::watchers(root));
            pids
        };
        let gone = wait_until(END_DEADLINE, || {
            cgroups::thaw(&cgroups);
            let pids = victims();
            processes::kill(root, &pids);
            Ok::<_, io::Error>(pids.is_empty().then_some(()))
        });
        if !matches!(gone, Ok(Some(()))) {
            for pid in victims() {
                self.left(&format!("process {pid}"), "it does not end when it is killed");
            }
        }
    }

    fn remove_shim_sockets(&mut self) {
        for socket in processes::shim_sockets(self.root) {
            let remove = |root: &Root| files::remove_file(&root.path(&socket)).map(drop);
            self.act(Action::Remove, &socket, remove);
        }
    }

    fn remove_network(&mut self, pods: &pods::Pods) {
        for name in network::namespaces(self.root, &self.made.grown.netns_prefixes) {
            let path = format!("{NAMESPACES}/{name}");
            self.act(Action::Remove, &path, |root| network::remove_namespace(&root.path(&path)));
        }
        if self.made.directories.remove(NAMESPACES) && is_empty(&self.root.path(NAMESPACES)) {
            self.act(Action::Remove, NAMESPACES, network::remove_namespaces_directory);
        }
        for link in network::links(self.root, &self.made.grown.links) {
            self.act(Action::Remove, &link, |root| network::remove_link(root, &link));
        }
        if self.made.cluster.is_empty() {
            return;
        }
        match network::tables(self.root) {
            Ok(tables) => self.remove_tables(&tables, pods),
            Err(error) => self.left("nft tables", error.to_string()),
        }
        match network::has_routes(self.root) {
            Ok(true) => self.act(Action::Remove, &network::routes(), network::remove_routes),
            Ok(false) => {}
            Err(error) => self.left(&network::routes(), error.to_string()),
        }
    }

    fn remove_tables(&mut self, tables: &BTreeSet<String>, pods: &pods::Pods) {
        for table in self.made.grown.nft_tables.clone() {
            if tables.contains(&table) {
                self.act(Action::Remove, &table, |root| network::remove_table(root, &table));
            }
        }
        let table = network::HOST_PORTS;
        if !tables.contains(table) {
            return;
        }
        match network::host_ports(self.root, &pods.sandboxes) {
            Ok(rules) if rules.others => {
                for (rule, name) in rules.ours {
                    self.act(Action::Remove, &name, |root| network::remove_rule(root, &rule));
                }
            }
            Ok(_) => self.act(Action::Remove, table, |root| network::remove_table(root, table)),
            Err(error) => self.left(table, error.to_string()),
        }
    }

    /// Our own entries, then the directories that we were the first to need and that are empty.
    fn remove_from_shared(&mut self, pods: &pods::Pods) {
        let mut entries = pods::results(self.root, pods);
        let kept = |place: &&str| self.made.kept.contains(*place);
        if pods::LOGS.iter().any(kept) {
            entries.extend(pods::logs(self.root, pods));
        }
        for entry in entries {
            self.remove_tree(&entry, false);
        }
        for path in self.made.grown.shared.clone() {
            let real = self.root.path(&path);
            let plain = fs::symlink_metadata(&real).is_ok_and(|found| found.is_dir());
            if plain && is_empty(&real) && !self.made.kept.contains(&path) {
                self.act(Action::Remove, &path, |_| fs::remove_dir(&real));
            }
        }
    }

    fn remove_cgroups(&mut self) {
        for directory in self.cgroups() {
            let name = self.root.on_host(&directory);
            self.act(Action::Remove, &name, |_| cgroups::remove(&directory, END_DEADLINE));
        }
    }

    /// The directories that go with all below them: what has grown, and what we made in our own
    /// places. None lies in another.
    fn trees(&self) -> BTreeSet<String> {
        let in_a_place = |path: &&String| PLACES.iter().any(|place| is_below(path, place));
        let made = self.made.directories.iter().filter(in_a_place);
        let grown = self.made.grown.directories.iter();
        let mut trees: BTreeSet<String> = grown.chain(made).cloned().collect();
        trees.insert(UPLOADS.to_owned());
        if !self.made.cluster.is_empty() {
            trees.insert(STATE.to_owned());
        }
        trees.retain(|path| may_remove_tree(path));
        let inner = |path: &&String| trees.iter().any(|tree| is_below(path, tree));
        let inner: Vec<String> = trees.iter().filter(inner).cloned().collect();
        trees.retain(|path| !inner.contains(path));
        trees
    }

    fn goes_with_a_tree(&self, path: &str) -> bool {
        self.trees().iter().any(|tree| path == tree || is_below(path, tree))
    }

    fn unmount(&mut self) {
        for tree in self.trees() {
            // What was there before may be a mount of its own, such as a disk for containers.
            let itself = !self.made.kept.contains(&tree);
            let below = match mounts::below(self.root, &self.root.path(&tree), itself) {
                Ok(below) => below,
                Err(error) => return self.left("mounts", error.to_string()),
            };
            for point in below.into_iter().rev() {
                let name = self.root.on_host(&point);
                self.act(Action::Remove, &name, |_| mounts::unmount(&point));
            }
        }
    }

    fn remove_trees(&mut self, which: impl Fn(&str) -> bool) {
        for tree in self.trees().into_iter().filter(|tree| which(tree)) {
            let keep = self.made.kept.contains(&tree);
            // Logs of others stay beside ours, which are gone already.
            if !(keep && pods::LOGS.contains(&tree.as_str())) {
                self.remove_tree(&tree, keep);
            }
        }
    }

    /// Takes a directory away with all below it, or empties it.
    fn remove_tree(&mut self, path: &str, keep: bool) {
        let real = self.root.path(path);
        let Ok(metadata) = fs::symlink_metadata(&real) else { return };
        if let Some(link) = self.link_on_the_way(path) {
            return self.left(path, format!("{link} has become a symbolic link"));
        }
        if metadata.is_symlink() && keep {
            return self.left(path, "it is a symbolic link, which is not followed");
        }
        if keep && is_empty(&real) {
            return;
        }
        if self.dry_run {
            return self.act(Action::Remove, path, |_| Ok(()));
        }
        let errors = tree::remove(self.root, &real, keep);
        if errors.is_empty() {
            self.act(Action::Remove, path, |_| Ok(()));
        }
        for (path, reason) in errors {
            let path = self.root.on_host(&path);
            self.left(&path, reason);
        }
    }

    /// A directory of ours above the path that somebody turned into a link: what lies behind it
    /// is not ours. Links above our own directories are the administrator's choice.
    fn link_on_the_way(&self, path: &str) -> Option<String> {
        let ours =
            |above: &&str| self.made.directories.contains(*above) || self.goes_with_a_tree(above);
        let is_link = |above: &&str| {
            fs::symlink_metadata(self.root.path(above)).is_ok_and(|found| found.is_symlink())
        };
        ancestors(path).filter(ours).find(is_link).map(str::to_owned)
    }

    fn remove_files(&mut self) {
        for path in self.made.files.clone() {
            if self.goes_with_a_tree(&path) || !may_remove_file(&path) {
                continue;
            }
            self.remove_half_written(&path);
            let Ok(metadata) = fs::symlink_metadata(self.root.path(&path)) else { continue };
            if metadata.is_dir() {
                self.left(&path, "it was a file and is a directory now");
            } else if let Some(link) = self.link_on_the_way(&path) {
                self.left(&path, format!("{link} has become a symbolic link"));
            } else {
                self.act(Action::Remove, &path, |root| {
                    files::remove_file(&root.path(&path)).map(drop)
                });
            }
        }
    }

    /// What a crash left beside a file, under a name that is only ours.
    fn remove_half_written(&mut self, path: &str) {
        let Ok(new) = files::beside(&self.root.path(path)) else { return };
        let there = fs::symlink_metadata(&new).is_ok_and(|found| !found.is_dir());
        if there && self.link_on_the_way(path).is_none() {
            let name = self.root.on_host(&new);
            self.act(Action::Remove, &name, |_| files::remove_file(&new).map(drop));
        }
    }

    /// Directories that we made go if nothing is left in them, the deepest first.
    fn remove_directories(&mut self) {
        for path in self.made.directories.clone().iter().rev() {
            if self.goes_with_a_tree(path) || !may_remove_tree(path) {
                continue;
            }
            let real = self.root.path(path);
            let Ok(metadata) = fs::symlink_metadata(&real) else { continue };
            if !metadata.is_dir() || self.link_on_the_way(path).is_some() {
                continue;
            }
            if is_empty(&real) || self.dry_run {
                self.act(Action::Remove, path, |_| fs::remove_dir(&real));
            } else {
                // Another try would not find it otherwise, so it does not hold up the rest.
                let reason = "it holds something that is not ours".to_owned();
                self.report.leftovers.push(Leftover { item: path.clone(), reason });
            }
        }
    }

    fn forget_units(&mut self) {
        let names: Vec<&str> = self.made.units.iter().map(String::as_str).collect();
        if self.dry_run || names.is_empty() {
            return;
        }
        if let Err(failure) = units::forget(self.root, &names) {
            self.failed("units", &failure);
        }
    }

    /// A setting that somebody has changed since stays as it is.
    fn restore_sysctls(&mut self) {
        for (key, setting) in self.made.sysctls.clone() {
            let now = kernel::read_sysctl(self.root, &key);
            if now.as_ref() != Some(&setting.ours) || setting.ours == setting.former {
                continue;
            }
            if key == FORWARDING && self.others_need_forwarding() {
                continue;
            }
            self.act(Action::SetSysctl, &key, |root| {
                kernel::write_sysctl(root, &key, &setting.former)
                    .map_err(|failure| io::Error::other(failure.message))
            });
        }
    }

    /// Whether containers of others are routed through bridges that they have by now.
    fn others_need_forwarding(&mut self) -> bool {
        let bridges = network::routed_bridges(self.root).unwrap_or_default();
        let ours = |bridge: &String| self.made.grown.links.contains(bridge);
        let others: Vec<String> = bridges.into_iter().filter(|bridge| !ours(bridge)).collect();
        if others.is_empty() {
            return false;
        }
        let bridges = others.join(", ");
        self.report.notes.push(format!("{FORWARDING} stays 1: {bridges} may need it"));
        true
    }

    /// Our own places go if nothing of others is in them, the data with the record last.
    fn remove_places(&mut self) {
        for place in PLACES.into_iter().filter(|place| *place != place::DATA) {
            self.remove_place(place);
        }
        if self.may_be_repeated {
            return self.keep_the_record();
        }
        self.remove_half_written(place::MADE);
        let record = self.root.path(place::MADE);
        if record.exists() {
            self.act(Action::Remove, place::MADE, |_| files::remove_file(&record).map(drop));
        }
        self.remove_place(place::DATA);
    }

    /// A disk that is mounted on a place stays where it is.
    fn remove_place(&mut self, place: &str) {
        let real = self.root.path(place);
        let Ok(entries) = fs::read_dir(&real) else { return };
        let mut names = entries.flatten().map(|entry| self.root.on_host(&entry.path()));
        // In a dry run what goes is still there.
        let empty = names.all(|name| self.dry_run && self.would_be_gone(&name));
        let plain = fs::symlink_metadata(&real).is_ok_and(|found| found.is_dir());
        if empty && plain && mounts::is_point(self.root, &real).is_ok_and(|mounted| !mounted) {
            self.act(Action::Remove, place, |_| fs::remove_dir(&real));
        }
    }

    fn would_be_gone(&self, path: &str) -> bool {
        let half_written = files::beside(&self.root.path(place::MADE));
        let half_written = half_written.is_ok_and(|new| self.root.on_host(&new) == path);
        path == place::MADE
            || half_written
            || self.made.files.contains(path)
            || self.goes_with_a_tree(path)
    }

    fn keep_the_record(&mut self) {
        if self.root.path(place::MADE).exists() {
            self.left(place::MADE, "it is needed to remove the rest");
        }
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}
