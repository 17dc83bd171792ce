//! Carrying out a document: look, decide, record, act.

use std::io;
use std::path::Path;

use wharf_core::install::host::{
    Action, Bundled, Change, Content, HostDocument, HostFailure, HostReport, Wanted,
};

use super::bundled::Checked;
use super::decide::{self, Observed, Step, UNIT_MODE};
use super::failure::failure;
use super::images::{self, CONTAINERD_UNIT};
use super::made::Made;
use super::root::Root;
use super::units::{self, Activity, Start, unit_path};
use super::{files, kernel};

/// Makes the host hold what the document says; a second call changes nothing.
///
/// Flow: look at everything that the document and the record of what was made speak of; decide
/// what is missing; store the record of what will be ours; act, in order; start units; import
/// images as soon as containerd runs.
/// Guarantees: a document that is refused (another cluster's host, somebody else's file, a file of
/// the bundle that is missing) touches nothing. A crash at any point is mended by the next call.
pub fn apply(root: &Root, document: &HostDocument, dry_run: bool) -> HostReport {
    let mut applying = Applying { root, document, dry_run, report: HostReport::default() };
    if let Err(failure) = applying.run() {
        applying.report.failure = Some(failure);
    }
    applying.report
}

/// Imports the images of a document whose containerd runs already. It needs nothing else of the
/// host, so it may run beside [`apply`].
pub fn import(root: &Root, document: &HostDocument) -> HostReport {
    let mut applying = Applying { root, document, dry_run: false, report: HostReport::default() };
    let imported = applying.import_images(&mut Checked::load(root));
    HostReport { failure: imported.err(), ..applying.report }
}

struct Applying<'a> {
    root: &'a Root,
    document: &'a HostDocument,
    dry_run: bool,
    report: HostReport,
}

impl<'a> Applying<'a> {
    fn run(&mut self) -> Result<(), HostFailure> {
        let (root, document) = (self.root, self.document);
        let _lock = root.lock()?;
        let stored = Made::load(root)?;
        decide::check(document, stored.as_ref())?;
        let mut checked = Checked::load(root);
        let observed = observe(root, document, stored.as_ref(), &mut checked)?;
        let first = || Made::new(&document.cluster, &document.identity);
        let made = stored.clone().unwrap_or_else(first);
        let steps = decide::decide_ground(document, &made, &observed, self.dry_run)?;
        let starts = decide::decide_starts(document, &observed);
        if self.dry_run {
            self.report.changes.extend(steps.iter().map(Step::change));
            return self.start(&starts, &observed, &mut checked);
        }
        let mut record = decide::record(&made, &steps, document, &observed);
        if stored.as_ref() != Some(&record) {
            record.store(root)?;
        }
        checked.store(root)?;
        self.take(&steps, &observed, &mut record)?;
        let done = decide::record_done(&record, document);
        if done != record {
            done.store(root)?;
        }
        self.start(&starts, &observed, &mut checked)
    }

    fn changed(&mut self, action: Action, subject: &str) {
        self.report.changes.push(Change { action, subject: subject.to_owned() });
    }

    /// Does the steps one by one; then systemd reads its files again, once for all.
    fn take(
        &mut self,
        steps: &[Step<'_>],
        observed: &Observed,
        record: &mut Made,
    ) -> Result<(), HostFailure> {
        // A crash may have come between the writing of a unit file and its reading by systemd.
        let mut reload = observed.units.values().any(|state| state.stale);
        let mut enable = Vec::new();
        for step in steps {
            if let Step::StopUnit(_) | Step::WriteUnit { .. } = step {
                reload = true;
            }
            if let Step::WriteUnit { unit, enable: true, .. } = step {
                enable.push(unit.name.as_str());
            }
            if take_step(self.root, step, record)? {
                self.report.changes.push(step.change());
            }
        }
        if reload { units::reload(self.root, &enable) } else { Ok(()) }
    }

    /// Starts what shall run, and imports images between containerd and what needs it.
    fn start(
        &mut self,
        starts: &[Start<'_>],
        observed: &Observed,
        checked: &mut Checked,
    ) -> Result<(), HostFailure> {
        let containerd_wanted = self
            .document
            .units
            .iter()
            .any(|unit| unit.name == CONTAINERD_UNIT && unit.wanted == Wanted::Started);
        let (first, rest): (Vec<_>, Vec<_>) =
            if containerd_wanted && !self.document.images.is_empty() {
                starts.iter().cloned().partition(|start| start.unit.name == CONTAINERD_UNIT)
            } else {
                (Vec::new(), starts.to_vec())
            };
        let result =
            self.start_units(&first)
                .and_then(|()| {
                    if containerd_wanted { self.find_images(observed, checked) } else { Ok(()) }
                })
                .and_then(|()| self.start_units(&rest));
        let names: Vec<&str> = self.document.units.iter().map(|unit| unit.name.as_str()).collect();
        let now = if self.report.changes.is_empty() || self.dry_run {
            Ok(observed.units.clone())
        } else {
            units::observe(self.root, &names)
        };
        // What went wrong first is what the user must know.
        let states = result.and(now)?;
        let running = states.into_iter().filter(|(name, state)| {
            state.active == Activity::Active
                && state.main_pid != 0
                && names.contains(&name.as_str())
        });
        self.report.running = running.map(|(name, state)| (name, state.main_pid)).collect();
        Ok(())
    }

    fn start_units(&mut self, starts: &[Start<'_>]) -> Result<(), HostFailure> {
        if starts.is_empty() {
            return Ok(());
        }
        for start in starts {
            let action = if start.restart { Action::RestartUnit } else { Action::StartUnit };
            self.changed(action, &start.unit.name);
        }
        if self.dry_run { Ok(()) } else { units::start(self.root, starts) }
    }

    fn find_images(
        &mut self,
        observed: &Observed,
        checked: &mut Checked,
    ) -> Result<(), HostFailure> {
        if self.document.images.is_empty() {
            return Ok(());
        }
        let runs =
            observed.units.get(CONTAINERD_UNIT).is_some_and(|u| u.active == Activity::Active);
        if self.dry_run && !runs {
            // Nobody can say which images it has.
            for image in &self.document.images {
                self.changed(Action::ImportImage, &image.name);
            }
            return Ok(());
        }
        self.import_images(checked)?;
        if self.dry_run { Ok(()) } else { checked.store(self.root) }
    }

    fn import_images(&mut self, checked: &mut Checked) -> Result<(), HostFailure> {
        let missing = decide::decide_images(self.document, &images::present(self.root)?);
        if missing.is_empty() {
            return Ok(());
        }
        // Checksums of archives are computed only when one is needed: they are large.
        let archives: Vec<&Bundled> = missing.iter().map(|image| &image.archive).collect();
        let sources = checked.find(self.root, &archives);
        for image in &missing {
            self.changed(Action::ImportImage, &image.name);
            if self.dry_run {
                continue;
            }
            let Some(path) = sources.get(&image.archive.sha256) else {
                return Err(decide::absent_from_bundle(&[&image.archive.path]));
            };
            images::import(self.root, image, path)?;
        }
        if self.dry_run {
            return Ok(());
        }
        let still_missing = decide::decide_images(self.document, &images::present(self.root)?);
        match still_missing.first() {
            None => Ok(()),
            Some(image) => {
                let message = format!("{} does not hold {}", image.archive.path, image.name);
                Err(failure(format!("import image {}", image.name), message))
            }
        }
    }
}

fn observe(
    root: &Root,
    document: &HostDocument,
    made: Option<&Made>,
    checked: &mut Checked,
) -> Result<Observed, HostFailure> {
    let mut observed = Observed::default();
    for path in decide::concerned_paths(document, made) {
        let told = |error: io::Error| failure(format!("look at {path}"), error.to_string());
        let found = files::look(&root.path(&path)).map_err(told)?;
        observed.paths.insert(path, found);
    }
    observed.missing_modules = kernel::missing_modules(root, &document.modules);
    let former = made.iter().flat_map(|made| made.sysctls.keys());
    observed.sysctls = kernel::observe_sysctls(root, document.sysctls.keys().chain(former));
    let wanted: Vec<&Bundled> = document
        .files
        .iter()
        .filter_map(|file| match &file.content {
            Content::Bundled(bundled) => Some(bundled),
            Content::Text(_) => None,
        })
        .collect();
    observed.sources = checked.find(root, &wanted);
    let mut names: Vec<&str> = document.units.iter().map(|unit| unit.name.as_str()).collect();
    names.extend(made.iter().flat_map(|made| made.units.iter().map(String::as_str)));
    names.sort_unstable();
    names.dedup();
    observed.units = units::observe(root, &names)?;
    Ok(observed)
}

/// Does one step. `false` when there was nothing to do after all.
fn take_step(root: &Root, step: &Step<'_>, record: &mut Made) -> Result<bool, HostFailure> {
    let told = |verb: &str, path: &str, result: io::Result<()>| {
        result.map_err(|error| failure(format!("{verb} {path}"), error.to_string()))
    };
    let real = |path: &str| root.path(path);
    match step {
        Step::LoadModule(name) => kernel::load_module(root, name)?,
        Step::SetSysctl { key, value } => return set_sysctl(root, key, value, record),
        Step::MakeDirectory { path, mode } => {
            told("make", path, files::directory(&real(path), *mode))?;
        }
        Step::WriteText { path, mode, text } => {
            told("write", path, files::write(&real(path), *mode, text.as_bytes()))?;
        }
        Step::PointTo { path, target, .. } => told("link", path, files::link(&real(path), target))?,
        Step::WriteUnit { file: false, .. } => {}
        Step::WriteUnit { unit, .. } => {
            let path = unit_path(&unit.name);
            told("write", &path, files::write(&real(&path), UNIT_MODE, unit.text.as_bytes()))?;
        }
        Step::StopUnit(name) => units::stop(root, &[name])?,
        Step::RemoveFile(path) => told("remove", path, remove_own(&real(path)))?,
    }
    Ok(true)
}

fn remove_own(path: &Path) -> io::Result<()> {
    files::remove_file(path).map(drop)
}

/// A setting may have appeared with a module that was just loaded; its former value goes into the
/// record first, as always.
fn set_sysctl(root: &Root, key: &str, value: &str, record: &mut Made) -> Result<bool, HostFailure> {
    let now = kernel::read_sysctl(root, key);
    if now == Some(kernel::plain(value)) {
        return Ok(false);
    }
    if let Some(former) = now.filter(|_| !record.sysctls.contains_key(key)) {
        decide::record_sysctl(record, key, &former, value);
        record.store(root)?;
    }
    kernel::write_sysctl(root, key, value)?;
    Ok(true)
}
