//! The two error types of the server: [`ApiError`] for whoever asked over HTTP, [`ServerError`]
//! for whoever started it.

use std::{net::SocketAddr, path::PathBuf};

use wharf_api::error::{ErrorBody, ErrorCode, FieldFault};
pub use wharf_core::words::chain;
use wharf_store::StoreError;

use crate::config::ConfigError;

pub type ApiResult<T> = Result<T, ApiError>;

/// An answer that is not a success. What is the server's own fault carries its cause, which goes
/// to the log and never to the caller.
#[derive(Debug)]
pub struct ApiError {
    pub body: Box<ErrorBody>,
    pub retry_after_seconds: Option<u64>,
    pub cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ErrorBody::new(code, message).into()
    }

    pub fn invalid(details: Vec<FieldFault>) -> Self {
        ErrorBody::invalid(details).into()
    }

    /// One wrong field.
    pub fn field(field: &str, code: ErrorCode, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldFault { field: field.to_owned(), code, message: message.into() }])
    }

    pub fn not_found(what: &str, name: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {what} {name:?}"))
    }

    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::PermissionDenied, message)
    }

    /// Somebody else changed the record between our read and our write, again and again.
    pub fn conflict() -> Self {
        Self::new(ErrorCode::Conflict, "the resource was changed by somebody else meanwhile")
            .hint("read it again and repeat the change")
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }

    /// A defect of the server: the caller learns no detail, only under which id the log has it.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let mut error = Self::new(ErrorCode::ServerError, "the server failed");
        error.cause = Some(cause.into());
        error
    }
}

impl From<ErrorBody> for ApiError {
    fn from(body: ErrorBody) -> Self {
        Self { body: Box::new(body), retry_after_seconds: None, cause: None }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let (code, message) = match &error {
            StoreError::DiskFull(_) => (ErrorCode::StorageFull, "the server's disk is full"),
            StoreError::ReadOnly { .. } => {
                (ErrorCode::Unavailable, "the server's store cannot be written")
            }
            StoreError::Unreachable { .. } | StoreError::Closed => {
                (ErrorCode::Unavailable, "the server's store cannot be reached")
            }
            _ => return Self::internal(error),
        };
        let mut answer = Self::new(code, message);
        answer.body.hint = error.hint();
        answer.cause = Some(Box::new(error));
        answer
    }
}

/// Why a server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("another wharf server listens on {}", path.display())]
    SocketInUse { path: PathBuf },
    #[error("the TLS certificate cannot be used: {reason}")]
    Tls {
        reason: String,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    #[error("the admin password in {} is too short: {length} characters, at least {min}", path.display())]
    WeakPassword { path: PathBuf, length: usize, min: usize },
    #[error("the server failed: {0}")]
    Internal(String),
}

impl ServerError {
    pub fn hint(&self) -> Option<String> {
        match self {
            ServerError::Config(error) => error.hint(),
            ServerError::Store(error) => error.hint(),
            ServerError::Listen { source, .. }
                if source.kind() == std::io::ErrorKind::AddrInUse =>
            {
                Some(
                    "another program uses that port: stop it, or choose another with --listen"
                        .into(),
                )
            }
            ServerError::SocketInUse { .. } => {
                Some("stop the other server, or give this one its own --data-dir".into())
            }
            ServerError::Tls { .. } => {
                Some("check tls.cert_file and tls.key_file, both in PEM".into())
            }
            ServerError::Listen { .. }
            | ServerError::File { .. }
            | ServerError::WeakPassword { .. }
            | ServerError::Internal(_) => None,
        }
    }
}
