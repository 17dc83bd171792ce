//! What other agents of a device say of an application, where Wharf's agent plays them: how its
//! domain is, how the whole application is, what it uses, and how its volumes are.
//!
//! A domain is the pod, or the virtual machine, in which the application runs; a volume is a claim.

use jiff::Timestamp;

use super::{
    apps::{App, AppStatus},
    status::SwState,
};

/// What the application's pod says besides its place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodWord {
    pub started: Option<Timestamp>,
    /// Why it does not run, or one of its containers does not.
    pub trouble: Option<String>,
}

/// What a domain is said to be, on every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    pub name: String,
    pub state: SwState,
    /// It runs on this node.
    pub activated: bool,
    /// Where it runs.
    pub node: String,
    pub boot_time: Option<Timestamp>,
    pub boot_failed: bool,
    pub error: String,
}

/// Says how the domain of an application is.
pub fn decide_domain(app: &App, status: &AppStatus, word: Option<&PodWord>) -> Domain {
    let names = [&status.vmi_name, &status.pod_name, &app.kube_name];
    let name = names.into_iter().find(|name| !name.is_empty());
    Domain {
        name: name.cloned().unwrap_or_default(),
        state: status.domain,
        activated: status.running && status.scheduled_here,
        node: status.node_name.clone(),
        boot_time: word.and_then(|word| word.started),
        boot_failed: status.domain == SwState::Failed,
        error: error(status, word),
    }
}

fn error(status: &AppStatus, word: Option<&PodWord>) -> String {
    if status.domain == SwState::Halting {
        let since = status.unknown_since.map(|since| since.to_string()).unwrap_or_default();
        return format!("nobody has known how it is since {since}");
    }
    // Also while it counts as running: a pod whose container crashes over and over does.
    word.and_then(|word| word.trouble.clone()).unwrap_or_default()
}

/// What else is said of the application as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// It should run here, and does not yet.
    pub in_progress: bool,
    /// This node does not report its figures.
    pub reported_elsewhere: bool,
}

/// The node that has the application reports it; while none has it, the designated one does.
pub fn decide_instance(app: &App, status: &AppStatus, here: &str) -> Instance {
    let has_it = status.node_name == here || app.designated && status.node_name.is_empty();
    let runs_here = status.running && status.scheduled_here;
    Instance { in_progress: status.effective_activate && !runs_here, reported_elsewhere: !has_it }
}

/// What an application uses. Memory is in mebibytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    pub allocated: u32,
    pub used: u32,
    pub available: u32,
    pub used_percent: f64,
}

const MEBIBYTE: u64 = 1 << 20;

/// What an application may use is what was asked for it, else what its pod is limited to; where there
/// is no limit, nothing is said of what is left.
pub fn decide_memory(asked_kibibytes: i64, limit_bytes: u64, used_bytes: u64) -> Memory {
    let asked = u64::try_from(asked_kibibytes).unwrap_or_default().saturating_mul(1024);
    let allocated = if asked > 0 { asked } else { limit_bytes };
    let mebibytes = |bytes: u64| u32::try_from(bytes / MEBIBYTE).unwrap_or(u32::MAX);
    Memory {
        allocated: mebibytes(allocated),
        used: mebibytes(used_bytes),
        available: mebibytes(allocated.saturating_sub(used_bytes)),
        used_percent: match allocated {
            0 => 0.0,
            // Of hundredths, so that what did not change looks the same.
            _ => {
                let hundredths = u128::from(used_bytes) * 10_000 / u128::from(allocated);
                f64::from(u32::try_from(hundredths).unwrap_or(u32::MAX)) / 100.0
            }
        },
    }
}

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    pub name: String,
    /// The volume that it says to be.
    pub volume_id: Option<String>,
    pub phase: ClaimPhase,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClaimPhase {
    #[default]
    Pending,
    Bound,
    Lost,
}

/// The claim that is a volume: the one that says so, or is named after it, as `<id>-pvc-<generation>`.
pub fn find_claim<'a>(
    volume_id: &str,
    generation: i64,
    claims: impl IntoIterator<Item = &'a Claim>,
) -> Option<&'a Claim> {
    let exact = format!("{volume_id}-pvc-{generation}");
    let rank = |claim: &Claim| {
        let named = claim.name.strip_prefix(volume_id);
        if claim.volume_id.as_deref() == Some(volume_id) {
            Some(3)
        } else if claim.name == exact {
            Some(2)
        } else {
            named.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')).then_some(1)
        }
    };
    let ranked = claims.into_iter().filter_map(|claim| Some((rank(claim)?, claim)));
    ranked.max_by_key(|(rank, _)| *rank).map(|(_, claim)| claim)
}

/// How a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub state: SwState,
    pub bytes: u64,
    pub error: String,
}

pub fn decide_volume(claim: Option<&Claim>) -> Volume {
    let (state, error) = match claim.map(|claim| claim.phase) {
        None => (SwState::Initial, String::new()),
        Some(ClaimPhase::Pending) => (SwState::CreatingVolume, String::new()),
        Some(ClaimPhase::Bound) => (SwState::CreatedVolume, String::new()),
        Some(ClaimPhase::Lost) => {
            (SwState::Failed, "the volume behind the claim is gone".to_owned())
        }
    };
    Volume { state, bytes: claim.map_or(0, |claim| claim.bytes), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::apps::KubeStatus;

    fn app(designated: bool) -> App {
        App {
            uuid: "u".to_owned(),
            kube_name: "web-0b1a2".to_owned(),
            activate: true,
            designated,
            vnc_port: 0,
        }
    }

    fn status(running: bool, node: &str) -> AppStatus {
        AppStatus {
            designated: false,
            scheduled_here: node == "n1",
            running,
            is_vmi: false,
            kube_status: if running { KubeStatus::Running } else { KubeStatus::NotRunning },
            vmi_name: String::new(),
            vnc_port: 0,
            domain: if running { SwState::Running } else { SwState::Pending },
            node_name: node.to_owned(),
            pod_name: "web-0b1a2-x".to_owned(),
            unknown_since: None,
            effective_activate: node == "n1",
        }
    }

    #[test]
    fn a_domain_is_active_where_it_runs_and_its_trouble_is_told_also_while_it_does() {
        let rows = [
            (status(true, "n1"), "", "web-0b1a2-x Running n1 active"),
            (
                status(true, "n1"),
                "CrashLoopBackOff",
                "web-0b1a2-x Running n1 active: CrashLoopBackOff",
            ),
            (status(true, "n2"), "CrashLoopBackOff", "web-0b1a2-x Running n2: CrashLoopBackOff"),
            (status(false, "n1"), "ImagePullBackOff", "web-0b1a2-x Pending n1: ImagePullBackOff"),
            (
                AppStatus { vmi_name: "web-0b1a2q".to_owned(), ..status(true, "n1") },
                "",
                "web-0b1a2q Running n1 active",
            ),
            (
                AppStatus {
                    domain: SwState::Halting,
                    unknown_since: Some(Timestamp::UNIX_EPOCH),
                    pod_name: String::new(),
                    ..status(false, "")
                },
                "ImagePullBackOff",
                "web-0b1a2 Halting : nobody has known how it is since 1970-01-01T00:00:00Z",
            ),
        ];
        for (status, trouble, expected) in rows {
            let trouble = Some(trouble.to_owned()).filter(|trouble| !trouble.is_empty());
            let word = PodWord { started: None, trouble };
            let domain = decide_domain(&app(true), &status, Some(&word));
            let active = if domain.activated { " active" } else { "" };
            let error = if domain.error.is_empty() { "" } else { ": " };
            let line = format!(
                "{} {} {}{active}{error}{}",
                domain.name,
                domain.state.name(),
                domain.node,
                domain.error
            );
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn the_node_that_has_the_application_reports_it_and_the_designated_one_while_none_has() {
        let rows = [
            (true, "n1", false),
            (false, "n1", false),
            (true, "n2", true),
            (true, "", false),
            (false, "", true),
        ];
        for (designated, node, elsewhere) in rows {
            let instance = decide_instance(&app(designated), &status(false, node), "n1");
            assert_eq!(instance.reported_elsewhere, elsewhere, "{designated} {node}");
            assert_eq!(instance.in_progress, node == "n1");
        }
        assert!(!decide_instance(&app(true), &status(true, "n1"), "n1").in_progress);
    }

    #[test]
    fn memory_is_what_was_asked_for_else_what_the_pod_is_limited_to() {
        let rows = [
            ((512 * 1024, 0, 128 << 20), (512, 128, 384, 25.0)),
            ((0, 1 << 30, 256 << 20), (1024, 256, 768, 25.0)),
            ((0, 0, 100 << 20), (0, 100, 0, 0.0)),
            ((1024, 0, 3 << 20), (1, 3, 0, 300.0)),
            ((-1, 0, 0), (0, 0, 0, 0.0)),
        ];
        for ((asked, limit, used), expected) in rows {
            let memory = decide_memory(asked, limit, used);
            let found = (memory.allocated, memory.used, memory.available, memory.used_percent);
            assert_eq!(found, expected, "{asked} {limit} {used}");
        }
    }

    #[test]
    fn a_claim_is_found_by_what_it_says_by_its_generation_or_by_its_name() {
        let claim = |name: &str, volume: Option<&str>| Claim {
            name: name.to_owned(),
            volume_id: volume.map(str::to_owned),
            ..Claim::default()
        };
        let all = [
            claim("v1-pvc-0", None),
            claim("v1-pvc-1", None),
            claim("v10-pvc-1", None),
            claim("data", Some("v2")),
            claim("v2-pvc-1", None),
            claim("v3", None),
        ];
        let rows = [
            ("v1", 1, Some("v1-pvc-1")),
            ("v1", 0, Some("v1-pvc-0")),
            ("v2", 1, Some("data")),
            ("v3", 4, Some("v3")),
            ("v4", 1, None),
        ];
        for (volume, generation, expected) in rows {
            let found = find_claim(volume, generation, &all).map(|claim| claim.name.as_str());
            assert_eq!(found, expected, "{volume}#{generation}");
        }
    }

    #[test]
    fn a_volume_is_made_once_its_claim_is_bound() {
        let claim = |phase| Claim { phase, bytes: 7, ..Claim::default() };
        let rows = [
            (None, SwState::Initial, 0),
            (Some(claim(ClaimPhase::Pending)), SwState::CreatingVolume, 7),
            (Some(claim(ClaimPhase::Bound)), SwState::CreatedVolume, 7),
            (Some(claim(ClaimPhase::Lost)), SwState::Failed, 7),
        ];
        for (claim, state, bytes) in rows {
            let volume = decide_volume(claim.as_ref());
            assert_eq!((volume.state, volume.bytes), (state, bytes));
            assert_eq!(volume.error.is_empty(), state != SwState::Failed);
        }
    }
}
