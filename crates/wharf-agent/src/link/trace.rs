//! A question of the server about an application: this node's status server knows the answer, and
//! asks the peers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use wharf_api::{
    link::{NodeConfig, Up},
    trace::ClusterTrace,
};

use crate::config::Config;

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
        Some(address) => {
            let at = SocketAddr::new(address, config.status_port);
            match timeout(PATIENCE, get(&config, at, &app)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("{at} did not answer within {} s", PATIENCE.as_secs())),
            }
        }
        None => Err("the node has no address in the cluster".to_owned()),
    };
    match asked {
        Ok(trace) => Up::Trace { id, trace: Some(trace), error: None },
        Err(reason) => Up::Trace { id, trace: None, error: Some(reason) },
    }
}

async fn get(config: &Config, at: SocketAddr, app: &str) -> Result<ClusterTrace, String> {
    let failed =
        |error: &dyn std::error::Error| format!("{at}: {}", wharf_core::words::chain(error));
    let stream = TcpStream::connect(at).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let mut request =
        Request::get(format!("/cluster-app/{}", escaped(app))).header(header::HOST, at.to_string());
    if let Some(file) = &config.trace_token_file {
        let token = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
    if answer.status() != StatusCode::OK {
        return Err(format!("{at} answered {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|error| format!("{at}: {error}"))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| failed(&error))
}

/// A name may have any character; a path may not.
fn escaped(text: &str) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let escape = |byte: u8| match keep(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_paths_need_it() {
        assert_eq!(escaped("web_shop-1.2"), "web_shop-1.2");
        assert_eq!(escaped("a b/ü"), "a%20b%2F%C3%BC");
    }
}
