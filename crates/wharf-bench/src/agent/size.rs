//! What the agent costs a node that is full of pods, beside kubelet and node_exporter on it.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wharf_testbed::Host;

use super::{
    AgentArgs,
    cluster::{Sample, World, look, main_process},
};
use crate::{
    fleet::limit,
    install::{
        machines::{load, run_script},
        median,
    },
    report::{Report, Row},
    temp_dir,
};

const MEBIBYTES: f64 = 12.0;
const OF_KUBELET: f64 = 1.0 / 8.0;
const OF_EXPORTER: f64 = 0.5;
const PERCENT_OF_A_CORE: f64 = 0.3;
/// As Prometheus does in most places.
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// After the last pod has started, before anything is counted.
const CALM: Duration = Duration::from_secs(60);
/// Where agents look for the pods of applications.
const NAMESPACE: &str = "eve-kube-app";
const PACKAGE: &str = "prometheus-node-exporter";
const EXPORTER: &str = "/usr/local/bin/prometheus-node-exporter";
const EXPORTER_UNIT: &str = "bench-node-exporter";
const SCRAPE: &str = "exec 3<>/dev/tcp/127.0.0.1/9100\n\
                      printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3\n\
                      grep -c ^node_cpu_seconds_total <&3\n";

pub fn run(args: &AgentArgs, world: &World, report: &mut Report) -> Result<()> {
    let node = world.node()?;
    start_exporter(node)?;
    let pods = usize::from(args.pods);
    fill(world, node, pods)?;
    let time = Duration::from_secs(args.seconds.into());
    world.unseat()?;
    let of = format!("with {pods} pods");
    add_rows(report, &of, &observe(world, node, time)?);
    world.elect()?;
    let of = format!("with {pods} pods, elected");
    let elected = observe(world, node, time)?;
    let holders = world.holders()?;
    ensure!(holders.iter().all(|one| one == node.name()), "elected are now {holders:?}");
    add_rows(report, &of, &elected);
    // What was measured must still be a node that works, with all its pods.
    ensure!(running(world)? == pods, "not all pods run any more");
    world.wait_until_well()
}

/// Agent, kubelet and node_exporter over some time, after a while of calm.
fn observe(world: &World, node: &Host, time: Duration) -> Result<[Seen; 3]> {
    let units = ["wharf-agent", "wharf-kubelet", EXPORTER_UNIT];
    let processes: Result<Vec<u32>> = units.iter().map(|unit| main_process(node, unit)).collect();
    let processes = processes?;
    scrape_for(node, CALM, || Ok(()))?;
    let begun = Instant::now();
    let mut looks = vec![look(node, &processes)?];
    scrape_for(node, time, || {
        looks.push(look(node, &processes)?);
        Ok(())
    })?;
    looks.push(look(node, &processes)?);
    let seconds = begun.elapsed().as_secs_f64();
    world.wait_until_well()?;
    let seen = |place| Seen::of(place, &looks, seconds).context("a process was not seen");
    Ok([seen(0)?, seen(1)?, seen(2)?])
}

fn add_rows(report: &mut Report, of: &str, [agent, kubelet, exporter]: &[Seen; 3]) {
    let name = format!("resident memory {of}");
    let detail = format!(
        "median over {:.0} s; most {:.1} MiB, of it {:.1} not the program's file; load {}",
        agent.seconds,
        agent.most,
        agent.anonymous,
        load()
    );
    report.add(limit(&name, agent.resident, MEBIBYTES, "MiB").detail(detail));
    let beside = |peer: &str, of: &Seen| Row::cost(&name, agent.resident, peer, of.resident, "MiB");
    report.add(beside("kubelet", kubelet).goal(OF_KUBELET));
    report.add(beside("node_exporter", exporter).goal(OF_EXPORTER));
    let name = format!("share of a core {of}");
    report.add(limit(&name, agent.percent, PERCENT_OF_A_CORE, "%"));
    let beside = |peer: &str, of: &Seen| Row::cost(&name, agent.percent, peer, of.percent, "%");
    report.add(beside("kubelet", kubelet));
    report.add(beside("node_exporter, every 15 s", exporter));
}

/// One process over the whole time.
struct Seen {
    seconds: f64,
    resident: f64,
    most: f64,
    anonymous: f64,
    percent: f64,
}

impl Seen {
    fn of(place: usize, looks: &[Vec<Sample>], seconds: f64) -> Option<Seen> {
        let own: Vec<Sample> = looks.iter().filter_map(|look| look.get(place).copied()).collect();
        let (first, last) = (own.first()?, own.last()?);
        let ticks = last.ticks.saturating_sub(first.ticks) as f64;
        let cpu_seconds = ticks / rustix::param::clock_ticks_per_second() as f64;
        let of = |value: fn(&Sample) -> f64| own.iter().map(value).collect::<Vec<f64>>();
        Some(Seen {
            seconds,
            resident: median(of(|sample| sample.resident)),
            most: of(|sample| sample.resident).into_iter().fold(0.0, f64::max),
            anonymous: median(of(|sample| sample.anonymous)),
            percent: 100.0 * cpu_seconds / seconds,
        })
    }
}

/// Asks node_exporter again and again, as Prometheus would, and looks in between.
fn scrape_for(node: &Host, time: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let seen = run_script(node, "bash", SCRAPE, &[]).context("node_exporter")?;
        ensure!(seen.trim().parse::<usize>()? > 0, "node_exporter tells nothing");
        look()?;
        std::thread::sleep(SCRAPE_EVERY.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// Puts so many pods on the node, and waits until they run.
fn fill(world: &World, node: &Host, pods: usize) -> Result<()> {
    eprintln!("agent: starting {pods} pods");
    let list = run_script(
        node,
        "sh",
        "/opt/wharf/bin/ctr --address /run/wharf/containerd/containerd.sock -n k8s.io images ls -q",
        &[],
    )?;
    let image = list.lines().find(|name| name.starts_with("wharf.dev/pause:"));
    let image = image.context("the node has no pause image")?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let pod = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("full-{number}"), "namespace": NAMESPACE, "labels": {"app": "full"}},
            "spec": {
                "nodeName": node.name(),
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": image, "imagePullPolicy": "Never"}],
            },
        })
    };
    let items: Vec<Value> = std::iter::once(namespace).chain((1..=pods).map(pod)).collect();
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(
        file.path(),
        json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string(),
    )?;
    let path = file.path().display().to_string();
    world.kubectl.ask(&["apply", "--server-side", "-f", &path])?;
    let wait = ["wait", "--for=condition=Ready", "pod", "-l", "app=full", "--timeout=600s"];
    world.kubectl.ask(&[&wait[..], &["-n", NAMESPACE]].concat()).map(drop)
}

fn running(world: &World) -> Result<usize> {
    let words = ["get", "pods", "-n", NAMESPACE, "-l", "app=full", "-o", "name"];
    let only = ["--field-selector=status.phase=Running"];
    Ok(world.kubectl.ask(&[&words[..], &only].concat())?.lines().count())
}

/// Debian's node_exporter with its defaults, on the node's loopback.
fn start_exporter(node: &Host) -> Result<()> {
    let to = node.root().join(EXPORTER.trim_start_matches('/'));
    std::fs::copy(exporter()?, &to).with_context(|| format!("cannot write {}", to.display()))?;
    let listen = "--web.listen-address=127.0.0.1:9100";
    let unit = format!("--unit={EXPORTER_UNIT}");
    node.run(&["systemd-run", "--quiet", &unit, EXPORTER, listen])?;
    wharf_testbed::wait_for("node_exporter", Duration::from_secs(30), || {
        Ok(run_script(node, "bash", SCRAPE, &[]).ok().map(drop))
    })
}

/// Unpacked into the cache and not installed: a package that is installed starts its service.
fn exporter() -> Result<PathBuf> {
    let dir = wharf_testbed::cache_dir()?.join("tools").join(PACKAGE);
    let program = dir.join("usr/bin").join(PACKAGE);
    if program.exists() {
        return Ok(program);
    }
    let fetched = temp_dir()?;
    let mut fetch = Command::new("apt-get");
    let fetched_by =
        fetch.current_dir(fetched.path()).args(["-q", "download", PACKAGE]).status()?;
    ensure!(fetched_by.success(), "Debian's {PACKAGE} could not be fetched");
    let package = std::fs::read_dir(fetched.path())?.next().context("nothing was fetched")??;
    let unpacked = Command::new("dpkg-deb").arg("-x").arg(package.path()).arg(&dir).status()?;
    ensure!(unpacked.success() && program.exists(), "{PACKAGE} could not be unpacked");
    Ok(program)
}
