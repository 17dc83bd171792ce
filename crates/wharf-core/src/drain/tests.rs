//! Tables of single looks, and whole drains against a small model of a node.

use super::*;

pub(super) const OWNER: &str = "update demo";

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

pub(super) fn policy() -> Policy {
    Policy::removal(OWNER, at(100))
}

pub(super) fn pod(name: &str) -> PodFacts {
    PodFacts {
        pod: PodRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        },
        ..PodFacts::default()
    }
}

pub(super) fn tried(name: &str, at_second: i64, answer: Answer) -> PodFacts {
    PodFacts { last_try: Some(Try::after(None, at(at_second), answer)), ..pod(name) }
}

pub(super) fn refused() -> Answer {
    Answer::Refused {
        budgets: vec![Budget { name: "db".to_owned(), allowed: 0 }],
        message: "would violate".to_owned(),
    }
}

pub(super) fn node(cordon: Option<(&str, bool)>, unschedulable: bool) -> Option<NodeFacts> {
    let cordon = cordon.map(|(owner, before)| Cordon { owner: owner.to_owned(), before });
    Some(NodeFacts { name: "n1".to_owned(), unschedulable, cordon, ..NodeFacts::default() })
}

pub(super) fn fresh(pods: Vec<PodFacts>) -> Snapshot {
    Snapshot { node: node(None, false), pods, ..Snapshot::default() }
}

/// Looked at before, a second ago at the latest.
pub(super) fn cordoned(pods: Vec<PodFacts>) -> Snapshot {
    let empty_since = pods.is_empty().then(|| at(9));
    Snapshot { node: node(Some((OWNER, false)), true), pods, empty_since, ..Snapshot::default() }
}

/// A decision as one line: verdict, actions, what is waited for.
fn line(snapshot: &Snapshot, now: i64) -> String {
    line_by(snapshot, now, &policy())
}

pub(super) fn line_by(snapshot: &Snapshot, now: i64, policy: &Policy) -> String {
    let decision = decide_drain(snapshot, at(now), policy);
    let action = |action: &Action| match action {
        Action::Rehearse(pod) => format!("rehearse {}", pod.name),
        Action::Evict(pod) => format!("evict {}", pod.name),
        Action::Delete(pod) => format!("delete {}", pod.name),
        Action::Cordon => "cordon".to_owned(),
        Action::Uncordon => "uncordon".to_owned(),
    };
    let actions: Vec<String> = decision.actions.iter().map(action).collect();
    let verdict = match &decision.verdict {
        Verdict::Going => "going".to_owned(),
        Verdict::Done => "done".to_owned(),
        Verdict::Failed(failure) => format!("failed: {failure}"),
    };
    format!("{verdict} | {}", actions.join(", "))
}

#[test]
fn the_evictions_are_rehearsed_before_the_node_is_cordoned() {
    let rows = [
        (vec![], "going | cordon"),
        (vec![pod("a"), pod("b")], "going | rehearse a, rehearse b"),
        (vec![tried("a", 1, Answer::Allowed), pod("b")], "going | rehearse b"),
        (vec![tried("a", 1, Answer::Allowed), tried("b", 1, refused())], "going | rehearse b"),
        (vec![tried("a", 9, Answer::Allowed), tried("b", 10, refused())], "going | "),
        (vec![tried("a", 1, Answer::Allowed)], "going | cordon"),
        (vec![PodFacts { terminating: true, ..pod("a") }], "going | cordon"),
    ];
    for (pods, expected) in rows {
        assert_eq!(line(&fresh(pods.clone()), 10), expected, "{pods:?}");
    }
}

#[test]
fn an_owned_cordon_means_that_pods_are_evicted() {
    let failed = Answer::Failed { message: "500".to_owned() };
    let rows = [
        (vec![], "done | "),
        (vec![pod("a"), tried("b", 10, Answer::Allowed)], "going | evict a, evict b"),
        (vec![tried("a", 10, Answer::Accepted)], "going | "),
        (vec![tried("a", 1, Answer::Accepted)], "going | "),
        (vec![tried("a", 0, Answer::Accepted)], "going | evict a"),
        (vec![tried("a", 10, refused()), tried("b", 9, refused())], "going | evict b"),
        (vec![tried("a", 9, failed)], "going | evict a"),
        (vec![PodFacts { terminating: true, ..pod("a") }], "going | "),
    ];
    for (pods, expected) in rows {
        assert_eq!(line(&cordoned(pods.clone()), 10), expected, "{pods:?}");
    }
}

#[test]
fn pods_of_daemon_sets_mirror_pods_and_finished_pods_stay_and_do_not_block() {
    let staying = vec![
        PodFacts { controller: Controller::DaemonSet, ..pod("proxy") },
        PodFacts { mirror: true, controller: Controller::Other, ..pod("static") },
        PodFacts { finished: true, ..pod("done") },
        PodFacts { finished: true, controller: Controller::Job, ..pod("job-done") },
    ];
    assert_eq!(line(&fresh(staying.clone()), 10), "going | cordon");
    let looked = Snapshot { empty_since: Some(at(9)), ..cordoned(staying) };
    assert_eq!(line(&looked, 10), "done | ");
}

#[test]
fn an_empty_node_counts_as_drained_once_its_cordon_is_known_to_all() {
    let since = |second| Snapshot { cordoned_since: Some(at(second)), ..cordoned(vec![]) };
    assert_eq!(line(&since(10), 10), "going | ");
    assert_eq!(decide_drain(&since(10), at(10), &policy()).wake_at, at(10) + SETTLED);
    assert_eq!(line(&since(9), 10), "done | ");
}

#[test]
fn who_takes_our_mark_away_ends_the_drain() {
    let known = Snapshot { cordoned_since: Some(at(5)), ..fresh(vec![pod("a")]) };
    let expected = "failed: somebody made the node schedulable again | uncordon";
    assert_eq!(line(&known, 10), expected);
    let still_cordoned = Snapshot { node: node(None, true), ..known };
    assert_eq!(line(&still_cordoned, 10), expected);
}

#[test]
fn a_silent_cluster_is_named_and_nothing_new_is_begun() {
    let silent = Some("no route".to_owned());
    let snapshot = Snapshot { silent, ..fresh(vec![]) };
    let decision = decide_drain(&snapshot, at(10), &policy());
    assert_eq!(decision.actions, []);
    let texts: Vec<String> = decision.report.waiting.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["the cluster does not answer: no route"]);
    let late = "failed: the deadline passed: the cluster does not answer: no route | ";
    assert_eq!(line(&snapshot, 100), late);
}

#[test]
fn what_is_being_asked_for_is_not_asked_twice_and_takes_its_room() {
    let few = Policy { parallel: 2, ..policy() };
    let asking = || PodFacts { asking: true, ..pod("a") };
    let pods = || vec![asking(), pod("b"), pod("c")];
    assert_eq!(line_by(&fresh(pods()), 10, &few), "going | rehearse b");
    assert_eq!(line_by(&cordoned(pods()), 10, &few), "going | evict b");
    assert_eq!(line_by(&fresh(vec![asking()]), 10, &few), "going | ");
}

#[test]
fn on_a_lost_node_terminating_pods_count_as_gone_and_jobs_do_not_block() {
    let since = |unready: i64, pods: Vec<PodFacts>| {
        let mut snapshot = cordoned(pods);
        snapshot.node.as_mut().unwrap().unready_since = Some(at(unready));
        Snapshot { empty_since: Some(at(1)), ..snapshot }
    };
    let ending = || vec![PodFacts { terminating: true, ..pod("a") }];
    assert_eq!(line(&since(20, ending()), 50), "going | ", "it may come back");
    assert_eq!(line(&since(10, ending()), 50), "done | ");
    assert_eq!(decide_drain(&since(10, ending()), at(50), &policy()).report.given_up, 1);
    let job = || vec![PodFacts { controller: Controller::Job, ..pod("job") }];
    assert_eq!(line(&since(20, job()), 50), "going | ");
    assert_eq!(line(&since(10, job()), 50), "going | evict job");
    let waiting = Policy { lost_after: None, ..policy() };
    assert_eq!(line_by(&since(10, ending()), 50, &waiting), "going | ");
}

#[test]
fn blocked_pods_do_not_keep_others_from_their_turn() {
    let few = Policy { parallel: 2, ..policy() };
    let pods = vec![
        tried("a", 5, refused()),
        tried("b", 3, refused()),
        tried("c", 4, refused()),
        pod("d"),
    ];
    assert_eq!(line_by(&fresh(pods.clone()), 10, &few), "going | rehearse d, rehearse b");
    assert_eq!(line_by(&cordoned(pods), 10, &few), "going | evict d, evict b");
}

#[test]
fn a_job_blocks_before_anything_is_touched_and_is_evicted_only_where_the_policy_says_so() {
    let job = vec![PodFacts { controller: Controller::Job, ..pod("job") }];
    assert_eq!(line(&fresh(job.clone()), 10), "going | ");
    assert_eq!(line(&cordoned(job.clone()), 10), "going | ");
    let report = decide_drain(&fresh(job.clone()), at(10), &policy()).report;
    let sentence = report.waiting.first().map(Waiting::to_string);
    assert_eq!(sentence.as_deref(), Some("pod default/job belongs to a Job that has not finished"));
    let evicting = Policy { jobs: Jobs::Evict, ..policy() };
    assert_eq!(line_by(&cordoned(job), 10, &evicting), "going | evict job");
}

#[test]
fn a_missed_deadline_names_the_pod_and_its_budget_and_takes_our_cordon_back() {
    let blocked = vec![tried("db-0", 99, refused())];
    let sentence = "the deadline passed: pod default/db-0 is protected by budget db, 0 allowed";
    assert_eq!(line(&cordoned(blocked.clone()), 100), format!("failed: {sentence} | uncordon"));
    // Nothing was touched yet, so nothing is undone.
    assert_eq!(line(&fresh(blocked), 100), format!("failed: {sentence} | "));
    // What is finished is finished, however late.
    assert_eq!(line(&cordoned(vec![]), 200), "done | ");
}

#[test]
fn a_person_who_uncordons_ends_the_drain() {
    let node = node(Some((OWNER, false)), false);
    let snapshot = Snapshot { node, ..fresh(vec![pod("a")]) };
    let expected = "failed: somebody made the node schedulable again | uncordon";
    assert_eq!(line(&snapshot, 10), expected);
}

#[test]
fn a_cordon_of_another_owner_is_waited_for_and_never_lifted() {
    let node = node(Some(("repair 7", false)), true);
    let snapshot = Snapshot { node, ..fresh(vec![pod("a")]) };
    assert_eq!(line(&snapshot, 10), "going | ");
    let expected = "failed: the deadline passed: the node is cordoned by repair 7 | ";
    assert_eq!(line(&snapshot, 100), expected);
}

#[test]
fn a_cordon_of_a_person_is_joined() {
    let snapshot = Snapshot { node: node(None, true), ..fresh(vec![pod("a")]) };
    assert_eq!(line(&snapshot, 10), "going | rehearse a");
    let ours = Snapshot { node: node(Some((OWNER, true)), true), ..cordoned(vec![]) };
    assert_eq!(line(&ours, 10), "done | ");
}

#[test]
fn a_node_that_is_gone_is_drained() {
    assert_eq!(line(&Snapshot::default(), 10), "done | ");
}

#[test]
fn cordon_first_does_not_rehearse() {
    let first = Policy { order: Order::CordonFirst, ..policy() };
    assert_eq!(line_by(&fresh(vec![pod("a")]), 10, &first), "going | cordon");
}

#[test]
fn actions_are_limited_and_waiting_ends_at_the_deadline() {
    let few = Policy { parallel: 2, ..policy() };
    let pods: Vec<_> = ["a", "b", "c"].map(pod).into();
    assert_eq!(line_by(&cordoned(pods), 10, &few), "going | evict a, evict b");

    let blocked = cordoned(vec![tried("a", 10, refused())]);
    let wake = |now: Timestamp| decide_drain(&blocked, now, &policy()).wake_at;
    assert_eq!(wake(at(10)), at(10) + Duration::from_millis(500));
    let just_before = at(100) - Duration::from_millis(100);
    let refused_now = cordoned(vec![PodFacts {
        last_try: Some(Try::after(None, just_before, refused())),
        ..pod("a")
    }]);
    assert_eq!(decide_drain(&refused_now, just_before, &policy()).wake_at, at(100));
}

#[test]
fn several_budgets_are_all_named() {
    let budget = |name: &str| Budget { name: name.to_owned(), allowed: 1 };
    let reason = WaitReason::Refused {
        budgets: vec![budget("a"), budget("b")],
        message: "more than one".to_owned(),
    };
    let waiting = Waiting { pod: Some(pod("db").pod), reason, remark: None };
    assert_eq!(
        waiting.to_string(),
        "pod default/db is protected by several budgets (a, b): more than one"
    );
}

#[test]
fn a_long_list_of_blockers_is_cut_with_a_count() {
    let waiting = ["a", "b", "c", "d", "e", "f", "g"].map(|name| Waiting {
        pod: Some(pod(name).pod),
        reason: WaitReason::Terminating,
        remark: None,
    });
    let text = Failure::Deadline { waiting: waiting.into() }.to_string();
    assert!(text.ends_with("pod default/e is terminating; and 2 more"), "{text}");
}

/// Carries decisions out on a model of a node whose budget frees up later, and checks on the way
/// that nothing is evicted before all was rehearsed and the node was cordoned.
#[test]
fn a_whole_drain_of_a_model_ends_with_an_empty_cordoned_node() {
    let mut snapshot = fresh(vec![
        pod("web"),
        pod("db"),
        PodFacts { controller: Controller::DaemonSet, ..pod("proxy") },
    ]);
    let mut now = at(0);
    let frees_up = at(20);
    for _ in 0..1000 {
        let decision = decide_drain(&snapshot, now, &policy());
        let is_empty = decision.report.left == 0 && decision.report.stage == Stage::Evicting;
        snapshot.empty_since = is_empty.then(|| snapshot.empty_since.unwrap_or(now));
        if decision.verdict == Verdict::Done {
            let names: Vec<_> = snapshot.pods.iter().map(|pod| pod.pod.name.as_str()).collect();
            assert_eq!(names, ["proxy"]);
            assert_eq!(snapshot.node, node(Some((OWNER, false)), true));
            assert!(now >= frees_up);
            return;
        }
        assert_eq!(decision.verdict, Verdict::Going);
        // Pods that were terminating at the last look are gone at this one.
        snapshot.pods.retain(|pod| !pod.terminating);
        for action in decision.actions {
            carry_out(&mut snapshot, &action, now, frees_up);
        }
        assert!(decision.wake_at >= now);
        now = decision.wake_at.max(now + Duration::from_millis(10));
    }
    panic!("the drain never ends: {snapshot:?}");
}

fn carry_out(snapshot: &mut Snapshot, action: &Action, now: Timestamp, frees_up: Timestamp) {
    let allowed = |name: &str| name != "db" || now >= frees_up;
    match action {
        Action::Cordon => snapshot.node = node(Some((OWNER, false)), true),
        Action::Uncordon | Action::Delete(_) => panic!("nothing failed"),
        Action::Rehearse(wanted) | Action::Evict(wanted) => {
            let is_rehearsal = matches!(action, Action::Rehearse(_));
            assert_eq!(snapshot.node.as_ref().unwrap().cordon.is_none(), is_rehearsal);
            let pod = snapshot.pods.iter_mut().find(|pod| pod.pod == *wanted).unwrap();
            let answer = match (allowed(&wanted.name), is_rehearsal) {
                (true, true) => Answer::Allowed,
                (true, false) => Answer::Accepted,
                (false, _) => refused(),
            };
            pod.terminating = answer == Answer::Accepted;
            pod.last_try = Some(Try::after(pod.last_try.as_ref(), now, answer));
        }
    }
}

#[test]
fn the_gate_spares_what_serves_volumes_breaks_off_on_errors_and_keeps_its_cordon() {
    let gate = Policy::gate(OWNER, at(100));
    let storage = PodFacts {
        labels: [("app".to_owned(), "csi-attacher".to_owned())].into(),
        ..pod("csi-attacher-0")
    };
    let cordoned_now = |pods| Snapshot { empty_since: Some(at(9)), ..cordoned(pods) };
    assert_eq!(line_by(&cordoned_now(vec![storage.clone()]), 10, &gate), "done | ");
    assert_eq!(line(&cordoned_now(vec![storage]), 10), "going | evict csi-attacher-0");

    let failed = |times: u32| {
        let answer = Answer::Failed { message: "500".to_owned() };
        let last_try = Try { failures: times, ..Try::after(None, at(9), answer) };
        cordoned(vec![PodFacts { last_try: Some(last_try), ..pod("a") }])
    };
    assert_eq!(line_by(&failed(4), 10, &gate), "going | ");
    let broken = "failed: evictions failed too often: pod default/a could not be evicted: 500 | ";
    assert_eq!(line_by(&failed(5), 10, &gate), broken);
    assert_eq!(line(&failed(5), 10), "going | ", "others wait for their deadline");

    let late = line_by(&cordoned(vec![tried("db-0", 99, refused())]), 100, &gate);
    assert!(late.starts_with("failed: the deadline passed") && late.ends_with(" | "), "{late}");
}
