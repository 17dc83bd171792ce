//! The agent on clusters that Wharf did not install: a DaemonSet whose pods put it on their hosts and
//! start it there as a service (docs/adr/0008-agent-on-imported-clusters.md).
//!
//! The manifests are in [`super::manifests::render_agent_pods`]; here is what is wished for, where
//! things are, and what a pod that ends does with the agent of its host.

use std::{collections::BTreeMap, time::Duration};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::selector::Labels;

use super::components::{agent, quoted};

pub const NAMESPACE: &str = "wharf-system";
/// The DaemonSet, its ServiceAccount and its ConfigMap.
pub const NAME: &str = "wharf-agent";
/// By this label (`app`) its pods are known.
pub const LABEL: &str = "app=wharf-agent";

/// How long a pod may take to end: it waits for what it has begun on its host, asks the API server,
/// and takes the agent away. All the limits in between fit into it.
pub const GRACE: Duration = Duration::from_secs(420);

/// The programs of the image that `cargo xtask image` makes, in its root directory.
pub const PROGRAMS: [&str; 3] = ["wharf", "wharf-flex", "wharf-block"];
/// Where a pod finds its part of the configuration.
pub const POD_CONFIG: &str = "/etc/wharf/agent.toml";

/// Where things are on hosts. All of it is the pods' own: nothing is shared with what an installer
/// put there.
pub mod place {
    pub const PROGRAMS: &str = "/opt/wharf-agent";
    /// What goes with a reboot: the files of the agent, its configuration and its token.
    pub const RUN: &str = "/run/wharf-agent";
    pub const CONFIG: &str = "/run/wharf-agent/agent.toml";
    pub const KUBECONFIG: &str = "/run/wharf-agent/kubeconfig";
    /// Of what the service was last started with.
    pub const STARTED: &str = "/run/wharf-agent/started";
    pub const STATE: &str = "/var/lib/wharf-agent";
    pub const PERSIST: &str = "/var/lib/wharf-agent/persist";
    pub const VOLUMES: &str = "/var/lib/wharf-agent/volumes";
    pub const UNIT: &str = "wharf-agent.service";
    /// Units here go with a reboot. Then the pod is what starts the agent again, if it shall be.
    pub const UNIT_FILE: &str = "/run/systemd/system/wharf-agent.service";
}

/// How the DaemonSet shall be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentPods {
    pub image: String,
    pub node_selector: Labels,
    pub tolerations: Vec<Toleration>,
    /// Where kubelets look for drivers, if they do not say so themselves.
    pub plugin_dir: Option<String>,
}

/// Which taints do not keep the agent away.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Toleration {
    /// `None`: every taint.
    pub key: Option<String>,
    /// `None`: whatever value the taint has.
    pub value: Option<String>,
    /// `None`: every effect.
    pub effect: Option<String>,
}

/// What is wrong with a wish: the field, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub field: String,
    pub message: String,
}

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// Longer names of images are refused by registries too.
const MOST_IMAGE: usize = 512;
const MOST_LABEL: usize = 63;
const MOST_DOMAIN: usize = 253;
/// No node has more taints or labels that somebody would name.
const MOST_RULES: usize = 100;

impl AgentPods {
    /// All that is wrong with it.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut say = |field: &str, message: String| {
            faults.push(Fault { field: field.to_owned(), message });
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        if self.image.is_empty() || self.image.len() > MOST_IMAGE || !self.image.chars().all(plain)
        {
            say("image", format!("{:?} is not the name of an image", self.image));
        }
        if self.node_selector.len() > MOST_RULES || self.tolerations.len() > MOST_RULES {
            say("nodeSelector", format!("more than {MOST_RULES} rules are not taken"));
        }
        for (key, value) in &self.node_selector {
            if !is_key(key) || !is_value(value) {
                say("nodeSelector", format!("{key:?} = {value:?} is not a label"));
            }
        }
        for (index, toleration) in self.tolerations.iter().enumerate() {
            if let Some(message) = toleration.fault() {
                say(&format!("tolerations[{index}]"), message);
            }
        }
        if self.plugin_dir.as_ref().is_some_and(|dir| !is_directory(dir)) {
            say("pluginDir", "the plugin directory is an absolute path".to_owned());
        }
        faults
    }

    /// What the agent is told, but for what each pod knows of its node.
    pub fn config(&self) -> String {
        let quoted = |text: &str| quoted(text);
        let mut text = format!(
            "# Somebody else keeps this cluster's network.\n\
             network_file = \"\"\n\
             run_dir = {}\n\
             persist_dir = {}\n\
             open_trace = false\n\
             [volumes]\n\
             state_dir = {}\n\
             driver = {}\n",
            quoted(place::RUN),
            quoted(place::PERSIST),
            quoted(place::VOLUMES),
            quoted(&format!("{}/wharf-flex", place::PROGRAMS)),
        );
        if let Some(dir) = &self.plugin_dir {
            text.push_str(&format!("plugin_dir = {}\n", quoted(dir)));
        }
        text
    }

    pub(super) fn selector_json(&self) -> String {
        let mut labels = self.node_selector.clone();
        // The programs are for Linux, whatever else the cluster has.
        labels.entry("kubernetes.io/os".to_owned()).or_insert_with(|| "linux".to_owned());
        json!(labels).to_string()
    }

    pub(super) fn tolerations_json(&self) -> String {
        json!(self.tolerations.iter().map(Toleration::to_json).collect::<Vec<_>>()).to_string()
    }
}

impl Toleration {
    fn fault(&self) -> Option<String> {
        let key_is_good = self.key.as_deref().is_none_or(is_key);
        if !key_is_good || !self.value.as_deref().is_none_or(is_value) {
            return Some("a toleration names a taint's key, and its value if that matters".into());
        }
        if self.key.is_none() && self.value.is_some() {
            return Some("a toleration with a value needs a key".to_owned());
        }
        match &self.effect {
            Some(effect) if !EFFECTS.contains(&effect.as_str()) => {
                Some(format!("effect {effect} isn't included in options [{}]", EFFECTS.join(" ")))
            }
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let operator = if self.value.is_some() { "Equal" } else { "Exists" };
        let mut fields = BTreeMap::from([("operator", operator.to_owned())]);
        fields.extend(self.key.clone().map(|key| ("key", key)));
        fields.extend(self.value.clone().map(|value| ("value", value)));
        fields.extend(self.effect.clone().map(|effect| ("effect", effect)));
        json!(fields)
    }
}

fn is_directory(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains(['\0', '\n'])
        && !path.split('/').any(|part| part == "..")
}

/// A label's name, with or without a domain before it.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((domain, name)) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
            let domain_is_good =
                !domain.is_empty() && domain.len() <= MOST_DOMAIN && domain.chars().all(plain);
            domain_is_good && !name.is_empty() && is_value(name)
        }
        None => !key.is_empty() && is_value(key),
    }
}

fn is_value(value: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= MOST_LABEL
        && value.chars().all(plain)
        && ends(value.chars().next())
        && ends(value.chars().next_back())
}

/// The agent's configuration on a host: what the DaemonSet says, and what its pod knows.
pub fn render_config(node: &str, of_all: &str) -> String {
    // Before everything else: what follows may be in a section.
    let own = [("node_name", node), ("kubeconfig", place::KUBECONFIG)];
    let own = own.map(|(key, value)| format!("{key} = {}\n", quoted(value)));
    format!("{}{of_all}", own.concat())
}

/// The agent's unit on a host.
pub fn render_unit() -> String {
    agent::service(place::CONFIG).render_from(place::PROGRAMS)
}

/// A way to the cluster by a token.
pub fn render_kubeconfig(server: &str, ca_pem: &str, token: &str) -> String {
    let ca = STANDARD.encode(ca_pem);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{
            "name": NAME,
            "cluster": { "server": server, "certificate-authority-data": ca },
        }],
        "users": [{ "name": NAME, "user": { "token": token } }],
        "contexts": [{ "name": NAME, "context": { "cluster": NAME, "user": NAME } }],
    });
    // JSON is YAML too.
    config.to_string() + "\n"
}

/// Long before a token ends, also when the API server gives the shortest that it knows.
const RENEW_AT_MOST: Duration = Duration::from_secs(3600);
const RENEW_AT_LEAST: Duration = Duration::from_secs(60);
/// A token that has ended by our clock may be good by the API server's: it is renewed without a
/// rest that would be noticed, and without a storm.
const RENEW_ENDED: Duration = Duration::from_secs(5);

/// How long a token is used before the next one is asked for.
pub fn decide_renewal(expires_at: Timestamp, now: Timestamp) -> Duration {
    match Duration::try_from(expires_at.duration_since(now)) {
        Ok(left) if !left.is_zero() => (left / 2).clamp(RENEW_AT_LEAST, RENEW_AT_MOST),
        Ok(_) | Err(_) => RENEW_ENDED,
    }
}

/// From when to when a token is good, as it says itself: seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct TokenLife {
    #[serde(rename = "iat")]
    issued: i64,
    #[serde(rename = "exp")]
    expires: i64,
}

impl TokenLife {
    /// Of the token in what [`render_kubeconfig`] made; `None` for every other identity.
    pub fn read(kubeconfig: &str) -> Option<Self> {
        let config: Value = serde_json::from_str(kubeconfig).ok()?;
        let token = config.pointer("/users/0/user/token")?.as_str()?;
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        serde_json::from_slice(&claims).ok()
    }

    /// When it ends, if only a third of its time is left. Whoever renews tokens does it after half
    /// of their time at the latest, so that nobody does any more.
    pub fn end_if_neglected(self, now: Timestamp) -> Option<Timestamp> {
        let left = self.expires.saturating_sub(now.as_second());
        let whole = self.expires.saturating_sub(self.issued);
        let end = Timestamp::from_second(self.expires).ok()?;
        (left < whole / 3).then_some(end)
    }
}

/// What a pod that is told to end knows of the DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The API server does not say.
    Unknown,
    /// It is not there, or nobody may read it any more.
    Gone,
    There {
        deleting: bool,
        node_selector: Labels,
    },
}

/// What becomes of the agent when its pod ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Another pod will follow it.
    Stays,
    /// It is in use, though nobody wants it here: its volumes would be cut off.
    StaysForVolumes,
    Goes,
}

/// Decides from the DaemonSet, the labels of the node (if they are known) and whether volumes are in
/// use on it.
pub fn decide_end(fate: &Fate, labels: Option<&Labels>, in_use: bool) -> End {
    let is_wanted = match fate {
        Fate::Unknown => true,
        Fate::Gone => false,
        Fate::There { deleting: true, .. } => false,
        Fate::There { deleting: false, node_selector } => labels.is_none_or(|labels| {
            node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        }),
    };
    match (is_wanted, in_use) {
        (true, _) => End::Stays,
        (false, true) => End::StaysForVolumes,
        (false, false) => End::Goes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        install::manifests::{
            render_agent_pods, render_agent_removal, render_rbac, render_volumes,
        },
        volume::lease::Terms,
    };

    fn wish() -> AgentPods {
        AgentPods {
            image: "wharf.dev/agent:1".to_owned(),
            node_selector: Labels::from([("disk".to_owned(), "fast".to_owned())]),
            tolerations: vec![
                Toleration::default(),
                Toleration {
                    key: Some("wharf.dev/only".to_owned()),
                    value: Some("x".to_owned()),
                    effect: Some("NoExecute".to_owned()),
                },
            ],
            plugin_dir: Some("/flex".to_owned()),
        }
    }

    fn documents(text: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(text).unwrap()
    }

    #[test]
    fn the_daemon_set_goes_where_it_was_told() {
        let documents = documents(&render_agent_pods(&wish()));
        let find = |kind: &str| documents.iter().find(|found| found["kind"] == kind).unwrap();
        let pod = &find("DaemonSet")["spec"]["template"]["spec"];
        let selector = json!({"disk": "fast", "kubernetes.io/os": "linux"});
        assert_eq!(pod["nodeSelector"], selector);
        let only = json!({
            "key": "wharf.dev/only", "operator": "Equal", "value": "x", "effect": "NoExecute",
        });
        assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}, only]));
        let container = &pod["containers"][0];
        assert_eq!(container["image"], "wharf.dev/agent:1");
        assert_eq!(pod["terminationGracePeriodSeconds"], json!(GRACE.as_secs()));
        let probe = json!([
            format!("{}/wharf", place::PROGRAMS),
            "agent",
            "status",
            "--run-dir",
            place::RUN,
        ]);
        assert_eq!(container["readinessProbe"]["exec"]["command"], probe);
        let config = find("ConfigMap")["data"]["agent.toml"].as_str().unwrap();
        let config: toml::Table = render_config("n1", config).parse().unwrap();
        assert_eq!(config["node_name"].as_str(), Some("n1"));
        assert_eq!(config["volumes"]["plugin_dir"].as_str(), Some("/flex"));
        assert_eq!(config["volumes"]["state_dir"].as_str(), Some(place::VOLUMES));
    }

    #[test]
    fn all_rights_are_given_to_the_service_account_and_to_nobody_else() {
        let documents = documents(&render_agent_pods(&wish()));
        let account = json!([{
            "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE,
        }]);
        let bindings = documents.iter().filter(|found| found["subjects"].is_array());
        let mut count = 0;
        for binding in bindings {
            assert_eq!(binding["subjects"], account, "{binding}");
            count += 1;
        }
        assert_eq!(count, 6);
    }

    #[test]
    fn rights_of_an_installers_agents_are_neither_changed_nor_removed() {
        let names = |text: &str| -> Vec<String> {
            let rights = documents(text).into_iter().filter(|found| {
                found["apiVersion"].as_str().is_some_and(|version| version.starts_with("rbac."))
            });
            rights.map(|found| found["metadata"]["name"].to_string()).collect()
        };
        let theirs = [names(&render_rbac()), names(&render_volumes())].concat();
        let own = [render_agent_pods(&wish()), render_agent_removal(false)];
        for own in own.map(|text| names(&text)) {
            assert_eq!(own.len(), 12);
            assert!(own.iter().all(|name| !theirs.contains(name)), "{own:?}");
        }
    }

    #[test]
    fn every_right_that_is_given_is_there() {
        let documents = documents(&render_agent_pods(&wish()));
        let is_role = |found: &Value, wanted: &Value| {
            found["kind"] == wanted["kind"] && found["metadata"]["name"] == wanted["name"]
        };
        for binding in documents.iter().filter(|found| found["roleRef"].is_object()) {
            let role = &binding["roleRef"];
            assert!(documents.iter().any(|found| is_role(found, role)), "{binding}");
        }
    }

    #[test]
    fn a_token_is_renewed_long_before_its_end_and_soon_after_it() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (left, expected) in [
            (24 * 3600, 3600),
            (7200, 3600),
            (3600, 1800),
            (600, 300),
            (90, 60),
            (1, 60),
            (0, 5),
            (-1, 5),
            (-24 * 3600, 5),
        ] {
            let end = Timestamp::from_second(1_000_000 + left).unwrap();
            assert_eq!(decide_renewal(end, now), Duration::from_secs(expected), "{left}");
        }
    }

    #[test]
    fn a_token_that_nobody_renews_is_noticed_long_before_its_end() {
        let token =
            |claims: &Value| format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let issued = 1_000_000;
        let expires = issued + 24 * 3600;
        let good = token(&json!({"iat": issued, "exp": expires, "sub": "x"}));
        let life = TokenLife::read(&render_kubeconfig("https://s", "pem", &good)).unwrap();
        let end = Timestamp::from_second(expires).unwrap();
        for (hours, expected) in
            [(0, None), (2, None), (16, None), (17, Some(end)), (25, Some(end))]
        {
            let now = Timestamp::from_second(issued + hours * 3600).unwrap();
            assert_eq!(life.end_if_neglected(now), expected, "{hours}");
        }
        for bad in ["", "no token", "a.b.c", &token(&json!({"exp": expires}))] {
            assert_eq!(TokenLife::read(&render_kubeconfig("https://s", "pem", bad)), None, "{bad}");
        }
        assert_eq!(TokenLife::read("apiVersion: v1\nusers: []\n"), None);
    }

    #[test]
    fn a_removal_leaves_applications_and_if_told_records() {
        let kinds = |text: &str| -> Vec<String> {
            let of = |found: &Value| {
                format!("{} {}", found["kind"], found["metadata"]["name"]).replace('"', "")
            };
            documents(text).iter().map(of).collect()
        };
        let all = kinds(&render_agent_pods(&wish()));
        let whole = kinds(&render_agent_removal(false));
        let missing: Vec<_> = all.iter().filter(|kind| !whole.contains(kind)).collect();
        assert_eq!(missing, ["Namespace eve-kube-app"]);
        let kept = kinds(&render_agent_removal(true));
        let left: Vec<_> = whole.iter().filter(|kind| !kept.contains(kind)).collect();
        assert_eq!(
            left,
            [
                "Namespace wharf-system",
                "CustomResourceDefinition attachments.wharf.dev",
                "CustomResourceDefinition storageclusters.wharf.dev",
                "CustomResourceDefinition nodegarbages.wharf.dev",
                "CSIDriver volume.wharf.dev",
            ]
        );
    }

    #[test]
    fn what_cannot_be_is_named_with_its_field() {
        let bad = AgentPods {
            image: "two words".to_owned(),
            node_selector: Labels::from([("a b".to_owned(), String::new())]),
            tolerations: vec![
                Toleration { effect: Some("Never".to_owned()), ..Toleration::default() },
                Toleration { value: Some("x".to_owned()), ..Toleration::default() },
                Toleration { key: Some("-x".to_owned()), ..Toleration::default() },
            ],
            plugin_dir: Some("flex".to_owned()),
        };
        let fields: Vec<String> = bad.faults().into_iter().map(|fault| fault.field).collect();
        let tolerations = ["tolerations[0]", "tolerations[1]", "tolerations[2]"];
        assert_eq!(fields[..2], ["image", "nodeSelector"]);
        assert_eq!(fields[2..5], tolerations);
        assert_eq!(fields[5..], ["pluginDir"]);
        assert_eq!(wish().faults(), []);
    }

    #[test]
    fn the_unit_runs_the_pods_own_programs_and_spares_the_guard() {
        let unit = render_unit();
        let start = "ExecStart=/opt/wharf-agent/wharf \\\n  agent \\\n  --config \\\n  \
                     /run/wharf-agent/agent.toml\n";
        assert!(unit.contains(start), "{unit}");
        assert!(unit.contains("KillMode=process\n"), "{unit}");
    }

    #[test]
    fn an_agent_that_does_not_stop_is_ended_long_before_its_lease_is() {
        let unit = render_unit();
        assert!(unit.contains(&format!("TimeoutStopSec={}\n", agent::STOP_SECONDS)), "{unit}");
        let terms = Terms::default();
        // As little may be left of the lease when it is told to stop.
        let left = terms.duration - terms.cut_within - terms.renew_every;
        assert!(agent::STOP_SECONDS <= left.as_secs() * 2 / 3, "{left:?}");
    }

    #[test]
    fn the_agent_goes_only_when_nobody_wants_it_and_nothing_is_in_use() {
        let labels = Labels::from([("disk".to_owned(), "fast".to_owned())]);
        let there =
            |deleting, selector: &Labels| Fate::There { deleting, node_selector: selector.clone() };
        let slow = Labels::from([("disk".to_owned(), "slow".to_owned())]);
        let rows = [
            (Fate::Unknown, false, End::Stays),
            (Fate::Gone, false, End::Goes),
            (Fate::Gone, true, End::StaysForVolumes),
            (there(false, &labels), false, End::Stays),
            (there(false, &labels), true, End::Stays),
            (there(true, &labels), false, End::Goes),
            (there(false, &slow), false, End::Goes),
            (there(false, &slow), true, End::StaysForVolumes),
        ];
        for (fate, in_use, expected) in rows {
            assert_eq!(decide_end(&fate, Some(&labels), in_use), expected, "{fate:?} {in_use}");
        }
        assert_eq!(decide_end(&there(false, &slow), None, false), End::Stays);
    }
}
