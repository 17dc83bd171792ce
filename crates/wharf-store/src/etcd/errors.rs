//! What etcd's errors mean, by their gRPC code and the I/O error beneath.

use std::{error::Error, io};

use tonic::Code;

/// The gRPC code, if etcd answered at all.
pub(super) fn code_of(error: &etcd_client::Error) -> Option<Code> {
    match error {
        etcd_client::Error::GRpcStatus(status) => Some(status.code()),
        _ => None,
    }
}

/// Whether another endpoint could do better.
pub(super) fn is_endpoint_failure(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => matches!(
            status.code(),
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Unknown
                | Code::Cancelled
                | Code::Internal
        ),
        etcd_client::Error::TransportError(_) | etcd_client::Error::IoError(_) => true,
        // The client says so when a stream ends before its first answer.
        etcd_client::Error::WatchError(_) => true,
        _ => false,
    }
}

/// Whether the connection was refused before anything could be sent: a write can then be tried
/// elsewhere without the risk of happening twice.
pub(super) fn was_never_sent(error: &etcd_client::Error) -> bool {
    let first: Option<&(dyn Error + 'static)> = match error {
        etcd_client::Error::GRpcStatus(status) => status.source(),
        etcd_client::Error::TransportError(error) => Some(error),
        _ => None,
    };
    let mut next = first;
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return matches!(
                io.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::AddrNotAvailable
            );
        }
        next = error.source();
    }
    false
}
