//! The CSI driver: kubelet's other way to the same volumes.
//!
//! It is a front end and no more. Calls are taken apart by `wharf_core::volume::request`, and mounting,
//! unmounting, journals and records are those of [`work`](super::work). A volume is mounted in one
//! call (`NodePublishVolume`) because the core itself mounts it once for a node: a staging call
//! would have neither pod nor right.
//!
//! Guarantees: what a call has begun goes on to its end when kubelet does not wait for it any more, and
//! the same call is refused meanwhile.

mod codes;
pub mod messages;
mod server;

use std::{
    collections::BTreeSet,
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::timeout;
use tonic::Status;
use tracing::{info, warn};
use wharf_core::{
    volume::{
        journal::{Journal, PodStage},
        lease::Standing,
        request::{BadRequest, CSI_DRIVER, MountDir, Publish, Usage, parse_csi_dir, parse_publish},
    },
    words::chain,
};

use self::messages::{
    BYTES, BoolValue, EXPAND_VOLUME, Empty, GET_VOLUME_STATS, GetPluginCapabilitiesResponse,
    GetPluginInfoResponse, INODES, Kind, MULTI_NODE_READER_ONLY, NodeExpandVolumeRequest,
    NodeExpandVolumeResponse, NodeGetCapabilitiesResponse, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeServiceCapability, NodeUnpublishVolumeRequest, ONLINE_EXPANSION, PluginCapability,
    PluginInfo, ProbeResponse, RegistrationStatus, SINGLE_NODE_MULTI_WRITER,
    SINGLE_NODE_READER_ONLY, SINGLE_NODE_WRITER, VolumeCapability, VolumeUsage,
};
use super::{Places, Shared, Volumes, kernel, socket, work::VolumeError};
use crate::{
    device,
    health::Reporter,
    tasks::{Context, Ended},
};

/// kubelet looks for plugins there.
const REGISTRY: &str = "plugins_registry";
/// kubelet registers a plugin with the whole path of its socket, percent-encoded, in the place of the
/// server's name (`:authority`). That is no name of a host, and our HTTP/2 refuses it
/// (hyperium/h2#487). With an `@` in the file's name, which kubelet does not encode, what is before it
/// is a user and what is after it the host: that is taken. A filter that rewrites the headers of each
/// connection would do the same with far more that can break.
const SOCKET: &str = "agent@volume.wharf.dev-reg.sock";
/// The version of CSI that kubelet knows drivers by.
const VERSION: &str = "1.0.0";
const REGISTRATION: &str = "the registration of the CSI driver";
/// kubelet waits for two minutes, and then does not know what has become of its call.
const WITHIN: Duration = Duration::from_secs(110);

pub async fn run(context: Context, reporter: Reporter, shared: Shared) -> Ended {
    let Some(node) = context.stop.run_until_cancelled(device::node_name(&context)).await else {
        return Ok(());
    };
    let volumes = shared.volumes(&node)?;
    let csi = Arc::new(Csi { volumes, reporter, under_way: Arc::default() });
    loop {
        let dir = csi.registry();
        fs::create_dir_all(&dir)?;
        let listener = socket::listen(&dir, SOCKET)?;
        info!(dir = %dir.display(), "listening for calls to the CSI driver");
        csi.reporter.ok();
        let is_in_place = || csi.registry() == dir && dir.join(SOCKET).exists();
        let serving = server::serve(listener, &csi, is_in_place);
        match context.stop.run_until_cancelled(serving).await {
            None => return Ok(()),
            Some(served) => served?,
        }
    }
}

/// Where kubelet finds us.
pub(super) fn registration(places: &Places) -> PathBuf {
    places.kubelet_root().join(REGISTRY).join(SOCKET)
}

struct Csi {
    volumes: Arc<Volumes>,
    reporter: Reporter,
    /// The directories that are being mounted, unmounted or grown.
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

type Answer<T> = Result<T, Status>;

/// What kubelet asks of any plugin.
impl Csi {
    fn registry(&self) -> PathBuf {
        self.volumes.places.kubelet_root().join(REGISTRY)
    }

    async fn info(self: Arc<Self>, _call: Empty) -> Answer<PluginInfo> {
        Ok(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: CSI_DRIVER.to_owned(),
            endpoint: self.registry().join(SOCKET).to_string_lossy().into_owned(),
            supported_versions: vec![VERSION.to_owned()],
        })
    }

    async fn registered(self: Arc<Self>, call: RegistrationStatus) -> Answer<Empty> {
        if call.plugin_registered {
            info!("kubelet has registered the CSI driver");
            self.reporter.condition("csi", "kubelet registered the driver");
            self.reporter.clear(REGISTRATION);
        } else {
            self.reporter.fault(REGISTRATION, &call.error);
        }
        Ok(Empty {})
    }

    async fn plugin_info(self: Arc<Self>, _call: Empty) -> Answer<GetPluginInfoResponse> {
        Ok(GetPluginInfoResponse {
            name: CSI_DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// There is no controller: the elected agent makes and deletes volumes.
    async fn plugin_capabilities(
        self: Arc<Self>,
        _call: Empty,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        let volume_expansion = Some(Kind { r#type: ONLINE_EXPANSION });
        let capabilities = vec![PluginCapability { service: None, volume_expansion }];
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    /// Ready means that a volume could be granted now.
    async fn probe(self: Arc<Self>, _call: Empty) -> Answer<ProbeResponse> {
        let value = matches!(self.volumes.standing(), Standing::Held { .. });
        Ok(ProbeResponse { ready: Some(BoolValue { value }) })
    }

    async fn node_capabilities(
        self: Arc<Self>,
        _call: Empty,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let kinds = [GET_VOLUME_STATS, EXPAND_VOLUME];
        let capability = |r#type| NodeServiceCapability { rpc: Some(Kind { r#type }) };
        Ok(NodeGetCapabilitiesResponse { capabilities: kinds.map(capability).into() })
    }

    async fn node_info(self: Arc<Self>, _call: Empty) -> Answer<NodeGetInfoResponse> {
        Ok(NodeGetInfoResponse { node_id: self.volumes.node.clone(), max_volumes_per_node: 0 })
    }
}

/// The volumes.
impl Csi {
    async fn publish(self: Arc<Self>, call: NodePublishVolumeRequest) -> Answer<Empty> {
        let request = parse_publish(&self.root(), &publish(call)).map_err(|it| codes::bad(&it))?;
        let (volumes, dir) = (self.volumes.clone(), request.mount_dir.clone());
        let mount = async move {
            let at = PathBuf::from(&request.mount_dir);
            let mounted = volumes.mount(request).await;
            if mounted.is_err() {
                kernel::remove_point(&at);
            }
            mounted
        };
        self.alone("mount", dir, mount).await?;
        Ok(Empty {})
    }

    async fn unpublish(self: Arc<Self>, call: NodeUnpublishVolumeRequest) -> Answer<Empty> {
        let (volume_id, dir) = (call.volume_id, call.target_path);
        parse_csi_dir(&self.root(), &volume_id, "target_path", &dir)
            .map_err(|it| codes::bad(&it))?;
        let (volumes, at) = (self.volumes.clone(), PathBuf::from(&dir));
        let unmount = async move {
            volumes.unmount(&at.to_string_lossy()).await?;
            // The caller made its parent, and expects it to be gone.
            match fs::remove_dir(&at) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let what = format!("remove {}", at.display());
                    Err(kernel::KernelError::call(what, error).into())
                }
                Ok(()) | Err(_) => Ok(()),
            }
        };
        self.alone("unmount", dir, unmount).await?;
        Ok(Empty {})
    }

    async fn stats(
        self: Arc<Self>,
        call: NodeGetVolumeStatsRequest,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let dir = call.volume_path;
        let place = self.mounted(&call.volume_id, &dir)?;
        let _call = self.volumes.call_for(&place.volume).map_err(|error| codes::failed(&error))?;
        let at = PathBuf::from(&dir);
        let look = move || match kernel::is_mounted(&at)? {
            true => Ok(Some(kernel::room(&at)?)),
            false => Ok(None),
        };
        let room = self.volumes.observe(&place.volume, "ask how full it is", look).await;
        let room = room.map_err(|error| codes::failed(&error))?;
        let room = room.ok_or_else(|| Status::not_found(format!("{dir} is not mounted")))?;
        let usage = |unit, count: kernel::Count| VolumeUsage {
            available: number(count.available),
            total: number(count.total),
            used: number(count.used),
            unit,
        };
        let usage = vec![usage(BYTES, room.bytes), usage(INODES, room.inodes)];
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    async fn expand(
        self: Arc<Self>,
        call: NodeExpandVolumeRequest,
    ) -> Answer<NodeExpandVolumeResponse> {
        let dir = call.volume_path;
        let place = self.mounted(&call.volume_id, &dir)?;
        if call.volume_capability.is_some_and(|it| it.block.is_some()) {
            return Err(codes::bad(&BadRequest::Block));
        }
        let range = call.capacity_range.unwrap_or_default();
        if range.required_bytes < 0 || range.limit_bytes < 0 {
            return Err(Status::out_of_range("a size below zero"));
        }
        let volumes = self.volumes.clone();
        let grow = async move {
            let _call = volumes.call_for(&place.volume)?;
            volumes.grow_if(&place.volume, |_| true).await
        };
        let Some(bytes) = self.alone("grow", dir, grow).await? else {
            // A directory has no size, and what is only read does not grow.
            return Ok(NodeExpandVolumeResponse { capacity_bytes: 0 });
        };
        let capacity_bytes = number(bytes);
        if capacity_bytes < range.required_bytes {
            // The image is made larger first, and kubelet asks again.
            return Err(Status::unavailable(format!(
                "the image has {capacity_bytes} bytes, and {} are asked for",
                range.required_bytes
            )));
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes })
    }

    fn root(&self) -> String {
        self.volumes.places.kubelet_root().to_string_lossy().into_owned()
    }

    /// The volume that is mounted at a directory for a pod, if it has this handle.
    fn mounted(&self, volume_id: &str, dir: &str) -> Answer<MountDir> {
        let place = parse_csi_dir(&self.root(), volume_id, "volume_path", dir)
            .map_err(|bad| codes::not_there(&bad))?;
        let journal = self.volumes.load(&place.volume).map_err(|error| codes::failed(&error))?;
        let is_it = |journal: &Journal| {
            let handle = format!("{}/{}", journal.storage_cluster, journal.image);
            let mut pods = journal.pods.iter();
            // Whether it is mounted there by now is seen in the kernel's tables.
            let is_bound = |stage| matches!(stage, PodStage::Binding | PodStage::Bound);
            handle == volume_id && pods.any(|pod| pod.mount_dir == dir && is_bound(pod.stage))
        };
        let nothing = || Status::not_found(format!("volume {volume_id} is not mounted at {dir}"));
        journal.filter(is_it).map(|_| place).ok_or_else(nothing)
    }

    /// Does something with a directory to its end, whether anybody waits for it or not.
    async fn alone<T: Send + 'static>(
        &self,
        what: &'static str,
        dir: String,
        work: impl Future<Output = Result<T, VolumeError>> + Send + 'static,
    ) -> Answer<T> {
        let begun = self.begin(dir.clone())?;
        let running = tokio::spawn(async move {
            let done = work.await;
            drop(begun);
            done
        });
        match timeout(WITHIN, running).await {
            Ok(Ok(Ok(done))) => Ok(done),
            Ok(Ok(Err(error))) => {
                warn!(what, dir, reason = chain(&error), "a CSI call of kubelet failed");
                Err(codes::failed(&error))
            }
            Ok(Err(_)) => Err(Status::internal("it broke by a defect")),
            Err(_) => Err(Status::deadline_exceeded("it takes long and goes on; ask again")),
        }
    }

    fn begin(&self, dir: String) -> Answer<UnderWay> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if !under_way.insert(dir.clone()) {
            return Err(Status::aborted(format!("an earlier call for {dir} is under way")));
        }
        Ok(UnderWay { dir, all: self.under_way.clone() })
    }
}

/// As long as it lives, nothing else is done with the directory.
struct UnderWay {
    dir: String,
    all: Arc<Mutex<BTreeSet<String>>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.dir);
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn publish(call: NodePublishVolumeRequest) -> Publish {
    Publish {
        volume_id: call.volume_id,
        target_path: call.target_path,
        read_only: call.readonly,
        usage: call.volume_capability.map_or(Usage::Missing, usage),
        context: call.volume_context,
    }
}

fn usage(capability: VolumeCapability) -> Usage {
    let mode = capability.access_mode.unwrap_or_default().mode;
    if !(SINGLE_NODE_WRITER..=SINGLE_NODE_MULTI_WRITER).contains(&mode) {
        return Usage::Missing;
    }
    match (capability.block, capability.mount) {
        (Some(_), _) => Usage::Block,
        (None, Some(mount)) => Usage::Mount {
            fs_type: mount.fs_type,
            options: mount.mount_flags,
            only_reads: [SINGLE_NODE_READER_ONLY, MULTI_NODE_READER_ONLY].contains(&mode),
        },
        (None, None) => Usage::Missing,
    }
}
