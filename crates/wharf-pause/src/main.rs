//! The first process of every pod: it holds the pod's namespaces open and does nothing else.
//!
//! It ends when it is asked to, and it collects the dead: where the containers of a pod share one
//! process namespace, it is their init. It becomes the image `wharf.dev/pause`; a change here takes
//! effect when the recipe of `pause` in `wharf_bundle::catalogue` is raised.
//!
//! **Invariant:** it needs no file of its image, no memory to speak of and no processor time: there
//! is one in every pod.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{WaitOptions, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

fn main() -> io::Result<()> {
    let asked_to_end = Arc::new(AtomicBool::new(false));
    let (mut woken, wake) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        // Before the pipe: whoever is woken must find the flag.
        flag::register(signal, asked_to_end.clone())?;
    }
    for signal in [SIGCHLD, SIGINT, SIGTERM] {
        pipe::register(signal, wake.try_clone()?)?;
    }
    while !asked_to_end.load(Ordering::SeqCst) {
        collect_the_dead();
        // Several signals may have been written; one look at the world serves them all.
        match woken.read(&mut [0; 64]) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// One signal may stand for several dead processes. An error means that there is no child at all.
fn collect_the_dead() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
