//! Images in our own containerd.

use std::collections::BTreeSet;
use std::time::Duration;

use wharf_core::install::components::containerd::SOCKET;
use wharf_core::install::host::{HostFailure, Image};

use super::failure::{Telling, failure, succeeded, tail};
use super::root::{Root, wait_until};

/// The unit that images wait for.
pub const CONTAINERD_UNIT: &str = "wharf-containerd.service";
const CTR: &str = "/opt/wharf/bin/ctr";
/// The namespace in which kubelet looks for images.
const NAMESPACE: &str = "k8s.io";

/// containerd answers soon after its start.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// For one image, with its layers unpacked, on a slow disk.
const IMPORT_DEADLINE: Duration = Duration::from_secs(300);

/// The names of all images that are there.
pub fn present(root: &Root) -> Result<BTreeSet<String>, HostFailure> {
    let step = "list images";
    let mut last = None;
    let list = wait_until(ANSWER_DEADLINE, || {
        let ran = ctr(root, &["images", "ls", "-q"], ANSWER_DEADLINE);
        match ran {
            Ok(ran) if ran.success => Ok(Some(ran.stdout)),
            Ok(ran) => {
                last = Some(ran.stderr);
                Ok(None)
            }
            Err(error) => Err(failure(step, error.to_string())),
        }
    })?;
    let list = list.ok_or_else(|| {
        failure(step, "containerd does not answer")
            .detail(tail(&last.unwrap_or_default()))
            .hint(format!("see `journalctl -u {CONTAINERD_UNIT}` on the host"))
    })?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// Imports the image's archive, which lies at `path`.
pub fn import(root: &Root, image: &Image, path: &str) -> Result<(), HostFailure> {
    let step = format!("import image {}", image.name);
    // Layers are unpacked by the first container that needs them, if one ever does here.
    let import = ["images", "import", "--local", "--no-unpack", path];
    succeeded(&step, ctr(root, &import, IMPORT_DEADLINE)).map(drop)
}

fn ctr(root: &Root, arguments: &[&str], deadline: Duration) -> std::io::Result<super::root::Ran> {
    let mut all = vec!["--address", SOCKET, "--namespace", NAMESPACE];
    all.extend(arguments);
    root.run(CTR, &all, deadline)
}
