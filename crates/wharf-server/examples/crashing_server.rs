//! A server that is killed as by a power cut right after a number of writes about repairs.
//! `tests/repair_crash.rs` lets it die after each write of a repair and looks at what comes of it.
//!
//! Usage: `crashing_server DATA_DIR STORE KEY_FILE PASSWORD_FILE WRITES`. It prints `ready ADDRESS ID`.
//! With 0 writes it lives on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::process::{Signal, getpid, kill_process};
use wharf_server::{Config, config::Overrides};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [data_dir, store, key_file, password_file, writes] = arguments.as_slice() else {
        panic!("usage: crashing_server DATA_DIR STORE KEY_FILE PASSWORD_FILE WRITES");
    };
    let mut left: usize = writes.parse().unwrap();
    let flags = Overrides {
        data_dir: Some(data_dir.into()),
        listen: Some("127.0.0.1:0".to_owned()),
        http: true,
        store: Some(store.clone()),
        key_file: Some(key_file.into()),
        admin_password_file: Some(password_file.into()),
        ..Overrides::default()
    };
    let running = wharf_server::start(Config::load(&flags, []).unwrap()).await.unwrap();
    let store = running.app.store.clone();
    let mut watch = store.watch("repair/", store.revision().await.unwrap()).await.unwrap();
    println!("ready {} {}", running.address, running.app.me);
    loop {
        for change in watch.next().await.unwrap() {
            if change.key().contains("/entries/") && left > 0 {
                left -= 1;
                if left == 0 {
                    kill_process(getpid(), Signal::KILL).unwrap();
                }
            }
        }
    }
}
