//! Sizes that are no multiples of anything, as people write them.

use serde_json::{Value, json};

use crate::{
    common::{create, kubectl},
    proxy::BlockServer,
    world::{Pod, World},
};

impl World {
    /// A claim of this size that was given a volume: the name of that, and of its image.
    fn claim_of(&self, class: &str, size: &str) -> String {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": class },
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": size } },
            },
        });
        create(&self.server, &claim);
        let uid = self.read(&["pvc", class])["metadata"]["uid"].clone();
        let volume = format!("pvc-{}", uid.as_str().unwrap());
        self.wait_until("the claim to get its volume", |world| {
            !world.find(&["pv", &volume]).is_null()
        });
        self.bind("default", class, &volume);
        self.phase("pvc", class, "Bound");
        volume
    }

    fn claim_status(&self, claim: &str) -> Value {
        self.read(&["pvc", claim])["status"].clone()
    }

    fn room(&self, pod: &Pod, volume: &str) -> u64 {
        let found = rustix::fs::statvfs(self.dir_of(pod, volume)).unwrap();
        found.f_blocks * found.f_frsize
    }
}

#[test]
fn claims_of_decimal_sizes_get_their_volumes_and_grow() {
    let world = World::with("scan_seconds = 1");
    let _server = BlockServer::start(&world);
    world.storage_of("dirs", "dir", &json!({ "directory": world.path("images") }));
    let pod = world.pod("a");
    let before = world.leftovers();
    let claims = ["main", "net", "dirs"];
    let volumes = claims.map(|storage| {
        let parameters = json!({ "storageCluster": storage, "fsType": "xfs" });
        world.class(storage, &json!({ "allowVolumeExpansion": true, "parameters": parameters }));
        world.claim_of(storage, "330M")
    });
    for (storage, volume) in claims.iter().zip(&volumes) {
        assert_eq!(world.read(&["pv", volume])["spec"]["capacity"]["storage"], "330M");
        let options = json!({ "storageCluster": storage, "kubernetes.io/fsType": "xfs" });
        assert_eq!(world.mount_with(&pod, volume, volume, &options), Ok(()), "{storage}");
    }
    assert_eq!(
        world.device_bytes(),
        [330_002_432, 330_002_432],
        "no smaller than it was asked for"
    );
    let rooms = volumes.each_ref().map(|volume| world.room(&pod, volume));

    // What Kubernetes says of growth is taken back, and what others say is not.
    let condition = |kind: &str| json!({ "type": kind, "status": "True" });
    let said = json!({ "status": { "conditions": [condition("Odd"), condition("Resizing")] } });
    for claim in claims {
        let said = said.to_string();
        let patch = ["patch", "pvc", claim, "--subresource=status", "--type=merge", "-p", &said];
        kubectl(&world.server, &patch, &Value::Null);
        let wish = json!({ "spec": { "resources": { "requests": { "storage": "400M" } } } });
        world.patch("pvc", claim, &wish);
    }
    world.wait_until("all claims to be told of their size", |world| {
        claims.iter().all(|claim| world.claim_status(claim)["capacity"]["storage"] == "400M")
    });
    for claim in claims {
        let conditions = world.claim_status(claim)["conditions"].clone();
        assert_eq!(conditions.as_array().unwrap().len(), 1, "{claim}: {conditions}");
        assert_eq!(conditions[0]["type"], "Odd");
    }
    assert_eq!(
        world.device_bytes(),
        [400_003_072, 400_003_072],
        "no smaller than it was asked for"
    );
    for (volume, before) in volumes.iter().zip(rooms).take(2) {
        assert!(world.room(&pod, volume) > before + 60_000_000, "its file system has grown too");
    }
    assert_eq!(world.agent.fault("sizes"), None);
    for volume in &volumes {
        assert_eq!(world.unmount(&pod, volume), Ok(()));
    }
    assert_eq!(world.leftovers(), before);
}
