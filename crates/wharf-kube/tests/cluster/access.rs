//! Reaching the cluster.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use wharf_kube::{Cluster, KubeError};
use wharf_testbed::process::free_port;

use crate::{passage::Passage, world};

fn server(port: u16) -> Uri {
    format!("https://127.0.0.1:{port}").parse().unwrap()
}

#[tokio::test]
async fn a_certificate_and_a_token_both_reach_the_cluster() {
    let world = world();
    for text in [world.server.kubeconfig(), world.server.kubeconfig_with_token()] {
        let cluster = Cluster::from_kubeconfig(&text).unwrap();
        let probe = cluster.probe(Duration::from_secs(10)).await.unwrap();
        assert!(probe.version.starts_with("v1."), "{probe:?}");
        assert_eq!(probe.server, server(world.server.port()));
    }
}

#[tokio::test]
async fn a_probe_survives_a_dead_and_a_frozen_server_and_others_follow_it() {
    let world = world();
    let dead = free_port().unwrap();
    // It takes connections, as a frozen machine does, and never says a word.
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    let live = world.server.port();
    let servers = [server(dead), server(frozen.local_addr().unwrap().port()), server(live)];
    let cluster = world.cluster().with_servers(&servers).unwrap();
    let start = Instant::now();
    let probe = cluster.probe(Duration::from_secs(10)).await.unwrap();
    assert_eq!(probe.server, server(live));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());

    // The good one is remembered, so the next requests do not meet the bad ones.
    let start = Instant::now();
    cluster.observe_nodes().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_server_that_freezes_under_an_open_connection_is_left_for_another() {
    let world = world();
    let passage = Passage::to(world.server.port());
    let servers = [server(passage.port), server(world.server.port())];
    let cluster = world.cluster().with_servers(&servers).unwrap();
    let probe = cluster.probe(Duration::from_secs(10)).await.unwrap();
    assert_eq!(probe.server, server(passage.port));

    passage.freeze(true);
    let start = Instant::now();
    let probe = cluster.probe(Duration::from_secs(10)).await.unwrap();
    assert_eq!(probe.server, server(world.server.port()));
    cluster.observe_nodes().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_request_without_a_probe_passes_over_a_dead_and_a_frozen_server() {
    let world = world();
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    let servers = [
        server(frozen.local_addr().unwrap().port()),
        server(free_port().unwrap()),
        server(world.server.port()),
    ];
    let cluster = world.cluster().with_servers(&servers).unwrap();
    cluster.observe_nodes().await.unwrap();
}

#[tokio::test]
async fn all_servers_must_be_ready_and_those_that_are_not_are_named() {
    let world = world();
    let cluster = world.cluster();
    cluster.wait_servers_ready(Duration::from_secs(10)).await.unwrap();
    let dead = server(free_port().unwrap());
    let both = [server(world.server.port()), dead.clone()];
    let half = cluster.with_servers(&both).unwrap();
    let error = half.wait_servers_ready(Duration::from_millis(500)).await.unwrap_err().to_string();
    assert!(error.contains(dead.to_string().trim_end_matches('/')), "{error}");
    assert!(!error.contains(world.server.url().as_str()), "{error}");
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_unreachable_within_the_time() {
    let world = world();
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    let servers = [server(free_port().unwrap()), server(frozen.local_addr().unwrap().port())];
    let cluster = world.cluster().with_servers(&servers).unwrap();
    let start = Instant::now();
    let error = cluster.probe(Duration::from_secs(1)).await.unwrap_err();
    let silent = matches!(error, KubeError::Unreachable { .. } | KubeError::Timeout { .. });
    assert!(silent, "{error}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_server_with_a_certificate_of_another_authority_is_not_trusted() {
    let world = world();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let other = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let text = world.server.kubeconfig();
    let text = text.replace(&STANDARD.encode(world.server.authority()), &STANDARD.encode(other));
    assert_ne!(text, world.server.kubeconfig());
    let cluster = Cluster::from_kubeconfig(&text).unwrap();
    let error = cluster.probe(Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(error, KubeError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_stranger_is_answered_and_refused() {
    let world = world();
    let text = world.server.kubeconfig_with_token();
    let text = text.replace(world.server.token(), "wrong");
    let error = Cluster::from_kubeconfig(&text).unwrap().observe_nodes().await.unwrap_err();
    assert_eq!(error.code(), Some(401), "{error}");
}
