//! Merging a cluster's kubeconfig into the user's own.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::parse_yaml;
use crate::failure::{Exit, Told};

/// The lists of a kubeconfig whose entries have names.
const LISTS: [&str; 3] = ["clusters", "users", "contexts"];
/// Each change of a cluster makes one; so many mean that nobody needs them.
const MOST_COPIES: usize = 99;

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

/// Adds the cluster's entries to the file; those that an earlier merge of the same cluster put there
/// are replaced, all others stay. A file that is changed is first kept beside it, as it was.
pub fn merge_into(file: &Path, cluster: &str, new: &str) -> anyhow::Result<()> {
    let old = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(format!("cannot read {}", file.display())),
    };
    let new = renamed(parse_yaml(new).context("the cluster's kubeconfig")?, cluster);
    let told = || format!("cannot merge into {}", file.display());
    let known =
        if old.trim().is_empty() { None } else { Some(parse_yaml(&old).with_context(told)?) };
    let merged = match known.clone() {
        Some(known) => merge(known, &new).with_context(told)?,
        None => new,
    };
    if known.as_ref() == Some(&merged) {
        return Ok(());
    }
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if !old.is_empty() {
        keep_copy(file, &old)?;
    }
    write_private(file, &serde_saphyr::to_string(&merged)?)
}

/// Writes what was in the file under a name beside it that is free: a copy of an earlier merge may
/// hold what nothing else does.
fn keep_copy(file: &Path, text: &str) -> anyhow::Result<()> {
    let names = std::iter::once("before-wharf".to_owned())
        .chain((2..=MOST_COPIES).map(|number| format!("before-wharf-{number}")));
    let mut free = names.map(|name| file.with_added_extension(name)).filter(|path| !path.exists());
    match free.next() {
        Some(path) => write_private(&path, text),
        None => {
            let message = format!("there are {MOST_COPIES} copies of {} already", file.display());
            let hint =
                format!("remove those that you do not need: {}.before-wharf*", file.display());
            Err(Told::new(Exit::Failed, message).hint(hint).into())
        }
    }
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

/// The same kubeconfig under names that no other cluster's has: the cluster and the context in use
/// are called as Wharf calls the cluster, everything else `…@NAME`. All clusters that Wharf builds
/// call their user `kube-admin`, and those of others call themselves `kubernetes`.
fn renamed(mut config: Value, cluster: &str) -> Value {
    let first = config.pointer("/contexts/0/name").and_then(Value::as_str);
    let current = config.get("current-context").and_then(Value::as_str).filter(|n| !n.is_empty());
    let context = current.or(first).unwrap_or_default().to_owned();
    let in_use = entries(&config, "contexts").find(|entry| name_of(entry) == context);
    let in_use = in_use.and_then(|entry| entry.pointer("/context/cluster")?.as_str());
    let in_use = in_use.unwrap_or_default().to_owned();
    let prefix = format!("{cluster}-");
    let rename = |name: &str, main: Option<&str>| match main {
        Some(main) if main == name => cluster.to_owned(),
        _ => format!("{}@{cluster}", name.strip_prefix(&prefix).unwrap_or(name)),
    };
    let change = |value: Option<&mut Value>, main: Option<&str>| {
        if let Some(Value::String(name)) = value {
            *name = rename(name, main);
        }
    };
    for (list, main) in
        [("clusters", Some(&*in_use)), ("users", None), ("contexts", Some(&context))]
    {
        let found = config.get_mut(list).and_then(Value::as_array_mut);
        for entry in found.into_iter().flatten() {
            change(entry.get_mut("name"), main);
            change(entry.pointer_mut("/context/cluster"), Some(&in_use));
            change(entry.pointer_mut("/context/user"), None);
        }
    }
    if let Some(fields) = config.as_object_mut() {
        fields.insert("current-context".to_owned(), json!(cluster));
    }
    config
}

fn entries<'a>(config: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    config.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn name_of(entry: &Value) -> &str {
    entry.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn merge(mut merged: Value, new: &Value) -> anyhow::Result<Value> {
    let Some(fields) = merged.as_object_mut() else {
        return Err(Told::usage("it is not a kubeconfig").into());
    };
    for list in LISTS {
        merge_list(fields, list, entries(new, list).cloned().collect());
    }
    if let Some(current) = new.get("current-context") {
        fields.insert("current-context".to_owned(), current.clone());
    }
    Ok(merged)
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
- {name: kubernetes, cluster: {server: 'https://other:6443'}}
users: null
contexts:
- {name: home, context: {cluster: home, user: me}}
";

    /// As Wharf makes it.
    fn of_wharf(name: &str) -> String {
        format!(
            "
apiVersion: v1
kind: Config
current-context: {name}
clusters:
- {{name: {name}, cluster: {{server: 'https://{name}:6443'}}}}
- {{name: {name}-n1, cluster: {{server: 'https://{name}-n1:6443'}}}}
users:
- {{name: kube-admin, user: {{token: of-{name}}}}}
contexts:
- {{name: {name}, context: {{cluster: {name}, user: kube-admin}}}}
- {{name: {name}-n1, context: {{cluster: {name}-n1, user: kube-admin}}}}
"
        )
    }

    const IMPORTED: &str = "
current-context: kubernetes-admin@kubernetes
clusters:
- {name: kubernetes, cluster: {server: 'https://imported:6443'}}
users:
- {name: kubernetes-admin, user: {token: x}}
contexts:
- {name: kubernetes-admin@kubernetes, context: {cluster: kubernetes, user: kubernetes-admin}}
";

    fn merged(old: &str, parts: &[(&str, &str)]) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, old).unwrap();
        for (name, text) in parts {
            merge_into(&file, name, text).unwrap();
        }
        parse_yaml(&std::fs::read_to_string(&file).unwrap()).unwrap()
    }

    fn names(config: &Value, list: &str) -> Vec<String> {
        entries(config, list).map(|entry| name_of(entry).to_owned()).collect()
    }

    /// The server and the token that a context leads to.
    fn reached(config: &Value, context: &str) -> (String, String) {
        let find = |list: &str, name: &str| {
            entries(config, list).find(|entry| name_of(entry) == name).unwrap().clone()
        };
        let context = find("contexts", context);
        let text = |value: Option<&Value>| value.unwrap().as_str().unwrap().to_owned();
        let cluster = text(context.pointer("/context/cluster"));
        let user = text(context.pointer("/context/user"));
        let server = text(find("clusters", &cluster).pointer("/cluster/server"));
        (server, text(find("users", &user).pointer("/user/token")))
    }

    #[test]
    fn each_cluster_keeps_its_own_access_and_all_others_stay() {
        let (a, b) = (of_wharf("a"), of_wharf("b"));
        let parts = [("a", &*a), ("b", &b), ("c", IMPORTED), ("a", &a)];
        let config = merged(OLD, &parts);
        assert_eq!(config["current-context"], "a");
        for name in ["a", "b"] {
            let token = format!("of-{name}");
            assert_eq!(reached(&config, name), (format!("https://{name}:6443"), token.clone()));
            let by_node = reached(&config, &format!("n1@{name}"));
            assert_eq!(by_node, (format!("https://{name}-n1:6443"), token));
        }
        assert_eq!(reached(&config, "c"), ("https://imported:6443".to_owned(), "x".to_owned()));
        assert_eq!(
            names(&config, "clusters"),
            ["home", "kubernetes", "b", "n1@b", "c", "a", "n1@a"]
        );
        assert_eq!(names(&config, "users"), ["kube-admin@b", "kubernetes-admin@c", "kube-admin@a"]);
        assert_eq!(config["clusters"][1]["cluster"]["server"], "https://other:6443");
        assert!(config.get("preferences").is_some());
    }

    #[test]
    fn a_cluster_named_like_anothers_node_does_not_replace_it() {
        let (a, b) = (of_wharf("a"), of_wharf("a-n1"));
        let config = merged("", &[("a-n1", &b), ("a", &a)]);
        assert_eq!(reached(&config, "a-n1").1, "of-a-n1");
        assert_eq!(reached(&config, "n1@a").1, "of-a");
    }

    #[test]
    fn the_file_as_it_was_is_kept_and_nobody_else_can_read_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sub/config");
        let copy = |name: &str| std::fs::read_to_string(dir.path().join("sub").join(name));
        merge_into(&file, "a", &of_wharf("a")).unwrap();
        std::fs::write(&file, OLD).unwrap();
        merge_into(&file, "a", &of_wharf("a")).unwrap();
        let with_a = std::fs::read_to_string(&file).unwrap();
        merge_into(&file, "b", &of_wharf("b")).unwrap();
        merge_into(&file, "b", &of_wharf("b")).unwrap();
        assert_eq!(copy("config.before-wharf").unwrap(), OLD);
        assert_eq!(copy("config.before-wharf-2").unwrap(), with_a);
        assert!(copy("config.before-wharf-3").is_err(), "the last merge changed nothing");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_fault_is_told_by_its_place_and_never_by_the_text_around_it() {
        let text = "name: demo\nsshKey: |\n  -----BEGIN\nc2VjcmV0: [\n  \"MIIsecret\n";
        let error = format!("{:#}", parse_yaml(text).unwrap_err());
        assert!(error.contains("(line "), "{error}");
        assert!(!error.contains("secret") && !error.contains("BEGIN"), "{error}");
    }
}
