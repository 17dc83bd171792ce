//! The console in a real browser.

use jiff::Timestamp;
use wharf_core::{
    cluster::{
        ClusterState,
        health::{Amounts, HealthRecord, NodeHealth},
    },
    operation::{Leftover, OperationRecord, OperationState, Phase, Progress, Step},
};
use wharf_server::clusters::put_health;
use wharf_store::Txn;

use super::{
    browser::Browser,
    change,
    common::{PASSWORD, TestServer},
    paper::{self, leave_alone, put_in_state, record, ssh_key},
    with_demo,
};

/// An operation in the middle of its work, as an install has it.
fn under_way(operation: &mut OperationRecord, now: Timestamp) {
    let names = [
        "connect",
        "preflight",
        "certificates",
        "upload",
        "prepare",
        "etcd",
        "controlplane",
        "nodes",
        "cluster",
        "verify",
    ];
    let ago = |seconds| now.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap();
    operation.started_at = ago(31);
    operation.phases = names.iter().enumerate().map(|(i, name)| phase(name, i, &ago)).collect();
    for (i, name) in names.iter().enumerate().take(5) {
        for host in ["m1", "w1", "w2"] {
            let state = match (i, host) {
                (4, "m1") => Progress::Done,
                (4, _) => Progress::Running,
                _ => Progress::Done,
            };
            let what = if i == 4 { "start wharf-containerd.service" } else { name };
            operation.steps.push(step(name, host, what, state));
        }
    }
    operation.log.clear();
    for (i, text) in LOG.iter().enumerate() {
        operation.log(ago(30 - 3 * i as i64), *text);
    }
}

const LOG: [&str; 6] = [
    "connected to m1 (192.0.2.11), host key pinned",
    "connected to w1 (192.0.2.21), host key pinned",
    "connected to w2 (192.0.2.22), host key pinned",
    "preflight: 3 hosts are fit",
    "3 authorities, 21 certificates",
    "uploaded 212 MiB to 3 hosts",
];

fn phase(name: &str, number: usize, ago: &impl Fn(i64) -> Timestamp) -> Phase {
    let state = match number {
        0..4 => Progress::Done,
        4 => Progress::Running,
        _ => Progress::Waiting,
    };
    let began = 30 - 6 * number as i64;
    Phase {
        name: name.to_owned(),
        state,
        started_at: (number <= 4).then(|| ago(began)),
        ended_at: (number < 4).then(|| ago(began - 6)),
    }
}

fn step(phase: &str, host: &str, name: &str, state: Progress) -> Step {
    Step {
        phase: phase.to_owned(),
        host: host.to_owned(),
        name: name.to_owned(),
        state,
        started_at: None,
        ended_at: None,
        exit_code: None,
        stderr_tail: None,
        hint: None,
    }
}

fn fail(operation: &mut OperationRecord, now: Timestamp) {
    let doing = "start wharf-containerd.service";
    operation.state = OperationState::Failed;
    operation.ended_at = Some(now);
    operation.phases[4].state = Progress::Failed;
    operation.error = Some(format!(
        "host w2: {doing}: the unit failed\n\
         containerd: mkdir /var/lib/wharf/containerd/io.containerd.content.v1: no space left on device"
    ));
    operation.hint = Some("make room on /var/lib of w2, then continue".to_owned());
    let step = operation.steps.iter_mut().rfind(|step| step.host == "w2").unwrap();
    step.state = Progress::Failed;
    step.name = doing.to_owned();
    step.exit_code = Some(1);
    operation.log(now, format!("w2: {doing} failed"));
}

async fn log_in(browser: &mut Browser, server: &TestServer) {
    browser.open(&format!("{}/", server.base)).await;
    browser.until("document.getElementById('password')").await;
    browser.fill("user", "admin").await;
    browser.fill("password", PASSWORD).await;
    browser.click("form button").await;
    browser.until("document.querySelector('h1')?.innerText === 'Clusters'").await;
}

#[tokio::test]
async fn in_a_browser_a_page_follows_what_happens_without_being_loaded_again() {
    let (server, id) = with_demo().await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 900).await;
    log_in(&mut browser, &server).await;
    browser.until("document.body.innerText.includes('demo')").await;
    browser.click("tbody a").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
    browser.value("window.sameDocument = true").await;
    browser.until("document.getElementById('percent').value === 0").await;

    change(&server, &id, |operation| under_way(operation, Timestamp::now())).await;
    browser.until("document.getElementById('percent').value === 43").await;
    browser.until("document.querySelectorAll('.hosts tbody tr').length === 3").await;
    browser.until("document.getElementById('announce').textContent.includes('prepare')").await;
    browser.until("!document.body.innerText.includes(' UTC')").await;
    browser.picture("running").await;

    change(&server, &id, |operation| fail(operation, Timestamp::now())).await;
    put_in_state(&server, "demo", ClusterState::CreateFailed).await;
    browser.until("document.getElementById('error')?.innerText.includes('make room')").await;
    browser.until("document.getElementById('retry')").await;
    browser.until("document.querySelector('.output').innerText.includes('no space left')").await;
    browser.picture("failed").await;
    assert_eq!(browser.value("window.sameDocument").await, true, "the page was loaded again");
    browser.assert_harmless().await;

    browser.resize(390, 844).await;
    browser.assert_fits().await;
    browser.picture("phone").await;
    // The session ends elsewhere: the page leads to the login, and back.
    browser.resize(1100, 900).await;
    let new = serde_json::json!({"password": "another good one", "oldPassword": PASSWORD});
    let changed = server.put("/users/admin/password", &server.admin, &new).await;
    assert_eq!(changed.status(), 204);
    browser.until("location.pathname === '/console/login'").await;
    browser.until("document.querySelector('[name=next]').value === '/console/clusters/demo'").await;
    browser.picture("login").await;
}

#[tokio::test]
async fn in_a_browser_a_cluster_is_asked_for_by_the_form() {
    let server = TestServer::start().await;
    leave_alone(&server, &["demo"]).await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 900).await;
    log_in(&mut browser, &server).await;
    browser.picture("empty").await;
    browser.click(".empty .primary").await;
    browser
        .until("document.getElementById('add-row') && !document.getElementById('add-row').hidden")
        .await;
    browser.click("#add-row").await;
    browser.until("document.querySelectorAll('.row').length === 6").await;
    browser.fill("f-name", "Demo").await;
    browser.fill("f-nodes-0--name", "m1").await;
    browser.fill("f-nodes-0--address", "192.0.2.11").await;
    browser.fill("f-nodes-5--name", "w1").await;
    browser.fill("f-nodes-5--address", "192.0.2.11").await;
    browser.fill("f-sshKey", "not a key").await;
    browser.click(".wish button.primary").await;
    browser.until("document.activeElement.id === 'faults'").await;
    assert_eq!(browser.value("document.getElementById('f-sshKey').value").await, "");
    assert_eq!(browser.value("document.getElementById('f-nodes-1--name').value").await, "w1");
    browser.assert_harmless().await;
    browser.picture("form").await;

    browser.value("document.getElementById('f-name').value = ''").await;
    browser.value("document.getElementById('f-nodes-1--address').value = ''").await;
    for (id, text) in [
        ("f-name", "demo"),
        ("f-singleCloudAddress", "192.0.2.1:8443"),
        ("f-nodes-1--address", "192.0.2.21"),
        ("f-sshUser", "root"),
        ("f-sshKey", &ssh_key()),
        ("f-sshJumpHost", "nobody@127.0.0.1:1"),
    ] {
        browser.fill(id, text).await;
    }
    browser.click(".wish button.primary").await;
    browser.until("document.querySelector('h1')?.innerText.includes('demo')").await;
    assert_eq!(record(&server, "demo").await.spec.nodes.len(), 2);
}

#[tokio::test]
async fn in_a_browser_a_running_cluster_shows_its_nodes_in_the_dark_too() {
    let (server, id) = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Running).await;
    let now = Timestamp::now();
    change(&server, &id, |operation| {
        under_way(operation, now);
        operation.phases.iter_mut().for_each(|phase| phase.state = Progress::Done);
        operation.steps.iter_mut().for_each(|step| step.state = Progress::Done);
        operation.state = OperationState::Succeeded;
        operation.ended_at = Some(now);
    })
    .await;
    let store = &server.app().store;
    let nodes = [("m1", 11), ("w1", 21), ("w2", 22)];
    let nodes = nodes.into_iter().enumerate().map(|(i, (name, last))| node(i as u64, name, last));
    let health = HealthRecord::new("demo", Some("v1.36.3".into()), nodes.collect(), true);
    paper::commit(store, put_health(Txn::new(), &health, now).unwrap()).await;
    let mut browser = Browser::start().await;
    browser.resize(1100, 760).await;
    log_in(&mut browser, &server).await;
    browser.until("document.body.innerText.includes('3 of 3')").await;
    browser.picture("list").await;
    browser.open(&format!("{}/console/clusters/demo", server.base)).await;
    browser.until("document.querySelectorAll('.badge.good').length >= 4").await;
    browser.until("document.querySelector('a[download]').innerText === 'Kubeconfig'").await;
    browser.dark(true).await;
    browser.picture("dark").await;
    let back = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.value(back).await, "rgb(16, 23, 29)");
    // The policy really forbids, and the browser really tells.
    browser.assert_harmless().await;
    browser.value("document.body.setAttribute('style', 'background: red')").await;
    browser.until("window.complaints.join().startsWith('style-src')").await;
    assert_eq!(browser.value(back).await, "rgb(16, 23, 29)");
}

#[tokio::test]
async fn in_a_browser_the_page_of_a_cluster_that_goes_leads_to_the_report() {
    let (mut server, _) = with_demo().await;
    put_in_state(&server, "demo", ClusterState::Deleting).await;
    let id = record(&server, "demo").await.work.unwrap().operation;
    let mut browser = Browser::start().await;
    log_in(&mut browser, &server).await;
    browser.open(&format!("{}/console/clusters/demo", server.base)).await;
    browser.until("document.querySelector('h1')?.innerText.includes('Deleting')").await;
    change(&server, &id, |operation| {
        operation.state = OperationState::Succeeded;
        let (host, reason) = ("w1".to_owned(), "it does not answer".to_owned());
        operation.leftovers.push(Leftover { host, reason, items: vec!["/opt/wharf".to_owned()] });
    })
    .await;
    paper::commit(&server.app().store, Txn::new().delete("cluster/demo".to_owned())).await;
    browser.until(&format!("location.pathname === '/console/operations/{id}'")).await;
    browser.until("document.body.innerText.includes('/opt/wharf')").await;
    browser.picture("leftovers").await;
    assert_eq!(browser.value("document.getElementById('stale').hidden").await, true);
    server.stop().await;
    browser.until("!document.getElementById('stale').hidden").await;
}

fn node(number: u64, name: &str, last: u8) -> NodeHealth {
    let role = if number == 0 { "control-plane" } else { "worker" };
    NodeHealth {
        name: name.to_owned(),
        address: Some([192, 0, 2, last].into()),
        ready: true,
        labels: [(format!("node-role.kubernetes.io/{role}"), "true".to_owned())].into(),
        capacity: Amounts { cpu_milli: 4000, memory_bytes: 8 << 30, pods: 110 },
        used: Amounts { cpu_milli: 450 + 300 * number, memory_bytes: (2 + number) << 30, pods: 9 },
        ..NodeHealth::default()
    }
}
