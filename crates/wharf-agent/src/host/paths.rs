//! Which paths may be written and which may be removed. All of this is about text alone.

/// Directories that must never be taken away with all below them, whatever a record says; nor may
/// anything that holds one of them.
const PROTECTED: &[&str] = &[
    "/etc/cni",
    "/etc/systemd/system",
    "/etc/wharf",
    "/home",
    "/opt/wharf",
    "/run/containerd",
    "/run/systemd",
    "/run/wharf",
    "/usr/local/bin",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/docker",
    "/var/lib/dpkg",
    "/var/lib/wharf",
    "/var/log/journal",
];

/// Below these nothing at all is removed.
const UNTOUCHABLE: &[&str] = &[
    "/bin",
    "/boot",
    "/dev",
    "/etc/ssh",
    "/lib",
    "/lib64",
    "/proc",
    "/root",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/sbin",
    "/usr/share",
];

pub fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
}

/// Absolute, with a name, and without parts that lead elsewhere.
pub fn is_sound(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
            && !rest.contains('\0')
    })
}

/// All directories above a path, from the top, `/` left out.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.char_indices().skip(1).filter(|(_, letter)| *letter == '/');
    ends.filter_map(|(end, _)| path.get(..end))
}

/// Whether a file at this path may be removed.
pub fn may_remove_file(path: &str) -> bool {
    let inside = |place: &str| path == place || is_below(path, place);
    let has_parent = ancestors(path).next().is_some();
    is_sound(path) && has_parent && !UNTOUCHABLE.iter().any(|place| inside(place))
}

/// Whether a directory may be removed, or emptied, with all below it.
pub fn may_remove_tree(path: &str) -> bool {
    let holds = |place: &str| path == place || is_below(place, path);
    may_remove_file(path) && !PROTECTED.iter().any(|place| holds(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_needs_is_never_removed_with_all_below_it() {
        for path in [
            "/",
            "",
            "/etc",
            "/var",
            "/var/lib",
            "/opt",
            "/run",
            "/usr",
            "/usr/share",
            "/home",
            "/etc/systemd",
            "/etc/systemd/system",
            "/var/lib/docker",
            "/var/lib/containerd",
            "/srv",
            "/var/log",
            "/proc/1",
            "/sys/fs/cgroup",
            "/opt/wharf/../../etc",
            "/opt//wharf",
            "relative",
            "/opt/wharf/.",
            "/root/keys",
            "/etc/ssh/keys",
            "/run/containerd",
            "/var/lib/cni",
            // Others may have something in our own places too.
            "/opt/wharf",
            "/etc/wharf",
            "/var/lib/wharf",
            "/run/wharf",
        ] {
            assert!(!may_remove_tree(path), "{path}");
        }
        for path in [
            "/opt/wharf/bin",
            "/etc/wharf/pki",
            "/var/lib/wharf/etcd",
            "/run/wharf/containerd",
            "/var/lib/kubelet",
            "/var/lib/containerd/wharf",
            "/var/log/pods",
            "/var/log/containers",
        ] {
            assert!(may_remove_tree(path), "{path}");
        }
    }

    #[test]
    fn a_file_is_removed_only_by_a_plain_path() {
        for path in ["/", "/file", "/etc/../x", "/usr/bin/sh", "/etc/ssh/sshd_config", "etc/x/y"] {
            assert!(!may_remove_file(path), "{path}");
        }
        for path in ["/etc/systemd/system/wharf-agent.service", "/etc/sysctl.d/90-wharf.conf"] {
            assert!(may_remove_file(path), "{path}");
        }
    }

    #[test]
    fn ancestors_go_from_the_top_to_the_parent() {
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b"]);
        assert_eq!(ancestors("/a").count(), 0);
    }
}
