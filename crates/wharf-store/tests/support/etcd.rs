//! Real etcd processes for tests.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use wharf_store::{EtcdOptions, Store, StoreLocation, StoreOptions};

/// etcd on two busy cores starts in well under a second.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// The binary: `$WHARF_ETCD`, or the newest in the cache that `cargo xtask assets` fills.
pub fn etcd_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WHARF_ETCD") {
        return PathBuf::from(path);
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let mut found = Vec::new();
    if let Some(cache) = cache {
        collect(&cache.join("wharf/assets"), &mut found);
    }
    found.sort();
    match found.pop() {
        Some((_, path)) => path,
        None => panic!("there is no etcd; run `cargo xtask assets`, or name one with WHARF_ETCD"),
    }
}

fn collect(dir: &Path, found: &mut Vec<(std::time::SystemTime, PathBuf)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            collect(&path, found);
        } else if path.file_name().is_some_and(|name| name == "etcd") {
            found.push((metadata.modified().unwrap(), path));
        }
    }
}

/// A member and its data; the process ends with it.
pub struct Etcd {
    child: Option<Child>,
    args: Vec<String>,
    pub endpoint: String,
    _dir: tempfile::TempDir,
}

impl Etcd {
    /// One member, with further flags.
    pub fn start_with(flags: &[String]) -> Etcd {
        let scheme =
            if flags.iter().any(|flag| flag.starts_with("--cert-file")) { "https" } else { "http" };
        let peer = format!("http://{}", free_address());
        let cluster = format!("m0={peer}");
        Etcd::member("m0", scheme, &free_address(), &peer, &cluster, flags)
    }

    pub fn start() -> Etcd {
        Etcd::start_with(&[])
    }

    /// A cluster of three.
    pub fn start_cluster() -> Vec<Etcd> {
        let peers: Vec<_> = (0..3).map(|_| format!("http://{}", free_address())).collect();
        let cluster: Vec<_> = peers.iter().enumerate().map(|(i, p)| format!("m{i}={p}")).collect();
        let cluster = cluster.join(",");
        let member = |(i, peer): (usize, &String)| {
            Etcd::member(&format!("m{i}"), "http", &free_address(), peer, &cluster, &[])
        };
        peers.iter().enumerate().map(member).collect()
    }

    fn member(
        name: &str,
        scheme: &str,
        address: &str,
        peer: &str,
        cluster: &str,
        flags: &[String],
    ) -> Etcd {
        let dir = tempfile::tempdir().unwrap();
        let client = format!("{scheme}://{address}");
        let mut args = vec![
            format!("--name={name}"),
            format!("--data-dir={}", dir.path().join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={cluster}"),
            "--log-level=error".to_owned(),
        ];
        args.extend_from_slice(flags);
        let endpoint = address.to_owned();
        let mut etcd = Etcd { child: None, args, endpoint, _dir: dir };
        etcd.run();
        etcd
    }

    /// Starts the process (again) on the same data.
    pub fn run(&mut self) {
        let child = Command::new(etcd_binary())
            .args(&self.args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    pub fn location(&self) -> StoreLocation {
        self.location_with(EtcdOptions::default())
    }

    pub fn location_with(&self, options: EtcdOptions) -> StoreLocation {
        StoreLocation::Etcd { endpoints: vec![self.endpoint.clone()], options }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Opens a store as soon as its etcd is up.
pub async fn open_when_up(location: StoreLocation) -> Store {
    let started = Instant::now();
    let options = StoreOptions { location };
    loop {
        match Store::open(&options).await {
            Ok(store) => return store,
            Err(error) if started.elapsed() > START_DEADLINE => {
                panic!("etcd did not come up: {error:?}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// An address that is free now; etcd cannot be told to choose one itself.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
