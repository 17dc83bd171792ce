//! What is answered when a call fails, in the words of CSI.

use tonic::{Code, Status};
use wharf_core::{
    volume::{attach::Refusal, journal::Fault, request::BadRequest},
    words::chain,
};

use crate::volumes::{storage::StorageError, work::VolumeError};

/// A call that cannot be understood.
pub fn bad(bad: &BadRequest) -> Status {
    Status::invalid_argument(bad.to_string())
}

/// The same where the directory is that of a volume which ought to be mounted.
pub fn not_there(bad_place: &BadRequest) -> Status {
    match bad_place {
        BadRequest::MountDir { .. } => Status::not_found(bad_place.to_string()),
        _ => bad(bad_place),
    }
}

pub fn failed(error: &VolumeError) -> Status {
    Status::new(code(error), chain(error))
}

/// After most of these kubelet takes the volume for unmounted, which it is then. It does not after
/// `Aborted`, `Unavailable`, `ResourceExhausted` and `DeadlineExceeded`, and asks for an unmount before it
/// forgets it.
fn code(error: &VolumeError) -> Code {
    match error {
        VolumeError::Bad(_) | VolumeError::Options(_) => Code::InvalidArgument,
        VolumeError::Blocked { .. } | VolumeError::Elsewhere(_) | VolumeError::Unclean(_) => {
            Code::FailedPrecondition
        }
        VolumeError::Refused(refusal) => code_of_refusal(refusal),
        VolumeError::Fault(fault) => match fault {
            Fault::Lease(_) | Fault::RecordAway => Code::Unavailable,
            Fault::NotBegun | Fault::RightLost => Code::Aborted,
            Fault::Foreign { .. } | Fault::BlankAndReadOnly => Code::FailedPrecondition,
        },
        VolumeError::Wait(_) | VolumeError::NoApi | VolumeError::Kube(_) => Code::Unavailable,
        VolumeError::Contested | VolumeError::Stuck { .. } | VolumeError::Busy => Code::Aborted,
        VolumeError::Crowded { .. } => Code::ResourceExhausted,
        VolumeError::Slow { .. } | VolumeError::Late => Code::DeadlineExceeded,
        VolumeError::Storage(error) => match error {
            StorageError::NoImage(_) => Code::NotFound,
            StorageError::Image(_) => Code::InvalidArgument,
            StorageError::Missing(_) | StorageError::Taken { .. } | StorageError::Later { .. } => {
                Code::FailedPrecondition
            }
            StorageError::Silent => Code::Unavailable,
            _ => Code::Internal,
        },
        VolumeError::Endless | VolumeError::Journal(_) | VolumeError::Kernel(_) => Code::Internal,
    }
}

fn code_of_refusal(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::NoVolume { .. } | Refusal::NoCluster { .. } => Code::NotFound,
        Refusal::OtherVolume { .. } | Refusal::FsType { .. } => Code::InvalidArgument,
        Refusal::Lease(_) => Code::Unavailable,
        Refusal::OutOfService { .. }
        | Refusal::VolumeDeleted { .. }
        | Refusal::ClusterDeleted { .. }
        | Refusal::PodGone { .. }
        | Refusal::PodElsewhere { .. }
        | Refusal::PodFinished { .. }
        | Refusal::SharedWriting { .. }
        | Refusal::NoAccessMode { .. } => Code::FailedPrecondition,
    }
}
