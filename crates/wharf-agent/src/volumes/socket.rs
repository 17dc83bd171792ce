//! The socket to which the driver brings kubelet's calls, and the driver itself.
//!
//! The agent listens first and installs the driver then, so that no call finds nobody. It does not wait
//! for kubelet to find the driver: kubelet looks only when a pod needs it. When it did is a condition
//! in the agent's health.

use std::{
    fs, io,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{info, warn};
use wharf_core::{
    volume::request::{DRIVER_DIR, parse_mount},
    words::chain,
};
use wharf_flex::{
    SOCKET,
    frame::{self, FrameError, HEADER, Reply, Request, Status},
};

use super::{Shared, Volumes, calls::MOST_CONNECTIONS, driver, work::VolumeError};
use crate::{
    device,
    health::Reporter,
    tasks::{Context, Ended},
};

/// A driver sends its call at once.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// Somebody may have removed the driver, or started a kubelet that looks elsewhere.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const DRIVER: &str = "the volume driver";

pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut running = JoinSet::new();
    loop {
        let dir = volumes.places.plugin_dir().join(DRIVER_DIR);
        fs::create_dir_all(&dir)?;
        let listener = listen(&dir, SOCKET)?;
        info!(dir = %dir.display(), "listening for calls of the volume driver");
        loop {
            match driver::ensure(&volumes.places, &dir) {
                Ok(()) => reporter.clear(DRIVER),
                Err(error) => reporter.fault(DRIVER, &chain(&error)),
            }
            reporter.ok();
            let accept = accept(&listener, &volumes, &reporter, &connections, &mut running);
            tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = sleep(LOOK_EVERY) => {}
                failed = accept => failed?,
            }
            if volumes.places.plugin_dir().join(DRIVER_DIR) != dir {
                break;
            }
        }
    }
}

/// Takes calls until the socket fails.
async fn accept(
    listener: &UnixListener,
    volumes: &Arc<Volumes>,
    reporter: &Reporter,
    connections: &Arc<Semaphore>,
    running: &mut JoinSet<()>,
) -> io::Result<()> {
    loop {
        while running.try_join_next().is_some() {}
        let Ok(permit) = connections.clone().acquire_owned().await else { return Ok(()) };
        let (stream, _) = listener.accept().await?;
        let (volumes, reporter) = (volumes.clone(), reporter.clone());
        running.spawn(async move {
            serve(stream, &volumes, &reporter).await;
            drop(permit);
        });
    }
}

/// Listens in a directory whose path may be longer than the kernel takes for a socket.
pub fn listen(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let opened = fs::File::open(dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()));
    match fs::remove_file(dir.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&short)?;
    // Whoever connected before this is known by his credentials.
    fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn serve(mut stream: UnixStream, volumes: &Volumes, reporter: &Reporter) {
    let reply = match timeout(CALL_WITHIN, receive(&mut stream)).await {
        Ok(Ok(request)) => answer(request, volumes, reporter).await,
        Ok(Err(error)) => failure(error.to_string()),
        Err(_) => failure("the call did not come within 5 s".to_owned()),
    };
    let Ok(bytes) = frame::encode(&reply) else { return };
    // A driver that was killed does not listen any more.
    let _gone = timeout(CALL_WITHIN, stream.write_all(&bytes)).await;
}

async fn receive(stream: &mut UnixStream) -> Result<Request, FrameError> {
    let peer = stream.peer_cred().map_err(FrameError::Io)?;
    if peer.uid() != 0 {
        return Err(FrameError::Io(io::ErrorKind::PermissionDenied.into()));
    }
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).await.map_err(FrameError::Io)?;
    let mut body = vec![0; frame::body_length(header)?];
    stream.read_exact(&mut body).await.map_err(FrameError::Io)?;
    frame::decode(&body)
}

async fn answer(request: Request, volumes: &Volumes, reporter: &Reporter) -> Reply {
    match request {
        Request::Init { version } => {
            info!(version, "kubelet has found the volume driver");
            reporter.condition("driver", &format!("kubelet found version {version}"));
            Reply { status: Status::Success, message: String::new() }
        }
        Request::Mount { dir, options } => {
            let root = volumes.places.kubelet_root();
            let parsed = parse_mount(&root.to_string_lossy(), &dir, &options);
            let done = match parsed {
                Ok(request) => volumes.mount(request).await,
                Err(bad) => Err(VolumeError::Bad(bad)),
            };
            reply("mount", &dir, done)
        }
        Request::Unmount { dir } => {
            let done = volumes.unmount(&dir).await;
            reply("unmount", &dir, done)
        }
    }
}

fn reply(call: &str, dir: &str, done: Result<(), VolumeError>) -> Reply {
    match done {
        Ok(()) => Reply { status: Status::Success, message: String::new() },
        Err(error) => {
            let reason = chain(&error);
            warn!(call, dir, reason, "a call of kubelet failed");
            failure(reason)
        }
    }
}

fn failure(message: String) -> Reply {
    Reply { status: Status::Failure, message }
}
