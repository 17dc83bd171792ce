//! Ethernet ports that applications use directly: for each port a NetworkAttachmentDefinition, shared
//! by all who use it, gone with its last user.
//!
//! The definitions belong to the whole cluster. Who uses one is written on it, by node and
//! application, so that no node takes away what another one needs. A node that left the cluster
//! cannot take its name off again: the others do.

use std::collections::{BTreeMap, BTreeSet};

/// A native container that is given ports. Others get theirs by the hypervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    pub uuid: String,
    pub ports: Vec<String>,
}

/// A definition that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    /// What its configuration says.
    pub config: String,
    /// `<node>/<application>`. One that carries no such list is not ours.
    pub users: Option<BTreeSet<String>>,
}

/// Who decides, and whom it knows.
#[derive(Debug, Clone, Copy)]
pub struct Nodes<'a> {
    pub own: &'a str,
    /// Every Node of the cluster; `None` where they could not be read, and then nobody counts as gone.
    pub all: Option<&'a BTreeSet<String>>,
    /// Own applications that nobody can read: what they use they go on using.
    pub unreadable: &'a BTreeSet<String>,
}

impl Nodes<'_> {
    /// The users that are not known to be gone: those on other nodes that there still are, and the own
    /// ones that cannot be read.
    fn others(self, users: &BTreeSet<String>) -> BTreeSet<String> {
        let stays = |user: &&String| match user.split_once('/') {
            Some((node, app)) if node == self.own => self.unreadable.contains(app),
            Some((node, _)) => self.all.is_none_or(|all| all.contains(node)),
            // Nobody of ours writes such a thing.
            None => true,
        };
        users.iter().filter(stays).cloned().collect()
    }
}

/// Whether other nodes than this one are named as users, so that it matters which ones there are.
pub fn names_others(own: &str, known: &[Definition]) -> bool {
    let nodes = Nodes { own, all: None, unreadable: &BTreeSet::new() };
    known.iter().filter_map(|one| one.users.as_ref()).any(|users| !nodes.others(users).is_empty())
}

/// All may be done twice; each is done only if the definition is still as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Put {
        name: String,
        config: String,
        users: BTreeSet<String>,
    },
    Delete {
        name: String,
    },
    /// The port must be up before a container can have it.
    LinkUp {
        port: String,
    },
}

/// Decides which definitions there should be. Ports that are not up are in `down`.
pub fn decide_passthrough(
    nodes: Nodes<'_>,
    apps: &[App],
    known: &[Definition],
    down: &BTreeSet<String>,
) -> Vec<Action> {
    let mut wanted: BTreeMap<String, (&str, BTreeSet<String>)> = BTreeMap::new();
    for app in apps {
        for port in app.ports.iter().filter(|port| !port.is_empty()) {
            let (_, users) = wanted.entry(definition_name(port)).or_insert((port, BTreeSet::new()));
            users.insert(format!("{}/{}", nodes.own, app.uuid));
        }
    }
    let mut actions = Vec::new();
    let ports: BTreeSet<&str> = wanted.values().map(|(port, _)| *port).collect();
    let lifted = ports.into_iter().filter(|port| down.contains(*port));
    actions.extend(lifted.map(|port| Action::LinkUp { port: port.to_owned() }));
    let by_name: BTreeMap<&str, &Definition> =
        known.iter().map(|one| (one.name.as_str(), one)).collect();
    for (name, (port, users)) in &wanted {
        actions.extend(keep(nodes, name, port, users, by_name.get(name.as_str()).copied()));
    }
    let unwanted = known.iter().filter(|one| !wanted.contains_key(&one.name));
    actions.extend(unwanted.filter_map(|one| let_go(nodes, one)));
    actions
}

fn keep(
    nodes: Nodes<'_>,
    name: &str,
    port: &str,
    users: &BTreeSet<String>,
    known: Option<&Definition>,
) -> Option<Action> {
    let config = render_config(port);
    let mut all = users.clone();
    if let Some(known) = known {
        // Without a list somebody else made it, and cares for it.
        all.extend(nodes.others(known.users.as_ref()?));
        if known.users.as_ref() == Some(&all) && known.config == config {
            return None;
        }
    }
    Some(Action::Put { name: name.to_owned(), config, users: all })
}

/// This node uses it no more.
fn let_go(nodes: Nodes<'_>, known: &Definition) -> Option<Action> {
    let users = known.users.as_ref()?;
    let others = nodes.others(users);
    let (name, config) = (known.name.clone(), known.config.clone());
    if others.is_empty() {
        return Some(Action::Delete { name });
    }
    (others != *users).then_some(Action::Put { name, config, users: others })
}

pub fn definition_name(port: &str) -> String {
    format!("host-{}", port.to_ascii_lowercase())
}

/// What the network plugin is told.
pub fn render_config(port: &str) -> String {
    let plugin = serde_json::json!({ "type": "host-device", "device": port });
    serde_json::json!({ "cniVersion": "0.3.1", "plugins": [plugin] }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(uuid: &str, ports: &[&str]) -> App {
        let ports = ports.iter().map(|port| (*port).to_owned()).collect();
        App { uuid: uuid.to_owned(), ports }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn known(users: Option<&[&str]>) -> Definition {
        let config = render_config("eth1");
        Definition { name: "host-eth1".to_owned(), config, users: users.map(set) }
    }

    fn put(users: &[&str]) -> Action {
        let (name, config) = ("host-eth1".to_owned(), render_config("eth1"));
        Action::Put { name, config, users: set(users) }
    }

    static NONE: BTreeSet<String> = BTreeSet::new();
    const UNKNOWN: Nodes<'static> = Nodes { own: "n1", all: None, unreadable: &NONE };

    fn decide(apps: &[App], known: &[Definition]) -> Vec<Action> {
        decide_passthrough(UNKNOWN, apps, known, &BTreeSet::new())
    }

    #[test]
    fn a_port_has_one_definition_for_all_who_use_it_and_it_goes_with_the_last() {
        let both = [app("a", &["eth1"]), app("b", &["eth1"])];
        assert_eq!(decide(&both, &[]), [put(&["n1/a", "n1/b"])]);
        assert_eq!(decide(&both, &[known(Some(&["n1/a", "n1/b"]))]), []);
        let one = [app("b", &["eth1"])];
        assert_eq!(decide(&one, &[known(Some(&["n1/a", "n1/b"]))]), [put(&["n1/b"])]);
        let gone = [Action::Delete { name: "host-eth1".to_owned() }];
        assert_eq!(decide(&[], &[known(Some(&["n1/a", "n1/b"]))]), gone);
    }

    #[test]
    fn what_another_node_uses_stays_and_what_others_made_is_left_alone() {
        let shared = known(Some(&["n1/a", "n2/c"]));
        assert_eq!(decide(&[], &[shared]), [put(&["n2/c"])]);
        assert_eq!(decide(&[], &[known(Some(&["n2/c"]))]), []);
        let joined = decide(&[app("a", &["eth1"])], &[known(Some(&["n2/c"]))]);
        assert_eq!(joined, [put(&["n1/a", "n2/c"])]);
        assert_eq!(decide(&[app("a", &["eth1"])], &[known(None)]), []);
        assert_eq!(decide(&[], &[known(None)]), []);
        // A node whose name begins like ours is another one.
        assert_eq!(decide(&[], &[known(Some(&["n10/c"]))]), []);
    }

    #[test]
    fn users_on_nodes_that_left_the_cluster_are_forgotten_and_only_those() {
        let gone = || vec![Action::Delete { name: "host-eth1".to_owned() }];
        let here = [app("a", &["eth1"])];
        let both = ["n1", "n2"];
        type Row<'a> = (&'a [App], &'a [&'a str], Option<&'a [&'a str]>, Vec<Action>);
        let rows: [Row<'_>; 8] = [
            (&[], &["n2/c"], Some(&["n1"]), gone()),
            (&[], &["n2/c", "n3/d"], Some(&both), vec![put(&["n2/c"])]),
            (&[], &["n1/a", "n3/d"], Some(&both), gone()),
            (&here, &["n1/a", "n3/d"], Some(&both), vec![put(&["n1/a"])]),
            (&here, &["n1/a", "n2/c"], Some(&both), vec![]),
            // Its own Node may not be made yet.
            (&here, &["n1/a"], Some(&["n2"]), vec![]),
            (&[], &["n2/c"], None, vec![]),
            (&[], &["somebody"], Some(&both), vec![]),
        ];
        for (apps, users, all, expected) in rows {
            let all = all.map(set);
            let nodes = Nodes { all: all.as_ref(), ..UNKNOWN };
            let known = [known(Some(users))];
            let decided = decide_passthrough(nodes, apps, &known, &BTreeSet::new());
            assert_eq!(decided, expected, "{users:?} of {all:?}");
        }
    }

    #[test]
    fn an_application_that_cannot_be_read_goes_on_using_its_ports() {
        let unreadable = set(&["a"]);
        let nodes = Nodes { unreadable: &unreadable, ..UNKNOWN };
        let decide = |apps: &[App], users: &[&str]| {
            decide_passthrough(nodes, apps, &[known(Some(users))], &BTreeSet::new())
        };
        assert_eq!(decide(&[], &["n1/a"]), []);
        assert_eq!(decide(&[], &["n1/a", "n1/b"]), [put(&["n1/a"])]);
        assert_eq!(decide(&[app("b", &["eth1"])], &["n1/a"]), [put(&["n1/a", "n1/b"])]);
        assert_eq!(decide(&[], &["n2/b"]), []);
    }

    #[test]
    fn which_nodes_there_are_matters_only_where_others_are_named() {
        assert!(!names_others("n1", &[]));
        assert!(!names_others("n1", &[known(None), known(Some(&["n1/a"]))]));
        assert!(names_others("n1", &[known(None), known(Some(&["n1/a", "n2/c"]))]));
    }

    #[test]
    fn a_definition_that_was_changed_is_put_right_and_the_link_is_lifted() {
        let bent = Definition { config: "{}".to_owned(), ..known(Some(&["n1/a"])) };
        let apps = [app("a", &["eth1", ""])];
        let actions = decide_passthrough(UNKNOWN, &apps, &[bent], &set(&["eth1", "eth9"]));
        assert_eq!(actions, [Action::LinkUp { port: "eth1".to_owned() }, put(&["n1/a"])]);
        let config: serde_json::Value = serde_json::from_str(&render_config("eth1")).unwrap();
        assert_eq!(config["cniVersion"], "0.3.1");
        assert_eq!(config["plugins"][0]["type"], "host-device");
        assert_eq!(config["plugins"][0]["device"], "eth1");
    }
}
