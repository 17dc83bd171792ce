//! Following a list: all of it first, then each change.
//!
//! A watch that ends is taken up again where it was; only one whose place is forgotten by the
//! server (410) costs another list. Errors come out like changes: the follower goes on after each of
//! them, later and later, and who follows decides which of them is too much.

use std::{future::pending, time::Duration};

use futures_util::{
    StreamExt,
    stream::{BoxStream, unfold},
};
use kube::{
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    cluster::Cluster,
    error::{KubeError, Result},
};

/// Between two watches, also when the server ends each of them at once.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The place in the history is gone.
const EXPIRED: u16 = 410;

/// What is read of an object that is followed.
pub(crate) trait Followed: DeserializeOwned + Clone + Send + 'static {
    /// Its `resourceVersion`.
    fn version(&self) -> &str;
}

pub(crate) enum Change<T> {
    /// All that there is: what was known before and is not among it is gone.
    All(Vec<T>),
    Is(T),
    Gone(T),
    /// Nothing new, but the server answers again.
    Again,
}

/// A list that is followed. Nothing is asked before the first [`Follow::next`].
pub(crate) struct Follow<T> {
    changes: BoxStream<'static, Result<Change<T>>>,
}

impl<T: Followed> Follow<T> {
    /// `fields` is a field selector. A watch lasts `length`; a connection that died without a word
    /// is noticed by its end.
    pub fn new(cluster: Cluster, path: &str, fields: Option<String>, length: Duration) -> Self {
        let follower = Follower {
            cluster,
            path: path.to_owned(),
            fields,
            length,
            version: None,
            events: None,
            end: Instant::now(),
            not_before: Instant::now(),
            pause: FIRST_PAUSE,
            failed: false,
        };
        let changes = unfold(follower, |mut follower| async {
            let change = follower.next().await;
            follower.failed = change.is_err();
            if change.is_err() {
                follower.not_before = Instant::now() + follower.pause;
                follower.pause = (follower.pause * 2).min(LONGEST_PAUSE);
            } else {
                follower.pause = FIRST_PAUSE;
            }
            Some((change, follower))
        });
        Self { changes: changes.boxed() }
    }

    /// May be dropped and called again: nothing is lost, and nothing is asked twice.
    pub async fn next(&mut self) -> Result<Change<T>> {
        match self.changes.next().await {
            Some(change) => change,
            // It never ends.
            None => pending().await,
        }
    }
}

struct Follower<T> {
    cluster: Cluster,
    path: String,
    fields: Option<String>,
    length: Duration,
    /// Where the next watch begins; `None`: with another list.
    version: Option<String>,
    events: Option<BoxStream<'static, std::result::Result<WatchEvent<T>, kube::Error>>>,
    /// When the watch counts as dead.
    end: Instant,
    not_before: Instant,
    pause: Duration,
    /// The last thing that was told is an error.
    failed: bool,
}

impl<T: Followed> Follower<T> {
    async fn next(&mut self) -> Result<Change<T>> {
        loop {
            let Some(version) = &self.version else {
                sleep_until(self.not_before).await;
                return self.list().await.map(Change::All);
            };
            let Some(events) = &mut self.events else {
                let version = version.clone();
                sleep_until(self.not_before).await;
                match self.open(&version).await {
                    Err(error) if error.code() == Some(EXPIRED) => self.version = None,
                    Ok(()) if self.failed => return Ok(Change::Again),
                    opened => opened?,
                }
                continue;
            };
            let Ok(Some(event)) = timeout_at(self.end, events.next()).await else {
                self.events = None;
                continue;
            };
            if let Some(change) = self.take(event)? {
                return Ok(change);
            }
        }
    }

    async fn list(&mut self) -> Result<Vec<T>> {
        let mut items = Vec::new();
        let mut selection = ListParams::default();
        selection.field_selector.clone_from(&self.fields);
        let take = |item| items.push(item);
        self.version = Some(self.cluster.list_each(&self.path, selection, take).await?);
        Ok(items)
    }

    async fn open(&mut self, version: &str) -> Result<()> {
        let params = WatchParams {
            field_selector: self.fields.clone(),
            timeout: Some(u32::try_from(self.length.as_secs()).unwrap_or(u32::MAX)),
            ..WatchParams::default()
        };
        let request = Request::new(&self.path).watch(&params, version);
        let request = request
            .map_err(|error| KubeError::of(self.what(), kube::Error::BuildRequest(error)))?;
        let client = self.cluster.client.clone();
        let opened = self.cluster.call(self.what(), client.request_events::<T>(request)).await?;
        self.events = Some(opened.boxed());
        self.not_before = Instant::now() + FIRST_PAUSE;
        self.end = Instant::now() + self.length + self.cluster.timeout();
        Ok(())
    }

    fn take(
        &mut self,
        event: std::result::Result<WatchEvent<T>, kube::Error>,
    ) -> Result<Option<Change<T>>> {
        let error = match event {
            Ok(WatchEvent::Added(item) | WatchEvent::Modified(item)) => {
                self.version = Some(item.version().to_owned());
                return Ok(Some(Change::Is(item)));
            }
            Ok(WatchEvent::Deleted(item)) => {
                self.version = Some(item.version().to_owned());
                return Ok(Some(Change::Gone(item)));
            }
            Ok(WatchEvent::Bookmark(mark)) => {
                self.version = Some(mark.metadata.resource_version);
                return Ok(None);
            }
            Ok(WatchEvent::Error(status)) => kube::Error::Api(status),
            Err(error) => error,
        };
        self.events = None;
        let error = KubeError::of(self.what(), error);
        if error.code() == Some(EXPIRED) {
            self.version = None;
            return Ok(None);
        }
        // What was not understood is met again in the same place: all is asked for anew.
        if matches!(error, KubeError::Answer { .. }) {
            self.version = None;
        }
        Err(error)
    }

    fn what(&self) -> String {
        format!("watch {}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use kube::core::Status;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Clone, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Item {
        resource_version: String,
    }

    impl Followed for Item {
        fn version(&self) -> &str {
            &self.resource_version
        }
    }

    /// One that has a list of version 5, and asks nobody.
    fn follower() -> Follower<Item> {
        let authority = rcgen::generate_simple_self_signed(["test".to_owned()]).unwrap().cert.pem();
        let cluster = Cluster::from_kubeconfig(&format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', \
             certificate-authority-data: {}}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n",
            STANDARD.encode(authority)
        ));
        Follower {
            cluster: cluster.unwrap(),
            path: "/items".to_owned(),
            fields: None,
            length: Duration::from_secs(1),
            version: Some("5".to_owned()),
            events: None,
            end: Instant::now(),
            not_before: Instant::now(),
            pause: FIRST_PAUSE,
            failed: false,
        }
    }

    fn event(value: serde_json::Value) -> std::result::Result<WatchEvent<Item>, kube::Error> {
        Ok(serde_json::from_value(value).unwrap())
    }

    #[tokio::test]
    async fn every_event_moves_the_place_and_only_one_that_is_forgotten_costs_a_list() {
        let mut follower = follower();
        let object = |version: &str| json!({ "resourceVersion": version });
        let added = event(json!({ "type": "ADDED", "object": object("6") }));
        assert!(matches!(follower.take(added), Ok(Some(Change::Is(_)))));
        assert_eq!(follower.version.as_deref(), Some("6"));
        let mark = json!({ "kind": "Item", "apiVersion": "v1", "metadata": object("9") });
        let mark = event(json!({ "type": "BOOKMARK", "object": mark }));
        assert!(matches!(follower.take(mark), Ok(None)));
        assert_eq!(follower.version.as_deref(), Some("9"));
        let gone = event(json!({ "type": "DELETED", "object": object("10") }));
        assert!(matches!(follower.take(gone), Ok(Some(Change::Gone(_)))));

        let status = |code: u16| Status { code, ..Status::default() }.boxed();
        let passing = follower.take(Err(kube::Error::Api(status(500))));
        assert_eq!(passing.err().unwrap().code(), Some(500));
        assert_eq!(follower.version.as_deref(), Some("10"), "it is taken up where it was");
        assert!(matches!(follower.take(Ok(WatchEvent::Error(status(410)))), Ok(None)));
        assert_eq!(follower.version, None, "all is asked for anew");

        follower.version = Some("11".to_owned());
        let garbled = serde_json::from_str::<Item>("{}").err().unwrap();
        assert!(follower.take(Err(kube::Error::SerdeError(garbled))).is_err());
        assert_eq!(follower.version, None, "it would be met again in the same place");
    }

    #[tokio::test]
    async fn who_does_not_answer_is_an_error_each_time_and_never_the_end() {
        let Follower { cluster, .. } = follower();
        let length = Duration::from_secs(1);
        let mut follow: Follow<Item> = Follow::new(cluster, "/items", None, length);
        for _ in 0..2 {
            assert!(follow.next().await.err().unwrap().is_transient());
        }
    }
}
