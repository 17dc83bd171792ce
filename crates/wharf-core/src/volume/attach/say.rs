//! What people read about a mount that is not granted.

use std::fmt;

use super::{Blocked, Decision, Obstacle, Refusal};

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Granted(entry) => {
                write!(f, "the volume is granted to {} on {}", entry.pod_ref(), entry.node)
            }
            Decision::Do(_) => f.write_str("the volume is being claimed"),
            Decision::Wait { blocked, .. } => {
                let sentences: Vec<String> = blocked.iter().map(Blocked::to_string).collect();
                f.write_str(&sentences.join("; "))
            }
            Decision::Refuse(refusal) => refusal.fmt(f),
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Blocked { holder, why } = self;
        let does = if holder.read_only { "reads" } else { "holds" };
        write!(f, "pod {} on node {} {does} the volume: ", holder.pod_ref(), holder.node)?;
        match why {
            Obstacle::Here => f.write_str("it has to be unmounted there first"),
            Obstacle::NoProof(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Lease(standing) => standing.fmt(f),
            Refusal::OutOfService { node } => write!(
                f,
                "node {node} is tainted as out of service; take the taint off when it is back"
            ),
            Refusal::NoVolume { volume } => write!(
                f,
                "there is no PersistentVolume {volume}; volumes written into a pod itself are not \
                 supported, use a claim"
            ),
            Refusal::VolumeDeleted { volume } => {
                write!(f, "the PersistentVolume {volume} is being deleted")
            }
            Refusal::OtherVolume { what, asked, is } => {
                write!(f, "the {what} is {asked} by the call and {is} by the PersistentVolume")
            }
            Refusal::NoCluster { cluster } => write!(f, "there is no StorageCluster {cluster}"),
            Refusal::ClusterDeleted { cluster } => {
                write!(f, "the StorageCluster {cluster} is being deleted")
            }
            Refusal::PodGone { pod } => write!(f, "pod {pod} is gone"),
            Refusal::PodElsewhere { pod, node } => write!(f, "pod {pod} runs on node {node}"),
            Refusal::PodFinished { pod } => write!(f, "pod {pod} has finished"),
            Refusal::FsType { fs_type } => {
                write!(f, "the file system {fs_type:?} is not supported; there are ext4 and xfs")
            }
            Refusal::SharedWriting { backend } => write!(
                f,
                "ReadWriteMany is not possible on {backend}, which has room for one writer; a \
                 storage cluster of backend dir can"
            ),
            Refusal::NoAccessMode { volume } => {
                write!(f, "the PersistentVolume {volume} has no access mode")
            }
        }
    }
}
