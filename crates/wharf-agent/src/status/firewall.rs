//! Lets the cluster reach the status server where the host filters its input, by the `nft` program.

use std::{net::IpAddr, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tracing::info;
use wharf_core::{
    node::firewall::{Action, Chain, Family, Opening, Rule, decide_opening},
    words::chain,
};

use super::Place;
use crate::{
    health::Reporter,
    network::{NetworkError, nft::nft},
    tasks::{Context, Ended},
};

const SUBJECT: &str = "the host's packet filter";
/// Whoever loads the filter anew removes our rule.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum FirewallError {
    #[error(transparent)]
    Nft(#[from] NetworkError),
    #[error("what nft prints is not understood")]
    Print(#[from] serde_json::Error),
}

/// Keeps the hole as long as there is an address to reach, and closes it when the agent stops.
pub async fn run(
    context: Context,
    reporter: Reporter,
    mut places: watch::Receiver<Option<Place>>,
) -> Ended {
    loop {
        let opening = places.borrow_and_update().as_ref().map(|place| Opening {
            interface: place.if_name.clone(),
            address: place.address,
            port: context.config.status_port,
        });
        let pause = match ensure(opening.as_ref()).await {
            Ok(()) => {
                reporter.clear(SUBJECT);
                reporter.ok();
                LOOK_EVERY
            }
            Err(error) => {
                reporter.fault(SUBJECT, &chain(&error));
                RETRY
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => break,
            changed = places.changed() => changed?,
            () = sleep(pause), if opening.is_some() || pause == RETRY => {}
        }
    }
    ensure(None).await?;
    Ok(())
}

async fn ensure(opening: Option<&Opening>) -> Result<(), FirewallError> {
    let chains = match observe().await {
        // Who has no nft filters nothing with it.
        Err(FirewallError::Nft(NetworkError::NftMissing(error)))
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            return Ok(());
        }
        observed => observed?,
    };
    let actions = decide_opening(&chains, opening);
    if actions.is_empty() {
        return Ok(());
    }
    let commands: Vec<Value> = actions.iter().map(|action| command(action, opening)).collect();
    nft(&["-j", "-f", "-"], &json!({ "nftables": commands }).to_string()).await?;
    for action in &actions {
        match action {
            Action::Insert { table, chain, comment, .. } => {
                info!(table, chain, comment, "opened the packet filter");
            }
            Action::Delete { table, chain, handle, .. } => {
                info!(table, chain, handle, "removed a rule of ours from the packet filter");
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Printed {
    nftables: Vec<Value>,
}

#[derive(Deserialize)]
struct PrintedChain {
    family: String,
    table: String,
    name: String,
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    hook: String,
    #[serde(default)]
    policy: String,
}

#[derive(Deserialize)]
struct PrintedRule {
    handle: u64,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    expr: Vec<Value>,
}

/// The chains that filter input, with their rules. Other chains may have thousands, which are not
/// asked for.
async fn observe() -> Result<Vec<Chain>, FirewallError> {
    let mut chains = Vec::new();
    for found in items::<PrintedChain>(&nft(&["-j", "list", "chains"], "").await?, "chain")? {
        let Some(family) = Family::from_name(&found.family) else { continue };
        if found.r#type != "filter" || found.hook != "input" {
            continue;
        }
        let asked = ["-j", "-a", "list", "chain", family.name(), &found.table, &found.name];
        let rules = match nft(&asked, "").await {
            Ok(printed) => items::<PrintedRule>(&printed, "rule")?,
            // It went between the two questions.
            Err(NetworkError::Nft { stderr }) if stderr.contains("No such file") => continue,
            Err(error) => return Err(error.into()),
        };
        chains.push(Chain {
            family,
            table: found.table,
            name: found.name,
            drops: found.policy == "drop",
            rules: rules.into_iter().map(rule).collect(),
        });
    }
    Ok(chains)
}

fn items<T: serde::de::DeserializeOwned>(
    printed: &str,
    kind: &str,
) -> Result<Vec<T>, serde_json::Error> {
    let printed: Printed = serde_json::from_str(printed)?;
    let mut found = printed.nftables.into_iter().filter_map(|mut item| {
        let item = item.get_mut(kind)?;
        Some(serde_json::from_value(item.take()))
    });
    found.by_ref().collect()
}

fn rule(printed: PrintedRule) -> Rule {
    let counts = |part: &Value| part.get("counter").is_some() || part.get("log").is_some();
    let unconditional = printed.expr.iter().all(|part| counts(part) || ends(part));
    let ends_all = unconditional && printed.expr.last().is_some_and(ends);
    Rule { handle: printed.handle, comment: printed.comment, ends_all }
}

/// Whether a packet that comes to this part of a rule goes no further.
fn ends(part: &Value) -> bool {
    // So nft shows a target of iptables.
    let target = part.get("xt").is_some_and(|xt| {
        xt.get("type") == Some(&json!("target")) && xt.get("name") == Some(&json!("REJECT"))
    });
    target || part.get("drop").is_some() || part.get("reject").is_some()
}

fn command(action: &Action, opening: Option<&Opening>) -> Value {
    match action {
        Action::Delete { family, table, chain, handle } => json!({ "delete": { "rule": {
            "family": family.name(), "table": table, "chain": chain, "handle": handle,
        } } }),
        Action::Insert { family, table, chain, comment } => json!({ "insert": { "rule": {
            "family": family.name(), "table": table, "chain": chain, "comment": comment,
            "expr": opening.map(matches).unwrap_or_default(),
        } } }),
    }
}

fn matches(opening: &Opening) -> Vec<Value> {
    let is = |left: Value, right: Value| json!({ "match": { "op": "==", "left": left, "right": right } });
    let protocol = match opening.address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    };
    vec![
        is(json!({ "meta": { "key": "iifname" } }), json!(opening.interface)),
        is(
            json!({ "payload": { "protocol": protocol, "field": "daddr" } }),
            json!(opening.address),
        ),
        is(json!({ "payload": { "protocol": "tcp", "field": "dport" } }), json!(opening.port)),
        json!({ "accept": null }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nft_prints_of_its_own_rules_and_of_those_of_iptables_is_understood() {
        let ends_all = |expr: Value| {
            let printed = json!({ "nftables": [
                { "metainfo": { "version": "1.0.6" } },
                { "rule": { "family": "ip", "handle": 4, "expr": expr } },
            ] });
            let mut rules = items::<PrintedRule>(&printed.to_string(), "rule").unwrap();
            assert_eq!(rules.len(), 1);
            rule(rules.remove(0)).ends_all
        };
        let counter = json!({ "counter": { "packets": 0, "bytes": 0 } });
        let state = json!({ "xt": { "type": "match", "name": "conntrack" } });
        let reject = json!({ "xt": { "type": "target", "name": "REJECT" } });
        assert!(ends_all(json!([{ "drop": null }])));
        assert!(ends_all(json!([counter, { "log": {} }, { "reject": { "type": "icmpx" } }])));
        assert!(ends_all(json!([counter, reject])));
        assert!(!ends_all(json!([state, counter, { "drop": null }])));
        assert!(!ends_all(json!([state, counter, reject])));
        assert!(!ends_all(json!([counter, { "accept": null }])));
        assert!(!ends_all(json!([])));
    }
}
