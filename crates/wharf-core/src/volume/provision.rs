//! A claim that wants a volume: whether it can have one, and what has to be made.

use std::{collections::BTreeMap, fmt};

use super::{
    attach::{AccessMode, ClusterFacts},
    backend::Backend,
};
use crate::words::nearest;

/// A claim that nobody has given a volume yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub modes: Vec<AccessMode>,
    pub bytes: u64,
    /// It wants the device itself, without a file system.
    pub is_block: bool,
    /// Its class waits for a pod, and the scheduler has not chosen a node yet.
    pub waits: bool,
}

/// A storage class of ours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Class {
    pub name: String,
    pub parameters: BTreeMap<String, String>,
}

/// What has to be made for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Of the PersistentVolume and of the image: always the same for a claim, so that making it twice
    /// is making it once.
    pub name: String,
    pub storage_cluster: String,
    pub front_end: FrontEnd,
    pub fs_type: String,
    pub bytes: u64,
}

/// A volume of which it may be time that it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unclaimed {
    /// It was made for a claim, and not by hand.
    pub is_provisioned: bool,
    /// Its claim is gone.
    pub is_released: bool,
    /// Its policy is Delete.
    pub deletes_image: bool,
    /// A node has it.
    pub is_held: bool,
    /// Somebody has asked for its end: whoever did so had his reason, and we had none or were done.
    pub is_deleting: bool,
}

/// What goes of a volume that nobody claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Nothing,
    /// The storage is gone, and nobody knows of an image.
    VolumeAlone,
    ImageAndVolume,
}

/// Decides what goes of a volume. `cluster` has to be read after the volume: the claims of a storage
/// cluster go after it, so that whoever sees a claim gone by that sees it being deleted.
pub fn decide_removal(volume: &Unclaimed, cluster: Option<&ClusterFacts>) -> Removal {
    let is_over = volume.is_provisioned && volume.is_released && volume.deletes_image;
    if !is_over || volume.is_held || volume.is_deleting {
        return Removal::Nothing;
    }
    match cluster {
        None => Removal::VolumeAlone,
        // To take volumes off the nodes is not to erase them.
        Some(cluster) if cluster.deleting => Removal::Nothing,
        Some(_) => Removal::ImageAndVolume,
    }
}

/// How kubelet calls for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEnd {
    Flex,
    Csi,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unprovided {
    /// Nothing is wrong; a node has to be chosen first.
    Waits,
    Block,
    NoCluster {
        cluster: String,
    },
    ClusterDeleted {
        cluster: String,
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
        known: &'static str,
    },
    SharedWriting {
        backend: Backend,
    },
    TooSmall {
        bytes: u64,
        least: u64,
        fs_type: String,
    },
    TooLarge {
        bytes: u64,
    },
}

const PARAMETERS: [&str; 3] = ["storageCluster", "frontEnd", "fsType"];
const MIB: u64 = 1 << 20;
/// mkfs.xfs refuses less.
const LEAST_XFS: u64 = 300 * MIB;
/// Room for a journal.
const LEAST_EXT4: u64 = 8 * MIB;
/// The greatest that ext4 can have.
const MOST: u64 = 1 << 60;

/// Decides what a claim gets. `cluster` is the storage cluster that its class names, `None` when there is
/// none of that name.
pub fn decide_provision(
    claim: &Claim,
    class: &Class,
    cluster: Option<&ClusterFacts>,
) -> Result<Plan, Unprovided> {
    let known = |key: &&String| PARAMETERS.contains(&key.as_str());
    if let Some(key) = class.parameters.keys().find(|key| !known(key)) {
        let nearest = nearest(key, PARAMETERS.into_iter());
        return Err(Unprovided::Unknown { key: key.clone(), nearest });
    }
    if claim.waits {
        return Err(Unprovided::Waits);
    }
    if claim.is_block {
        return Err(Unprovided::Block);
    }
    let get = |key| class.parameters.get(key).filter(|value| !value.is_empty());
    let storage_cluster =
        get("storageCluster").ok_or(Unprovided::Missing { key: "storageCluster" })?.clone();
    let front_end = front_end(get("frontEnd"))?;
    let fs_type = fs_type(get("fsType"))?;
    let named = || storage_cluster.clone();
    let cluster = cluster.ok_or_else(|| Unprovided::NoCluster { cluster: named() })?;
    if cluster.deleting {
        return Err(Unprovided::ClusterDeleted { cluster: named() });
    }
    if claim.modes.contains(&AccessMode::ReadWriteMany) && !cluster.backend.shares_writing() {
        return Err(Unprovided::SharedWriting { backend: cluster.backend });
    }
    check_size(claim.bytes, &fs_type, cluster.backend)?;
    let name = format!("pvc-{}", claim.uid);
    Ok(Plan { name, storage_cluster, front_end, fs_type, bytes: claim.bytes })
}

fn front_end(value: Option<&String>) -> Result<FrontEnd, Unprovided> {
    match value.map(String::as_str) {
        None | Some("flex") => Ok(FrontEnd::Flex),
        Some("csi") => Ok(FrontEnd::Csi),
        Some(value) => {
            let (key, value) = ("frontEnd", value.to_owned());
            Err(Unprovided::Value { key, value, known: "flex and csi" })
        }
    }
}

fn fs_type(value: Option<&String>) -> Result<String, Unprovided> {
    match value.map(String::as_str) {
        None => Ok("ext4".to_owned()),
        Some(known @ ("ext4" | "xfs")) => Ok(known.to_owned()),
        Some(value) => {
            let (key, value) = ("fsType", value.to_owned());
            Err(Unprovided::Value { key, value, known: "ext4 and xfs" })
        }
    }
}

fn check_size(bytes: u64, fs_type: &str, backend: Backend) -> Result<(), Unprovided> {
    if bytes > MOST {
        return Err(Unprovided::TooLarge { bytes });
    }
    let least = match (backend, fs_type) {
        (Backend::Dir, _) => 0,
        (_, "xfs") => LEAST_XFS,
        _ => LEAST_EXT4,
    };
    if bytes < least {
        return Err(Unprovided::TooSmall { bytes, least, fs_type: fs_type.to_owned() });
    }
    Ok(())
}

impl fmt::Display for Unprovided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unprovided::Waits => f.write_str("it waits for a pod"),
            Unprovided::Block => {
                f.write_str("volumeMode Block is not supported; leave it out for a file system")
            }
            Unprovided::NoCluster { cluster } => write!(f, "there is no StorageCluster {cluster}"),
            Unprovided::ClusterDeleted { cluster } => {
                write!(f, "the StorageCluster {cluster} is being deleted")
            }
            Unprovided::Missing { key } => write!(f, "the storage class has no parameter {key}"),
            Unprovided::Unknown { key, nearest: Some(near) } => {
                write!(f, "the storage class has an unknown parameter {key:?}; is {near} meant?")
            }
            Unprovided::Unknown { key, nearest: None } => write!(
                f,
                "the storage class has an unknown parameter {key:?}; there are {}",
                PARAMETERS.join(", ")
            ),
            Unprovided::Value { key, value, known } => {
                write!(
                    f,
                    "the parameter {key} of the storage class is {value:?}; there are {known}"
                )
            }
            Unprovided::SharedWriting { backend } => write!(
                f,
                "ReadWriteMany is not possible on {backend}, which has room for one writer; a \
                 storage cluster of backend dir can"
            ),
            Unprovided::TooSmall { bytes, least, fs_type } => {
                write!(f, "{bytes} bytes are too few for {fs_type}; it needs {} Mi", least / MIB)
            }
            Unprovided::TooLarge { bytes } => write!(f, "{bytes} bytes are too many"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(parameters: &[(&str, &str)]) -> Class {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Class { name: "fast".to_owned(), parameters: parameters.iter().map(own).collect() }
    }

    fn claim() -> Claim {
        Claim {
            uid: "u-1".to_owned(),
            modes: vec![AccessMode::ReadWriteOnce],
            bytes: 64 * MIB,
            ..Claim::default()
        }
    }

    const LOOPFILE: ClusterFacts = ClusterFacts { backend: Backend::Loopfile, deleting: false };

    #[test]
    fn a_claim_gets_a_volume_that_is_called_after_it() {
        let plan =
            decide_provision(&claim(), &class(&[("storageCluster", "main")]), Some(&LOOPFILE));
        let expected = Plan {
            name: "pvc-u-1".to_owned(),
            storage_cluster: "main".to_owned(),
            front_end: FrontEnd::Flex,
            fs_type: "ext4".to_owned(),
            bytes: 64 * MIB,
        };
        assert_eq!(plan, Ok(expected));
        let rows = [("storageCluster", "main"), ("frontEnd", "csi"), ("fsType", "xfs")];
        let large = Claim { bytes: LEAST_XFS, ..claim() };
        let plan = decide_provision(&large, &class(&rows), Some(&LOOPFILE)).unwrap();
        assert_eq!((plan.front_end, plan.fs_type.as_str()), (FrontEnd::Csi, "xfs"));
    }

    #[test]
    fn what_cannot_be_had_is_said_in_a_sentence() {
        let main = ("storageCluster", "main");
        let gone = ClusterFacts { deleting: true, ..LOOPFILE };
        let many = Claim { modes: vec![AccessMode::ReadWriteMany], ..claim() };
        for (claim, rows, cluster, sentence) in [
            (claim(), vec![main], None, "there is no StorageCluster main"),
            (claim(), vec![main], Some(gone), "the StorageCluster main is being deleted"),
            (claim(), vec![], Some(LOOPFILE), "the storage class has no parameter storageCluster"),
            (
                claim(),
                vec![main, ("fstype", "xfs")],
                Some(LOOPFILE),
                "the storage class has an unknown parameter \"fstype\"; is fsType meant?",
            ),
            (
                claim(),
                vec![main, ("fsType", "btrfs")],
                Some(LOOPFILE),
                "the parameter fsType of the storage class is \"btrfs\"; there are ext4 and xfs",
            ),
            (
                claim(),
                vec![main, ("frontEnd", "nfs")],
                Some(LOOPFILE),
                "the parameter frontEnd of the storage class is \"nfs\"; there are flex and csi",
            ),
            (
                many,
                vec![main],
                Some(LOOPFILE),
                "ReadWriteMany is not possible on loopfile, which has room for one writer; a \
                 storage cluster of backend dir can",
            ),
            (
                Claim { is_block: true, ..claim() },
                vec![main],
                Some(LOOPFILE),
                "volumeMode Block is not supported; leave it out for a file system",
            ),
            (
                Claim { bytes: MIB, ..claim() },
                vec![main],
                Some(LOOPFILE),
                "1048576 bytes are too few for ext4; it needs 8 Mi",
            ),
            (
                Claim { bytes: u64::MAX, ..claim() },
                vec![main],
                Some(LOOPFILE),
                "18446744073709551615 bytes are too many",
            ),
            (Claim { waits: true, ..claim() }, vec![main], Some(LOOPFILE), "it waits for a pod"),
        ] {
            let refused = decide_provision(&claim, &class(&rows), cluster.as_ref()).unwrap_err();
            assert_eq!(refused.to_string(), sentence);
        }
    }

    #[test]
    fn an_image_goes_with_its_claim_and_never_with_its_storage_cluster() {
        let over = Unclaimed {
            is_provisioned: true,
            is_released: true,
            deletes_image: true,
            ..Unclaimed::default()
        };
        let alive = ClusterFacts { backend: Backend::Loopfile, deleting: false };
        let deleted = ClusterFacts { deleting: true, ..alive };
        assert_eq!(decide_removal(&over, Some(&alive)), Removal::ImageAndVolume);
        assert_eq!(decide_removal(&over, Some(&deleted)), Removal::Nothing);
        assert_eq!(decide_removal(&over, None), Removal::VolumeAlone);
        for kept in [
            Unclaimed { is_provisioned: false, ..over },
            Unclaimed { is_released: false, ..over },
            Unclaimed { deletes_image: false, ..over },
            Unclaimed { is_held: true, ..over },
            Unclaimed { is_deleting: true, ..over },
        ] {
            for cluster in [Some(&alive), Some(&deleted), None] {
                assert_eq!(decide_removal(&kept, cluster), Removal::Nothing, "{kept:?}");
            }
        }
    }
}
