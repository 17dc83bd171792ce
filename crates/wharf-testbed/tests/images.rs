//! The bundle's images in the containerd of the bundle, on a host that has the bundle. These tests
//! need root, and the bundle that `cargo xtask assets` makes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::{Duration, Instant};

use wharf_bundle::cache::Cache;
use wharf_bundle::{Bundle, FileEntry};
use wharf_testbed::{Host, Options, PRELOADED, TestBed, wait_for};

const SOON: Duration = Duration::from_secs(60);
/// Kubelet waits 30 s for a container that does not listen; what listens is gone at once, also on
/// a machine that compiles beside it.
const AT_ONCE: Duration = Duration::from_secs(5);

const CONFIG: &str = r#"
version = 3
root = "/var/lib/containerd/test"
state = "/run/test-containerd"
[grpc]
address = "/run/test-containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
"#;

/// Runs as root on the host, with the bundle's programs on the path.
fn sh(host: &Host, script: &str) -> String {
    let environment = format!(
        "export PATH=$PATH:{PRELOADED}/bin CONTAINERD_NAMESPACE=k8s.io \
         CONTAINERD_ADDRESS=/run/test-containerd/containerd.sock; set -e; {script}"
    );
    host.run(&["sh", "-c", &environment]).unwrap()
}

fn start_containerd(host: &Host) {
    sh(host, &format!("cat >/etc/test-containerd.toml <<'END'{CONFIG}END"));
    // Pods outlive containerd, so it must not take its children with it.
    let unit = "--unit=test-containerd --property=KillMode=process --property=Delegate=yes";
    sh(
        host,
        &format!(
            "systemd-run --quiet {unit} --setenv=PATH=$PATH \
             {PRELOADED}/bin/containerd --config /etc/test-containerd.toml"
        ),
    );
    wait_for("containerd to answer", SOON, || {
        let answer = host.ssh(&[
            "sh",
            "-c",
            &format!("{PRELOADED}/bin/ctr --address /run/test-containerd/containerd.sock version"),
        ])?;
        Ok(answer.status.success().then_some(()))
    })
    .unwrap();
}

/// The files of the bundle are on the host, whole and unchangeable.
fn assert_has_the_bundle(host: &Host, bundle: &Bundle) {
    for (_, file) in bundle.images() {
        let FileEntry { path, sha256, .. } = file;
        let line = sh(host, &format!("sha256sum {PRELOADED}/{path}"));
        assert!(line.starts_with(&sha256.to_string()), "{line}");
    }
    let links = sh(host, &format!("find {PRELOADED} -not -type f -not -type d"));
    assert_eq!(links, "", "one bind must suffice");
    assert!(!host.ssh(&["touch", &format!("{PRELOADED}/x")]).unwrap().status.success());
    for data in ["/var/lib/containerd", "/var/lib/kubelet"] {
        assert_ne!(sh(host, &format!("findmnt -no FSTYPE {data}")), "overlay", "{data}");
    }
}

/// What an install needs of the kernel is there: hosts cannot load modules.
fn assert_has_the_kernel(host: &Host) {
    sh(host, "test -e /proc/sys/net/bridge/bridge-nf-call-iptables");
    sh(host, "test -e /proc/sys/net/netfilter/nf_conntrack_max");
    sh(host, "grep -qw overlay /proc/filesystems");
    sh(host, "ip link add test-vx type vxlan id 7 dev host0 dstport 4789 && ip link del test-vx");
}

fn assert_imports_under_the_names_of_the_manifest(host: &Host, bundle: &Bundle) {
    for (_, file) in bundle.images() {
        let begun = Instant::now();
        sh(host, &format!("ctr images import --local {PRELOADED}/{}", file.path));
        println!("{}: {} bytes imported in {:?}", file.path, file.size, begun.elapsed());
    }
    let listed = sh(host, "ctr images ls --quiet | grep -v ^sha256: | sort");
    let mut names: Vec<&str> = bundle.images().map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(listed.lines().collect::<Vec<_>>(), names);
}

fn assert_busybox_runs(host: &Host, image: &str) {
    let script = "echo hello from $(id -u); echo page >/tmp/page; httpd -p 127.0.0.1:81 -h /tmp; \
        wget -qO- http://127.0.0.1:81/page; for c in nslookup ping nc sleep cat ls; do which $c; done";
    let said = sh(host, &format!("ctr run --rm {image} said sh -c '{script}' </dev/null"));
    let commands = "nslookup ping nc sleep cat ls".split(' ').map(|c| format!("/bin/{c}"));
    let expected: Vec<String> =
        ["hello from 0".to_owned(), "page".to_owned()].into_iter().chain(commands).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

fn assert_pause_collects_the_dead_and_ends_when_asked(host: &Host, image: &str) {
    sh(host, &format!("ctr run --detach {image} held </dev/null"));
    let process = sh(host, "ctr tasks ls | awk '$1 == \"held\" { print $2 }'");
    let children = || sh(host, &format!("cat /proc/{process}/task/{process}/children"));
    // An orphan in its process namespace becomes its child, as in a pod whose containers share one.
    sh(host, &format!("nsenter -t {process} -p sh -c '(sleep 1000 >/dev/null 2>&1 &)'"));
    wait_for("the orphan to be adopted", SOON, || Ok((!children().is_empty()).then_some(())))
        .unwrap();
    sh(host, &format!("kill -9 $(cat /proc/{process}/task/{process}/children)"));
    wait_for("the dead to be collected", SOON, || Ok(children().is_empty().then_some(()))).unwrap();

    let begun = Instant::now();
    sh(host, "ctr tasks kill --signal SIGTERM held");
    wait_for("pause to end", SOON, || {
        Ok(sh(host, "ctr tasks ls").contains("STOPPED").then_some(()))
    })
    .unwrap();
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    let status = sh(host, "ctr tasks rm held; echo $?; ctr containers rm held");
    assert_eq!(status.lines().last(), Some("0"), "pause did not end by itself");
}

/// CoreDNS and metrics-server start: they are for this machine and need no libraries.
fn assert_starts(host: &Host, image: &str, version: &str, arguments: &str) {
    let said = sh(host, &format!("ctr run --rm {image} version {arguments} </dev/null 2>&1"));
    assert!(said.contains(version), "{said}");
}

#[test]
fn images_of_the_bundle_import_by_name_and_run() {
    let cache = Cache::from_env().unwrap();
    let bundle = Bundle::open(&cache.default_bundle_dir()).expect("run `cargo xtask assets`");
    let options = Options::hosts(1).with_bundle().unwrap();
    let bed = TestBed::start_with(&TestBed::unique_name("images"), &options).unwrap();
    let host = &bed.hosts()[0];
    assert_has_the_bundle(host, &bundle);
    assert_has_the_kernel(host);
    start_containerd(host);
    assert_imports_under_the_names_of_the_manifest(host, &bundle);
    let image = |component| bundle.image_of(component).unwrap().0;
    assert_busybox_runs(host, image("busybox"));
    assert_pause_collects_the_dead_and_ends_when_asked(host, image("pause"));
    assert_starts(host, image("coredns"), "CoreDNS-1.14.7", "/coredns -version");
    assert_starts(host, image("metrics-server"), "v0.9.0", "/metrics-server --version");
    bed.down().unwrap();
}
