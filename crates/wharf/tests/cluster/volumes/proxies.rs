//! A block server's client that is killed while fio writes to a pod's volume and checks what it wrote.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use wharf_testbed::{
    debian,
    devices::{loop_devices, processes},
    process::Process,
    wait_for,
};

use super::{
    NAME, Trial,
    steps::{Killer, process_of},
};
use crate::bed::DEADLINE;

const NODE: &str = "node2";
const CLAIM: &str = "proxied";
const POD: &str = "proxied";
/// What fio writes, and how much of it in a second at most. Then it reads all of it.
const MEBIBYTES: u64 = 16;
const RATE_KIBIBYTES: u64 = 1_600;
/// So it writes for as long as this, or longer.
const WRITES: Duration = Duration::from_secs(MEBIBYTES * 1024 / RATE_KIBIBYTES);
/// Fewer would prove little.
const LEAST_KILLS: usize = 3;

impl Trial<'_> {
    /// Its workers are killed again and again, and after the first of them the agent.
    pub fn a_proxy_that_is_killed_in_mid_write_costs_no_error_and_no_byte(&self) {
        debian::ensure("this test", &[("fio", "fio")]).unwrap();
        let volume = self.claim_of(CLAIM, "net");
        self.start(POD, NODE, CLAIM);
        self.wait_for_stamps(POD, NODE);
        let (begun, mut fio) = (Instant::now(), self.start_fio(&volume));
        let image = self.served(&volume, "img");
        let mut kills = 0;
        while begun.elapsed() < WRITES {
            self.wait_for_writes(&image);
            self.kill_worker(&volume);
            kills += usize::from(begun.elapsed() < WRITES);
            self.wait_for_writes(&image);
            if kills == 1 {
                Killer::at(self.bed.host(NODE)).kill();
            }
        }
        let ended = fio.wait(DEADLINE).unwrap();
        eprintln!("{kills} workers were killed while fio wrote");
        assert!(kills >= LEAST_KILLS, "only {kills}");
        let said = fio.output();
        assert!(ended.success() && said.contains("err= 0"), "{said}");
        assert!(said.contains("read: IOPS"), "all of it was read: {said}");

        self.wait_for_stamps(POD, NODE);
        assert_eq!(self.bed.kubectl(NAME, &["logs", POD]).unwrap(), "", "the pod saw no error");
        assert_eq!(self.holders_of(&volume), [NODE]);
        self.end_pod(POD, &volume);
        self.wait_for_nothing_of(std::slice::from_ref(&volume));
        assert_eq!(processes(&volume, &["wharf-block"]), [], "no process is left");
        self.assert_stamps(&image, &[NODE]);
        self.claim_takes_away(CLAIM, &image);
    }

    /// Writes to a file of the pod's volume, where kubelet has mounted it, and checks what it wrote.
    fn start_fio(&self, volume: &str) -> Process {
        let uid = ["get", "pod", POD, "-o", "jsonpath={.metadata.uid}"];
        let uid = self.bed.kubectl(NAME, &uid).unwrap();
        // It has the mounts of its machine, and nobody kills it.
        let kubelet = process_of(self.bed.host(NODE), "/kubelet\0").unwrap();
        let dir = format!(
            "/proc/{kubelet}/root/var/lib/kubelet/pods/{uid}/volumes/wharf.dev~volume/{volume}"
        );
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--rw=randwrite", "--bsrange=4k-64k", "--fsync=100"])
            .args(["--ioengine=libaio", "--iodepth=16", "--direct=1"])
            .args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1"])
            .args([format!("--size={MEBIBYTES}m"), format!("--rate=,{RATE_KIBIBYTES}k")])
            .arg(format!("--filename={dir}/fio"))
            .current_dir(self.bed.world.home.path());
        Process::spawn(fio).unwrap()
    }

    /// Waits until something more reaches the block server.
    fn wait_for_writes(&self, image: &Path) {
        let written = || image.metadata().and_then(|found| found.modified()).unwrap();
        let before = written();
        wait_for("something to be written", DEADLINE, || Ok((written() > before).then_some(())))
            .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
    }

    /// Kills the process that carries the writes, and waits for the next one.
    fn kill_worker(&self, volume: &str) {
        let workers = || processes(volume, &["\0work\0"]);
        let before = workers();
        let [worker] = before.as_slice() else { panic!("a volume has one worker: {before:?}") };
        let kill = Command::new("kill").args(["-9", &worker.to_string()]).status().unwrap();
        assert!(kill.success());
        wait_for("another worker", DEADLINE, || {
            let now = workers();
            Ok((now.len() == 1 && now != before).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:?}\n{}", self.told()));
        assert_eq!(loop_devices(Path::new(volume)).len(), 1, "the device is the same");
    }
}
