//! Calls that may wait for a disk.
//!
//! The agent's tasks share two threads. Who waited on one of them for a disk that hangs would keep it
//! from all others.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does what may wait for a disk, and lets another thread go on with the other tasks meanwhile. Who
/// calls it waits, so that what is done one after the other stays so. A runtime of one thread, as in
/// tests, has nobody to hand them to.
pub fn aside<T>(act: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        Ok(_) | Err(_) => act(),
    }
}
