//! Calls to the CSI driver over its socket, and the door through which csi-sanity reaches it.
//!
//! csi-sanity makes its volumes by the Controller service, which our driver does not have: claims give
//! volumes. So the door stands for Kubernetes. It makes an image and a PersistentVolume where a volume
//! is wanted, says for which pod, and takes both away again. All calls to Identity and Node go through
//! it to the agent as they are, and so do the answers; to what the agent says of itself only the
//! Controller service is added.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response,
    body::{Bytes, Incoming},
    client,
    header::{CONTENT_TYPE, HeaderValue, TE},
    server,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    runtime::Runtime,
};
use tonic::{Code, Status, body::Body};
use wharf_agent::volumes::csi::messages::{
    CapacityRange, Empty, GetPluginCapabilitiesResponse, Kind, PluginCapability, VolumeCapability,
};

use super::{
    common::create,
    world::{Pod, World},
};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Of a plugin: it has the Controller service.
const CONTROLLER_SERVICE: i32 = 1;
/// Of a controller.
const EXPAND_VOLUME: i32 = 9;
const LOCALHOST: &str = "localhost";

/// One call to a socket; the connection is made for it.
pub async fn call<Q: Message, A: Message + Default>(
    socket: &Path,
    authority: &str,
    method: &str,
    question: &Q,
) -> Result<A, Status> {
    let request = Request::post(format!("http://{authority}{method}"))
        .header(CONTENT_TYPE, GRPC)
        .header(TE, "trailers")
        .body(Full::new(frame(question)))
        .unwrap();
    let answer = send(socket, request).await?;
    let head = answer.headers().clone();
    let body = answer.into_body().collect().await.map_err(|it| broken(&it))?;
    let said = Status::from_header_map(body.trailers().unwrap_or(&head));
    match said.unwrap_or_else(|| Status::unknown("it does not say how it went")) {
        status if status.code() == Code::Ok => Ok(unframe(&body.to_bytes()).unwrap()),
        status => Err(status),
    }
}

async fn send<B>(socket: &Path, request: Request<B>) -> Result<Response<Incoming>, Status>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream =
        UnixStream::connect(socket).await.map_err(|it| Status::unavailable(it.to_string()))?;
    let shaken = client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|it| broken(&it))?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|it| broken(&it))
}

fn broken(error: &hyper::Error) -> Status {
    Status::unavailable(format!("{error:?}"))
}

/// A message is not compressed, and has its length before it.
fn frame(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), &bytes].concat().into()
}

fn unframe<A: Message + Default>(bytes: &[u8]) -> Option<A> {
    A::decode(bytes.get(5..)?).ok()
}

/// A socket for csi-sanity. Dropping it closes it.
pub struct Door {
    _runtime: Runtime,
    socket: PathBuf,
}

impl Door {
    /// Volumes are for this pod and are all called by this name, one after the other: both are in the
    /// directory that csi-sanity wants them in.
    pub fn open(world: &Arc<World>, pod: Pod, volume: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let socket = world.path("door.sock");
        let listener = {
            let _within = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        let kubernetes = Arc::new(Kubernetes {
            world: world.clone(),
            pod,
            volume: volume.to_owned(),
            made: Mutex::default(),
        });
        runtime.spawn(serve(listener, kubernetes));
        Self { _runtime: runtime, socket }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

async fn serve(listener: UnixListener, kubernetes: Arc<Kubernetes>) {
    while let Ok((stream, _)) = listener.accept().await {
        let kubernetes = kubernetes.clone();
        let service = service_fn(move |request| {
            let kubernetes = kubernetes.clone();
            async move { Ok::<_, Infallible>(kubernetes.answer(request).await) }
        });
        let connection = server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

struct Kubernetes {
    world: Arc<World>,
    pod: Pod,
    /// What the PersistentVolume is called.
    volume: String,
    /// The images that there are or were, by the handles of their volumes; with their size.
    made: Mutex<BTreeMap<String, Option<i64>>>,
}

type Answer<T> = Result<T, Status>;

impl Kubernetes {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/csi.v1.Identity/GetPluginCapabilities" => answered(self.capabilities().await),
            "/csi.v1.Controller/ControllerGetCapabilities" => {
                let capabilities = vec![ControllerCapability::new(EXPAND_VOLUME)];
                answered(Ok(ControllerCapabilities { capabilities }))
            }
            "/csi.v1.Controller/CreateVolume" => self.unary(request, Self::create).await,
            "/csi.v1.Controller/DeleteVolume" => self.unary(request, Self::delete).await,
            "/csi.v1.Controller/ControllerExpandVolume" => self.unary(request, Self::expand).await,
            "/csi.v1.Controller/ValidateVolumeCapabilities" => {
                self.unary(request, Self::validate).await
            }
            _ => match send(&self.world.socket(), request).await {
                Ok(answer) => answer.map(Body::new),
                Err(status) => status.into_http(),
            },
        }
    }

    /// What needs kubectl is done off the runtime.
    async fn unary<Q, A>(
        self: Arc<Self>,
        request: Request<Incoming>,
        method: fn(&Self, &Q) -> Answer<A>,
    ) -> Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let Ok(body) = request.into_body().collect().await else {
            return Status::invalid_argument("the call is broken").into_http();
        };
        let Some(question) = unframe::<Q>(&body.to_bytes()) else {
            return Status::invalid_argument("the call cannot be read").into_http();
        };
        let done = tokio::task::spawn_blocking(move || method(&self, &question)).await;
        answered(done.unwrap_or_else(|error| Err(Status::internal(error.to_string()))))
    }

    async fn capabilities(&self) -> Answer<GetPluginCapabilitiesResponse> {
        let method = "/csi.v1.Identity/GetPluginCapabilities";
        let mut answer: GetPluginCapabilitiesResponse =
            call(&self.world.socket(), LOCALHOST, method, &Empty {}).await?;
        let service = Some(Kind { r#type: CONTROLLER_SERVICE });
        answer.capabilities.push(PluginCapability { service, volume_expansion: None });
        Ok(answer)
    }

    fn create(&self, call: &CreateVolume) -> Answer<CreatedVolume> {
        let capacity_bytes = call.capacity_range.clone().unwrap_or_default().required_bytes;
        let mut made = self.made.lock().unwrap();
        let image = format!("sanity-{}", made.len());
        let volume_id = format!("main/{image}");
        File::create(self.image(&volume_id))
            .unwrap()
            .set_len(u64::try_from(capacity_bytes).unwrap())
            .unwrap();
        create(
            &self.world.server,
            &json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": { "name": self.volume },
                "spec": {
                    "capacity": { "storage": capacity_bytes.to_string() },
                    "accessModes": ["ReadWriteOnce"],
                    "csi": { "driver": "volume.wharf.dev", "volumeHandle": volume_id },
                },
            }),
        );
        made.insert(volume_id.clone(), Some(capacity_bytes));
        let volume_context = [("name", &*self.pod.name), ("namespace", "default")];
        let volume_context = volume_context.into_iter().chain([("uid", &*self.pod.uid)]);
        let volume_context = volume_context
            .map(|(key, value)| (format!("csi.storage.k8s.io/pod.{key}"), value.to_owned()))
            .collect();
        Ok(CreatedVolume { volume: Some(Volume { capacity_bytes, volume_id, volume_context }) })
    }

    fn delete(&self, call: &VolumeId) -> Answer<Empty> {
        let mut made = self.made.lock().unwrap();
        if let Some(size @ Some(_)) = made.get_mut(&call.volume_id) {
            self.world.delete("pv", &self.volume);
            fs::remove_file(self.image(&call.volume_id)).unwrap();
            *size = None;
        }
        Ok(Empty {})
    }

    fn expand(&self, call: &ExpandVolume) -> Answer<ExpandedVolume> {
        let Some(range) = call.capacity_range.as_ref().filter(|_| !call.volume_id.is_empty())
        else {
            return Err(Status::invalid_argument("volume_id and capacity_range are needed"));
        };
        let capacity_bytes = range.required_bytes;
        let mut made = self.made.lock().unwrap();
        let Some(size @ Some(_)) = made.get_mut(&call.volume_id) else {
            return Err(Status::not_found(&call.volume_id));
        };
        let image = File::options().write(true).open(self.image(&call.volume_id)).unwrap();
        image.set_len(u64::try_from(capacity_bytes).unwrap()).unwrap();
        let storage = json!({ "storage": capacity_bytes.to_string() });
        self.world.patch("pv", &self.volume, &json!({ "spec": { "capacity": storage } }));
        *size = Some(capacity_bytes);
        Ok(ExpandedVolume { capacity_bytes, node_expansion_required: true })
    }

    fn validate(&self, call: &ValidateVolume) -> Answer<ValidatedVolume> {
        if call.volume_id.is_empty() || call.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_id and capabilities are needed"));
        }
        if !matches!(self.made.lock().unwrap().get(&call.volume_id), Some(Some(_))) {
            return Err(Status::not_found(&call.volume_id));
        }
        let volume_capabilities = call.volume_capabilities.clone();
        Ok(ValidatedVolume { confirmed: Some(Confirmed { volume_capabilities }) })
    }

    fn image(&self, volume_id: &str) -> PathBuf {
        let image = volume_id.strip_prefix("main/").unwrap();
        self.world.path(&format!("images/{image}.img"))
    }
}

fn answered<A: Message>(done: Answer<A>) -> Response<Body> {
    let answer = match done {
        Ok(answer) => answer,
        Err(status) => return status.into_http(),
    };
    let trailers = HeaderMap::from_iter([(
        hyper::header::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let body = Full::new(frame(&answer)).with_trailers(async move { Some(Ok(trailers)) });
    Response::builder().header(CONTENT_TYPE, GRPC).body(Body::new(body)).unwrap()
}

#[derive(Clone, PartialEq, Message)]
struct ControllerCapabilities {
    #[prost(message, repeated, tag = "1")]
    capabilities: Vec<ControllerCapability>,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerCapability {
    #[prost(message, optional, tag = "1")]
    rpc: Option<Kind>,
}

impl ControllerCapability {
    fn new(r#type: i32) -> Self {
        Self { rpc: Some(Kind { r#type }) }
    }
}

#[derive(Clone, PartialEq, Message)]
struct CreateVolume {
    #[prost(message, optional, tag = "2")]
    capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, Message)]
struct CreatedVolume {
    #[prost(message, optional, tag = "1")]
    volume: Option<Volume>,
}

#[derive(Clone, PartialEq, Message)]
struct Volume {
    #[prost(int64, tag = "1")]
    capacity_bytes: i64,
    #[prost(string, tag = "2")]
    volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct VolumeId {
    #[prost(string, tag = "1")]
    volume_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ExpandVolume {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(message, optional, tag = "2")]
    capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, Message)]
struct ExpandedVolume {
    #[prost(int64, tag = "1")]
    capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    node_expansion_required: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ValidateVolume {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(message, repeated, tag = "3")]
    volume_capabilities: Vec<VolumeCapability>,
}

#[derive(Clone, PartialEq, Message)]
struct ValidatedVolume {
    #[prost(message, optional, tag = "1")]
    confirmed: Option<Confirmed>,
}

#[derive(Clone, PartialEq, Message)]
struct Confirmed {
    #[prost(message, repeated, tag = "2")]
    volume_capabilities: Vec<VolumeCapability>,
}
