//! The server's configuration: a TOML file, then `WHARF_*` variables, then flags.
//!
//! It is strict: a key that does not exist is an error that names the nearest one that does,
//! because a misspelt limit that is silently ignored is found out at the worst time.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use wharf_core::{cluster::ClusterSpec, words::nearest};
use wharf_store::{EtcdOptions, StoreLocation};

/// Variables with our prefix that are not configuration of the server: the command line's and the
/// build's.
const OTHER_VARIABLES: &[&str] = &[
    "WHARF_SERVER",
    "WHARF_TOKEN",
    "WHARF_CA",
    "WHARF_CONTEXT",
    "WHARF_CONTEXTS",
    "WHARF_CACHE",
    "WHARF_CONFIG",
];

/// Numbers beyond this are mistakes.
const LARGEST: usize = 1 << 30;
const DAY_SECONDS: u64 = 24 * 3600;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Where the store, the sealing key, the certificate and the socket are.
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    /// Plain HTTP instead of HTTPS; only on a loopback address.
    pub http: bool,
    /// `embedded`, or `etcd://HOST[:PORT],…`.
    pub store: String,
    /// The sealing key; `seal.key` in the data directory by default.
    pub key_file: PathBuf,
    /// The first admin's password; without it the first start makes one and prints it.
    pub admin_password_file: PathBuf,
    /// Where the bundles are, one directory each; `bundles` in the data directory by default, and
    /// what `cargo xtask assets` made if there is none.
    pub bundles_dir: PathBuf,
    /// The program that runs on hosts; the server's own by default.
    pub agent_program: PathBuf,
    /// Whether a create that was under way goes on after a restart, or comes back as CreateFailed.
    pub resume_on_start: bool,
    /// Which log lines to write, as `info` or `wharf_server=debug,info`.
    pub log: String,
    pub tls: Tls,
    pub agents: Agents,
    pub etcd: Etcd,
    pub limits: Limits,
    pub tokens: Tokens,
    pub audit: Audit,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tls {
    /// A certificate chain and its key, in PEM. Without them the server makes its own.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// Further names and addresses for the certificate that the server makes.
    pub names: Vec<String>,
}

/// The link to the agents of nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agents {
    /// Where agents are heard; without it, one port above `listen`.
    pub listen: String,
    /// Where agents find this server, as `HOST:PORT`; without it, at the address that a cluster's
    /// wish gives for the server, and the port of `listen`.
    pub addresses: Vec<String>,
    /// Agents that may be linked at once.
    pub connections: usize,
    /// How often it is looked whether a linked agent needs a new certificate.
    pub renew_seconds: u64,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            listen: String::new(),
            addresses: Vec::new(),
            connections: 10_000,
            // Certificates near their end slowly.
            renew_seconds: 3600,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Etcd {
    pub ca_file: PathBuf,
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub user: String,
    pub password_file: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub body_bytes: usize,
    pub header_bytes: usize,
    pub connections: usize,
    /// From one address, so that one peer cannot take them all.
    pub connections_per_address: usize,
    /// From the first byte of a request to the head of the answer.
    pub request_seconds: u64,
    /// For the TLS handshake and for a request's head; also how long an idle connection is kept.
    pub header_seconds: u64,
    pub event_streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // The largest body is a cluster of some thousand nodes: about 150 bytes a node.
            body_bytes: 1 << 20,
            header_bytes: 32 << 10,
            // Below the usual limit of 1,024 open files, with room for the store and SSH.
            connections: 800,
            // Enough for a proxy in front of the server.
            connections_per_address: 400,
            request_seconds: 30,
            header_seconds: 20,
            event_streams: 500,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// How long a login holds.
    pub login_hours: u32,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { login_hours: 24 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Audit {
    pub retention_days: u32,
}

impl Default for Audit {
    fn default() -> Self {
        Self { retention_days: 365 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: default_data_dir(),
            listen: SocketAddr::from(([0, 0, 0, 0], 8443)),
            http: false,
            store: "embedded".to_owned(),
            key_file: PathBuf::new(),
            admin_password_file: PathBuf::new(),
            bundles_dir: PathBuf::new(),
            agent_program: PathBuf::new(),
            resume_on_start: true,
            log: "info".to_owned(),
            tls: Tls::default(),
            agents: Agents::default(),
            etcd: Etcd::default(),
            limits: Limits::default(),
            tokens: Tokens::default(),
            audit: Audit::default(),
        }
    }
}

/// `/var/lib/wharf` for root, otherwise `wharf` in the user's data directory.
pub fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/wharf");
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("XDG_DATA_HOME")
        .map_or_else(|| home.join(".local/share"), PathBuf::from)
        .join("wharf")
}

/// What the flags say; they win over file and environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    pub config: Option<PathBuf>,
    pub data_dir: Option<PathBuf>,
    pub listen: Option<String>,
    pub http: bool,
    pub store: Option<String>,
    pub key_file: Option<PathBuf>,
    pub admin_password_file: Option<PathBuf>,
    pub log: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the configuration file {} is not TOML", path.display())]
    NotToml {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("{place}: there is no configuration key `{key}`")]
    UnknownKey { place: String, key: String, nearest: Option<String> },
    #[error("the configuration key `{key}` is wrong: {reason}")]
    BadValue { key: String, reason: String },
}

impl ConfigError {
    pub fn hint(&self) -> Option<String> {
        match self {
            ConfigError::UnknownKey { nearest: Some(nearest), .. } => {
                Some(format!("did you mean `{nearest}`?"))
            }
            ConfigError::UnknownKey { nearest: None, .. } => {
                Some("docs/OPERATIONS.md lists all keys".to_owned())
            }
            ConfigError::BadValue { key, .. } if key == "listen" => {
                Some("give an address and a port, such as 0.0.0.0:8443".to_owned())
            }
            ConfigError::Unreadable { .. }
            | ConfigError::NotToml { .. }
            | ConfigError::BadValue { .. } => None,
        }
    }
}

impl Config {
    pub fn load(
        flags: &Overrides,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let mut merged = Table::new();
        let known = known_keys()?;
        let env: Vec<(String, String)> = env.into_iter().collect();
        let from_env = env
            .iter()
            .find(|(name, _)| name == "WHARF_CONFIG")
            .map(|(_, path)| PathBuf::from(path));
        if let Some(path) = flags.config.clone().or(from_env) {
            merge_file(&mut merged, &path, &known)?;
        }
        merge_env(&mut merged, &env, &known)?;
        merge_flags(&mut merged, flags);
        let config: Config =
            serde_path_to_error::deserialize(Value::Table(merged)).map_err(|e| {
                ConfigError::BadValue { key: e.path().to_string(), reason: e.inner().to_string() }
            })?;
        config.checked()
    }

    /// What no single key can say of itself.
    fn checked(mut self) -> Result<Config, ConfigError> {
        let bad = |key: &str, reason: &str| {
            Err(ConfigError::BadValue { key: key.to_owned(), reason: reason.to_owned() })
        };
        if self.http && !self.listen.ip().is_loopback() {
            return bad(
                "http",
                "plain HTTP is only served on a loopback address such as 127.0.0.1:8080",
            );
        }
        if self.tls.cert_file.as_os_str().is_empty() != self.tls.key_file.as_os_str().is_empty() {
            return bad("tls", "cert_file and key_file belong together: give both or neither");
        }
        for (key, value) in [
            ("limits.body_bytes", self.limits.body_bytes),
            ("limits.connections", self.limits.connections),
            ("limits.connections_per_address", self.limits.connections_per_address),
            ("limits.event_streams", self.limits.event_streams),
            ("agents.connections", self.agents.connections),
            ("tokens.login_hours", self.tokens.login_hours as usize),
            ("audit.retention_days", self.audit.retention_days as usize),
        ] {
            if !(1..=LARGEST).contains(&value) {
                return bad(key, &format!("must be from 1 to {LARGEST}"));
            }
        }
        // The HTTP library needs a buffer of that size to read a request at all.
        if !(8 << 10..=LARGEST).contains(&self.limits.header_bytes) {
            return bad("limits.header_bytes", &format!("must be from 8192 to {LARGEST}"));
        }
        let seconds = 1..=DAY_SECONDS;
        if !seconds.contains(&self.limits.request_seconds)
            || !seconds.contains(&self.limits.header_seconds)
        {
            let reason = format!("request_seconds and header_seconds are from 1 to {DAY_SECONDS}");
            return bad("limits", &reason);
        }
        if !seconds.contains(&self.agents.renew_seconds) {
            return bad("agents.renew_seconds", &format!("must be from 1 to {DAY_SECONDS}"));
        }
        if self.data_dir.as_os_str().is_empty() {
            return bad("data_dir", "must not be empty");
        }
        if self.key_file.as_os_str().is_empty() {
            self.key_file = self.data_dir.join("seal.key");
        }
        self.agents_listen()?;
        self.store_location()?;
        Ok(self)
    }

    /// Where agents are heard.
    pub fn agents_listen(&self) -> Result<SocketAddr, ConfigError> {
        let text = &self.agents.listen;
        if !text.is_empty() {
            let reason = "give an address and a port, such as 0.0.0.0:8444";
            let bad = |_| ConfigError::BadValue {
                key: "agents.listen".to_owned(),
                reason: reason.to_owned(),
            };
            return text.parse().map_err(bad);
        }
        let mut address = self.listen;
        // Any port stays any port; above the last one there is none.
        match address.port() {
            0 => {}
            u16::MAX => address.set_port(u16::MAX - 1),
            port => address.set_port(port + 1),
        }
        Ok(address)
    }

    /// Where the agents of a cluster find this server, which hears them at this port.
    pub fn agents_addresses(&self, spec: &ClusterSpec, port: u16) -> Vec<String> {
        match (self.agents.addresses.is_empty(), port) {
            (false, _) => self.agents.addresses.clone(),
            (true, 0) => Vec::new(),
            (true, port) => vec![format!("{}:{port}", spec.single_cloud_address.ip())],
        }
    }

    /// The same as far as it is known without a cluster.
    pub fn own_agents_addresses(&self, port: u16) -> Vec<String> {
        let listen = self.agents_listen().map(|address| address.ip());
        match listen {
            _ if !self.agents.addresses.is_empty() => self.agents.addresses.clone(),
            Ok(ip) if port != 0 && !ip.is_unspecified() && !ip.is_loopback() => {
                vec![SocketAddr::new(ip, port).to_string()]
            }
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    pub fn socket_path(&self) -> PathBuf {
        self.data_dir.join("wharf.sock")
    }

    /// The store that `store` and `etcd` describe.
    pub fn store_location(&self) -> Result<StoreLocation, ConfigError> {
        let some = |path: &Path| (!path.as_os_str().is_empty()).then(|| path.to_path_buf());
        let password = match some(&self.etcd.password_file) {
            None => None,
            Some(path) => Some(read_secret(&path)?),
        };
        let options = EtcdOptions {
            ca_file: some(&self.etcd.ca_file),
            cert_file: some(&self.etcd.cert_file),
            key_file: some(&self.etcd.key_file),
            user: (!self.etcd.user.is_empty()).then(|| self.etcd.user.clone()),
            password,
        };
        StoreLocation::parse(&self.store, &self.data_dir, options)
            .map_err(|e| ConfigError::BadValue { key: "store".to_owned(), reason: e.to_string() })
    }
}

/// The password that a file holds: all of it but the end of its line, as the command line reads it.
pub fn read_secret(path: &Path) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
    let secret = text.strip_suffix('\n').unwrap_or(&text);
    Ok(secret.strip_suffix('\r').unwrap_or(secret).to_owned())
}

/// All keys that there are, as dotted paths: the defaults say them all.
fn known_keys() -> Result<Vec<String>, ConfigError> {
    let defaults = Table::try_from(Config::default())
        .map_err(|e| ConfigError::BadValue { key: "default".to_owned(), reason: e.to_string() })?;
    let mut keys = Vec::new();
    flatten(&defaults, "", &mut |path, _| keys.push(path.to_owned()));
    Ok(keys)
}

fn flatten(table: &Table, prefix: &str, visit: &mut impl FnMut(&str, &Value)) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            // A table is visited too if there is nothing in it: its name may be wrong.
            Value::Table(inner) if !inner.is_empty() => flatten(inner, &path, visit),
            other => visit(&path, other),
        }
    }
}

fn merge_file(merged: &mut Table, path: &Path, known: &[String]) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
    let table: Table = text.parse().map_err(|source| ConfigError::NotToml {
        path: path.to_path_buf(),
        source: Box::new(source),
    })?;
    let mut unknown = None;
    flatten(&table, "", &mut |key, _| {
        let is_known = |known: &String| {
            known == key || known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        };
        if unknown.is_none() && !known.iter().any(is_known) {
            unknown = Some(key.to_owned());
        }
    });
    if let Some(key) = unknown {
        let nearest = nearest(&key, known.iter().map(String::as_str));
        return Err(ConfigError::UnknownKey { place: path.display().to_string(), key, nearest });
    }
    merge_tables(merged, table);
    Ok(())
}

fn merge_tables(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge_tables(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn merge_env(
    merged: &mut Table,
    env: &[(String, String)],
    known: &[String],
) -> Result<(), ConfigError> {
    let variable = |key: &str| format!("WHARF_{}", key.replace('.', "_").to_uppercase());
    for (name, text) in env {
        if !name.starts_with("WHARF_") || OTHER_VARIABLES.contains(&name.as_str()) {
            continue;
        }
        let Some(key) = known.iter().find(|key| variable(key) == *name) else {
            let names: Vec<String> = known.iter().map(|key| variable(key)).collect();
            let nearest = nearest(name, names.iter().map(String::as_str));
            return Err(ConfigError::UnknownKey {
                place: "environment".to_owned(),
                key: name.clone(),
                nearest,
            });
        };
        set(merged, key, parse_value(text));
    }
    Ok(())
}

/// Numbers, booleans and lists are written as in TOML; anything else is a string.
fn parse_value(text: &str) -> Value {
    let typed = format!("value = {text}").parse::<Table>().ok().and_then(|mut t| t.remove("value"));
    match typed {
        Some(value @ (Value::Integer(_) | Value::Boolean(_) | Value::Array(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

fn merge_flags(merged: &mut Table, flags: &Overrides) {
    let text = |path: &PathBuf| path.display().to_string();
    for (key, value) in [
        ("data_dir", flags.data_dir.as_ref().map(text)),
        ("listen", flags.listen.clone()),
        ("store", flags.store.clone()),
        ("key_file", flags.key_file.as_ref().map(text)),
        ("admin_password_file", flags.admin_password_file.as_ref().map(text)),
        ("log", flags.log.clone()),
    ] {
        if let Some(value) = value {
            set(merged, key, Value::String(value));
        }
    }
    if flags.http {
        set(merged, "http", Value::Boolean(true));
    }
}

fn set(table: &mut Table, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
        }
        Some((head, rest)) => {
            let inner = table.entry(head.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, env: &[(&str, &str)], flags: Overrides) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wharf.toml");
        std::fs::write(&path, file).unwrap();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::load(&Overrides { config: Some(path), ..flags }, env)
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let file =
            "data_dir = '/f'\nlisten = '127.0.0.1:1'\nlog = 'file'\n[limits]\nbody_bytes = 7";
        let env = [("WHARF_LISTEN", "127.0.0.1:2"), ("WHARF_LOG", "env")];
        let flags = Overrides { log: Some("flag".to_owned()), ..Overrides::default() };
        let config = load(file, &env, flags).unwrap();
        assert_eq!(config.log, "flag");
        assert_eq!(config.listen.port(), 2);
        assert_eq!(config.data_dir, Path::new("/f"));
        assert_eq!(config.key_file, Path::new("/f/seal.key"));
        assert_eq!(config.limits.body_bytes, 7);
        assert_eq!(config.limits.connections, Limits::default().connections);
    }

    #[test]
    fn nested_keys_come_from_the_environment_with_their_type() {
        let env = [
            ("WHARF_LIMITS_BODY_BYTES", "9000"),
            ("WHARF_TLS_NAMES", r#"["a", "b"]"#),
            ("WHARF_TOKEN", "the command line's, not ours"),
            ("PATH", "/bin"),
        ];
        let config = load("", &env, Overrides::default()).unwrap();
        assert_eq!(config.limits.body_bytes, 9000);
        assert_eq!(config.tls.names, ["a", "b"]);
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_right_one() {
        let cases = [
            ("lisen = '127.0.0.1:1'", &[][..], "lisen", Some("listen")),
            ("[limits]\nbody_byte = 1", &[], "limits.body_byte", Some("limits.body_bytes")),
            (
                "",
                &[("WHARF_LIMITS_BODY_BITES", "1")],
                "WHARF_LIMITS_BODY_BITES",
                Some("WHARF_LIMITS_BODY_BYTES"),
            ),
            ("zzzzzz = 1", &[], "zzzzzz", None),
            ("[limts]", &[], "limts", None),
        ];
        for (file, env, key, nearest) in cases {
            match load(file, env, Overrides::default()) {
                Err(ConfigError::UnknownKey { key: found, nearest: hint, .. }) => {
                    assert_eq!((found.as_str(), hint.as_deref()), (key, nearest));
                }
                other => panic!("{file:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn every_key_is_in_the_documentation() {
        let text = include_str!("../../../docs/OPERATIONS.md");
        for key in known_keys().unwrap() {
            assert!(text.contains(&format!("`{key}`")), "docs/OPERATIONS.md lacks {key}");
        }
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        for (file, key) in [
            ("listen = 'nowhere'", "listen"),
            ("[limits]\nbody_bytes = 'much'", "limits.body_bytes"),
            ("[limits]\nbody_bytes = 0", "limits.body_bytes"),
            ("[agents]\nrenew_seconds = 0", "agents.renew_seconds"),
            ("[agents]\nrenew_seconds = 90000", "agents.renew_seconds"),
            ("http = true\nlisten = '0.0.0.0:80'", "http"),
            ("[tls]\ncert_file = '/c'", "tls"),
            ("store = 'redis://x'", "store"),
            ("limits = 3", "limits"),
        ] {
            match load(file, &[], Overrides::default()) {
                Err(ConfigError::BadValue { key: found, .. }) => assert_eq!(found, key, "{file}"),
                Err(ConfigError::UnknownKey { key: found, .. }) => assert_eq!(found, key, "{file}"),
                other => panic!("{file:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn files_that_are_missing_or_not_toml_are_named() {
        let flags = Overrides { config: Some("/nowhere/w.toml".into()), ..Overrides::default() };
        let error = Config::load(&flags, []).unwrap_err();
        assert!(error.to_string().contains("/nowhere/w.toml"), "{error}");
        assert!(matches!(load("= =", &[], Overrides::default()), Err(ConfigError::NotToml { .. })));
    }
}
