//! The agent's configuration: a TOML file. It is strict, as the server's is: a key that does not
//! exist is an error that names the nearest one that does.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use wharf_core::{install::network::NETWORK_FILE, words::nearest};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The Node that this machine is. If it is given, a network file for another node is refused.
    pub node_name: String,
    /// What the installer wrote about the network; read again whenever it changes.
    pub network_file: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self { node_name: String::new(), network_file: NETWORK_FILE.into() }
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
    #[error("{}: a value has the wrong type", path.display())]
    BadValue {
        path: PathBuf,
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
            Self::Unreadable { .. } | Self::NotToml { .. } | Self::BadValue { .. } => None,
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
        if let Some(key) = table.keys().find(|key| !known.contains(key)) {
            let nearest = nearest(key, known.iter().map(String::as_str));
            return Err(ConfigError::UnknownKey {
                path: path.to_owned(),
                key: key.clone(),
                nearest,
            });
        }
        Value::Table(table).try_into().map_err(|source| ConfigError::BadValue {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }
}

/// The defaults say them all.
fn known_keys() -> Vec<String> {
    let defaults = Table::try_from(Config::default()).unwrap_or_default();
    defaults.keys().cloned().collect()
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
    fn files_that_cannot_be_read_as_configuration_are_named() {
        assert!(matches!(load("= ="), Err(ConfigError::NotToml { .. })));
        assert!(matches!(load("node_name = 3"), Err(ConfigError::BadValue { .. })));
        let error = Config::load(Path::new("/nowhere/a.toml")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/a.toml"));
    }
}
