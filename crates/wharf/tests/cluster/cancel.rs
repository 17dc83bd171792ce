//! What goes wrong on the way: a user changes their mind, machines are bad.

use serde_json::{Value, json};
use wharf_testbed::wait_for;

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE, inventory},
    kills::SETTLED,
    nodes_ready,
};

#[test]
fn a_canceled_create_settles_at_once_and_goes_on_with_the_same_authority() {
    let bed = Bed::start("cancel", 2);
    let before = inventory(bed.host("node2"));
    let wish = bed.wish("cancel", &[("node1", CONTROL), ("node2", WORKER)]);
    bed.send(&["create", "--no-wait"], &wish).ok();
    let authority = || {
        let asked = bed.host("node1").ssh(&["cat", "/etc/wharf/pki/ca.crt"])?;
        Ok(asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).into_owned()))
    };
    let first = wait_for("the first certificate on a host", DEADLINE, authority).unwrap();

    // Even while a host hangs, a cancel is over within 10 s.
    bed.host("node2").pause().unwrap();
    bed.world.local(&["cluster", "cancel", "cancel"]).ok();
    wait_for("the cancel to settle", SETTLED, || {
        Ok((bed.status("cancel") == "CreateFailed").then_some(()))
    })
    .unwrap();
    bed.host("node2").resume().unwrap();
    let operation = bed.operations("cancel").remove(0);
    assert_eq!(operation["state"], "canceled", "{operation}");
    bed.world.local(&["cluster", "cancel", "cancel"]).exits(4);

    // Going on needs no key: it was kept.
    let mut again = wish;
    again["sshKey"] = json!("");
    bed.send(&["update", "cancel"], &again).ok();
    assert_eq!(bed.status("cancel"), "Running");
    assert_eq!(nodes_ready(&bed, "cancel"), 2);
    assert_eq!(authority().unwrap().unwrap(), first);

    // Foreign things on a machine stay when the cluster goes.
    let foreign = "mkdir -p /opt/mine /etc/cni/net.d && echo x > /opt/mine/file && \
                   echo {} > /etc/cni/net.d/99-mine.conf && ip link add mine0 type bridge && nft add table ip mine";
    bed.host("node2").run(&["sh", "-c", foreign]).unwrap();
    bed.world.local(&["cluster", "delete", "cancel", "--yes"]).ok();
    let look = "cat /opt/mine/file /etc/cni/net.d/99-mine.conf && ip link show mine0 >/dev/null && nft list table ip mine >/dev/null";
    assert_eq!(bed.host("node2").run(&["sh", "-c", look]).unwrap().trim(), "x\n{}");
    let tidy = "rm -r /opt/mine /etc/cni && ip link delete mine0 && nft delete table ip mine";
    bed.host("node2").run(&["sh", "-c", tidy]).unwrap();
    assert_eq!(inventory(bed.host("node2")), before);
}

#[test]
fn bad_machines_give_errors_that_name_them_and_a_state_from_which_one_can_go_on() {
    let bed = Bed::start("bad", 2);
    let nodes = [("node1", CONTROL), ("node2", WORKER)];
    let wish = bed.wish("bad", &nodes);

    // A port in use, and an address where nobody is: all is told at once, nothing is written.
    let port = "systemd-run --unit=squatter socat TCP-LISTEN:10250,fork EXEC:cat";
    bed.host("node1").run(&["sh", "-c", port]).unwrap();
    let preflight = bed.send(&["preflight", "-o", "json"], &wish).exits(1);
    let found: Value = serde_json::from_str(&preflight.stdout).unwrap();
    assert_eq!(found["ok"], false, "{found}");
    assert!(found.to_string().contains("10250"), "{found}");
    let refused = bed.send(&["create"], &wish).exits(1);
    assert!(refused.stderr.contains("node1") && refused.stderr.contains("10250"), "{refused:?}");
    assert_eq!(bed.status("bad"), "CreateFailed");
    assert!(bed.host("node1").run(&["ls", "/opt"]).unwrap().is_empty());
    bed.host("node1").run(&["systemctl", "stop", "squatter"]).unwrap();

    // A machine that is off.
    bed.host("node2").power_cut().unwrap();
    let refused = bed.send(&["update", "bad"], &wish).exits(1);
    assert!(refused.stderr.contains("node2"), "{refused:?}");
    assert_eq!(bed.status("bad"), "CreateFailed");
    bed.host("node2").start().unwrap();

    // The host key of a machine that was pinned changes: it is refused until the user says so.
    let rekey = "rm /etc/ssh/ssh_host_* && ssh-keygen -A >/dev/null && systemctl restart ssh";
    bed.host("node2").run(&["sh", "-c", rekey]).unwrap_or_default();
    let refused = bed.send(&["update", "bad"], &wish).exits(1);
    assert!(refused.stderr.contains("node2"), "{refused:?}");
    assert!(refused.stderr.contains("host key"), "{refused:?}");

    // Delete works from here, and says nothing is left on the machine that answers.
    bed.world.local(&["cluster", "delete", "bad", "--yes", "--mode", "force"]).ok();
    let last = bed.operations("bad").remove(0);
    assert_eq!(last["kind"], "delete", "{last}");
    assert_eq!(last["state"], "succeeded", "{last}");
}
