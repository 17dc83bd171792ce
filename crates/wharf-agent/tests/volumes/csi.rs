//! The CSI driver: registered and called as by kubelet, and judged by csi-sanity.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
    sync::Arc,
};

use prost::Message;
use serde_json::{Value, json};
use tonic::{Code, Status};
use wharf_agent::volumes::csi::messages::{
    AccessMode, Empty, MountVolume, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
    PluginInfo, RegistrationStatus, SINGLE_NODE_WRITER, VolumeCapability,
};

use super::{
    door::{self, Door},
    world::{Pod, World, is_mounted},
};

const INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
const PUBLISH: &str = "/csi.v1.Node/NodePublishVolume";
const UNPUBLISH: &str = "/csi.v1.Node/NodeUnpublishVolume";
const REGISTRATION: &str = "the registration of the CSI driver";

/// A call as kubelet's own library makes it: what has no name is named by the path of its socket.
fn kubelet<Q: Message, A: Message + Default>(
    world: &World,
    method: &str,
    question: &Q,
) -> Result<A, Status> {
    let authority = encoded(&world.socket());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(door::call(&world.socket(), &authority, method, question))
}

/// A path as gRPC writes it where the name of a host belongs.
fn encoded(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(byte);
    let path = path.to_str().unwrap().bytes();
    path.map(|byte| match plain(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    })
    .collect()
}

fn wait_for_driver(world: &World) {
    world.wait_until("the driver to answer", |world| {
        kubelet::<_, PluginInfo>(world, INFO, &Empty {}).is_ok()
    });
}

#[test]
fn kubelet_registers_the_driver_and_again_after_a_restart() {
    let mut world = World::new();
    let socket = world.socket();
    wait_for_driver(&world);
    assert!(encoded(&socket).starts_with("%2F"), "{}", encoded(&socket));
    let expected = PluginInfo {
        r#type: "CSIPlugin".to_owned(),
        name: "volume.wharf.dev".to_owned(),
        endpoint: socket.display().to_string(),
        supported_versions: vec!["1.0.0".to_owned()],
    };
    assert_eq!(kubelet::<_, PluginInfo>(&world, INFO, &Empty {}).unwrap(), expected);

    let error = "the version is too low".to_owned();
    let refused = RegistrationStatus { plugin_registered: false, error: error.clone() };
    kubelet::<_, Empty>(&world, NOTIFY, &refused).unwrap();
    world.wait_until("the fault", |world| world.agent.fault(REGISTRATION) == Some(error.clone()));
    let registered = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet::<_, Empty>(&world, NOTIFY, &registered).unwrap();
    world.wait_until("the condition", is_registered);
    assert_eq!(world.agent.fault(REGISTRATION), None);

    // kubelet sees that the socket is another one, and registers it anew.
    let made = |world: &World| fs::metadata(world.socket()).and_then(|file| file.modified()).ok();
    let before = made(&world);
    world.agent.restart();
    wait_for_driver(&world);
    assert_ne!(made(&world), before);
    assert!(!is_registered(&world), "nobody has registered this agent yet");
    assert_eq!(kubelet::<_, PluginInfo>(&world, INFO, &Empty {}).unwrap(), expected);
    kubelet::<_, Empty>(&world, NOTIFY, &registered).unwrap();
    world.wait_until("the condition", is_registered);
}

fn is_registered(world: &World) -> bool {
    let tasks = world.agent.health().map(|health| health.tasks.0).unwrap_or_default();
    let mut conditions = tasks.iter().flat_map(|task| task.conditions.iter());
    conditions.any(|it| it.name == "csi" && it.text == "kubelet registered the driver")
}

#[test]
fn a_volume_goes_from_pod_to_pod_over_a_restart_and_without_its_object() {
    let mut world = World::new();
    wait_for_driver(&world);
    world.image("one", 64);
    make_volume(&world);
    let (pod, other) = (world.pod("a"), world.pod("b"));
    let before = world.leftovers();

    publish(&world, &pod).unwrap();
    publish(&world, &pod).unwrap();
    fs::write(dir_of(&world, &pod).join("file"), "kept").unwrap();
    let entry = world.record("pv-1").unwrap()["attachments"][0].clone();
    assert_eq!((&entry["podUID"], &entry["phase"]), (&json!(pod.uid), &json!("Attached")));
    let refused = publish(&world, &other).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("default/a"), "{refused}");
    assert!(!dir_of(&world, &other).exists(), "kubelet finds nothing where nothing is mounted");

    world.agent.restart();
    world.wait_ready();
    wait_for_driver(&world);
    world.delete("pv", "pv-1");
    unpublish(&world, &pod).unwrap();
    unpublish(&world, &pod).unwrap();
    assert!(!dir_of(&world, &pod).exists());
    assert_eq!((world.record("pv-1"), world.leftovers()), (None, before.clone()));
    assert_eq!(publish(&world, &other).unwrap_err().code(), Code::NotFound);

    make_volume(&world);
    publish(&world, &other).unwrap();
    assert!(is_mounted(&dir_of(&world, &other)));
    assert_eq!(fs::read_to_string(dir_of(&world, &other).join("file")).unwrap(), "kept");
    unpublish(&world, &other).unwrap();
    assert_eq!(world.leftovers(), before);
}

pub fn make_volume(world: &World) {
    let source = json!({ "driver": "volume.wharf.dev", "volumeHandle": "main/one" });
    world.volume("pv-1", "one", &json!({ "flexVolume": null, "csi": source }));
}

/// kubelet makes the directory above it.
fn dir_of(world: &World, pod: &Pod) -> std::path::PathBuf {
    world.path(&format!("kubelet/pods/{}/volumes/kubernetes.io~csi/pv-1/mount", pod.uid))
}

pub fn publish(world: &World, pod: &Pod) -> Result<(), Status> {
    let dir = dir_of(world, pod);
    fs::create_dir_all(dir.parent().unwrap()).unwrap();
    let context = [("name", &*pod.name), ("namespace", "default"), ("uid", &pod.uid)];
    let context = context
        .map(|(key, value)| (format!("csi.storage.k8s.io/pod.{key}"), value.to_owned()))
        .into();
    let call = NodePublishVolumeRequest {
        volume_id: "main/one".to_owned(),
        target_path: dir.display().to_string(),
        volume_capability: Some(VolumeCapability {
            block: None,
            mount: Some(MountVolume { fs_type: "ext4".to_owned(), mount_flags: Vec::new() }),
            access_mode: Some(AccessMode { mode: SINGLE_NODE_WRITER }),
        }),
        readonly: false,
        volume_context: context,
    };
    kubelet::<_, Empty>(world, PUBLISH, &call).map(drop)
}

pub fn unpublish(world: &World, pod: &Pod) -> Result<(), Status> {
    let target_path = dir_of(world, pod).display().to_string();
    let call = NodeUnpublishVolumeRequest { volume_id: "main/one".to_owned(), target_path };
    kubelet::<_, Empty>(world, UNPUBLISH, &call).map(drop)
}

/// Nothing is left out by us. What it skips by itself is what the driver does not offer.
#[test]
fn csi_sanity_finds_nothing_wrong() {
    const VOLUME: &str = "pv-sanity";
    let world = Arc::new(World::new());
    wait_for_driver(&world);
    let before = world.leftovers();
    let pod = world.pod("sanity");
    let volumes = world.path(&format!("kubelet/pods/{}/volumes/kubernetes.io~csi", pod.uid));
    fs::create_dir_all(&volumes).unwrap();
    let door = Door::open(&world, pod, VOLUME);
    let report = world.path("report.json");
    let program = wharf_bundle::cache::find("csi-sanity").expect("`cargo xtask assets` builds it");
    let output = Command::new(program)
        .arg(format!("-csi.endpoint={}", door.socket().display()))
        .arg(format!("-csi.mountdir={}", volumes.join(VOLUME).display()))
        .arg(format!("-csi.stagingdir={}", world.path("staging").display()))
        .args(["-csi.testvolumesize=67108864", "-csi.testvolumeexpandsize=100663296"])
        .args(["-ginkgo.no-color", "-ginkgo.seed=1", "-ginkgo.timeout=10m"])
        .arg(format!("-ginkgo.json-report={}", report.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    // Of these 8 are about our stand-in for Kubernetes; the others are looked at one by one.
    assert!(said.contains("29 Passed | 0 Failed | 1 Pending | 73 Skipped"), "{said}");

    let verdicts = verdicts(&report);
    let of = |service: &str, state: &str| -> BTreeSet<String> {
        let chosen = verdicts.iter().filter(|(name, it)| name.starts_with(service) && *it == state);
        chosen.map(|(name, _)| name.strip_prefix(service).unwrap().trim().to_owned()).collect()
    };
    let count = |service: &str| verdicts.keys().filter(|name| name.starts_with(service)).count();
    assert_eq!((of("Identity Service", "passed").len(), count("Identity Service")), (3, 3));
    let skipped = of("Node Service", "skipped");
    let subjects: BTreeMap<&str, usize> =
        skipped.iter().fold(BTreeMap::new(), |mut counts, name| {
            *counts.entry(name.split(" should").next().unwrap()).or_default() += 1;
            counts
        });
    let not_offered = BTreeMap::from([
        ("NodeStageVolume", 3),
        ("NodeUnstageVolume", 2),
        ("NodePublishVolume with single node multi writer capability", 1),
        ("NodeGetVolumeHealth", 2),
        ("NodeGetStorageHealth", 1),
    ]);
    assert_eq!(subjects, not_offered, "{skipped:#?}");
    assert_eq!((of("Node Service", "passed").len(), count("Node Service")), (18, 27), "{said}");

    assert_eq!(world.leftovers(), before);
    assert_eq!(world.record(VOLUME), None);
    drop(door);
}

/// What became of each test, by its whole name.
fn verdicts(report: &Path) -> BTreeMap<String, String> {
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let specs = report[0]["SpecReports"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let verdict = |spec: &Value| {
        let above = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let names: Vec<String> = above.chain([&spec["LeafNodeText"]]).map(text).collect();
        (names.join(" "), text(&spec["State"]))
    };
    specs.filter(|spec| spec["LeafNodeType"] == "It").map(verdict).collect()
}
