//! Objects that were applied once and that somebody has deleted since.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::api::ListParams;
use serde::Deserialize;

use super::{Applied, Kinds, Object, confined};
use crate::{cluster::Cluster, error::Result};

/// Kinds whose objects end, by group: one that is gone was done, or had to leave its node.
const PASSING: [(&str, &str); 2] = [("", "Pod"), ("batch", "Job")];

/// What a look has found so far: the names of a kind are asked for once, whoever needs them.
#[derive(Default)]
pub struct Seen {
    kinds: Kinds,
    /// By the path of their kind.
    names: BTreeMap<String, BTreeSet<String>>,
}

/// Objects that are not in the cluster.
#[derive(Debug)]
pub struct Missing(Vec<Object>);

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Cluster {
    /// Which objects of what [`Self::apply_in`] applied are gone. Pods and Jobs are passed over, because
    /// they end without anybody deleting them.
    ///
    /// # Errors
    /// A document that is none, or whose kind the API server does not have any more.
    pub async fn missing_in(
        &self,
        namespace: &str,
        manifests: &str,
        seen: &mut Seen,
    ) -> Result<Missing> {
        let mut missing = Vec::new();
        for object in confined(namespace, manifests)? {
            if !object.is_passing() && !self.has(&object, seen).await? {
                missing.push(object);
            }
        }
        Ok(Missing(missing))
    }

    /// Applies them again.
    ///
    /// # Errors
    /// As of [`Self::apply_in`].
    pub async fn restore(&self, missing: Missing, within: Duration) -> Result<Applied> {
        self.apply_all(missing.0, within).await
    }

    async fn has(&self, object: &Object, seen: &mut Seen) -> Result<bool> {
        let group = &object.api_version;
        if !seen.kinds.0.contains_key(group) {
            self.learn(group, &mut seen.kinds).await?;
        }
        let place = object.place(seen.kinds.find(group, &object.kind))?;
        if let Some(names) = seen.names.get(&place) {
            return Ok(names.contains(&object.name));
        }
        let names = self.names(&place).await?;
        let found = names.contains(&object.name);
        seen.names.insert(place, names);
        Ok(found)
    }

    /// The names of all objects of a kind. Their content, which may be large, is not sent.
    async fn names(&self, place: &str) -> Result<BTreeSet<String>> {
        #[derive(Deserialize)]
        struct Named {
            metadata: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            name: String,
        }
        let mut names = BTreeSet::new();
        self.list_each_metadata(place, ListParams::default(), |object: Named| {
            names.insert(object.metadata.name);
        })
        .await?;
        Ok(names)
    }
}

impl Object {
    fn is_passing(&self) -> bool {
        let group = self.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        PASSING.contains(&(group, &self.kind))
    }
}
