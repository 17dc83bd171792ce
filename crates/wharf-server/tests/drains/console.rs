//! A drain and a repair as a person does them, in a real browser.

use serde_json::json;

use super::{
    browser::Browser,
    common::{PASSWORD, TestServer},
    import,
    world::{half_blocked, labelled, world},
};

async fn log_in(browser: &mut Browser, server: &TestServer) {
    browser.open(&format!("{}/console/login?next=/console/clusters/demo", server.base)).await;
    browser.fill("user", "admin").await;
    browser.fill("password", PASSWORD).await;
    browser.click("form button").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_browser_a_node_is_planned_drained_watched_canceled_and_cordoned() {
    let world = world();
    world.node("page", "192.0.2.30", "worker");
    half_blocked(&world, "page");
    world.pod("page", "page-web", &labelled("page-web"));
    let server = import(&world).await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 900).await;
    log_in(&mut browser, &server).await;
    browser.until("document.getElementById('cordon-page')").await;
    browser.picture("nodes").await;

    browser.click("a[href='/console/clusters/demo/nodes/page/plan']").await;
    browser.until("document.querySelector('h1')?.innerText === 'Drain page'").await;
    browser.until("document.querySelectorAll('tbody tr').length === 3").await;
    browser.until("document.body.innerText.includes('page: 1 allowed')").await;
    browser.picture("plan").await;
    assert!(!world.is_unschedulable("page"), "a plan touches nothing");

    browser.click("#drain").await;
    browser.until("document.getElementById('cancel')").await;
    browser.value("window.sameDocument = true").await;
    let blocked = "document.body.innerText.includes('is protected by budget page, 0 allowed')";
    browser.until(blocked).await;
    browser.until("document.body.innerText.includes('1 of 3 pods have to leave yet')").await;
    browser.until("document.querySelector('[data-since]')").await;
    assert!(world.is_unschedulable("page"));
    browser.until("document.querySelector('h1').innerText.includes('Cordoned')").await;
    browser.picture("draining").await;

    browser.click("#cancel").await;
    browser.until("document.querySelector('h2 .badge.warn')?.innerText === 'canceled'").await;
    browser.until("document.getElementById('cordon')").await;
    assert!(!world.is_unschedulable("page") && world.owner("page").is_none());
    browser.picture("canceled").await;
    browser.click("#cordon").await;
    browser.until("document.getElementById('uncordon')").await;
    assert!(world.is_unschedulable("page"));
    browser.click("#uncordon").await;
    browser.until("document.getElementById('cordon')").await;
    assert!(!world.is_unschedulable("page"));
    browser.assert_harmless().await;

    browser.resize(390, 844).await;
    browser.assert_fits().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_browser_a_machine_is_added_to_the_repair_queue_and_followed() {
    let world = world();
    world.node("ill", "192.0.2.31", "worker");
    let server = import(&world).await;
    let config = json!({"repair_procedures": [{
        "machine_types": ["rack"],
        "repair_operations": [{
            "operation": "restart",
            "health_check_command": ["sh", "-c", "echo false"],
            "repair_steps": [{
                "repair_command": ["sh", "-c", "echo power is off; exit 3"], "watch_seconds": 1,
            }],
        }],
    }]});
    let path = "/clusters/demo/repairconfig";
    assert_eq!(server.put(path, &server.admin, &config).await.status(), 200);
    let mut browser = Browser::start().await;
    browser.resize(1100, 900).await;
    log_in(&mut browser, &server).await;
    browser.click("a[href='/console/clusters/demo/repairs']").await;
    browser.until("document.body.innerText.includes('Nothing is to be repaired')").await;
    browser.click("#disable").await;
    browser.until("document.getElementById('enable')").await;

    browser.click(".heading .primary").await;
    browser.until("document.getElementById('add')").await;
    browser.fill("address", "not an address").await;
    browser.click("#add").await;
    browser.until("document.getElementById('faults')").await;
    browser.picture("repair-faults").await;
    browser.value("document.getElementById('address').value = ''").await;
    browser.fill("address", "192.0.2.31").await;
    browser.click("#add").await;
    browser.until("document.querySelector('tbody .badge')?.innerText === 'queued'").await;
    browser.value("window.sameDocument = true").await;
    browser.picture("repairs").await;

    let path = "/clusters/demo/repairs?action=enable";
    assert_eq!(server.post(path, &server.admin, &json!({})).await.status(), 200);
    browser.until("document.querySelector('tbody .badge')?.innerText === 'failed'").await;
    browser.until("document.querySelector('.output')?.textContent.includes('power is off')").await;
    assert_eq!(browser.value("window.sameDocument").await, true, "the page was loaded again");
    browser.value("document.querySelector('details').open = true").await;
    browser.picture("repair-failed").await;
    browser.click("#delete-0").await;
    browser.until("document.body.innerText.includes('Nothing is to be repaired')").await;
    browser.assert_harmless().await;
}
