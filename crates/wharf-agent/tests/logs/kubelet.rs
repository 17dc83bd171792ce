//! Real containers of a real kubelet, which rotates their logs. It has no cluster: none is needed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use wharf_testbed::{Host, Options, TestBed, process::example, wait_for};

use crate::{APP, disorder, numbers};

const BUNDLE: &str = "/usr/share/wharf/bundle";
/// The machine may build other things at the same time.
const DEADLINE: Duration = Duration::from_secs(300);
/// How many lines the container says before it ends, and how often it is started.
const LINES: u64 = 20_000;
const STARTS: u64 = 3;

const CONTAINERD: &str = r#"version = 3
root = "/var/lib/containerd/test"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "/usr/share/wharf/bundle/bin/runc"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "SANDBOX"
"#;

/// It looks every three seconds whether a log has more than 32 KiB.
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: true
  webhook:
    enabled: false
authorization:
  mode: AlwaysAllow
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failSwapOn: false
failCgroupV1: false
resolvConf: /etc/resolv.conf
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
staticPodPath: /etc/kubernetes/manifests
containerLogMaxSize: 32Ki
containerLogMaxFiles: 5
containerLogMonitorInterval: 3s
";

/// Numbers that go on after each start; some lines come in pieces, and the last of each start has no
/// end.
const SAYS: &str = r#"
n=$(cat /data/n 2>/dev/null || echo 0)
end=$((n + LINES))
while n=$((n + 1)); [ $n -lt $end ]; do
    [ $((n % 50)) -ne 0 ] || { printf li; sleep 0.02; printf 'ne '; echo $n; continue; }
    echo line $n
done
echo $n >/data/n
[ $n -ge TOTAL ] || { printf "line $n"; exit; }
echo line $n
sleep 3600
"#;

struct Node<'a> {
    host: &'a Host,
}

impl Node<'_> {
    fn shell(&self, script: &str) -> String {
        self.host.run(&["bash", "-c", script]).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.host.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn image(&self, name: &str) -> String {
        let manifest = self.shell(&format!("cat {BUNDLE}/bundle.json"));
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        let mut images = manifest["files"].as_array().unwrap().iter();
        images
            .find_map(|file| file["image"].as_str().filter(|image| image.contains(name)))
            .unwrap()
            .to_owned()
    }

    /// Starts containerd and the kubelet, with the images that there are.
    fn start(&self) {
        self.write(
            "etc/test/containerd.toml",
            &CONTAINERD.replace("SANDBOX", &self.image("pause")),
        );
        self.write("etc/test/kubelet.yaml", KUBELET);
        self.write("etc/kubernetes/manifests/.keep", "");
        let unit = "systemd-run --quiet --property=Delegate=yes --property=KillMode=process \
             --setenv=PATH=/usr/share/wharf/bundle/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        self.shell(&format!(
            "{unit} --unit=test-containerd {BUNDLE}/bin/containerd --config /etc/test/containerd.toml"
        ));
        wait_for("containerd", DEADLINE, || {
            let import = format!(
                "for image in pause busybox; do {BUNDLE}/bin/ctr -n k8s.io images import {BUNDLE}/images/$image.tar; done"
            );
            Ok(self.host.run(&["bash", "-ec", &import]).ok())
        })
        .unwrap();
        self.shell(&format!(
            "{unit} --unit=test-kubelet {BUNDLE}/bin/kubelet --config=/etc/test/kubelet.yaml \
             --hostname-override=node1"
        ));
    }

    fn run_pod(&self) {
        let says = SAYS.replace("LINES", &LINES.to_string());
        let says = says.replace("TOTAL", &(LINES * STARTS).to_string());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web-0b1a2", "namespace": "eve-kube-app" },
            "spec": {
                "hostNetwork": true, "terminationGracePeriodSeconds": 0,
                "volumes": [{
                    "name": "data", "hostPath": { "path": "/srv/data", "type": "DirectoryOrCreate" },
                }],
                "containers": [{
                    "name": "main", "image": self.image("busybox"), "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", says],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
            },
        });
        self.write("etc/kubernetes/manifests/web.json", &pod.to_string());
    }

    fn run_agent(&self, name: &str, logs: &str, settings: &str) {
        let config = format!(
            "network_file = ''\nrun_dir = '/srv/{name}/run'\npersist_dir = '/srv/{name}/persist'\n[logs]\n{logs}\n"
        );
        self.write(&format!("srv/{name}/agent.toml"), &config);
        let app = json!({ "DisplayName": "web" }).to_string();
        self.write(&format!("srv/{name}/run/zedagent/AppInstanceConfig/{APP}.json"), &app);
        self.shell(&format!(
            "systemd-run --quiet --unit=test-{name} --property=Restart=always --property=RestartSec=0 \
             --property=StartLimitIntervalSec=0 {settings} /srv/node_agent /srv/{name}/agent.toml"
        ));
    }

    /// The container's files.
    fn files(&self) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        for pod in names(&self.host.root().join("var/log/pods")) {
            if pod.starts_with("eve-kube-app_web-") {
                let folder = format!("var/log/pods/{pod}/main");
                files.extend(names(&self.host.root().join(folder)));
            }
        }
        files
    }

    /// Where the sink is, or was moved to.
    fn sink(&self, moved: u32) -> PathBuf {
        let end = if moved == 0 { String::new() } else { format!(".{moved}") };
        self.host.root().join(format!("srv/out/apps.log{end}"))
    }

    /// Everything that was written to the sink, over its moves.
    fn sunk(&self, moves: u32) -> String {
        let text = |moved| fs::read_to_string(self.sink(moved)).unwrap_or_default();
        (1..=moves).chain([0]).map(text).collect()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[test]
fn every_line_of_a_real_container_comes_once_over_rotations_restarts_and_kills() {
    let options = Options::hosts(1).with_bundle().unwrap();
    let bed = TestBed::start_with(&TestBed::unique_name("agent-logs"), &options).unwrap();
    let node = Node { host: &bed.hosts()[0] };
    fs::copy(example("node_agent").unwrap(), node.host.root().join("srv/node_agent")).unwrap();
    node.start();
    node.run_pod();
    node.run_agent("flood", "file = '/srv/out/apps.log'", "");

    let (mut seen, mut kills, mut moves) = (BTreeSet::new(), 0, 0);
    let (mut last, total) = (0, LINES * STARTS);
    let mut wrong = None;
    let came = wait_for("all lines", DEADLINE, || {
        seen.extend(node.files());
        let numbers = numbers(&node.sunk(moves));
        wrong = disorder(&numbers, total);
        // Whenever it got on, it is killed, and the sink is moved away now and then.
        if numbers.len() > last && wrong.is_some() {
            last = numbers.len();
            kills += 1;
            node.shell("systemctl kill --signal=KILL test-flood");
            if kills % 4 == 0 {
                moves += 1;
                fs::rename(node.sink(0), node.sink(moves))?;
            }
        }
        Ok(wrong.is_none().then_some(()))
    });
    assert!(came.is_ok(), "{wrong:?}; {kills} kills, files: {seen:?}");
    let rotated: BTreeSet<&str> = seen
        .iter()
        .filter(|name| name.contains(".log."))
        .map(|name| name.trim_end_matches(".gz"))
        .collect();
    println!("{kills} kills, {moves} moves, {} rotations: {seen:?}", rotated.len());
    assert!(rotated.len() >= 3, "{seen:?}");
    assert!(seen.iter().any(|name| name.ends_with(".gz")), "{seen:?}");
    assert!(seen.contains("2.log"), "{seen:?}");
    assert!(kills >= 5, "{kills}");
    to_the_journal(&node);
}

/// The journal of the host gets them too.
fn to_the_journal(node: &Node<'_>) {
    let lines: String =
        (1..=300).map(|n| format!("2026-01-02T03:04:05.{n:09}Z stdout F line {n}\n")).collect();
    node.write("srv/pods/eve-kube-app_web-0b1a2-x_11-22/main/0.log", &lines);
    let settings = "--property=LogRateLimitIntervalSec=0";
    node.run_agent("told", "journal = true\npods_dir = '/srv/pods'", settings);
    let mut told = String::new();
    let came = wait_for("the journal", DEADLINE, || {
        told = node.shell(&format!("journalctl -o json APPUUID={APP} PODUID=11-22"));
        Ok((told.lines().count() >= 300).then_some(()))
    });
    assert!(came.is_ok(), "{told}");
    let entries: Vec<Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 300);
    for (entry, number) in entries.iter().zip(1..) {
        assert_eq!(entry["MESSAGE"], format!("line {number}"));
        assert_eq!(entry["LINE"], number.to_string());
        assert_eq!(
            (&entry["CONTAINERNAME"], &entry["SYSLOG_IDENTIFIER"]),
            (&json!("main"), &json!("main"))
        );
    }
}
