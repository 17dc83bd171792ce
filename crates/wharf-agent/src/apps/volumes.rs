//! How the volumes of applications are, by their claims: `VolumeStatus` of every `VolumeConfig`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use wharf_api::node_files::{Time, VolumeConfig, VolumeStatus};
use wharf_core::node::app_reports::{Claim, decide_volume, find_claim};
use wharf_kube::Kept;

use super::pods::Sight;
use crate::{
    files::{Files, Subscription},
    health::Reporter,
    tasks::{Context, Ended},
};

pub const VOLUMEMGR: &str = "volumemgr";
const GATHER: Duration = Duration::from_millis(200);
/// What others removed is written again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// A volume that is made is made in whole.
const WHOLE: u32 = 100;

pub async fn run(context: Context, reporter: Reporter, mut sight: watch::Receiver<Sight>) -> Ended {
    context.files.announce::<VolumeStatus>(VOLUMEMGR);
    let mut volumes = context.files.watch::<VolumeConfig>("zedagent");
    loop {
        let claims = sight.borrow_and_update().claims.clone();
        if let Some((configs, claims)) = volumes.current().zip(claims) {
            look(&context.files, &volumes, &configs, &claims);
            reporter.ok();
        }
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = volumes.changed() => {}
            Ok(()) = sight.changed() => {}
            () = sleep(LOOK_AGAIN) => {}
        }
        if context.stop.run_until_cancelled(sleep(GATHER)).await.is_none() {
            return Ok(());
        }
    }
}

/// Volumes are few, so that all are compared with their files each time.
fn look(
    files: &Files,
    volumes: &Subscription<VolumeConfig>,
    configs: &BTreeMap<String, Arc<VolumeConfig>>,
    claims: &Kept<Claim>,
) {
    for (key, config) in configs {
        let before = files.read(VOLUMEMGR, key).ok().flatten().unwrap_or_default();
        // What cannot be written is a fault of the task `files`, and is tried again.
        let _ = files.publish(VOLUMEMGR, key, &status(config, claims, &before));
    }
    let left = files.keys::<VolumeStatus>(VOLUMEMGR).unwrap_or_default();
    for key in left.iter().filter(|key| volumes.get(key) == Some(None)) {
        let _ = files.unpublish::<VolumeStatus>(VOLUMEMGR, key);
    }
}

fn status(config: &VolumeConfig, claims: &Kept<Claim>, before: &VolumeStatus) -> VolumeStatus {
    let generation = config.generation_counter.saturating_add(config.local_generation_counter);
    let id = config.volume_id.to_string();
    let claim = find_claim(&id, generation, claims.values().map(|claim| &**claim));
    let volume = decide_volume(claim);
    let made = volume.state == wharf_core::node::status::SwState::CreatedVolume;
    let bytes = i64::try_from(volume.bytes).unwrap_or(i64::MAX);
    VolumeStatus {
        volume_id: config.volume_id,
        content_id: config.content_id,
        volume_content_origin_type: config.volume_content_origin_type,
        max_vol_size: config.max_vol_size,
        read_only: config.read_only,
        generation_counter: config.generation_counter,
        local_generation_counter: config.local_generation_counter,
        display_name: config.display_name.clone(),
        state: volume.state.number(),
        ref_count: config.ref_count,
        progress: if made { WHOLE } else { 0 },
        total_size: bytes,
        current_size: if made { bytes } else { 0 },
        // Usage is found under this name.
        file_location: claim.map(|claim| claim.name.clone()).unwrap_or_default(),
        is_replicated: config.is_replicated,
        error_time: match volume.error.as_str() {
            "" => Time(None),
            error if error == before.error => before.error_time,
            _ => jiff::Timestamp::now().into(),
        },
        error: volume.error,
        ..VolumeStatus::default()
    }
}
