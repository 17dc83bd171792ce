//! Ceph's block devices: how a cluster of them is described, and the ledger that is kept beside each
//! image.
//!
//! Ceph shuts a client out by its address, which is a new one with every mapping. So whoever was stopped
//! between its grant and its mapping has no address yet that could be shut out. The ledger closes that
//! gap. It is one object for an image with nothing but keys, and each of the two sides writes before it
//! reads:
//!
//! - who maps: opens the image, writes down its address, reads the epoch, and only then lets anybody
//!   write. An epoch above its own generation ends it.
//! - who fences: writes down the epoch, reads the addresses, and shuts out those below.
//!
//! Whatever the order, one of them sees the other. An address leaves the ledger when its client has ended
//! in order or was shut out, so that it does not matter whether Ceph still remembers that client.
//!
//! **Guarantee:** the epoch is the highest of all keys that were ever written. Adding a key does not
//! depend on what is there, so that no race lets it fall, and no compare-and-swap is needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::record::Generation;
use crate::words::nearest;

/// Where the cluster is and who we are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// As `mon_host` of Ceph's configuration.
    pub monitors: String,
    pub pool: String,
    /// Without `client.`.
    pub user: String,
    /// A file on every node. The key itself is in no object of Kubernetes.
    pub keyring: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadParameter {
    Missing(&'static str),
    Value { key: &'static str, value: String },
    Unknown { key: String, nearest: Option<String> },
}

const KEYS: [&str; 5] = ["monitors", "pool", "user", "keyring", "mountOptions"];
/// More than any cluster has monitors.
const LONGEST: usize = 1000;

impl Parameters {
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, BadParameter> {
        if let Some(key) = parameters.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let nearest = nearest(key, KEYS.into_iter());
            return Err(BadParameter::Unknown { key: key.chars().take(100).collect(), nearest });
        }
        let get = |key, is_good: fn(&str) -> bool| {
            let value = parameters.get(key).filter(|value| !value.is_empty());
            let value = value.ok_or(BadParameter::Missing(key))?;
            if value.len() <= LONGEST && is_good(value) {
                return Ok(value.clone());
            }
            Err(BadParameter::Value { key, value: value.chars().take(100).collect() })
        };
        Ok(Self {
            monitors: get("monitors", |text| {
                text.chars().all(|c| c.is_ascii_alphanumeric() || ".:,-[]/".contains(c))
            })?,
            pool: get("pool", is_plain)?,
            user: get("user", is_plain)?,
            keyring: get("keyring", |text| {
                text.starts_with('/')
                    && !text.chars().any(|c| c.is_control() || "#;$\"".contains(c))
            })?,
        })
    }

    /// The configuration of Ceph's programs: ours alone, whatever is in `/etc/ceph`.
    pub fn render_conf(&self) -> String {
        let Self { monitors, keyring, .. } = self;
        // Whoever takes a lock from a dead client would shut it out for an hour, also where we did so
        // for years; we do it before.
        format!(
            "[global]\nmon_host = {monitors}\nkeyring = {keyring}\nadmin_socket =\nlog_file =\n\
             rbd_blocklist_on_break_lock = false\n"
        )
    }
}

fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.chars().all(plain) && !text.starts_with('-')
}

impl fmt::Display for BadParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(key) => write!(f, "the storage cluster has no parameter {key}"),
            Self::Value { key, value } => {
                write!(f, "the parameter {key} of the storage cluster cannot be {value:?}")
            }
            Self::Unknown { key, nearest: Some(near) } => {
                write!(f, "the storage cluster has an unknown parameter {key:?}; is {near} meant?")
            }
            Self::Unknown { key, nearest: None } => write!(
                f,
                "the storage cluster has an unknown parameter {key:?}; there are {}",
                KEYS.join(", ")
            ),
        }
    }
}

impl std::error::Error for BadParameter {}

/// One line of the ledger. What others add to it later is passed over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Epoch(Generation),
    /// Whose the image is.
    Volume(String),
    /// A client that may write.
    Writer {
        generation: Generation,
        address: String,
    },
}

impl Key {
    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once('/')?;
        let generation = |text: &str| text.parse().ok().map(Generation);
        match kind {
            "epoch" => generation(rest).map(Key::Epoch),
            "volume" => Some(Key::Volume(rest.to_owned())),
            "writer" => {
                let (number, address) = rest.split_once('/')?;
                let address = address.to_owned();
                Some(Key::Writer { generation: generation(number)?, address })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Epoch(generation) => write!(f, "epoch/{:020}", generation.0),
            Key::Volume(volume) => write!(f, "volume/{volume}"),
            Key::Writer { generation, address } => {
                write!(f, "writer/{:020}/{address}", generation.0)
            }
        }
    }
}

/// What was written down beside an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger(BTreeSet<Key>);

/// Why an image may not be mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unadmitted {
    Taken { by: String },
    Later { epoch: Generation },
}

impl Ledger {
    /// From one key a line.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Key::parse).collect())
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.0.contains(key)
    }

    pub fn epoch(&self) -> Generation {
        let epochs = self.0.iter().filter_map(|key| match key {
            Key::Epoch(generation) => Some(*generation),
            Key::Volume(_) | Key::Writer { .. } => None,
        });
        epochs.max().unwrap_or_default()
    }

    /// Whose the image is, if it is another volume's.
    pub fn owner_but(&self, volume: &str) -> Option<&str> {
        self.0.iter().find_map(|key| match key {
            Key::Volume(by) if by != volume => Some(by.as_str()),
            Key::Volume(_) | Key::Epoch(_) | Key::Writer { .. } => None,
        })
    }

    /// Whether this grant of this volume may use the image.
    pub fn admit(&self, volume: &str, generation: Generation) -> Result<(), Unadmitted> {
        match self.owner_but(volume) {
            Some(by) => Err(Unadmitted::Taken { by: by.to_owned() }),
            None if self.epoch() > generation => Err(Unadmitted::Later { epoch: self.epoch() }),
            None => Ok(()),
        }
    }

    /// The clients that may write, of these grants.
    pub fn writers(&self, is_meant: impl Fn(Generation) -> bool) -> BTreeSet<String> {
        let writers = self.0.iter().filter_map(|key| match key {
            Key::Writer { generation, address } if is_meant(*generation) => Some(address.clone()),
            Key::Writer { .. } | Key::Epoch(_) | Key::Volume(_) => None,
        });
        writers.collect()
    }

    /// What says nothing any more once these clients are shut out.
    pub fn outdated(&self, shut_out: &BTreeSet<String>) -> Vec<Key> {
        let epoch = self.epoch();
        let is_old = |key: &&Key| match key {
            Key::Epoch(generation) => *generation < epoch,
            Key::Volume(_) => false,
            Key::Writer { address, .. } => shut_out.contains(address),
        };
        self.0.iter().filter(is_old).cloned().collect()
    }

    /// What goes with the image. The epoch stays: a late client of it must not come into a new one of
    /// the same name.
    pub fn of_image(&self) -> Vec<Key> {
        let goes = |key: &&Key| matches!(key, Key::Volume(_) | Key::Writer { .. });
        self.0.iter().filter(goes).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(changes: &[(&str, &str)]) -> Result<Parameters, String> {
        let mut all: BTreeMap<String, String> = [
            ("monitors", "v2:192.0.2.1:3300,[v2:[2001:db8::1]:3300]"),
            ("pool", "volumes"),
            ("user", "wharf"),
            ("keyring", "/etc/wharf/ceph.keyring"),
            ("mountOptions", "noatime"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        for (key, value) in changes {
            all.insert((*key).to_owned(), (*value).to_owned());
        }
        Parameters::parse(&all).map_err(|bad| bad.to_string())
    }

    #[test]
    fn parameters_that_are_missing_unknown_or_lead_elsewhere_are_named() {
        let good = parameters(&[]).unwrap();
        assert_eq!((good.pool.as_str(), good.user.as_str()), ("volumes", "wharf"));
        let cannot = |key: &str, value: &str| {
            format!("the parameter {key} of the storage cluster cannot be {value:?}")
        };
        for (key, value, sentence) in [
            ("pool", "", "the storage cluster has no parameter pool".to_owned()),
            ("pool", "--conf=/x", cannot("pool", "--conf=/x")),
            ("user", "a b", cannot("user", "a b")),
            ("keyring", "ceph.keyring", cannot("keyring", "ceph.keyring")),
            ("keyring", "/a\nlog_file = /b", cannot("keyring", "/a\nlog_file = /b")),
            ("monitors", "a\nb", cannot("monitors", "a\nb")),
            (
                "monitor",
                "a",
                "the storage cluster has an unknown parameter \"monitor\"; is monitors meant?"
                    .to_owned(),
            ),
        ] {
            assert_eq!(parameters(&[(key, value)]), Err(sentence));
        }
    }

    #[test]
    fn keys_are_read_as_they_were_written_and_foreign_ones_are_passed_over() {
        let writer = Key::Writer { generation: Generation(7), address: "10.0.0.1:0/42".to_owned() };
        assert_eq!(writer.to_string(), "writer/00000000000000000007/10.0.0.1:0/42");
        let keys = [Key::Epoch(Generation(9)), Key::Volume("pv-1".to_owned()), writer];
        let text: Vec<String> = keys.iter().map(Key::to_string).collect();
        let ledger = Ledger::parse(&format!("{}\nlater/1\nepoch/x\n", text.join("\n")));
        assert_eq!(ledger, Ledger(keys.into()));
    }

    #[test]
    fn an_image_is_of_one_volume_and_its_epoch_is_the_highest() {
        let ledger = Ledger::parse("epoch/3\nepoch/10\nvolume/pv-1\nwriter/10/a\nwriter/3/b\n");
        assert_eq!(ledger.epoch(), Generation(10));
        assert_eq!(ledger.admit("pv-1", Generation(10)), Ok(()));
        let later = Unadmitted::Later { epoch: Generation(10) };
        assert_eq!(ledger.admit("pv-1", Generation(9)), Err(later));
        let taken = Unadmitted::Taken { by: "pv-1".to_owned() };
        assert_eq!(ledger.admit("pv-2", Generation(11)), Err(taken));
        let below = ledger.writers(|generation| generation < Generation(10));
        assert_eq!(below, BTreeSet::from(["b".to_owned()]));
        let b = Key::Writer { generation: Generation(3), address: "b".to_owned() };
        assert_eq!(ledger.outdated(&below), [Key::Epoch(Generation(3)), b]);
        assert_eq!(ledger.of_image().len(), 3);
    }

    /// A grant that is late, and one after it that fences. Every order of their steps is tried.
    #[test]
    fn who_maps_late_is_shut_out_or_sees_it_in_every_order() {
        const OLD: Generation = Generation(1);
        const NEW: Generation = Generation(2);
        let old = || Key::Writer { generation: OLD, address: "old".to_owned() };
        for order in 0..1_u32 << 4 {
            let mut ledger = Ledger::default();
            let (mut old_steps, mut new_steps) = (0, 0);
            let (mut writes, mut is_out) = (false, false);
            let bits = (0..4).map(|at| order >> at & 1 == 0).chain([true, true, false, false]);
            for is_old in bits {
                match (is_old, old_steps, new_steps) {
                    (true, 0, _) => drop(ledger.0.insert(old())),
                    (true, 1, _) => writes = ledger.admit("pv", OLD).is_ok(),
                    (false, _, 0) => drop(ledger.0.insert(Key::Epoch(NEW))),
                    (false, _, 1) => is_out = ledger.writers(|of| of < NEW).contains("old"),
                    _ => {}
                }
                if is_old { old_steps += 1 } else { new_steps += 1 }
            }
            assert!(!writes || is_out, "order {order:04b}");
        }
    }
}
