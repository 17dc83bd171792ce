//! What a mount call of CSI asks for.

use std::collections::BTreeMap;

use super::{BadRequest, MountDir, Request, parse_dir_of, same_as_dir};
use crate::{
    drain::PodRef,
    volume::{
        options::{Flag, Options},
        provision::FrontEnd,
    },
};

/// NodePublishVolume, as far as it counts here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Publish {
    pub volume_id: String,
    pub target_path: String,
    pub read_only: bool,
    pub usage: Usage,
    pub context: BTreeMap<String, String>,
}

/// As what the volume is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Usage {
    /// The call does not say so.
    #[default]
    Missing,
    Block,
    Mount {
        fs_type: String,
        options: Vec<String>,
        /// The access mode has no writers. Which modes there are the PV says.
        only_reads: bool,
    },
}

/// What kubelet adds to the attributes of a PV.
const KUBELET: &str = "csi.storage.k8s.io/";
/// Names that belong to Kubernetes, whoever wrote them.
const KUBERNETES: [&str; 2] = [".k8s.io", "kubernetes.io"];

/// Storage cluster and image of a volume handle.
pub fn parse_handle(handle: &str) -> Option<(&str, &str)> {
    let (cluster, image) = handle.split_once('/')?;
    let is_plain = !cluster.is_empty() && !image.is_empty() && !image.contains('/');
    is_plain.then_some((cluster, image))
}

/// Reads the directory of any call of CSI about a volume; `name` is what the call names it.
pub fn parse_csi_dir(
    root: &str,
    volume_id: &str,
    name: &'static str,
    dir: &str,
) -> Result<MountDir, BadRequest> {
    check_fields([("volume_id", volume_id), (name, dir)])?;
    parse_dir_of(FrontEnd::Csi, root, dir)
}

fn check_fields(fields: [(&'static str, &str); 2]) -> Result<(), BadRequest> {
    let empty = fields.into_iter().find(|(_, value)| value.is_empty());
    empty.map_or(Ok(()), |(name, _)| Err(BadRequest::Field(name)))
}

/// Reads a mount call of CSI.
pub fn parse_publish(root: &str, call: &Publish) -> Result<Request, BadRequest> {
    check_fields([("volume_id", &call.volume_id), ("target_path", &call.target_path)])?;
    let (fs_type, options, only_reads) = match &call.usage {
        Usage::Missing => return Err(BadRequest::Field("volume_capability")),
        Usage::Block => return Err(BadRequest::Block),
        Usage::Mount { fs_type, options, only_reads } => (fs_type, options, only_reads),
    };
    let place = parse_dir_of(FrontEnd::Csi, root, &call.target_path)?;
    let shown = || call.volume_id.chars().take(200).collect();
    let (cluster, image) =
        parse_handle(&call.volume_id).ok_or_else(|| BadRequest::Handle(shown()))?;
    check_attributes(&call.context)?;
    let pod_info = |name: &str| {
        let key = format!("{KUBELET}pod.{name}");
        let value = call.context.get(&key).filter(|value| !value.is_empty());
        value.cloned().ok_or(BadRequest::NoPodInfo { key })
    };
    let mount_options = options.join(",");
    let options = Options::parse(&mount_options).map_err(BadRequest::Option)?;
    let request = Request {
        volume: place.volume.clone(),
        pod: PodRef {
            namespace: pod_info("namespace")?,
            name: pod_info("name")?,
            uid: pod_info("uid")?,
        },
        mount_dir: call.target_path.clone(),
        read_only: call.read_only || *only_reads || options.has(Flag::ReadOnly),
        fs_type: fs_type.clone(),
        mount_options,
        // kubelet sets the group itself.
        fs_group: None,
        storage_cluster: cluster.to_owned(),
        image: image.to_owned(),
    };
    same_as_dir(&request, &place)?;
    Ok(request)
}

/// Our PVs have no attributes of their own: storage cluster and image are in the handle.
fn check_attributes(context: &BTreeMap<String, String>) -> Result<(), BadRequest> {
    let is_known = |key: &str| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        KUBERNETES.iter().any(|name| domain.ends_with(name))
    };
    match context.keys().find(|key| !is_known(key)) {
        None => Ok(()),
        Some(key) => Err(BadRequest::Attribute(key.chars().take(100).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::request::DirFault;

    const ROOT: &str = "/var/lib/kubelet";
    const DIR: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount";

    fn call() -> Publish {
        let context = [
            ("csi.storage.k8s.io/pod.name", "db-0"),
            ("csi.storage.k8s.io/pod.namespace", "default"),
            ("csi.storage.k8s.io/pod.uid", "u-1"),
            ("csi.storage.k8s.io/ephemeral", "false"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ];
        Publish {
            volume_id: "main/pvc-1".to_owned(),
            target_path: DIR.to_owned(),
            read_only: false,
            usage: mount("xfs", &[], false),
            context: context.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        }
    }

    fn mount(fs_type: &str, options: &[&str], only_reads: bool) -> Usage {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Usage::Mount { fs_type: fs_type.to_owned(), options, only_reads }
    }

    #[test]
    fn a_call_of_kubelet_is_read() {
        let request = parse_publish(ROOT, &call()).unwrap();
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: "db-0".to_owned(),
            uid: "u-1".to_owned(),
        };
        let expected = Request {
            volume: "pvc-1".to_owned(),
            pod,
            mount_dir: DIR.to_owned(),
            fs_type: "xfs".to_owned(),
            storage_cluster: "main".to_owned(),
            image: "pvc-1".to_owned(),
            ..Request::default()
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn a_volume_is_read_only_by_the_call_its_mode_or_its_options() {
        for (read_only, usage, expected) in [
            (false, mount("", &[], false), (false, "")),
            (true, mount("", &[], false), (true, "")),
            (false, mount("", &[], true), (true, "")),
            (false, mount("", &["noatime", "ro"], false), (true, "noatime,ro")),
            (false, mount("", &["ro", "rw"], false), (false, "ro,rw")),
        ] {
            let request = parse_publish(ROOT, &Publish { read_only, usage, ..call() }).unwrap();
            assert_eq!((request.read_only, request.mount_options.as_str()), expected);
        }
    }

    #[test]
    fn calls_that_lack_something_or_contradict_themselves_are_refused() {
        let without_pod = || {
            let mut context = call().context;
            context.remove("csi.storage.k8s.io/pod.name");
            context
        };
        let other_pod = || {
            let mut context = call().context;
            context.insert("csi.storage.k8s.io/pod.uid".to_owned(), "u-2".to_owned());
            context
        };
        let attribute = || BTreeMap::from([("image".to_owned(), "x".to_owned())]);
        let flex = "/var/lib/kubelet/pods/u-1/volumes/wharf.dev~volume/pvc-1";
        for (call, sentence) in [
            (Publish::default(), "the call has no volume_id"),
            (Publish { target_path: String::new(), ..call() }, "the call has no target_path"),
            (Publish { usage: Usage::Missing, ..call() }, "the call has no volume_capability"),
            (
                Publish { usage: Usage::Block, ..call() },
                "a volume without a file system (volumeMode: Block) is not supported",
            ),
            (
                Publish { volume_id: "pvc-1".to_owned(), ..call() },
                "the volume handle \"pvc-1\" is not STORAGE_CLUSTER/IMAGE",
            ),
            (
                Publish { context: without_pod(), ..call() },
                "the call does not say csi.storage.k8s.io/pod.name; the CSIDriver \
                 volume.wharf.dev needs podInfoOnMount: true",
            ),
            (
                Publish { context: other_pod(), ..call() },
                "the pod is u-2 by the options and u-1 by the mount directory",
            ),
            (
                Publish { context: attribute(), ..call() },
                "the volume has an unknown attribute \"image\"; its handle says all",
            ),
            (
                Publish { usage: mount("", &["bind"], false), ..call() },
                "the mount option bind is not allowed for volumes",
            ),
        ] {
            assert_eq!(parse_publish(ROOT, &call).unwrap_err().to_string(), sentence);
        }
        for dir in [flex, "/tmp/target", "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv"] {
            let refused = parse_publish(ROOT, &Publish { target_path: dir.to_owned(), ..call() });
            let (dir, fault) = (dir.to_owned(), DirFault::Elsewhere);
            assert_eq!(refused, Err(BadRequest::MountDir { dir, fault }));
        }
    }

    #[test]
    fn a_call_about_a_mounted_volume_needs_its_handle_and_its_directory() {
        let parse = |id, dir| parse_csi_dir(ROOT, id, "volume_path", dir);
        let place = parse("main/pvc-1", DIR).unwrap();
        assert_eq!((place.pod_uid.as_str(), place.volume.as_str()), ("u-1", "pvc-1"));
        assert_eq!(parse("", DIR), Err(BadRequest::Field("volume_id")));
        assert_eq!(parse("main/pvc-1", ""), Err(BadRequest::Field("volume_path")));
        let (dir, fault) = ("some/path".to_owned(), DirFault::NotAbsolute);
        assert_eq!(parse("x", "some/path"), Err(BadRequest::MountDir { dir, fault }));
    }

    #[test]
    fn a_handle_is_a_storage_cluster_and_an_image() {
        assert_eq!(parse_handle("main/pvc-1"), Some(("main", "pvc-1")));
        for bad in ["", "a", "/", "a/", "/b", "a/b/c"] {
            assert_eq!(parse_handle(bad), None, "{bad}");
        }
    }
}
