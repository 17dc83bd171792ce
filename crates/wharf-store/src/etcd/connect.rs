//! Connections to the endpoints, one in use at a time.
//!
//! The client library can spread calls over several endpoints, but it keeps picking dead ones and
//! cannot tell whether a failed write was sent. Here each endpoint has its own client: reads move
//! on to the next endpoint, writes only when the failed one certainly did not see them.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, KvClient, LeaseClient, TlsOptions,
    WatchClient,
};
use tonic::Code;

use super::errors::{code_of, is_endpoint_failure, was_never_sent};
use crate::{
    embedded::lock::io_error,
    error::{StoreError, StoreResult},
    store::EtcdOptions,
};

/// Longer than any healthy network needs for a handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// etcd itself gives up on a proposal after 7 s; with a leader it answers in milliseconds.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection whose peer vanished is noticed within these two, also by an idle watch.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// A chunk of a list or of a watch that catches up can be larger than gRPC's 4 MB.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// When a request may be sent again after it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing, or the same whether it is done once or twice.
    Always,
    OnlyIfNeverSent,
}

pub(super) struct Connections {
    endpoints: Vec<Slot>,
    active: AtomicUsize,
    options: ConnectOptions,
    user: Option<String>,
}

struct Slot {
    address: String,
    endpoint: Mutex<Option<Endpoint>>,
}

/// One endpoint's client.
#[derive(Clone)]
pub(super) struct Endpoint {
    client: Arc<Client>,
}

impl Endpoint {
    pub(super) fn kv_client(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub(super) fn lease_client(&self) -> LeaseClient {
        self.client.lease_client()
    }

    pub(super) fn watch_client(&self) -> WatchClient {
        self.client.watch_client().max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

impl Connections {
    pub(super) fn new(endpoints: &[String], options: &EtcdOptions) -> StoreResult<Connections> {
        if endpoints.is_empty() {
            return Err(StoreError::BadOptions("no etcd endpoint is named".to_owned()));
        }
        let scheme = if options.uses_tls() { "https" } else { "http" };
        let slot = |host: &String| Slot {
            address: format!("{scheme}://{host}"),
            endpoint: Mutex::new(None),
        };
        Ok(Connections {
            endpoints: endpoints.iter().map(slot).collect(),
            active: AtomicUsize::new(0),
            options: connect_options(options)?,
            user: options.user.clone(),
        })
    }

    /// Sends a request to the endpoint in use, and to the others as far as that is safe.
    pub(super) async fn call<T, F>(
        &self,
        repeat: Repeat,
        request: impl Fn(Endpoint) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_within(REQUEST_TIMEOUT, repeat, request).await
    }

    /// The same, with `patience` for each endpoint.
    pub(super) async fn call_within<T, F>(
        &self,
        patience: Duration,
        repeat: Repeat,
        request: impl Fn(Endpoint) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.active.load(Ordering::Relaxed);
        let mut last_error = None;
        for turn in 0..self.endpoints.len() {
            let index = (first + turn) % self.endpoints.len();
            let error = match self.try_one(index, patience, &request).await {
                Ok(answer) => {
                    self.active.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Attempt { error, sent }) => {
                    if !is_endpoint_failure(&error) {
                        return Err(error);
                    }
                    // When all have failed, the last one stays in use: the first has had its turn.
                    if turn + 1 < self.endpoints.len() {
                        self.leave(index);
                    }
                    if repeat == Repeat::OnlyIfNeverSent && sent && !was_never_sent(&error) {
                        return Err(error);
                    }
                    error
                }
            };
            last_error = Some(error);
        }
        Err(last_error.unwrap_or(Error::EndpointsNotManaged))
    }

    async fn try_one<T, F>(
        &self,
        index: usize,
        patience: Duration,
        request: impl Fn(Endpoint) -> F,
    ) -> Result<T, Attempt>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let endpoint =
            self.endpoint(index, patience).await.map_err(|error| Attempt { error, sent: false })?;
        let mut answer = within(patience, request(endpoint.clone())).await;
        // etcd refuses a login that is older than the last change of its users and roles.
        let refused = |error: &Error| code_of(error) == Some(Code::InvalidArgument);
        if self.user.is_some() && answer.as_ref().is_err_and(refused) {
            answer = match within(patience, endpoint.client.refresh_token()).await {
                Ok(()) => within(patience, request(endpoint)).await,
                Err(error) => Err(error),
            };
        }
        answer.map_err(|error| Attempt { error, sent: true })
    }

    /// The next call begins with another endpoint.
    fn leave(&self, index: usize) {
        let next = (index + 1) % self.endpoints.len();
        self.active.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    /// The endpoint that answered last.
    pub(super) async fn active(&self) -> Result<Endpoint, Error> {
        self.endpoint(self.active.load(Ordering::Relaxed), REQUEST_TIMEOUT).await
    }

    async fn endpoint(&self, index: usize, patience: Duration) -> Result<Endpoint, Error> {
        let slot = self.endpoints.get(index).ok_or(Error::EndpointsNotManaged)?;
        let lock = || slot.endpoint.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(endpoint) = lock().clone() {
            return Ok(endpoint);
        }
        // With a user this logs in, otherwise it only prepares the connection.
        let connect = Client::connect([&slot.address], Some(self.options.clone()));
        let endpoint = Endpoint { client: Arc::new(within(patience, connect).await?) };
        *lock() = Some(endpoint.clone());
        Ok(endpoint)
    }

    pub(super) fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// Turns an error that no endpoint could avoid into the store's.
    pub(super) fn explain(&self, error: Error) -> StoreError {
        let user = || self.user.clone().unwrap_or_else(|| "a client without a user".to_owned());
        match code_of(&error) {
            Some(Code::Unauthenticated | Code::PermissionDenied) => {
                StoreError::Denied { user: user(), source: Box::new(error) }
            }
            // Requests are checked before they are sent, so that what etcd still calls invalid
            // are the credentials: a wrong password, or none where one is needed.
            Some(Code::InvalidArgument | Code::FailedPrecondition) => {
                StoreError::Denied { user: user(), source: Box::new(error) }
            }
            Some(Code::OutOfRange) => StoreError::Compacted { oldest: crate::Revision(0) },
            Some(Code::ResourceExhausted) => StoreError::DiskFull(Box::new(error)),
            _ if is_endpoint_failure(&error) => {
                let addresses: Vec<_> = self.endpoints.iter().map(|s| s.address.as_str()).collect();
                StoreError::Unreachable { endpoints: addresses.join(","), source: Box::new(error) }
            }
            _ => StoreError::Backend(Box::new(error)),
        }
    }
}

/// A failed try, and whether the request itself had begun.
struct Attempt {
    error: Error,
    sent: bool,
}

async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "etcd did not answer in time");
    tokio::time::timeout(patience, answer).await.unwrap_or_else(|_| Err(Error::IoError(late())))
}

fn connect_options(options: &EtcdOptions) -> StoreResult<ConnectOptions> {
    let mut connect = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        // A member that lost its leader ends its watches instead of letting them fall behind.
        .with_require_leader(true);
    if let (Some(user), Some(password)) = (&options.user, &options.password) {
        connect = connect.with_user(user, password).with_auto_token_refresh(true);
    }
    if options.uses_tls() {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &options.ca_file {
            tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let (Some(cert), Some(key)) = (&options.cert_file, &options.key_file) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        connect = connect.with_tls(tls);
    }
    Ok(connect)
}

fn read(path: &Path) -> StoreResult<Vec<u8>> {
    fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            StoreError::BadOptions(format!("the file {} does not exist", path.display()))
        }
        _ => io_error("read", path, source),
    })
}
