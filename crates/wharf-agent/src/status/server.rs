//! The status server: on the cluster's address, and only while that is there.
//!
//! Who is answered what is decided in `wharf-core` (`node::serve`); here are sockets, bounds and the
//! words of HTTP.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};
use wharf_core::{
    node::serve::{self, Refusal, Roles, Route, Token, route, status_text},
    words::chain,
};
use wharf_kube::Cluster;

use super::Place;
use crate::{
    aside::aside,
    health::Reporter,
    tasks::{Context, Ended, LAST_ACTS},
    tracker::Tracker,
};

/// The cluster that the server belongs to.
pub const CLUSTER_ID: &str = "x-cluster-id";
/// Each node of a cluster asks for one thing at a time.
const MOST_CONNECTIONS: usize = 64;
/// A request is a line and a few headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
/// A question to all peers takes ten seconds at most, and the answer has to be read.
const CONNECTION_WITHIN: Duration = Duration::from_secs(60);
/// Before the next try to listen or to accept.
const PAUSE: Duration = Duration::from_secs(2);
/// The answer to everybody who asks in this time.
const ETCD_FOR: Duration = Duration::from_secs(5);
const TOKEN_SUBJECT: &str = "the token's file";
const REFUSED: &str = "refused requests";
const ENDLESS: &str = "requests that did not end";

/// What the server answers from.
#[derive(Clone)]
pub struct Sources {
    pub places: watch::Receiver<Option<Place>>,
    pub roles: watch::Receiver<Option<Roles>>,
    /// Absent where the agent has no cluster.
    pub cluster: Option<watch::Receiver<Option<Cluster>>>,
    pub tracker: Tracker,
}

pub async fn run(context: Context, reporter: Reporter, mut sources: Sources) -> Ended {
    let mut serving: Option<Serving> = None;
    loop {
        let place = sources.places.borrow_and_update().clone();
        if serving.as_ref().map(|serving| &serving.place) != place.as_ref() {
            if let Some(old) = serving.take() {
                old.end().await;
            }
            if let Some(place) = place {
                serving = begin(place, &context, &reporter, &sources).await;
            }
        }
        reporter.ok();
        let missing = serving.is_none() && sources.places.borrow().is_some();
        tokio::select! {
            () = context.stop.cancelled() => break,
            changed = sources.places.changed() => changed?,
            () = sleep(PAUSE), if missing => {}
        }
    }
    if let Some(serving) = serving {
        serving.end().await;
    }
    Ok(())
}

/// An address at which is listened.
struct Serving {
    place: Place,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Serving {
    async fn end(self) {
        info!(address = %self.place.address, "the status server stops");
        self.stop.cancel();
        self.tasks.close();
        // What is under way may end.
        let _ = timeout(LAST_ACTS, self.tasks.wait()).await;
    }
}

async fn begin(
    place: Place,
    context: &Context,
    reporter: &Reporter,
    sources: &Sources,
) -> Option<Serving> {
    let address = SocketAddr::new(place.address, context.config.status_port);
    let subject = address.to_string();
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            reporter.fault(&subject, &format!("cannot listen there: {error}"));
            return None;
        }
    };
    reporter.clear(&subject);
    info!(%address, "the status server listens");
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let desk = Arc::new(Desk {
        place: place.clone(),
        context: context.clone(),
        reporter: reporter.clone(),
        sources: sources.clone(),
        etcd: tokio::sync::Mutex::new(None),
    });
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    tasks.spawn(accept(listener, desk, places, stop.clone(), tasks.clone()));
    Some(Serving { place, stop, tasks })
}

async fn accept(
    listener: TcpListener,
    desk: Arc<Desk>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = stop.run_until_cancelled(next(&listener, &places)).await;
        match accepted {
            None => return,
            Some(Ok((place, stream, peer))) => {
                let (desk, stop) = (desk.clone(), stop.clone());
                tasks.spawn(async move {
                    let served = serve(TokioIo::new(stream), peer.ip(), desk.clone(), stop);
                    let is_endless = match timeout(CONNECTION_WITHIN, served).await {
                        // Who breaks off has told nobody anything.
                        Ok(served) => served.is_err_and(|error| error.is_timeout()),
                        Err(_) => true,
                    };
                    if is_endless {
                        desk.reporter.tally(ENDLESS, &format!("from {}", peer.ip()));
                    }
                    drop(place);
                });
            }
            Some(Err(error)) => {
                warn!(%error, "the status server could not accept a connection");
                stop.run_until_cancelled(sleep(PAUSE)).await;
            }
        }
    }
}

/// The next connection, once there is a place for it.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(OwnedSemaphorePermit, TcpStream, SocketAddr)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((place, stream, peer))
}

async fn serve(
    stream: TokioIo<TcpStream>,
    peer: IpAddr,
    desk: Arc<Desk>,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let desk = desk.clone();
        async move { Ok::<_, std::convert::Infallible>(desk.answer(&request, peer).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(16 << 10)
        .keep_alive(false)
        .serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        served = &mut connection => return served,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// Where questions are answered.
struct Desk {
    place: Place,
    context: Context,
    reporter: Reporter,
    sources: Sources,
    /// Whether etcd was well, and when that was asked.
    etcd: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl Desk {
    async fn answer(&self, request: &Request<Incoming>, peer: IpAddr) -> Response<Full<Bytes>> {
        let asked = serve::Request {
            method: request.method().as_str(),
            path: request.uri().path(),
            peer,
            token: self.token(request),
        };
        match route(&asked, self.place.prefix.trunc()) {
            Ok(Route::Status) => self.status().await,
            Ok(Route::App(app)) => json(&self.sources.tracker.app(&app).await, true),
            Ok(Route::ClusterApp(app)) => {
                let from = Some(self.place.address);
                json(&self.sources.tracker.cluster_app(&app, from, &self.reporter).await, false)
            }
            Err(refusal) => {
                if refusal.is_of_a_stranger() {
                    self.reporter.tally(REFUSED, &format!("from {peer}: {refusal}"));
                }
                refuse(refusal)
            }
        }
    }

    async fn status(&self) -> Response<Full<Bytes>> {
        let roles = *self.sources.roles.borrow();
        // Who holds no data of the cluster has to reach those who do.
        let asks = roles.is_some_and(|roles| roles.controlplane && !roles.etcd);
        let reaches = asks && self.reaches_etcd().await;
        let mut answer = text(StatusCode::OK, status_text(roles, reaches));
        if let Ok(id) = HeaderValue::from_str(&self.place.cluster_id) {
            answer.headers_mut().insert(CLUSTER_ID, id);
        }
        answer
    }

    /// Asked by one at a time: others wait for the same answer.
    async fn reaches_etcd(&self) -> bool {
        let mut known = self.etcd.lock().await;
        if let Some((when, good)) = *known
            && when.elapsed() < ETCD_FOR
        {
            return good;
        }
        let cluster = self.sources.cluster.as_ref();
        let cluster = cluster.and_then(|cluster| cluster.borrow().clone());
        let good = match cluster {
            Some(cluster) => cluster.etcd_health().await.into_values().any(|good| good),
            None => false,
        };
        *known = Some((Instant::now(), good));
        good
    }

    /// The file is read each time: it may be replaced.
    fn token(&self, request: &Request<Incoming>) -> Token {
        let Some(path) = &self.context.config.trace_token_file else {
            let open = self.context.config.open_trace;
            return if open { Token::NotNeeded } else { Token::WrongOrMissing };
        };
        let expected = match aside(|| read_token(path)) {
            Ok(expected) => {
                self.reporter.clear(TOKEN_SUBJECT);
                expected
            }
            Err(error) => {
                self.reporter
                    .fault(TOKEN_SUBJECT, &format!("{}: {}", path.display(), chain(&error)));
                return Token::WrongOrMissing;
            }
        };
        let header =
            request.headers().get(header::AUTHORIZATION).and_then(|text| text.to_str().ok());
        let given = header
            .and_then(|text| text.strip_prefix("Bearer "))
            .map(str::to_owned)
            .or_else(|| serve::token_of(request.uri().query().unwrap_or_default()));
        match given {
            Some(given) if given.as_bytes().ct_eq(expected.as_bytes()).into() => Token::Right,
            Some(_) | None => Token::WrongOrMissing,
        }
    }
}

/// What everybody who may ask the tracker knows. An empty file is no token that anybody could know.
pub fn read_token(path: &std::path::Path) -> io::Result<String> {
    let token = std::fs::read_to_string(path)?.trim().to_owned();
    if token.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(token) }
}

fn refuse(refusal: Refusal) -> Response<Full<Bytes>> {
    let code = StatusCode::from_u16(refusal.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = text(code, &refusal.to_string());
    let headers = answer.headers_mut();
    match refusal {
        Refusal::Unauthorized => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Refusal::MethodNotAllowed => {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET"));
        }
        Refusal::Forbidden | Refusal::NotFound => {}
    }
    answer
}

fn text(code: StatusCode, text: &str) -> Response<Full<Bytes>> {
    respond(code, "text/plain; charset=utf-8", text.to_owned().into())
}

fn json<T: serde::Serialize>(value: &T, pretty: bool) -> Response<Full<Bytes>> {
    let text = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    match text {
        Ok(text) => respond(StatusCode::OK, "application/json", text.into()),
        Err(error) => self::text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn respond(code: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{config::Config, files::Files, health::Health};

    fn desk(dir: &std::path::Path, stop: &CancellationToken) -> Desk {
        let config = Arc::new(Config::default());
        let health = Health::new("n1");
        let files = Files::open(dir, dir, &health, stop.clone());
        let sources = Sources {
            places: watch::channel(None).1,
            roles: watch::channel(None).1,
            cluster: None,
            tracker: Tracker::new(config.clone(), files.clone(), None),
        };
        Desk {
            place: Place {
                if_name: "lo".to_owned(),
                address: Ipv4Addr::LOCALHOST.into(),
                prefix: IpAddr::from(Ipv4Addr::LOCALHOST).into(),
                cluster_id: String::new(),
            },
            reporter: health.task("status-server"),
            context: Context { config, files, health, stop: stop.clone() },
            sources,
            etcd: tokio::sync::Mutex::new(None),
        }
    }

    #[tokio::test]
    async fn a_server_all_of_whose_places_are_taken_hears_that_it_is_to_stop() {
        let dir = tempfile::tempdir().unwrap();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let desk = Arc::new(desk(dir.path(), &stop));
        let full = Arc::new(Semaphore::new(0));
        let accepting = tokio::spawn(accept(listener, desk, full, stop.clone(), tasks));
        tokio::task::yield_now().await;
        stop.cancel();
        timeout(Duration::from_secs(60), accepting).await.unwrap().unwrap();
    }
}
