//! `wharf store`

use std::path::PathBuf;

use wharf_server::config::{Config, Overrides};
use wharf_store::{
    backup::{self, CheckReport, Moved, SealState},
    store::StoreLocation,
};

use super::server::{StorePlace, environment};
use crate::{
    block_on,
    cli::Local,
    failure::{Exit, Told},
    output::{self, Format},
    target::Wish,
};

/// Back up, restore or check the server's records
///
/// These commands go to the store itself and not through the server: they take the server's own
/// options, configuration file and environment to find it. Secrets stay sealed in a backup; keep
/// the key file apart from it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wharf store backup wharf.backup --data-dir /var/lib/wharf
  wharf store restore wharf.backup --data-dir /var/lib/wharf-new
  wharf store check --store etcd://10.0.0.1,10.0.0.2 --key-file /etc/wharf/seal.key")]
pub struct StoreArgs {
    #[command(subcommand)]
    verb: Verb,
    /// The server's configuration file [env: WHARF_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(flatten)]
    place: StorePlace,
    #[command(flatten)]
    _local: Local,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Write all records, as they are at one moment, into a file; the server may be running
    Backup {
        /// The file to write; it must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Fill an empty store from a backup; the key file has to be put back by hand
    Restore {
        /// The backup
        file: PathBuf,
    },
    /// Read everything once and report what is wrong; the server may be running
    Check,
}

pub fn run(args: StoreArgs, wish: &Wish, format: Format) -> anyhow::Result<()> {
    wish.refuse_remote("wharf store")?;
    let overrides = Overrides {
        config: args.config,
        data_dir: wish.data_dir.clone(),
        store: args.place.store,
        key_file: args.place.key_file,
        ..Overrides::default()
    };
    let config = Config::load(&overrides, environment())?;
    let location = config.store_location()?;
    block_on(async {
        match args.verb {
            Verb::Backup { file } => {
                let moved = backup::backup(&location, &file).await?;
                let what = format!("backed up to {}", file.display());
                tell(&moved, &what, format)
            }
            Verb::Restore { file } => {
                let moved = backup::restore(&file, &location).await?;
                let what = format!("restored into {}", describe(&location));
                tell(&moved, &what, format)?;
                if !config.key_file.exists() {
                    output::note(&format!(
                        "if the backup holds secrets, put the key that sealed them to {}",
                        config.key_file.display()
                    ));
                }
                Ok(())
            }
            Verb::Check => {
                let report = backup::check(&location, Some(&config.key_file)).await?;
                show(&report, format)?;
                judge(&report, &location)
            }
        }
    })
}

fn describe(location: &StoreLocation) -> String {
    match location {
        StoreLocation::Embedded { data_dir } => data_dir.display().to_string(),
        StoreLocation::Etcd { endpoints, .. } => endpoints.join(", "),
    }
}

fn tell(moved: &Moved, what: &str, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Table => {
            output::note(&format!("{} records {what}, revision {}", moved.records, moved.revision));
            Ok(())
        }
        Format::Json | Format::Yaml => output::data(format, moved),
    }
}

fn show(report: &CheckReport, format: Format) -> anyhow::Result<()> {
    output::one(format, report, |report| {
        let unknown = || "unknown".to_owned();
        let mut fields = vec![
            ("Revision", report.revision.to_string()),
            ("Schema", report.schema.map_or_else(unknown, |schema| schema.to_string())),
            ("Written by", report.writer.clone().map_or_else(unknown, |v| format!("wharf {v}"))),
            ("Sealing key", seal_text(&report.sealed)),
        ];
        let records = report.records.iter();
        fields.extend(records.map(|(kind, count)| ("Records", format!("{kind} {count}"))));
        let unreadable = report.unreadable.iter();
        fields.extend(unreadable.map(|r| ("Unreadable", format!("{}: {}", r.key, r.reason))));
        fields.extend(report.problems.iter().map(|problem| ("Problem", problem.clone())));
        fields
    })
}

fn seal_text(seal: &SealState) -> String {
    match seal {
        SealState::Nothing => "not needed, nothing is sealed".to_owned(),
        SealState::NotChecked => "not checked".to_owned(),
        SealState::Ok => "opens the secrets".to_owned(),
        SealState::KeyMissing => "missing".to_owned(),
        SealState::KeyWrong => "not the one that sealed this store".to_owned(),
        SealState::KeyUnusable { reason } => format!("cannot be used: {reason}"),
    }
}

fn judge(report: &CheckReport, location: &StoreLocation) -> anyhow::Result<()> {
    if report.is_sound() {
        return Ok(());
    }
    let told = Told::new(Exit::Failed, format!("the store {} is not sound", describe(location)));
    let hint = if report.problems.is_empty() && report.unreadable.is_empty() {
        "put the original key file back, or name it with --key-file"
    } else {
        "keep a copy of what is there, then restore the newest backup with `wharf store restore`"
    };
    Err(told.hint(hint).into())
}
