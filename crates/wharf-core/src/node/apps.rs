//! What is said of an application on this node: whether it is here, whether it runs, and whether it
//! should.
//!
//! Every node is told of every application. One node is designated for each; the scheduler may put
//! it elsewhere.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    gate::is_over,
    names::{PodKind, pod_of_app},
    status::SwState,
};

/// The cluster may be silent for so long before it is said of each application.
const SILENCE: Duration = Duration::from_secs(120);

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct App {
    pub uuid: String,
    /// What it is called in the cluster.
    pub kube_name: String,
    pub activate: bool,
    /// It is meant for this node.
    pub designated: bool,
    /// The port of its console, where it has one.
    pub vnc_port: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    pub name: String,
    /// Empty until it is scheduled.
    pub node: String,
    pub phase: PodPhase,
    pub deleting: bool,
    /// The virtual machine that it runs.
    pub vmi: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodPhase {
    #[default]
    Unknown,
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// What the cluster says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// All pods of the applications' namespace.
    Pods(Vec<Pod>),
    /// It has not answered since then.
    Silent { since: Timestamp },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum KubeStatus {
    #[default]
    Unknown,
    ApiUnreachable,
    NotInCluster,
    NotRunning,
    Running,
}

impl KubeStatus {
    const ALL: [Self; 5] =
        [Self::Unknown, Self::ApiUnreachable, Self::NotInCluster, Self::NotRunning, Self::Running];

    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.number() == number)
    }
}

/// What is published, and what the next look needs of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppStatus {
    pub designated: bool,
    pub scheduled_here: bool,
    pub running: bool,
    pub is_vmi: bool,
    pub kube_status: KubeStatus,
    pub vmi_name: String,
    pub vnc_port: u32,
    pub domain: SwState,
    /// Where it runs, as far as is known.
    pub node_name: String,
    /// Since when nobody knows how the application is.
    pub unknown_since: Option<Timestamp>,
    /// The wish as it counts on this node.
    pub effective_activate: bool,
}

/// Says how an application is on this node.
pub fn decide_app(
    app: &App,
    all: &[App],
    seen: &Seen,
    last: Option<&AppStatus>,
    here: &str,
    now: Timestamp,
    unknown_to_halting: Duration,
) -> AppStatus {
    let mut status = match seen {
        Seen::Pods(pods) => look(app, all, pods, here),
        Seen::Silent { since } => silent(app, last, *since, now),
    };
    status.effective_activate = effective_activate(app, &status);
    let unknown = status.domain == SwState::Unknown;
    let since = last.and_then(|last| last.unknown_since).filter(|since| *since <= now);
    status.unknown_since = unknown.then(|| since.unwrap_or(now));
    let too_long = |since| is_over(since, unknown_to_halting, now) && now > since;
    if status.unknown_since.is_some_and(too_long) {
        status.domain = SwState::Halting;
    }
    status
}

fn look(app: &App, all: &[App], pods: &[Pod], here: &str) -> AppStatus {
    let mut status = AppStatus::nothing(app);
    // A pod that is leaving says nothing of where the application is.
    let ours = pods.iter().filter(|pod| !pod.deleting).filter_map(|pod| {
        let kind = pod_of_app(&pod.name, &app.kube_name)?;
        is_longest(app, all, &pod.name).then_some((kind, pod))
    });
    // One that runs says more than one that does not, and one that is here more than one elsewhere.
    let best = ours.max_by_key(|(_, pod)| (pod.phase == PodPhase::Running, pod.node == here));
    let Some((kind, pod)) = best else {
        status.kube_status = KubeStatus::NotInCluster;
        status.domain = if app.activate { SwState::Unknown } else { SwState::Halted };
        return status;
    };
    status.running = pod.phase == PodPhase::Running;
    status.scheduled_here = !here.is_empty() && pod.node == here;
    status.is_vmi = kind == PodKind::Launcher;
    status.vmi_name = pod.vmi.clone().unwrap_or_default();
    status.node_name.clone_from(&pod.node);
    status.kube_status = if status.running { KubeStatus::Running } else { KubeStatus::NotRunning };
    status.domain = match pod.phase {
        PodPhase::Running => SwState::Running,
        PodPhase::Pending if pod.node.is_empty() => SwState::Scheduling,
        PodPhase::Pending => SwState::Pending,
        PodPhase::Succeeded => SwState::Halted,
        PodPhase::Failed => SwState::Failed,
        PodPhase::Unknown => SwState::Unknown,
    };
    status
}

/// Whether no other application's name fits the pod better.
fn is_longest(app: &App, all: &[App], pod: &str) -> bool {
    let longer = |other: &&App| other.kube_name.len() > app.kube_name.len();
    !all.iter().filter(longer).any(|other| pod_of_app(pod, &other.kube_name).is_some())
}

/// A short silence changes nothing but what nobody knows any more.
fn silent(app: &App, last: Option<&AppStatus>, since: Timestamp, now: Timestamp) -> AppStatus {
    let mut status = last.cloned().unwrap_or_else(|| AppStatus::nothing(app));
    (status.designated, status.vnc_port) = (app.designated, app.vnc_port);
    if is_over(since, SILENCE, now) {
        status.kube_status = KubeStatus::ApiUnreachable;
        status.scheduled_here = false;
        status.running = false;
    }
    status.domain = SwState::Unknown;
    status
}

/// The designated node follows the wish, unless the application runs elsewhere; another node follows
/// it only where the application has come to it.
fn effective_activate(app: &App, status: &AppStatus) -> bool {
    let elsewhere = status.running && !status.scheduled_here;
    let mine = if app.designated { !elsewhere } else { status.scheduled_here };
    app.activate && mine
}

impl AppStatus {
    fn nothing(app: &App) -> Self {
        Self {
            designated: app.designated,
            scheduled_here: false,
            running: false,
            is_vmi: false,
            kube_status: KubeStatus::Unknown,
            vmi_name: String::new(),
            vnc_port: app.vnc_port,
            domain: SwState::Unknown,
            node_name: String::new(),
            unknown_since: None,
            effective_activate: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE_MINUTES: Duration = Duration::from_secs(300);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn app(designated: bool) -> App {
        App {
            uuid: "u".to_owned(),
            kube_name: "web-0b1a2".to_owned(),
            activate: true,
            designated,
            vnc_port: 5901,
        }
    }

    fn pod(name: &str, node: &str, phase: PodPhase) -> Pod {
        Pod { name: name.to_owned(), node: node.to_owned(), phase, ..Pod::default() }
    }

    fn decide(app: &App, seen: &Seen, last: Option<&AppStatus>, now: i64) -> AppStatus {
        let all = [app.clone()];
        decide_app(app, &all, seen, last, "n1", at(now), FIVE_MINUTES)
    }

    fn line(status: &AppStatus) -> String {
        let flag = |flag: bool, word: &str| if flag { format!(" {word}") } else { String::new() };
        format!(
            "{}/{}{}{}{}{}",
            status.kube_status.number(),
            status.domain.name(),
            flag(status.scheduled_here, "here"),
            flag(status.running, "running"),
            flag(status.is_vmi, "vmi"),
            flag(status.effective_activate, "active")
        )
    }

    #[test]
    fn the_designated_node_and_the_others_say_where_the_application_is() {
        use PodPhase::*;
        let rows = [
            (true, vec![pod("web-0b1a2-x", "n1", Running)], "4/Running here running active"),
            (false, vec![pod("web-0b1a2-x", "n1", Running)], "4/Running here running active"),
            (true, vec![pod("web-0b1a2-x", "n2", Running)], "4/Running running"),
            (false, vec![pod("web-0b1a2-x", "n2", Running)], "4/Running running"),
            (true, vec![pod("web-0b1a2-x", "n1", Pending)], "3/Pending here active"),
            (true, vec![pod("web-0b1a2-x", "", Pending)], "3/Scheduling active"),
            (false, vec![pod("web-0b1a2-x", "", Pending)], "3/Scheduling"),
            (true, vec![], "2/Unknown active"),
            (false, vec![], "2/Unknown"),
            (true, vec![pod("other-0b1a2", "n1", Running)], "2/Unknown active"),
            (
                false,
                vec![pod("virt-launcher-web-0b1a2abc-x", "n1", Running)],
                "4/Running here running vmi active",
            ),
        ];
        for (designated, pods, expected) in rows {
            let status = decide(&app(designated), &Seen::Pods(pods.clone()), None, 0);
            assert_eq!(line(&status), expected, "designated: {designated}, {pods:?}");
        }
    }

    #[test]
    fn an_application_that_moves_away_is_where_its_new_pod_is() {
        let leaving = Pod { deleting: true, ..pod("web-0b1a2-a", "n1", PodPhase::Running) };
        let coming = pod("web-0b1a2-b", "n2", PodPhase::Pending);
        let both = Seen::Pods(vec![leaving.clone(), coming]);
        assert_eq!(line(&decide(&app(false), &both, None, 0)), "3/Pending");
        let gone = Seen::Pods(vec![leaving]);
        assert_eq!(line(&decide(&app(false), &gone, None, 0)), "2/Unknown");
    }

    #[test]
    fn a_pod_belongs_to_the_application_with_the_longest_name() {
        let short = app(true);
        let long = App { kube_name: "web-0b1a2-shop-99999".to_owned(), ..app(true) };
        let seen = Seen::Pods(vec![pod("web-0b1a2-shop-99999-x", "n1", PodPhase::Running)]);
        let all = [short.clone(), long.clone()];
        let decide = |app| decide_app(app, &all, &seen, None, "n1", at(0), FIVE_MINUTES);
        assert_eq!(decide(&short).kube_status, KubeStatus::NotInCluster);
        assert_eq!(decide(&long).kube_status, KubeStatus::Running);
    }

    #[test]
    fn what_is_unknown_for_more_than_five_minutes_is_halting_and_an_answer_clears_it() {
        let silent = Seen::Silent { since: at(0) };
        let running = Seen::Pods(vec![pod("web-0b1a2-x", "n1", PodPhase::Running)]);
        for nothing in [silent, Seen::Pods(vec![])] {
            let mut last = decide(&app(true), &nothing, None, 0);
            for (now, expected) in [
                (10, SwState::Unknown),
                (299, SwState::Unknown),
                (300, SwState::Halting),
                (900, SwState::Halting),
            ] {
                last = decide(&app(true), &nothing, Some(&last), now);
                assert_eq!((last.domain, last.unknown_since), (expected, Some(at(0))), "{now}");
            }
            let known = decide(&app(true), &running, Some(&last), 901);
            assert_eq!((known.domain, known.unknown_since), (SwState::Running, None));
            let again = decide(&app(true), &nothing, Some(&known), 902);
            assert_eq!((again.domain, again.unknown_since), (SwState::Unknown, Some(at(902))));
        }
        let idle = App { activate: false, ..app(true) };
        let status = decide(&idle, &Seen::Pods(vec![]), None, 9);
        assert_eq!((status.domain, status.unknown_since), (SwState::Halted, None));
    }

    #[test]
    fn a_short_silence_keeps_what_is_known_and_a_long_one_is_its_own_value() {
        let running = Seen::Pods(vec![pod("web-0b1a2-x", "n1", PodPhase::Running)]);
        let known = decide(&app(false), &running, None, 0);
        let silent = Seen::Silent { since: at(1) };
        let short = decide(&app(false), &silent, Some(&known), 120);
        assert_eq!(line(&short), "4/Unknown here running active");
        let long = decide(&app(false), &silent, Some(&short), 121);
        assert_eq!(line(&long), "1/Unknown");
    }

    #[test]
    fn a_clock_that_was_set_back_begins_the_count_anew() {
        let nothing = Seen::Pods(vec![]);
        let last = decide(&app(true), &nothing, None, 1000);
        let back = decide(&app(true), &nothing, Some(&last), 10);
        assert_eq!((back.domain, back.unknown_since), (SwState::Unknown, Some(at(10))));
    }
}
