//! The items of an application that is well, of one that nobody knows, and of many that are stuck.

use super::*;

const APP: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
const VOLUME: &str = "11111111-4e5f-6071-8293-a4b5c6d7e8f9";
const CONTENT: &str = "22222222-4e5f-6071-8293-a4b5c6d7e8f9";
const NETWORK: &str = "33333333-4e5f-6071-8293-a4b5c6d7e8f9";

fn text(text: &str) -> String {
    text.to_owned()
}

fn volume() -> Volume {
    Volume {
        id: text(VOLUME),
        config: Ok(VolumeConfig { name: text("v"), content_id: text(CONTENT), replicated: true }),
        status: Ok(VolumeStatus {
            name: text("v"),
            state: Some(SwState::CreatedVolume),
            replicated: true,
            current_bytes: 5,
            total_bytes: 5,
            error: String::new(),
        }),
        content: Ok(Content {
            id: text(CONTENT),
            name: text("image"),
            url: text("a/b"),
            state: Some(SwState::Loaded),
            current_bytes: 5,
            total_bytes: 5,
            error: String::new(),
        }),
        disk: Ok(Disk {
            path: text("/v"),
            kind: text("QCOW2"),
            provisioned_bytes: 9,
            used_bytes: 5,
        }),
    }
}

fn app() -> App {
    App {
        uuid: text(APP),
        name: text("web"),
        activate: true,
        designated: true,
        errors: vec![],
        volumes: vec![volume()],
        networks: vec![Network {
            id: text(NETWORK),
            status: Ok(NetworkInstance { activated: true, ..NetworkInstance::default() }),
        }],
        in_cluster: Ok(InCluster {
            designated: true,
            scheduled_here: true,
            running: true,
            kube_status: KubeStatus::Running,
            kube_name: text("web-0b1a2"),
        }),
        network_config: Ok(NetworkConfig { name: text("web"), activate: true, adapters: vec![] }),
        network_status: Ok(NetworkStatus { number: 1, ..NetworkStatus::default() }),
        status: Ok(InstanceStatus {
            domain_name: text("web.1"),
            activated: true,
            designated: true,
            state: Some(SwState::Running),
            error: String::new(),
        }),
        domain_config: Ok(DomainConfig::default()),
        domain: Ok(Domain {
            name: text("web.1"),
            activated: true,
            state: Some(SwState::Running),
            node: text("n1"),
            error: String::new(),
        }),
        metric: Ok(Metric::default()),
    }
}

fn facts(app: Asked) -> Facts {
    Facts {
        node: Ok(Node { id: text("d"), name: text("n1"), ..Node::default() }),
        cluster: Ok(Cluster {
            interface: text("eth1"),
            ready: true,
            address: text("10.244.244.2"),
            ..Cluster::default()
        }),
        lease: Ok(Lease { leader: text("n2"), in_election: true, ..Lease::default() }),
        install_log: Ok(vec![text("one"), text("two")]),
        app,
    }
}

fn of(change: impl FnOnce(&mut App)) -> Facts {
    let mut app = app();
    change(&mut app);
    facts(Asked::App(Box::new(app)))
}

fn keys(items: &[Item]) -> Vec<&str> {
    items.iter().map(|item| item.key.as_str()).collect()
}

const CLUSTER: [&str; 4] = [
    "zedagent-EdgeNodeInfo",
    "zedkube-EdgeNodeClusterStatus",
    "zedkube-KubeLeaseInfo",
    "k3s-install.log",
];

#[test]
fn the_eighteen_items_are_there_in_their_order() {
    let items = trace(&of(|_| ()));
    let app = [
        "zedagent-AppInstanceConfig-0b1a2",
        "zedagent-VolumeConfig-11111",
        "zedrouter-NetworkInstanceStatus-33333",
        "zedkube-ENClusterAppStatus-0b1a2",
        "zedmanager-AppNetworkConfig-0b1a2",
        "zedrouter-AppNetworkStatus-0b1a2",
        "volumemgr-VolumeStatus-11111",
        "volumemgr-ContentTreeStatus-22222",
        "zedmanager-AppNetworkConfig-0b1a2",
        "zedmanager-AppInstanceStatus-0b1a2",
        "zedmanager-DomainConfig-0b1a2",
        "domainmgr-DomainStatus-0b1a2",
        "domainmgr-DomainMetric-0b1a2",
        "volumemgr-AppDiskMetric-11111",
    ];
    assert_eq!(keys(&items), [&CLUSTER[..], &app[..]].concat());
    assert_eq!(items.len(), 18);
    assert!(items.iter().all(|item| item.exists && item.errors.is_empty()));
    assert_eq!(items[1].state, "Cluster IP Ready");
    assert_eq!(
        (items[2].state.as_str(), items[2].activated),
        ("Is Stats Leader false", Some(true))
    );
    assert_eq!(items[3].content, "one\ntwo");
    assert_eq!((items[4].name.as_str(), items[4].designated), ("web", Some(true)));
    assert_eq!(items[15].state, "Running");
    assert_eq!([None, Some(true), Some(false)].map(tri_state), ["none", "enabled", "disabled"]);
}

#[test]
fn an_empty_question_gives_the_cluster_and_an_unknown_one_says_so() {
    assert_eq!(keys(&trace(&facts(Asked::Nobody))), CLUSTER);
    let asked = Asked::NotFound { asked: text("shop"), reason: text("never heard of it") };
    let items = trace(&facts(asked.clone()));
    assert_eq!(items.len(), 5);
    let last = items.last().unwrap();
    assert_eq!((last.key.as_str(), last.exists), ("zedagent-AppInstanceConfig-shop", false));
    assert_eq!(last.errors, "never heard of it");
    assert_eq!(find_stuck(&facts(asked)).unwrap().reason, "never heard of it");
}

#[test]
fn what_is_missing_keeps_its_place_and_its_key_and_says_why() {
    let nothing = facts(Asked::App(Box::new(App {
        in_cluster: Err(Missing::NoFile),
        network_config: Err(Missing::NoPublisher),
        network_status: Err(Missing::NoPublisher),
        status: Err(Missing::Unreadable(text("it is no JSON object"))),
        domain_config: Err(Missing::NoFile),
        domain: Err(Missing::NoFile),
        metric: Err(Missing::NoFile),
        volumes: vec![Volume {
            id: text(VOLUME),
            config: Err(Missing::NoFile),
            status: Err(Missing::NoFile),
            content: Err(Missing::NoFile),
            disk: Err(Missing::NoFile),
        }],
        networks: vec![Network { id: text(NETWORK), status: Err(Missing::NoFile) }],
        ..app()
    })));
    let mut nothing = nothing;
    (nothing.node, nothing.cluster) = (Err(Missing::NoFile), Err(Missing::NoFile));
    let items = trace(&nothing);
    assert_eq!(items.len(), 18);
    let there: Vec<_> = items.iter().filter(|item| item.exists).map(|item| &item.key).collect();
    assert_eq!(there, [CLUSTER[2], CLUSTER[3], "zedagent-AppInstanceConfig-0b1a2"]);
    assert!(items.iter().all(|item| item.exists == item.errors.is_empty()));
    assert_eq!(items[0].key, CLUSTER[0]);
    assert_eq!(items[8].errors, "no agent on this node publishes it");
    assert_eq!(items[13].errors, "it cannot be read: it is no JSON object");
}

#[test]
fn an_application_is_found_by_id_by_name_and_by_the_beginning_of_its_id() {
    let apps = [(APP, "web"), (VOLUME, "shop"), (CONTENT, "shop"), (NETWORK, "0b1a2")];
    assert_eq!(find_app(APP, &apps), Ok(APP));
    assert_eq!(find_app(&APP.to_uppercase(), &apps), Ok(APP));
    assert_eq!(find_app("web", &apps), Ok(APP));
    assert_eq!(find_app("111111", &apps), Ok(VOLUME));
    assert_eq!(find_app("0b1a2", &apps), Ok(NETWORK), "a name comes before a beginning");
    let several = find_app("shop", &apps).unwrap_err();
    assert!(several.contains(VOLUME) && several.contains(CONTENT), "{several}");
    for unknown in ["../../etc/passwd", "nothing", "web "] {
        assert!(find_app(unknown, &apps).unwrap_err().contains("not told"), "{unknown}");
    }
}

#[test]
fn the_first_thing_that_is_wrong_is_named() {
    let stopped = |app: &mut App| {
        if let Ok(seen) = &mut app.in_cluster {
            (seen.running, seen.kube_status) = (false, KubeStatus::NotInCluster);
        }
    };
    let say = |change: fn(&mut App)| {
        let facts = of(|app| {
            stopped(app);
            change(app);
        });
        find_stuck(&facts).map(|stuck| format!("{}: {}", stuck.key, stuck.reason))
    };
    type Change = fn(&mut App);
    let rows: [(Change, &str); 9] = [
        (|_| (), "zedkube-ENClusterAppStatus-0b1a2: it has no pod in the cluster"),
        (|app| app.errors.push(text("bad image")), "zedagent-AppInstanceConfig-0b1a2: bad image"),
        (
            |app| app.volumes[0].config = Err(Missing::NoFile),
            "zedagent-VolumeConfig-11111: this node was not told of the volume",
        ),
        (
            |app| app.volumes[0].content.as_mut().unwrap().state = Some(SwState::Downloading),
            "volumemgr-ContentTreeStatus-22222: its image is being fetched: 5 of 5 bytes",
        ),
        (
            |app| app.volumes[0].status.as_mut().unwrap().state = Some(SwState::CreatingVolume),
            "volumemgr-VolumeStatus-11111: the volume is not made yet",
        ),
        (
            |app| app.networks[0].status.as_mut().unwrap().activated = false,
            "zedrouter-NetworkInstanceStatus-33333: the network is not active",
        ),
        (
            |app| app.domain.as_mut().unwrap().error = text("out of memory"),
            "domainmgr-DomainStatus-0b1a2: out of memory",
        ),
        (
            |app| app.in_cluster.as_mut().unwrap().kube_status = KubeStatus::ApiUnreachable,
            "zedkube-ENClusterAppStatus-0b1a2: the cluster does not answer this node",
        ),
        (
            |app| app.volumes[0].status = Err(Missing::NoPublisher),
            "zedkube-ENClusterAppStatus-0b1a2: it has no pod in the cluster",
        ),
    ];
    for (change, expected) in rows {
        assert_eq!(say(change).as_deref(), Some(expected));
    }
    assert_eq!(find_stuck(&of(|_| ())), None, "it runs");
    let crashing = of(|app| {
        app.domain.as_mut().unwrap().error = text("container main: CrashLoopBackOff");
        app.volumes[0].config = Err(Missing::NoFile);
    });
    let stuck = find_stuck(&crashing).unwrap();
    assert_eq!(stuck.key, "domainmgr-DomainStatus-0b1a2", "what it has got over is not named");
    assert_eq!(stuck.reason, "container main: CrashLoopBackOff");
    let idle = of(|app| {
        stopped(app);
        app.activate = false;
    });
    assert_eq!(find_stuck(&idle), None, "it is not meant to run");
    let mut away = of(stopped);
    away.cluster.as_mut().unwrap().ready = false;
    assert_eq!(find_stuck(&away).unwrap().key, "zedkube-EdgeNodeClusterStatus");
}
