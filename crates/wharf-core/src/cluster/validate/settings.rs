//! The name, the server's address, SSH, the version, registries and secrets.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4},
};

use super::{
    Draft, FaultCode, Faults, RegistryDraft,
    words::{given, is_dns_name, is_host_key, is_one_word},
};
use crate::{
    cluster::{ClusterSecrets, JumpSpec, RegistrySpec, SshSpec, spec::SSH_PORT},
    name::{NameFault, check_cluster_name},
};

/// As the original has it; longer user names exist nowhere.
const SSH_USER_MAX: usize = 127;
/// containerd reads a directory for each.
const REGISTRIES_MAX: usize = 100;

/// What stands for a value that is wrong, so that the search for faults goes on; it never gets out.
const NOWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

pub(super) fn name(draft: &Draft, faults: &mut Faults) -> String {
    let Some(text) = &draft.name else {
        faults.missing("name");
        return String::new();
    };
    let name = text.trim();
    match check_cluster_name(name) {
        Ok(()) => {}
        Err(NameFault::Empty) if name.is_empty() => faults.empty("name"),
        Err(fault) => {
            let code = match fault {
                NameFault::TooLong(_) => FaultCode::MaxLengthExceeded,
                NameFault::Empty | NameFault::BadCharacters => FaultCode::InvalidFormat,
            };
            faults.add("name", code, format!("the cluster's name {fault}"));
        }
    }
    name.to_owned()
}

pub(super) fn single_cloud_address(draft: &Draft, faults: &mut Faults) -> SocketAddrV4 {
    const FIELD: &str = "singleCloudAddress";
    let Some(text) = required(draft.single_cloud_address.as_deref(), FIELD, faults) else {
        return NOWHERE;
    };
    let parsed = text.parse::<SocketAddrV4>().ok();
    match parsed.filter(|address| address.port() != 0 && !address.ip().is_unspecified()) {
        Some(address) => address,
        None => {
            let message = format!(
                "{text}: the server's address must be an ipv4 host such as 10.0.0.1:8443, as the \
                 machines see it"
            );
            faults.add(FIELD, FaultCode::InvalidFormat, message);
            NOWHERE
        }
    }
}

/// A jump host that stays the same keeps the key that was pinned, unless another is given.
pub(super) fn ssh(draft: &Draft, old: Option<&SshSpec>, faults: &mut Faults) -> SshSpec {
    let user = match required(draft.ssh_user.as_deref(), "sshUser", faults) {
        None => String::new(),
        Some(user) => {
            check_user("sshUser", user, faults);
            user.to_owned()
        }
    };
    let port = match given(draft.ssh_port.as_deref()) {
        None => SSH_PORT,
        Some(text) => port(text).unwrap_or_else(|| {
            let message = format!("sshPort {text} isn't a port from 1 to 65535");
            faults.add("sshPort", FaultCode::InvalidFormat, message);
            SSH_PORT
        }),
    };
    let jump = given(draft.ssh_jump_host.as_deref()).and_then(|text| {
        let parsed = jump(text, &user);
        if parsed.is_none() {
            let message = format!("{text}: sshJumpHost must be like user@host:22");
            faults.add("sshJumpHost", FaultCode::InvalidFormat, message);
        }
        parsed
    });
    let key = jump_key(draft, faults);
    let known = old.and_then(|old| old.jump.as_ref());
    let jump = jump.map(|jump| {
        let same = known.filter(|known| (&known.host, known.port) == (&jump.host, jump.port));
        JumpSpec { host_key: key.or_else(|| same?.host_key.clone()), ..jump }
    });
    SshSpec { user, port, jump }
}

fn jump_key(draft: &Draft, faults: &mut Faults) -> Option<String> {
    let key = given(draft.ssh_jump_host_key.as_deref())?;
    let fault = if !is_host_key(key) {
        "sshJumpHostKey must be an OpenSSH public key or its fingerprint (SHA256:…)"
    } else if given(draft.ssh_jump_host.as_deref()).is_none() {
        "sshJumpHostKey is the key of sshJumpHost, which is not given"
    } else {
        return Some(key.to_owned());
    };
    faults.add("sshJumpHostKey", FaultCode::InvalidFormat, fault);
    None
}

fn check_user(field: &str, user: &str, faults: &mut Faults) {
    if user.chars().count() > SSH_USER_MAX {
        let message = format!("{field} must have at most {SSH_USER_MAX} characters");
        faults.add(field, FaultCode::MaxLengthExceeded, message);
    } else if !is_one_word(user) {
        faults.add(field, FaultCode::InvalidFormat, format!("{field} must be one word"));
    }
}

/// A port that somebody can listen on.
fn port(text: &str) -> Option<u16> {
    // `parse` would take a sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?.filter(|port| *port != 0)
}

/// `user@host:port`, where the user is the other hosts' and the port 22 unless they are given.
fn jump(text: &str, user: &str) -> Option<JumpSpec> {
    let (user, place) = text.rsplit_once('@').unwrap_or((user, text));
    let (host, port) = match place.rsplit_once(':') {
        Some((host, text)) => (host, port(text)?),
        None => (place, SSH_PORT),
    };
    let is_host = host.parse::<Ipv4Addr>().is_ok() || is_dns_name(host);
    (is_host && is_one_word(user)).then(|| JumpSpec {
        user: user.to_owned(),
        host: host.to_owned(),
        port,
        host_key: None,
    })
}

pub(super) fn version(draft: &Draft, versions: &[String], faults: &mut Faults) -> String {
    match given(draft.kubernetes_version.as_deref()) {
        None => {
            if versions.is_empty() {
                let message = "this server has no bundle of Kubernetes to install; \
                               `wharf bundle build` makes one";
                faults.add("kubernetesVersion", FaultCode::InvalidOption, message);
            }
            versions.first().cloned().unwrap_or_default()
        }
        Some(text) => {
            let version = plain_version(text);
            if !versions.iter().any(|known| known == version) {
                let message = format!(
                    "kubernetesVersion {text} isn't included in options [{}]",
                    versions.join(" ")
                );
                faults.add("kubernetesVersion", FaultCode::InvalidOption, message);
            }
            version.to_owned()
        }
    }
}

pub(super) fn plain_version(text: &str) -> &str {
    text.strip_prefix('v').unwrap_or(text)
}

pub(super) fn registries(draft: &Draft, faults: &mut Faults) -> Vec<RegistrySpec> {
    let drafts = draft.private_registries.as_deref().unwrap_or_default();
    if drafts.len() > REGISTRIES_MAX {
        let message = format!("at most {REGISTRIES_MAX} registries, not {}", drafts.len());
        faults.add("privateRegistrys", FaultCode::MaxLengthExceeded, message);
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut registries = Vec::new();
    for (i, registry) in drafts.iter().enumerate() {
        let path = format!("privateRegistrys[{i}]");
        let field = format!("{path}.url");
        let Some(url) = required(registry.url.as_deref(), &field, faults) else { continue };
        if !is_registry(url) {
            let message = format!("{url}: a registry is like registry.example.com:5000");
            faults.add(field, FaultCode::InvalidFormat, message);
        } else if !seen.insert(url) {
            faults.add(field, FaultCode::DuplicateResource, format!("duplicate registry {url}"));
        }
        registries.push(registry_spec(registry, url, &path, faults));
    }
    registries
}

fn registry_spec(
    draft: &RegistryDraft,
    url: &str,
    path: &str,
    faults: &mut Faults,
) -> RegistrySpec {
    let user = given(draft.user.as_deref()).unwrap_or_default();
    let has_password = draft.password.as_deref().is_some_and(|password| !password.is_empty());
    if has_password && user.is_empty() {
        faults.missing(&format!("{path}.user"));
    }
    let ca_cert = given(draft.ca_cert.as_deref()).unwrap_or_default();
    if !ca_cert.is_empty() && !ca_cert.starts_with("-----BEGIN CERTIFICATE-----") {
        let field = format!("{path}.caCert");
        faults.add(field, FaultCode::InvalidFormat, "caCert must be a certificate in PEM");
    }
    RegistrySpec { url: url.to_owned(), user: user.to_owned(), ca_cert: ca_cert.to_owned() }
}

/// A host with or without port, path and scheme.
fn is_registry(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or(url);
    let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, good_port) = match place.rsplit_once(':') {
        Some((host, text)) => (host, port(text).is_some()),
        None => (place, true),
    };
    is_dns_name(host) && good_port && (path.is_empty() || is_one_word(path))
}

/// The secrets of a request. On an update what it leaves out stays: the key, and the password of a
/// registry that is named as before.
pub(super) fn secrets(
    draft: &Draft,
    old: Option<&ClusterSecrets>,
    check_key: &dyn Fn(&str, &str) -> Result<(), String>,
    faults: &mut Faults,
) -> ClusterSecrets {
    let passwords = registry_passwords(draft, old);
    let passphrase = draft.ssh_key_passphrase.clone().unwrap_or_default();
    let ssh_key = match (given(draft.ssh_key.as_deref()), old) {
        // The end of the last line belongs to the key's format, so it is not trimmed away.
        (Some(_), _) => draft.ssh_key.clone().unwrap_or_default().trim_start().to_owned(),
        (None, Some(old)) => {
            let passphrase = match passphrase.is_empty() {
                true => old.ssh_key_passphrase.clone(),
                false => passphrase,
            };
            if passphrase != old.ssh_key_passphrase
                && let Err(reason) = check_key(&old.ssh_key, &passphrase)
            {
                let message = format!("sshKeyPassphrase cannot be used: {reason}");
                faults.add("sshKeyPassphrase", FaultCode::InvalidFormat, message);
            }
            return ClusterSecrets {
                ssh_key: old.ssh_key.clone(),
                ssh_key_passphrase: passphrase,
                registry_passwords: passwords,
            };
        }
        (None, None) => {
            let code = match draft.ssh_key {
                Some(_) => FaultCode::NotNullable,
                None => FaultCode::MissingRequired,
            };
            faults.add("sshKey", code, "cluster sshKey is empty");
            String::new()
        }
    };
    if !ssh_key.is_empty()
        && let Err(reason) = check_key(&ssh_key, &passphrase)
    {
        faults.add("sshKey", FaultCode::InvalidFormat, format!("sshKey cannot be used: {reason}"));
    }
    ClusterSecrets { ssh_key, ssh_key_passphrase: passphrase, registry_passwords: passwords }
}

fn registry_passwords(draft: &Draft, old: Option<&ClusterSecrets>) -> BTreeMap<String, String> {
    let drafts = draft.private_registries.as_deref().unwrap_or_default();
    let password_of = |registry: &RegistryDraft| {
        let url = given(registry.url.as_deref())?;
        let new = registry.password.clone().filter(|password| !password.is_empty());
        let kept = || old.and_then(|old| old.registry_passwords.get(url).cloned());
        // A registry that lost its user has no use for a password.
        given(registry.user.as_deref())?;
        Some((url.to_owned(), new.or_else(kept)?))
    };
    drafts.iter().filter_map(password_of).collect()
}

/// A text that must be there; a fault if it is not.
fn required<'a>(text: Option<&'a str>, field: &str, faults: &mut Faults) -> Option<&'a str> {
    match (text, given(text)) {
        (None, _) => faults.missing(field),
        (Some(_), None) => faults.empty(field),
        (Some(_), Some(_)) => {}
    }
    given(text)
}
