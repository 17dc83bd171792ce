//! What kubelet asks for, checked before anything is looked up.

mod csi;

use std::{collections::BTreeMap, fmt};

use super::{
    options::{BadOption, Flag, Options},
    provision::FrontEnd,
};
use crate::{drain::PodRef, words::nearest};

pub use csi::{Publish, Usage, parse_csi_dir, parse_handle, parse_publish};

/// A mount that kubelet asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// The PV's name.
    pub volume: String,
    pub pod: PodRef,
    pub mount_dir: String,
    pub read_only: bool,
    /// Empty: as the storage class says.
    pub fs_type: String,
    /// With commas, see [`Options`](super::options::Options).
    pub mount_options: String,
    pub fs_group: Option<u32>,
    pub storage_cluster: String,
    pub image: String,
}

/// A pod's directory for one volume, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountDir {
    pub front_end: FrontEnd,
    pub pod_uid: String,
    pub volume: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadRequest {
    MountDir {
        dir: String,
        fault: DirFault,
    },
    Missing {
        key: &'static str,
    },
    Unknown {
        key: String,
        nearest: Option<String>,
    },
    Value {
        key: &'static str,
        value: String,
    },
    /// The options and the directory name two different things.
    Differs {
        what: &'static str,
        by_options: String,
        by_dir: String,
    },
    /// A CSI call lacks something that it must have.
    Field(&'static str),
    Handle(String),
    /// Of the PV.
    Attribute(String),
    /// A device without a file system is asked for.
    Block,
    /// A CSI call does not say for which pod it is.
    NoPodInfo {
        key: String,
    },
    Option(BadOption),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirFault {
    TooLong,
    NotAbsolute,
    /// Empty, `.` or `..` between two slashes, or a slash at the end.
    NotPlain,
    /// Not `<root>/pods/<uid>/volumes/<driver>/<volume>`, nor what CSI has for it.
    Elsewhere,
}

/// Longer than any path that the kernel takes.
const PATH_MAX: usize = 4096;
/// What a PV calls our Flexvolume driver.
pub const FLEX_DRIVER: &str = "wharf.dev/volume";
/// What a PV calls our CSI driver.
pub const CSI_DRIVER: &str = "volume.wharf.dev";
/// The directory that kubelet makes for our Flexvolume driver.
pub const DRIVER_DIR: &str = "wharf.dev~volume";
/// The one that it makes for all CSI drivers.
const CSI_DIR: &str = "kubernetes.io~csi";
/// The options that a PV of ours may carry.
const OPTIONS: [&str; 3] = ["storageCluster", "image", "mountOptions"];
/// What kubelet adds. Later versions add more, which is passed over.
const KUBELET: &str = "kubernetes.io/";

/// Takes the directory apart that kubelet wants the volume in. `root` is kubelet's own directory.
///
/// Nothing is put right: kubelet writes plain paths, and what is not one does not come from it.
pub fn parse_mount_dir(root: &str, dir: &str) -> Result<MountDir, DirFault> {
    if dir.len() > PATH_MAX {
        return Err(DirFault::TooLong);
    }
    let Some(relative) = dir.strip_prefix('/') else { return Err(DirFault::NotAbsolute) };
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if !relative.split('/').all(is_plain) {
        return Err(DirFault::NotPlain);
    }
    let root = root.trim_end_matches('/');
    let inside = dir.strip_prefix(root).and_then(|rest| rest.strip_prefix("/pods/"));
    let parts: Vec<&str> = inside.unwrap_or_default().split('/').collect();
    let (front_end, pod_uid, volume) = match parts.as_slice() {
        [pod_uid, "volumes", DRIVER_DIR, volume] => (FrontEnd::Flex, pod_uid, volume),
        // kubelet calls the last one `mount`; the protocol leaves the name to the caller.
        [pod_uid, "volumes", CSI_DIR, volume, _] => (FrontEnd::Csi, pod_uid, volume),
        _ => return Err(DirFault::Elsewhere),
    };
    Ok(MountDir { front_end, pod_uid: (*pod_uid).to_owned(), volume: (*volume).to_owned() })
}

/// The same for a call of which it is known where it comes from.
fn parse_dir_of(front_end: FrontEnd, root: &str, dir: &str) -> Result<MountDir, BadRequest> {
    let bad = |fault| BadRequest::MountDir { dir: dir.chars().take(200).collect(), fault };
    let place = parse_mount_dir(root, dir).map_err(bad)?;
    if place.front_end == front_end { Ok(place) } else { Err(bad(DirFault::Elsewhere)) }
}

/// Reads a mount call of the Flexvolume protocol.
pub fn parse_mount(
    root: &str,
    dir: &str,
    options: &BTreeMap<String, String>,
) -> Result<Request, BadRequest> {
    let place = parse_dir_of(FrontEnd::Flex, root, dir)?;
    check_options(options)?;
    let get = |keys: &[&str]| keys.iter().find_map(|key| options.get(*key)).cloned();
    let need = |keys: &[&'static str]| {
        let missing = BadRequest::Missing { key: keys.first().copied().unwrap_or_default() };
        get(keys).filter(|value| !value.is_empty()).ok_or(missing)
    };
    // kubelet has none for Flexvolume: the PV carries them to us.
    let mount_options = get(&["mountOptions"]).unwrap_or_default();
    let parsed = Options::parse(&mount_options).map_err(BadRequest::Option)?;
    let request = Request {
        volume: need(&["kubernetes.io/pvOrVolumeName"])?,
        pod: PodRef {
            namespace: need(&["kubernetes.io/pod.namespace"])?,
            name: need(&["kubernetes.io/pod.name"])?,
            uid: need(&["kubernetes.io/pod.uid", "kubernetes.io/pod.UID"])?,
        },
        mount_dir: dir.to_owned(),
        read_only: read_only(&need(&["kubernetes.io/readwrite"])?)? || parsed.has(Flag::ReadOnly),
        fs_type: get(&["kubernetes.io/fsType"]).unwrap_or_default(),
        mount_options,
        fs_group: get(&["kubernetes.io/mounterArgs.FsGroup", "kubernetes.io/fsGroup"])
            .filter(|group| !group.is_empty())
            .map(fs_group)
            .transpose()?,
        storage_cluster: need(&["storageCluster"])?,
        image: need(&["image"])?,
    };
    same_as_dir(&request, &place)?;
    Ok(request)
}

/// What the call says of volume and pod is what the directory says.
fn same_as_dir(request: &Request, place: &MountDir) -> Result<(), BadRequest> {
    let differs = |what, by_options: &str, by_dir: &str| {
        let (by_options, by_dir) = (by_options.to_owned(), by_dir.to_owned());
        Err(BadRequest::Differs { what, by_options, by_dir })
    };
    if request.volume != place.volume {
        return differs("volume", &request.volume, &place.volume);
    }
    if request.pod.uid != place.pod_uid {
        return differs("pod", &request.pod.uid, &place.pod_uid);
    }
    Ok(())
}

fn check_options(options: &BTreeMap<String, String>) -> Result<(), BadRequest> {
    let is_known = |key: &str| key.starts_with(KUBELET) || OPTIONS.contains(&key);
    match options.keys().find(|key| !is_known(key)) {
        None => Ok(()),
        Some(key) => Err(BadRequest::Unknown {
            key: key.chars().take(100).collect(),
            nearest: nearest(key, OPTIONS.into_iter()),
        }),
    }
}

fn read_only(value: &str) -> Result<bool, BadRequest> {
    match value.to_ascii_lowercase().as_str() {
        "ro" => Ok(true),
        "rw" => Ok(false),
        _ => Err(BadRequest::Value { key: "kubernetes.io/readwrite", value: value.to_owned() }),
    }
}

fn fs_group(value: String) -> Result<u32, BadRequest> {
    value.parse().map_err(|_| BadRequest::Value { key: "kubernetes.io/fsGroup", value })
}

impl fmt::Display for DirFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DirFault::TooLong => "is too long",
            DirFault::NotAbsolute => "is not absolute",
            DirFault::NotPlain => "has an empty, `.` or `..` part",
            DirFault::Elsewhere => {
                "is not a directory of a pod for a volume of ours under kubelet's root"
            }
        })
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRequest::MountDir { dir, fault } => write!(f, "the mount directory {dir:?} {fault}"),
            BadRequest::Missing { key } => write!(f, "the option {key} is missing"),
            BadRequest::Unknown { key, nearest: None } => {
                write!(
                    f,
                    "the volume has an unknown option {key:?}; there are {}",
                    OPTIONS.join(", ")
                )
            }
            BadRequest::Unknown { key, nearest: Some(near) } => {
                write!(f, "the volume has an unknown option {key:?}; is {near} meant?")
            }
            BadRequest::Value { key, value } => {
                write!(f, "the option {key} cannot be {value:?}")
            }
            BadRequest::Differs { what, by_options, by_dir } => write!(
                f,
                "the {what} is {by_options} by the options and {by_dir} by the mount directory"
            ),
            BadRequest::Field(name) => write!(f, "the call has no {name}"),
            BadRequest::Handle(handle) => {
                write!(f, "the volume handle {handle:?} is not STORAGE_CLUSTER/IMAGE")
            }
            BadRequest::Attribute(key) => {
                write!(f, "the volume has an unknown attribute {key:?}; its handle says all")
            }
            BadRequest::Block => {
                f.write_str("a volume without a file system (volumeMode: Block) is not supported")
            }
            BadRequest::NoPodInfo { key } => write!(
                f,
                "the call does not say {key}; the CSIDriver {CSI_DRIVER} needs podInfoOnMount: true"
            ),
            BadRequest::Option(bad) => bad.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/var/lib/kubelet";
    const DIR: &str = "/var/lib/kubelet/pods/u-1/volumes/wharf.dev~volume/pvc-1";

    fn options() -> BTreeMap<String, String> {
        [
            ("kubernetes.io/pvOrVolumeName", "pvc-1"),
            ("kubernetes.io/pod.name", "db-0"),
            ("kubernetes.io/pod.namespace", "default"),
            ("kubernetes.io/pod.uid", "u-1"),
            ("kubernetes.io/readwrite", "rw"),
            ("kubernetes.io/fsType", "xfs"),
            ("kubernetes.io/mounterArgs.FsGroup", "2000"),
            ("kubernetes.io/new.thing", "1"),
            ("storageCluster", "main"),
            ("image", "pvc-1"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    #[test]
    fn a_call_of_kubelet_is_read_in_both_spellings() {
        let request = parse_mount(ROOT, DIR, &options()).unwrap();
        assert_eq!((request.pod.uid.as_str(), request.fs_group), ("u-1", Some(2000)));
        assert!(!request.read_only);
        let mut old = options();
        for (from, to) in [("pod.uid", "pod.UID"), ("mounterArgs.FsGroup", "fsGroup")] {
            let value = old.remove(&format!("{KUBELET}{from}")).unwrap();
            old.insert(format!("{KUBELET}{to}"), value);
        }
        assert_eq!(parse_mount(&format!("{ROOT}/"), DIR, &old), Ok(request));
    }

    #[test]
    fn the_volume_carries_the_mount_options_of_its_class() {
        let with = |text: &str| {
            let mut options = options();
            options.insert("mountOptions".to_owned(), text.to_owned());
            parse_mount(ROOT, DIR, &options)
        };
        let request = with("noatime,nodev").unwrap();
        assert_eq!((request.mount_options.as_str(), request.read_only), ("noatime,nodev", false));
        assert!(with("ro").unwrap().read_only);
        assert!(matches!(with("remount"), Err(BadRequest::Option(BadOption::Forbidden(_)))));
    }

    #[test]
    fn directories_that_kubelet_does_not_make_are_refused() {
        let long = format!("/{}", "a".repeat(PATH_MAX));
        for (dir, fault) in [
            ("", DirFault::NotAbsolute),
            ("pods/u-1", DirFault::NotAbsolute),
            ("/", DirFault::NotPlain),
            ("/var/lib/kubelet/pods/u-1/volumes/wharf.dev~volume/pvc-1/", DirFault::NotPlain),
            ("/var/lib/kubelet//pods/u-1/volumes/wharf.dev~volume/pvc-1", DirFault::NotPlain),
            ("/var/lib/kubelet/pods/u-1/volumes/wharf.dev~volume/..", DirFault::NotPlain),
            ("/var/lib/kubelet/../kubelet/pods/u-1/volumes/wharf.dev~volume/p", DirFault::NotPlain),
            ("/var/lib/other/pods/u-1/volumes/wharf.dev~volume/pvc-1", DirFault::Elsewhere),
            ("/var/lib/kubelet2/pods/u-1/volumes/wharf.dev~volume/pvc-1", DirFault::Elsewhere),
            ("/var/lib/kubelet/pods/u-1/volumes/other~volume/pvc-1", DirFault::Elsewhere),
            ("/var/lib/kubelet/pods/u-1/volumes/wharf.dev~volume/a/b", DirFault::Elsewhere),
            ("/var/lib/kubelet/pods/u-1/volumes", DirFault::Elsewhere),
            ("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1", DirFault::Elsewhere),
            ("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/a/b", DirFault::Elsewhere),
            ("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/..", DirFault::NotPlain),
            (long.as_str(), DirFault::TooLong),
        ] {
            assert_eq!(parse_mount_dir(ROOT, dir), Err(fault), "{dir}");
        }
    }

    #[test]
    fn a_directory_says_pod_volume_and_front_end() {
        for (dir, front_end) in [
            ("/var/lib/kubelet/pods/u-1/volumes/wharf.dev~volume/pvc-1", FrontEnd::Flex),
            ("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount", FrontEnd::Csi),
        ] {
            let (pod_uid, volume) = ("u-1".to_owned(), "pvc-1".to_owned());
            let expected = MountDir { front_end, pod_uid, volume };
            assert_eq!(parse_mount_dir(ROOT, dir), Ok(expected), "{dir}");
        }
        let csi = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount";
        let refused = parse_mount(ROOT, csi, &options()).unwrap_err();
        let (dir, fault) = (csi.to_owned(), DirFault::Elsewhere);
        assert_eq!(refused, BadRequest::MountDir { dir, fault });
    }

    #[test]
    fn options_that_are_missing_unknown_or_wrong_are_named() {
        let with = |key: &str, value: Option<&str>| {
            let mut options = options();
            options.remove(key);
            options.extend(value.map(|value| (key.to_owned(), value.to_owned())));
            parse_mount(ROOT, DIR, &options).unwrap_err().to_string()
        };
        for (key, value, sentence) in [
            ("image", None, "the option image is missing"),
            ("image", Some(""), "the option image is missing"),
            ("imagge", Some("x"), "the volume has an unknown option \"imagge\"; is image meant?"),
            (
                "colour",
                Some("x"),
                "the volume has an unknown option \"colour\"; there are storageCluster, image, \
                 mountOptions",
            ),
            (
                "kubernetes.io/readwrite",
                Some("maybe"),
                "the option kubernetes.io/readwrite cannot be \"maybe\"",
            ),
            (
                "kubernetes.io/mounterArgs.FsGroup",
                Some("-1"),
                "the option kubernetes.io/fsGroup cannot be \"-1\"",
            ),
            (
                "kubernetes.io/pod.uid",
                Some("u-2"),
                "the pod is u-2 by the options and u-1 by the mount directory",
            ),
            (
                "kubernetes.io/pvOrVolumeName",
                Some("data"),
                "the volume is data by the options and pvc-1 by the mount directory",
            ),
        ] {
            assert_eq!(with(key, value), sentence);
        }
    }
}
