//! The certificates, keys and kubeconfigs of a cluster.
//!
//! All of a cluster's is one value, [`ClusterPki`], which the server stores sealed. [`Leaf`] is the
//! table of certificates: who signs each, what it is called, what it may do. Start there.
//! [`ClusterPki::ensure`] makes what a cluster's machines need and leaves alone what is good, so
//! that a second run changes no file on any host.
//!
//! **Invariant:** this crate does no I/O and looks at no clock; chance comes from the system.
//!
//! **Invariant:** a secret is never in a `Debug` output or an error.

mod agents;
mod certificate;
mod kubeconfig;
mod leaf;
mod pki;
mod secret;

use jiff::Timestamp;

pub use agents::{Agent, AgentAuthority};
pub use kubeconfig::Kubeconfig;
pub use leaf::{Authority, Leaf};
pub use pki::{CertKey, Changes, ClusterPki, Expiry, ServiceAccountKey};
pub use secret::Secret;

/// Why certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("a key could not be made")]
    Key(#[source] rcgen::Error),
    #[error("the certificate {name} could not be made")]
    Make {
        name: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("the certificate {name} cannot be read")]
    Read { name: String },
    #[error("the authority {name} can sign nothing")]
    Authority {
        name: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("the authority {name} ended at {at}")]
    AuthorityEnded { name: String, at: Timestamp },
    #[error("there is no certificate {name}")]
    Missing { name: String },
    #[error("the cluster has no controlplane node to connect to")]
    NoControlplane,
    #[error("the kubeconfig could not be written as YAML")]
    Yaml(#[source] serde_saphyr::ser_error::Error),
}
