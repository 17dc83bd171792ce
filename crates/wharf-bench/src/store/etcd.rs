//! A real etcd, and a client that puts keys into it.

use anyhow::{Context, Result, ensure};
use etcd_client::{GetOptions, KvClient};
use wharf_testbed::etcd::Etcd;

use crate::drive::Client;

/// The clients share this many connections, as those of one program would. More of them make etcd
/// slower here, fewer do too.
const CONNECTIONS: usize = 8;

pub struct Putter {
    client: KvClient,
    number: usize,
    value: Vec<u8>,
    written: u64,
}

impl Client for Putter {
    async fn step(&mut self) -> Result<()> {
        let key = format!("{}{:03}/{:08}", PREFIX, self.number, self.written);
        self.client.put(key, self.value.clone(), None).await?;
        self.written += 1;
        Ok(())
    }
}

const PREFIX: &str = "bench/";

/// Clients whose numbers begin at `first`, so that no two write the same key.
pub async fn clients(
    endpoint: &str,
    first: usize,
    count: usize,
    value: &[u8],
) -> Result<Vec<Putter>> {
    let mut connections = Vec::new();
    for _ in 0..count.min(CONNECTIONS) {
        connections.push(etcd_client::Client::connect([endpoint], None).await?.kv_client());
    }
    let putters = connections.iter().cycle().take(count).enumerate();
    Ok(putters
        .map(|(place, client)| Putter {
            client: client.clone(),
            number: first + place,
            value: value.to_vec(),
            written: 0,
        })
        .collect())
}

/// Kills etcd, starts it again, and counts what was acknowledged.
pub async fn check(mut etcd: Etcd, putters: &[&Vec<Putter>]) -> Result<()> {
    let acknowledged: u64 =
        putters.iter().flat_map(|putters| putters.iter()).map(|putter| putter.written).sum();
    let there = count_after_restart(&mut etcd, PREFIX).await?;
    ensure!(there == acknowledged, "etcd acknowledged {acknowledged} keys and has {there}");
    Ok(())
}

pub async fn count_after_restart(etcd: &mut Etcd, prefix: &str) -> Result<u64> {
    etcd.kill()?;
    etcd.restart()?;
    let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await?;
    let options = GetOptions::new().with_prefix().with_count_only();
    let count = client.get(prefix, Some(options)).await?.count();
    u64::try_from(count).context("etcd counts less than nothing")
}
