//! Asking every other node of the cluster, all at once.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use hyper::Method;
use wharf_api::trace::AppTrace;
use wharf_core::{node::serve::encode, words::chain};
use wharf_kube::{Cluster, NodeAddress};

use crate::{
    config::Config,
    status::{
        Place,
        http::{self, Question},
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

/// One answer for each other node. Without a cluster to ask for its nodes there is none, and that is
/// an answer too.
pub async fn ask_all(
    config: &Config,
    asked: &str,
    place: &Place,
    cluster: Option<Cluster>,
) -> Vec<AppTrace> {
    let Some(cluster) = cluster else { return Vec::new() };
    let nodes = match cluster.with_timeout(LIST_WITHIN).node_addresses().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![failed(PEERS, &chain(&error))],
    };
    let token = config.trace_token_file.as_deref().and_then(|path| read_token(path).ok());
    let others = nodes.into_iter().filter(|node| node.address != Some(place.address));
    stream::iter(others)
        .map(|node| ask(node, config.status_port, asked, place.address, token.as_deref()))
        .buffered(AT_ONCE)
        .collect()
        .await
}

async fn ask(
    node: NodeAddress,
    port: u16,
    asked: &str,
    from: IpAddr,
    token: Option<&str>,
) -> AppTrace {
    let Some(address) = node.address else {
        return failed(&node.name, "the Node has no InternalIP");
    };
    let question = Question {
        method: Method::POST,
        server: SocketAddr::new(address, port),
        from: Some(from),
        path: &format!("/app/{}", encode(asked)),
        token,
        within: WITHIN,
        most_bytes: MOST_BYTES,
    };
    let name = address.to_string();
    match http::ask(&question).await {
        Ok(answer) if answer.code == 200 => match serde_json::from_slice(&answer.body) {
            Ok(trace) => trace,
            Err(error) => failed(&name, &format!("its answer is not understood: {error}")),
        },
        Ok(answer) => failed(&name, &format!("it answered {}", answer.code)),
        Err(error) => failed(&name, &chain(&error)),
    }
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
