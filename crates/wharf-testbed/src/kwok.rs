//! Nodes and pods that live in the API alone: kwok says of them what kubelets would.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::apiserver::find;
use crate::process::Process;

/// The annotation of the nodes that it plays, with the value `fake`.
pub const FAKE: &str = "kwok.x-k8s.io/node";

/// Keeps the nodes that carry [`FAKE`] ready and makes their pods run and end at once. Dropping the
/// process ends that.
pub fn start(kubeconfig: &Path) -> Result<Process> {
    let mut command = Command::new(find("kwok")?);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--config").arg(find("kwok-stages.yaml")?);
    command.arg("--manage-all-nodes=false");
    command.arg(format!("--manage-nodes-with-annotation-selector={FAKE}=fake"));
    Process::spawn(command)
}
