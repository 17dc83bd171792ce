//! A bed: its start and its handle.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command::{run, tool};
use crate::host::Host;
use crate::network::Network;
use crate::paths::{BedPaths, check_name};
use crate::procfs::ProcessId;
use crate::remove::{ensure_machine_limits, reap, remove, remove_locked};
use crate::state::{Condition, HostState, Lock, State, machine_boot_id};
use crate::{base, bundle, cgroup, kernel, packages};

/// A directory or file of the machine that a host sees too. Bound into several hosts, a
/// directory is shared storage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    /// Absolute path inside the host.
    pub target: PathBuf,
    pub read_only: bool,
}

#[derive(Clone, Debug)]
pub struct HostOptions {
    pub name: String,
    pub binds: Vec<Bind>,
}

impl HostOptions {
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), binds: Vec::new() }
    }

    /// The host has the default bundle of this machine's cache, as if it came with its image.
    pub fn with_bundle(mut self) -> Result<Self> {
        self.binds.push(bundle::bind()?);
        Ok(self)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub hosts: Vec<HostOptions>,
    /// The bed stays after its maker's end, until somebody removes it.
    pub keep: bool,
}

impl Options {
    /// Hosts named `node1`, `node2`…
    pub fn hosts(count: usize) -> Self {
        let hosts = (1..=count).map(|n| HostOptions::named(format!("node{n}"))).collect();
        Self { hosts, keep: false }
    }

    /// All hosts have the default bundle, see [`HostOptions::with_bundle`].
    pub fn with_bundle(mut self) -> Result<Self> {
        let bind = bundle::bind()?;
        self.hosts.iter_mut().for_each(|host| host.binds.push(bind.clone()));
        Ok(self)
    }
}

/// A running bed. Dropping it removes it, unless it is a kept one.
#[derive(Debug)]
pub struct TestBed {
    name: String,
    network: Network,
    hosts: Vec<Host>,
    keep: bool,
}

impl TestBed {
    /// Starts `count` hosts and returns when each of them answers over SSH.
    ///
    /// The bed's name is the prefix and something that makes it unique, so that tests can run at
    /// the same time. Beds of tests that died are removed first.
    pub fn start(name_prefix: &str, count: usize) -> Result<Self> {
        Self::start_with(&Self::unique_name(name_prefix), &Options::hosts(count))
    }

    /// A name for [`TestBed::start_with`] that no other bed of this machine has.
    pub fn unique_name(prefix: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{}-{count}", std::process::id())
    }

    /// Flow: claim the name and a subnet under the lock over all beds; make the bridge, the key
    /// and the cgroups; then all hosts at the same time.
    /// Guarantees: on an error, and on an interrupt, everything made so far is removed.
    pub fn start_with(name: &str, options: &Options) -> Result<Self> {
        check_name(name)?;
        packages::ensure()?;
        kernel::ensure()?;
        let base = base::ensure()?;
        let state = claim(name, options)?;
        let started = make(&state, &base).and_then(|bed| {
            if options.keep {
                State::update(name, |state| {
                    state.owner = None;
                    Ok(())
                })?;
            }
            Ok(bed)
        });
        match started {
            Ok(mut bed) => {
                bed.keep = options.keep;
                Ok(bed)
            }
            Err(error) => match remove(name) {
                Ok(()) => Err(error),
                Err(left) => Err(error.context(format!("and could not clean up: {left:#}"))),
            },
        }
    }

    /// A handle to a bed that runs already. Dropping it leaves the bed alone.
    pub fn open(name: &str) -> Result<Self> {
        let state = State::load(name)?;
        let state = state.with_context(|| format!("there is no test bed named {name}"))?;
        Self::handle(&state)
    }

    fn handle(state: &State) -> Result<Self> {
        let hosts = state.hosts.iter().map(|host| Host::new(state, host)).collect::<Result<_>>()?;
        Ok(Self { name: state.name.clone(), network: state.network.clone(), hosts, keep: true })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bridge that its hosts are on.
    pub fn bridge(&self) -> String {
        self.network.bridge()
    }

    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    pub fn host(&self, name: &str) -> Result<&Host> {
        let names = || self.hosts.iter().map(Host::name).collect::<Vec<_>>().join(", ");
        let found = self.hosts.iter().find(|host| host.name() == name);
        found.with_context(|| format!("there is no host named {name}; there are: {}", names()))
    }

    /// The private key that opens every host as root.
    pub fn ssh_key_path(&self) -> Result<PathBuf> {
        Ok(BedPaths::new(&self.name)?.key())
    }

    /// The hosts' public keys, as SSH clients read them.
    pub fn known_hosts_path(&self) -> Result<PathBuf> {
        Ok(BedPaths::new(&self.name)?.known_hosts())
    }

    /// The machine's own address on the bed's network: where hosts reach a server under test.
    pub fn gateway(&self) -> Ipv4Addr {
        self.network.gateway()
    }

    /// From now on no IPv4 packet passes between the two hosts.
    pub fn cut(&self, a: &Host, b: &Host) -> Result<()> {
        self.network.cut(a.address(), b.address())
    }

    /// From now on the host reaches nobody, this machine included.
    pub fn isolate(&self, host: &Host) -> Result<()> {
        self.network.isolate(host.address())
    }

    /// Ends all cuts.
    pub fn heal(&self) -> Result<()> {
        self.network.heal()
    }

    /// Removes the bed and says whether that worked, which a drop cannot.
    pub fn down(mut self) -> Result<()> {
        self.keep = true;
        remove(&self.name)
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = remove(&self.name)
        {
            eprintln!("testbed: could not remove the test bed {}: {error:#}", self.name);
        }
    }
}

/// Takes the name and a subnet by storing the state, after which anybody can clean up.
fn claim(name: &str, options: &Options) -> Result<State> {
    let lock = Lock::all_beds()?;
    reap(&lock)?;
    let mut claimed = Vec::new();
    for other in crate::state::names()? {
        let Some(state) = State::load(&other)? else { continue };
        if other == name {
            bail!("the test bed {name} exists already ({})", in_words(state.condition()));
        }
        claimed.push(state.network.subnet);
    }
    let network = Network::choose(&claimed)?;
    let mut hosts: Vec<HostState> = Vec::new();
    for (index, host) in options.hosts.iter().enumerate() {
        check_name(&host.name)?;
        if hosts.iter().any(|other| other.name == host.name) {
            bail!("two hosts are named {}", host.name);
        }
        let address = network.host(index)?;
        let (name, binds) = (host.name.clone(), host.binds.clone());
        hosts.push(HostState { name, address, binds, supervisor: None });
    }
    let state = State {
        name: name.to_owned(),
        machine_boot_id: machine_boot_id()?,
        owner: Some(ProcessId::own()?),
        network,
        cgroups: cgroup::bed_directories(name)?,
        hosts,
    };
    let run = BedPaths::new(name)?.run;
    fs::create_dir_all(&run).with_context(|| format!("cannot make {run:?}"))?;
    state.store()?;
    // Others remove common cgroups and limits with the last bed, so these too need the lock.
    if let Err(error) = ensure_machine_limits().and_then(|()| cgroup::ensure(&state.cgroups)) {
        remove_locked(name, &lock)?;
        return Err(error);
    }
    Ok(state)
}

fn in_words(condition: Condition) -> String {
    match condition {
        Condition::Owned(pid) => format!("process {pid} holds it"),
        Condition::Kept => "it is up".to_owned(),
        Condition::Abandoned => "abandoned".to_owned(),
    }
}

fn make(state: &State, base: &Path) -> Result<TestBed> {
    let paths = BedPaths::new(&state.name)?;
    state.network.create()?;
    make_key(&paths.key(), &state.name)?;
    let bed = TestBed::handle(state)?;
    let mut known_hosts = BTreeMap::new();
    for host in bed.hosts() {
        known_hosts.insert(host.address(), host.prepare(base)?);
    }
    let lines = known_hosts.iter().map(|(address, key)| format!("{address} {key}\n"));
    fs::write(paths.known_hosts(), lines.collect::<String>())?;
    in_parallel(bed.hosts(), Host::start)?;
    Ok(bed)
}

/// Does the same to all hosts at the same time; gives the first error after all have ended.
pub(crate) fn in_parallel(
    hosts: &[Host],
    action: impl Fn(&Host) -> Result<()> + Sync,
) -> Result<()> {
    let action = &action;
    thread::scope(|scope| {
        let running: Vec<_> = hosts.iter().map(|host| scope.spawn(move || action(host))).collect();
        let results: Vec<Result<()>> = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread of the bed panicked")))
            .collect();
        results.into_iter().collect()
    })
}

/// Makes a key pair without a passphrase at `path`.
pub(crate) fn make_key(path: &Path, comment: &str) -> Result<()> {
    run(tool("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]).arg(path))?;
    Ok(())
}
