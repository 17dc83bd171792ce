//! Cordons with an owner.
//!
//! The owner and the state before stand on the Node itself, so that a crash forgets nothing and
//! nobody lifts a cordon that is not his. A person's cordon carries no such mark: it is found
//! as the state before, and left behind.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use wharf_core::drain::Cordon;

use crate::{cluster::Cluster, error::Result, node::Node};

/// The annotation that names who cordoned.
pub const CORDON_OWNER: &str = "wharf.dev/cordoned-by";
/// The annotation that says whether the node was unschedulable before: `true` or `false`.
pub const CORDON_BEFORE: &str = "wharf.dev/cordoned-before";

/// Short, since a person may wait; conflicts with kubelet's writes pass at once.
const PERSIST: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cordoned {
    /// It is ours now, or was already.
    Ours,
    /// Another owner holds it; nothing was changed.
    OwnedBy(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncordoned {
    /// Schedulable again.
    Schedulable,
    /// Our mark is gone; the node is as unschedulable as it was before us.
    StillCordoned,
    /// There was no cordon of this owner; nothing was changed.
    NotOurs,
}

impl Cluster {
    /// Makes a node unschedulable in the name of an owner.
    ///
    /// # Errors
    /// There is no such Node, or the API server does not answer or refuses.
    pub async fn cordon(&self, name: &str, owner: &str) -> Result<Cordoned> {
        self.persist(PERSIST, || async {
            let node = self.node(name).await?;
            let unschedulable = is_unschedulable(&node);
            let before = match mark(&node) {
                Some(mark) if mark.owner != owner => return Ok(Cordoned::OwnedBy(mark.owner)),
                Some(_) if unschedulable => return Ok(Cordoned::Ours),
                Some(mark) => mark.before,
                None => unschedulable,
            };
            let annotations = json!({ CORDON_OWNER: owner, CORDON_BEFORE: before.to_string() });
            let patch = json!({
                "metadata": { "annotations": annotations },
                "spec": { "unschedulable": true },
            });
            self.patch_node(name, &node, patch).await?;
            Ok(Cordoned::Ours)
        })
        .await
    }

    /// Takes an owner's cordon back. A node that was cordoned before stays so.
    ///
    /// # Errors
    /// The API server does not answer or refuses. A Node that is gone is no error.
    pub async fn uncordon(&self, name: &str, owner: &str) -> Result<Uncordoned> {
        self.persist(PERSIST, || async {
            let node = match self.node(name).await {
                Err(error) if error.is_not_found() => return Ok(Uncordoned::NotOurs),
                node => node?,
            };
            let Some(mark) = mark(&node).filter(|mark| mark.owner == owner) else {
                return Ok(Uncordoned::NotOurs);
            };
            let mut patch = without_mark();
            if !mark.before {
                merge(&mut patch, "spec", json!({ "unschedulable": Value::Null }));
            }
            self.patch_node(name, &node, patch).await?;
            let stays = mark.before && is_unschedulable(&node);
            Ok(if stays { Uncordoned::StillCordoned } else { Uncordoned::Schedulable })
        })
        .await
    }

    /// Cordons in the name of a person: without a mark. Where one of us has cordoned, that is noted
    /// as the state before, so that the node stays cordoned when we take ours back.
    ///
    /// # Errors
    /// There is no such Node, or the API server does not answer or refuses.
    pub async fn cordon_by_person(&self, name: &str) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = self.node(name).await?;
            let mut patch = json!({ "metadata": {}, "spec": { "unschedulable": true } });
            match mark(&node) {
                Some(mark) if !mark.before => {
                    patch = json!({
                        "metadata": { "annotations": { CORDON_BEFORE: "true" } },
                        "spec": { "unschedulable": true },
                    });
                }
                Some(_) | None if is_unschedulable(&node) => return Ok(()),
                Some(_) | None => {}
            }
            self.patch_node(name, &node, patch).await
        })
        .await
    }

    /// Makes a node schedulable in the name of a person, whoever cordoned it. A drain of ours that
    /// is under way there takes this as an order to stop.
    ///
    /// # Errors
    /// There is no such Node, or the API server does not answer or refuses.
    pub async fn uncordon_by_person(&self, name: &str) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = self.node(name).await?;
            if mark(&node).is_none() && !is_unschedulable(&node) {
                return Ok(());
            }
            let mut patch = without_mark();
            merge(&mut patch, "spec", json!({ "unschedulable": Value::Null }));
            self.patch_node(name, &node, patch).await
        })
        .await
    }

    /// Gives an owner's cordon to the person who asked for it: the mark goes, the node stays
    /// unschedulable.
    ///
    /// # Errors
    /// The API server does not answer or refuses. A Node that is gone is no error.
    pub async fn keep_cordon(&self, name: &str, owner: &str) -> Result<()> {
        self.persist(PERSIST, || async {
            let node = match self.node(name).await {
                Err(error) if error.is_not_found() => return Ok(()),
                node => node?,
            };
            if mark(&node).is_none_or(|mark| mark.owner != owner) {
                return Ok(());
            }
            self.patch_node(name, &node, without_mark()).await
        })
        .await
    }
}

fn without_mark() -> Value {
    json!({ "metadata": { "annotations": { CORDON_OWNER: null, CORDON_BEFORE: null } } })
}

fn merge(patch: &mut Value, key: &str, value: Value) {
    if let Some(patch) = patch.as_object_mut() {
        patch.insert(key.to_owned(), value);
    }
}

fn is_unschedulable(node: &Node) -> bool {
    node.spec.unschedulable.unwrap_or_default()
}

fn mark(node: &Node) -> Option<Cordon> {
    mark_in(node.metadata.annotations.as_ref()?)
}

/// The mark of the owner, if the annotations of a node carry one.
pub(crate) fn mark_in(annotations: &BTreeMap<String, String>) -> Option<Cordon> {
    let owner = annotations.get(CORDON_OWNER)?.clone();
    let before = annotations.get(CORDON_BEFORE).is_some_and(|before| before == "true");
    Some(Cordon { owner, before })
}
