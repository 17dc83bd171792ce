//! Agents that are killed at every step of a mount and of an unmount that kubelet asks for.
//!
//! What an agent has begun is in the journal of the volume, which is watched from outside the machine. What
//! the journal says when the agent is dead is the step at which it was killed.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use wharf_testbed::{
    Host,
    devices::{loop_devices, processes},
    process::Process,
    wait_for,
};

use super::{
    NAME, NODES, Trial,
    brief::{Api, Ends, blocks, wait_for_phase},
};
use crate::bed::DEADLINE;

/// Between two looks at a journal: a step takes a millisecond or more.
const LOOK: Duration = Duration::from_micros(100);
/// An agent may take another step before it dies. Then the one that was meant is tried again.
const MOST_ROUNDS: usize = 24;
const CSI: &str = "steps-csi";
/// Where an agent listens for what its machine asks of the API server.
const BALANCER: &str = "127.0.0.1:6444";

/// What is begun, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Claim,
    Map,
    Format,
    Stage,
    Bind,
    Unbind,
    Unstage,
    Unmap,
    GiveUp,
    Forget,
}

const OF_MOUNT: [Step; 5] = [Step::Claim, Step::Map, Step::Format, Step::Stage, Step::Bind];
const OF_UNMOUNT: [Step; 5] =
    [Step::Unbind, Step::Unstage, Step::Unmap, Step::GiveUp, Step::Forget];

/// The volumes of one kind on a machine of their own, so that no kill disturbs another one's rounds.
struct Sweep<'a> {
    kind: &'static str,
    host: &'a Host,
    volume: String,
    image: PathBuf,
    api: &'a Api,
    pods: &'a Process,
}

impl Trial<'_> {
    pub fn an_agent_that_is_killed_at_any_step_goes_on_and_leaves_nothing(&self) {
        self.make_class(CSI, &json!({ "storageCluster": "main", "frontEnd": "csi" }));
        self.lead_kubelets(BALANCER, &self.api_server());
        let (api, begun) = (self.api("steps"), Instant::now());
        let pods = api.watch_pods();
        let sweep = |kind: &'static str, class: &str, node: &str| {
            let volume = self.claim_of(kind, class);
            let image = match class {
                "net" => self.served(&volume, "img"),
                _ => self.image_of(kind),
            };
            Sweep { kind, host: self.bed.host(node), volume, image, api: &api, pods: &pods }
        };
        let sweeps = [
            sweep("steps-flex", "main", "node2"),
            sweep(CSI, CSI, "node3"),
            sweep("steps-proxy", "net", "node1"),
        ];
        let ended = thread::scope(|scope| {
            let running: Vec<_> = sweeps.iter().map(|one| scope.spawn(|| one.run())).collect();
            running.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        let hit: Vec<[usize; 2]> = ended
            .into_iter()
            .map(|ended| ended.unwrap_or_else(|_| panic!("a sweep failed\n{}", self.told())))
            .collect();
        let [mounts, unmounts] = [0, 1].map(|call| hit.iter().map(|one| one[call]).sum::<usize>());
        let seconds = begun.elapsed().as_secs_f32();
        eprintln!("killed at {mounts} points of mounts and {unmounts} of unmounts, {seconds:.1} s");
        assert!(mounts >= 12 && unmounts >= 12, "{hit:?}");
        for (node, _) in NODES {
            self.wait_for_nothing_left(node);
        }
        for sweep in &sweeps {
            self.claim_takes_away(sweep.kind, &sweep.image);
        }
        self.lead_kubelets(&self.api_server(), BALANCER);
        self.bed.wait_for_links(NAME, NODES.len());
    }

    fn api_server(&self) -> String {
        format!("{}:6443", self.bed.host("node1").address())
    }

    /// Shows kubelets another way to the API server. Theirs is through the agent: each time that it is killed
    /// they wait longer before they look for their pods again, up to a minute.
    fn lead_kubelets(&self, from: &str, to: &str) {
        for (node, _) in NODES {
            let host = self.bed.host(node);
            let config = host.root().join("etc/wharf/kubeconfig/kubelet.yaml");
            let text = fs::read_to_string(&config).unwrap();
            assert!(text.contains(from), "{node}: {from}");
            fs::write(&config, text.replace(from, to)).unwrap();
            host.run(&["systemctl", "restart", "wharf-kubelet"]).unwrap();
        }
        for (node, _) in NODES {
            self.wait_for_registration(node);
        }
    }
}

impl Sweep<'_> {
    /// Says at how many steps of mounts and of unmounts the agent was killed: at all of them.
    fn run(&self) -> [usize; 2] {
        let mut missing: BTreeSet<Step> = OF_MOUNT.into_iter().chain(OF_UNMOUNT).collect();
        for round in 0..MOST_ROUNDS {
            let next = |steps: &[Step]| {
                let step = steps.iter().find(|step| missing.contains(step));
                *step.unwrap_or(&steps[round % steps.len()])
            };
            let hit = self.round(round, next(&OF_MOUNT), next(&OF_UNMOUNT));
            eprintln!("{} {round}: killed at {hit:?}", self.kind);
            missing.retain(|step| !hit.contains(step));
            if missing.is_empty() {
                return [OF_MOUNT.len(), OF_UNMOUNT.len()];
            }
        }
        panic!("{}: never killed at {missing:?}", self.kind);
    }

    /// A pod on a blank image, from its start to its end, with a kill in the mount and one in the unmount.
    /// Says at which steps.
    fn round(&self, round: usize, in_mount: Step, in_unmount: Step) -> Vec<Step> {
        self.blank();
        let (node, pod) = (self.host.name(), format!("{}-{round}", self.kind));
        let mark = format!("{node}.{round}");
        let killer = Killer::at(self.host);
        self.api.create(&[self.api.brief(&pod, node, self.kind, &mark, Ends::WhenTold)]);
        let mounting = |step: Option<Step>| step.is_some_and(|step| step <= Step::Bind);
        self.wait_for_step(|step| mounting(step) && step >= Some(in_mount));
        killer.kill();
        let first = self.step();

        wait_for_phase(self.pods, "Running", std::slice::from_ref(&pod));
        let killer = Killer::at(self.host);
        self.api.run(&["delete", "pod", &pod, "--wait=false"]);
        self.wait_for_step(|step| step.is_none_or(|step| step >= in_unmount));
        killer.kill();
        let second = self.step().unwrap_or(Step::Forget);
        self.wait_until_gone(&pod);
        assert_eq!(blocks(&self.image), [mark], "{first:?}, {second:?}");
        first.into_iter().chain([second]).collect()
    }

    /// Nobody has it, and it is made of nothing again.
    fn blank(&self) {
        let image = fs::File::options().write(true).open(&self.image).unwrap();
        let size = image.metadata().unwrap().len();
        image.set_len(0).unwrap();
        image.set_len(size).unwrap();
    }

    /// What is begun by the journal; nothing when there is none.
    fn step(&self) -> Option<Step> {
        let journals = self.host.root().join("var/lib/wharf/volumes/journals");
        let text = fs::read(journals.join(format!("{}.json", self.volume))).ok()?;
        let journal: Value = serde_json::from_slice(&text).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (device, pod) = (text(&journal["device"]), text(&journal["pods"][0]["stage"]));
        Some(match (device.as_str(), pod.as_str()) {
            ("absent", "claiming") => Step::Claim,
            ("mapping", "claimed") => Step::Map,
            ("formatting", "claimed") => Step::Format,
            ("staging", "claimed") => Step::Stage,
            // What the device is was said while the file system was mounted, or is said after the bind.
            ("staging", "binding" | "bound") => Step::Bind,
            ("staging", "leaving") => Step::Unbind,
            ("unstaging", "leaving") => Step::Unstage,
            ("unmapping", "leaving") => Step::Unmap,
            ("absent", "leaving") => Step::GiveUp,
            other => panic!("a step of no mount and no unmount: {other:?}"),
        })
    }

    fn wait_for_step(&self, is_it: impl Fn(Option<Step>) -> bool) {
        let begun = Instant::now();
        while !is_it(self.step()) {
            let step = self.step();
            assert!(begun.elapsed() < DEADLINE, "{} stays at {step:?}", self.kind);
            thread::sleep(LOOK);
        }
    }

    /// The pod is gone, and of its volume there is no journal, device, mount, process or record.
    fn wait_until_gone(&self, pod: &str) {
        let left = || {
            let agent = agent_of(self.host);
            let mounts = agent.map(|pid| fs::read_to_string(format!("/proc/{pid}/mountinfo")));
            let mounts = mounts.and_then(Result::ok).unwrap_or(self.volume.clone());
            let mounts = mounts.lines().filter(|line| line.contains(&self.volume));
            let mut left: Vec<String> = mounts.map(str::to_owned).collect();
            left.extend(self.step().map(|step| format!("{step:?}")));
            left.extend(loop_devices(Path::new(&self.volume)));
            let all = processes(&self.volume, &["wharf-block"]);
            left.extend(all.iter().map(|process| format!("{process:?}")));
            left
        };
        let kinds = [("attachments.wharf.dev", self.volume.as_str()), ("pod", pod)];
        wait_for("nothing to be left", DEADLINE, || {
            let is_gone =
                left().is_empty() && kinds.iter().all(|(kind, name)| !self.api.has(kind, name));
            Ok(is_gone.then_some(()))
        })
        .unwrap_or_else(|error| panic!("{} {pod}: {error:?}: {:?}", self.kind, left()));
    }
}

/// The agent of a machine, by its number here.
fn agent_of(host: &Host) -> Option<u32> {
    process_of(host, "/wharf\0agent\0--config\0")
}

/// The process of a machine whose command line has these words, by its number here.
pub fn process_of(host: &Host, words: &str) -> Option<u32> {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let here = place(&host.root())?;
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        let line = fs::read_to_string(process.path().join("cmdline")).ok()?;
        let is_it = line.contains(words) && place(&process.path().join("root")) == Some(here);
        process.file_name().to_str().filter(|_| is_it)?.parse().ok()
    });
    all.min()
}

/// Stands ready to kill the agent of a machine. It starts no program when the moment has come, and does
/// nothing when it is dropped.
pub struct Killer {
    agent: u32,
    shell: Child,
}

impl Killer {
    /// Waits for the agent, which may just be started anew.
    pub fn at(host: &Host) -> Self {
        let agent = wait_for("the agent to run", DEADLINE, || Ok(agent_of(host))).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read -r _ && kill -9 {agent}")]).stdin(Stdio::piped());
        Self { agent, shell: shell.spawn().unwrap() }
    }

    /// When this comes back the agent is dead.
    pub fn kill(mut self) {
        self.shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.shell.wait().unwrap().success(), "the agent ended by itself");
        let process = PathBuf::from(format!("/proc/{}", self.agent));
        wait_for("the agent to be dead", DEADLINE, || Ok((!process.exists()).then_some(())))
            .unwrap();
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
