//! Everything secret that a cluster's machines need to trust each other.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use wharf_core::cluster::ClusterSpec;

use crate::{
    Authority, Leaf, PkiError, Secret,
    certificate::{Signer, ends_at, generate_key, make_authority},
    leaf::wanted,
};

/// A certificate and its private key, both in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertKey {
    pub cert_pem: String,
    pub key_pem: Secret,
}

/// The key with which API servers sign the tokens of service accounts, both halves in PEM. It is
/// the same on all of them and is never made anew: that would end every token at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccountKey {
    pub private_pem: Secret,
    pub public_pem: String,
}

/// All certificates, keys and tokens of a cluster; stored sealed, as one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPki {
    pub kubernetes_ca: CertKey,
    pub etcd_ca: CertKey,
    pub front_proxy_ca: CertKey,
    pub service_account: ServiceAccountKey,
    /// 32 bytes in base64, with which API servers encrypt Secrets before etcd sees them.
    pub encryption_key: Secret,
    /// What agents ask of those who want more from them than their status.
    pub cluster_token: Secret,
    /// Keeps members of different etcd clusters apart that meet by mistake. Not a secret.
    pub etcd_token: String,
    /// By the text of their [`Leaf`].
    pub leaves: BTreeMap<String, CertKey>,
}

/// What [`ClusterPki::ensure`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Made, or made anew.
    pub issued: Vec<String>,
    /// Of nodes that are no longer there.
    pub dropped: Vec<String>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.issued.is_empty() && self.dropped.is_empty()
    }
}

/// Which certificate ends first, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    pub name: String,
    pub at: Timestamp,
}

impl ClusterPki {
    /// The authorities, keys and tokens of a new cluster, without any leaf.
    pub fn new(now: Timestamp) -> Result<Self, PkiError> {
        let accounts = generate_key()?;
        Ok(Self {
            kubernetes_ca: make_authority(Authority::Kubernetes.name(), now)?,
            etcd_ca: make_authority(Authority::Etcd.name(), now)?,
            front_proxy_ca: make_authority(Authority::FrontProxy.name(), now)?,
            service_account: ServiceAccountKey {
                private_pem: Secret::new(accounts.serialize_pem()),
                public_pem: accounts.public_key_pem(),
            },
            encryption_key: Secret::new(STANDARD.encode(rand::random::<[u8; 32]>())),
            cluster_token: Secret::new(hex::encode(rand::random::<[u8; 32]>())),
            etcd_token: hex::encode(rand::random::<[u8; 16]>()),
            leaves: BTreeMap::new(),
        })
    }

    /// Makes every leaf that the cluster needs and that is missing, is not as wanted, nears its
    /// end or is signed by another authority; drops those of nodes that left. What is good stays
    /// as it is, to the byte. After an error nothing is changed.
    pub fn ensure(&mut self, spec: &ClusterSpec, now: Timestamp) -> Result<Changes, PkiError> {
        let mut signers = BTreeMap::new();
        for authority in Authority::ALL {
            signers.insert(authority, Signer::open(authority, self.authority(authority))?);
        }
        let mut leaves = BTreeMap::new();
        let mut changes = Changes::default();
        for wanted in wanted(spec) {
            let name = wanted.leaf.to_string();
            let Some(signer) = signers.get(&wanted.leaf.authority()) else { continue };
            let there = self.leaves.get(&name);
            let leaf = match there.filter(|there| signer.is_current(there, &wanted, now)) {
                Some(there) => there.clone(),
                None => {
                    changes.issued.push(name.clone());
                    signer.issue(&wanted, now)?
                }
            };
            leaves.insert(name, leaf);
        }
        let gone = self.leaves.keys().filter(|name| !leaves.contains_key(*name));
        changes.dropped = gone.cloned().collect();
        self.leaves = leaves;
        Ok(changes)
    }

    pub fn authority(&self, authority: Authority) -> &CertKey {
        match authority {
            Authority::Kubernetes => &self.kubernetes_ca,
            Authority::Etcd => &self.etcd_ca,
            Authority::FrontProxy => &self.front_proxy_ca,
        }
    }

    pub fn leaf(&self, leaf: Leaf<'_>) -> Result<&CertKey, PkiError> {
        let name = leaf.to_string();
        self.leaves.get(&name).ok_or(PkiError::Missing { name })
    }

    /// Of all certificates, also those of the authorities, the one that ends first.
    pub fn expiry(&self) -> Result<Expiry, PkiError> {
        let name = Authority::Kubernetes.name();
        let mut first =
            Expiry { name: name.to_owned(), at: ends_at(name, &self.kubernetes_ca.cert_pem)? };
        let authorities = Authority::ALL.map(|a| (a.name(), self.authority(a)));
        let leaves = self.leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
        for (name, pair) in authorities.into_iter().chain(leaves) {
            let at = ends_at(name, &pair.cert_pem)?;
            if at < first.at {
                first = Expiry { name: name.to_owned(), at };
            }
        }
        Ok(first)
    }
}
