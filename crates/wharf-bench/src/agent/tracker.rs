//! `/app` of a node with 100 applications, of each of which every agent has published everything.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpSocket;
use wharf_testbed::process::Process;

use crate::{
    drive::{self, Figures},
    fleet::{limit, server::resident_mebibytes},
    http::{Connection, request},
    report::{Report, Row},
    temp_dir,
};

const APPS: usize = 100;
const ROUNDS: usize = 20;
const MILLISECONDS: f64 = 20.0;
const ITEMS: usize = 18;
const PORT: u16 = 12346;
const START: Duration = Duration::from_secs(60);
/// The end of every id that is made here.
const TAIL: &str = "9dad-11d1-80b4-00c04fd430c8";

pub fn run(wharf: &Path, report: &mut Report) -> Result<()> {
    eprintln!("agent: {APPS} applications, each asked for {ROUNDS} times");
    let node = Node::start(wharf)?;
    drive::runtime()?.block_on(async {
        node.wait_until_known().await?;
        let idle = resident_mebibytes(node.process.id())?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            for app in 0..APPS {
                let begin = Instant::now();
                let trace = node.ask(&id(app, 'a')).await?;
                times.push(begin.elapsed());
                check(&trace, app)?;
            }
        }
        let mut figures = Figures::default();
        figures.add_round(times.iter().sum(), &times);
        let (p50, p99) = (figures.p50(), figures.p99());
        let row = limit("/app with 100 applications, p99", p99, MILLISECONDS, "ms");
        let asked = ROUNDS * APPS;
        report.add(row.detail(format!("p50 {p50:.2} ms; {asked} requests, a connection each")));
        let after = resident_mebibytes(node.process.id())?;
        let row = Row::alone("memory of an agent with 100 applications", after, "MiB");
        report.add(row.detail(format!("{idle:.1} MiB before it was asked; without a cluster")));
        Ok(())
    })
}

/// All eighteen items, each of them found, of the application that was asked for.
fn check(trace: &Value, app: usize) -> Result<()> {
    let items = trace.get("appInfo").and_then(Value::as_array).context("no items")?;
    let found = |item: &&Value| item.pointer("/value/Exist") == Some(&json!(true));
    let count = items.iter().filter(found).count();
    ensure!(count == ITEMS && items.len() == ITEMS, "{count} of {} items: {trace}", items.len());
    let named = |item: &&Value| item.pointer("/value/Name") == Some(&json!(name(app)));
    ensure!(items.iter().any(|item| named(&item)), "another application: {trace}");
    Ok(())
}

fn name(app: usize) -> String {
    format!("Application {app}")
}

/// The id of something that belongs to an application.
fn id(app: usize, kind: char) -> String {
    format!("{kind}{app:07}-{TAIL}")
}

/// An agent on folders and an address of its own.
struct Node {
    process: Process,
    address: Ipv4Addr,
    _dir: TempDir,
}

impl Node {
    fn start(wharf: &Path) -> Result<Node> {
        let dir = temp_dir()?;
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 64 + high % 128, low, 2);
        let (run, persist) = (dir.path().join("run"), dir.path().join("persist"));
        let config = dir.path().join("agent.toml");
        fs::write(
            &config,
            format!("network_file = ''\nrun_dir = {run:?}\npersist_dir = {persist:?}\n"),
        )?;
        publish_node(&run, &persist, address)?;
        (0..APPS).try_for_each(|app| publish_app(&run, app))?;
        let mut command = Command::new(wharf);
        command.args(["agent", "--config"]).arg(&config);
        let mut process = Process::spawn(command)?;
        process.wait_for_output("the status server listens", START)?;
        Ok(Node { process, address, _dir: dir })
    }

    async fn wait_until_known(&self) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            let trace = self.ask(&id(APPS - 1, 'a')).await?;
            if check(&trace, APPS - 1).is_ok() {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the last application is not known: {trace}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// From within the cluster's network, as peers ask.
    async fn ask(&self, app: &str) -> Result<Value> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((self.address, 0)))?;
        let stream = socket.connect(SocketAddr::from((self.address, PORT))).await?;
        let mut connection = Connection::over(stream);
        let asked = request("GET", &format!("/app/{app}"), None, "");
        connection.send(&asked).await?.expect(200)?.json()
    }
}

fn publish(root: &Path, file: &str, value: &Value) -> Result<()> {
    let path = root.join(format!("{file}.json"));
    path.parent().map(fs::create_dir_all).transpose()?;
    fs::write(&path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

fn publish_node(run: &Path, persist: &Path, address: Ipv4Addr) -> Result<()> {
    let port = json!({
        "IfName": "lo", "Logicallabel": "shop", "AddrInfoList": [{ "Addr": address }],
    });
    publish(run, "nim/DeviceNetworkStatus/global", &json!({ "Ports": [port] }))?;
    let cluster = json!({
        "ClusterName": "lab", "ClusterID": { "UUID": id(0, 'c') }, "ClusterInterface": "shop",
        "ClusterIPPrefix": { "IP": address, "Mask": "////8A==" },
    });
    publish(run, "zedagent/EdgeNodeClusterConfig/global", &cluster)?;
    publish(run, "zedkube/KubeLeaseInfo/global", &json!({ "LeaderIdentity": "n2" }))?;
    let device = json!({ "DeviceName": "Shop_1", "DeviceID": "d1", "ProjectName": "p" });
    publish(persist, "status/zedagent/EdgeNodeInfo/global", &device)?;
    let log: String = (0..2000).map(|number| format!("line {number}\n")).collect();
    fs::create_dir_all(persist.join("kubelog"))?;
    Ok(fs::write(persist.join("kubelog/k3s-install.log"), log)?)
}

/// What all agents of a node say of one application with a volume and a network.
fn publish_app(run: &Path, app: usize) -> Result<()> {
    let (own, volume, content, network) = (id(app, 'a'), id(app, 'b'), id(app, 'd'), id(app, 'e'));
    let (name, generation) = (name(app), format!("{volume}#1"));
    let image = format!("/persist/vault/{volume}.img");
    let files = [
        (
            "zedagent/AppInstanceConfig",
            &own,
            json!({
                "UUIDandVersion": { "UUID": own, "Version": "1" },
                "DisplayName": name, "Activate": true, "IsDesignatedNodeID": true,
                "VolumeRefConfigList": [{ "VolumeID": volume, "GenerationCounter": 1 }],
                "AppNetAdapterList": [{ "Name": "eth0", "Network": network }],
            }),
        ),
        (
            "zedagent/VolumeConfig",
            &generation,
            json!({
                "VolumeID": volume, "ContentID": content, "DisplayName": "disk", "IsReplicated": true,
            }),
        ),
        (
            "zedrouter/NetworkInstanceStatus",
            &network,
            json!({
                "DisplayName": "net", "Activated": true,
                "IPAssignments": { "00:16:3e:00:00:01": { "IPv4Addrs": [{ "Address": "10.1.0.7" }] } },
            }),
        ),
        (
            "zedkube/ENClusterAppStatus",
            &own,
            json!({
                "AppUUID": own, "IsDNidNode": true, "AppKubeName": "app", "AppKubeStatus": 3,
            }),
        ),
        ("zedmanager/AppNetworkConfig", &own, json!({ "DisplayName": name, "Activate": true })),
        ("zedrouter/AppNetworkStatus", &own, json!({ "DisplayName": name, "AppNum": 4 })),
        (
            "volumemgr/VolumeStatus",
            &generation,
            json!({
                "VolumeID": volume, "State": 105, "FileLocation": image,
            }),
        ),
        ("volumemgr/ContentTreeStatus", &content, json!({ "RelativeURL": "img.qcow2" })),
        ("zedmanager/AppInstanceStatus", &own, json!({ "DomainName": name, "State": 114 })),
        ("zedmanager/DomainConfig", &own, json!({ "DisplayName": name, "AppNum": 4 })),
        ("domainmgr/DomainStatus", &own, json!({ "DomainName": name, "NodeName": "n1" })),
        ("domainmgr/DomainMetric", &own, json!({ "UsedMemory": 100, "AllocatedMB": 256 })),
        (
            "volumemgr/AppDiskMetric",
            &image.replace('/', "-"),
            json!({
                "DiskPath": image, "UsedBytes": 7,
            }),
        ),
    ];
    files.iter().try_for_each(|(kind, key, value)| publish(run, &format!("{kind}/{key}"), value))
}
