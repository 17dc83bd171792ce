//! Volumes of a real Kubernetes API, looked at and set free by the command line.

use crate::{
    apiserver::World as Kubernetes,
    node::world,
    storage::{entry, hold, install, lease, storage, stuck, volume},
};

#[test]
fn volumes_are_listed_shown_explained_and_set_free() {
    let kubernetes = Kubernetes::start();
    install(&kubernetes);
    storage(&kubernetes, "main", "loopfile");
    kubernetes.node("n1", "192.0.2.1", "worker");
    lease(&kubernetes, "n1");
    volume(&kubernetes, "held", "main");
    hold(&kubernetes, "held", &[entry(&kubernetes, "n1", "web-0", "uid-web")]);
    stuck(&kubernetes, "lost", "main", "n1");
    let world = world(&kubernetes);
    let run = |args: &[&str]| world.local(&[&["volume"], args].concat());

    let list = run(&["list", "demo"]).ok();
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(lines[0].starts_with("NAME") && lines[0].contains("LEASE"), "{list:?}");
    assert!(lines[1].starts_with("lost") && lines[1].contains("stuck"), "{list:?}");
    assert!(lines[2].starts_with("held") && lines[2].contains("default/web-0"), "{list:?}");
    assert!(list.stderr.contains("next: wharf volume why demo NAME"), "{list:?}");
    let json = run(&["list", "demo", "-o", "json"]).json();
    assert_eq!((json[0]["name"].as_str(), json[1]["state"].as_str()), (Some("lost"), Some("held")));

    let shown = run(&["show", "demo", "held"]).ok().stdout;
    assert!(shown.contains("node n1 (NotReady, lease held), /dev/loop7"), "{shown}");
    assert_eq!(run(&["show", "demo", "held", "-o", "json"]).json()["backend"], "loopfile");
    run(&["show", "demo", "nothing"]).fails(3, "wharf volume list demo");
    let why = run(&["why", "demo", "lost"]).ok();
    assert!(why.stdout.starts_with("volume lost is stuck\n- pod default/db-0 on node lost-gone"));
    assert!(why.stderr.contains("wharf volume detach demo lost --node lost-gone"), "{why:?}");
    assert_eq!(run(&["why", "demo", "lost", "-o", "json"]).json()["state"], "stuck");

    let plan = run(&["detach", "demo", "lost"]).ok();
    assert!(plan.stdout.contains("what may be lost:"), "{plan:?}");
    assert!(plan.stderr.contains("nothing was changed"), "{plan:?}");
    run(&["detach", "demo", "lost", "--force"]).exits(2);
    let force = ["detach", "demo", "lost", "--force", "--reason", "lost-gone is unplugged"];
    run(&force).fails(2, "--yes");
    let phase = || {
        let record = kubernetes.read(&["attachments.wharf.dev", "lost"]);
        record["attachments"][0]["phase"].as_str().unwrap().to_owned()
    };
    assert_eq!(phase(), "Attached", "nobody said yes");
    let done = run(&[&force[..], &["--yes"]].concat()).ok();
    assert!(done.stderr.contains("the file system is destroyed"), "{done:?}");
    assert!(done.stderr.contains("volume lost is released from pod default/db-0"), "{done:?}");
    assert_eq!(phase(), "Released");
    run(&[&force[..], &["--yes"]].concat()).fails(4, "wharf volume why");
    let audit = world.local(&["audit"]).ok().stdout;
    assert!(audit.contains("volume.detach") && audit.contains("lost-gone is unplugged"), "{audit}");
}
