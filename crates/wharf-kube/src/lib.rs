//! The Kubernetes side: what Wharf asks of a cluster's API server, and what it changes there.
//!
//! [`Cluster`] is one cluster, reached through any of its API servers. Everything it offers is in
//! terms of Wharf's domain, so that a new version of the client library changes this crate alone.
//!
//! **Invariant:** nothing here decides. What to evict and when to give up is said by
//! `wharf_core::drain`; this crate looks, acts and reports.
//!
//! **Invariant:** every request has a deadline, every answer a greatest size.
//!
//! Start reading at [`Cluster`], then [`drain`].

mod addresses;
mod agent_pods;
mod app_pods;
mod apply;
mod attachments;
mod certificate;
mod claims;
mod clock;
mod cluster;
mod cordon;
pub mod drain;
mod error;
mod event;
mod evict;
mod fence;
mod kubeconfig;
mod kubelet;
mod lease;
pub mod machines;
mod namespace;
mod node;
mod observe;
mod own_node;
mod quantity;
mod stats;
mod storage;
mod transport;
mod vms;
pub mod volumes;
mod watch;
mod workload;

pub use addresses::NodeAddress;
pub use agent_pods::{DaemonPod, DaemonSetSeen, IssuedToken};
pub use app_pods::{AppPod, AppPods};
pub use apply::{Applied, Missing, Seen, check_confined};
pub use attachments::DefinitionSeen;
pub use clock::Clock;
pub use cluster::{Cluster, Probe};
pub use cordon::{CORDON_BEFORE, CORDON_OWNER, Cordoned, Uncordoned};
pub use error::KubeError;
pub use evict::Eviction;
pub use kubeconfig::KubeconfigError;
pub use kubelet::{Kubelet, PodUsage};
pub use namespace::{Kept, NamespaceWatch};
pub use node::{NodeMeta, Taint};
pub use observe::{Load, NodeObservation, Resources, Usage};
pub use own_node::{NodeWatch, OwnNode};
pub use stats::{ClusterWatch, Told};
pub use workload::ContainerEnd;
