//! The one door to both back ends.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    embedded::{Embedded, EmbeddedWatch},
    error::{StoreError, StoreResult},
    etcd::{Etcd, EtcdWatch, REQUEST_TIMEOUT},
    limits, migrate,
    types::{Change, Compare, Entry, LeaseId, Listing, Outcome, Page, RawListing, Revision, Txn},
};

/// The schema of the records that this version writes; see `migrate.rs`.
pub const SCHEMA: u32 = 1;

/// The port of an etcd endpoint that names none.
pub const ETCD_PORT: u16 = 2379;

/// How many past revisions a watch can always resume from. It covers minutes of the busiest
/// writing and days of ordinary writing, in a few megabytes.
pub const HISTORY_REVISIONS: u64 = 10_000;

/// Where the records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// SQLite in the data directory.
    Embedded {
        data_dir: PathBuf,
    },
    Etcd {
        endpoints: Vec<String>,
        options: EtcdOptions,
    },
}

impl StoreLocation {
    /// Reads the value of `--store`: `embedded`, or `etcd://HOST[:PORT],HOST[:PORT]…`.
    pub fn parse(text: &str, data_dir: &Path, options: EtcdOptions) -> StoreResult<StoreLocation> {
        if text == "embedded" {
            return Ok(StoreLocation::Embedded { data_dir: data_dir.to_owned() });
        }
        let Some(hosts) = text.strip_prefix("etcd://") else {
            return Err(StoreError::BadOptions(format!(
                "--store is {text:?}, but must be \"embedded\" or \"etcd://HOST[:PORT],…\""
            )));
        };
        options.validate()?;
        let endpoints =
            hosts.trim_end_matches('/').split(',').map(parse_endpoint).collect::<Result<_, _>>()?;
        Ok(StoreLocation::Etcd { endpoints, options })
    }
}

fn parse_endpoint(text: &str) -> StoreResult<String> {
    let text = text.trim();
    let (host, port) = match text.rsplit_once(':') {
        // The last colon of a bracketed address without a port is inside the brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    };
    let port = match port {
        None => ETCD_PORT,
        Some(port) => port.parse().map_err(|_| bad_endpoint(text))?,
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || (!bracketed && !host.chars().all(plain)) {
        return Err(bad_endpoint(text));
    }
    Ok(format!("{host}:{port}"))
}

fn bad_endpoint(text: &str) -> StoreError {
    StoreError::BadOptions(format!(
        "{text:?} is not an etcd endpoint (HOST or HOST:PORT, an IPv6 address in brackets)"
    ))
}

/// How to speak to etcd. TLS is used as soon as a CA or a client certificate is named.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdOptions {
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<String>,
}

impl EtcdOptions {
    pub fn uses_tls(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some()
    }

    pub(crate) fn validate(&self) -> StoreResult<()> {
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(StoreError::BadOptions(
                "an etcd client certificate needs its key file, and the other way round".to_owned(),
            ));
        }
        if self.user.is_some() != self.password.is_some() {
            return Err(StoreError::BadOptions(
                "an etcd user needs a password, and the other way round".to_owned(),
            ));
        }
        Ok(())
    }
}

/// Written by hand so that the password never reaches a log.
impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("ca_file", &self.ca_file)
            .field("cert_file", &self.cert_file)
            .field("key_file", &self.key_file)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .finish()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    pub location: StoreLocation,
}

/// A cheap handle; clones share the back end.
#[derive(Clone)]
pub struct Store {
    backend: Backend,
}

/// Futures of the etcd client are ten times as large as our own. They are boxed where they are
/// awaited, so that a task that only now and then asks the store does not hold room for them.
#[derive(Clone)]
enum Backend {
    Embedded(Embedded),
    Etcd(Etcd),
}

impl Store {
    /// Opens the store, makes it if there is none, and brings old records to this version's form.
    ///
    /// Nothing is written to a store that a newer version has written ([`StoreError::Newer`]).
    pub async fn open(options: &StoreOptions) -> StoreResult<Store> {
        let store = Store::attach(&options.location).await?;
        match store.prepare().await {
            Ok(()) => Ok(store),
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    /// Connects to the back end without looking at what is in it.
    pub(crate) async fn attach(location: &StoreLocation) -> StoreResult<Store> {
        let backend = match location {
            StoreLocation::Embedded { data_dir } => {
                Backend::Embedded(Embedded::open(data_dir).await?)
            }
            StoreLocation::Etcd { endpoints, options } => {
                Backend::Etcd(Etcd::open(endpoints, options).await?)
            }
        };
        Ok(Store { backend })
    }

    async fn prepare(&self) -> StoreResult<()> {
        migrate::ensure_not_newer(self, SCHEMA).await?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.end_old_leases().await?,
            Backend::Etcd(etcd) => etcd.refuse_unfinished_restore().await?,
        }
        migrate::run(self, migrate::MIGRATIONS, SCHEMA).await
    }

    pub async fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        limits::check_key(key)?;
        match &self.backend {
            Backend::Embedded(embedded) => embedded.get(key),
            Backend::Etcd(etcd) => Box::pin(etcd.get(key)).await,
        }
    }

    /// Keys that begin with `prefix`, in the order of their bytes.
    pub async fn list(&self, prefix: &str, page: Page) -> StoreResult<Listing> {
        self.list_raw(prefix, page).await.map(Listing::from)
    }

    pub(crate) async fn list_raw(&self, prefix: &str, page: Page) -> StoreResult<RawListing> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.list(prefix, page).await,
            Backend::Etcd(etcd) => Box::pin(etcd.list(prefix, &page)).await,
        }
    }

    /// Writes all of the transaction, or nothing. Once this returns, it is durable.
    ///
    /// An [`StoreError::Unreachable`] from etcd leaves open whether it was committed: read again.
    pub async fn commit(&self, txn: Txn) -> StoreResult<Outcome> {
        limits::check_txn(&txn)?;
        if txn.compares.iter().any(names_no_revision) {
            return Ok(Outcome::Refused);
        }
        match &self.backend {
            Backend::Embedded(embedded) => embedded.commit(txn).await,
            Backend::Etcd(etcd) => Box::pin(etcd.commit(&txn)).await,
        }
    }

    pub async fn revision(&self) -> StoreResult<Revision> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.revision(),
            Backend::Etcd(etcd) => Box::pin(etcd.revision()).await,
        }
    }

    /// Changes below `prefix` with a revision greater than `after`.
    ///
    /// That `after` is too old ([`StoreError::Compacted`]) is said by the first [`Watch::next`].
    pub async fn watch(&self, prefix: &str, after: Revision) -> StoreResult<Watch> {
        let inner = match &self.backend {
            Backend::Embedded(embedded) => WatchBackend::Embedded(embedded.watch(prefix, after)?),
            Backend::Etcd(etcd) => WatchBackend::Etcd(Box::new(etcd.watch(prefix, after))),
        };
        Ok(Watch { inner })
    }

    /// The changes after a revision of the keys that are `wanted`, up to now, with the revision of
    /// now; `None` where they are not in memory: then it is better to read the records anew.
    pub fn recent_changes(
        &self,
        after: Revision,
        wanted: impl Fn(&str) -> bool,
    ) -> StoreResult<Option<(Vec<Change>, Revision)>> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.recent_changes(after, wanted),
            Backend::Etcd(_) => Ok(None),
        }
    }

    pub async fn grant_lease(&self, ttl: Duration) -> StoreResult<LeaseId> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.grant_lease(ttl).await,
            Backend::Etcd(etcd) => Box::pin(etcd.grant_lease(ttl)).await,
        }
    }

    pub async fn keep_alive(&self, lease: LeaseId) -> StoreResult<()> {
        self.keep_alive_within(lease, REQUEST_TIMEOUT).await
    }

    /// The same, with `patience` for each endpoint of etcd.
    pub(crate) async fn keep_alive_within(
        &self,
        lease: LeaseId,
        patience: Duration,
    ) -> StoreResult<()> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.keep_alive(lease),
            Backend::Etcd(etcd) => Box::pin(etcd.keep_alive(lease, patience)).await,
        }
    }

    /// Ends the lease and deletes its keys; an ended lease is no error.
    pub async fn revoke_lease(&self, lease: LeaseId) -> StoreResult<()> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.revoke_lease(lease).await,
            Backend::Etcd(etcd) => Box::pin(etcd.revoke_lease(lease)).await,
        }
    }

    /// Forgets what happened before the last `keep` revisions; the records themselves stay.
    ///
    /// Both back ends do this by themselves, never below [`HISTORY_REVISIONS`].
    pub async fn compact(&self, keep: u64) -> StoreResult<()> {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.compact(keep).await,
            Backend::Etcd(etcd) => Box::pin(etcd.compact(keep)).await,
        }
    }

    /// Waits until what is under way is written, then releases files and connections.
    pub async fn close(&self) {
        match &self.backend {
            Backend::Embedded(embedded) => embedded.close().await,
            Backend::Etcd(etcd) => etcd.close(),
        }
    }
}

/// No key was ever written at revision 0, but etcd takes it as "does not exist".
fn names_no_revision(compare: &Compare) -> bool {
    match compare {
        Compare::Absent(_) => false,
        Compare::ModifiedAt(_, revision) | Compare::CreatedAt(_, revision) => revision.0 == 0,
    }
}

/// A stream of changes. Dropping it ends it; [`Watch::next`] may be dropped at any time.
pub struct Watch {
    inner: WatchBackend,
}

enum WatchBackend {
    Embedded(EmbeddedWatch),
    Etcd(Box<EtcdWatch>),
}

impl Watch {
    /// The next changes in order, all of one or several whole transactions.
    pub async fn next(&mut self) -> StoreResult<Vec<Change>> {
        match &mut self.inner {
            WatchBackend::Embedded(watch) => watch.next().await,
            WatchBackend::Etcd(watch) => Box::pin(watch.next()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> StoreResult<StoreLocation> {
        StoreLocation::parse(text, Path::new("/data"), EtcdOptions::default())
    }

    #[test]
    fn embedded_is_in_the_data_directory() {
        let expected = StoreLocation::Embedded { data_dir: PathBuf::from("/data") };
        assert_eq!(parse("embedded").unwrap(), expected);
    }

    #[test]
    fn endpoints_get_the_usual_port() {
        let location = parse("etcd://a,b.example:1234,[::1],[fd00::2]:99").unwrap();
        let StoreLocation::Etcd { endpoints, .. } = location else { panic!("not etcd") };
        assert_eq!(endpoints, ["a:2379", "b.example:1234", "[::1]:2379", "[fd00::2]:99"]);
    }

    #[test]
    fn bad_locations_are_refused_by_name() {
        for text in
            ["", "sqlite", "etcd://", "etcd://a,,b", "etcd://a:x", "etcd://a b", "etcd://a:99999"]
        {
            assert!(matches!(parse(text), Err(StoreError::BadOptions(_))), "{text:?}");
        }
    }

    #[test]
    fn half_of_a_pair_of_options_is_refused() {
        let no_key = EtcdOptions { cert_file: Some("c".into()), ..EtcdOptions::default() };
        let no_password = EtcdOptions { user: Some("u".into()), ..EtcdOptions::default() };
        for options in [no_key, no_password] {
            let parsed = StoreLocation::parse("etcd://a", Path::new("/"), options);
            assert!(matches!(parsed, Err(StoreError::BadOptions(_))));
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let options = EtcdOptions { password: Some("secret".into()), ..EtcdOptions::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
