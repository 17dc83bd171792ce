//! Applications.

use wharf_api::{app as wire, resource::Head};
use wharf_core::app::AppRecord;

use super::only_self;

pub fn app(prefix: &str, record: &AppRecord) -> wire::App {
    let collection = format!("{prefix}/clusters/{}/apps", record.cluster);
    let status = match (record.deleted_at, record.is_settled(), &record.reason) {
        (Some(_), _, _) => "Deleting",
        (None, _, Some(_)) => "Failed",
        (None, true, None) => "Applied",
        (None, false, None) => "Pending",
    };
    wire::App {
        head: Head {
            id: record.uuid.clone(),
            type_: "app".to_owned(),
            links: only_self(&collection, &record.uuid),
            creation_timestamp: record.created_at,
            deletion_timestamp: record.deleted_at,
        },
        spec: wire::AppSpec {
            name: record.name.clone(),
            designated_node: record.designated_node.clone(),
            // What this version cannot read is not shown.
            config: serde_json::from_value(record.config.clone()).unwrap_or_default(),
            volumes: record
                .volumes
                .iter()
                .filter_map(|volume| serde_json::from_value(volume.clone()).ok())
                .collect(),
            manifest: record.manifest.clone(),
        },
        uuid: record.uuid.clone(),
        kube_name: record.kube_name(),
        status: status.to_owned(),
        reason: record.reason.clone(),
    }
}
