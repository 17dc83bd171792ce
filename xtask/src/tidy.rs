//! `cargo xtask tidy`: what a reviewer would otherwise have to say again and again.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// A longer file has two subjects.
const FILE_LINES: usize = 700;

/// Which of our crates each may use. What is not here may use none.
const DIRECTION: &[(&str, &[&str])] = &[
    ("wharf-core", &[]),
    ("wharf-api", &[]),
    ("wharf-block", &[]),
    ("wharf-bundle", &[]),
    ("wharf-pause", &[]),
    ("wharf-testbed", &["wharf-bundle"]),
    ("wharf-ssh", &[]),
    ("wharf-kube", &["wharf-core"]),
    ("wharf-pki", &["wharf-core"]),
    ("wharf-store", &["wharf-core"]),
    ("wharf-flex", &[]),
    ("wharf-sim", &["wharf-core"]),
    ("wharf-agent", &["wharf-api", "wharf-block", "wharf-core", "wharf-flex", "wharf-kube"]),
    (
        "wharf-server",
        &[
            "wharf-api",
            "wharf-bundle",
            "wharf-core",
            "wharf-kube",
            "wharf-pki",
            "wharf-ssh",
            "wharf-store",
        ],
    ),
    (
        "wharf",
        &["wharf-agent", "wharf-api", "wharf-block", "wharf-bundle", "wharf-server", "wharf-store"],
    ),
    (
        "wharf-bench",
        &[
            "wharf-block",
            "wharf-bundle",
            "wharf-core",
            "wharf-kube",
            "wharf-pki",
            "wharf-ssh",
            "wharf-store",
            "wharf-testbed",
        ],
    ),
    ("xtask", &["wharf-bundle", "wharf-testbed"]),
];

pub fn run() -> Result<()> {
    let faults = faults(workspace())?;
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() { Ok(()) } else { bail!("{} places are untidy", faults.len()) }
}

/// Everything that is not as it should be, one sentence each.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in tracked_files(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        let name = path.display().to_string();
        check_text(&name, &text, &mut faults);
        match path.extension().and_then(|e| e.to_str()) {
            Some("rs") => check_rust(&name, &text, &mut faults),
            Some("md") => check_links(root, &path, &text, &mut faults),
            _ if name.ends_with("Cargo.toml") => check_direction(&name, &text, &mut faults),
            _ => {}
        }
    }
    check_dependencies_are_used(root, &mut faults)?;
    Ok(faults)
}

fn tracked_files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

/// Words are put together here, so that this file does not find itself.
fn check_text(name: &str, text: &str, faults: &mut Vec<String>) {
    let banned = [
        (concat!("todo", "!("), "is unfinished"),
        (concat!("unimplemented", "!("), "is unfinished"),
        (concat!("dbg", "!("), "is left from debugging"),
        (concat!("FIX", "ME"), "is unfinished"),
        (concat!("#[ign", "ore"), "is a test that nobody runs"),
        (concat!("/ro", "ot/."), "is a path of one machine"),
    ];
    for (number, line) in text.lines().enumerate() {
        for (word, why) in banned {
            if line.contains(word) {
                faults.push(format!("{name}:{}: `{word}` {why}", number + 1));
            }
        }
        if line.ends_with([' ', '\t']) && !name.ends_with(".md") && !name.ends_with("LICENSE") {
            faults.push(format!("{name}:{}: spaces at the end of the line", number + 1));
        }
    }
}

fn check_rust(name: &str, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > FILE_LINES {
        faults.push(format!("{name}: {lines} lines; a file of over {FILE_LINES} is two files"));
    }
    if name.ends_with("/mod.rs") && !name.contains("/tests/") {
        faults.push(format!("{name}: use `name.rs` beside `name/`"));
    }
    let is_room = name.contains("/src/") && !name.ends_with("/tests.rs");
    if is_room && !text.starts_with("//!") {
        faults.push(format!("{name}: a file opens with what it is for (`//! …`)"));
    }
}

/// Links between our own documents lead somewhere.
fn check_links(root: &Path, path: &Path, text: &str, faults: &mut Vec<String>) {
    for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let file = target.split('#').next().unwrap_or_default();
        if file.is_empty() || file.contains("://") {
            continue;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        if !root.join(folder).join(file).exists() {
            faults.push(format!("{}: the link to {file} leads nowhere", path.display()));
        }
    }
}

fn check_direction(name: &str, text: &str, faults: &mut Vec<String>) {
    let Some(package) = text.lines().find_map(|line| line.strip_prefix("name = ")) else { return };
    let package = package.trim_matches('"');
    let allowed = DIRECTION.iter().find(|(crate_, _)| *crate_ == package).map(|(_, uses)| *uses);
    let Some(allowed) = allowed else {
        faults.push(format!("{name}: xtask/src/tidy.rs does not say what {package} may use"));
        return;
    };
    for used in dependencies(text).iter().filter(|used| used.starts_with("wharf")) {
        if !allowed.contains(&used.as_str()) {
            faults.push(format!("{name}: {package} must not use {used}"));
        }
    }
}

/// The names under `[dependencies]`; what only tests use may come from anywhere.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !name.is_empty() && !name.starts_with('#') {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// A dependency that is declared and never named in the code is dead weight.
fn check_dependencies_are_used(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let manifests = tracked_files(root)?.into_iter().filter(|path| path.ends_with("Cargo.toml"));
    for manifest in manifests {
        let source = root.join(&manifest).with_file_name("src");
        if !source.exists() {
            continue;
        }
        let code = source_of(&source)?;
        for name in dependencies(&std::fs::read_to_string(root.join(&manifest))?) {
            if !code.contains(&name.replace('-', "_")) {
                faults.push(format!("{}: {name} is not used", manifest.display()));
            }
        }
    }
    Ok(())
}

fn source_of(dir: &Path) -> Result<String> {
    let mut code = String::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            code.push_str(&source_of(&path)?);
        } else {
            code.push_str(&std::fs::read_to_string(&path)?);
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_things_and_wrong_directions_are_found() {
        let mut faults = Vec::new();
        check_text("a.rs", concat!("fn a() { todo", "!() }\nlet x = 1; \n"), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let mut faults = Vec::new();
        let manifest = "[package]\nname = \"wharf-core\"\n[dependencies]\nserde.workspace = true\nwharf-api.workspace = true\n[dev-dependencies]\nwharf-store.workspace = true\n";
        check_direction("Cargo.toml", manifest, &mut faults);
        assert_eq!(faults, ["Cargo.toml: wharf-core must not use wharf-api"]);
        let mut faults = Vec::new();
        check_rust("crates/a/src/b.rs", &"x\n".repeat(FILE_LINES + 1), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let dir = std::env::temp_dir();
        let mut faults = Vec::new();
        let text = "[a](no-such-file.md) [b](https://example.org) [c](#here)";
        check_links(&dir, Path::new("x.md"), text, &mut faults);
        assert_eq!(faults.len(), 1, "{faults:?}");
    }
}
