//! What our pods left in directories that other container runtimes use too.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use wharf_core::install::components::kubelet;

use super::super::root::Root;
use super::processes;

/// Where kubelets keep the logs of pods, and links to them.
pub(super) const LOGS: [&str; 2] = ["/var/log/pods", "/var/log/containers"];
/// Where libcni notes what plugins answered, one file for each network of each container.
const RESULTS: &str = "/var/lib/cni/results";
/// The name of our pod network at the beginning of such a note.
const NETWORK: &str = "wharf-";

/// How our pods are known to others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pods {
    /// The containers that hold their networks.
    pub sandboxes: BTreeSet<String>,
    pub uids: BTreeSet<String>,
}

/// What our containerd and our kubelet have noted. To be asked before their directories go.
pub(super) fn ours(root: &Root, grown: &[String]) -> Pods {
    let plugins = grown.iter().flat_map(|directory| {
        names(&root.path(directory)).map(move |plugin| format!("{directory}/{plugin}/sandboxes"))
    });
    let noted = plugins.flat_map(|directory| names(&root.path(&directory)));
    let sandboxes = noted.chain(processes::tasks(root)).collect();
    let kubelet = format!("{}/pods", kubelet::DATA);
    let uids = match grown.iter().any(|directory| directory == kubelet::DATA) {
        true => names(&root.path(&kubelet)).collect(),
        false => BTreeSet::new(),
    };
    Pods { sandboxes, uids }
}

/// Notes of libcni on our pods.
pub(super) fn results(root: &Root, pods: &Pods) -> Vec<String> {
    // `NETWORK-CONTAINER-INTERFACE`, and a network's name may hold dashes.
    let ours = |name: &String| {
        name.starts_with(NETWORK) || name.split('-').any(|word| pods.sandboxes.contains(word))
    };
    let names = names(&root.path(RESULTS)).filter(ours);
    names.map(|name| format!("{RESULTS}/{name}")).collect()
}

/// Logs of our pods, and links to them.
pub(super) fn logs(root: &Root, pods: &Pods) -> Vec<String> {
    let [logs, links] = LOGS;
    // `NAMESPACE_POD_UID`
    let is_ours = |name: &str| name.rsplit('_').next().is_some_and(|uid| pods.uids.contains(uid));
    let directories = names(&root.path(logs)).filter(|name| is_ours(name));
    let leads_to_ours = |name: &String| {
        let target = fs::read_link(root.path(&format!("{links}/{name}")));
        let below = target.ok().and_then(|target| {
            let mut below = target.strip_prefix(logs).ok()?.components();
            below.next()?.as_os_str().to_str().map(str::to_owned)
        });
        below.is_some_and(|directory| is_ours(&directory))
    };
    let linked = names(&root.path(links)).filter(leads_to_ours);
    let linked = linked.map(|name| format!("{links}/{name}"));
    linked.chain(directories.map(|name| format!("{logs}/{name}"))).collect()
}

fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| OsString::into_string(entry.file_name()).ok())
}
