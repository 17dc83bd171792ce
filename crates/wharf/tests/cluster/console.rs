//! The console on a real installation: everything by the form, with a browser.

use crate::{
    bed::{Bed, DEADLINE, assert_as_before, inventory},
    browser::Browser,
    nodes_ready,
    world::PASSWORD,
};

#[tokio::test]
async fn in_a_browser_a_real_cluster_is_made_watched_and_deleted() {
    let bed = Bed::start("console", 2);
    let before = inventory(bed.host("node2"));
    let address = |host: &str| bed.host(host).address().to_string();
    let key = std::fs::read_to_string(bed.machines.ssh_key_path().unwrap()).unwrap();
    let mut browser = Browser::start().await;
    browser.trust_all().await;
    browser.resize(1100, 900).await;
    browser.open(&bed.world.url()).await;
    browser.until("document.getElementById('password')").await;
    browser.fill("user", "admin").await;
    browser.fill("password", PASSWORD).await;
    browser.click("form button").await;
    browser.until("document.querySelector('h1')?.innerText === 'Clusters'").await;

    browser.click(".empty .primary").await;
    browser.until("document.getElementById('f-name')").await;
    for (id, text) in [
        ("f-name", "demo"),
        ("f-singleCloudAddress", &format!("{}:8443", bed.machines.gateway())),
        ("f-nodes-0--name", "node1"),
        ("f-nodes-0--address", &address("node1")),
        ("f-nodes-1--name", "node2"),
        ("f-nodes-1--address", &address("node2")),
        ("f-sshUser", "root"),
        ("f-sshKey", &key),
    ] {
        browser.fill(id, text).await;
    }
    browser.click(".wish button.primary").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
    browser.value("window.sameDocument = true").await;
    // Not a certain phase: a short one may be over between two looks.
    let under_way = "['done', 'running'].every(state => \
        [...document.querySelectorAll('.phases li')].some(li => li.innerText.includes(state)))";
    browser.until_within(DEADLINE, under_way).await;
    browser.picture("real-running").await;
    let running = "document.querySelector('h1').innerText.includes('Running')";
    browser.until_within(DEADLINE, running).await;
    browser.until_within(DEADLINE, "document.querySelectorAll('.badge.good').length >= 3").await;
    assert_eq!(browser.value("window.sameDocument").await, true, "the page was loaded again");
    browser.picture("real-done").await;
    browser.assert_harmless().await;
    assert_eq!(nodes_ready(&bed, "demo"), 2);
    let download = "fetch(document.querySelector('a[download]').href).then(a => a.text())\
        .then(text => window.kubeconfig = text)";
    browser.value(download).await;
    browser.until("window.kubeconfig?.includes('kube-admin')").await;

    reboot(&bed, &mut browser).await;

    browser.click("a.danger").await;
    browser.until("document.getElementById('confirm')").await;
    browser.fill("confirm", "demo").await;
    browser.click("button.danger").await;
    // The page of a cluster that is gone leads to the report of its end.
    let over = "location.pathname.startsWith('/console/operations/') && \
        document.body.innerText.includes('succeeded')";
    browser.until_within(DEADLINE, over).await;
    browser.assert_harmless().await;
    assert_as_before(bed.host("node2"), &before);
}

/// A node is rebooted by its page; the page of the cluster is open again afterwards.
async fn reboot(bed: &Bed, browser: &mut Browser) {
    let before = bed.host("node2").boot_id().unwrap();
    let cluster = format!("{}/console/clusters/demo", bed.world.url());
    browser.open(&format!("{cluster}/nodes/node2")).await;
    let linked = "document.getElementById('agent')?.innerText.includes('linked')";
    browser.until_within(DEADLINE, linked).await;
    browser.picture("real-node").await;
    browser.click("#plan").await;
    browser.until("document.getElementById('reboot')").await;
    browser.picture("real-plan").await;
    browser.assert_harmless().await;
    browser.click("#reboot").await;
    let under_way = "document.getElementById('operation-title')";
    browser.until(under_way).await;
    browser.picture("real-reboot").await;
    browser.until_within(DEADLINE, &format!("!{under_way}")).await;
    assert_ne!(bed.host("node2").boot_id().unwrap(), before);
    browser.open(&cluster).await;
    browser.until_within(DEADLINE, "document.querySelectorAll('.badge.good').length >= 3").await;
}
