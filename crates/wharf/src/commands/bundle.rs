//! `wharf bundle build|verify|show`: the files that an install puts on hosts. No server is asked.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use wharf_bundle::catalogue;
use wharf_bundle::mirror::Base;
use wharf_bundle::source::{self, Selection};
use wharf_bundle::{Error, Manifest, archive};

use crate::failure::{Exit, Told};
use crate::output::{self, Format};

const MADE_BY: &str = concat!("wharf ", env!("CARGO_PKG_VERSION"));

#[derive(Debug, clap::Args)]
pub struct BundleArgs {
    #[command(subcommand)]
    command: BundleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BundleCommand {
    /// Make a bundle from built components or from a mirror of release files
    Build(BuildArgs),
    /// Check every byte of a bundle against its manifest
    Verify {
        /// A bundle directory, or a .tar or .tar.gz of one
        path: PathBuf,
    },
    /// Show what a bundle holds; -o json and -o yaml print its manifest
    Show {
        /// A bundle directory, or a .tar or .tar.gz of one
        path: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct BuildArgs {
    /// A directory of components (such as assets/ of the cache), a bundle directory, or a mirror
    #[arg(long, value_name = "DIR|URL")]
    from: String,
    /// The Kubernetes version, such as 1.36.3
    #[arg(long, value_name = "VERSION")]
    kubernetes: Option<String>,
    /// Leave these components out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    without: Vec<String>,
    /// A new directory, or a file that ends in .tar or .tar.gz
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub fn run(args: BundleArgs, output: Format) -> anyhow::Result<()> {
    match args.command {
        BundleCommand::Build(args) => build(args, output),
        BundleCommand::Verify { path } => verify(&path, output),
        BundleCommand::Show { path } => show(&path, output),
    }
}

fn build(args: BuildArgs, format: Format) -> anyhow::Result<()> {
    let kubernetes = args.kubernetes.as_deref().map(catalogue::parse_version).transpose();
    let selection =
        Selection { kubernetes: kubernetes.map_err(|e| usage(&e))?, without: args.without };
    let base = Base::parse(&args.from).map_err(|e| usage(&e))?;
    let manifest =
        source::build_to(&base, &selection, MADE_BY, &args.path, &mut |text| output::note(text))
            .map_err(|e| told(&e))?;
    output::note(&format!("{} holds {}", args.path.display(), in_words(&manifest)));
    match format {
        Format::Table => output::line(&args.path.display().to_string()),
        Format::Json | Format::Yaml => output::data(format, &manifest),
    }
}

/// What `verify -o json` prints, also for a bundle that fails.
#[derive(Serialize)]
struct Verdict {
    valid: bool,
    problems: Vec<String>,
}

fn verify(path: &Path, format: Format) -> anyhow::Result<()> {
    let verified = if path.is_dir() {
        wharf_bundle::verify(path).map_err(Error::Damaged).and_then(|()| Manifest::read(path))
    } else {
        archive::verify(path)
    };
    if format != Format::Table {
        let problems = match &verified {
            Ok(_) => Vec::new(),
            Err(Error::Damaged(problems)) => problems.iter().map(ToString::to_string).collect(),
            Err(error) => vec![with_causes(error)],
        };
        output::data(format, &Verdict { valid: verified.is_ok(), problems })?;
    }
    let manifest = verified.map_err(|error| match &error {
        Error::Damaged(problems) => {
            let problems: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
            let message = format!("{} is not good:\n{}", path.display(), problems.join("\n"));
            Told::new(Exit::Failed, message).hint(error.hint())
        }
        _ => told(&error),
    })?;
    output::note(&format!("{} is good: {}", path.display(), in_words(&manifest)));
    Ok(())
}

/// A row of `show`.
#[derive(Serialize)]
struct Row {
    component: String,
    version: String,
    files: usize,
    size: u64,
    /// The name of its image, for programs that run in pods.
    image: String,
}

fn show(path: &Path, format: Format) -> anyhow::Result<()> {
    let manifest = if path.is_dir() { Manifest::read(path) } else { archive::manifest(path) };
    let manifest = manifest.map_err(|e| told(&e))?;
    if format != Format::Table {
        return output::data(format, &manifest);
    }
    output::note(&in_words(&manifest));
    let rows = rows(&manifest);
    output::list(format, &rows, ["COMPONENT", "VERSION", "FILES", "SIZE", "IMAGE"], |row| {
        let (files, size) = (row.files.to_string(), mebibytes(row.size));
        [row.component.clone(), row.version.clone(), files, size, row.image.clone()]
    })
}

/// One row for each component, in the order of their names.
fn rows(manifest: &Manifest) -> Vec<Row> {
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    for file in &manifest.files {
        let row = rows.entry((&file.component, &file.version)).or_insert_with(|| Row {
            component: file.component.clone(),
            version: file.version.clone(),
            files: 0,
            size: 0,
            image: String::new(),
        });
        row.files += 1;
        row.size += file.size;
        row.image.extend(file.image.clone());
    }
    rows.into_values().collect()
}

fn in_words(manifest: &Manifest) -> String {
    format!(
        "Kubernetes {} for {}, {} files, {}",
        manifest.kubernetes,
        manifest.arch,
        manifest.files.len(),
        mebibytes(manifest.total_size())
    )
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

fn told(error: &Error) -> Told {
    Told::new(Exit::Failed, with_causes(error)).hint(error.hint())
}

fn usage(error: &Error) -> Told {
    Told::new(Exit::Usage, with_causes(error)).hint(error.hint())
}

fn with_causes(error: &Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::mebibytes;

    #[test]
    fn sizes_are_rounded_up_to_a_tenth() {
        assert_eq!(mebibytes(0), "0.0 MiB");
        assert_eq!(mebibytes(1), "0.1 MiB");
        assert_eq!(mebibytes(86 << 20), "86.0 MiB");
    }
}
