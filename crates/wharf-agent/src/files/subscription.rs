//! What the user of a followed folder sees.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::watch;

/// What is known of a folder.
#[derive(Debug)]
pub struct Known<T> {
    /// `None` until everything was looked at once: nothing may be concluded before.
    pub values: Option<Arc<BTreeMap<String, Arc<T>>>>,
    /// Files that are there and were never understood. Their absence from the values is no removal.
    pub junk: Arc<BTreeSet<String>>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { values: None, junk: Arc::default() }
    }
}

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        Self { values: self.values.clone(), junk: self.junk.clone() }
    }
}

/// The files of one type and agent, by their keys.
#[derive(Debug)]
pub struct Subscription<T> {
    receiver: watch::Receiver<Known<T>>,
}

impl<T> Clone for Subscription<T> {
    fn clone(&self) -> Self {
        Self { receiver: self.receiver.clone() }
    }
}

impl<T> Subscription<T> {
    pub(super) fn new(mut receiver: watch::Receiver<Known<T>>) -> Self {
        // What is known already is news to who asks now.
        receiver.mark_changed();
        Self { receiver }
    }

    /// All that is known now.
    pub fn known(&self) -> Known<T> {
        self.receiver.borrow().clone()
    }

    /// `None`: not everything was read once yet.
    pub fn current(&self) -> Option<Arc<BTreeMap<String, Arc<T>>>> {
        self.receiver.borrow().values.clone()
    }

    /// The file under this key now, with the same caution: the outer `None` is "not known yet", for a
    /// file that was never understood too.
    pub fn get(&self, key: &str) -> Option<Option<Arc<T>>> {
        let known = self.receiver.borrow();
        let value = known.values.as_ref()?.get(key).cloned();
        if value.is_none() && known.junk.contains(key) {
            return None;
        }
        Some(value)
    }

    /// Returns at each change since the last call. Never returns when the agent stops.
    pub async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until everything was read once.
    pub async fn complete(&mut self) -> Arc<BTreeMap<String, Arc<T>>> {
        loop {
            if let Some(values) = self.receiver.borrow_and_update().values.clone() {
                return values;
            }
            self.changed().await;
        }
    }
}
