//! containerd of our own, beside whatever else runs containers on the host.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::cluster::{NetworkPlugin, RegistrySpec};
use crate::install::{
    document::{DocumentError, DocumentInput, Stage},
    facts::HostFacts,
    host::{Directory, File, Image},
};

use super::{
    BIN, CNI_PLUGINS, Component, Kind, Service, agent::CNI_CONFIG, directory, quoted, text_file,
};

pub const SOCKET: &str = "/run/wharf/containerd/containerd.sock";
/// What containerd and runc keep of running containers.
pub const STATE: &str = "/run/wharf/containerd";
pub const RUNC: &str = "/run/wharf/runc";
const CONFIG: &str = "/etc/wharf/containerd/config.toml";
const REGISTRIES: &str = "/etc/wharf/containerd/certs.d";
/// The sandbox image's name without its version.
pub const SANDBOX_IMAGE: &str = "wharf.dev/pause";

pub fn component(input: &DocumentInput<'_>) -> Result<Component, DocumentError> {
    let config = render_config(input)?;
    let mut directories = vec![
        directory("/etc/wharf/containerd", 0o755),
        directory(REGISTRIES, 0o700),
        directory(&root_directory(input.facts), 0o711),
    ];
    let mut registries = Vec::new();
    for registry in &input.spec.private_registries {
        let (mut made, mut texts) = registry_files(input, registry)?;
        directories.append(&mut made);
        registries.append(&mut texts);
    }
    let mut settings = vec![
        // Pods outlive a restart of containerd: only its own process is ended, and its cgroup,
        // in which the shims live, is left alone.
        "KillMode=process".to_owned(),
        "Delegate=yes".to_owned(),
        // The shim and runc are found by name.
        format!(
            "Environment=PATH={BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ),
        "LimitNOFILE=1048576".to_owned(),
        "TasksMax=infinity".to_owned(),
    ];
    if input.facts.sys_resource {
        settings.push("OOMScoreAdjust=-999".to_owned());
    }
    Ok(Component {
        stage: Stage::Prepare,
        service: Service {
            name: "containerd",
            description: "containerd for Kubernetes",
            after: &[],
            kind: Kind::Notify,
            program: "containerd",
            arguments: ["--config", CONFIG].map(str::to_owned).to_vec(),
            settings,
        },
        directories,
        files: vec![text_file(CONFIG, 0o600, config)],
        // They are read for each pull.
        reloaded_files: registries,
        credentials: Vec::new(),
        reloaded_credentials: Vec::new(),
    })
}

/// Images and containers lie with our other data, unless that is on an overlay, on which
/// containerd cannot lay overlays of its own, and its usual place is not.
pub fn root_directory(facts: &HostFacts) -> String {
    let overlay = |filesystem: &str| filesystem == "overlayfs";
    match overlay(&facts.data_filesystem) && !overlay(&facts.containerd_filesystem) {
        true => "/var/lib/containerd/wharf".to_owned(),
        false => "/var/lib/wharf/containerd".to_owned(),
    }
}

/// Whether cgroups are made by systemd. Below cgroup v2 and inside a container systemd does not
/// own them all; kubelet must be told the same.
pub fn systemd_cgroups(facts: &HostFacts) -> bool {
    facts.cgroup_version >= 2 && !facts.container
}

/// The place of pod networks that the user brings, and ours.
fn cni_places(plugin: &NetworkPlugin) -> (&'static str, Vec<&'static str>) {
    match plugin {
        NetworkPlugin::Routed | NetworkPlugin::Vxlan => (CNI_CONFIG, vec![CNI_PLUGINS]),
        NetworkPlugin::None => ("/etc/cni/net.d", vec!["/opt/cni/bin", CNI_PLUGINS]),
    }
}

fn render_config(input: &DocumentInput<'_>) -> Result<String, DocumentError> {
    let facts = input.facts;
    input.image(SANDBOX_IMAGE)?;
    // Kubelet must not collect them: there may be no registry to get them from again.
    let pinned: String = input.images.iter().map(pinned_image).collect();
    let (conf_dir, bin_dirs) = cni_places(&input.spec.network.plugin);
    let bin_dirs: Vec<String> = bin_dirs.into_iter().map(quoted).collect();
    Ok(format!(
        r#"version = 3
root = {root}
state = {state}
# They make directories and sockets that belong to another containerd of the host.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
  address = {socket}

[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".pinned_images]
{pinned}  [plugins."io.containerd.cri.v1.images".registry]
    config_path = {registries}

[plugins."io.containerd.cri.v1.runtime"]
  # Without the right to lower it, a container's score for the out-of-memory killer cannot be set.
  restrict_oom_score_adj = {restrict}
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{bin_dirs}]
    conf_dir = {conf_dir}
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{BIN}/runc"
      Root = {runc}
      SystemdCgroup = {systemd}
"#,
        root = quoted(&root_directory(facts)),
        state = quoted(STATE),
        runc = quoted(RUNC),
        socket = quoted(SOCKET),
        registries = quoted(REGISTRIES),
        restrict = !facts.sys_resource,
        bin_dirs = bin_dirs.join(", "),
        conf_dir = quoted(conf_dir),
        systemd = systemd_cgroups(facts),
    ))
}

/// containerd knows the sandbox's image by its key; the keys of others are free.
fn pinned_image(image: &Image) -> String {
    let name = image.name.rsplit_once(':').map_or(image.name.as_str(), |(name, _)| name);
    let key = if name == SANDBOX_IMAGE { "sandbox" } else { name };
    format!("    {} = {}\n", quoted(key), quoted(&image.name))
}

/// A registry's directory with how to reach it and as whom. containerd sends the header also to
/// where the registry hands out tokens.
fn registry_files(
    input: &DocumentInput<'_>,
    registry: &RegistrySpec,
) -> Result<(Vec<Directory>, Vec<File>), DocumentError> {
    let (url, host) = registry_host(&registry.url)?;
    let place = format!("{REGISTRIES}/{host}");
    let mut hosts = format!(
        "server = {url}\n\n[host.{url}]\n  capabilities = [\"pull\", \"resolve\"]\n",
        url = quoted(&url),
    );
    let mut files = Vec::new();
    if !registry.ca_cert.is_empty() {
        let authority = format!("{place}/ca.crt");
        hosts.push_str(&format!("  ca = {}\n", quoted(&authority)));
        files.push(text_file(&authority, 0o644, registry.ca_cert.clone()));
    }
    if !registry.user.is_empty() {
        let password = input.secrets.registry_passwords.get(&registry.url);
        let pair = format!("{}:{}", registry.user, password.map_or("", String::as_str));
        let header = format!("Basic {}", STANDARD.encode(pair));
        hosts.push_str(&format!("  [host.{}.header]\n", quoted(&url)));
        hosts.push_str(&format!("    Authorization = {}\n", quoted(&header)));
    }
    files.push(text_file(&format!("{place}/hosts.toml"), 0o600, hosts));
    Ok((vec![directory(&place, 0o700)], files))
}

/// The registry's address with its scheme, and its host and port, which name its directory.
fn registry_host(url: &str) -> Result<(String, String), DocumentError> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let host = rest.split('/').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    let begins = host.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins && host.chars().all(plain) && ["http", "https"].contains(&scheme) {
        true => Ok((format!("{scheme}://{host}"), host.to_owned())),
        false => Err(DocumentError::Registry(url.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_known_by_its_host_and_port() {
        for (url, expected) in [
            ("reg.example", Some(("https://reg.example", "reg.example"))),
            ("http://10.0.0.1:5000/v2/", Some(("http://10.0.0.1:5000", "10.0.0.1:5000"))),
            ("https://reg.example:443", Some(("https://reg.example:443", "reg.example:443"))),
            ("..", None),
            ("https://../../etc", None),
            ("ftp://reg.example", None),
            ("reg\n.example", None),
            ("", None),
        ] {
            let found = registry_host(url).ok();
            let found = found.as_ref().map(|(url, host)| (url.as_str(), host.as_str()));
            assert_eq!(found, expected, "{url}");
        }
    }
}
