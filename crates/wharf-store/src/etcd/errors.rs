//! What etcd's errors mean, by their gRPC code and the I/O error beneath.

use std::error::Error;

use tonic::{Code, ConnectError};

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

/// Whether there was no connection to send anything on: a write can then be tried elsewhere without
/// the risk of happening twice.
///
/// The kind of the I/O error says nothing about that: a host or a network that cannot be reached is
/// also what an open connection can end with, when the write has long arrived.
pub(super) fn was_never_sent(error: &etcd_client::Error) -> bool {
    let first: Option<&(dyn Error + 'static)> = match error {
        etcd_client::Error::GRpcStatus(status) => status.source(),
        etcd_client::Error::TransportError(error) => Some(error),
        _ => None,
    };
    let mut next = first;
    while let Some(error) = next {
        if error.is::<ConnectError>() {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io;

    use tonic::Status;

    use super::*;

    #[test]
    fn only_a_connection_that_never_was_proves_that_nothing_was_sent() {
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::HostUnreachable,
            io::ErrorKind::NetworkUnreachable,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
        ] {
            let failed = |error| etcd_client::Error::GRpcStatus(Status::from_error(error));
            let io = || Box::new(io::Error::from(kind));
            assert!(!was_never_sent(&failed(io())), "{kind}");
            assert!(was_never_sent(&failed(Box::new(ConnectError(io())))), "{kind}");
            assert!(!was_never_sent(&etcd_client::Error::IoError(*io())), "{kind}");
        }
    }

    #[tokio::test]
    async fn the_client_tells_a_connection_that_was_refused() {
        let port = wharf_testbed::process::free_port().unwrap();
        let endpoint = format!("http://127.0.0.1:{port}");
        let client = etcd_client::Client::connect([endpoint], None).await.unwrap();
        let error = client.kv_client().put("a", "b", None).await.unwrap_err();
        assert!(was_never_sent(&error), "{error:?}");
    }
}
