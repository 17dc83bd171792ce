//! The REST API over HTTP: routes, who may call them, and what goes over the wire.
//!
//! Start reading at [`routes`]: one list of all routes with the role that each needs.

pub mod agent;
pub mod answer;
pub mod apps;
pub mod audit;
pub mod clusters;
pub mod convert;
pub mod docs;
pub mod drains;
pub mod events;
pub mod extract;
pub mod health;
pub mod kubeconfigs;
pub mod layers;
pub mod listener;
pub mod members;
pub mod nodes;
pub mod operations;
pub mod repairs;
pub mod routes;
pub mod session;
pub mod tls;
pub mod tokens;
pub mod users;
pub mod volumes;
pub mod zkelog;
