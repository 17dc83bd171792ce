//! What configurations are taken, and what is said about others.

use super::*;
use crate::cluster::validate::FaultCode;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = config_of(&yaml(
        "
repair_procedures:
- machine_types: [typeA, typeB]
  repair_operations:
  - operation: unreachable
    health_check_command: [sh, -c, \"echo true\"]
    repair_steps:
    - repair_command: [reset]
    - repair_command: [cycle]
      need_drain: true
      watch_seconds: 90
",
    ));
    let expected = RepairConfig {
        repair_procedures: config.repair_procedures.clone(),
        ..RepairConfig::default()
    };
    assert_eq!(config, expected);
    assert_eq!((config.max_concurrent_repairs, config.eviction_timeout_seconds), (1, 600));
    assert_eq!((config.evict_retries, config.evict_interval), (0, 0));
    assert_eq!((config.protected_namespaces.clone(), config.backoff_base_seconds), (None, 300));
    let operation = config.operation("typeB", "unreachable").unwrap();
    assert_eq!(operation.command_timeout_seconds, 30);
    assert_eq!(operation.success_command_timeout, 30);
    assert_eq!((operation.stable_seconds, operation.success_command.len()), (0, 0));
    let [first, second] = operation.repair_steps.as_slice() else { panic!("{operation:?}") };
    assert_eq!(
        (first.need_drain, first.watch_seconds, first.command_timeout_seconds),
        (false, 0, 30)
    );
    assert_eq!((first.command_retries, first.command_interval), (0, 0));
    assert_eq!((first.on_failure, first.on_restart), (OnFailure::Stop, OnRestart::Watch));
    assert_eq!((second.need_drain, second.watch_seconds), (true, 90));
    assert_eq!(config_of(&json!({})), RepairConfig::default());
}

fn everything() -> Value {
    yaml(
        "
repair_procedures:
- machine_types: [typeA]
  repair_operations:
  - operation: unreachable
    health_check_command: [check]
    command_timeout_seconds: 0
    health_check_interval_seconds: 5
    stable_seconds: 30
    success_command: [hurray]
    success_command_timeout: 300
    failure_command: [alas]
    failure_command_timeout: 20
    repair_steps:
    - repair_command: [reset, \"\"]
      need_drain: true
      command_timeout_seconds: 60
      command_retries: 3
      command_interval: 10
      watch_seconds: 90
      on_failure: continue
      on_restart: rerun
      fence_volumes: true
max_concurrent_repairs: 100
protected_namespaces:
  matchLabels: {team: sre}
  matchExpressions:
  - {key: app, operator: NotIn, values: [test]}
protected_job_pods: {matchExpressions: [{key: keep, operator: Exists}]}
job_policy: wait
evict_retries: 3
evict_interval: 5
eviction_timeout_seconds: 1200
max_concurrent_evictions: 8
evict_by_priority: true
evict_rules:
- {selector: {matchLabels: {app: ceph}}, order: -5}
delete_unready_after_seconds: 60
delete_after_seconds: 600
grace_seconds: 5
volume_timeout_seconds: 0
fence_timeout_seconds: 30
unreachable_seconds: 0
backoff_base_seconds: 2
cordon_first: true
keep_cordon_on_failure: true
breaker: {max_unhealthy: 10, max_unhealthy_percent: 20, cooldown_seconds: 60}
flap_guard: {max_repairs: 3, window_seconds: 86400}
excluded_machines: [10.0.0.9, \"fd00::1\"]
windows:
- {days: [sat, sun], start: \"22:00\", end: \"06:00\", utc_offset: \"+09:00\"}
",
    )
}

#[test]
fn what_is_written_is_read_again() {
    for value in [everything(), base(), json!({})] {
        let config = config_of(&value);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<RepairConfig>(&text).unwrap(), config);
    }
    // All keys were given, so that none is lost on the way.
    let shown = serde_json::to_value(config_of(&everything())).unwrap();
    assert_eq!(shown, everything());
}

/// Every key at every depth, spelled wrongly in turn: each is refused with its path.
#[test]
fn every_unknown_key_is_refused_with_its_path() {
    let mut places = Vec::new();
    walk(&everything(), String::new(), &mut places);
    assert!(places.len() > 10, "{places:?}");
    for path in places {
        // Labels are free.
        if path.ends_with("matchLabels") {
            continue;
        }
        let mut value = everything();
        let pointer = path.replace('[', "/").replace(']', "").replace('.', "/");
        let pointer = if pointer.is_empty() { pointer } else { format!("/{pointer}") };
        let map = value.pointer_mut(&pointer).and_then(Value::as_object_mut).unwrap();
        map.insert("success_timeout_seconds".to_owned(), json!(300));
        let faults = RepairConfig::read(&value).unwrap_err();
        let dot = if path.is_empty() { "" } else { "." };
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, [format!("{path}{dot}success_timeout_seconds")]);
    }
}

/// The paths of all mappings.
fn walk(value: &Value, path: String, places: &mut Vec<String>) {
    if let Some(map) = value.as_object() {
        for (key, inner) in map {
            let dot = if path.is_empty() { "" } else { "." };
            walk(inner, format!("{path}{dot}{key}"), places);
        }
        places.push(path);
    } else if let Some(list) = value.as_array() {
        for (number, inner) in list.iter().enumerate() {
            walk(inner, format!("{path}[{number}]"), places);
        }
    }
}

/// Every value that is there, replaced by one of each wrong kind: refused at its path, or taken
/// where that kind is right.
#[test]
fn every_value_of_a_wrong_kind_is_refused_with_its_path() {
    let mut leaves = Vec::new();
    collect_leaves(&everything(), String::new(), &mut leaves);
    assert!(leaves.len() > 40);
    for (path, old) in leaves {
        for wrong in
            [json!("x y"), json!(-1), json!(1.5), json!(true), json!({"a": 1}), json!([[]])]
        {
            let same_kind = std::mem::discriminant(&wrong) == std::mem::discriminant(&old);
            let free_text = path.contains("command[") || path.contains("matchLabels");
            if same_kind && (old.is_boolean() || free_text || path.contains("values")) {
                continue;
            }
            if wrong == json!(-1) && path.ends_with("order") {
                continue;
            }
            let mut value = everything();
            let pointer = path.replace('[', "/").replace(']', "").replace('.', "/");
            *value.pointer_mut(&format!("/{pointer}")).unwrap() = wrong.clone();
            let faults = RepairConfig::read(&value).expect_err(&format!("{path} = {wrong}"));
            assert!(faults.iter().any(|fault| fault.field.starts_with(&path)), "{path} {faults:?}");
            assert!(faults.iter().all(|fault| fault.message.starts_with(&fault.field)));
        }
    }
}

fn collect_leaves(value: &Value, path: String, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let dot = if path.is_empty() { "" } else { "." };
                collect_leaves(inner, format!("{path}{dot}{key}"), leaves);
            }
        }
        Value::Array(list) => {
            for (number, inner) in list.iter().enumerate() {
                collect_leaves(inner, format!("{path}[{number}]"), leaves);
            }
        }
        leaf => leaves.push((path, leaf.clone())),
    }
}

#[test]
fn all_faults_come_at_once_with_their_codes() {
    let value = yaml(
        "
max_concurrent_repairs: 0
eviction_timeout_seconds: 0
evict_retries: -1
evict_interval: 99999999999
job_policy: kill
breaker: {cooldown_seconds: 5}
flap_guard: {max_repairs: 0}
excluded_machines: [10.0.0.1, host, 10.0.0.1]
windows: [{start: \"25:00\", end: \"06:00\"}]
protected_namespaces: {matchExpressions: [{key: a, operator: In}, {key: b, operator: Exists, values: [x]}]}
repair_procedures:
- machine_types: []
  repair_operations: []
- machine_types: [a, \"\", a]
  repair_operations:
  - operation: fix
    health_check_command: []
    success_command: []
    repair_steps: [{repair_command: [\"\"]}, {}, {repair_command: [5]}]
  - operation: fix
    health_check_command: [x]
    repair_steps: []
- machine_types: [a]
",
    );
    let faults = RepairConfig::read(&value).unwrap_err();
    let mut seen: Vec<(String, FaultCode)> =
        faults.into_iter().map(|fault| (fault.field, fault.code)).collect();
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    use FaultCode::{
        DuplicateResource as Duplicate, InvalidFormat as Format, InvalidOption as Option,
        MissingRequired as Missing, NotNullable as Empty,
    };
    let expected = [
        ("breaker", Missing),
        ("evict_interval", Option),
        ("evict_retries", Option),
        ("eviction_timeout_seconds", Option),
        ("excluded_machines[1]", Format),
        ("excluded_machines[2]", Duplicate),
        ("flap_guard.max_repairs", Option),
        ("flap_guard.window_seconds", Missing),
        ("job_policy", Option),
        ("max_concurrent_repairs", Option),
        ("protected_namespaces.matchExpressions[0].values", Option),
        ("protected_namespaces.matchExpressions[1].values", Option),
        ("repair_procedures[0].machine_types", Empty),
        ("repair_procedures[0].repair_operations", Empty),
        ("repair_procedures[1].machine_types[1]", Empty),
        ("repair_procedures[1].machine_types[2]", Duplicate),
        ("repair_procedures[1].repair_operations[0].health_check_command", Empty),
        ("repair_procedures[1].repair_operations[0].repair_steps[0].repair_command[0]", Empty),
        ("repair_procedures[1].repair_operations[0].repair_steps[1].repair_command", Missing),
        ("repair_procedures[1].repair_operations[0].repair_steps[2].repair_command[0]", Format),
        ("repair_procedures[1].repair_operations[0].success_command", Empty),
        ("repair_procedures[1].repair_operations[1].operation", Duplicate),
        ("repair_procedures[1].repair_operations[1].repair_steps", Empty),
        ("repair_procedures[2].machine_types[0]", Duplicate),
        ("repair_procedures[2].repair_operations", Missing),
        ("windows[0].start", Format),
    ];
    let expected: Vec<(String, FaultCode)> =
        expected.into_iter().map(|(field, code)| (field.to_owned(), code)).collect();
    let same = seen.iter().filter(|one| !expected.contains(one)).collect::<Vec<_>>();
    assert!(same.is_empty(), "unexpected: {same:?}");
    let missing = expected.iter().filter(|one| !seen.contains(one)).collect::<Vec<_>>();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn the_root_must_be_a_mapping() {
    for value in [json!([]), json!("x"), Value::Null] {
        let faults = RepairConfig::read(&value).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].message, "the configuration: must be a mapping");
    }
}

#[test]
fn the_first_procedure_of_a_type_is_the_one_and_no_other_is_looked_at() {
    let config = config();
    assert!(config.operation("plain", "fix").is_some());
    assert!(config.operation("plain", "other").is_none());
    assert!(config.operation("other", "fix").is_none());
}

#[test]
fn the_breaker_rounds_down_and_one_machine_is_no_storm_by_percent() {
    let breaker = |count, percent| Breaker {
        max_unhealthy: count,
        max_unhealthy_percent: percent,
        cooldown_seconds: 0,
    };
    let rows = [
        (breaker(Some(2), None), 2, 100, false),
        (breaker(Some(2), None), 3, 100, true),
        (breaker(Some(0), None), 1, 100, true),
        (breaker(None, Some(20)), 2, 10, false),
        (breaker(None, Some(20)), 3, 10, true),
        (breaker(None, Some(20)), 2, 14, false),
        (breaker(None, Some(20)), 3, 14, true),
        (breaker(None, Some(20)), 1, 3, false),
        (breaker(None, Some(20)), 2, 3, true),
        (breaker(Some(5), Some(20)), 3, 10, true),
    ];
    for (breaker, unhealthy, machines, storm) in rows {
        assert_eq!(breaker.is_storm(unhealthy, machines), storm, "{breaker:?} {unhealthy}");
    }
}

#[test]
fn the_drain_of_a_repair_follows_the_configuration() {
    let plain = config().drain_policy("repair x", at(0));
    assert_eq!((plain.deadline, plain.attempts), (at(600), Some(1)));
    assert_eq!(
        (plain.order, plain.jobs),
        (crate::drain::Order::RehearseFirst, crate::drain::Jobs::Block)
    );
    assert_eq!((plain.protected.clone(), plain.ladder), (None, None));
    let full = config_of(&everything()).drain_policy("repair x", at(0));
    assert_eq!((full.deadline, full.attempts), (at(1200), Some(4)));
    assert_eq!(
        (full.order, full.jobs),
        (crate::drain::Order::CordonFirst, crate::drain::Jobs::Wait)
    );
    assert_eq!(full.retry, std::time::Duration::from_secs(5));
    assert_eq!((full.volumes, full.lost_after, full.grace_seconds), (None, None, Some(5)));
    assert!(full.protected.is_some() && full.job_pods.is_some() && full.ladder.is_some());
    assert_eq!((full.sequence.rules.len(), full.sequence.by_priority, full.parallel), (1, true, 8));
}
