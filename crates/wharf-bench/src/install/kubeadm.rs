//! The same machines, made a cluster by kubeadm in its documented way.
//!
//! Before the clock starts each machine has what kubeadm asks for: a running containerd, images under
//! the names that kubeadm wants, a kubelet that waits, and a pod network with its routes. The API is
//! reached at the first machine, without the balancer that kubeadm leaves to others.

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};
use wharf_testbed::{Bind, Host};

use super::{
    cluster::Shape,
    machines::{self, Kubectl, run_script},
};
use crate::temp_dir;

const IMAGE: &str = include_str!("kubeadm/image.sh");
const PREPARE: &str = include_str!("kubeadm/prepare.sh");
const INIT: &str = include_str!("kubeadm/init.yaml");
/// Where a host finds the archives of images.
const IMAGES: &str = "/opt/images";
const SERVICES: &str = "10.96.0.0/12";
const DNS_ADDRESS: &str = "10.96.0.10";
const TOKEN: &str = "abcdef.0123456789abcdef";
const CERTIFICATE_KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Seconds from the first command to all nodes Ready and an answer of DNS.
pub fn install(shape: Shape) -> Result<f64> {
    let dir = temp_dir()?;
    let names = Names::ask()?;
    make_images(dir.path(), &names)?;
    let images = Bind { source: dir.path().to_owned(), target: IMAGES.into(), read_only: true };
    let bed = machines::start("kubeadm", shape.machines(), &[images])?;
    let hosts = bed.hosts();
    machines::on_all(hosts, |place, host| prepare(hosts, place, host, &names))?;
    let (controlplanes, workers) = hosts.split_at(shape.controlplanes);
    let (first, further) = controlplanes.split_first().context("there are no machines")?;
    let config = render_init(first);

    let begin = Instant::now();
    run_kubeadm(
        first,
        &format!(
            "cat >/root/init.yaml <<'END'\n{config}END\n\
         kubeadm init --upload-certs --config /root/init.yaml --ignore-preflight-errors=all"
        ),
    )?;
    for host in further {
        let address = host.address();
        join(
            first,
            host,
            &format!(
                "--control-plane --certificate-key {CERTIFICATE_KEY} --apiserver-advertise-address {address}"
            ),
        )?;
    }
    machines::on_all(workers, |_, host| join(first, host, ""))?;
    let kubeconfig = dir.path().join("admin.conf");
    std::fs::write(&kubeconfig, first.run(&["cat", "/etc/kubernetes/admin.conf"])?)?;
    let kubectl = Kubectl::new(kubeconfig)?;
    kubectl.wait_until_ready(&hosts.iter().map(Host::name).collect::<Vec<_>>())?;
    machines::wait_for_dns(workers.first().unwrap_or(first), DNS_ADDRESS)?;
    let seconds = begin.elapsed().as_secs_f64();

    ensure!(kubectl.ready_nodes()? == shape.machines(), "kubeadm's nodes are not all Ready");
    bed.down()?;
    Ok(seconds)
}

/// What kubeadm calls the images that it wants.
struct Names(Vec<String>);

impl Names {
    fn ask() -> Result<Names> {
        let kubeadm = wharf_bundle::cache::find("kubeadm")
            .context("there is no kubeadm: run `cargo xtask assets`")?;
        let version = format!("v{}", wharf_bundle::catalogue::KUBERNETES.version);
        let output = Command::new(kubeadm)
            .args(["config", "images", "list", "--kubernetes-version", &version])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Names(text.lines().map(str::to_owned).collect()))
    }

    fn of(&self, program: &str) -> Result<&str> {
        let part = format!("/{program}:");
        let name = self.0.iter().find(|name| name.contains(&part));
        name.map(String::as_str).with_context(|| format!("kubeadm names no image of {program}"))
    }
}

/// The programs of the bundle as images. kube-proxy's holds nft too.
fn make_images(dir: &Path, names: &Names) -> Result<()> {
    let images: [(&str, &[&str]); 2] = [
        ("control", &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"]),
        ("proxy", &["kube-proxy"]),
    ];
    let script = dir.join("image.sh");
    std::fs::write(&script, IMAGE)?;
    for (archive, programs) in images {
        let tags: Result<Vec<&str>> = programs.iter().map(|program| names.of(program)).collect();
        let mut command = Command::new("sh");
        command.arg(&script).arg(dir.join(format!("{archive}.tar"))).arg(tags?.join(","));
        for program in programs {
            let file = wharf_bundle::cache::find(program);
            command.arg(file.with_context(|| format!("there is no {program}"))?);
        }
        if archive == "proxy" {
            command.arg("/usr/sbin/nft");
        }
        let output = command.output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "the image {archive} could not be made: {errors}");
    }
    Ok(())
}

fn prepare(hosts: &[Host], place: usize, host: &Host, names: &Names) -> Result<()> {
    let network = |place: usize| format!("10.244.{place}.0/24");
    let mut words = vec![
        IMAGES.to_owned(),
        names.of("coredns")?.to_owned(),
        names.of("pause")?.to_owned(),
        SERVICES.to_owned(),
        network(place),
    ];
    for (other, peer) in hosts.iter().enumerate().filter(|(other, _)| *other != place) {
        words.extend([network(other), peer.address().to_string()]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run_script(host, "sh", PREPARE, &words).map(drop)
}

fn render_init(first: &Host) -> String {
    INIT.replace("{{address}}", &first.address().to_string())
        .replace("{{token}}", TOKEN)
        .replace("{{certificate_key}}", CERTIFICATE_KEY)
        .replace("{{services}}", SERVICES)
        .replace("{{version}}", wharf_bundle::catalogue::KUBERNETES.version)
}

fn join(first: &Host, host: &Host, more: &str) -> Result<()> {
    let address = first.address();
    run_kubeadm(
        host,
        &format!(
            "kubeadm join {address}:6443 --token {TOKEN} {more} \
         --discovery-token-unsafe-skip-ca-verification --ignore-preflight-errors=all"
        ),
    )
}

fn run_kubeadm(host: &Host, script: &str) -> Result<()> {
    let script = format!("set -e\nexport PATH=$PATH:/usr/local/bin\n{script}\n");
    run_script(host, "sh", &script, &[]).map(drop).context("kubeadm")
}
