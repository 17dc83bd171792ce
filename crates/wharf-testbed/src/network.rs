//! The bed's bridge and subnet, and cuts in its network.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::{run, tool};
use crate::wait::wait;

/// Every bed takes one /24 of this /16 that nobody else on the machine uses.
const POOL: [u8; 2] = [10, 77];
/// Host n has the last octet 10 + n; the machine itself has 1.
const FIRST_HOST: usize = 11;
const MOST_HOSTS: usize = 200;
/// The kernel removes the network of a killed host by and by.
const PORTS_GONE_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Network {
    /// The third octet, which also makes the names of the bridge and of the nft table unique.
    pub subnet: u8,
}

impl Network {
    /// A subnet that no other bed has claimed and that is not routed anywhere on this machine.
    pub fn choose(claimed: &[u8]) -> Result<Self> {
        let links = run(tool("ip").args(["-o", "link", "show"]))?;
        let routes = run(tool("ip").args(["-o", "route", "show", "table", "all"]))?;
        (0..=u8::MAX)
            .filter(|subnet| !claimed.contains(subnet))
            .map(|subnet| Self { subnet })
            .find(|network| {
                !links.contains(&format!(" {}:", network.bridge()))
                    && !routes.contains(&network.prefix())
            })
            .context(
                "all 256 subnets of the test bed's pool are in use: see `cargo xtask hosts list`",
            )
    }

    pub fn bridge(&self) -> String {
        format!("wharf{}", self.subnet)
    }

    fn table(&self) -> String {
        format!("wharf_testbed_{}", self.subnet)
    }

    fn prefix(&self) -> String {
        let [a, b] = POOL;
        format!("{a}.{b}.{}.", self.subnet)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b] = POOL;
        Ipv4Addr::new(a, b, self.subnet, last)
    }

    /// The machine's own address on the bridge.
    pub fn gateway(&self) -> Ipv4Addr {
        self.address(1)
    }

    pub fn host(&self, index: usize) -> Result<Ipv4Addr> {
        let last = Some(index).filter(|index| *index < MOST_HOSTS).map(|index| index + FIRST_HOST);
        let last = last.and_then(|last| u8::try_from(last).ok());
        Ok(self.address(last.with_context(|| format!("a bed has at most {MOST_HOSTS} hosts"))?))
    }

    pub fn create(&self) -> Result<()> {
        let bridge = self.bridge();
        let gateway = format!("{}/24", self.gateway());
        run(tool("ip").args(["link", "add", &bridge, "type", "bridge"]))?;
        run(tool("ip").args(["address", "add", &gateway, "dev", &bridge]))?;
        run(tool("ip").args(["link", "set", &bridge, "up"]))?;
        let table = self.table();
        self.nft(&format!(
            "table bridge {table} {{
                set pairs {{ type ipv4_addr . ipv4_addr; }}
                set alone {{ type ipv4_addr; }}
                chain forward {{ type filter hook forward priority 0;
                    ip saddr . ip daddr @pairs drop
                    ip saddr @alone drop
                    ip daddr @alone drop
                }}
                chain input {{ type filter hook input priority 0; ip saddr @alone drop; }}
                chain output {{ type filter hook output priority 0; ip daddr @alone drop; }}
            }}"
        ))
    }

    /// No packet passes between the two any more, in either direction.
    pub fn cut(&self, a: Ipv4Addr, b: Ipv4Addr) -> Result<()> {
        self.nft(&format!("add element bridge {} pairs {{ {a} . {b}, {b} . {a} }}", self.table()))
    }

    /// No packet reaches or leaves the host any more, the machine's own included.
    pub fn isolate(&self, host: Ipv4Addr) -> Result<()> {
        self.nft(&format!("add element bridge {} alone {{ {host} }}", self.table()))
    }

    pub fn heal(&self) -> Result<()> {
        let table = self.table();
        self.nft(&format!("flush set bridge {table} pairs\nflush set bridge {table} alone"))
    }

    fn nft(&self, rules: &str) -> Result<()> {
        run(tool("nft").arg(rules)).map(drop)
    }

    /// Removes whatever is there of the bridge, its ports and the table.
    pub fn remove(&self) -> Result<()> {
        let bridge = self.bridge();
        let device = Path::new("/sys/class/net").join(&bridge);
        if device.exists() {
            let ports = || -> Vec<String> {
                let entries = std::fs::read_dir(device.join("brif")).into_iter().flatten();
                entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
            };
            wait(PORTS_GONE_DEADLINE, || Ok(ports().is_empty().then_some(())))?;
            for port in ports() {
                // May vanish by itself at this very moment; the bridge's removal tells.
                let _ = run(tool("ip").args(["link", "delete", &port]));
            }
            run(tool("ip").args(["link", "delete", &bridge]))?;
        }
        let tables = run(tool("nft").args(["list", "tables", "bridge"]))?;
        let table = format!("table bridge {}", self.table());
        if tables.lines().any(|line| line == table) {
            self.nft(&format!("delete {table}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_addresses_of_their_own_and_never_leave_the_subnet() {
        let network = Network { subnet: 9 };
        assert_eq!(network.host(0).unwrap(), Ipv4Addr::new(10, 77, 9, 11));
        assert_eq!(network.host(199).unwrap(), Ipv4Addr::new(10, 77, 9, 210));
        assert!(network.host(200).is_err());
        assert!(network.bridge().len() <= 15);
    }
}
