//! Several real server processes on one real etcd share the clusters, and a former owner can do
//! no harm.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use common::put_cluster;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use wharf_core::{cluster::ClusterRecord, record::Kind};
use wharf_store::{Change, EtcdOptions, Revision, Store, StoreLocation, StoreOptions, Stored};
use wharf_testbed::{etcd::Etcd, process::example};

const CLUSTERS: usize = 12;
/// The promise: another server owns the clusters of one that died within this time.
const TAKE_OVER: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
struct Pulse {
    server: String,
    epoch: u64,
}

impl Kind for Pulse {
    const KIND: &'static str = "pulse";
}

struct Server {
    child: Child,
    id: String,
    lines: mpsc::Receiver<String>,
}

impl Server {
    fn start(dir: &Path, name: &str, store: &str, key: &Path) -> Self {
        let mut child = Command::new(example("stubborn_owner").unwrap())
            .args([dir.join(name).to_str().unwrap(), store, key.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut server = Self { child, id: String::new(), lines };
        server.id = server.wait_for_line("ready ");
        server
    }

    /// The rest of the next line that begins so.
    fn wait_for_line(&self, start: &str) -> String {
        let deadline = Instant::now() + common::DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("the server said nothing more");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

async fn owners(store: &Store) -> BTreeMap<String, (String, u64)> {
    let (clusters, _) = store.read_all::<ClusterRecord>("").await.unwrap();
    let owner = |c: Stored<ClusterRecord>| {
        let ownership = c.value.ownership;
        (c.id, (ownership.owner.map(|o| o.0).unwrap_or_default(), ownership.epoch))
    };
    clusters.into_iter().flatten().map(owner).collect()
}

async fn until_owned_by(
    store: &Store,
    servers: &[&Server],
    limit: Duration,
) -> BTreeMap<String, (String, u64)> {
    let ids: BTreeSet<&str> = servers.iter().map(|s| s.id.as_str()).collect();
    let started = Instant::now();
    loop {
        let owners = owners(store).await;
        if owners.len() == CLUSTERS
            && owners.values().all(|(owner, _)| ids.contains(owner.as_str()))
        {
            return owners;
        }
        assert!(started.elapsed() < limit, "not taken over in {limit:?}: {owners:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads all pulses since `from` and checks that no epoch comes after a higher one.
async fn check_no_old_owner_wrote(store: &Store, from: Revision) -> usize {
    let until = store.revision().await.unwrap();
    let mut watch = store.watch("pulse/", from).await.unwrap();
    let mut highest: BTreeMap<String, u64> = BTreeMap::new();
    let (mut count, mut reached) = (0, from);
    while reached < until {
        // The last revision may be another key's: then no more pulses come by then.
        let next = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
        let Ok(changes) = next else { break };
        for change in changes.unwrap() {
            reached = change.revision();
            let Change::Put(entry) = change else { panic!("a pulse was deleted") };
            let pulse = Stored::<Pulse>::decode(&entry).unwrap();
            let highest = highest.entry(pulse.id.clone()).or_default();
            let (server, epoch) = (pulse.value.server, pulse.value.epoch);
            assert!(
                epoch >= *highest,
                "{server} wrote {} under epoch {epoch} after {highest}",
                pulse.id
            );
            *highest = epoch;
            count += 1;
        }
    }
    count
}

#[tokio::test]
async fn clusters_of_a_dead_server_are_taken_over_and_a_stopped_one_cannot_write() {
    let etcd = Etcd::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let address = etcd.endpoint().trim_start_matches("http://").to_owned();
    let store_url = format!("etcd://{address}");
    let location = StoreLocation::parse(&store_url, dir.path(), EtcdOptions::default()).unwrap();
    let store = Store::open(&StoreOptions { location }).await.unwrap();
    for i in 0..CLUSTERS {
        put_cluster(&store, &format!("c{i}")).await;
    }
    let key = dir.path().join("seal.key");
    let start = |name: &str| Server::start(dir.path(), name, &store_url, &key);
    let (a, b, c) = (start("a"), start("b"), start("c"));
    let beginning = store.revision().await.unwrap();

    let owned = until_owned_by(&store, &[&a, &b, &c], common::DEADLINE).await;
    let spread: BTreeSet<&String> = owned.values().map(|(owner, _)| owner).collect();
    assert!(spread.len() > 1, "one server owns all of {owned:?}");

    // Killed: the others take over in time, and each take-over raises the epoch.
    a.signal(Signal::KILL);
    let killed = Instant::now();
    let after_kill = until_owned_by(&store, &[&b, &c], TAKE_OVER).await;
    println!("taken over {:?} after kill -9", killed.elapsed());
    for (cluster, (owner, epoch)) in &owned {
        let (new_owner, new_epoch) = &after_kill[cluster];
        if owner != new_owner {
            assert!(new_epoch > epoch, "{cluster}");
        }
    }

    // Stopped, replaced, continued: it goes on writing, and is refused.
    let of_b: Vec<(&String, u64)> = after_kill
        .iter()
        .filter(|(_, (owner, _))| *owner == b.id)
        .map(|(cluster, (_, epoch))| (cluster, *epoch))
        .collect();
    assert!(!of_b.is_empty(), "b owns nothing: {after_kill:?}");
    // It must have begun to write about them, or it would not know what to go on with.
    common::eventually(async || {
        for (cluster, epoch) in &of_b {
            let pulse = store.read::<Pulse>(cluster).await.unwrap();
            if pulse.is_none_or(|pulse| pulse.value.server != b.id || pulse.value.epoch != *epoch) {
                return false;
            }
        }
        true
    })
    .await;
    b.signal(Signal::STOP);
    let stopped = Instant::now();
    until_owned_by(&store, &[&c], TAKE_OVER).await;
    println!("taken over {:?} after SIGSTOP", stopped.elapsed());
    b.signal(Signal::CONT);
    let mut refused = BTreeSet::new();
    while refused.len() < of_b.len() {
        let line = b.wait_for_line("fenced ");
        let (cluster, epoch) = line.split_once(' ').unwrap();
        let epoch: u64 = epoch.parse().unwrap();
        if of_b.iter().any(|(name, old)| *name == cluster && *old == epoch) {
            refused.insert(cluster.to_owned());
        }
    }
    // It comes back as a member and shares the work again, under new epochs.
    let back = until_owned_by(&store, &[&b, &c], common::DEADLINE).await;
    for (cluster, epoch) in of_b {
        assert!(back[cluster].1 > epoch, "{cluster}");
    }
    let pulses = check_no_old_owner_wrote(&store, beginning).await;
    assert!(pulses > 100, "only {pulses} writes were made");
    println!("{pulses} writes, none by a former owner");
    store.close().await;
}
