//! What all resources have in common.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Paths to the resource itself and its neighbours: `self`, `collection`, `update`, `remove`, and
/// one for each child collection.
pub type Links = BTreeMap<String, String>;

/// The head of every resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub id: String,
    /// The kind: `cluster`, `user`.
    #[serde(rename = "type")]
    pub type_: String,
    #[schema(value_type = BTreeMap<String, String>)]
    pub links: Links,
    #[schema(value_type = String, format = DateTime)]
    pub creation_timestamp: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub deletion_timestamp: Option<Timestamp>,
}

/// A list of resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Collection<T> {
    /// Always `collection`.
    #[serde(rename = "type")]
    pub type_: String,
    pub resource_type: String,
    /// `self`, and `next` when there is more.
    #[schema(value_type = BTreeMap<String, String>)]
    pub links: Links,
    pub data: Vec<T>,
}

impl<T> Collection<T> {
    pub fn new(resource_type: &str, path: &str, data: Vec<T>) -> Self {
        Self {
            type_: "collection".to_owned(),
            resource_type: resource_type.to_owned(),
            links: Links::from([("self".to_owned(), path.to_owned())]),
            data,
        }
    }
}
