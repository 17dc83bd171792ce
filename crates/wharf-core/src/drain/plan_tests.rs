//! Classes, budgets, the order of leaving, the ladder, volumes and silent nodes.

use std::{collections::BTreeMap, time::Duration};

use super::{
    tests::{OWNER, at, cordoned, fresh, line_by, node, pod, policy, refused, tried},
    *,
};
use crate::selector::{Labels, Selector};

fn labels(app: &str) -> Labels {
    Labels::from([("app".to_owned(), app.to_owned())])
}

fn select(app: &str) -> Selector {
    Selector { match_labels: labels(app), ..Selector::default() }
}

fn of(app: &str, name: &str) -> PodFacts {
    PodFacts { labels: labels(app), ..pod(name) }
}

/// A budget over pods of which all are healthy: `desired` of `expected` must stay so.
fn budget(app: &str, desired: i32, expected: i32) -> BudgetFacts {
    BudgetFacts {
        namespace: "default".to_owned(),
        name: app.to_owned(),
        selector: Some(select(app)),
        allowed: (expected - desired).max(0),
        healthy: expected,
        desired,
        expected,
        ..BudgetFacts::default()
    }
}

fn with(snapshot: Snapshot, budgets: Vec<BudgetFacts>) -> Snapshot {
    Snapshot { budgets: Some(budgets), ..snapshot }
}

fn classes(snapshot: &Snapshot, policy: &Policy, now: i64) -> Vec<(String, Class)> {
    let plan = plan_drain(snapshot, at(now), policy);
    plan.pods.into_iter().map(|pod| (pod.pod.name, pod.class)).collect()
}

/// Every pod that can be, under every policy for Jobs: exactly one class, and the strongest reason
/// to stay comes first.
#[test]
fn the_table_of_classes_is_complete() {
    let controllers = [Controller::None, Controller::DaemonSet, Controller::Job, Controller::Other];
    let policies = [Jobs::Block, Jobs::Wait, Jobs::Delete, Jobs::Evict];
    for controller in controllers {
        for jobs in policies {
            for bits in 0..8 {
                let one = PodFacts {
                    controller,
                    mirror: bits & 1 != 0,
                    finished: bits & 2 != 0,
                    terminating: bits & 4 != 0,
                    ..pod("a")
                };
                let expected = if one.mirror {
                    Class::Mirror
                } else if controller == Controller::DaemonSet {
                    Class::DaemonSet
                } else if one.finished {
                    Class::Finished
                } else if one.terminating {
                    Class::Terminating
                } else {
                    match (controller, jobs) {
                        (Controller::Job, Jobs::Block) => Class::JobBlocks,
                        (Controller::Job, Jobs::Wait) => Class::JobWaits,
                        (Controller::Job, Jobs::Delete) => Class::Delete,
                        _ => Class::Evict,
                    }
                };
                let policy = Policy { jobs, ..policy() };
                let seen = classes(&fresh(vec![one.clone()]), &policy, 10);
                assert_eq!(seen, [("a".to_owned(), expected)], "{jobs:?} {one:?}");
            }
        }
    }
}

#[test]
fn a_blocking_job_ends_the_drain_at_once_and_leaves_no_cordon() {
    let blocking = Policy { jobs: Jobs::Block, ..policy() };
    let job = || vec![PodFacts { controller: Controller::Job, ..pod("job") }, pod("web")];
    let why = "failed: pods of Jobs are on the node: pod default/job belongs to a Job that has not \
               finished";
    assert_eq!(line_by(&fresh(job()), 10, &blocking), format!("{why} | "));
    assert_eq!(line_by(&cordoned(job()), 10, &blocking), format!("{why} | uncordon"));
    let cordon_first = Policy { order: Order::CordonFirst, ..blocking.clone() };
    assert_eq!(line_by(&fresh(job()), 10, &cordon_first), "going | cordon");
    let some = Policy { job_pods: Some(select("batch")), ..blocking };
    assert_eq!(line_by(&fresh(job()), 10, &some), "going | rehearse job, rehearse web");
    let deleting = Policy { jobs: Jobs::Delete, ..policy() };
    assert_eq!(line_by(&cordoned(job()), 10, &deleting), "going | delete job, evict web");
}

#[test]
fn evictions_beyond_what_a_budget_allows_are_not_even_asked_for() {
    let pods = || vec![of("db", "db-0"), of("db", "db-1"), of("db", "db-2"), pod("web")];
    let one_allowed = with(cordoned(pods()), vec![budget("db", 2, 3)]);
    assert_eq!(line_by(&one_allowed, 10, &policy()), "going | evict db-0, evict web");
    // An eviction that was accepted a moment ago is counted, though neither the pod nor the budget
    // shows it yet.
    let mut seen = pods();
    seen[0] = PodFacts { labels: labels("db"), ..tried("db-0", 10, Answer::Accepted) };
    let again = with(cordoned(seen), vec![budget("db", 2, 3)]);
    assert_eq!(line_by(&again, 10, &policy()), "going | evict web");
    let report = decide_drain(&again, at(10), &policy()).report;
    let texts: Vec<String> = report.waiting.iter().map(ToString::to_string).collect();
    assert_eq!(texts[1], "pod default/db-1 is protected by budget db, 0 allowed");
}

/// Over all small budgets and all numbers of pods: never are more evictions chosen in one look than
/// the budget allows. Those that count against it are chosen one at a time.
#[test]
fn a_look_never_overdraws_a_budget() {
    for allowed in 0..5 {
        for pods in 0..6_i32 {
            for (ready, always) in [(true, false), (false, false), (false, true), (true, true)] {
                let names: Vec<String> = (0..pods).map(|n| format!("p{n}")).collect();
                let all = names.iter().map(|name| PodFacts { ready, ..of("db", name) }).collect();
                let facts = BudgetFacts {
                    allowed,
                    // Not enough are healthy, so that those that are not ready count too.
                    healthy: 1,
                    desired: 2,
                    always_allow_unready: always,
                    ..budget("db", 2, 3)
                };
                let decision = decide_drain(&with(cordoned(all), vec![facts]), at(10), &policy());
                let evicted = decision.actions.len() as i32;
                let free = always && !ready;
                assert_eq!(evicted, if free { pods } else { pods.min(allowed).min(1) });
            }
        }
    }
}

#[test]
fn one_pod_of_each_budget_is_rehearsed_and_none_that_no_budget_covers() {
    let pods = || vec![of("db", "db-0"), pod("web"), of("db", "db-1"), of("api", "api-0")];
    let agreed = |one: BudgetFacts| BudgetFacts { agreed: true, ..one };
    let (db, api) = (|| budget("db", 1, 3), || budget("api", 0, 1));
    let look = |pods: Vec<PodFacts>, budgets| line_by(&with(fresh(pods), budgets), 10, &policy());
    assert_eq!(look(pods(), vec![db(), api()]), "going | rehearse db-0, rehearse api-0");
    let mut asking = pods();
    asking[0].asking = true;
    assert_eq!(look(asking, vec![db(), api()]), "going | rehearse api-0");
    assert_eq!(look(pods(), vec![agreed(db()), api()]), "going | rehearse api-0");
    assert_eq!(look(pods(), vec![agreed(db()), agreed(api())]), "going | cordon");
    // A pod that is not ready is judged by other rules.
    let mut unready = pods();
    unready[2].ready = false;
    assert_eq!(look(unready, vec![agreed(db()), agreed(api())]), "going | rehearse db-1");
    // Where budgets cannot be read, the API server is asked about each.
    assert!(line_by(&fresh(pods()), 10, &policy()).contains("rehearse web"));
}

#[test]
fn a_budget_that_is_known_to_allow_none_is_not_asked_until_it_changes() {
    let none = |changed: i64| BudgetFacts {
        allowed: 0,
        changed_at: Some(at(changed)),
        ..budget("db", 2, 3)
    };
    let look = |pods: Vec<PodFacts>, facts| line_by(&with(fresh(pods), vec![facts]), 10, &policy());
    assert_eq!(look(vec![of("db", "db-0")], none(1)), "going | ");
    let was_refused = || vec![PodFacts { labels: labels("db"), ..tried("db-0", 9, refused()) }];
    assert_eq!(look(was_refused(), none(1)), "going | ");
    // Refused a moment ago; what it says now is newer.
    let just_refused = || vec![PodFacts { labels: labels("db"), ..tried("db-0", 10, refused()) }];
    let freed = |changed| BudgetFacts { allowed: 1, ..none(changed) };
    assert_eq!(look(just_refused(), freed(9)), "going | ");
    assert_eq!(look(just_refused(), freed(11)), "going | rehearse db-0");
    let evicting = with(cordoned(just_refused()), vec![freed(11)]);
    assert_eq!(line_by(&evicting, 10, &policy()), "going | evict db-0");
}

#[test]
fn evictions_under_one_budget_follow_one_another_as_it_shows_them() {
    let pods = || vec![of("db", "db-0"), of("db", "db-1"), of("db", "db-2"), pod("web")];
    let facts = |changed: i64, taken: i64| BudgetFacts {
        allowed: 2,
        changed_at: Some(at(changed)),
        taken_at: Some(at(taken)),
        ..budget("db", 1, 3)
    };
    let look =
        |pods: Vec<PodFacts>, facts| line_by(&with(cordoned(pods), vec![facts]), 10, &policy());
    assert_eq!(look(pods(), facts(5, 3)), "going | evict db-0, evict web");
    let mut under_way = pods();
    under_way[0].asking = true;
    assert_eq!(look(under_way, facts(5, 3)), "going | evict web");
    assert_eq!(look(pods()[1..].to_vec(), facts(5, 10)), "going | evict web");
    assert_eq!(look(pods()[1..].to_vec(), facts(11, 10)), "going | evict db-1, evict web");
    // A change that does not come is not waited for without end.
    assert_eq!(look(pods()[1..].to_vec(), facts(5, 9)), "going | evict db-1, evict web");
    let ready = pods().into_iter().map(|pod| PodFacts { ready: false, ..pod }).collect();
    let free = "going | evict db-0, evict db-1, evict db-2, evict web";
    assert_eq!(look(ready, facts(5, 10)), free, "what does not count needs no turn");
}

#[test]
fn unready_pods_and_pending_pods_cost_nothing_while_enough_are_healthy() {
    let unready = PodFacts { ready: false, ..of("db", "bad") };
    let pending = PodFacts { pending: true, ready: false, ..of("db", "new") };
    let facts = BudgetFacts { allowed: 0, healthy: 2, desired: 2, ..budget("db", 2, 3) };
    let snapshot = with(cordoned(vec![unready, pending, of("db", "good")]), vec![facts]);
    assert_eq!(line_by(&snapshot, 10, &policy()), "going | evict bad, evict new");
}

#[test]
fn the_plan_says_whether_a_budget_can_ever_be_met() {
    let prospect = |budgets: Vec<BudgetFacts>, pods: Vec<PodFacts>| {
        plan_drain(&with(fresh(pods), budgets), at(10), &policy()).prospect
    };
    let two = || vec![of("db", "db-0"), of("db", "db-1")];
    let waits = BudgetFacts { allowed: 0, healthy: 2, ..budget("db", 2, 3) };
    let other = BudgetFacts { name: "other".to_owned(), ..budget("db", 1, 3) };
    assert_eq!(prospect(vec![], two()), Prospect::Clear);
    assert_eq!(prospect(vec![budget("db", 1, 3)], two()), Prospect::Clear);
    assert_eq!(prospect(vec![budget("db", 2, 3)], two()), Prospect::InTurns);
    assert_eq!(prospect(vec![waits], two()), Prospect::Blocked);
    assert_eq!(prospect(vec![budget("db", 3, 3)], two()), Prospect::Never);
    assert_eq!(prospect(vec![budget("db", 1, 3), other], two()), Prospect::Never);
    assert_eq!(prospect(vec![budget("web", 3, 3)], two()), Prospect::Clear);
    let elsewhere = BudgetFacts { namespace: "other".to_owned(), ..budget("db", 3, 3) };
    assert_eq!(prospect(vec![elsewhere], two()), Prospect::Clear);
}

#[test]
fn a_plan_reads_as_sentences() {
    let mut pods = vec![of("db", "db-0"), pod("web")];
    pods.push(PodFacts { controller: Controller::DaemonSet, ..pod("proxy") });
    let plan = plan_drain(&with(fresh(pods), vec![budget("db", 3, 3)]), at(10), &policy());
    let texts: Vec<String> = plan.pods.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "pod default/db-0 is evicted; budget db allows 0, never; as budget db is set it never \
             allows one: 3 of its 3 pods must be healthy",
            "pod default/web is evicted",
            "pod default/proxy stays: it belongs to a DaemonSet",
        ]
    );
    assert_eq!(plan.prospect.to_string(), "the drain cannot succeed as the budgets are");
}

#[test]
fn two_budgets_on_one_pod_are_named_and_nothing_is_asked() {
    let second = BudgetFacts { name: "second".to_owned(), ..budget("db", 1, 3) };
    let snapshot = with(cordoned(vec![of("db", "db-0")]), vec![budget("db", 1, 3), second]);
    let decision = decide_drain(&snapshot, at(10), &policy());
    assert_eq!(decision.actions, []);
    let text = decision.report.waiting[0].to_string();
    assert!(text.contains("is protected by several budgets (db, second)"), "{text}");
}

#[test]
fn outside_protected_namespaces_a_refused_pod_is_deleted() {
    let protecting = Policy { protected: Some(select("important")), ..policy() };
    let refused_pod = || vec![tried("a", 10, refused())];
    let namespaces = |app: &str| BTreeMap::from([("default".to_owned(), labels(app))]);
    let inside = Snapshot { namespaces: namespaces("important"), ..cordoned(refused_pod()) };
    assert_eq!(line_by(&inside, 10, &protecting), "going | ");
    let outside = Snapshot { namespaces: namespaces("other"), ..cordoned(refused_pod()) };
    assert_eq!(line_by(&outside, 10, &protecting), "going | delete a");
    // It is asked first, and a refused rehearsal does not keep the node from being cordoned.
    let untried = Snapshot { pods: vec![pod("a")], ..outside.clone() };
    assert_eq!(line_by(&untried, 10, &protecting), "going | evict a");
    let rehearsed = Snapshot { node: node(None, false), ..outside };
    assert_eq!(line_by(&rehearsed, 10, &protecting), "going | cordon");
    // An empty selector protects all.
    let all = Policy { protected: Some(Selector::default()), ..policy() };
    assert_eq!(line_by(&cordoned(refused_pod()), 10, &all), "going | ");
}

#[test]
fn refusals_are_counted_against_the_attempts() {
    let mut last = None;
    for number in 1..=3 {
        let snapshot = fresh(vec![PodFacts { last_try: last.clone(), ..pod("a") }]);
        let limited = Policy { attempts: Some(3), ..policy() };
        assert_eq!(line_by(&snapshot, 10 + number, &limited), "going | rehearse a");
        last = Some(Try::after(last.as_ref(), at(10 + number), refused()));
    }
    let give_up = |snapshot: Snapshot, attempts| {
        line_by(&snapshot, 13, &Policy { attempts: Some(attempts), ..policy() })
    };
    let pods = || vec![PodFacts { last_try: last.clone(), ..pod("a") }];
    let why = "failed: evictions were refused too often: pod default/a is protected by budget db, 0 \
               allowed";
    assert_eq!(give_up(fresh(pods()), 3), format!("{why} | "));
    assert_eq!(give_up(cordoned(pods()), 3), format!("{why} | uncordon"));
    assert_eq!(give_up(cordoned(pods()), 4), "going | ");
    let allowed = Try::after(last.as_ref(), at(14), Answer::Allowed);
    assert_eq!((allowed.refusals, allowed.failures), (0, 0));
}

#[test]
fn where_refusals_are_counted_all_pods_are_asked_about_before_the_first_leaves() {
    let counting = Policy { attempts: Some(1), order: Order::CordonFirst, ..policy() };
    let look_by = |pods: Vec<PodFacts>, allowed: i32, agreed: bool, policy: &Policy| {
        let facts = BudgetFacts { allowed, agreed, ..budget("db", 2, 3) };
        line_by(&with(cordoned(pods), vec![facts]), 11, policy)
    };
    let look = |pods, allowed, agreed| look_by(pods, allowed, agreed, &counting);
    let two = || vec![of("db", "db-0"), of("db", "db-1")];
    assert_eq!(look(two(), 1, false), "going | rehearse db-0");
    let mut asking = two();
    asking[0].asking = true;
    assert_eq!(look(asking, 1, false), "going | ");
    assert_eq!(look(two(), 1, true), "going | evict db-0");
    // Our own eviction holds the other one up; that is no refusal.
    assert_eq!(look(vec![of("db", "db-1")], 0, true), "going | ");
    let refused_once = || PodFacts { labels: labels("db"), ..tried("db-0", 10, refused()) };
    let text = look(vec![refused_once(), of("db", "db-1")], 0, false);
    assert!(text.starts_with("failed: evictions were refused too often"), "{text}");
    // It is asked again for as often as is allowed, and the others do not ask beside it.
    let twice = Policy { attempts: Some(2), ..counting.clone() };
    let both = vec![refused_once(), of("db", "db-1")];
    assert_eq!(look_by(both, 0, false, &twice), "going | evict db-0");
}

#[test]
fn a_retry_waits_for_what_the_server_asked_for_and_failures_back_off() {
    let later = Answer::Later { message: "come back".to_owned() };
    let mut last = Try::after(None, at(10), later);
    last.not_before = Some(at(20));
    let snapshot = cordoned(vec![PodFacts { last_try: Some(last), ..pod("a") }]);
    assert_eq!(line_by(&snapshot, 19, &policy()), "going | ");
    assert_eq!(line_by(&snapshot, 20, &policy()), "going | evict a");

    let mut last = None;
    let mut delays = Vec::new();
    for _ in 0..7 {
        let failed = Answer::Failed { message: "timeout".to_owned() };
        last = Some(Try::after(last.as_ref(), at(10), failed));
        delays.push(retry_delay(policy().retry, &pod("a"), last.as_ref().unwrap()));
    }
    let floors = [500, 1000, 2000, 4000, 8000, 8000, 8000].map(Duration::from_millis);
    for (delay, floor) in delays.iter().zip(floors) {
        assert!(*delay >= floor && *delay < floor + policy().retry, "{delays:?}");
    }
}

#[test]
fn pods_leave_in_the_order_of_rules_and_priorities() {
    let rule = Rule { selector: select("storage"), place: 10 };
    let first = Rule { selector: select("batch"), place: -1 };
    let sequence = Sequence { rules: vec![rule, first], by_priority: false };
    let ordered = Policy { sequence, ..policy() };
    let mut pods = vec![of("storage", "osd"), pod("web"), of("batch", "task")];
    assert_eq!(line_by(&cordoned(pods.clone()), 10, &ordered), "going | evict task");
    pods[2].terminating = true;
    assert_eq!(line_by(&cordoned(pods.clone()), 10, &ordered), "going | ");
    pods.pop();
    assert_eq!(line_by(&cordoned(pods.clone()), 10, &ordered), "going | evict web");
    pods.pop();
    assert_eq!(line_by(&cordoned(pods), 10, &ordered), "going | evict osd");

    let sequence = Sequence { rules: vec![], by_priority: true };
    let by_priority = Policy { sequence, ..policy() };
    let pods = vec![PodFacts { priority: 1000, ..pod("db") }, pod("web"), pod("more")];
    assert_eq!(line_by(&cordoned(pods), 10, &by_priority), "going | evict web, evict more");
}

#[test]
fn the_ladder_deletes_unready_pods_first_and_all_pods_last() {
    let ladder = Ladder {
        begun: at(0),
        unready_after: Some(Duration::from_secs(20)),
        any_after: Some(Duration::from_secs(60)),
    };
    let climbing = Policy { ladder: Some(ladder), attempts: Some(1), ..policy() };
    let bad = || PodFacts { ready: false, ..tried("bad", 5, refused()) };
    let rows = [
        (10, vec![bad()], "going | evict bad"),
        (20, vec![bad()], "going | delete bad"),
        (20, vec![tried("good", 20, refused())], "going | "),
        (60, vec![tried("good", 60, refused())], "going | delete good"),
    ];
    for (now, pods, expected) in rows {
        assert_eq!(line_by(&cordoned(pods), now, &climbing), expected, "at {now}");
    }
    // Without a rung for it, a ready pod that is refused ends the drain.
    let unready_only = Ladder { any_after: None, ..ladder };
    let half = Policy { ladder: Some(unready_only), ..climbing };
    let text = line_by(&cordoned(vec![tried("good", 20, refused())]), 20, &half);
    assert!(text.starts_with("failed: evictions were refused too often"), "{text}");
}

#[test]
fn a_silent_node_is_not_waited_for() {
    let silent = |since: i64, pods| {
        let mut snapshot = cordoned(pods);
        if let Some(node) = &mut snapshot.node {
            node.unready_since = Some(at(since));
        }
        snapshot.empty_since = Some(at(1));
        snapshot
    };
    let patient = Policy { lost_after: Some(Duration::from_secs(30)), ..policy() };
    let waiting = Policy { lost_after: None, ..policy() };
    let leaving = || vec![PodFacts { terminating: true, ..pod("a") }];
    assert_eq!(line_by(&silent(0, leaving()), 29, &patient), "going | ");
    assert_eq!(line_by(&silent(0, leaving()), 30, &patient), "done | ");
    assert_eq!(line_by(&silent(0, leaving()), 30, &waiting), "going | ");
    // What has not begun to leave is still asked to.
    let pods = || vec![PodFacts { terminating: true, ..pod("a") }, pod("b")];
    assert_eq!(line_by(&silent(0, pods()), 40, &patient), "going | evict b");
}

#[test]
fn volumes_of_drained_pods_are_waited_for_until_their_deadline() {
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let keeper = PodFacts {
        controller: Controller::DaemonSet,
        volumes: names(&["pv-shared"]),
        ..pod("proxy")
    };
    let mut snapshot = cordoned(vec![keeper]);
    snapshot.volumes = Volumes {
        drained: names(&["pv-b", "pv-a", "pv-shared", "pv-gone"]),
        attached: names(&["pv-a", "pv-b", "pv-shared", "pv-foreign"]),
        held: Vec::new(),
    };
    snapshot.empty_since = Some(at(10));
    let waiting = Policy { volumes: Some(Duration::from_secs(30)), ..policy() };
    let decision = decide_drain(&snapshot, at(39), &waiting);
    assert_eq!((decision.verdict, decision.report.stage), (Verdict::Going, Stage::Detaching));
    let text = decision.report.waiting[0].to_string();
    assert_eq!(text, "volumes of drained pods are attached: pv-a, pv-b");
    assert_eq!(line_by(&snapshot, 40, &waiting), "done | ");
    assert_eq!(line_by(&snapshot, 39, &policy()), "done | ");
    snapshot.volumes.attached = names(&["pv-shared"]);
    assert_eq!(line_by(&snapshot, 11, &waiting), "done | ");
}

#[test]
fn volumes_of_ours_are_waited_for_until_the_end_of_the_drain_or_as_long_as_was_asked() {
    let stays = PodFacts { controller: Controller::DaemonSet, ..pod("proxy") };
    let held = |volume: &str, pod_uid: &str| HeldFor {
        volume: volume.to_owned(),
        pod_uid: pod_uid.to_owned(),
    };
    let mut snapshot = cordoned(vec![stays.clone()]);
    snapshot.volumes.held = vec![held("pv-b", "left"), held("pv-stays", &stays.pod.uid)];
    snapshot.empty_since = Some(at(10));
    let decision = decide_drain(&snapshot, at(39), &policy());
    assert_eq!((decision.verdict, decision.report.stage), (Verdict::Going, Stage::Detaching));
    let text = decision.report.waiting[0].to_string();
    assert_eq!(text, "volumes of drained pods are attached: pv-b");
    let late = Policy { deadline: at(39), ..policy() };
    assert_eq!(line_by(&snapshot, 39, &late), "done | ", "a drain is not failed by it");
    let hasty = Policy { held_volumes: Some(Duration::from_secs(5)), ..policy() };
    assert_eq!(line_by(&snapshot, 14, &hasty), "going | ");
    assert_eq!(line_by(&snapshot, 15, &hasty), "done | ");
    let never = Policy { held_volumes: Some(Duration::ZERO), ..policy() };
    assert_eq!(line_by(&snapshot, 10, &never), "done | ");
    snapshot.volumes.held.remove(0);
    assert_eq!(line_by(&snapshot, 11, &policy()), "done | ");
}

#[test]
fn a_pinned_pod_comes_with_the_hint_what_to_delete() {
    let set = Pin::Owner { kind: "StatefulSet".to_owned(), name: "db".to_owned() };
    let text = |pin: Pin| {
        let pinned = PodFacts { pin: Some(pin), ..tried("db-0", 10, refused()) };
        decide_drain(&cordoned(vec![pinned]), at(10), &policy()).report.waiting[0].to_string()
    };
    assert_eq!(
        text(Pin::Pod),
        "pod default/db-0 is protected by budget db, 0 allowed; its spec.nodeName names this node: \
         delete the pod to let the drain go on"
    );
    assert!(text(set.clone()).ends_with("delete the StatefulSet to let the drain go on"));
    // One that nobody keeps leaves by itself; what is made again on this very node does not.
    let free = |pin: Pin| {
        let pinned = PodFacts { pin: Some(pin), ..pod("db-0") };
        decide_drain(&cordoned(vec![pinned]), at(10), &policy()).report.waiting[0].clone()
    };
    assert_eq!(free(Pin::Pod).remark, None);
    assert!(!free(Pin::Pod).blocks() && free(set).blocks());
}

#[test]
fn each_caller_has_its_policy() {
    let gate = Policy::gate(OWNER, at(100));
    assert_eq!((gate.order, gate.jobs), (Order::CordonFirst, Jobs::Evict));
    let removal = Policy::removal(OWNER, at(100));
    assert_eq!((removal.order, removal.jobs), (Order::RehearseFirst, Jobs::Wait));
    assert_eq!(removal.attempts, None, "only the deadline ends it");
}

/// A model with budgets, in which pods come back healthy elsewhere after a while: whatever the
/// numbers, the budget is never broken and the drain ends.
#[test]
fn drains_of_generated_worlds_end_and_never_break_a_budget() {
    for desired in 1..4 {
        for here in 1..5 {
            for elsewhere in 0..3 {
                let expected = here + elsewhere;
                if desired < expected {
                    drain_a_world(desired, here, elsewhere);
                }
            }
        }
    }
}

fn drain_a_world(desired: i32, here: i32, elsewhere: i32) {
    let names: Vec<String> = (0..here).map(|number| format!("p{number}")).collect();
    let mut snapshot = cordoned(names.iter().map(|name| of("db", name)).collect());
    let mut healthy_elsewhere = elsewhere;
    for second in 0..1000 {
        let now = at(second);
        let policy = Policy { deadline: at(10_000), ..policy() };
        let running = snapshot.pods.iter().filter(|pod| !pod.terminating).count() as i32;
        let healthy = running + healthy_elsewhere;
        assert!(healthy >= desired, "{desired} of {here}+{elsewhere} broken");
        let allowed = (healthy - desired).max(0);
        let facts = BudgetFacts { allowed, healthy, ..budget("db", desired, here + elsewhere) };
        snapshot.budgets = Some(vec![facts]);
        let decision = decide_drain(&snapshot, now, &policy);
        let empty = decision.report.left == 0;
        snapshot.empty_since = empty.then(|| snapshot.empty_since.unwrap_or(now));
        if decision.verdict == Verdict::Done {
            assert_eq!(healthy_elsewhere, here + elsewhere);
            return;
        }
        let before = snapshot.pods.len();
        snapshot.pods.retain(|pod| !pod.terminating);
        healthy_elsewhere += (before - snapshot.pods.len()) as i32;
        for action in decision.actions {
            let Action::Evict(wanted) = action else { panic!("{action:?}") };
            let pod = snapshot.pods.iter_mut().find(|pod| pod.pod == wanted).unwrap();
            pod.terminating = true;
        }
    }
    panic!("{desired} of {here}+{elsewhere} never ends");
}
