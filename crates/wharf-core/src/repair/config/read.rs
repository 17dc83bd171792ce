//! Strict reading: unknown keys, wrong kinds, empty commands, doubles and numbers out of range are
//! all found in one go, each with its path.
//!
//! Written by hand because a derived reader stops at the first fault.

use std::{collections::BTreeSet, str::FromStr};

use serde_json::{Map, Value};

use super::{
    Breaker, EvictRule, FlapGuard, JobPolicy, OnFailure, OnRestart, Operation, Procedure,
    RepairConfig, Step, Window,
};
use crate::{
    cluster::validate::{Fault, FaultCode},
    selector::{Labels, Operator, Requirement, Selector},
};

/// Ten years: longer than any machine waits, and far from where times overflow.
const MAX_SECONDS: u64 = 10 * 365 * 24 * 3600;
/// No count in a configuration is meant to be greater.
const MAX_COUNT: u64 = 1_000_000;
/// A step is tried by hand before it is written down; nobody tries more of them.
const MAX_ITEMS: usize = 1000;
/// Of a name or one word of a command; the longest that Linux takes is far above.
const MAX_TEXT: usize = 8192;
/// Of every command; those that take longer say so.
const COMMAND_TIMEOUT: u64 = 30;
const HEALTH_CHECK_INTERVAL: u64 = 10;

type Faults = Vec<Fault>;

pub(super) fn config(value: &Value) -> Result<RepairConfig, Faults> {
    let mut faults = Faults::new();
    let plain = RepairConfig::default();
    let mut fields = Fields::new(value, String::new(), &mut faults);
    let config = RepairConfig {
        repair_procedures: fields.list("repair_procedures", procedure),
        max_concurrent_repairs: size(fields.count("max_concurrent_repairs", 1, 1)),
        protected_namespaces: fields.inner("protected_namespaces", selector),
        protected_job_pods: fields.inner("protected_job_pods", selector),
        job_policy: fields.choice("job_policy", &JOB_POLICIES, JobPolicy::Block),
        evict_retries: small(fields.count("evict_retries", 0, 0)),
        evict_interval: fields.seconds("evict_interval", 0, 0),
        eviction_timeout_seconds: fields.seconds(
            "eviction_timeout_seconds",
            plain.eviction_timeout_seconds,
            1,
        ),
        max_concurrent_evictions: size(fields.count(
            "max_concurrent_evictions",
            plain.max_concurrent_evictions as u64,
            1,
        )),
        evict_by_priority: fields.flag("evict_by_priority"),
        evict_rules: fields.list("evict_rules", evict_rule),
        delete_unready_after_seconds: fields.optional("delete_unready_after_seconds"),
        delete_after_seconds: fields.optional("delete_after_seconds"),
        grace_seconds: fields.optional("grace_seconds").map(small),
        volume_timeout_seconds: fields.seconds(
            "volume_timeout_seconds",
            plain.volume_timeout_seconds,
            0,
        ),
        fence_timeout_seconds: fields.seconds(
            "fence_timeout_seconds",
            plain.fence_timeout_seconds,
            0,
        ),
        unreachable_seconds: fields.seconds("unreachable_seconds", plain.unreachable_seconds, 0),
        backoff_base_seconds: fields.seconds("backoff_base_seconds", plain.backoff_base_seconds, 1),
        cordon_first: fields.flag("cordon_first"),
        keep_cordon_on_failure: fields.flag("keep_cordon_on_failure"),
        breaker: fields.inner("breaker", breaker),
        flap_guard: fields.inner("flap_guard", flap_guard),
        excluded_machines: fields.list("excluded_machines", address),
        windows: fields.list("windows", window),
    };
    fields.finish();
    doubles(
        config
            .excluded_machines
            .iter()
            .enumerate()
            .map(|(number, address)| (format!("excluded_machines[{number}]"), address.as_str())),
        &mut faults,
    );
    let types = config.repair_procedures.iter().enumerate().flat_map(|(number, procedure)| {
        let types = procedure.machine_types.iter().enumerate();
        types.map(move |(place, name)| {
            (format!("repair_procedures[{number}].machine_types[{place}]"), name.as_str())
        })
    });
    doubles(types, &mut faults);
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

const JOB_POLICIES: [(&str, JobPolicy); 3] =
    [("block", JobPolicy::Block), ("wait", JobPolicy::Wait), ("delete", JobPolicy::Delete)];
const ON_FAILURE: [(&str, OnFailure); 2] =
    [("stop", OnFailure::Stop), ("continue", OnFailure::Continue)];
const ON_RESTART: [(&str, OnRestart); 2] =
    [("watch", OnRestart::Watch), ("rerun", OnRestart::Rerun)];

fn procedure(value: &Value, path: &str, faults: &mut Faults) -> Option<Procedure> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let machine_types = fields.some("machine_types", name);
    let repair_operations = fields.some("repair_operations", operation);
    fields.finish();
    let names = repair_operations.iter().enumerate();
    doubles(
        names.map(|(number, operation)| {
            let path = format!("{path}.repair_operations[{number}].operation");
            (path, operation.operation.as_str())
        }),
        faults,
    );
    Some(Procedure { machine_types, repair_operations })
}

fn operation(value: &Value, path: &str, faults: &mut Faults) -> Option<Operation> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let operation = Operation {
        operation: fields.needed("operation", name).unwrap_or_default(),
        repair_steps: fields.some("repair_steps", step),
        health_check_command: fields.some("health_check_command", word),
        command_timeout_seconds: fields.seconds("command_timeout_seconds", COMMAND_TIMEOUT, 0),
        health_check_interval_seconds: fields.seconds(
            "health_check_interval_seconds",
            HEALTH_CHECK_INTERVAL,
            1,
        ),
        stable_seconds: fields.seconds("stable_seconds", 0, 0),
        success_command: fields.command("success_command"),
        success_command_timeout: fields.seconds("success_command_timeout", COMMAND_TIMEOUT, 0),
        failure_command: fields.command("failure_command"),
        failure_command_timeout: fields.seconds("failure_command_timeout", COMMAND_TIMEOUT, 0),
    };
    fields.finish();
    Some(operation)
}

fn step(value: &Value, path: &str, faults: &mut Faults) -> Option<Step> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let step = Step {
        need_drain: fields.flag("need_drain"),
        repair_command: fields.some("repair_command", word),
        command_timeout_seconds: fields.seconds("command_timeout_seconds", COMMAND_TIMEOUT, 0),
        command_retries: small(fields.count("command_retries", 0, 0)),
        command_interval: fields.seconds("command_interval", 0, 0),
        watch_seconds: fields.seconds("watch_seconds", 0, 0),
        on_failure: fields.choice("on_failure", &ON_FAILURE, OnFailure::Stop),
        on_restart: fields.choice("on_restart", &ON_RESTART, OnRestart::Watch),
        fence_volumes: fields.flag("fence_volumes"),
    };
    fields.finish();
    Some(step)
}

fn evict_rule(value: &Value, path: &str, faults: &mut Faults) -> Option<EvictRule> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let selector = fields.needed("selector", selector);
    let order = fields.needed("order", integer);
    fields.finish();
    Some(EvictRule { selector: selector?, order: order? })
}

fn breaker(value: &Value, path: &str, faults: &mut Faults) -> Option<Breaker> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let breaker = Breaker {
        max_unhealthy: fields.optional("max_unhealthy"),
        max_unhealthy_percent: fields.optional("max_unhealthy_percent"),
        cooldown_seconds: fields.seconds("cooldown_seconds", 0, 0),
    };
    fields.finish();
    if breaker.max_unhealthy_percent.is_some_and(|percent| percent > 100) {
        let field = format!("{path}.max_unhealthy_percent");
        add(faults, field, FaultCode::InvalidOption, "must be at most 100");
    }
    if breaker.max_unhealthy.is_none() && breaker.max_unhealthy_percent.is_none() {
        let message = "needs max_unhealthy or max_unhealthy_percent";
        add(faults, path.to_owned(), FaultCode::MissingRequired, message);
    }
    Some(breaker)
}

fn flap_guard(value: &Value, path: &str, faults: &mut Faults) -> Option<FlapGuard> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let max_repairs = fields.needed("max_repairs", positive);
    let window_seconds = fields.needed("window_seconds", positive);
    fields.finish();
    Some(FlapGuard { max_repairs: max_repairs?, window_seconds: window_seconds? })
}

fn window(value: &Value, path: &str, faults: &mut Faults) -> Option<Window> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let days = fields.list("days", parsed);
    let start = fields.needed("start", parsed);
    let end = fields.needed("end", parsed);
    let utc_offset = fields.inner("utc_offset", parsed).unwrap_or_default();
    fields.finish();
    Some(Window { days, start: start?, end: end?, utc_offset })
}

fn selector(value: &Value, path: &str, faults: &mut Faults) -> Option<Selector> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let match_labels = fields.inner("matchLabels", labels).unwrap_or_default();
    let match_expressions = fields.list("matchExpressions", requirement);
    fields.finish();
    Some(Selector { match_labels, match_expressions })
}

fn labels(value: &Value, path: &str, faults: &mut Faults) -> Option<Labels> {
    let Some(map) = value.as_object() else {
        add(faults, path.to_owned(), FaultCode::InvalidFormat, "must be a mapping");
        return None;
    };
    let mut labels = Labels::new();
    for (key, value) in map {
        // A value may be empty, as in Kubernetes.
        if let Some(value) = text(value, &format!("{path}.{key}"), faults) {
            labels.insert(key.clone(), value);
        }
    }
    Some(labels)
}

fn requirement(value: &Value, path: &str, faults: &mut Faults) -> Option<Requirement> {
    let mut fields = Fields::new(value, path.to_owned(), faults);
    let key = fields.needed("key", name);
    let operators = Operator::ALL.map(|operator| (operator.name(), operator));
    let operator =
        fields.needed("operator", |value, path, faults| choose(value, path, &operators, faults));
    let values = fields.list("values", text);
    fields.finish();
    let (key, operator) = (key?, operator?);
    if operator.takes_values() == values.is_empty() {
        let need = if values.is_empty() { "needs values" } else { "must have no values" };
        let message = format!("the operator {} {need}", operator.name());
        add(faults, format!("{path}.values"), FaultCode::InvalidOption, &message);
    }
    Some(Requirement { key, operator, values })
}

/// The keys of one mapping. What was not asked for at the end is unknown.
struct Fields<'a> {
    path: String,
    map: Option<&'a Map<String, Value>>,
    asked: BTreeSet<&'static str>,
    faults: &'a mut Faults,
}

type Read<T> = fn(&Value, &str, &mut Faults) -> Option<T>;

impl<'a> Fields<'a> {
    fn new(value: &'a Value, path: String, faults: &'a mut Faults) -> Self {
        let map = value.as_object();
        if map.is_none() {
            add(faults, path.clone(), FaultCode::InvalidFormat, "must be a mapping");
        }
        Self { path, map, asked: BTreeSet::new(), faults }
    }

    fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A key without a value, as YAML has it, was not given.
    fn get(&mut self, key: &'static str) -> Option<(&'a Value, String)> {
        self.asked.insert(key);
        let value = self.map?.get(key).filter(|value| !value.is_null())?;
        Some((value, self.path(key)))
    }

    fn inner<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Value, &str, &mut Faults) -> Option<T>,
    ) -> Option<T> {
        let (value, path) = self.get(key)?;
        read(value, &path, self.faults)
    }

    fn needed<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Value, &str, &mut Faults) -> Option<T>,
    ) -> Option<T> {
        let Some((value, path)) = self.get(key) else {
            // A value that is no mapping has its fault already.
            if self.map.is_some() {
                let path = self.path(key);
                add(self.faults, path, FaultCode::MissingRequired, "is missing");
            }
            return None;
        };
        read(value, &path, self.faults)
    }

    fn list<T>(&mut self, key: &'static str, read: Read<T>) -> Vec<T> {
        let Some((value, path)) = self.get(key) else { return Vec::new() };
        let Some(items) = value.as_array() else {
            add(self.faults, path, FaultCode::InvalidFormat, "must be a list");
            return Vec::new();
        };
        if items.len() > MAX_ITEMS {
            let message = format!("must have at most {MAX_ITEMS} items");
            add(self.faults, path, FaultCode::MaxLengthExceeded, &message);
            return Vec::new();
        }
        let items = items.iter().enumerate();
        let read =
            |(number, item): (usize, &Value)| read(item, &format!("{path}[{number}]"), self.faults);
        items.filter_map(read).collect()
    }

    /// A list that must be there and have something in it.
    fn some<T>(&mut self, key: &'static str, read: Read<T>) -> Vec<T> {
        if self.get(key).is_none() {
            self.needed(key, |_, _, _| Some(()));
            return Vec::new();
        }
        self.filled(key, read)
    }

    /// A command that may be left out; given, it must not be empty.
    fn command(&mut self, key: &'static str) -> Vec<String> {
        self.filled(key, word)
    }

    fn filled<T>(&mut self, key: &'static str, read: Read<T>) -> Vec<T> {
        if let Some((value, path)) = self.get(key)
            && value.as_array().is_some_and(Vec::is_empty)
        {
            add(self.faults, path, FaultCode::NotNullable, "must not be empty");
        }
        self.list(key, read)
    }

    fn number(&mut self, key: &'static str, default: u64, min: u64, max: u64) -> u64 {
        let read =
            |value: &Value, path: &str, faults: &mut Faults| whole(value, path, min, max, faults);
        self.inner(key, read).unwrap_or(default)
    }

    fn seconds(&mut self, key: &'static str, default: u64, min: u64) -> u64 {
        self.number(key, default, min, MAX_SECONDS)
    }

    fn count(&mut self, key: &'static str, default: u64, min: u64) -> u64 {
        self.number(key, default, min, MAX_COUNT)
    }

    fn optional(&mut self, key: &'static str) -> Option<u64> {
        self.inner(key, |value, path, faults| whole(value, path, 0, MAX_SECONDS, faults))
    }

    fn flag(&mut self, key: &'static str) -> bool {
        let read = |value: &Value, path: &str, faults: &mut Faults| {
            if value.is_boolean() {
                return value.as_bool();
            }
            add(faults, path.to_owned(), FaultCode::InvalidFormat, "must be true or false");
            None
        };
        self.inner(key, read).unwrap_or_default()
    }

    fn choice<T: Copy>(&mut self, key: &'static str, all: &[(&str, T)], default: T) -> T {
        let read =
            |value: &Value, path: &str, faults: &mut Faults| choose(value, path, all, faults);
        self.inner(key, read).unwrap_or(default)
    }

    fn finish(self) {
        for key in self.map.into_iter().flat_map(Map::keys) {
            if !self.asked.contains(key.as_str()) {
                let path = self.path(key);
                add(self.faults, path, FaultCode::InvalidOption, "there is no such key");
            }
        }
    }
}

fn whole(value: &Value, path: &str, min: u64, max: u64, faults: &mut Faults) -> Option<u64> {
    match value.as_u64() {
        Some(number) if (min..=max).contains(&number) => return Some(number),
        Some(number) if number > max => {
            let message = format!("must be at most {max}");
            add(faults, path.to_owned(), FaultCode::InvalidOption, &message);
        }
        Some(_) => {
            let message = format!("must be at least {min}");
            add(faults, path.to_owned(), FaultCode::InvalidOption, &message);
        }
        None if value.as_f64().is_some_and(|number| number < 0.0) => {
            add(faults, path.to_owned(), FaultCode::InvalidOption, "must not be negative");
        }
        None => add(faults, path.to_owned(), FaultCode::InvalidFormat, "must be a whole number"),
    }
    None
}

fn positive(value: &Value, path: &str, faults: &mut Faults) -> Option<u64> {
    whole(value, path, 1, MAX_SECONDS, faults)
}

fn integer(value: &Value, path: &str, faults: &mut Faults) -> Option<i32> {
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    if number.is_none() {
        add(faults, path.to_owned(), FaultCode::InvalidFormat, "must be a whole number");
    }
    number
}

fn text(value: &Value, path: &str, faults: &mut Faults) -> Option<String> {
    let fault = match value.as_str() {
        Some(text) if text.len() > MAX_TEXT => (FaultCode::MaxLengthExceeded, "is too long"),
        Some(text) if text.contains('\0') => {
            (FaultCode::InvalidFormat, "must not hold a zero byte")
        }
        Some(text) => return Some(text.to_owned()),
        None => (FaultCode::InvalidFormat, "must be a text; put it in quotes"),
    };
    add(faults, path.to_owned(), fault.0, fault.1);
    None
}

/// A word of a command. The first is a program, the others may be empty.
fn word(value: &Value, path: &str, faults: &mut Faults) -> Option<String> {
    let word = text(value, path, faults)?;
    if word.is_empty() && path.ends_with("[0]") {
        add(faults, path.to_owned(), FaultCode::NotNullable, "must not be empty");
    }
    Some(word)
}

/// A name that stands in command lines, labels of metrics and tables.
fn name(value: &Value, path: &str, faults: &mut Faults) -> Option<String> {
    // A fault keeps its place in the list, so that the paths of later ones are right.
    let Some(name) = text(value, path, faults) else { return Some(String::new()) };
    if name.is_empty() {
        add(faults, path.to_owned(), FaultCode::NotNullable, "must not be empty");
    } else if name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        add(faults, path.to_owned(), FaultCode::InvalidFormat, "must be one word");
    }
    Some(name)
}

fn address(value: &Value, path: &str, faults: &mut Faults) -> Option<String> {
    let Some(given) = text(value, path, faults) else { return Some(String::new()) };
    let parsed: Option<std::net::IpAddr> = given.parse().ok();
    if parsed.is_none() {
        add(faults, path.to_owned(), FaultCode::InvalidFormat, "must be an IP address");
    }
    Some(parsed.map(|address| address.to_string()).unwrap_or_default())
}

fn parsed<T: FromStr<Err = &'static str>>(
    value: &Value,
    path: &str,
    faults: &mut Faults,
) -> Option<T> {
    let read = text(value, path, faults)?.parse();
    read.map_err(|fault| add(faults, path.to_owned(), FaultCode::InvalidFormat, fault)).ok()
}

fn choose<T: Copy>(value: &Value, path: &str, all: &[(&str, T)], faults: &mut Faults) -> Option<T> {
    let found = all.iter().find(|(name, _)| value.as_str() == Some(name));
    if found.is_none() {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let message = format!("must be one of {}", names.join(", "));
        add(faults, path.to_owned(), FaultCode::InvalidOption, &message);
    }
    found.map(|(_, value)| *value)
}

fn doubles<'a>(items: impl Iterator<Item = (String, &'a str)>, faults: &mut Faults) {
    let mut known = BTreeSet::new();
    for (path, name) in items {
        if !name.is_empty() && !known.insert(name) {
            add(faults, path, FaultCode::DuplicateResource, &format!("{name} is there already"));
        }
    }
}

fn add(faults: &mut Faults, field: String, code: FaultCode, message: &str) {
    let subject = if field.is_empty() { "the configuration" } else { &field };
    faults.push(Fault { message: format!("{subject}: {message}"), code, field });
}

/// The limits above keep both in range; the fallback is only for the compiler.
fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
