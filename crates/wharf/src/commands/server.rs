//! `wharf server`

use std::path::PathBuf;

use anyhow::Context as _;
use wharf_server::config::{Config, Overrides};

use crate::{cli::Local, logging, target::Wish};

/// Run the management server
///
/// The first start makes the store, the sealing key, a certificate and the user `admin`, whose
/// password it prints once. The command line on the same machine needs no password: it uses the
/// socket in the data directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every setting can also stand in the file of --config or in the environment (WHARF_LISTEN, …);
options win over the environment, the environment over the file.

Examples:
  wharf server
  wharf server --data-dir ./data --listen 127.0.0.1:8080 --http
  wharf server --store etcd://10.0.0.1,10.0.0.2,10.0.0.3 --key-file /etc/wharf/seal.key")]
pub struct ServerArgs {
    /// Configuration file (TOML) [env: WHARF_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on [default: 0.0.0.0:8443]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Serve plain HTTP; only on a loopback address
    #[arg(long)]
    http: bool,
    #[command(flatten)]
    place: StorePlace,
    /// File with the password of the first user, admin; only used when there is no user yet
    #[arg(long, value_name = "FILE")]
    admin_password_file: Option<PathBuf>,
    /// Which log lines to write, as `info` or `wharf_server=debug,info`
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    #[command(flatten)]
    _local: Local,
}

/// Where the records are; the same for the server and for `wharf store`.
#[derive(Debug, Clone, clap::Args)]
pub struct StorePlace {
    /// Where the records are: `embedded` (in the data directory) or `etcd://HOST[:PORT],…`
    #[arg(long, value_name = "STORE", global = true)]
    pub store: Option<String>,
    /// Key that seals the secrets in the store [default: seal.key in the data directory]
    #[arg(long, value_name = "FILE", global = true)]
    pub key_file: Option<PathBuf>,
}

pub fn run(args: ServerArgs, wish: &Wish) -> anyhow::Result<()> {
    wish.refuse_remote("wharf server")?;
    let overrides = Overrides {
        config: args.config,
        data_dir: wish.data_dir.clone(),
        listen: args.listen,
        http: args.http,
        store: args.place.store,
        key_file: args.place.key_file,
        admin_password_file: args.admin_password_file,
        log: args.log,
    };
    let config = Config::load(&overrides, environment())?;
    logging::init(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    runtime.block_on(wharf_server::run(config))?;
    Ok(())
}

/// The environment for the server's configuration, without what is only the command line's.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
