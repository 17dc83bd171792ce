//! A user who changes their mind.

use serde_json::json;
use wharf_testbed::wait_for;

use crate::{
    CONTROL, WORKER, agents,
    bed::{Bed, DEADLINE, assert_as_before, inventory},
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

    agents::reboot_at_once(&bed, "cancel", "node2");

    // Foreign things on a machine stay when the cluster goes.
    let foreign = "mkdir -p /opt/mine /etc/cni/net.d && echo x > /opt/mine/file && \
                   echo {} > /etc/cni/net.d/99-mine.conf && ip link add mine0 type bridge && nft add table ip mine";
    bed.host("node2").run(&["sh", "-c", foreign]).unwrap();
    bed.world.local(&["cluster", "delete", "cancel", "--yes"]).ok();
    let look = "cat /opt/mine/file /etc/cni/net.d/99-mine.conf && ip link show mine0 >/dev/null && nft list table ip mine >/dev/null";
    assert_eq!(bed.host("node2").run(&["sh", "-c", look]).unwrap().trim(), "x\n{}");
    let tidy = "rm -r /opt/mine /etc/cni && ip link delete mine0 && nft delete table ip mine";
    bed.host("node2").run(&["sh", "-c", tidy]).unwrap();
    assert_as_before(bed.host("node2"), &before);
}
