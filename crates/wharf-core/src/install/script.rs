//! The one script that asks a host for its facts, and how its answer is read.
//!
//! It is the only shell text that ever runs on a host, it is fixed, and it changes nothing. What
//! varies comes as arguments: the node's own address, the SSH port, and the other nodes' addresses.

use std::str::FromStr;

use super::facts::HostFacts;

/// For `sh -s -- OWN_ADDRESS SSH_PORT OTHER_ADDRESS…`, on standard input.
pub const FACTS_SCRIPT: &str = include_str!("facts.sh");

/// The script's last line. An answer without it was cut off, and what it lacks means nothing.
const END: (&str, &str) = ("end", "facts");

/// Why an answer could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFacts {
    #[error("the host's answer was cut off; it ends with {0:?}")]
    CutOff(String),
    #[error("the host's answer has {value:?} for {key}")]
    Value { key: String, value: String },
}

/// Reads the script's output. `asked_at_seconds` is the server's clock in the middle of asking.
///
/// Lines that are no `key=value`, or have a key that is not ours, are passed over: a login shell may
/// greet its user.
pub fn parse_facts(output: &str, asked_at_seconds: i64) -> Result<HostFacts, BadFacts> {
    let mut facts = HostFacts { asked_at_seconds, ..HostFacts::default() };
    let mut last = None;
    for (key, value) in output.lines().filter_map(|line| line.split_once('=')) {
        take(&mut facts, key, value.trim())?;
        last = Some((key, value));
    }
    if last != Some(END) {
        return Err(BadFacts::CutOff(output.lines().last().unwrap_or_default().to_owned()));
    }
    facts.listening.sort();
    facts.listening.dedup();
    facts.unreachable.sort();
    Ok(facts)
}

fn take(facts: &mut HostFacts, key: &str, value: &str) -> Result<(), BadFacts> {
    let text = || value.to_owned();
    match key {
        "hostname" => facts.hostname = text(),
        "machine_id" => facts.machine_id = text(),
        "boot_id" => facts.boot_id = text(),
        "os" => facts.os = text(),
        "os_version" => facts.os_version = text(),
        "arch" => facts.arch = text(),
        "kernel" => facts.kernel = text(),
        "systemd" => facts.systemd = parse(key, value)?,
        "root" => facts.root = parse(key, value)?,
        "container" => facts.container = parse(key, value)?,
        "cgroup_version" => facts.cgroup_version = parse(key, value)?,
        "sys_resource" => facts.sys_resource = parse(key, value)?,
        "cpus" => facts.cpus = parse(key, value)?,
        "memory_mib" => facts.memory_mib = parse(key, value)?,
        "swap" => facts.swap = parse(key, value)?,
        "free_data_mib" => facts.free_data_mib = parse(key, value)?,
        "free_programs_mib" => facts.free_programs_mib = parse(key, value)?,
        "data_filesystem" => facts.data_filesystem = text(),
        "containerd_filesystem" => facts.containerd_filesystem = text(),
        "clock_seconds" => facts.clock_seconds = parse(key, value)?,
        "address" => facts.addresses.push(parse(key, value)?),
        "interface" => facts.interface = text(),
        "mtu" => facts.mtu = parse(key, value)?,
        "listening" => facts.listening.push(listener(key, value)?),
        "cluster" => facts.cluster = Some(text()),
        "identity" => facts.identity = text(),
        "leftover" => facts.leftovers.push(text()),
        "resolv_conf" => facts.resolv_conf = text(),
        "resolves_outside" => facts.resolves_outside = parse(key, value)?,
        "kernel_module" => facts.kernel_modules.push(text()),
        "missing_tool" => facts.missing_tools.push(text()),
        "forward_drop" => facts.forward_drops.push(text()),
        "unreachable" => facts.unreachable.push(parse(key, value)?),
        _ => {}
    }
    Ok(())
}

fn listener(key: &str, value: &str) -> Result<(u16, String), BadFacts> {
    let (port, program) = value.split_once(' ').unwrap_or((value, ""));
    Ok((parse(key, port)?, program.to_owned()))
}

fn parse<T: FromStr>(key: &str, value: &str) -> Result<T, BadFacts> {
    let bad = |_| BadFacts::Value { key: key.to_owned(), value: value.to_owned() };
    value.parse().map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_says_becomes_facts_and_the_rest_is_passed_over() {
        let output = "Welcome to this machine, a=b\nhostname=one\nroot=true\ncgroup_version=2\n\
            listening=22 sshd\nlistening=6443 \nlistening=22 sshd\naddress=10.0.0.1\naddress=127.0.0.1\n\
            unreachable=10.0.0.3\nunreachable=10.0.0.2\nclock_seconds=17\ncluster=demo\nidentity=17ab\nend=facts\n";
        let facts = parse_facts(output, 16).unwrap();
        assert_eq!(facts.hostname, "one");
        assert!(facts.root && !facts.systemd && !facts.swap);
        assert_eq!(facts.cgroup_version, 2);
        assert_eq!(facts.listening, [(22, "sshd".to_owned()), (6443, String::new())]);
        assert_eq!(
            facts.addresses,
            ["10.0.0.1".parse::<std::net::Ipv4Addr>().unwrap(), [127, 0, 0, 1].into()]
        );
        assert_eq!(facts.unreachable.len(), 2);
        assert_eq!((facts.clock_seconds, facts.asked_at_seconds), (17, 16));
        assert!(facts.holds("demo", Some("17ab")));
        for (cluster, identity) in [("other", Some("17ab")), ("demo", Some("17ac")), ("demo", None)]
        {
            assert!(!facts.holds(cluster, identity), "{cluster} {identity:?}");
        }
    }

    #[test]
    fn an_answer_without_its_end_is_no_answer() {
        for output in ["", "hostname=one\n", "end=facts\nhostname=one\n", "sh: not found\n"] {
            assert!(matches!(parse_facts(output, 0), Err(BadFacts::CutOff(_))), "{output:?}");
        }
    }

    #[test]
    fn a_number_that_is_none_is_named() {
        let error = parse_facts("cpus=many\nend=facts\n", 0).unwrap_err();
        assert_eq!(error.to_string(), "the host's answer has \"many\" for cpus");
    }
}
