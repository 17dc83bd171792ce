//! The hole in the host's packet filter through which the cluster reaches the status server.
//!
//! A packet has to pass every chain that looks at input: to accept it in a chain of our own would not
//! keep another from dropping it. So the rule goes to the beginning of each chain that filters, and
//! only there: where nobody filters, nothing is changed.

use std::net::IpAddr;

/// Our rules begin with this word, and say what they are for.
const MARK: &str = "wharf-status";

/// A chain of the kernel's that input passes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub family: Family,
    pub table: String,
    pub name: String,
    /// What passes all rules is dropped.
    pub drops: bool,
    pub rules: Vec<Rule>,
}

/// Where chains that filter IP are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ip,
    Ip6,
    Inet,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    pub handle: u64,
    pub comment: String,
    /// Whatever comes to it is dropped or rejected.
    pub ends_all: bool,
}

/// What shall pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    pub interface: String,
    pub address: IpAddr,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// As the first rule of a chain, with this comment.
    Insert {
        family: Family,
        table: String,
        chain: String,
        comment: String,
    },
    Delete {
        family: Family,
        table: String,
        chain: String,
        handle: u64,
    },
}

/// Decides what is missing and what is too much. Without an opening all our rules are too much.
pub fn decide_opening(chains: &[Chain], opening: Option<&Opening>) -> Vec<Action> {
    let mut actions = Vec::new();
    for chain in chains {
        let wanted = opening.filter(|opening| chain.filters() && chain.family.has(opening.address));
        let comment = wanted.map(Opening::comment);
        let mut there = false;
        for rule in chain.rules.iter().filter(|rule| rule.is_ours()) {
            if !there && Some(&rule.comment) == comment.as_ref() {
                there = true;
            } else {
                actions.push(Action::Delete {
                    family: chain.family,
                    table: chain.table.clone(),
                    chain: chain.name.clone(),
                    handle: rule.handle,
                });
            }
        }
        if let Some(comment) = comment.filter(|_| !there) {
            actions.push(Action::Insert {
                family: chain.family,
                table: chain.table.clone(),
                chain: chain.name.clone(),
                comment,
            });
        }
    }
    actions
}

impl Chain {
    /// Other chains that look at input drop single packets on purpose, and are left alone.
    fn filters(&self) -> bool {
        self.drops || self.rules.iter().any(|rule| rule.ends_all)
    }
}

impl Rule {
    fn is_ours(&self) -> bool {
        self.comment.split(' ').next() == Some(MARK)
    }
}

impl Opening {
    fn comment(&self) -> String {
        format!("{MARK} {} {} {}", self.interface, self.address, self.port)
    }
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Inet => "inet",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Family::Ip, Family::Ip6, Family::Inet].into_iter().find(|family| family.name() == name)
    }

    fn has(self, address: IpAddr) -> bool {
        match self {
            Family::Ip => address.is_ipv4(),
            Family::Ip6 => address.is_ipv6(),
            Family::Inet => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening() -> Opening {
        Opening {
            interface: "eth1".to_owned(),
            address: "10.244.244.2".parse().unwrap(),
            port: 12346,
        }
    }

    fn chain(drops: bool, rules: &[(u64, &str, bool)]) -> Chain {
        let rule = |(handle, comment, ends_all): &(u64, &str, bool)| Rule {
            handle: *handle,
            comment: (*comment).to_owned(),
            ends_all: *ends_all,
        };
        Chain {
            family: Family::Inet,
            table: "filter".to_owned(),
            name: "input".to_owned(),
            drops,
            rules: rules.iter().map(rule).collect(),
        }
    }

    fn say(chain: Chain, opening: Option<&Opening>) -> Vec<String> {
        let say = |action: Action| match action {
            Action::Insert { comment, .. } => format!("+ {comment}"),
            Action::Delete { handle, .. } => format!("- {handle}"),
        };
        decide_opening(&[chain], opening).into_iter().map(say).collect()
    }

    #[test]
    fn only_a_chain_that_filters_is_opened_and_only_once() {
        const OURS: &str = "wharf-status eth1 10.244.244.2 12346";
        let insert = format!("+ {OURS}");
        let rows = [
            (chain(true, &[]), vec![insert.as_str()]),
            (chain(false, &[(4, "", false), (5, "", true)]), vec![insert.as_str()]),
            (chain(false, &[(4, "", false)]), vec![]),
            (chain(true, &[(4, OURS, false)]), vec![]),
            (chain(true, &[(4, OURS, false), (9, OURS, false)]), vec!["- 9"]),
            (chain(true, &[(4, "wharf-status eth0 10.0.0.1 1", false)]), vec!["- 4", &insert]),
            (chain(false, &[(4, OURS, false)]), vec!["- 4"]),
            (chain(true, &[(4, "wharf-statusquo", false)]), vec![insert.as_str()]),
        ];
        for (chain, expected) in rows {
            assert_eq!(say(chain.clone(), Some(&opening())), expected, "{chain:?}");
        }
        assert_eq!(say(chain(true, &[(4, OURS, false)]), None), ["- 4"]);
        assert_eq!(say(chain(true, &[(4, "mine", false)]), None), [""; 0]);
    }

    #[test]
    fn a_chain_of_the_other_family_is_left_alone() {
        let with = |family| Chain { family, ..chain(true, &[]) };
        assert_eq!(say(with(Family::Ip6), Some(&opening())), [""; 0]);
        assert_eq!(say(with(Family::Ip), Some(&opening())).len(), 1);
        let six = Opening { address: "fd00::2".parse().unwrap(), ..opening() };
        assert_eq!(say(with(Family::Ip6), Some(&six)).len(), 1);
        assert_eq!(say(with(Family::Ip), Some(&six)), [""; 0]);
    }
}
