//! The socket of the CSI driver: gRPC over HTTP/2, for root alone.
//!
//! One socket is all: kubelet finds it in its registry of plugins, asks there what it is, and calls it
//! there for volumes.

use std::{convert::Infallible, io, pin::Pin, sync::Arc, time::Duration};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tonic::{Status, body::Body, server::UnaryService};
use tracing::{debug, info};

use super::Csi;
use crate::volumes::calls::MOST_CONNECTIONS;

/// kubelet makes a connection for every call, and has that one on it.
const MOST_STREAMS: u32 = 16;
/// A call has some names and the attributes of a volume.
const MOST_BYTES: usize = 256 * 1024;
const MOST_HEADERS: u32 = 16 * 1024;
/// Somebody may have removed the socket, or started a kubelet that looks elsewhere.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Serves until the socket is not where it belongs any more.
pub async fn serve(
    listener: UnixListener,
    csi: &Arc<Csi>,
    is_in_place: impl Fn() -> bool,
) -> io::Result<()> {
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut running = JoinSet::new();
    let mut look_at = Instant::now() + LOOK_EVERY;
    loop {
        while running.try_join_next().is_some() {}
        tokio::select! {
            () = sleep_until(look_at) => {
                look_at = Instant::now() + LOOK_EVERY;
                if !is_in_place() {
                    return Ok(());
                }
            }
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                if stream.peer_cred()?.uid() != 0 {
                    info!("a connection to the CSI driver by another user than root was closed");
                    continue;
                }
                let Ok(permit) = connections.clone().try_acquire_owned() else { continue };
                let csi = csi.clone();
                running.spawn(async move {
                    connection(stream, csi).await;
                    drop(permit);
                });
            }
        }
    }
}

async fn connection(stream: UnixStream, csi: Arc<Csi>) {
    let service = service_fn(move |request| {
        let csi = csi.clone();
        async move { Ok::<_, Infallible>(answer(csi, request).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a connection to the CSI driver ended");
    }
}

async fn answer(csi: Arc<Csi>, request: hyper::Request<Incoming>) -> hyper::Response<Body> {
    match request.uri().path() {
        "/pluginregistration.Registration/GetInfo" => unary(csi, request, Csi::info).await,
        "/pluginregistration.Registration/NotifyRegistrationStatus" => {
            unary(csi, request, Csi::registered).await
        }
        "/csi.v1.Identity/GetPluginInfo" => unary(csi, request, Csi::plugin_info).await,
        "/csi.v1.Identity/GetPluginCapabilities" => {
            unary(csi, request, Csi::plugin_capabilities).await
        }
        "/csi.v1.Identity/Probe" => unary(csi, request, Csi::probe).await,
        "/csi.v1.Node/NodePublishVolume" => unary(csi, request, Csi::publish).await,
        "/csi.v1.Node/NodeUnpublishVolume" => unary(csi, request, Csi::unpublish).await,
        "/csi.v1.Node/NodeGetVolumeStats" => unary(csi, request, Csi::stats).await,
        "/csi.v1.Node/NodeExpandVolume" => unary(csi, request, Csi::expand).await,
        "/csi.v1.Node/NodeGetCapabilities" => unary(csi, request, Csi::node_capabilities).await,
        "/csi.v1.Node/NodeGetInfo" => unary(csi, request, Csi::node_info).await,
        _ => Status::unimplemented("there is no such call").into_http(),
    }
}

/// One call with one answer.
async fn unary<Q, A, F, R>(
    csi: Arc<Csi>,
    request: hyper::Request<Incoming>,
    method: F,
) -> hyper::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Fn(Arc<Csi>, Q) -> R,
    R: Future<Output = Result<A, Status>> + Send + 'static,
{
    let codec = tonic_prost::ProstCodec::<A, Q>::default();
    let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(MOST_BYTES);
    grpc.unary(Method(csi, method), request).await
}

struct Method<F>(Arc<Csi>, F);

type Answer<A> = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

impl<Q, A, F, R> UnaryService<Q> for Method<F>
where
    F: Fn(Arc<Csi>, Q) -> R,
    R: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Answer<A>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let running = (self.1)(self.0.clone(), request.into_inner());
        Box::pin(async move { running.await.map(tonic::Response::new) })
    }
}
