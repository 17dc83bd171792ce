//! The servers that the user has logged in to, in one file that only the user can read.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Told};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The one that commands use when nothing else is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// A server and who the user is there. Without `Debug`: the token is a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub server: String,
    pub user: String,
    pub token: String,
    pub expires_at: Timestamp,
    /// The only authority to trust, in PEM; without it the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} at {})", self.user, self.server)
    }
}

impl Contexts {
    pub fn get(&self, name: &str) -> anyhow::Result<&Context> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let hint = if known.is_empty() {
                "there are none yet; make one with `wharf login --server URL`".to_owned()
            } else {
                format!("there are: {}", known.join(", "))
            };
            Told::new(Exit::NotFound, format!("there is no context {name}")).hint(hint).into()
        })
    }

    pub fn current(&self) -> Option<(&str, &Context)> {
        let name = self.current.as_deref()?;
        Some((name, self.contexts.get(name)?))
    }
}

/// The file, as `WHARF_CONTEXTS` or the XDG rules have it.
pub fn default_path(var: impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("WHARF_CONTEXTS").unwrap_or_else(|| {
        set("XDG_CONFIG_HOME")
            .unwrap_or_else(|| set("HOME").unwrap_or_default().join(".config"))
            .join("wharf/contexts.toml")
    })
}

/// Reads the file; one that is not there holds nothing.
pub fn load(path: &Path) -> anyhow::Result<Contexts> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    toml::from_str(&text)
        .with_context(|| format!("the context file {} cannot be understood", path.display()))
}

/// Changes the file: readers see the old or the new one, and two changes at once both hold.
pub fn update<T>(
    path: &Path,
    change: impl FnOnce(&mut Contexts) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let writing = || format!("cannot write {}", path.display());
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(writing)?;
    let lock = File::create(path.with_extension("lock")).with_context(writing)?;
    lock.lock().with_context(writing)?;

    let mut contexts = load(path)?;
    let result = change(&mut contexts)?;
    let text = toml::to_string(&contexts).with_context(writing)?;
    // Temporary files are readable by their owner alone from the start.
    let mut file = tempfile::NamedTempFile::new_in(dir).with_context(writing)?;
    file.write_all(text.as_bytes()).with_context(writing)?;
    file.as_file().sync_all().with_context(writing)?;
    file.persist(path).map_err(|e| e.error).with_context(writing)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn context(server: &str, ca: Option<&str>) -> Context {
        Context {
            server: server.to_owned(),
            user: "alice".to_owned(),
            token: "wharf.alice.1.secret".to_owned(),
            expires_at: "2026-01-01T00:00:00Z".parse().unwrap(),
            ca: ca.map(str::to_owned),
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_only_the_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/contexts.toml");
        assert_eq!(load(&path).unwrap(), Contexts::default());
        let pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        for (name, ca) in [("one:8443", None), ("two", Some(pem))] {
            update(&path, |contexts| {
                contexts.contexts.insert(name.to_owned(), context("https://x", ca));
                contexts.current = Some(name.to_owned());
                Ok(())
            })
            .unwrap();
        }
        let back = load(&path).unwrap();
        assert_eq!(back.contexts.len(), 2);
        assert_eq!(back.current(), Some(("two", &context("https://x", Some(pem)))));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[test]
    fn a_change_that_fails_leaves_the_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts.toml");
        fs::write(&path, "current = 'a'\n").unwrap();
        let failed = update(&path, |contexts| {
            contexts.current = None;
            contexts.get("nobody").map(drop)
        });
        assert_eq!(crate::failure::explain(&failed.unwrap_err()).exit, Exit::NotFound);
        assert_eq!(fs::read_to_string(&path).unwrap(), "current = 'a'\n");
    }

    #[test]
    fn changes_at_the_same_time_all_hold() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts.toml");
        std::thread::scope(|scope| {
            for n in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    update(path, |contexts| {
                        contexts.contexts.insert(format!("c{n}"), context("https://x", None));
                        Ok(())
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(load(&path).unwrap().contexts.len(), 8);
    }

    #[test]
    fn a_file_that_is_not_ours_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts.toml");
        fs::write(&path, "surprise = true\n").unwrap();
        let error = update(&path, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("contexts.toml"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "surprise = true\n");
    }

    #[test]
    fn the_file_is_where_the_environment_says() {
        let path = |vars: &[(&str, &str)]| {
            default_path(|name| {
                vars.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let home = ("HOME", "/h");
        let xdg = ("XDG_CONFIG_HOME", "/x");
        assert_eq!(path(&[home]), Path::new("/h/.config/wharf/contexts.toml"));
        assert_eq!(path(&[home, xdg]), Path::new("/x/wharf/contexts.toml"));
        assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "")]), path(&[home]));
        assert_eq!(path(&[home, xdg, ("WHARF_CONTEXTS", "/c.toml")]), Path::new("/c.toml"));
    }
}
