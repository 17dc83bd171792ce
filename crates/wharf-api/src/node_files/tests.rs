//! Files as other agents write them, and files that nobody should have written.

use std::fmt::Debug;

use serde_json::{Value, json};

use super::*;

const APP: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// What was read, and that writing it again gives the same file.
#[track_caller]
fn round_trip<T: NodeFile + PartialEq + Debug>(file: &Value) -> T {
    let read: T = super::read(file.to_string().as_bytes()).unwrap();
    let written: Value = serde_json::from_slice(&super::write(&read).unwrap()).unwrap();
    assert_eq!(&written, file);
    read
}

/// Every field of the sample is one that the type writes too; the type may know more.
#[track_caller]
fn covers<T: NodeFile + PartialEq + Debug>(sample: &Value) -> T {
    let read: T = super::read(sample.to_string().as_bytes()).unwrap();
    let bytes = super::write(&read).unwrap();
    let written: Value = serde_json::from_slice(&bytes).unwrap();
    contains(&written, sample, T::TYPE);
    assert_eq!(super::read::<T>(&bytes).unwrap(), read);
    read
}

#[track_caller]
fn contains(written: &Value, sample: &Value, place: &str) {
    match (written, sample) {
        (Value::Object(written), Value::Object(sample)) => {
            for (name, field) in sample {
                let place = format!("{place}.{name}");
                let found = written.get(name).unwrap_or_else(|| panic!("{place} is lost"));
                contains(found, field, &place);
            }
        }
        (Value::Array(written), Value::Array(sample)) => {
            assert_eq!(written.len(), sample.len(), "{place}");
            for (written, sample) in written.iter().zip(sample) {
                contains(written, sample, place);
            }
        }
        (written, sample) => assert_eq!(written, sample, "{place}"),
    }
}

#[test]
fn drain_requests_and_their_status_read_as_agents_write_them() {
    let request: NodeDrainRequest = round_trip(&json!({
        "RequestedAt": "2025-01-29T10:11:12.123456789Z", "RequestedBy": 2, "Context": "reboot",
    }));
    assert_eq!((request.requested_by, request.context.as_str()), (2, "reboot"));
    let status: NodeDrainStatus = round_trip(&json!({ "Status": 9, "RequestedBy": 3 }));
    assert_eq!((status.status, status.requested_by), (9, 3));
    // As the force file is written by hand.
    let forced: NodeDrainStatus = super::read(b"{\"Status\":1,\"RequestedBy\":1}\n").unwrap();
    assert_eq!((forced.status, forced.requested_by), (1, 1));
}

#[test]
fn the_cluster_configuration_and_status_keep_their_names_and_formats() {
    let config: EdgeNodeClusterConfig = covers(&json!({
        "ClusterName": "edge",
        "ClusterID": { "UUID": APP, "Version": "3" },
        "ClusterInterface": "cluster-port",
        "ClusterIPPrefix": { "IP": "10.244.244.2", "Mask": "////8A==" },
        "IsWorkerNode": false,
        "JoinServerIP": "10.244.244.1",
        "BootstrapNode": true,
        "CipherToken": { "IsCipher": true, "pubsub-large-CipherData": "AAEC" },
    }));
    let prefix = config.cluster_ip_prefix.unwrap();
    assert_eq!(prefix.to_string(), "10.244.244.2/28");
    assert_eq!(config.join_server_ip.0.unwrap().to_string(), "10.244.244.1");
    assert_eq!(config.cluster_id.uuid.to_string(), APP);

    let status: EdgeNodeClusterStatus = round_trip(&json!({
        "ClusterName": "",
        "ClusterID": { "UUID": "00000000-0000-0000-0000-000000000000", "Version": "" },
        "ClusterInterface": "",
        "ClusterIPPrefix": null,
        "ClusterIPIsReady": false,
        "IsWorkerNode": false,
        "JoinServerIP": "",
        "BootstrapNode": false,
        "EncryptedClusterToken": "",
        "Error": {
            "Error": "", "ErrorTime": "0001-01-01T00:00:00Z", "ErrorSeverity": 0,
            "ErrorRetryCondition": "", "ErrorEntities": null,
        },
    }));
    assert_eq!(status, EdgeNodeClusterStatus::default(), "all of it is the zero value");
}

#[test]
fn the_node_its_ports_and_its_lease_are_read() {
    let info: EdgeNodeInfo = round_trip(&json!({
        "DeviceName": "Edge_1", "DeviceID": APP, "ProjectName": "p", "ProjectID": "1",
        "EnterpriseName": "e", "EnterpriseID": "2",
    }));
    assert_eq!(info.device_name, "Edge_1");
    let ports: DeviceNetworkStatus = covers(&json!({ "Ports": [{
        "IfName": "eth1", "Logicallabel": "cluster-port", "InvalidConfig": false, "IsL3Port": true,
        "AddrInfoList": [{ "Addr": "10.244.244.2" }, { "Addr": "fd00::2" }], "ClusterIPAddr": "",
    }]}));
    let addresses = &ports.ports.first().unwrap().addr_info_list;
    assert_eq!(addresses.iter().filter(|one| one.addr.0.is_some()).count(), 2);
    let lease: KubeLeaseInfo = round_trip(&json!({
        "InLeaseElection": true, "IsStatsLeader": true, "ElectionRunning": true,
        "LeaderIdentity": "edge-1", "LatestChange": "2025-01-29T10:11:12Z",
    }));
    assert!(lease.is_stats_leader);
    let agent: ZedAgentStatus = covers(&json!({ "Name": "zedagent", "ConfigGetStatus": 4 }));
    assert_eq!(agent.config_get_status, 4);
    let node: NodeAgentStatus = covers(&json!({
        "Name": "nodeagent", "WaitDrainInProgress": true, "DeviceReboot": false,
    }));
    assert!(node.wait_drain_in_progress);
}

#[test]
fn applications_volumes_and_networks_are_read() {
    let version = json!({ "UUID": APP, "Version": "1" });
    let config: AppInstanceConfig = covers(&json!({
        "UUIDandVersion": version, "DisplayName": "Web_Shop", "Activate": true, "Errors": null,
        "FixedResources": { "VirtualizationMode": 4, "VncDisplay": 1, "EnableVnc": true },
        "VolumeRefConfigList": [{ "VolumeID": APP, "GenerationCounter": 1 }],
        "AppNetAdapterList": [{ "Name": "eth0", "Network": APP, "AppIPAddr": "10.1.0.2" }],
        "IoAdapterList": [{ "Type": 1, "Name": "eth1" }],
        "RestartCmd": { "Counter": 2, "ApplyTime": "" },
        "RemoteConsole": true, "IsDesignatedNodeID": true,
    }));
    assert_eq!(config.fixed_resources.virtualization_mode, 4);
    assert_eq!(config.io_adapter_list.first().unwrap().name, "eth1");
    covers::<AppInstanceStatus>(&json!({
        "UUIDandVersion": version, "DomainName": "d", "Activated": true, "State": 115,
        "EffectiveActivate": true, "IsDesignatedNodeID": true, "Error": "",
    }));
    covers::<EnClusterAppStatus>(&json!({
        "AppUUID": APP, "IsDNidNode": true, "ScheduledOnThisNode": true, "StatusRunning": true,
        "IsVolumeDetached": false, "AppIsVMI": false, "AppKubeName": "web-shop-0b1a2",
        "AppKubeStatus": 4, "VMIName": "", "VNCPort": 0, "DomainState": "Unknown",
        "UnknownSince": "2025-01-29T10:11:12Z", "EffectiveActivate": true,
    }));
    covers::<DomainConfig>(&json!({ "UUIDandVersion": version, "AppNum": 3, "Activate": true }));
    covers::<DomainStatus>(&json!({
        "UUIDandVersion": version, "State": 118, "NodeName": "n2", "Error": "gone",
    }));
    covers::<DomainMetric>(&json!({
        "UUIDandVersion": version, "CPUTotalNs": 12, "AllocatedMB": 512, "UsedMemory": 100,
        "UsedMemoryPercent": 19.5, "LastHeard": "2025-01-29T10:11:12Z", "Activated": true,
    }));
    covers::<VolumeConfig>(&json!({
        "VolumeID": APP, "ContentID": APP, "MaxVolSize": 1024, "IsReplicated": true,
    }));
    covers::<VolumeStatus>(&json!({
        "VolumeID": APP, "State": 110, "Progress": 100, "TotalSize": 5, "CurrentSize": 5,
    }));
    covers::<ContentTreeStatus>(&json!({ "ContentID": APP, "RelativeURL": "a/b", "State": 108 }));
    covers::<AppDiskMetric>(&json!({
        "DiskPath": "/p", "ProvisionedBytes": 10, "UsedBytes": 5, "DiskType": "QCOW2", "Dirty": false,
    }));
    covers::<AppNetworkConfig>(&json!({
        "UUIDandVersion": version, "Activate": true,
        "AppNetAdapterList": [{ "Name": "eth0", "AppMacAddr": "AhYAAAAB" }],
    }));
    covers::<AppNetworkStatus>(&json!({
        "UUIDandVersion": version, "AppNum": 1, "AppNetAdapterList": [{
            "AssignedAddresses": { "IPv4Addrs": [{ "Address": "10.1.0.2" }], "IPv6Addrs": null } }],
    }));
    covers::<NetworkInstanceStatus>(&json!({
        "UUIDandVersion": version, "Activated": true, "IPAssignments": {
            "02:16:00:00:00:01": { "IPv4Addrs": [{ "Address": "10.1.0.2" }], "IPv6Addrs": null } },
    }));
    covers::<BaseOsConfig>(&json!({ "UUIDandVersion": version, "Activate": true }));
    covers::<BaseOsStatus>(&json!({
        "UUIDandVersion": version, "State": 111, "Activated": false, "PartitionLabel": "IMGB",
    }));
}

#[test]
fn wishes_jobs_and_the_guards_word_are_read_as_they_are_written() {
    round_trip::<NodeWish>(&json!({
        "ID": "1", "Kind": "update", "Canceled": false, "Image": "/os.img", "Sha256": "ab",
        "TakenIn": "boot",
    }));
    let wish: NodeWish = round_trip(&json!({ "ID": "2", "Kind": "reboot", "Canceled": true }));
    assert!(wish.canceled && wish.image.is_empty());
    let jobs: NodeJobs = round_trip(&json!({ "Jobs": [{
        "ID": "2", "Kind": "reboot", "Phase": "failed", "Reason": "the node is still up",
        "Ended": "2025-01-29T10:11:12Z",
    }] }));
    assert_eq!(jobs.jobs.len(), 1);
    round_trip::<DisruptionGuard>(
        &json!({ "Linked": true, "Admitted": false, "Reason": "n2 is out" }),
    );
}

#[test]
fn the_picture_of_the_cluster_keeps_its_names() {
    let info: KubeClusterInfo = covers(&json!({
        "Nodes": [{
            "Name": "n1", "Status": 1, "IsMaster": true, "UsesEtcd": true,
            "CreationTime": "2025-01-29T10:11:12Z", "LastTransitionTime": "0001-01-01T00:00:00Z",
            "KubeletVersion": "v1.36.0", "InternalIP": "10.0.0.1", "ExternalIP": "",
            "Schedulable": true, "Admission": 4, "NodeID": APP,
        }],
        "AppPods": [{ "Name": "web", "Status": 2, "RestartCount": 1, "PodIP": "10.1.0.2",
            "RestartTimestamp": "2025-01-29T10:11:12Z", "CreationTimestamp": "2025-01-29T10:11:12Z",
            "NodeName": "n1" }],
        "AppVMIs": [{ "Name": "vm", "Status": 4, "IsReady": true, "NodeName": "n1" }],
        "Storage": { "Health": 3, "Volumes": [{ "Name": "pvc-1", "State": 2, "Robustness": 1,
            "VolumeID": APP, "Replicas": [{ "Name": "r", "OwnerNode": "n1", "Status": 2,
            "RebuildProgressPercentage": 100 }] }] },
        "PodNsInfo": [{ "Name": "default", "PodCount": 3, "PodRunningCount": 2,
            "PodPendingCount": 1, "PodFailedCount": 0, "PodSucceededCount": 0 }],
    }));
    assert_eq!(info.nodes.len(), 1);
}

#[test]
fn what_is_missing_null_or_unknown_does_no_harm() {
    let empty: AppInstanceConfig = super::read(b"{}").unwrap();
    assert_eq!(empty, AppInstanceConfig::default());
    let nulls = json!({
        "UUIDandVersion": null, "DisplayName": null, "VolumeRefConfigList": [null],
        "FixedResources": { "VncDisplay": null }, "Future": { "a": [1, 2, null] },
    });
    let read: AppInstanceConfig = super::read(nulls.to_string().as_bytes()).unwrap();
    assert_eq!(read, AppInstanceConfig::default());
    let times = json!({ "RequestedAt": "2025-01-29T11:11:12+01:00", "RequestedBy": 2 });
    let read: NodeDrainRequest = super::read(times.to_string().as_bytes()).unwrap();
    assert_eq!(read.requested_at.0.unwrap().to_string(), "2025-01-29T10:11:12Z");
}

#[test]
fn junk_is_told_apart_and_never_taken_for_a_value() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    let huge = format!("{{\"DisplayName\":\"{}\"}}", "x".repeat(MAX_BYTES));
    let rows: [&[u8]; 9] = [
        b"",
        b"\xff\xfe{}",
        b"{\"DisplayName\":",
        b"[]",
        b"null",
        b"{\"Activate\":\"yes\"}",
        b"{\"UUIDandVersion\":{\"UUID\":\"0b1a2c3d\"}}",
        deep.as_bytes(),
        huge.as_bytes(),
    ];
    for row in rows {
        assert!(super::read::<AppInstanceConfig>(row).is_err(), "{row:.40?}");
    }
    for status in ["-1", "256", "\"9\"", "9.5"] {
        let text = format!("{{\"Status\":{status}}}");
        assert!(super::read::<NodeDrainStatus>(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn prefixes_of_both_families_are_understood_and_bad_masks_are_not() {
    let read = |ip: &str, mask: &str| {
        serde_json::from_value::<IpPrefix>(json!({ "IP": ip, "Mask": mask }))
            .map(|prefix| prefix.to_string())
            .ok()
    };
    let rows = [
        ("10.0.0.1", "////AA==", Some("10.0.0.1/24")),
        ("10.0.0.1", "/////w==", Some("10.0.0.1/32")),
        ("10.0.0.1", "AAAAAA==", Some("10.0.0.1/0")),
        ("10.0.0.1", "////////////////////AA==", Some("10.0.0.1/24")),
        ("fd00::1", "//////////8AAAAAAAAAAA==", Some("fd00::1/64")),
        ("10.0.0.1", "/wD/AA==", None),
        ("10.0.0.1", "//8=", None),
        ("10.0.0.1", "", None),
        ("fd00::1", "////AA==", None),
        ("10.0.0.300", "////AA==", None),
    ];
    for (ip, mask, expected) in rows {
        assert_eq!(read(ip, mask).as_deref(), expected, "{ip} {mask}");
    }
    let prefix = IpPrefix { address: "fd00::1".parse().unwrap(), length: 64 };
    let written = serde_json::to_value(prefix).unwrap();
    assert_eq!(written, json!({ "IP": "fd00::1", "Mask": "//////////8AAAAAAAAAAA==" }));
    let none = IpPrefix { address: "10.0.0.1".parse().unwrap(), length: 0 };
    assert_eq!(serde_json::to_value(none).unwrap()["Mask"], "AAAAAA==");
}
