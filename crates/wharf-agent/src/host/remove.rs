//! Taking away everything that was made on a host, and nothing else.
//!
//! A removal goes on after an error: what could not be taken away is a [`Leftover`] with its
//! reason, and the record stays so that the removal can be repeated. It works on a host that was
//! installed only in part, and twice.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use wharf_core::install::host::{Action, Change, HostFailure, Leftover, RemovalReport, place};

use super::bundled::STATE;
use super::made::{Made, NAMESPACES, PLACES};
use super::paths::{ancestors, is_below, may_remove_file, may_remove_tree};
use super::root::{Root, wait_until};
use super::units::{self, Activity};
use super::{files, kernel};

mod cgroups;
mod mounts;
mod network;
mod processes;
mod tree;

/// Killed processes need a moment to be gone, and their cgroups with them.
const END_DEADLINE: Duration = Duration::from_secs(20);

/// Removes what the record names, as far as it can.
///
/// Flow: stop units; end containers; take away their namespaces, links, tables and routes; unmount;
/// remove directories, files and units; restore settings; remove our own places, the record last.
pub fn remove(root: &Root, dry_run: bool) -> RemovalReport {
    let report = RemovalReport::default();
    let mut removal =
        Removal { root, made: Made::new(""), dry_run, report, may_be_repeated: false };
    if let Err(failure) = removal.run() {
        removal.left(place::MADE, failure.message);
    }
    removal.report
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
            // Nothing was ever made, though files may have been uploaded; or the first document or
            // a removal was killed beside the record, and an empty place is left.
            None => {
                let empty =
                    PLACES.iter().filter(|place| files::holds_nothing(&self.root.path(place)));
                self.made.whole = empty.map(|place| (*place).to_owned()).collect();
                self.made.whole.insert(place::PROGRAMS.to_owned());
            }
        }
        self.stop_units();
        self.end_containers();
        self.remove_shim_sockets();
        self.remove_network();
        self.remove_cgroups();
        self.unmount();
        self.remove_grown_directories();
        self.remove_files();
        self.remove_directories();
        self.forget_units();
        self.restore_sysctls();
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

    fn stop_units(&mut self) {
        let names: Vec<String> = self.made.units.clone();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let states = match units::observe(self.root, &names) {
            Ok(states) => states,
            Err(failure) => return self.left("units", failure.message),
        };
        let runs =
            |name: &&str| states.get(*name).is_some_and(|state| state.active != Activity::Inactive);
        for name in names.iter().rev().filter(|name| runs(name)) {
            let (action, subject) = (Action::StopUnit, (*name).to_owned());
            self.report.changes.push(Change { action, subject });
        }
        if !self.dry_run
            && let Err(failure) = units::stop(self.root, &names)
        {
            self.left(&names.join(", "), failure.message);
        }
    }

    /// Containers outlive containerd, so they are ended one by one: what lives in the pods'
    /// cgroups, and the processes of our containerd that watch over them.
    fn end_containers(&mut self) {
        let root = self.root;
        let cgroups = cgroups::directories(root, &self.made.grown.cgroups);
        if self.dry_run {
            return;
        }
        let victims = || {
            let mut pids = cgroups::processes(&cgroups);
            pids.extend(processes::shims(root));
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

    /// Their directory is shared with other containerds; it goes only if nothing else uses it.
    fn remove_shim_sockets(&mut self) {
        let sockets = processes::shim_sockets(self.root);
        for socket in &sockets {
            let remove = |root: &Root| files::remove_file(&root.path(socket)).map(drop);
            self.act(Action::Remove, socket, remove);
        }
        if self.dry_run || sockets.is_empty() {
            return;
        }
        let parent = self.root.path(processes::SOCKETS_PARENT);
        let alone = fs::read_dir(&parent).is_ok_and(|entries| entries.count() == 1);
        // Either fails if something is in it, and then it is somebody else's.
        if alone && fs::remove_dir(self.root.path(processes::SOCKETS)).is_ok() {
            let _ = fs::remove_dir(parent);
        }
    }

    fn remove_network(&mut self) {
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
        for table in network::tables(self.root, &self.made.grown.nft_tables) {
            self.act(Action::Remove, &table, |root| network::remove_table(root, &table));
        }
        if !self.made.cluster.is_empty() && network::has_routes(self.root) {
            self.act(Action::Remove, network::ROUTES, network::remove_routes);
        }
    }

    fn remove_cgroups(&mut self) {
        for directory in cgroups::directories(self.root, &self.made.grown.cgroups) {
            let name = self.root.on_host(&directory);
            self.act(Action::Remove, &name, |_| cgroups::remove(&directory, END_DEADLINE));
        }
    }

    /// The directories that go with all below them. In a place that others use too, those are the
    /// directories that we made there.
    fn trees(&self) -> Vec<String> {
        let in_shared_place = |path: &&String| {
            PLACES.iter().any(|place| is_below(path, place)) && !self.made.in_a_place(path)
        };
        let not_a_place = |path: &&String| !PLACES.contains(&path.as_str());
        let grown = self.made.grown.directories.iter().filter(not_a_place);
        let made = self.made.directories.iter().filter(in_shared_place);
        let whole = self.made.whole.iter();
        let mut trees: Vec<String> = grown.chain(made).chain(whole).cloned().collect();
        if !self.made.cluster.is_empty() {
            trees.push(STATE.to_owned());
        }
        trees.retain(|path| may_remove_tree(path));
        trees
    }

    fn unmount(&mut self) {
        for tree in self.trees() {
            // What was there before may be a mount of its own, such as a disk for containers, and
            // nothing of ours is mounted on a place itself.
            let itself = !self.made.kept.contains(&tree) && !PLACES.contains(&tree.as_str());
            let below = mounts::below(self.root, &self.root.path(&tree), itself);
            for point in below.into_iter().rev() {
                let name = self.root.on_host(&point);
                self.act(Action::Remove, &name, |_| mounts::unmount(&point));
            }
        }
    }

    /// Those in our places go with them.
    fn remove_grown_directories(&mut self) {
        let outside = |tree: &String| !self.made.in_a_place(tree);
        for tree in self.trees().into_iter().filter(outside).collect::<Vec<_>>() {
            let keep = self.made.kept.contains(&tree);
            self.remove_tree(&tree, keep);
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
        let ours = |above: &&str| {
            self.made.in_a_place(above)
                || self.made.directories.contains(*above)
                || self.made.grown.directories.iter().any(|d| d == above || is_below(above, d))
        };
        let is_link = |above: &&str| {
            fs::symlink_metadata(self.root.path(above)).is_ok_and(|found| found.is_symlink())
        };
        ancestors(path).filter(ours).find(is_link).map(str::to_owned)
    }

    fn remove_files(&mut self) {
        for path in self.made.files.clone() {
            // Those in our places go with them.
            if self.made.in_a_place(&path) || !may_remove_file(&path) {
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
            if self.made.in_a_place(path) || !may_remove_tree(path) {
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
            self.left("units", failure.message);
        }
    }

    /// A setting that somebody has changed since stays as it is.
    fn restore_sysctls(&mut self) {
        for (key, setting) in self.made.sysctls.clone() {
            let now = kernel::read_sysctl(self.root, &key);
            if now.as_ref() != Some(&setting.ours) || setting.ours == setting.former {
                continue;
            }
            self.act(Action::SetSysctl, &key, |root| {
                kernel::write_sysctl(root, &key, &setting.former)
                    .map_err(|failure| io::Error::other(failure.message))
            });
        }
    }

    /// Our own places, the data with the record in it last. The program that runs this lies in
    /// one of them, which Linux does not mind.
    fn remove_places(&mut self) {
        let mut places: BTreeSet<&str> = self.made.whole.iter().map(String::as_str).collect();
        places.retain(|place| PLACES.contains(place));
        let places: Vec<String> = places.into_iter().map(str::to_owned).collect();
        for place in places.iter().filter(|place| *place != place::DATA) {
            self.remove_place(place);
        }
        if self.may_be_repeated {
            return self.keep_the_record();
        }
        let whole = places.iter().any(|place| place == place::DATA);
        if whole && !self.empty_the_data() {
            return self.keep_the_record();
        }
        let record = self.root.path(place::MADE);
        if record.exists() {
            self.remove_half_written(place::MADE);
            self.act(Action::Remove, place::MADE, |_| files::remove_file(&record).map(drop));
        }
        if whole {
            self.remove_place(place::DATA);
        }
    }

    /// A place on a disk of its own is emptied; the disk stays where it was mounted.
    fn remove_place(&mut self, place: &str) {
        let real = self.root.path(place);
        let mounted = mounts::below(self.root, &real, true).contains(&real);
        self.remove_tree(place, mounted);
    }

    /// Takes away what lies beside the record; whoever is killed here begins again with it.
    fn empty_the_data(&mut self) -> bool {
        let entries = fs::read_dir(self.root.path(place::DATA)).into_iter().flatten().flatten();
        let record = self.root.path(place::MADE);
        let beside = entries.map(|entry| entry.path()).filter(|path| *path != record);
        for path in beside.map(|path| self.root.on_host(&path)).collect::<Vec<_>>() {
            self.remove_tree(&path, false);
        }
        !self.may_be_repeated
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
