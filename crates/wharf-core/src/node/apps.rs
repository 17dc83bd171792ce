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

/// A virtual machine, as the cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    pub name: String,
    /// Where it runs. While it moves to another node, two pods run for it, and it is in this one.
    pub node: String,
    pub phase: MachinePhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MachinePhase {
    #[default]
    Unknown,
    Pending,
    Scheduling,
    Running,
    Succeeded,
    Failed,
}

/// What the cluster says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// All pods and virtual machines of the applications' namespace.
    Objects { pods: Vec<Pod>, machines: Vec<Machine> },
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
    /// The pod that all this is said of; empty where there is none.
    pub pod_name: String,
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
        Seen::Objects { pods, machines } => look(app, all, pods, machines, here),
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

fn look(app: &App, all: &[App], pods: &[Pod], machines: &[Machine], here: &str) -> AppStatus {
    let mut status = AppStatus::nothing(app);
    // A pod that is leaving says nothing of where the application is.
    let ours = pods.iter().filter(|pod| !pod.deleting).filter_map(|pod| {
        let kind = pod_of_app(&pod.name, &app.kube_name)?;
        is_longest(app, all, &pod.name).then_some((kind, pod))
    });
    // One that runs says more than one that does not; of two that run for a machine the one that it
    // is in; and one that is here more than one elsewhere.
    let best = ours.max_by_key(|(_, pod)| {
        (pod.phase == PodPhase::Running, holds_machine(pod, machines), pod.node == here)
    });
    let Some((kind, pod)) = best else {
        return without_pod(app, all, machines);
    };
    status.running = pod.phase == PodPhase::Running;
    status.scheduled_here = !here.is_empty() && pod.node == here;
    status.is_vmi = kind == PodKind::Launcher;
    status.vmi_name = pod.vmi.clone().unwrap_or_default();
    status.node_name.clone_from(&pod.node);
    status.pod_name.clone_from(&pod.name);
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

fn holds_machine(pod: &Pod, machines: &[Machine]) -> bool {
    let mine = |machine: &&Machine| pod.vmi.as_ref() == Some(&machine.name);
    machines.iter().find(mine).is_some_and(|machine| machine.node == pod.node)
}

/// A machine may be there before its first pod, and after its last.
fn without_pod(app: &App, all: &[App], machines: &[Machine]) -> AppStatus {
    let mut status = AppStatus::nothing(app);
    let mut ours = machines.iter().filter(|machine| {
        let named = pod_of_app(&machine.name, &app.kube_name) == Some(PodKind::Plain);
        named && is_longest(app, all, &machine.name)
    });
    let Some(machine) = ours.next() else {
        status.kube_status = KubeStatus::NotInCluster;
        status.domain = if app.activate { SwState::Unknown } else { SwState::Halted };
        return status;
    };
    status.is_vmi = true;
    status.vmi_name.clone_from(&machine.name);
    status.kube_status = KubeStatus::NotRunning;
    status.domain = match machine.phase {
        MachinePhase::Pending => SwState::Pending,
        MachinePhase::Scheduling => SwState::Scheduling,
        MachinePhase::Succeeded => SwState::Halted,
        MachinePhase::Failed => SwState::Failed,
        // It cannot run without a pod.
        MachinePhase::Running | MachinePhase::Unknown => SwState::Unknown,
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
            pod_name: String::new(),
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

    fn pods(pods: Vec<Pod>) -> Seen {
        Seen::Objects { pods, machines: Vec::new() }
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
        for (designated, there, expected) in rows {
            let status = decide(&app(designated), &pods(there.clone()), None, 0);
            assert_eq!(line(&status), expected, "designated: {designated}, {there:?}");
        }
    }

    #[test]
    fn an_application_that_moves_away_is_where_its_new_pod_is() {
        let leaving = Pod { deleting: true, ..pod("web-0b1a2-a", "n1", PodPhase::Running) };
        let coming = pod("web-0b1a2-b", "n2", PodPhase::Pending);
        let both = pods(vec![leaving.clone(), coming]);
        assert_eq!(line(&decide(&app(false), &both, None, 0)), "3/Pending");
        let gone = pods(vec![leaving]);
        assert_eq!(line(&decide(&app(false), &gone, None, 0)), "2/Unknown");
    }

    #[test]
    fn of_two_pods_of_a_machine_that_moves_the_one_counts_that_it_is_in() {
        let launcher = |name: &str, node: &str| Pod {
            vmi: Some("web-0b1a2x".to_owned()),
            ..pod(name, node, PodPhase::Running)
        };
        let both = vec![
            launcher("virt-launcher-web-0b1a2x-a", "n1"),
            launcher("virt-launcher-web-0b1a2x-b", "n2"),
        ];
        let moving = |node: &str| {
            let machine = Machine {
                name: "web-0b1a2x".to_owned(),
                node: node.to_owned(),
                phase: MachinePhase::Running,
            };
            Seen::Objects { pods: both.clone(), machines: vec![machine] }
        };
        let before = decide(&app(false), &moving("n1"), None, 0);
        assert_eq!(line(&before), "4/Running here running vmi active");
        assert_eq!(before.pod_name, "virt-launcher-web-0b1a2x-a");
        let after = decide(&app(false), &moving("n2"), None, 0);
        assert_eq!((line(&after).as_str(), &*after.node_name), ("4/Running running vmi", "n2"));
        // Where nobody tells of machines, it is here as long as a pod of it runs here.
        let untold = decide(&app(false), &pods(both.clone()), None, 0);
        assert_eq!(untold.node_name, "n1");
    }

    #[test]
    fn a_machine_without_a_pod_is_in_the_cluster_and_does_not_run() {
        use MachinePhase::*;
        let rows = [
            ("web-0b1a2x", Pending, "3/Pending vmi active"),
            ("web-0b1a2x", Scheduling, "3/Scheduling vmi active"),
            ("web-0b1a2x", Succeeded, "3/Halted vmi active"),
            ("web-0b1a2x", Failed, "3/Failed vmi active"),
            ("web-0b1a2x", Running, "3/Unknown vmi active"),
            ("web-99999x", Pending, "2/Unknown active"),
        ];
        for (name, phase, expected) in rows {
            let machine = Machine { name: name.to_owned(), node: String::new(), phase };
            let seen = Seen::Objects { pods: Vec::new(), machines: vec![machine] };
            let status = decide(&app(true), &seen, None, 0);
            assert_eq!(line(&status), expected, "{name} {phase:?}");
        }
    }

    #[test]
    fn a_pod_belongs_to_the_application_with_the_longest_name() {
        let short = app(true);
        let long = App { kube_name: "web-0b1a2-shop-99999".to_owned(), ..app(true) };
        let seen = pods(vec![pod("web-0b1a2-shop-99999-x", "n1", PodPhase::Running)]);
        let all = [short.clone(), long.clone()];
        let decide = |app| decide_app(app, &all, &seen, None, "n1", at(0), FIVE_MINUTES);
        assert_eq!(decide(&short).kube_status, KubeStatus::NotInCluster);
        assert_eq!(decide(&long).kube_status, KubeStatus::Running);
    }

    #[test]
    fn what_is_unknown_for_more_than_five_minutes_is_halting_and_an_answer_clears_it() {
        let silent = Seen::Silent { since: at(0) };
        let running = pods(vec![pod("web-0b1a2-x", "n1", PodPhase::Running)]);
        for nothing in [silent, pods(vec![])] {
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
        let status = decide(&idle, &pods(vec![]), None, 9);
        assert_eq!((status.domain, status.unknown_since), (SwState::Halted, None));
    }

    #[test]
    fn a_short_silence_keeps_what_is_known_and_a_long_one_is_its_own_value() {
        let running = pods(vec![pod("web-0b1a2-x", "n1", PodPhase::Running)]);
        let known = decide(&app(false), &running, None, 0);
        let silent = Seen::Silent { since: at(1) };
        let short = decide(&app(false), &silent, Some(&known), 120);
        assert_eq!(line(&short), "4/Unknown here running active");
        let long = decide(&app(false), &silent, Some(&short), 121);
        assert_eq!(line(&long), "1/Unknown");
    }

    #[test]
    fn a_clock_that_was_set_back_begins_the_count_anew() {
        let nothing = pods(vec![]);
        let last = decide(&app(true), &nothing, None, 1000);
        let back = decide(&app(true), &nothing, Some(&last), 10);
        assert_eq!((back.domain, back.unknown_since), (SwState::Unknown, Some(at(10))));
    }
}
