//! Tables of single looks, and whole drains against a small model of a node.

use super::*;

const OWNER: &str = "update demo";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn policy() -> Policy {
    Policy::removal(OWNER, at(100))
}

fn pod(name: &str) -> PodFacts {
    PodFacts {
        pod: PodRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        },
        controller: Controller::Other,
        mirror: false,
        finished: false,
        terminating: false,
        last_try: None,
    }
}

fn tried(name: &str, at_second: i64, answer: Answer) -> PodFacts {
    PodFacts { last_try: Some(Try { at: at(at_second), answer }), ..pod(name) }
}

fn refused() -> Answer {
    Answer::Refused {
        budgets: vec![Budget { name: "db".to_owned(), allowed: 0 }],
        message: "would violate".to_owned(),
    }
}

fn node(cordon: Option<(&str, bool)>, unschedulable: bool) -> Option<NodeFacts> {
    let cordon = cordon.map(|(owner, before)| Cordon { owner: owner.to_owned(), before });
    Some(NodeFacts { name: "n1".to_owned(), unschedulable, cordon })
}

fn fresh(pods: Vec<PodFacts>) -> Snapshot {
    Snapshot { node: node(None, false), pods }
}

fn cordoned(pods: Vec<PodFacts>) -> Snapshot {
    Snapshot { node: node(Some((OWNER, false)), true), pods }
}

/// A decision as one line: verdict, actions, what is waited for.
fn line(snapshot: &Snapshot, now: i64) -> String {
    line_by(snapshot, now, &policy())
}

fn line_by(snapshot: &Snapshot, now: i64, policy: &Policy) -> String {
    let decision = decide_drain(snapshot, at(now), policy);
    let action = |action: &Action| match action {
        Action::Rehearse(pod) => format!("rehearse {}", pod.name),
        Action::Evict(pod) => format!("evict {}", pod.name),
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
        (vec![tried("a", 8, Answer::Accepted)], "going | evict a"),
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
    assert_eq!(line(&cordoned(staying), 10), "done | ");
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
    let snapshot = Snapshot { node: node(Some((OWNER, false)), false), pods: vec![pod("a")] };
    let expected = "failed: somebody made the node schedulable again | uncordon";
    assert_eq!(line(&snapshot, 10), expected);
}

#[test]
fn a_cordon_of_another_owner_is_waited_for_and_never_lifted() {
    let snapshot = Snapshot { node: node(Some(("repair 7", false)), true), pods: vec![pod("a")] };
    assert_eq!(line(&snapshot, 10), "going | ");
    let expected = "failed: the deadline passed: the node is cordoned by repair 7 | ";
    assert_eq!(line(&snapshot, 100), expected);
}

#[test]
fn a_cordon_of_a_person_is_joined() {
    let snapshot = Snapshot { node: node(None, true), pods: vec![pod("a")] };
    assert_eq!(line(&snapshot, 10), "going | rehearse a");
    let ours = Snapshot { node: node(Some((OWNER, true)), true), pods: vec![] };
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
        last_try: Some(Try { at: just_before, answer: refused() }),
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
    let waiting = Waiting { pod: Some(pod("db").pod), reason };
    assert_eq!(
        waiting.to_string(),
        "pod default/db is protected by several budgets (a, b): more than one"
    );
}

#[test]
fn a_long_list_of_blockers_is_cut_with_a_count() {
    let waiting = ["a", "b", "c", "d", "e", "f", "g"]
        .map(|name| Waiting { pod: Some(pod(name).pod), reason: WaitReason::Terminating });
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
        Action::Uncordon => panic!("nothing failed"),
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
            pod.last_try = Some(Try { at: now, answer });
        }
    }
}
