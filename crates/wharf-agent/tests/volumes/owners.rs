//! An image belongs to one PersistentVolume.

use std::fs;

use serde_json::{Value, json};
use wharf_block::nbd::{ImageName, client::Control};

use crate::{
    common::kubectl,
    proxy::{BlockServer, Writer},
    world::{Pod, World, is_mounted},
};

/// The second one names the image of the first, on each kind of storage, to write or to read.
#[test]
fn a_second_volume_of_an_image_is_refused_and_the_first_sees_nothing_of_it() {
    let world = World::new();
    let second = world.second("n1");
    let server = BlockServer::start(&world);
    server.image("one", 64);
    world.image("one", 64);
    world.storage_of("dirs", "dir", &json!({ "directory": world.path("shared") }));
    fs::create_dir_all(world.path("shared/one")).unwrap();
    let (here, there) = (world.pod("a"), world.pod_on("n1", &second, "b"));
    let before = world.leftovers();
    for storage in ["main", "net", "dirs"] {
        let volume = |name: &str, mode: &str| {
            let options = json!({ "storageCluster": storage, "image": "one" });
            let source = json!({ "driver": "wharf.dev/volume", "options": options });
            let more = json!({ "flexVolume": source, "accessModes": [mode] });
            world.volume(&format!("{storage}-{name}"), "one", &more);
            format!("{storage}-{name}")
        };
        let mount = |pod: &Pod, volume: &str, mode: &str| {
            let more = json!({ "storageCluster": storage, "kubernetes.io/readwrite": mode });
            world.mount_with(pod, volume, "one", &more)
        };
        let first = volume("first", "ReadWriteOnce");
        let (writes, reads) = (volume("writes", "ReadWriteOnce"), volume("reads", "ReadOnlyMany"));
        assert_eq!(mount(&here, &first, "rw"), Ok(()));
        let writer = Writer::start(world.dir_of(&here, &first).join("log"));
        for (volume, mode) in [(&writes, "rw"), (&reads, "ro")] {
            let refused = mount(&there, volume, mode).unwrap_err();
            let why = format!("image one is in use by volume {first}");
            assert!(refused.contains(&why), "{storage} {mode}: {refused}");
            assert!(!is_mounted(&world.dir_of(&there, volume)));
            assert_eq!(world.record(volume), None, "{storage} {mode}");
        }
        writer.wait_for_more();
        let (_, ended) = writer.end();
        assert!(ended.is_ok(), "{storage}: {ended:?}");
        assert_eq!(world.unmount(&here, &first), Ok(()));
        // It is its own also while nobody has it.
        assert!(mount(&there, &writes, "rw").is_err(), "{storage}");
    }
    assert_eq!(world.leftovers(), before);
}

/// Somebody made a volume by hand of an image that was made for a claim, and uses it.
#[test]
fn an_image_that_another_volume_uses_is_not_erased_with_its_claim() {
    let world = World::with("scan_seconds = 1");
    let server = BlockServer::start(&world);
    world.class("net", &json!({ "parameters": { "storageCluster": "net" } }));
    let volume = world.claim("default", "net", "data");
    world.volume_of("net", "by-hand", &volume);
    let pod = world.pod("a");
    assert_eq!(world.mount_of("net", &pod, "by-hand", &volume), Ok(()));
    let writer = Writer::start(world.dir_of(&pod, "by-hand").join("log"));

    let free = "{\"metadata\":{\"finalizers\":null}}";
    kubectl(&world.server, &["patch", "pvc", "data", "--type=merge", "-p", free], &Value::Null);
    kubectl(&world.server, &["delete", "pvc", "data"], &Value::Null);
    world.phase("pv", &volume, "Released");
    world.wait_until("people to be told of it", |world| {
        let why = world.agent.fault("storage net").unwrap_or_default();
        why.contains(&format!("image {volume} is in use by volume by-hand"))
    });
    writer.wait_for_more();
    let (_, ended) = writer.end();
    assert!(ended.is_ok(), "{ended:?}");
    let mut control =
        Control::connect(&server.address, std::time::Duration::from_secs(60)).unwrap();
    let info = control.epoch(&ImageName::new(&volume).unwrap()).unwrap();
    assert_eq!(info.owner.as_deref(), Some("by-hand"));
    assert_eq!(world.unmount(&pod, "by-hand"), Ok(()));
}
