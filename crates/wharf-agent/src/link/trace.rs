//! A question of the server about an application: this node's status server knows the answer, and
//! asks the peers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hyper::Method;
use wharf_api::{
    link::{NodeConfig, Up},
    trace::ClusterTrace,
};
use wharf_core::{node::serve::encode, words::chain};

use crate::{
    config::Config,
    status::{
        http::{self, Question},
        server::read_token,
    },
};

/// Peers are asked for 5 s; the server waits for 10.
const PATIENCE: Duration = Duration::from_secs(8);
const MOST_BYTES: usize = 4 << 20;

/// The address on which this node's status server listens, without its port.
pub fn own_address(config: &NodeConfig) -> Option<std::net::IpAddr> {
    config.cluster.as_ref()?.cluster_ip_prefix.map(|prefix| prefix.address)
}

pub async fn ask(
    config: Arc<Config>,
    address: Option<std::net::IpAddr>,
    id: u64,
    app: String,
) -> Up {
    let asked = match address {
        Some(address) => get(&config, SocketAddr::new(address, config.status_port), &app).await,
        None => Err("the node has no address in the cluster".to_owned()),
    };
    match asked {
        Ok(trace) => Up::Trace { id, trace: Some(trace), error: None },
        Err(reason) => Up::Trace { id, trace: None, error: Some(reason) },
    }
}

async fn get(config: &Config, at: SocketAddr, app: &str) -> Result<ClusterTrace, String> {
    let token = match &config.trace_token_file {
        Some(file) => Some(
            read_token(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?,
        ),
        None => None,
    };
    let question = Question {
        method: Method::GET,
        server: at,
        from: None,
        path: &format!("/cluster-app/{}", encode(app)),
        token: token.as_deref(),
        within: PATIENCE,
        most_bytes: MOST_BYTES,
    };
    let answer = http::ask(&question).await.map_err(|error| format!("{at}: {}", chain(&error)))?;
    if answer.code != 200 {
        return Err(format!("{at} answered {}", answer.code));
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("{at}: {error}"))
}
