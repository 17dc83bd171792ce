//! What can go wrong between Wharf and an API server.

use std::time::Duration;

use crate::kubeconfig::KubeconfigError;

pub(crate) type Result<T> = std::result::Result<T, KubeError>;

#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] KubeconfigError),
    /// No connection, or one that broke.
    #[error("{what}: no API server of the cluster answers")]
    Unreachable {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{what}: no answer within {} s", after.as_secs_f32())]
    Timeout { what: String, after: Duration },
    /// The API server answered that it will not.
    #[error("{what}: {message} ({code} {reason})")]
    Status { what: String, code: u16, reason: String, message: String },
    /// A new Service asks for an address that is not free, or not free yet.
    #[error("{what}: {message} (422 Invalid)")]
    AddressTaken { what: String, message: String },
    #[error("{what}: the answer cannot be understood")]
    Answer {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A document of the manifests is not one of Kubernetes.
    #[error("document {number} of the manifests: {reason}")]
    Manifest { number: usize, reason: String },
    /// Something did not come about in time.
    #[error("{what} did not happen within {} s: {}", after.as_secs(), last.join("; "))]
    NotReached { what: String, after: Duration, last: Vec<String> },
    #[error("node {node} has the pod network {found}, not {wanted}, and it cannot be changed")]
    PodCidr { node: String, found: String, wanted: String },
}

impl KubeError {
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The HTTP status of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            KubeError::Status { code, .. } => Some(*code),
            KubeError::AddressTaken { .. } => Some(422),
            KubeError::Kubeconfig(_)
            | KubeError::Unreachable { .. }
            | KubeError::Timeout { .. }
            | KubeError::Answer { .. }
            | KubeError::Manifest { .. }
            | KubeError::NotReached { .. }
            | KubeError::PodCidr { .. } => None,
        }
    }

    /// Whether the same request may succeed a moment later without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            KubeError::Unreachable { .. }
            | KubeError::Timeout { .. }
            | KubeError::AddressTaken { .. } => true,
            KubeError::Status { code, .. } => matches!(code, 409 | 429 | 500..=599),
            KubeError::Kubeconfig(_)
            | KubeError::Answer { .. }
            | KubeError::Manifest { .. }
            | KubeError::NotReached { .. }
            | KubeError::PodCidr { .. } => false,
        }
    }

    pub(crate) fn of(what: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => KubeError::Status {
                what,
                code: status.code,
                reason: status.reason,
                message: status.message,
            },
            error @ (kube::Error::SerdeError(_)
            | kube::Error::FromUtf8(_)
            | kube::Error::BuildRequest(_)
            | kube::Error::HttpError(_)) => KubeError::Answer { what, source: Box::new(error) },
            error => KubeError::Unreachable { what, source: Box::new(error) },
        }
    }
}
