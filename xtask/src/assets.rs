//! `cargo xtask assets`: everything a cluster is made of, built or fetched once into a cache.
//!
//! The table of components is `wharf_bundle::catalogue`; [`go`] builds one from source, [`local`]
//! makes those that are not Go, `wharf_bundle::mirror` takes one from release files. Of programs
//! that run in pods `wharf_bundle::image` then makes images. Each component and image appears in
//! the cache whole, so that an interrupted run continues with the one it was at.

mod child;
mod go;
mod local;
mod tools;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use wharf_bundle::cache::{Cache, Cached, ORIGIN_RELEASE};
use wharf_bundle::catalogue::{self, COMPONENTS, Component, KUBERNETES, Source};
use wharf_bundle::mirror::{self, Base};
use wharf_bundle::{Placement, bundle, image};

use child::Interrupt;

/// Who made the bundle, for its manifest.
const MADE_BY: &str = concat!("wharf ", env!("CARGO_PKG_VERSION"));
/// A build of minutes says that it is alive; a log of a build server stays short.
const STILL_BUSY_EVERY: Duration = Duration::from_secs(60);

const INTERRUPTED: &str = "interrupted; the next run goes on with this component";

const LAYOUT: &str = "\
Release files instead of own builds, below one base (a directory or an address):
  <base>/kubernetes/v<V>/bin/linux/<arch>/<program>               with <program>.sha256 beside it
  <base>/etcd/v<V>/etcd-v<V>-linux-<arch>.tar.gz                  with SHA256SUMS
  <base>/containerd/v<V>/containerd-<V>-linux-<arch>.tar.gz       with ….sha256sum
  <base>/runc/v<V>/runc.<arch>                                    with runc.sha256sum
  <base>/cni-plugins/v<V>/cni-plugins-linux-<arch>-v<V>.tgz       with ….sha256
  <base>/coredns/v<V>/coredns_<V>_linux_<arch>.tgz                with ….sha256
  <base>/kwok/v<V>/kwok-linux-<arch>, stage-fast.yaml             with ….sha256 (may be absent)
  <base>/csi-sanity/v<V>/csi-sanity-linux-<arch>                  with ….sha256 (may be absent)
  <base>/metrics-server/v<V>/metrics-server-linux-<arch>          with ….sha256
pause and busybox are made here in any case, and so are the images of programs that run in pods.
NAME=BASE gives the base of one component, such as the place of the project's own releases:
below it lies v<V>/… as above. What has no base is built.

The cache is $WHARF_CACHE, else ${XDG_CACHE_HOME:-~/.cache}/wharf.";

/// Builds or fetches the programs of a cluster and makes a bundle of them
#[derive(Debug, clap::Args)]
#[command(after_long_help = LAYOUT)]
pub struct AssetsArgs {
    /// A Kubernetes version; repeat it for several, side by side
    #[arg(long, value_name = "VERSION", default_value = KUBERNETES.version)]
    kubernetes: Vec<String>,
    /// Only these components, without making a bundle
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Take release files, checked by checksum, instead of building (see --help)
    #[arg(long, value_name = "[NAME=]URL|DIR")]
    from: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Default for AssetsArgs {
    /// The default bundle, built here.
    fn default() -> Self {
        let kubernetes = vec![KUBERNETES.version.to_owned()];
        Self { kubernetes, only: Vec::new(), from: Vec::new(), json: false }
    }
}

/// One component in one version that the caller wants.
struct Job {
    component: &'static Component,
    version: String,
    from: Option<Base>,
}

#[derive(Serialize)]
struct Outcome {
    cache: PathBuf,
    components: Vec<Row>,
    images: Vec<ImageRow>,
    bundles: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    version: String,
    dir: PathBuf,
    /// Absent when it was there already.
    seconds: Option<f64>,
    bytes: u64,
}

#[derive(Serialize)]
struct ImageRow {
    name: String,
    archive: PathBuf,
    bytes: u64,
}

pub fn run(args: &AssetsArgs) -> Result<()> {
    let cache = Cache::from_env().context("set WHARF_CACHE or HOME: there is no place to build")?;
    let jobs = plan(args)?;
    let versions = if args.only.is_empty() { kubernetes_versions(args)? } else { Vec::new() };

    let outcome = match all_there(&cache, &jobs, &versions) {
        // Nothing to make: no lock is needed, and another run does not hold us up.
        Some(there) => there,
        None => make_all(&cache, args, &versions)?,
    };
    print(&outcome, args.json)
}

/// The outcome of a run that has nothing to do.
fn all_there(cache: &Cache, jobs: &[Job], versions: &[String]) -> Option<Outcome> {
    let ready: Option<Vec<Cached>> = jobs.iter().map(|job| lookup(cache, job).ok()).collect();
    let ready = ready?;
    let components = jobs.iter().zip(&ready).map(|(job, made)| row(job, made, None)).collect();
    let has_image = |made: &&Cached| component_of(made).is_some_and(|c| c.image.is_some());
    let images = ready.iter().filter(has_image).map(|made| image::lookup(cache, made));
    let images = if versions.is_empty() { Vec::new() } else { images.collect::<Option<_>>()? };
    let image_rows = image_rows(&images);
    let parts = image::in_place_of_programs(ready, images);
    let bundled = |version: &&String| is_bundled(cache, &parts, version);
    let bundles = versions.iter().map(|v| cache.bundle_dir(v, catalogue::this_arch())).collect();
    versions.iter().all(|version| bundled(&version)).then(|| Outcome {
        cache: cache.root().to_owned(),
        components,
        images: image_rows,
        bundles,
    })
}

fn component_of(cached: &Cached) -> Option<&'static Component> {
    catalogue::component(&cached.record.component).ok()
}

fn plan(args: &AssetsArgs) -> Result<Vec<Job>> {
    for name in &args.only {
        catalogue::component(name)?;
    }
    let mut bases = Vec::new();
    for from in &args.from {
        bases.push(match from.split_once('=') {
            Some((name, base)) if catalogue::component(name).is_ok() => {
                (Some(name), Base::parse(base)?)
            }
            _ => (None, Base::parse(from)?),
        });
    }
    let base_of = |component: &Component| {
        let name = component.name;
        let own = bases.iter().find(|(n, _)| *n == Some(name)).map(|(_, base)| base.clone());
        // No project publishes what is ours, or Debian's.
        let shared = bases.iter().find(|(n, _)| n.is_none());
        let shared = shared.filter(|_| matches!(component.source, Source::Go(_)));
        own.or_else(|| shared.map(|(_, base)| base.join(name)))
    };
    let mut jobs = Vec::new();
    for component in COMPONENTS {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == component.name) {
            continue;
        }
        let from = base_of(component);
        let versions = match component.source {
            _ if component.name == KUBERNETES.name => kubernetes_versions(args)?,
            Source::Debian(_) if from.is_none() => vec![local_version(component)],
            _ => vec![component.version.to_owned()],
        };
        jobs.extend(versions.into_iter().map(|version| Job {
            component,
            version,
            from: from.clone(),
        }));
    }
    Ok(jobs)
}

fn kubernetes_versions(args: &AssetsArgs) -> Result<Vec<String>> {
    let mut versions: Vec<String> = Vec::new();
    for version in &args.kubernetes {
        let version = catalogue::parse_version(version)?;
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    Ok(versions)
}

/// What Debian has is used as it is; a machine that has it in the cache needs no package.
fn local_version(component: &Component) -> String {
    local::installed_busybox().map_or_else(|| component.version.to_owned(), |found| found.version)
}

/// The component as the cache has it, or why it has to be made.
fn lookup(cache: &Cache, job: &Job) -> Result<Cached, String> {
    let dir = cache.component_dir(job.component.name, &job.version, catalogue::this_arch());
    let mut cached = Cached::open(&dir).map_err(|_| String::new())?;
    if cached.record.recipe != job.component.recipe {
        return Err("is made in another way now".to_owned());
    }
    if job.from.is_some() && cached.record.origin != ORIGIN_RELEASE {
        return Err("was built here, and release files are asked for".to_owned());
    }
    match cached.check() {
        Ok(()) => Ok(cached),
        Err(error) => Err(format!("is made again: {error}")),
    }
}

fn make_all(cache: &Cache, args: &AssetsArgs, versions: &[String]) -> Result<Outcome> {
    let interrupt = Interrupt::on_signals()?;
    let _lock = cache.lock(|| eprintln!("assets: waiting for another run to finish"))?;
    let jobs = plan(args)?;
    let missing: Vec<&Job> = jobs.iter().filter(|job| lookup(cache, job).is_err()).collect();
    tools::ensure(&missing)?;
    // Again: what was installed just now has the version that it has.
    let jobs = plan(args)?;
    let mut made: Vec<Cached> = Vec::new();
    let mut components = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let place = format!("[{}/{}]", index + 1, jobs.len());
        let title = format!("{place} {} {}", job.component.name, job.version);
        match lookup(cache, job) {
            Ok(cached) => {
                eprintln!("{title} … is there");
                components.push(row(job, &cached, None));
                made.push(cached);
                continue;
            }
            Err(reason) if reason.is_empty() => {}
            Err(reason) => eprintln!("{title} {reason}"),
        }
        let begun = Instant::now();
        let Some(cached) = make(cache, job, &title, &interrupt)? else {
            eprintln!("{title} … is not at the source and is left out");
            continue;
        };
        eprintln!("{title} … {:.0} s", begun.elapsed().as_secs_f64());
        components.push(row(job, &cached, Some(begun.elapsed().as_secs_f64())));
        made.push(cached);
    }
    let images = if versions.is_empty() { Vec::new() } else { ensure_images(cache, &made)? };
    let image_rows = image_rows(&images);
    let parts = image::in_place_of_programs(made, images);
    let bundles = versions.iter().map(|version| ensure_bundle(cache, &parts, version));
    let bundles = bundles.collect::<Result<Vec<_>>>()?;
    Ok(Outcome { cache: cache.root().to_owned(), components, images: image_rows, bundles })
}

fn ensure_images(cache: &Cache, made: &[Cached]) -> Result<Vec<Cached>> {
    let mut images = Vec::new();
    for programs in made {
        if let Some(image) = image::lookup(cache, programs) {
            images.push(image);
            continue;
        }
        let begun = Instant::now();
        if let Some(image) = image::make(cache, programs)? {
            for row in image_rows(std::slice::from_ref(&image)) {
                eprintln!("image {} … {:.0} s", row.name, begun.elapsed().as_secs_f64());
            }
            images.push(image);
        }
    }
    Ok(images)
}

fn image_rows(images: &[Cached]) -> Vec<ImageRow> {
    let files = images.iter().flat_map(|image| image.record.files.iter().map(move |f| (image, f)));
    files
        .map(|(image, file)| ImageRow {
            name: file.image.clone().unwrap_or_default(),
            archive: image.dir.join(&file.path),
            bytes: file.size,
        })
        .collect()
}

/// Makes one component. `None`: the mirror lacks it, and only development needs it.
fn make(cache: &Cache, job: &Job, title: &str, interrupt: &Interrupt) -> Result<Option<Cached>> {
    let arch = catalogue::this_arch();
    let staged = cache.stage(job.component.name, &job.version, arch)?;
    let origin = match &job.from {
        Some(base) => {
            eprintln!("{title} … fetching");
            match mirror::fetch(base, job.component, &job.version, arch, staged.path()) {
                Err(wharf_bundle::Error::NotAtSource { .. }) if !job.component.on_hosts => {
                    return Ok(None);
                }
                fetched => fetched.with_context(|| format!("{title} is not taken"))?,
            }
            ORIGIN_RELEASE.to_owned()
        }
        None => {
            eprintln!("{title} … building");
            let name = format!("{}-{}.log", job.component.name, job.version);
            let log = cache.root().join("logs").join(name);
            match build(job, staged.path(), &log, title, interrupt) {
                Err(_) if interrupt.is_set() => bail!(INTERRUPTED),
                built => built.with_context(|| {
                    format!("{title} cannot be built; all of it: {}", log.display())
                })?,
            }
        }
    };
    if interrupt.is_set() {
        bail!(INTERRUPTED);
    }
    Ok(Some(staged.finish(job.component, &job.version, &origin)?))
}

/// Makes the component's files in `into`; answers who made them.
fn build(job: &Job, into: &Path, log: &Path, title: &str, interrupt: &Interrupt) -> Result<String> {
    let progress = child::Progress::new(title, STILL_BUSY_EVERY);
    match &job.component.source {
        Source::Go(go) => {
            let workshop = go::Workshop::open(into, log, interrupt, progress)?;
            workshop.build(job.component, go, &job.version)
        }
        Source::Cargo(package) => {
            local::cargo_build(package, job.component, into, log, interrupt, progress)
        }
        Source::Debian(_) => local::take_busybox(job.component, into),
    }
}

fn of_version(made: &[Cached], kubernetes: &str) -> Vec<Cached> {
    let fits =
        |c: &&Cached| c.record.component != KUBERNETES.name || c.record.version == kubernetes;
    made.iter().filter(fits).cloned().collect()
}

fn is_bundled(cache: &Cache, made: &[Cached], kubernetes: &str) -> bool {
    let dir = cache.bundle_dir(kubernetes, catalogue::this_arch());
    bundle::is_current(&of_version(made, kubernetes), MADE_BY, &dir)
}

fn ensure_bundle(cache: &Cache, made: &[Cached], kubernetes: &str) -> Result<PathBuf> {
    let dir = cache.bundle_dir(kubernetes, catalogue::this_arch());
    if !is_bundled(cache, made, kubernetes) {
        wharf_bundle::build(&of_version(made, kubernetes), MADE_BY, &dir, Placement::Link)?;
    }
    Ok(dir)
}

fn row(job: &Job, made: &Cached, seconds: Option<f64>) -> Row {
    Row {
        name: job.component.name,
        version: job.version.clone(),
        dir: made.dir.clone(),
        seconds,
        bytes: made.record.files.iter().map(|file| file.size).sum(),
    }
}

fn print(outcome: &Outcome, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, outcome)?;
        writeln!(out)?;
    } else if outcome.bundles.is_empty() {
        for component in &outcome.components {
            writeln!(out, "{}", component.dir.display())?;
        }
    } else {
        for bundle in &outcome.bundles {
            writeln!(out, "{}", bundle.display())?;
        }
    }
    Ok(())
}
