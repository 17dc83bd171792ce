//! What makes a type a record.

use serde::{Serialize, de::DeserializeOwned};

/// A type that is stored as a record, under `<kind>/<id>`.
pub trait Kind: Serialize + DeserializeOwned {
    /// The first segment of the key and of the event's name, in the singular: `cluster`.
    const KIND: &'static str;
}
