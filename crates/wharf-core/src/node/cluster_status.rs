//! Whether the node's address in the cluster is there, so that others may speak to it.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

/// What the node is told of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The logical label of the port; where ports have none, the interface's name. An empty one stands
    /// for whichever port has the address.
    pub interface: String,
    /// The node's own address, with the length of the network's prefix.
    pub prefix: Option<IpNet>,
    pub token: Token,
}

/// What came of the cluster's token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    Opened(String),
    /// It did not come encrypted, and is not used.
    NotACipher,
    /// It cannot be opened, or not yet.
    Sealed(String),
}

/// A port of the node, as the device or the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Port {
    pub label: String,
    pub if_name: String,
    pub invalid: bool,
    pub addresses: Vec<IpAddr>,
}

/// What is published of the cluster, beside what is copied from its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub readiness: Readiness,
    /// Empty while it cannot be opened.
    pub token: String,
    pub error: Option<String>,
}

/// Whether the address is there. The text of each is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The status server may listen here, and here only.
    Ready {
        if_name: String,
        address: IpAddr,
    },
    NoPrefix,
    NoPort {
        label: String,
    },
    InvalidPort {
        label: String,
    },
    NoAddress {
        label: String,
        address: IpAddr,
    },
}

/// Decides what is published; `None` when the node is alone, and then nothing is and nobody listens.
pub fn decide_cluster_status(config: Option<&Config>, ports: &[Port]) -> Option<Status> {
    let config = config?;
    let (token, error) = match &config.token {
        Token::Opened(token) => (token.clone(), None),
        Token::NotACipher => (String::new(), None),
        Token::Sealed(reason) => (String::new(), Some(reason.clone())),
    };
    Some(Status { readiness: readiness(config, ports), token, error })
}

fn readiness(config: &Config, ports: &[Port]) -> Readiness {
    let Some(prefix) = config.prefix else { return Readiness::NoPrefix };
    let (label, address) = (config.interface.clone(), prefix.addr());
    let is_meant = |port: &&Port| label.is_empty() || port.label == label;
    let named = || ports.iter().filter(is_meant).filter(|port| !port.if_name.is_empty());
    let has = |port: &&Port| !port.invalid && port.addresses.contains(&address);
    if let Some(port) = named().find(has) {
        return Readiness::Ready { if_name: port.if_name.clone(), address };
    }
    match named().next() {
        None => Readiness::NoPort { label },
        Some(_) if named().all(|port| port.invalid) => Readiness::InvalidPort { label },
        Some(_) => Readiness::NoAddress { label, address },
    }
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        matches!(self, Readiness::Ready { .. })
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Readiness::Ready { if_name, address } => write!(f, "{address} is there on {if_name}"),
            Readiness::NoPrefix => f.write_str("the node has no address in the cluster"),
            Readiness::NoAddress { label, address } if label.is_empty() => {
                write!(f, "no port carries {address}")
            }
            Readiness::NoPort { label } => write!(f, "there is no port {label}"),
            Readiness::InvalidPort { label } => {
                write!(f, "the configuration of port {label} is not valid")
            }
            Readiness::NoAddress { label, address } => {
                write!(f, "port {label} does not carry {address}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            interface: "cluster-port".to_owned(),
            prefix: Some("10.244.244.2/28".parse().unwrap()),
            token: Token::Opened("secret".to_owned()),
        }
    }

    fn port(label: &str, addresses: &[&str]) -> Port {
        Port {
            label: label.to_owned(),
            if_name: "eth1".to_owned(),
            invalid: false,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn say(ports: &[Port]) -> String {
        decide_cluster_status(Some(&config()), ports).unwrap().readiness.to_string()
    }

    #[test]
    fn the_address_must_be_there_exactly_on_the_valid_port_of_that_label() {
        let good = || port("cluster-port", &["192.168.1.5", "10.244.244.2"]);
        let rows = [
            (vec![good()], "10.244.244.2 is there on eth1"),
            (vec![port("other", &["10.244.244.2"]), good()], "10.244.244.2 is there on eth1"),
            (vec![], "there is no port cluster-port"),
            (vec![port("other", &["10.244.244.2"])], "there is no port cluster-port"),
            (vec![Port { if_name: String::new(), ..good() }], "there is no port cluster-port"),
            (
                vec![Port { invalid: true, ..good() }],
                "the configuration of port cluster-port is not valid",
            ),
            (
                vec![port("cluster-port", &["10.244.244.3"])],
                "port cluster-port does not carry 10.244.244.2",
            ),
            (
                vec![port("cluster-port", &[]), Port { invalid: true, ..good() }],
                "port cluster-port does not carry 10.244.244.2",
            ),
        ];
        for (ports, expected) in rows {
            assert_eq!(say(&ports), expected, "{ports:?}");
        }
        let ready = decide_cluster_status(Some(&config()), &[good()]).unwrap();
        assert!(ready.readiness.is_ready());
        assert_eq!((ready.token.as_str(), ready.error), ("secret", None));
    }

    #[test]
    fn without_a_label_any_port_will_do_that_has_the_address() {
        let anywhere = Config { interface: String::new(), ..config() };
        let say = |ports: &[Port]| {
            decide_cluster_status(Some(&anywhere), ports).unwrap().readiness.to_string()
        };
        let ports = [port("a", &["10.0.0.1"]), port("b", &["10.244.244.2"])];
        assert_eq!(say(&ports), "10.244.244.2 is there on eth1");
        assert_eq!(say(&[port("a", &["10.0.0.1"])]), "no port carries 10.244.244.2");
    }

    #[test]
    fn without_a_configuration_nothing_is_published() {
        assert_eq!(decide_cluster_status(None, &[port("cluster-port", &["10.244.244.2"])]), None);
        let empty = Config { prefix: None, ..config() };
        let status = decide_cluster_status(Some(&empty), &[]).unwrap();
        assert_eq!(status.readiness, Readiness::NoPrefix);
    }

    #[test]
    fn a_token_that_cannot_be_opened_is_an_error_beside_the_status() {
        let sealed = Config { token: Token::Sealed("no certificate yet".to_owned()), ..config() };
        let status = decide_cluster_status(Some(&sealed), &[]).unwrap();
        assert_eq!(status.token, "");
        assert_eq!(status.error.as_deref(), Some("no certificate yet"));
        let plain = Config { token: Token::NotACipher, ..config() };
        let status = decide_cluster_status(Some(&plain), &[]).unwrap();
        assert_eq!((status.token.as_str(), status.error), ("", None));
    }
}
