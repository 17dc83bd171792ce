//! The whole agent where it has no room for its files, where these are cut off or the clock is set, and
//! among peers that do not end: it goes on, says so to whoever asks for its health, and recovers by
//! itself. The tests of room need root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "../../wharf-kube/tests/cluster/world.rs"]
#[allow(dead_code)]
mod world;

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    net::TcpStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use common::{Agent, CLUSTER_ID, Reply, SOON, create, kubectl, loopback, machine, put};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use wharf_agent::health::{self, AskError};
use wharf_api::node_files::AgentHealth;
use wharf_testbed::{
    apiserver::ApiServer, debian, disk::SmallDisk, kinds::Project, process::Signal, wait_for,
};
use world::{labelled, world};

/// Of what takes longer than a change of a file.
const DEADLINE: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "eve-kube-app";
const APP: &str = "aaaaaaaa-9dad-11d1-80b4-00c04fd430c8";
const APP_STATUS: &str = "zedkube/ENClusterAppStatus/aaaaaaaa-9dad-11d1-80b4-00c04fd430c8.json";
const WISH: &str = "zedagent/EdgeNodeClusterConfig/global.json";
const STATUS: &str = "zedkube/EdgeNodeClusterStatus/global.json";
const PORTS: &str = "nim/DeviceNetworkStatus/global.json";
const PORT: u16 = 12346;

/// What a run directory may run out of: how it is filled, and what has to be removed then.
type Fill = fn(&SmallDisk) -> anyhow::Result<PathBuf>;

fn wish(address: &str, name: &str) -> Value {
    json!({
        "ClusterName": name, "ClusterID": { "UUID": CLUSTER_ID }, "ClusterInterface": "shop",
        "ClusterIPPrefix": { "IP": address, "Mask": "////8A==" },
    })
}

fn ports(address: &str) -> Value {
    let addresses = json!([{ "Addr": address }]);
    json!({ "Ports": [{ "IfName": "lo", "Logicallabel": "shop", "AddrInfoList": addresses }] })
}

fn ask_status(address: &str) -> anyhow::Result<Reply> {
    Reply::get(&format!("http://{address}:{PORT}/status"), &[])
}

/// What `wharf agent status` gets to know.
fn ask_health(run: &Path) -> Result<AgentHealth, AskError> {
    tokio::runtime::Runtime::new().unwrap().block_on(health::ask(run))
}

fn reason(health: &AgentHealth, subject: &str) -> Option<String> {
    let mut faults = health.tasks.iter().flat_map(|task| task.faults.iter());
    faults.find(|fault| fault.subject == subject).map(|fault| fault.reason.clone())
}

fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    let metadata = json!({ "name": NAMESPACE });
    create(&server, &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    server
}

fn is_well(agent: &Agent) -> bool {
    ["files", "health", "cluster", "status-server", "apps"].iter().all(|task| agent.works(task))
}

/// No task failed meanwhile.
fn expect_no_restarts(agent: &Agent) {
    let tasks = agent.health().unwrap().tasks;
    assert!(tasks.iter().all(|task| task.restarts == 0), "{tasks:?}");
}

/// Fills the run directory of an agent that works, lets things happen, and makes room again.
fn run_out_of(server: &ApiServer, network: u8, fill: Fill) {
    let address = loopback(network, 2);
    let disk = SmallDisk::new(1).unwrap();
    let kubeconfig = server.kubeconfig_file();
    let more = format!("node_name = 'n1'\nkubeconfig = '{}'", kubeconfig.display());
    let agent = Agent::start_in(disk.path(), &more);
    agent.wait_for_health();
    agent.publish(PORTS, &ports(&address));
    agent.publish(WISH, &wish(&address, "before"));
    let app = json!({
        "UUIDandVersion": { "UUID": APP, "Version": "1" }, "DisplayName": "web", "Activate": true,
    });
    agent.publish(&format!("zedagent/AppInstanceConfig/{APP}.json"), &app);
    wait_for("an answer", SOON, || Ok(ask_status(&address).ok())).unwrap();
    wait_for("the application", SOON, || Ok(agent.read(APP_STATUS))).unwrap();
    wait_for("health", SOON, || Ok(is_well(&agent).then_some(()))).unwrap();
    // Others have room for their words, in a place of theirs.
    let words: Vec<String> = (0..20).map(|number| format!("word-{number}")).collect();
    for word in &words {
        put(&agent.path(word), wish(&address, word).to_string().as_bytes());
    }

    let says = |file: &str, field: &str, value: &Value| {
        agent.read(file).filter(|said| said[field] == *value).map(drop)
    };
    let fault = |file: &str| {
        let subject = format!("publishing {}", agent.path(file).display());
        let told = reason(&ask_health(disk.path()).ok()?, &subject)?;
        assert!(told.ends_with("No space left on device (os error 28)"), "{told}");
        Some(())
    };
    // The agent may have been in the middle of a file, and left room for one more when it was done.
    let mut told = 0;
    for word in &words {
        fill(&disk).unwrap();
        // What is replaced makes no room: it stays under the other name.
        let (from, to) = (agent.path(word), agent.path(WISH));
        renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).unwrap();
        told += 1;
        wait_for(word, SOON, || {
            Ok(fault(STATUS).or_else(|| says(STATUS, "ClusterName", &json!(word))))
        })
        .unwrap();
        if fault(STATUS).is_some() {
            break;
        }
    }
    fault(STATUS).expect("there was room for all words");
    wait_for("the file of its health", SOON, || {
        fill(&disk)?;
        Ok(reason(&ask_health(disk.path())?, "file"))
    })
    .unwrap();
    let before = [STATUS, APP_STATUS].map(|file| fs::read(agent.path(file)).unwrap());
    let pod = format!("web-aaaaa-{network}");
    let container = json!({ "name": "main", "image": "none" });
    let spec = json!({ "nodeName": "n1", "containers": [container] });
    let metadata = json!({ "name": pod, "namespace": NAMESPACE });
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    create(server, &object);
    wait_for("the fault", SOON, || Ok(fault(APP_STATUS))).unwrap();
    assert_eq!(ask_status(&address).unwrap().code, 200, "it serves");
    // Whoever reads sees the old word, and no half of a new one.
    let now = [STATUS, APP_STATUS].map(|file| fs::read(agent.path(file)).unwrap());
    assert_eq!(now, before);
    for file in [STATUS, APP_STATUS] {
        let folder = agent.path(file).parent().unwrap().to_owned();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "nothing is left beside");
    }

    let filler = fill(&disk).unwrap();
    if filler.is_dir() { fs::remove_dir_all(filler) } else { fs::remove_file(filler) }.unwrap();
    let last = json!(words[told - 1]);
    wait_for("the last word", SOON, || Ok(says(STATUS, "ClusterName", &last))).unwrap();
    let here = json!(true);
    wait_for("the pod", SOON, || Ok(says(APP_STATUS, "ScheduledOnThisNode", &here))).unwrap();
    wait_for("health", SOON, || Ok(is_well(&agent).then_some(()))).unwrap();
    expect_no_restarts(&agent);
    let delete = ["delete", "pod", &pod, "-n", NAMESPACE, "--force", "--grace-period=0"];
    kubectl(server, &delete, &Value::Null);
}

#[test]
fn an_agent_whose_run_directory_fills_up_serves_on_and_writes_what_it_owes_when_there_is_room() {
    let server = server();
    run_out_of(&server, 1, SmallDisk::fill);
    run_out_of(&server, 2, SmallDisk::fill_names);
}

/// Starts an agent where there is no room, and makes some. Gives what its health was meanwhile.
fn start_without_room(network: u8, fill: Fill) -> Result<AgentHealth, AskError> {
    let address = loopback(network, 2);
    let disk = SmallDisk::new(1).unwrap();
    put(&disk.path().join(PORTS), ports(&address).to_string().as_bytes());
    put(&disk.path().join(WISH), wish(&address, "lab").to_string().as_bytes());
    let filler = fill(&disk).unwrap();
    let agent = Agent::start_in(disk.path(), "node_name = 'n1'");
    wait_for("an answer", SOON, || Ok(ask_status(&address).ok())).unwrap();
    assert_eq!(agent.read(STATUS), None);
    assert!(agent.health().is_none());
    let asked = ask_health(disk.path());
    if filler.is_dir() { fs::remove_dir_all(filler) } else { fs::remove_file(filler) }.unwrap();
    wait_for("the status", SOON, || Ok(agent.read(STATUS))).unwrap();
    wait_for("health", SOON, || Ok(agent.is_healthy().then_some(()))).unwrap();
    assert!(ask_health(disk.path()).unwrap().is_healthy());
    expect_no_restarts(&agent);
    asked
}

#[test]
fn an_agent_that_starts_without_room_serves_its_cluster_and_is_heard_of_when_there_is_some() {
    let asked = start_without_room(3, SmallDisk::fill).unwrap();
    assert!(reason(&asked, "file").unwrap().ends_with("No space left on device (os error 28)"));
    // Without a name for its socket nobody can ask.
    let asked = start_without_room(4, SmallDisk::fill_names);
    assert!(matches!(asked, Err(AskError::NoAgent { .. })), "{asked:?}");
}

/// Something that is done until the value goes.
struct Endless {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endless {
    fn new(mut step: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                step();
                // Their pace: slow enough for the machine, and never silent.
                thread::sleep(Duration::from_millis(100));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
fn who_asks_without_end_is_cut_off_and_counted_and_others_are_answered() {
    let address = loopback(5, 2);
    let agent = Agent::start(None, "");
    agent.publish(PORTS, &ports(&address));
    agent.publish(WISH, &wish(&address, "lab"));
    wait_for("an answer", SOON, || Ok(ask_status(&address).ok())).unwrap();
    // More than are served at a time. Each says a little more again and again, and comes back when
    // it is cut off.
    let connect = {
        let address = address.clone();
        move || {
            let mut stream = TcpStream::connect((address.as_str(), PORT)).unwrap();
            let _ = stream.write_all(b"GET /status HTTP/1.1\r\nX-Long: ");
            stream
        }
    };
    let mut streams: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    let peers = Endless::new(move || {
        for stream in &mut streams {
            if stream.write_all(b"x").is_err() {
                *stream = connect();
            }
        }
    });
    let count = || {
        let note = agent.note("requests that did not end")?;
        assert!(note.ends_with("since the agent began; the last: from 127.0.0.1"), "{note}");
        note.split(' ').next()?.parse::<u32>().ok()
    };
    // All of the first have been cut off, and some of those who came back.
    wait_for("the note", SOON, || Ok(count().filter(|count| *count > 100))).unwrap();
    wait_for("an answer among them", SOON, || Ok(ask_status(&address).ok())).unwrap();
    assert!(agent.is_healthy());
    drop(peers);
    wait_for("an answer", SOON, || Ok(ask_status(&address).ok())).unwrap();
    expect_no_restarts(&agent);
}

#[test]
fn a_cluster_that_takes_connections_and_says_nothing_is_told_and_followed_when_it_speaks() {
    let mut server = server();
    create(
        &server,
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1", "labels": {
            "node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true",
        } } }),
    );
    let address = loopback(6, 2);
    server.process().signal(Signal::STOP).unwrap();
    let kubeconfig = server.kubeconfig_file();
    let more = format!("node_name = 'n1'\nkubeconfig = '{}'", kubeconfig.display());
    let agent = Agent::start(None, &more);
    agent.publish(PORTS, &ports(&address));
    agent.publish(WISH, &wish(&address, "lab"));
    for subject in ["the own Node", "pods of applications"] {
        let fault = wait_for(subject, SOON, || Ok(agent.fault(subject)));
        assert!(fault.is_ok(), "{subject}: {:?}", agent.health());
    }
    let reply = wait_for("an answer", SOON, || Ok(ask_status(&address).ok())).unwrap();
    assert_eq!((reply.code, reply.body.as_str()), (200, ""), "nobody says what the node is");

    server.process().signal(Signal::CONT).unwrap();
    wait_for("the role", SOON, || {
        Ok(ask_status(&address).ok().filter(|reply| reply.body == "cluster").map(drop))
    })
    .unwrap();
    for task in ["roles", "pods"] {
        wait_for(task, SOON, || Ok(agent.works(task).then_some(()))).unwrap();
    }
    expect_no_restarts(&agent);
}

#[test]
fn a_configuration_that_is_cut_off_before_a_restart_takes_no_port_and_no_console_away() {
    let server = server();
    for project in [Project::Multus, Project::KubeVirt] {
        server.define(project).unwrap();
    }
    create(&server, &machine(NAMESPACE, "web-aaaaax7", &json!({})));
    let kubeconfig = server.kubeconfig_file();
    let kubeconfig = kubeconfig.display();
    let more = format!("node_name = 'n1'\nkubeconfig = '{kubeconfig}'\nconsole_command = []");
    let mut agent = Agent::start(None, &more);
    let file = format!("zedagent/AppInstanceConfig/{APP}.json");
    let app = |console: bool| {
        json!({
            "DisplayName": "web", "RemoteConsole": console,
            "FixedResources": { "VirtualizationMode": 4, "VncDisplay": 1 },
            "IoAdapterList": [{ "Type": 1, "Name": "eth77" }],
        })
    };
    let path = agent.path("zedkube/vmiVNC.run");
    let console = || fs::read_to_string(&path).ok();
    let users = || {
        let users = "-o=jsonpath={.items[*].metadata.annotations.wharf\\.dev/used-by}";
        let words = ["get", "network-attachment-definitions", "-n", NAMESPACE, users];
        kubectl(&server, &words, &Value::Null)
    };
    let user = format!("n1/{APP}");
    agent.publish(&file, &app(true));
    wait_for("the port", SOON, || Ok((users() == user).then_some(()))).unwrap();
    let served = wait_for("the console", SOON, || Ok(console())).unwrap();

    let whole = app(true).to_string();
    fs::write(agent.path(&file), &whole[..whole.len() / 2]).unwrap();
    agent.restart();
    let subject = agent.path(&file).display().to_string();
    wait_for("the fault", SOON, || Ok(agent.fault(&subject))).unwrap();
    let stays = wait_for("the word", SOON, || Ok(agent.fault(&path.display().to_string())));
    assert!(stays.unwrap().starts_with("it stays"));
    wait_for("a look at ports", SOON, || Ok(agent.works("passthrough").then_some(()))).unwrap();
    assert_eq!((users(), console()), (user, Some(served)));

    agent.publish(&file, &app(false));
    wait_for("the end of the console", SOON, || Ok(console().is_none().then_some(()))).unwrap();
    agent.unpublish(&file);
    wait_for("the end of the port", SOON, || Ok(users().is_empty().then_some(()))).unwrap();
    wait_for("health", SOON, || Ok(agent.works("console").then_some(()))).unwrap();
}

/// A library that shows the programs that load it another time of day.
const OTHER_TIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

#[test]
fn a_clock_that_is_set_by_hours_ends_no_drain_and_no_lease_and_is_told() {
    debian::ensure("the test of a clock that is set", &[(OTHER_TIME, "libfaketime")]).unwrap();
    let (world, node) = (world(), "clock-set");
    world.node(node);
    let pod = world.pod_with(node, "clock-set-0", labelled("clock-set"));
    world.budget("clock-set", 1, 1);
    let metadata = json!({ "name": NAMESPACE });
    world.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    let set = |by: &str| put(&clock, by.as_bytes());
    set("+0");
    let kubeconfig = world.kubeconfig.path().display();
    // The clock is set by more than the drain may take.
    let more = format!(
        "node_name = '{node}'\nkubeconfig = '{kubeconfig}'\ndrain_timeout_seconds = 3600\n\
         api_skip_seconds = 3600"
    );
    let on = OsStr::new("1");
    let agent = Agent::start_where(
        None,
        &more,
        &[
            ("LD_PRELOAD", OsStr::new(OTHER_TIME)),
            ("FAKETIME_TIMESTAMP_FILE", clock.as_os_str()),
            ("FAKETIME_NO_CACHE", on),
            ("DONT_FAKE_MONOTONIC", on),
            ("NO_FAKE_STAT", on),
        ],
    );
    let controller = json!({ "Name": "zedagent", "ConfigGetStatus": 1 });
    agent.publish("zedagent/ZedAgentStatus/zedagent.json", &controller);
    agent.publish(WISH, &json!({ "ClusterName": "lab" }));
    let request = json!({ "RequestedBy": 2, "Context": "reboot" });
    agent.publish("zedagent/NodeDrainRequest/global.json", &request);
    let lease = || agent.read("zedkube/KubeLeaseInfo/global.json").unwrap_or_default();
    let drain = || agent.read("zedkube/NodeDrainStatus/global.json").unwrap_or_default();
    wait_for("the drain", DEADLINE, || Ok((drain()["Status"] == 5).then_some(()))).unwrap();
    wait_for("the lease", DEADLINE, || Ok((lease()["IsStatsLeader"] == true).then_some(())))
        .unwrap();
    let since = lease()["LatestChange"].clone();
    assert_eq!(agent.note("clock"), None);

    let renewed = || {
        let time = "-o=jsonpath={.spec.renewTime}";
        let name = "eve-kube-stats-leader";
        world.kubectl(&["get", "lease", "-n", NAMESPACE, name, time], "")
    };
    for (round, by, word) in [(1, "+3h", "forward"), (2, "+0", "back")] {
        set(by);
        let note = wait_for("the note", DEADLINE, || {
            let note = agent.note("clock");
            Ok(note.filter(|note| note.starts_with(&format!("{round} since the agent began"))))
        });
        let note = note.unwrap_or_else(|_| panic!("{:?}", agent.health()));
        let (_, seconds) = note.split_once(&format!("set {word} by ")).unwrap();
        let seconds: i64 = seconds.split(' ').next().unwrap().parse().unwrap();
        assert!((seconds - 3 * 3600).abs() < 10, "{note}");
        // Several terms of the lease later, and with a new application, all is as before.
        let key = format!("{round}{}", &APP[1..]);
        agent.publish(
            &format!("zedagent/AppInstanceConfig/{key}.json"),
            &json!({ "UUIDandVersion": { "UUID": key }, "DisplayName": "web", "Activate": true }),
        );
        let status = format!("zedkube/ENClusterAppStatus/{key}.json");
        wait_for("the application", DEADLINE, || Ok(agent.read(&status))).unwrap();
        let mut times = vec![renewed()];
        wait_for("ten renewals", DEADLINE, || {
            assert_eq!((&drain()["Status"], &lease()["IsStatsLeader"]), (&json!(5), &json!(true)));
            let now = renewed();
            if times.last() != Some(&now) {
                times.push(now);
            }
            Ok((times.len() > 10).then_some(()))
        })
        .unwrap();
        assert!(world.is_there(&pod) && world.is_unschedulable(node));
        assert_eq!(lease()["LatestChange"], since);
        expect_no_restarts(&agent);
    }
    world.kubectl(&["delete", "pdb", "clock-set"], "");
    wait_for("the end", DEADLINE, || Ok((drain()["Status"] == 9).then_some(()))).unwrap();
}
