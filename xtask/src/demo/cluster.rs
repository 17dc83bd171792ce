//! The demo's cluster: three machines of the test bed, made into Kubernetes by the demo's server.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use wharf_testbed::{Condition, Options, TestBed};

use crate::assets;

/// The demo's own test bed.
const BED: &str = "demo";
const CLUSTER: &str = "demo";
const HOSTS: usize = 3;
const SAMPLE: &str = include_str!("sample.yaml");

/// The demo's server, and where its files are.
pub struct Place<'a> {
    pub wharf: &'a Path,
    pub data: &'a Path,
    pub dir: &'a Path,
}

/// Whether machines can be made here.
pub fn is_possible() -> bool {
    rustix::process::geteuid().is_root()
}

/// Machines, a cluster on them, something that runs in it; what is there already stays.
pub fn up(place: &Place<'_>) -> Result<()> {
    assets::run(&assets::AssetsArgs::default())?;
    let bed = machines()?;
    let file = place.dir.join("demo.yaml");
    std::fs::write(&file, wish(&bed))?;
    if !place
        .wharf(&["cluster", "show", CLUSTER])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?
        .success()
    {
        eprintln!("building the cluster");
        let key = bed.ssh_key_path()?;
        let mut create = place.wharf(&["cluster", "create"]);
        create.arg("--file").arg(&file).arg("--ssh-key").arg(key).stdout(Stdio::null());
        succeed(create, "the cluster could not be built")?;
    }
    let kubeconfig = place.kubeconfig()?;
    let sample = place.dir.join("sample.yaml");
    std::fs::write(&sample, SAMPLE)?;
    let mut apply = Command::new(kubectl()?);
    apply.arg("--kubeconfig").arg(&kubeconfig).args(["apply", "-f"]).arg(&sample);
    succeed(apply.stdout(Stdio::null()), "the sample could not be deployed")
}

/// Says how to go on.
pub fn tell(place: &Place<'_>) -> Result<()> {
    let (wharf, kubectl) = (place.wharf.display(), kubectl()?);
    println!("  {wharf} cluster show {CLUSTER}");
    println!("  export KUBECONFIG={}", place.dir.join("kubeconfig").display());
    println!("  {} get nodes,pods -A -o wide", kubectl.display());
    println!("  {wharf} cluster plan -f {}", place.dir.join("demo.yaml").display());
    println!("  {wharf} node drain demo node3 --plan");
    println!("  cargo xtask hosts list      the machines, beside those of tests");
    Ok(())
}

pub fn down() -> Result<()> {
    if wharf_testbed::list()?.iter().any(|bed| bed.name == BED) {
        eprintln!("removing the machines");
        wharf_testbed::remove(BED)?;
    }
    Ok(())
}

fn machines() -> Result<TestBed> {
    let known = wharf_testbed::list()?.into_iter().find(|bed| bed.name == BED);
    match known {
        Some(bed) if bed.condition == Condition::Kept => TestBed::open(BED),
        Some(_) => bail!("the demo's machines are in no good state; run `cargo demo --down`"),
        None => {
            eprintln!("starting {HOSTS} machines");
            let options = Options { keep: true, ..Options::hosts(HOSTS).with_bundle()? };
            TestBed::start_with(BED, &options)
        }
    }
}

/// The cluster as a user would write it down.
fn wish(bed: &TestBed) -> String {
    let mut text = format!(
        "name: {CLUSTER}\nsshUser: root\nsingleCloudAddress: {}:8443\n# The machines of the test bed reach nothing outside.\nclusterUpstreamDNS: []\nnodes:\n",
        bed.gateway()
    );
    for (number, host) in bed.hosts().iter().enumerate() {
        let roles = if number == 0 { "controlplane, etcd" } else { "worker" };
        let (name, address) = (host.name(), host.address());
        text.push_str(&format!("- {{name: {name}, address: {address}, roles: [{roles}]}}\n"));
    }
    text
}

impl Place<'_> {
    fn wharf(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.wharf);
        command.args(args).arg("--data-dir").arg(self.data).stdin(Stdio::null());
        command
    }

    fn kubeconfig(&self) -> Result<PathBuf> {
        let file = self.dir.join("kubeconfig");
        let output = self.wharf(&["cluster", "kubeconfig", CLUSTER]).output()?;
        if !output.status.success() {
            bail!("no kubeconfig: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::write(&file, output.stdout)?;
        Ok(file)
    }
}

fn kubectl() -> Result<PathBuf> {
    wharf_bundle::cache::find("kubectl").context("the bundle has no kubectl")
}

fn succeed(command: impl std::borrow::BorrowMut<Command>, what: &str) -> Result<()> {
    let mut command = command;
    let status = command.borrow_mut().status()?;
    if !status.success() {
        bail!("{what}");
    }
    Ok(())
}
