//! The steps, for both.

use serde_json::{Value, json};
use wharf_core::install::host::{Content, Directory, File, HostDocument, Link};

/// Eight directories, fourteen files, six links, two settings of the kernel.
pub const COUNT: usize = 30;

/// One line for each step that was taken; settings only where they are the steps' ones.
pub const LOOK: &str = r#"
for path in $(find /srv/bench 2>/dev/null | sort); do
    sum=
    if [ -f "$path" ] && [ ! -L "$path" ]; then sum=$(sha256sum <"$path"); fi
    echo "$(stat -c '%n %F %a %U' "$path") $(readlink "$path") $sum"
done
sysctl net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_time | grep -E '= (31|611)$' || true
"#;

pub const CLEAR: &str = "
rm -rf /srv/bench
sysctl -qw net.ipv4.tcp_fin_timeout=60 net.ipv4.tcp_keepalive_time=7200
";

const SYSCTLS: [(&str, &str); 2] =
    [("net.ipv4.tcp_fin_timeout", "31"), ("net.ipv4.tcp_keepalive_time", "611")];

fn directories() -> Vec<String> {
    let below = (1..=7).map(|n| format!("/srv/bench/d{n}"));
    std::iter::once("/srv/bench".to_owned()).chain(below).collect()
}

/// Path and content: about as large as a unit of systemd.
fn files() -> Vec<(String, String)> {
    let text = |n: usize| format!("# file {n}\n{}", "key = \"a value like many\"\n".repeat(20));
    (1..=14_usize).map(|n| (format!("/srv/bench/d{}/file{n}", n.div_ceil(2)), text(n))).collect()
}

/// Path and target.
fn links() -> Vec<(String, String)> {
    let link = |n: usize| (format!("/srv/bench/link{n}"), format!("/srv/bench/d{n}/file{}", 2 * n));
    (1..=6).map(link).collect()
}

pub fn document() -> HostDocument {
    let directory = |path| Directory { path, mode: 0o755 };
    let file = |(path, text)| File { path, mode: 0o640, content: Content::Text(text) };
    let link = |(path, target)| Link { path, target };
    let sysctl = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    HostDocument {
        cluster: "bench".to_owned(),
        sysctls: SYSCTLS.map(sysctl).into(),
        directories: directories().into_iter().map(directory).collect(),
        files: files().into_iter().map(file).collect(),
        links: links().into_iter().map(link).collect(),
        ..HostDocument::default()
    }
}

pub fn playbook() -> Value {
    let directory = |path| json!({"file": {"path": path, "state": "directory", "mode": "0755"}});
    let file = |(path, text)| json!({"copy": {"dest": path, "content": text, "mode": "0640"}});
    let link = |(path, target)| json!({"file": {"path": path, "src": target, "state": "link"}});
    let sysctl =
        |(key, value)| json!({"command": {"argv": ["sysctl", "-w", format!("{key}={value}")]}});
    let tasks: Vec<Value> = SYSCTLS
        .map(sysctl)
        .into_iter()
        .chain(directories().into_iter().map(directory))
        .chain(files().into_iter().map(file))
        .chain(links().into_iter().map(link))
        .collect();
    json!([{"hosts": "all", "gather_facts": false, "tasks": tasks}])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_asked_for_the_same_number_of_steps() {
        let document = document();
        let ours = document.sysctls.len()
            + document.directories.len()
            + document.files.len()
            + document.links.len();
        let theirs = playbook()[0]["tasks"].as_array().unwrap().len();
        assert_eq!((ours, theirs), (COUNT, COUNT));
    }
}
