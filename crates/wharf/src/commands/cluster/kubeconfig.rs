//! Merging a cluster's kubeconfig into the user's own.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::failure::Told;

/// The lists of a kubeconfig whose entries have names.
const LISTS: [&str; 3] = ["clusters", "users", "contexts"];

/// The file that kubectl changes: the first of `KUBECONFIG`, else `~/.kube/config`.
pub fn own_file() -> anyhow::Result<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG")
        .and_then(|list| std::env::split_paths(&list).find(|path| !path.as_os_str().is_empty()));
    if let Some(first) = listed {
        return Ok(first);
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| {
        Told::usage("there is no home directory to find a kubeconfig in").hint("set KUBECONFIG")
    })?;
    Ok(PathBuf::from(home).join(".kube/config"))
}

/// Adds the entries of `new` to the file; entries of the same name are replaced, all others stay.
/// The file as it was is kept beside it.
pub fn merge_into(file: &Path, new: &str) -> anyhow::Result<()> {
    let old = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(format!("cannot read {}", file.display())),
    };
    let merged =
        merge(&old, new).with_context(|| format!("cannot merge into {}", file.display()))?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if !old.is_empty() {
        write_private(&file.with_added_extension("before-wharf"), &old)?;
    }
    write_private(file, &merged)
}

/// Readable by its owner only, and never half written.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

fn merge(old: &str, new: &str) -> anyhow::Result<String> {
    let new: Value = serde_saphyr::from_str(new).context("the cluster's kubeconfig")?;
    if old.trim().is_empty() {
        return Ok(serde_saphyr::to_string(&new)?);
    }
    let mut merged: Value = serde_saphyr::from_str(old).context("it is not a kubeconfig")?;
    let Some(fields) = merged.as_object_mut() else {
        return Err(Told::usage("it is not a kubeconfig").into());
    };
    for list in LISTS {
        let entries = new.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        merge_list(fields, list, entries);
    }
    if let Some(current) = new.get("current-context") {
        fields.insert("current-context".to_owned(), current.clone());
    }
    Ok(serde_saphyr::to_string(&merged)?)
}

fn merge_list(fields: &mut Map<String, Value>, list: &str, entries: Vec<Value>) {
    let known = fields.entry(list).or_insert_with(|| json!([]));
    if !known.is_array() {
        *known = json!([]);
    }
    let Some(known) = known.as_array_mut() else { return };
    known.retain(|old| !entries.iter().any(|new| new.get("name") == old.get("name")));
    known.extend(entries);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "
apiVersion: v1
kind: Config
current-context: home
preferences: {}
clusters:
- {name: home, cluster: {server: 'https://home:6443'}}
- {name: demo, cluster: {server: 'https://old:6443'}}
users: null
contexts:
- {name: home, context: {cluster: home, user: me}}
";
    const NEW: &str = "
apiVersion: v1
kind: Config
current-context: demo
clusters:
- {name: demo, cluster: {server: 'https://new:6443'}}
users:
- {name: demo, user: {token: x}}
contexts:
- {name: demo, context: {cluster: demo, user: demo}}
";

    #[test]
    fn entries_of_the_cluster_are_replaced_and_all_others_stay() {
        let merged: Value = serde_saphyr::from_str(&merge(OLD, NEW).unwrap()).unwrap();
        assert_eq!(merged["current-context"], "demo");
        assert_eq!(
            merged["clusters"],
            json!([
                {"name": "home", "cluster": {"server": "https://home:6443"}},
                {"name": "demo", "cluster": {"server": "https://new:6443"}},
            ])
        );
        assert_eq!(merged["users"], json!([{"name": "demo", "user": {"token": "x"}}]));
        assert_eq!(merged["contexts"].as_array().unwrap().len(), 2);
        let again = merge(&merge(OLD, NEW).unwrap(), NEW).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&again).unwrap(), merged);
    }

    #[test]
    fn the_file_as_it_was_is_kept_and_nobody_else_can_read_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sub/config");
        merge_into(&file, NEW).unwrap();
        std::fs::write(&file, OLD).unwrap();
        merge_into(&file, NEW).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join("sub/config.before-wharf")).unwrap(),
            OLD
        );
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
