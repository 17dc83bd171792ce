//! Reads and writes through the proxy and its block server, beside a loop device on the same disk.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use wharf_block::nbd::{ImageName, client::Control};
use wharf_testbed::process::Process;

use super::world::{World, run as program, storage, volume};
use crate::{
    install::{machines::load, median},
    report::{Report, Row},
};

const ANSWER: Duration = Duration::from_secs(60);
const IMAGE: u64 = 1 << 30;
const FILE: &str = "512m";
/// In turns: what a disk of a virtual machine can do changes from one minute to the next.
const ROUNDS: usize = 3;
/// At least half of the rate.
const GOAL: f64 = 2.0;
const MEBIBYTE: f64 = 1_048_576.0;

/// What is done, with which size, and how much at once.
const PATTERNS: [(&str, &str, &str, u32); 4] = [
    ("writes in a row, 1 MiB", "write", "1m", 4),
    ("reads in a row, 1 MiB", "read", "1m", 4),
    ("writes here and there, 4 KiB", "randwrite", "4k", 16),
    ("reads here and there, 4 KiB", "randread", "4k", 16),
];

pub fn run(world: &World, seconds: u16, report: &mut Report) -> Result<()> {
    let patterns = PATTERNS.len();
    eprintln!("volumes: {patterns} patterns of reads and writes, {ROUNDS} times {seconds} s each");
    let server = BlockServer::start(world, "net")?;
    server.image("disk", IMAGE)?;
    world.create(&[volume("net", "disk")])?;
    let pod = world.pod(&world.node, "fio")?;
    world.node.mount("net", &pod, "disk")?;
    let raw = Raw::new(world)?;
    let proxied = world.node.dir_of(&pod, "disk");
    for (name, pattern, size, depth) in PATTERNS {
        let measure = |dir: &Path| measure(dir, pattern, size, depth, seconds);
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(measure(&raw.dir)?);
            ours.push(measure(&proxied)?);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let row = Row::rate(name, ours, "loop device", theirs, "MiB/s").goal(GOAL);
        report.add(row.detail(format!("{depth} at once; load {}", load())));
    }
    world.node.unmount(&pod, "disk")?;
    raw.end()
}

/// The rate in MiB/s. What is written is checked by fio before it is measured.
fn measure(dir: &Path, pattern: &str, size: &str, depth: u32, seconds: u16) -> Result<f64> {
    let file = format!("--filename={}", dir.join("fio").display());
    let bytes = format!("--bs={size}");
    let rw = format!("--rw={pattern}");
    let common = ["--name=bench", &file, &bytes, "--direct=1", "--ioengine=libaio"];
    let verified = [
        &common[..],
        &["--rw=randwrite", "--size=16m", "--verify=crc32c", "--verify_state_save=0"],
    ]
    .concat();
    program("fio", &verified).context("what was written is not what was read")?;
    let (whole, deep) = (format!("--size={FILE}"), format!("--iodepth={depth}"));
    let time = format!("--runtime={seconds}");
    let more = [&rw, &whole, &deep, &time, "--time_based", "--output-format=json"];
    let said = program("fio", &[&common[..], &more].concat())?;
    let said: Value = serde_json::from_str(&said).context("fio's answer")?;
    let side = if pattern.ends_with("write") { "write" } else { "read" };
    let rate = said.pointer(&format!("/jobs/0/{side}/bw_bytes")).and_then(Value::as_f64);
    Ok(rate.context("fio tells no rate")? / MEBIBYTE)
}

/// A loop device on an image of the same size, mounted.
struct Raw {
    device: String,
    dir: std::path::PathBuf,
}

impl Raw {
    fn new(world: &World) -> Result<Raw> {
        let (image, dir) = (world.images().join("raw.img"), world.dir.path().join("raw"));
        File::create_new(&image)?.set_len(IMAGE)?;
        fs::create_dir(&dir)?;
        let image = image.to_string_lossy().into_owned();
        program("mkfs.ext4", &["-q", &image])?;
        let device = program("losetup", &["--find", "--show", "--direct-io=on", &image])?;
        program("mount", &[&device, &dir.to_string_lossy()])?;
        Ok(Raw { device, dir })
    }

    fn end(self) -> Result<()> {
        program("umount", &[&self.dir.to_string_lossy()])?;
        program("losetup", &["-d", &self.device])?;
        Ok(())
    }
}

/// A block server with a storage cluster of its name.
pub struct BlockServer {
    _process: Process,
    address: String,
}

impl BlockServer {
    pub fn start(world: &World, name: &str) -> Result<BlockServer> {
        let dir = world.dir.path().join("served").join(name);
        fs::create_dir_all(&dir)?;
        let mut command = Command::new(world.program("wharf-block"));
        command.arg("serve").arg(dir).arg("127.0.0.1:0");
        let mut process = Process::spawn(command)?;
        process.wait_for_output("listening on ", ANSWER)?;
        let said = process.output();
        let address = said.trim().rsplit(' ').next().context("no address")?.to_owned();
        world.create(&[storage(name, "proxy", &json!({ "server": address }))])?;
        Ok(BlockServer { _process: process, address })
    }

    pub fn image(&self, name: &str, bytes: u64) -> Result<()> {
        let mut server = Control::connect(&self.address, ANSWER)?;
        server.create(&ImageName::new(name)?, bytes)?;
        Ok(())
    }
}
