//! Certificates of agents that near their end while the link stands.

use std::{fs, os::unix::fs::MetadataExt};

use wharf_api::node_files::ZedAgentStatus;
use wharf_testbed::etcd::Etcd;

use crate::world::{Node, World, eventually};

/// An agent that has the certificate that lies in the vault, and the number of its link.
async fn settled(world: &World) -> (Node, u64) {
    let node = Node::start(world, "n1").await;
    eventually(async || node.keeps(&world.certificate("n1").await)).await;
    let link = world.link_of("n1").await;
    (node, link)
}

/// Lets the certificate near its end, and waits until the agent keeps another one.
async fn renewed(world: &World, node: &Node) {
    let ending = world.age_certificate("n1").await;
    eventually(async || {
        let wanted = world.certificate("n1").await;
        wanted != ending && node.keeps(&wanted)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_stands_gets_a_new_certificate_which_the_next_one_shows() {
    let world = World::start_renewing("embedded", 3).await;
    let (node, link) = settled(&world).await;
    renewed(&world, &node).await;
    assert_eq!(world.link_of("n1").await, link, "it was the same link all the time");
    let mode = fs::metadata(node.identity_file()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600, "the key is in it");

    // An agent that showed another one would be handed this one again, before its configuration.
    let file = |node: &Node| fs::metadata(node.identity_file()).unwrap().ino();
    let kept = file(&node);
    let node = node.restart_after_boot(&world).await;
    node.wait_until(|status: &ZedAgentStatus| status.config_get_status == 1).await;
    assert_ne!(world.link_of("n1").await, link);
    assert_eq!(file(&node), kept, "the file was not written again");
    node.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_ends_no_link_and_the_look_at_certificates_goes_on_after_it() {
    let mut etcd = Etcd::start().unwrap();
    let store = etcd.endpoint().replace("http://", "etcd://");
    let world = World::start_renewing(&store, 3).await;
    let (node, link) = settled(&world).await;
    let before = world.failed_renewals().await;
    etcd.pause().unwrap();
    eventually(async || world.failed_renewals().await >= before + 2).await;
    etcd.resume().unwrap();
    eventually(async || world.store_answers().await).await;
    renewed(&world, &node).await;
    assert_eq!(world.link_of("n1").await, link, "it was the same link all the time");
    assert_eq!(node.fault("the link"), "");
    node.stop().await;
    world.stop().await;
}

/// The server hands a certificate out once in a connection, which may stand for longer than the old
/// one lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_the_agent_could_not_keep_is_kept_later() {
    let subject = "keeping a new certificate";
    let world = World::start_renewing("embedded", 3).await;
    let (node, link) = settled(&world).await;
    let file = node.identity_file();
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    world.age_certificate("n1").await;
    eventually(async || !node.fault(subject).is_empty()).await;
    fs::remove_dir_all(&file).unwrap();
    eventually(async || node.keeps(&world.certificate("n1").await)).await;
    eventually(async || node.fault(subject).is_empty()).await;
    assert_eq!(world.link_of("n1").await, link, "it was the same link all the time");
    node.stop().await;
    world.stop().await;
}
