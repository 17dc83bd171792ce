//! Asking every other node of the cluster, all at once.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use hyper::Method;
use tokio::time::{Instant, timeout, timeout_at};
use wharf_api::{link::TRACE_WITHIN, trace::AppTrace};
use wharf_core::{node::serve::encode, words::chain};
use wharf_kube::{Cluster, NodeAddress};

use crate::{
    config::{Config, Role},
    health::Reporter,
    status::{
        http::{self, HttpError, Question},
        server::read_token,
    },
};

/// For each peer, from the connection to the end of its answer.
const WITHIN: Duration = Duration::from_secs(5);
/// For the list of peers. Half of [`TRACE_WITHIN`], so that as much is left for them.
const LIST_WITHIN: Duration = Duration::from_secs(5);
/// Connections at a time. Whoever hangs keeps the next one waiting: of the rest of a large cluster
/// only so many are asked as [`TRACE_WITHIN`] leaves time for.
const AT_ONCE: usize = 64;
/// An application with many volumes has some kilobytes.
const MOST_BYTES: usize = 1 << 20;
/// Shown as what could not be asked.
const PEERS: &str = "peers";
const TOO_LATE: &str = "there was no time left to wait for it";
const BAD_ANSWERS: &str = "bad answers of peers";

/// One answer for each other node, in the order of their names. That they cannot be found is an
/// answer too.
pub async fn ask_all(
    config: &Config,
    asked: &str,
    from: Option<IpAddr>,
    cluster: Option<Cluster>,
    reporter: &Reporter,
) -> Vec<AppTrace> {
    let end = Instant::now() + TRACE_WITHIN;
    let Some(cluster) = cluster else {
        return vec![failed(PEERS, "nobody knows them: no kubeconfig could be read yet")];
    };
    let nodes = match timeout(LIST_WITHIN, cluster.node_addresses()).await {
        Ok(Ok(nodes)) => nodes,
        Ok(Err(error)) => return vec![failed(PEERS, &chain(&error))],
        Err(_) => return vec![failed(PEERS, &format!("no list of them within {LIST_WITHIN:?}"))],
    };
    // Whoever plays the device's agent names no cluster to nodes that are too few.
    let is_small = config.plays(Role::Zedagent) && nodes.len() < config.min_cluster_nodes;
    let token = config.trace_token_file.as_deref().and_then(|path| read_token(path).ok());
    let is_me = |node: &NodeAddress| {
        node.name == config.node_name || (from.is_some() && node.address == from)
    };
    let path = format!("/app/{}", encode(asked));
    let question = |address| Question {
        method: Method::POST,
        server: SocketAddr::new(address, config.status_port),
        from,
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
    let mut questions = Vec::new();
    for node in nodes.into_iter().filter(|node| !is_me(node)) {
        let name = node.address.map_or_else(|| node.name.clone(), |address| address.to_string());
        questions.push((name, ask(node)));
    }
    let mut answers = gather(questions, end).await;
    if is_small {
        answers.iter_mut().for_each(|answer| explain(answer, config.min_cluster_nodes));
    }
    answers
}

/// All answers in the order of the questions, whoever is faster.
async fn gather<F: Future<Output = AppTrace>>(
    questions: Vec<(String, F)>,
    end: Instant,
) -> Vec<AppTrace> {
    let in_time = |(place, (name, question)): (usize, (String, F))| async move {
        let answer = timeout_at(end, question).await;
        (place, answer.unwrap_or_else(|_| failed(&name, TOO_LATE)))
    };
    let questions = stream::iter(questions.into_iter().enumerate()).map(in_time);
    let mut answers: Vec<(usize, AppTrace)> = questions.buffer_unordered(AT_ONCE).collect().await;
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Whoever does not answer there need not be ill.
fn explain(answer: &mut AppTrace, fewest: usize) {
    if let Some(reason) = &mut answer.errors {
        reason.push_str(&format!(
            "; agents hear each other only in clusters of at least {fewest} nodes"
        ));
    }
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn whoever_hangs_keeps_nobody_else_from_answering_and_all_keep_their_places() {
        let answer = async |number: usize| {
            match number {
                0 | 3 => pending().await,
                _ => sleep(Duration::from_millis(10)).await,
            }
            AppTrace { errors: None, ..failed(&number.to_string(), "") }
        };
        let count = AT_ONCE * 2;
        let questions = (0..count).map(|number| (number.to_string(), answer(number))).collect();
        let begin = Instant::now();
        let within = Duration::from_secs(2);
        let answers = gather(questions, begin + within).await;
        assert!(begin.elapsed() < within * 2, "{:?}", begin.elapsed());
        let names: Vec<String> = answers.iter().map(|answer| answer.hostname.clone()).collect();
        assert_eq!(names, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
        let late: Vec<&str> = answers
            .iter()
            .filter(|answer| answer.errors.as_deref() == Some(TOO_LATE))
            .map(|answer| answer.hostname.as_str())
            .collect();
        assert_eq!(late, ["0", "3"]);
    }

    #[test]
    fn a_peer_of_a_small_cluster_that_is_silent_is_explained() {
        let mut silent = failed("10.0.0.2", "it cannot be reached");
        explain(&mut silent, 3);
        let reason = silent.errors.clone().unwrap();
        assert!(reason.ends_with("; agents hear each other only in clusters of at least 3 nodes"));
        let mut fine = AppTrace { errors: None, ..silent };
        explain(&mut fine, 3);
        assert_eq!(fine.errors, None);
    }
}
