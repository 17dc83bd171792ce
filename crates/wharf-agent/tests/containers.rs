//! Images and containers of our own containerd on a real host, from the bundle. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use wharf_core::install::host::{
    Action, Bundled, Content, Directory, File, Grown, HostDocument, HostReport, Image,
    RemovalReport, Unit, Wanted, place,
};
use wharf_testbed::process::example;
use wharf_testbed::{Host, Options, TestBed, wait_for};

const PROGRAM: &str = "/srv/host_apply";
const CONTAINERD: &str = "wharf-containerd.service";
const SOCKET: &str = "/run/wharf/containerd/containerd.sock";
const CTR: &str = "/opt/wharf/bin/ctr --address /run/wharf/containerd/containerd.sock -n k8s.io";
const SOON: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"version = 3
root = "/var/lib/containerd/wharf"
state = "/run/wharf/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.grpc.v1.cri"]
[grpc]
  address = "/run/wharf/containerd/containerd.sock"
"#;

fn call<R: DeserializeOwned>(host: &Host, arguments: &[&str], input: &str) -> R {
    let mut command = host.ssh_command();
    command.arg(PROGRAM).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn apply(host: &Host, document: &HostDocument) -> HostReport {
    call(host, &["apply"], &serde_json::to_string(document).unwrap())
}

fn shell(host: &Host, script: &str) -> String {
    host.run(&["bash", "-c", script]).unwrap()
}

/// What the bundle says of its files: with the image's name, where there is one.
fn bundle(host: &Host) -> Vec<(Bundled, Option<String>)> {
    let text = host.run(&["cat", &format!("{}/bundle.json", place::PRELOADED)]).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let entry = |file: &serde_json::Value| {
        let word = |key: &str| file[key].as_str().map(str::to_owned);
        let (path, sha256) = (word("path").unwrap(), word("sha256").unwrap());
        (Bundled { path, sha256, size: file["size"].as_u64().unwrap() }, word("image"))
    };
    manifest["files"].as_array().unwrap().iter().map(entry).collect()
}

fn document(host: &Host) -> HostDocument {
    let files = bundle(host);
    let programs = ["containerd", "containerd-shim-runc-v2", "ctr", "runc"];
    let mut document = HostDocument { cluster: "one".to_owned(), ..HostDocument::default() };
    for program in programs {
        let path = format!("bin/{program}");
        let (bundled, _) = files.iter().find(|(file, _)| file.path == path).unwrap();
        let content = Content::Bundled(bundled.clone());
        document.files.push(File { path: format!("/opt/wharf/{path}"), mode: 0o755, content });
    }
    let config = Content::Text(CONFIG.to_owned());
    let path = "/etc/wharf/containerd.toml".to_owned();
    document.files.push(File { path: path.clone(), mode: 0o600, content: config });
    document.directories =
        vec![Directory { path: "/var/lib/containerd/wharf".to_owned(), mode: 0o711 }];
    for (archive, name) in files {
        if let Some(name) = name.filter(|name| name.contains("busybox") || name.contains("pause")) {
            document.images.push(Image { name, archive });
        }
    }
    let text = "[Service]\nType=notify\nKillMode=process\nDelegate=yes\n\
        Environment=PATH=/opt/wharf/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
        ExecStart=/opt/wharf/bin/containerd --config /etc/wharf/containerd.toml\n";
    let inputs = vec![path, "/opt/wharf/bin/containerd".to_owned()];
    let (name, text, wanted) = (CONTAINERD.to_owned(), text.to_owned(), Wanted::Present);
    document.units = vec![Unit { name, text, wanted, inputs }];
    document.grown = Grown {
        directories: [
            "/var/lib/containerd/wharf",
            "/run/wharf/containerd",
            "/run/wharf/runc",
            "/run/wharf/fifo",
        ]
        .map(str::to_owned)
        .to_vec(),
        shared: vec!["/run/containerd/s".to_owned(), "/run/containerd".to_owned()],
        cgroups: vec!["kubepods".to_owned()],
        ..Grown::default()
    };
    document
}

/// Everything on the host that containers could leave.
fn world(host: &Host) -> Vec<String> {
    let script = "find /etc /opt /var/lib /srv /run -xdev -not -path '/run/systemd/*' \
            -not -path '/run/udev/*' -not -path '/var/lib/dpkg/*' -not -path '/var/lib/systemd/*' -not -path '/run/log/*' \
            -not -path '/run/user*' -not -path '/run/agetty*' -printf '%p %m %y %l\\n'; \
        find /sys/fs/cgroup -name 'kubepods*'; cut -d' ' -f5 /proc/self/mountinfo; \
        pgrep -af '[c]ontainerd|[h]ttpd'";
    let text = shell(host, &format!("{{ {script}; }} 2>/dev/null; true"));
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn images_imported(report: &HostReport) -> usize {
    report.changes.iter().filter(|change| change.action == Action::ImportImage).count()
}

#[test]
fn images_are_imported_once_and_containers_outlive_containerd_but_not_the_removal() {
    let options = Options::hosts(1).with_bundle().unwrap();
    let bed = TestBed::start_with(&TestBed::unique_name("agent-images"), &options).unwrap();
    let host = &bed.hosts()[0];
    std::fs::copy(example("host_apply").unwrap(), host.root().join("srv/host_apply")).unwrap();
    // What a boot still does would be taken for ours.
    host.ssh(&["systemctl", "is-system-running", "--wait"]).unwrap();
    let before = world(host);
    let mut document = document(host);
    assert_eq!(document.images.len(), 2);

    let report = apply(host, &document);
    assert_eq!(report.failure, None);
    assert_eq!(images_imported(&report), 0, "containerd does not run yet");
    document.units[0].wanted = Wanted::Started;
    let report = apply(host, &document);
    assert_eq!(report.failure, None);
    assert_eq!(images_imported(&report), 2);
    let there = shell(host, &format!("{CTR} images ls -q"));
    for image in &document.images {
        assert!(there.lines().any(|line| line == image.name), "{} in {there}", image.name);
    }
    let again = apply(host, &document);
    assert_eq!((again.failure, again.changes), (None, vec![]));
    assert_eq!(again.running, report.running);

    a_container_outlives_containerd(host, &mut document);

    let report: RemovalReport = call(host, &["remove"], "");
    assert_eq!(report.leftovers, [], "{:#?}", report.changes);
    let after = world(host);
    let gone: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    let left: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    assert!(gone.is_empty() && left.is_empty(), "gone: {gone:#?}\nleft: {left:#?}");
}

fn a_container_outlives_containerd(host: &Host, document: &mut HostDocument) {
    let image = document.images.iter().find(|image| image.name.contains("busybox")).unwrap();
    let arguments = "--runc-binary /opt/wharf/bin/runc --runc-root /run/wharf/runc --fifo-dir /run/wharf/fifo --cgroup /kubepods/c1";
    let command = format!("{CTR} run -d {arguments} {} c1 /bin/httpd -f -p 8080", image.name);
    shell(host, &command);
    let pid = || shell(host, "pgrep -f '^[/a-z]*httpd -f -p 8080' || true");
    wait_for("the container", SOON, || Ok((!pid().is_empty()).then_some(()))).unwrap();
    let first = pid();
    document.units[0].text.push_str("Environment=A=1\n");
    let report = apply(host, document);
    assert_eq!(report.failure, None);
    let restarts = report.changes.iter().filter(|c| c.action == Action::RestartUnit).count();
    assert_eq!(restarts, 1);
    assert_eq!(pid(), first, "the container lives on");
    let seen = world(host);
    for sign in ["containerd-shim", "/kubepods", "/rootfs", SOCKET] {
        assert!(seen.iter().any(|line| line.contains(sign)), "no {sign} is seen");
    }
}
