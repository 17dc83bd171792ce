//! The kubelet of a node.

use crate::cluster::NodeRole;
use crate::install::{
    allocate::pods_in,
    credentials::path,
    document::{DocumentError, DocumentInput, Stage},
};

use super::{
    BIN, Component, Kind, Service, VOLUME_PLUGINS, agent,
    containerd::{SOCKET, systemd_cgroups},
    directory, quoted, text_file,
    version::Version,
};

/// Drivers of others expect it here.
pub const DATA: &str = "/var/lib/kubelet";
const CONFIG: &str = "/etc/wharf/kubelet/config.yaml";
/// A node that joins waits so long for its cluster before it says why, and begins anew. systemd gives
/// a start 90 seconds.
const JOIN_SECONDS: u32 = 60;

pub fn component(input: &DocumentInput<'_>) -> Result<Component, DocumentError> {
    let mut settings = vec!["KillMode=process".to_owned(), "LimitNOFILE=1048576".to_owned()];
    settings.push(format!(
        "ExecStartPre={BIN}/wharf agent join-wait --config {} --if-configured --timeout-seconds \
         {JOIN_SECONDS}",
        agent::CONFIG
    ));
    if input.facts.sys_resource {
        settings.push("OOMScoreAdjust=-999".to_owned());
    }
    Ok(Component {
        stage: Stage::Node,
        service: Service {
            name: "kubelet",
            description: "Kubernetes node agent",
            after: &["containerd", "agent"],
            kind: Kind::Notify,
            program: "kubelet",
            arguments: vec![
                format!("--config={CONFIG}"),
                format!("--kubeconfig={}", path::KUBELET_KUBECONFIG),
                format!("--node-ip={}", input.node.address),
                format!("--hostname-override={}", input.node.name),
            ],
            settings,
        },
        directories: vec![directory("/etc/wharf/kubelet", 0o755)],
        files: vec![text_file(CONFIG, 0o644, render_config(input)?)],
        reloaded_files: Vec::new(),
        credentials: vec![path::CA, path::KUBELET_KUBECONFIG, path::KUBELET, path::KUBELET_KEY],
        reloaded_credentials: Vec::new(),
    })
}

fn render_config(input: &DocumentInput<'_>) -> Result<String, DocumentError> {
    let (spec, facts) = (input.spec, input.facts);
    let version = Version::parse(&spec.kubernetes_version)?;
    let driver = if systemd_cgroups(facts) { "systemd" } else { "cgroupfs" };
    let mut config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: {ca}
authorization:
  mode: Webhook
tlsCertFile: {cert}
tlsPrivateKeyFile: {key}
rotateCertificates: false
healthzBindAddress: 127.0.0.1
containerRuntimeEndpoint: unix://{SOCKET}
cgroupDriver: {driver}
clusterDNS:
- {dns}
clusterDomain: {domain}
resolvConf: {resolv_conf}
volumePluginDir: {VOLUME_PLUGINS}
maxPods: {max_pods}
serializeImagePulls: false
# Pods' packets are kube-proxy's and the agent's business; both use nft.
makeIPTablesUtilChains: false
failSwapOn: false
# Shares of a disk are meaningless: a tenth of a large one is more than most nodes ever need.
evictionHard:
  memory.available: 100Mi
  nodefs.available: 2Gi
  nodefs.inodesFree: 5%
  imagefs.available: 2Gi
# Images came with the bundle, and there may be no registry to get them from again: they are
# collected only when the disk is really short.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# A change is seen soon, but told only if there is one.
nodeStatusUpdateFrequency: 4s
nodeStatusReportFrequency: 5m
",
        ca = path::CA,
        cert = path::KUBELET,
        key = path::KUBELET_KEY,
        dns = spec.cluster_dns_service_ip,
        domain = quoted(&spec.cluster_domain),
        resolv_conf = quoted(&facts.resolv_conf),
        max_pods = pods_in(input.record()?.pod_cidr),
    );
    if facts.cgroup_version < 2 && version.refuses_cgroup_v1() {
        config.push_str("failCgroupV1: false\n");
    }
    if input.node.is(NodeRole::Controlplane) {
        config.push_str(CONTROLPLANE_TAINT);
    }
    Ok(config)
}

/// From the first moment, so that no pod lands there before somebody could add it. Labels for the
/// roles cannot be set from here: the API refuses them from kubelets.
const CONTROLPLANE_TAINT: &str = "\
registerWithTaints:
- key: node-role.kubernetes.io/control-plane
  effect: NoSchedule
";
