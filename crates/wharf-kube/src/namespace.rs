//! All objects of a kind in a namespace, followed, with only what is needed kept of each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{BoxStream, unfold},
};
use serde::Deserialize;

use crate::{
    cluster::Cluster,
    error::Result,
    watch::{Change, Follow, Followed},
};

/// A connection that died without a word is noticed by then, or a little later.
const WATCH: Duration = Duration::from_secs(60);

/// What is kept, by the objects' names.
pub type Kept<K> = Arc<BTreeMap<String, Arc<K>>>;

/// An object that has a name.
pub(crate) trait Named: Followed {
    fn name(&self) -> &str;
}

/// The metadata that following needs.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectMeta {
    pub name: String,
    pub resource_version: String,
}

/// Nothing is asked before the first [`NamespaceWatch::next`].
pub struct NamespaceWatch<K> {
    kept: BoxStream<'static, Result<Kept<K>>>,
}

impl<K: PartialEq + Send + Sync + 'static> NamespaceWatch<K> {
    /// Follows `path` and keeps what `keep` makes of each object.
    pub(crate) fn new<O: Named>(cluster: &Cluster, path: &str, keep: fn(O) -> K) -> Self {
        let follow = Follow::new(cluster.clone(), path, None, WATCH);
        let known: Option<Kept<K>> = None;
        let kept = unfold((follow, known), move |(mut follow, mut known)| async move {
            loop {
                match follow.next().await {
                    Ok(change) => take(&mut known, change, keep),
                    Err(error) => return Some((Err(error), (follow, known))),
                }
                // Changes come only after all of them.
                if let Some(known) = known.clone() {
                    return Some((Ok(known.clone()), (follow, Some(known))));
                }
            }
        });
        Self { kept: kept.boxed() }
    }

    /// Waits for the next word of the cluster; it may say nothing new, and then it is the very same
    /// value. May be dropped and called again.
    ///
    /// # Errors
    /// The API server does not answer or refuses; the watch goes on with the next call.
    pub async fn next(&mut self) -> Result<Kept<K>> {
        match self.kept.next().await {
            Some(kept) => kept,
            // It never ends.
            None => std::future::pending().await,
        }
    }
}

fn take<O: Named, K: PartialEq>(known: &mut Option<Kept<K>>, change: Change<O>, keep: fn(O) -> K) {
    let named = |object: O| (object.name().to_owned(), keep(object));
    match (change, known) {
        (Change::All(objects), known) => {
            let all = objects.into_iter().map(named);
            let all = all.map(|(name, kept)| (name, Arc::new(kept))).collect();
            // What is the same stays the same: nobody has to look at it again.
            if known.as_deref() != Some(&all) {
                *known = Some(Arc::new(all));
            }
        }
        (Change::Is(object), Some(known)) => {
            let (name, kept) = named(object);
            // Most changes are about what is not kept.
            if known.get(&name).is_none_or(|before| **before != kept) {
                Arc::make_mut(known).insert(name, Arc::new(kept));
            }
        }
        (Change::Gone(object), Some(known)) => {
            if known.contains_key(object.name()) {
                Arc::make_mut(known).remove(object.name());
            }
        }
        (Change::Is(_) | Change::Gone(_), None) | (Change::Again, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Deserialize)]
    struct Object {
        name: String,
        size: u32,
    }

    impl Followed for Object {
        fn version(&self) -> &str {
            ""
        }
    }

    impl Named for Object {
        fn name(&self) -> &str {
            &self.name
        }
    }

    #[test]
    fn what_says_nothing_new_is_the_very_same_value() {
        let object = |name: &str, size| Object { name: name.to_owned(), size };
        let size = |object: Object| object.size / 10;
        let mut known = None;
        take(&mut known, Change::Is(object("a", 10)), size);
        assert_eq!(known, None, "changes count only after all of them");
        take(&mut known, Change::All(vec![object("a", 10), object("b", 20)]), size);
        let first = known.clone().unwrap();
        let same = [
            Change::All(vec![object("b", 21), object("a", 11)]),
            Change::Is(object("a", 12)),
            Change::Gone(object("c", 10)),
            Change::Again,
        ];
        for change in same {
            take(&mut known, change, size);
            assert!(Arc::ptr_eq(&first, known.as_ref().unwrap()));
        }
        take(&mut known, Change::Is(object("a", 30)), size);
        take(&mut known, Change::Gone(object("b", 20)), size);
        let now: Vec<(String, u32)> =
            known.unwrap().iter().map(|(name, size)| (name.clone(), **size)).collect();
        assert_eq!(now, [("a".to_owned(), 3)]);
        assert_eq!(first.len(), 2, "who holds an older value keeps it");
    }
}
