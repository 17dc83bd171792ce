//! A server whose engine writes all the time about the clusters that it once owned, and does not
//! let go. `tests/ownership.rs` runs several of them on one etcd, stops and kills them, and checks
//! that the store refuses what a former owner writes.
//!
//! Usage: `stubborn_owner DATA_DIR STORE KEY_FILE`. It prints `ready ID`, and the first time that
//! a write is refused, `fenced CLUSTER EPOCH`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::record::Kind;
use wharf_server::{
    Config,
    config::Overrides,
    engine::{Fenced, FencedError},
};

/// One write of an owner, with the epoch under which it was made.
#[derive(Serialize, Deserialize)]
struct Pulse {
    server: String,
    epoch: u64,
}

impl Kind for Pulse {
    const KIND: &'static str = "pulse";
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [data_dir, store, key_file] = arguments.as_slice() else {
        panic!("usage: stubborn_owner DATA_DIR STORE KEY_FILE");
    };
    let flags = Overrides {
        data_dir: Some(data_dir.into()),
        listen: Some("127.0.0.1:0".to_owned()),
        http: true,
        store: Some(store.clone()),
        key_file: Some(key_file.into()),
        ..Overrides::default()
    };
    let config = Config::load(&flags, []).unwrap();
    let running = wharf_server::start(config).await.unwrap();
    let app = running.app.clone();
    println!("ready {}", app.me);
    let mut claims: BTreeMap<(String, u64), Fenced> = BTreeMap::new();
    let mut told = BTreeSet::new();
    loop {
        for (cluster, epoch) in app.owned.borrow().clone() {
            claims
                .entry((cluster.clone(), epoch))
                .or_insert_with(|| Fenced::new(app.store.clone(), app.me.clone(), cluster, epoch));
        }
        for ((cluster, epoch), fenced) in &claims {
            let pulse = Pulse { server: app.me.to_string(), epoch: *epoch };
            let written = fenced
                .commit(|_| wharf_store::Txn::new().write(cluster, &pulse, Timestamp::now(), None))
                .await;
            match written {
                Ok(_) => {}
                Err(FencedError::Fenced { .. }) => {
                    if told.insert((cluster.clone(), *epoch)) {
                        println!("fenced {cluster} {epoch}");
                    }
                }
                Err(error) => eprintln!("{}: {cluster} at {epoch}: {error:?}", app.me),
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
