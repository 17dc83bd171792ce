//! A question of the server about an application. This node's tracker answers it, also where there is
//! no status server: a cluster of few nodes has none.

use std::net::IpAddr;

use wharf_api::{
    link::{NodeConfig, Up},
    trace::ClusterTrace,
};

use crate::{health::Reporter, tracker::Tracker};

/// An answer is a message of the link, and must leave room for the others.
const MOST_BYTES: usize = 4 << 20;

/// From where peers are asked: they hear their cluster's network only.
pub fn own_address(config: &NodeConfig) -> Option<IpAddr> {
    config.cluster.as_ref()?.cluster_ip_prefix.map(|prefix| prefix.address)
}

pub async fn answer(
    tracker: Tracker,
    reporter: Reporter,
    from: Option<IpAddr>,
    id: u64,
    app: String,
) -> Up {
    match fitting(tracker.cluster_app(&app, from, &reporter).await) {
        Ok(trace) => Up::Trace { id, trace: Some(trace), error: None },
        Err(reason) => Up::Trace { id, trace: None, error: Some(reason) },
    }
}

/// A message that is too long would end the link.
fn fitting(trace: ClusterTrace) -> Result<ClusterTrace, String> {
    let size = serde_json::to_vec(&trace).map_err(|error| error.to_string())?.len();
    if size > MOST_BYTES {
        return Err(format!("the answer has {size} bytes, more than {MOST_BYTES}"));
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use wharf_api::trace::AppTrace;

    use super::*;

    #[test]
    fn an_answer_that_would_end_the_link_is_refused() {
        let node = |length: usize| AppTrace {
            hostname: "n1".to_owned(),
            collect_time: None,
            app_info: Vec::new(),
            stuck: None,
            errors: Some("x".repeat(length)),
        };
        let trace = |length: usize| ClusterTrace {
            key: "cluster-app".to_owned(),
            value: vec![node(length), node(length)],
        };
        assert!(fitting(trace(10)).is_ok());
        let reason = fitting(trace(MOST_BYTES / 2)).unwrap_err();
        assert!(reason.contains("more than 4194304"), "{reason}");
    }
}
