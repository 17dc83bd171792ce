//! Installing: what a host is, what it shall hold, and what is missing.
//!
//! A host's facts come from one script over SSH ([`facts`]); whether it may become a node is decided
//! from them. What it shall hold is a [`host::HostDocument`]; the agent on the host compares it
//! with what is there and does only what is missing, so a second run writes nothing.

pub mod allocate;
pub mod components;
pub mod credentials;
pub mod document;
pub mod facts;
pub mod host;
pub mod manifests;
pub mod network;
pub mod pod_agent;
pub mod preflight;
pub mod script;
