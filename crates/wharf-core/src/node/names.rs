//! The names that nodes and applications have in the cluster.

/// The longest part of a name that comes from what people call an application.
const GIVEN: usize = 26;
/// So much of the application's id makes the name one of a kind.
const ID: usize = 5;

/// What a device is called as a Node.
pub fn node_name(device: &str) -> String {
    device.to_lowercase().replace('_', "-")
}

/// What an application is called in the cluster.
pub fn app_name(display_name: &str, uuid: &str) -> String {
    let mut name = String::new();
    for letter in display_name.chars() {
        match letter {
            // Several of these in a row are one.
            '_' | '-' | '.' if name.ends_with('-') => {}
            '_' | '-' | '.' => name.push('-'),
            _ if letter.is_ascii_alphanumeric() => name.push(letter.to_ascii_lowercase()),
            _ => {}
        }
    }
    name.truncate(GIVEN);
    let id: String = uuid.chars().take(ID).collect();
    format!("{name}-{id}")
}

/// The pod that runs a virtual machine is named after it.
const LAUNCHER: &str = "virt-launcher-";

/// Whether a pod is named after an application, and is that of a virtual machine. What makes one pod
/// of an application differ from the next follows the name without a mark between them, so that
/// of several applications the one with the longest name is meant.
pub fn pod_of_app(pod: &str, app: &str) -> Option<PodKind> {
    match pod.strip_prefix(LAUNCHER) {
        Some(machine) => machine.starts_with(app).then_some(PodKind::Launcher),
        None => pod.starts_with(app).then_some(PodKind::Plain),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodKind {
    Plain,
    /// It runs a virtual machine.
    Launcher,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    #[test]
    fn names_are_made_as_other_agents_make_them() {
        assert_eq!(node_name("Edge_Node_1"), "edge-node-1");
        let rows = [
            ("Web_Shop", "web-shop-0b1a2"),
            ("a..b--c", "a-b-c-0b1a2"),
            ("a.b", "a-b-0b1a2"),
            ("Grüße & co", "greco-0b1a2"),
            ("", "-0b1a2"),
            ("abcdefghijklmnopqrstuvwxyz0123", "abcdefghijklmnopqrstuvwxyz-0b1a2"),
        ];
        for (given, expected) in rows {
            assert_eq!(app_name(given, ID), expected, "{given}");
            assert!(app_name(given, ID).len() <= 32);
        }
    }

    #[test]
    fn a_pod_is_known_by_the_name_of_its_application() {
        let rows = [
            ("web-0b1a2", Some(PodKind::Plain)),
            ("web-0b1a2-x7k2p", Some(PodKind::Plain)),
            ("virt-launcher-web-0b1a2-x7k2p", Some(PodKind::Launcher)),
            ("virt-launcher-web-0b1a2x7k2p-9q", Some(PodKind::Launcher)),
            ("other-web-0b1a2", None),
            ("virt-launcher-", None),
        ];
        for (pod, expected) in rows {
            assert_eq!(pod_of_app(pod, "web-0b1a2"), expected, "{pod}");
        }
    }
}
