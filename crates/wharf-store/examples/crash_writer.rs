//! Writes into a store until it is killed; `tests/crash.rs` kills it.
//!
//! Usage: `crash_writer DATA_DIR ROUND`. Eight writers commit transactions of three keys each, all
//! below `w/ROUND/`, and print `ack ID;` for each one that the store acknowledged.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{io::Write, path::PathBuf};

use wharf_store::{Compare, Outcome, Store, StoreLocation, StoreOptions, Txn};

const WRITERS: usize = 8;
const PARTS: [&str; 3] = ["a", "b", "c"];

#[tokio::main(worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [data_dir, round] = arguments.as_slice() else {
        panic!("usage: crash_writer DATA_DIR ROUND");
    };
    let location = StoreLocation::Embedded { data_dir: PathBuf::from(data_dir) };
    let store = Store::open(&StoreOptions { location }).await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write_for_ever(store.clone(), format!("w/{round}/{writer}"))))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn write_for_ever(store: Store, prefix: String) {
    for i in 0_u64.. {
        let id = format!("{prefix}/{i:06}");
        let value = vec![b'x'; rand::random_range(0..2000)];
        let txn = PARTS.iter().fold(Txn::new(), |txn, part| {
            let key = format!("{id}/{part}");
            txn.when(Compare::Absent(key.clone())).put(key, value.clone())
        });
        let outcome = store.commit(txn).await.unwrap();
        assert!(matches!(outcome, Outcome::Committed(_)));
        // One write call, so that the line is in the pipe whole or not at all.
        std::io::stdout().write_all(format!("ack {id};\n").as_bytes()).unwrap();
    }
}
