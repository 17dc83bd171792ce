//! Where the store finds a test's etcd.
#![allow(dead_code, reason = "each test binary uses its part")]

use wharf_store::{EtcdOptions, Store, StoreLocation, StoreOptions};
pub use wharf_testbed::etcd::Etcd;

pub fn location(etcd: &Etcd) -> StoreLocation {
    location_with(etcd, EtcdOptions::default())
}

pub fn location_with(etcd: &Etcd, options: EtcdOptions) -> StoreLocation {
    StoreLocation::Etcd { endpoints: vec![etcd.address()], options }
}

pub fn cluster_location(members: &[Etcd]) -> StoreLocation {
    let endpoints = members.iter().map(Etcd::address).collect();
    StoreLocation::Etcd { endpoints, options: EtcdOptions::default() }
}

pub async fn open(location: StoreLocation) -> Store {
    Store::open(&StoreOptions { location }).await.unwrap()
}

/// An address where nobody listens.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", wharf_testbed::process::free_port().unwrap())
}
