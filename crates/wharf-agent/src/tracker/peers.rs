//! Asking every other node of the cluster, all at once.

use std::{net::SocketAddr, time::Duration};

use futures_util::{StreamExt, stream};
use hyper::Method;
use wharf_api::trace::AppTrace;
use wharf_core::{node::serve::encode, words::chain};
use wharf_kube::{Cluster, NodeAddress};

use crate::{
    config::Config,
    health::Reporter,
    status::{
        Place,
        http::{self, HttpError, Question},
        server::read_token,
    },
};

/// For each peer, from the connection to the end of its answer.
const WITHIN: Duration = Duration::from_secs(5);
/// For the list of peers.
const LIST_WITHIN: Duration = Duration::from_secs(5);
/// Connections at a time; a larger cluster takes longer.
const AT_ONCE: usize = 64;
/// An application with many volumes has some kilobytes.
const MOST_BYTES: usize = 1 << 20;
/// Shown as what could not be asked.
const PEERS: &str = "peers";
const BAD_ANSWERS: &str = "bad answers of peers";

/// One answer for each other node. Without a cluster to ask for its nodes there is none, and that is
/// an answer too.
pub async fn ask_all(
    config: &Config,
    asked: &str,
    place: &Place,
    cluster: Option<Cluster>,
    reporter: &Reporter,
) -> Vec<AppTrace> {
    let Some(cluster) = cluster else { return Vec::new() };
    let nodes = match cluster.with_timeout(LIST_WITHIN).node_addresses().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![failed(PEERS, &chain(&error))],
    };
    let token = config.trace_token_file.as_deref().and_then(|path| read_token(path).ok());
    let others = nodes.into_iter().filter(|node| node.address != Some(place.address));
    let path = format!("/app/{}", encode(asked));
    let question = |address| Question {
        method: Method::POST,
        server: SocketAddr::new(address, config.status_port),
        from: Some(place.address),
        path: &path,
        token: token.as_deref(),
        within: WITHIN,
        most_bytes: MOST_BYTES,
    };
    let ask = async |node: NodeAddress| {
        let Some(address) = node.address else {
            return failed(&node.name, "the Node has no InternalIP");
        };
        ask(&question(address)).await.unwrap_or_else(|error| {
            if error.is_bad_answer() {
                reporter.tally(BAD_ANSWERS, &format!("{address}: {}", chain(&error)));
            }
            failed(&address.to_string(), &chain(&error))
        })
    };
    stream::iter(others).map(ask).buffered(AT_ONCE).collect().await
}

#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("it answered {0}")]
    Code(u16),
    #[error("its answer is not understood")]
    Answer(#[source] serde_json::Error),
}

impl PeerError {
    /// A node that is down, or that refuses, says nothing wrong.
    fn is_bad_answer(&self) -> bool {
        match self {
            Self::Http(HttpError::Unreachable(_) | HttpError::Question(_)) | Self::Code(_) => false,
            Self::Http(HttpError::Silent(_) | HttpError::NotHttp(_) | HttpError::Body { .. })
            | Self::Answer(_) => true,
        }
    }
}

async fn ask(question: &Question<'_>) -> Result<AppTrace, PeerError> {
    let answer = http::ask(question).await?;
    if answer.code != 200 {
        return Err(PeerError::Code(answer.code));
    }
    serde_json::from_slice(&answer.body).map_err(PeerError::Answer)
}

fn failed(name: &str, reason: &str) -> AppTrace {
    AppTrace {
        hostname: name.to_owned(),
        collect_time: None,
        app_info: Vec::new(),
        stuck: None,
        errors: Some(reason.to_owned()),
    }
}
