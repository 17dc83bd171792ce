//! The agent's configuration: a TOML file. It is strict, as the server's is: a key that does not
//! exist is an error that names the nearest one that does.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use wharf_core::{
    install::{credentials::path, network::NETWORK_FILE},
    node::join::FEWEST_NODES,
    volume::{
        attach::{Policy, RwoScope, Takeover},
        lease::Terms,
    },
    words::nearest,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The Node that this machine is. If it is given, a network file for another node is refused.
    pub node_name: String,
    /// What the installer wrote about the network; read again whenever it changes. Empty where
    /// somebody else keeps the network.
    pub network_file: PathBuf,
    /// Reads what a node may not read: all pods, budgets, logs, custom resources.
    pub kubeconfig: Option<PathBuf>,
    /// The node's own identity, which cordons and evicts; without it `kubeconfig` does.
    pub node_kubeconfig: Option<PathBuf>,
    /// Where the agents of a node publish their files.
    pub run_dir: PathBuf,
    /// What outlives a reboot.
    pub persist_dir: PathBuf,
    pub status_port: u16,
    /// Which other agents this one plays, because they do not run here.
    pub publish_as: Vec<Role>,
    pub app_namespace: String,
    pub lease_name: String,
    /// The tracker answers without a token where no token file is given.
    pub open_trace: bool,
    /// Whoever asks the tracker must know what is in this file.
    pub trace_token_file: Option<PathBuf>,
    pub cordon_retry_seconds: u64,
    /// After a failed try to drain, and, twice as long each time, after a drain that failed for good.
    pub drain_retry_seconds: u64,
    pub drain_timeout_seconds: u64,
    pub api_skip_seconds: u64,
    pub unknown_to_halting_seconds: u64,
    /// Program and arguments that serve the console of `{vmi}` in `{namespace}` at `{port}`. An empty
    /// list leaves that to whoever watches the file that asks for a console.
    pub console_command: Vec<String>,
    /// Program and arguments that put a fetched image in place.
    pub update_command: Vec<String>,
    pub min_cluster_nodes: usize,
    /// The management server that the link speaks with, as `host:port`; several with commas.
    pub server: Option<String>,
    /// The link's certificate and its key, in one file.
    pub link_identity: PathBuf,
    /// Who signed what servers show.
    pub link_authority: PathBuf,
    pub logs: Logs,
    pub volumes: Volumes,
}

/// An agent of the node, by the name of the folder in which it publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Zedagent,
    Nodeagent,
    Baseosmgr,
    Zedmanager,
    Domainmgr,
    Volumemgr,
}

/// Where the lines of applications go. What is not given gets none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Logs {
    pub file: Option<PathBuf>,
    /// The journal of systemd.
    pub journal: bool,
    /// A web server, as `http://` or `https://`, to which they are posted.
    pub url: Option<String>,
    /// Where the kubelet keeps the logs of pods.
    pub pods_dir: PathBuf,
}

impl Default for Logs {
    fn default() -> Self {
        Self { file: None, journal: false, url: None, pods_dir: "/var/log/pods".into() }
    }
}

impl Logs {
    /// Whether lines go anywhere.
    pub fn are_wanted(&self) -> bool {
        self.file.is_some() || self.journal || self.url.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volumes {
    /// Where kubelet looks for drivers, if it does not say so itself.
    pub plugin_dir: Option<PathBuf>,
    pub kubelet_root: Option<PathBuf>,
    /// Where the agent keeps what it does with volumes. Without it there are none.
    pub state_dir: Option<PathBuf>,
    /// The driver for kubelet; without it `wharf-flex` beside the agent's own program.
    pub driver: Option<PathBuf>,
    /// What breaks the lock of a volume.
    pub takeover_policy: Takeover,
    pub rwo_scope: RwoScope,
    /// Whether this node cuts its volumes off before its lease ends. Without it: only where the
    /// storage cannot shut the node out.
    pub self_fence: Option<bool>,
    /// Whether the guard forces the machine down when volumes cannot be cut off before the lease ends.
    pub self_fence_reboot: bool,
    /// How: the kernel's own trigger. Tests have another.
    pub reboot_trigger: PathBuf,
    /// How long the lease lasts without being renewed.
    pub lease_seconds: u64,
    /// How often the elected agent looks at all records when nothing tells it to.
    pub scan_seconds: u64,
}

impl Default for Volumes {
    fn default() -> Self {
        Self {
            plugin_dir: None,
            kubelet_root: None,
            state_dir: None,
            driver: None,
            takeover_policy: Takeover::ByProof,
            rwo_scope: RwoScope::Pod,
            self_fence: None,
            self_fence_reboot: false,
            reboot_trigger: "/proc/sysrq-trigger".into(),
            lease_seconds: Terms::default().duration.as_secs(),
            scan_seconds: 15,
        }
    }
}

impl Volumes {
    pub fn policy(&self) -> Policy {
        Policy {
            takeover: self.takeover_policy,
            rwo_scope: self.rwo_scope,
            self_fence: self.self_fence,
            skew: self.terms().skew,
        }
    }

    pub fn scan_every(&self) -> Duration {
        Duration::from_secs(self.scan_seconds.max(1))
    }

    /// All times in the proportion of the usual ones.
    pub fn terms(&self) -> Terms {
        let usual = Terms::default();
        let duration = Duration::from_secs(self.lease_seconds.max(SHORTEST_LEASE));
        Terms { duration, renew_every: duration / 5, cut_within: duration / 4, ..usual }
    }
}

/// A lease that is shorter ends whenever a machine is busy.
const SHORTEST_LEASE: u64 = 10;

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            network_file: NETWORK_FILE.into(),
            kubeconfig: None,
            node_kubeconfig: None,
            run_dir: "/run".into(),
            persist_dir: "/persist".into(),
            status_port: 12346,
            publish_as: Vec::new(),
            app_namespace: "eve-kube-app".to_owned(),
            lease_name: "eve-kube-stats-leader".to_owned(),
            open_trace: true,
            trace_token_file: None,
            cordon_retry_seconds: 5,
            drain_retry_seconds: 300,
            drain_timeout_seconds: 86_400,
            api_skip_seconds: 300,
            unknown_to_halting_seconds: 300,
            console_command: ["virtctl", "vnc", "{vmi}", "-n", "{namespace}"]
                .into_iter()
                .chain(["--port", "{port}", "--proxy-only"])
                .map(str::to_owned)
                .collect(),
            update_command: Vec::new(),
            min_cluster_nodes: FEWEST_NODES,
            server: None,
            link_identity: path::LINK_IDENTITY.into(),
            link_authority: path::LINK_AUTHORITY.into(),
            logs: Logs::default(),
            volumes: Volumes::default(),
        }
    }
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
    #[error("{}: there is no configuration key `{key}`", path.display())]
    UnknownKey { path: PathBuf, key: String, nearest: Option<String> },
    #[error("{}: {key} has the wrong type", path.display())]
    BadValue {
        path: PathBuf,
        key: String,
        #[source]
        source: Box<toml::de::Error>,
    },
}

impl ConfigError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { nearest: Some(nearest), .. } => {
                Some(format!("did you mean `{nearest}`?"))
            }
            Self::UnknownKey { nearest: None, .. } => {
                Some(format!("there are: {}", known_keys().join(", ")))
            }
            Self::BadValue { .. } => {
                Some("`wharf agent --help` lists every key with its kind".to_owned())
            }
            Self::Unreadable { .. } | Self::NotToml { .. } => None,
        }
    }
}

impl Config {
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let table: Table = text.parse().map_err(|source| ConfigError::NotToml {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let known = known_keys();
        let given = keys(&table);
        if let Some(key) = given.iter().find(|key| !known.contains(key)) {
            let nearest = nearest(key, known.iter().map(String::as_str));
            return Err(ConfigError::UnknownKey {
                path: path.to_owned(),
                key: key.clone(),
                nearest,
            });
        }
        Value::Table(table.clone()).try_into().map_err(|source| ConfigError::BadValue {
            path: path.to_owned(),
            key: wrong_key(&table),
            source: Box::new(source),
        })
    }

    /// Whether this agent also plays that one.
    pub fn plays(&self, role: Role) -> bool {
        self.publish_as.contains(&role)
    }
}

/// Every key that a table has, those of tables within it as `logs.file`.
fn keys(table: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                found.extend(keys(inner).iter().map(|inner| format!("{key}.{inner}")));
            }
            _ => found.push(key.clone()),
        }
    }
    found
}

/// A configuration in which nothing is left out says them all.
fn known_keys() -> Vec<String> {
    let some = || Some(PathBuf::new());
    let full = Config {
        kubeconfig: some(),
        node_kubeconfig: some(),
        trace_token_file: some(),
        server: Some(String::new()),
        logs: Logs { file: some(), url: Some(String::new()), ..Logs::default() },
        volumes: Volumes {
            plugin_dir: some(),
            kubelet_root: some(),
            state_dir: some(),
            driver: some(),
            self_fence: Some(true),
            ..Volumes::default()
        },
        ..Config::default()
    };
    let mut known = keys(&Table::try_from(full).unwrap_or_default());
    // Tables without anything in them.
    known.extend(["logs".to_owned(), "volumes".to_owned()]);
    known
}

/// The key that cannot be read, found by reading each alone.
fn wrong_key(table: &Table) -> String {
    let alone = |key: &str, value: &Value| Table::from_iter([(key.to_owned(), value.clone())]);
    let wrong = |(key, value): &(&String, &Value)| {
        Value::Table(alone(key, value)).try_into::<Config>().is_err()
    };
    let found = table.iter().find(wrong);
    found.map(|(key, _)| key.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    #[test]
    fn an_empty_file_means_the_installers_places() {
        let config = load("").unwrap();
        assert_eq!(config.network_file, Path::new("/etc/wharf/agent/network.json"));
        let config = load("node_name = 'n1'\nnetwork_file = '/f'").unwrap();
        assert_eq!((config.node_name.as_str(), config.network_file), ("n1", "/f".into()));
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_right_one() {
        let error = load("netwrk_file = '/f'").unwrap_err();
        assert!(error.to_string().contains("`netwrk_file`"), "{error}");
        assert_eq!(error.hint().unwrap(), "did you mean `network_file`?");
        let hint = load("zzz = 1").unwrap_err().hint().unwrap();
        assert!(hint.contains("node_name"), "{hint}");
    }

    #[test]
    fn every_key_of_the_contract_is_read_and_has_its_default() {
        let config = load(
            "kubeconfig = '/k'\nnode_kubeconfig = '/n'\nrun_dir = '/r'\npersist_dir = '/p'\n\
             status_port = 1\npublish_as = ['zedagent', 'domainmgr']\napp_namespace = 'a'\n\
             lease_name = 'l'\nopen_trace = false\ntrace_token_file = '/t'\n\
             cordon_retry_seconds = 1\ndrain_retry_seconds = 2\ndrain_timeout_seconds = 3\n\
             api_skip_seconds = 4\nunknown_to_halting_seconds = 5\nconsole_command = ['c']\n\
             update_command = ['u']\nmin_cluster_nodes = 6\nserver = 's'\n[logs]\nfile = '/l'\n\
             journal = true\nurl = 'http://h/'\npods_dir = '/q'\n[volumes]\nplugin_dir = '/v'\nkubelet_root = '/w'\nstate_dir = '/x'",
        );
        let config = config.unwrap();
        assert!(config.plays(Role::Zedagent) && !config.plays(Role::Nodeagent));
        let logs = Logs {
            file: Some("/l".into()),
            journal: true,
            url: Some("http://h/".to_owned()),
            pods_dir: "/q".into(),
        };
        assert_eq!(config.logs, logs);
        assert_eq!(config.volumes.state_dir, Some("/x".into()));
        let defaults = load("[logs]\n[volumes]").unwrap();
        assert_eq!((defaults.status_port, defaults.run_dir), (12346, "/run".into()));
        assert_eq!(defaults.drain_timeout_seconds, 86_400);
        let error = load("[logs]\nfle = '/l'").unwrap_err();
        assert!(error.to_string().contains("`logs.fle`"), "{error}");
        assert_eq!(error.hint().unwrap(), "did you mean `logs.file`?");
    }

    #[test]
    fn files_that_cannot_be_read_as_configuration_are_named() {
        assert!(matches!(load("= ="), Err(ConfigError::NotToml { .. })));
        let error = load("run_dir = '/r'\nstatus_port = 'x'").unwrap_err();
        assert!(error.to_string().ends_with("status_port has the wrong type"), "{error}");
        assert!(error.hint().unwrap().contains("--help"));
        let error = Config::load(Path::new("/nowhere/a.toml")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/a.toml"));
    }
}
