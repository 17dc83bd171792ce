//! A cluster, reached through any of its API servers.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use http::{Method, Request, Uri, header};
use kube::{Client, api::ListParams};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    error::{KubeError, Result},
    kubeconfig::{self, KubeconfigError},
    transport::{Only, Transport},
};

/// A request of a person or a loop should not hang longer; big lists are asked for in pages.
const REQUEST: Duration = Duration::from_secs(10);
/// A server that has not answered the probe by then gets company.
const STAGGER: Duration = Duration::from_millis(500);
/// One server's word on whether it is ready.
const READY: Duration = Duration::from_secs(3);
/// Between two looks at something that is waited for.
pub(crate) const POLL: Duration = Duration::from_millis(250);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Drains of many nodes share these: more at once make an API server slower, not faster, and each
/// needs a connection.
const EVICTIONS: usize = 32;

/// Cheap to clone; all clones share connections. Needs a running Tokio runtime.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) client: Client,
    transport: Transport,
    timeout: Duration,
    /// Whoever evicts pods takes a turn.
    pub(crate) evictions: Arc<Semaphore>,
    /// Whoever asks anything takes one of these, where there are such.
    turns: Option<Arc<Semaphore>>,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// As Kubernetes calls it: `v1.36.3`.
    pub version: String,
    /// The API server that answered.
    pub server: Uri,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("servers", self.transport.servers()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster that the current context of a kubeconfig names.
    ///
    /// # Errors
    /// [`KubeError::Kubeconfig`]; no connection is made.
    pub fn from_kubeconfig(yaml: &str) -> Result<Self> {
        let access = kubeconfig::parse(yaml)?;
        let servers = vec![access.server.clone()];
        Ok(Self::build(Transport::new(access, servers)?, REQUEST))
    }

    /// The same cluster, asked at all of these servers instead of the one in its kubeconfig.
    ///
    /// # Errors
    /// [`KubeError::Kubeconfig`] when one of them is not an `https://` address, or there is none.
    pub fn with_servers(&self, servers: &[Uri]) -> Result<Self> {
        let checked: std::result::Result<Vec<_>, _> =
            servers.iter().map(|server| kubeconfig::server(&server.to_string())).collect();
        let checked = checked?;
        if checked.is_empty() {
            return Err(KubeconfigError::MissingField { field: "server" }.into());
        }
        Ok(Self::build(self.transport.with_servers(checked), self.timeout))
    }

    /// The same cluster, with another limit of time for each request.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The same cluster for all who share these turns: no more of their requests are under way at once,
    /// and no more connections are needed for them. Who waits for a turn waits for an answer.
    #[must_use]
    pub fn with_turns(&self, turns: Arc<Semaphore>) -> Self {
        Self { turns: Some(turns), ..self.clone() }
    }

    fn build(transport: Transport, timeout: Duration) -> Self {
        let evictions = Arc::new(Semaphore::new(EVICTIONS));
        let client = Client::new(transport.clone(), "default");
        Self { client, transport, timeout, evictions, turns: None }
    }

    /// Asks all API servers for their version until one answers: the last good one first, the
    /// others when it hesitates.
    ///
    /// # Errors
    /// None answered within the time; the error tells of the last.
    pub async fn probe(&self, within: Duration) -> Result<Probe> {
        let end = Instant::now() + within;
        let what = || "ask for the version".to_owned();
        let mut asked = FuturesUnordered::new();
        let mut left = self.transport.servers().order().into_iter();
        let mut failure = KubeError::Timeout { what: what(), after: within };
        loop {
            if let Some(server) = left.next() {
                asked.push(self.version_of(server));
            }
            let next = Instant::now() + STAGGER;
            let patience = if left.len() == 0 { end } else { next.min(end) };
            match timeout_at(patience, asked.next()).await {
                Ok(Some(Ok(probe))) => return Ok(probe),
                Ok(Some(Err(error))) => failure = error,
                Ok(None) if left.len() == 0 => return Err(failure),
                Ok(None) => {}
                Err(_) if Instant::now() >= end => return Err(failure),
                Err(_) => {}
            }
        }
    }

    /// Waits until every API server says that it is ready.
    ///
    /// # Errors
    /// [`KubeError::NotReached`] names those that do not.
    pub async fn wait_servers_ready(&self, within: Duration) -> Result<()> {
        self.wait_until("all API servers being ready", within, || async {
            let servers = self.transport.servers();
            let answers = join_all(servers.order().into_iter().map(|server| async move {
                let error = self.is_good(server, "/readyz").await.err()?;
                let server = servers.get(server).map(ToString::to_string).unwrap_or_default();
                Some(format!("{}: {error}", server.trim_end_matches('/')))
            }));
            let missing: Vec<String> = answers.await.into_iter().flatten().collect();
            Ok(if missing.is_empty() { Ok(()) } else { Err(missing) })
        })
        .await
    }

    /// Whether each API server finds its etcd in order, by the address (without port) at which it
    /// is asked. One that does not answer soon counts as one that does not.
    pub async fn etcd_health(&self) -> BTreeMap<String, bool> {
        let servers = self.transport.servers();
        let asked = servers.order().into_iter().map(|server| async move {
            let good = self.is_good(server, "/readyz/etcd").await.is_ok();
            let host = servers.get(server).and_then(Uri::host).unwrap_or_default();
            (host.trim_matches(['[', ']']).to_owned(), good)
        });
        let mut health = BTreeMap::new();
        for (host, good) in join_all(asked).await {
            *health.entry(host).or_insert(true) &= good;
        }
        health
    }

    async fn is_good(&self, server: usize, path: &str) -> Result<()> {
        let mut request = get(path);
        request.extensions_mut().insert(Only(server));
        let patient = self.with_timeout(READY);
        patient.call("ask whether it is ready", self.client.request_text(request)).await.map(drop)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn version_of(&self, server: usize) -> Result<Probe> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let mut request = get("/version");
        request.extensions_mut().insert(Only(server));
        let version: Version =
            self.call("ask for the version", self.client.request(request)).await?;
        let server = self.transport.servers().get(server).cloned().unwrap_or_default();
        Ok(Probe { version: version.git_version, server })
    }

    /// One request within this cluster's limit of time.
    pub(crate) async fn call<T>(
        &self,
        what: impl Into<String>,
        request: impl Future<Output = std::result::Result<T, kube::Error>>,
    ) -> Result<T> {
        let in_turn = async {
            let _turn = match &self.turns {
                Some(turns) => turns.acquire().await.ok(),
                None => None,
            };
            request.await
        };
        match tokio::time::timeout(self.timeout, in_turn).await {
            Ok(answer) => answer.map_err(|error| KubeError::of(what.into(), error)),
            Err(_) => Err(KubeError::Timeout { what: what.into(), after: self.timeout }),
        }
    }

    /// A GET of a path; `None` when there is nothing there.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        match self.call(format!("read {path}"), self.client.request(get(path))).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A request with a body of JSON; `kind` says how it is meant.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        what: String,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<T> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .body(body.to_string().into_bytes())
            .map_err(|error| KubeError::of(what.clone(), kube::Error::HttpError(error)))?;
        self.call(what, self.client.request(request)).await
    }

    /// All items of a list, page by page, each reduced to what `T` keeps of it.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        selection: ListParams,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        self.list_each(path, selection, |item| items.push(item)).await?;
        Ok(items)
    }

    /// Takes each item of a list, page by page. Gives the version of the list, from which it can be
    /// watched.
    pub(crate) async fn list_each<T: DeserializeOwned>(
        &self,
        path: &str,
        selection: ListParams,
        take: impl FnMut(T),
    ) -> Result<String> {
        self.list_pages(path, selection, kube::core::Request::list, take).await
    }

    /// The same, with nothing of each item but its metadata.
    pub(crate) async fn list_each_metadata<T: DeserializeOwned>(
        &self,
        path: &str,
        selection: ListParams,
        take: impl FnMut(T),
    ) -> Result<String> {
        self.list_pages(path, selection, kube::core::Request::list_metadata, take).await
    }

    async fn list_pages<T: DeserializeOwned>(
        &self,
        path: &str,
        selection: ListParams,
        ask: impl Fn(&kube::core::Request, &ListParams) -> Asked,
        mut take: impl FnMut(T),
    ) -> Result<String> {
        let mut params = selection.limit(PAGE);
        let what = || format!("list {path}");
        for _ in 0..MOST_PAGES {
            let request = ask(&kube::core::Request::new(path), &params);
            let request =
                request.map_err(|error| KubeError::of(what(), kube::Error::BuildRequest(error)))?;
            let page: Page<T> = self.call(what(), self.client.request(request)).await?;
            page.items.unwrap_or_default().into_iter().for_each(&mut take);
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                Some(_) | None => return Ok(page.metadata.resource_version),
            }
        }
        let most = format!("it has more than {} items", MOST_PAGES * PAGE);
        Err(KubeError::Answer { what: what(), source: most.into() })
    }

    /// Tries again what failed for a passing reason, until it succeeds or the time is over.
    pub(crate) async fn persist<T, F>(
        &self,
        within: Duration,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let end = Instant::now() + within;
        let mut pause = FIRST_PAUSE;
        loop {
            match attempt().await {
                Err(error) if error.is_transient() && Instant::now() + pause < end => {
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Looks again and again until `look` says that it is so; its `Err` says what is missing.
    pub(crate) async fn wait_until<T, F>(
        &self,
        what: impl Into<String>,
        within: Duration,
        mut look: impl FnMut() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<std::result::Result<T, Vec<String>>>>,
    {
        let end = Instant::now() + within;
        loop {
            let last = match look().await {
                Ok(Ok(there)) => return Ok(there),
                Ok(Err(missing)) => missing,
                Err(error) if error.is_transient() => vec![error.to_string()],
                Err(error) => return Err(error),
            };
            if Instant::now() >= end {
                return Err(KubeError::NotReached { what: what.into(), after: within, last });
            }
            sleep_until(end.min(Instant::now() + POLL)).await;
        }
    }
}

/// A request for a page of a list.
type Asked = std::result::Result<Request<Vec<u8>>, kube::core::request::Error>;

/// A whole object, or options.
pub(crate) const JSON: &str = "application/json";
/// What is said replaces what is there; lists as a whole.
pub(crate) const MERGE: &str = "application/merge-patch+json";

/// Few enough pods for a page of some megabytes.
const PAGE: u32 = 250;
/// Together 250,000 items, more than Kubernetes is made for; whoever sends more sends without end.
const MOST_PAGES: u32 = 1000;

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMeta,
    /// Some servers send null for an empty list.
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(rename = "continue")]
    continue_: Option<String>,
    #[serde(default)]
    resource_version: String,
}

/// The client library builds requests of this kind only.
pub(crate) fn get(path: &str) -> Request<Vec<u8>> {
    let mut request = Request::new(Vec::new());
    // A path that we wrote; what cannot be parsed is asked for as `/` and answered with 403 or 404.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base64::{Engine, engine::general_purpose::STANDARD};

    use super::*;

    /// One that is never really asked.
    fn nowhere() -> Cluster {
        let authority = rcgen::generate_simple_self_signed(["test".to_owned()]).unwrap().cert.pem();
        let kubeconfig = format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', \
             certificate-authority-data: {}}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n",
            STANDARD.encode(authority)
        );
        Cluster::from_kubeconfig(&kubeconfig).unwrap()
    }

    #[tokio::test]
    async fn of_those_who_share_turns_few_ask_at_once_and_none_waits_for_ever() {
        let turns = Arc::new(Semaphore::new(3));
        let cluster = nowhere().with_turns(turns.clone());
        let (under_way, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ask = || {
            cluster.call("ask", async {
                let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                under_way.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        };
        let asked = join_all((0..50).map(|_| ask())).await;
        assert!(asked.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::SeqCst), 3);

        let _all = turns.acquire_many(3).await.unwrap();
        let hasty = cluster.with_timeout(Duration::from_millis(20));
        let late = hasty.call("ask", async { Ok(()) }).await;
        assert!(matches!(late, Err(KubeError::Timeout { .. })), "{late:?}");
        let others = nowhere().call("ask", async { Ok(()) }).await;
        assert!(others.is_ok(), "who shares no turns waits for none");
    }
}
