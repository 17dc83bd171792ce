//! What was decided of an application, in the words of the node's files.

use jiff::Timestamp;
use wharf_api::node_files::{
    AppInstanceConfig, AppInstanceStatus, DomainStatus, EnClusterAppStatus, Time,
};
use wharf_core::node::{
    app_reports::{PodWord, decide_domain, decide_instance},
    apps::{App, AppStatus, KubeStatus},
    status::SwState,
};

pub fn status(app: &App, config: &AppInstanceConfig, status: &AppStatus) -> EnClusterAppStatus {
    EnClusterAppStatus {
        app_uuid: app.uuid.parse().unwrap_or(config.uuid_and_version.uuid),
        is_dnid_node: status.designated,
        scheduled_on_this_node: status.scheduled_here,
        status_running: status.running,
        is_volume_detached: false,
        app_is_vmi: status.is_vmi,
        app_kube_name: app.kube_name.clone(),
        app_kube_status: status.kube_status.number(),
        vmi_name: status.vmi_name.clone(),
        vnc_port: status.vnc_port,
        domain_state: status.domain.name().to_owned(),
        unknown_since: Time(status.unknown_since),
        effective_activate: status.effective_activate,
    }
}

/// What an agent before this one had decided. What its file does not say is as good as unknown.
pub fn read_status(file: &EnClusterAppStatus) -> AppStatus {
    let named = |state: &SwState| state.name() == file.domain_state;
    AppStatus {
        designated: file.is_dnid_node,
        scheduled_here: file.scheduled_on_this_node,
        running: file.status_running,
        is_vmi: file.app_is_vmi,
        kube_status: KubeStatus::from_number(file.app_kube_status).unwrap_or_default(),
        vmi_name: file.vmi_name.clone(),
        vnc_port: file.vnc_port,
        domain: SwState::ALL.into_iter().find(named).unwrap_or(SwState::Unknown),
        node_name: String::new(),
        pod_name: String::new(),
        unknown_since: file.unknown_since.0,
        effective_activate: file.effective_activate,
    }
}

pub fn instance(
    app: &App,
    config: &AppInstanceConfig,
    status: &AppStatus,
    word: Option<&PodWord>,
    here: &str,
    before: &AppInstanceStatus,
) -> AppInstanceStatus {
    let domain = decide_domain(app, status, word);
    let instance = decide_instance(app, status, here);
    AppInstanceStatus {
        uuid_and_version: config.uuid_and_version.clone(),
        display_name: config.display_name.clone(),
        domain_name: domain.name,
        activated: domain.activated,
        activate_inprogress: instance.in_progress,
        boot_time: Time(domain.boot_time),
        state: domain.state.number(),
        error_time: error_time(&domain.error, &before.error, before.error_time),
        error: domain.error,
        effective_activate: status.effective_activate,
        is_designated_node_id: status.designated,
        no_upload_stats_to_controller: instance.reported_elsewhere,
        ..AppInstanceStatus::default()
    }
}

pub fn domain(
    app: &App,
    config: &AppInstanceConfig,
    status: &AppStatus,
    word: Option<&PodWord>,
    before: &DomainStatus,
) -> DomainStatus {
    let domain = decide_domain(app, status, word);
    let machine = &config.fixed_resources;
    DomainStatus {
        uuid_and_version: config.uuid_and_version.clone(),
        display_name: config.display_name.clone(),
        state: domain.state.number(),
        activated: domain.activated,
        domain_name: domain.name,
        boot_time: Time(domain.boot_time),
        virtualization_mode: machine.virtualization_mode,
        enable_vnc: machine.enable_vnc,
        vnc_display: machine.vnc_display,
        error_time: error_time(&domain.error, &before.error, before.error_time),
        error: domain.error,
        boot_failed: domain.boot_failed,
        node_name: domain.node,
        ..DomainStatus::default()
    }
}

/// When an error was first told; the wall clock is only shown.
fn error_time(error: &str, before: &str, since: Time) -> Time {
    match error {
        "" => Time(None),
        _ if error == before => since,
        _ => Timestamp::now().into(),
    }
}
