//! Wishes for reboots, shutdowns and updates, from whoever may have them: the link, which writes
//! what the server wants, and the command line on the node itself.
//!
//! A local wish is a file of its own on the disk, named by its id. The agent removes it when its job
//! is over, so that it needs nobody else to remember it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use wharf_api::node_files::{self, Junk, NodeFile, NodeWish};
use wharf_core::node::requester::{Journal, Power};

use crate::{files::Subscription, health::AGENT, host, tasks::Context};

/// In whose name the command line writes.
const LOCAL: &str = "wharf-local";
/// It is as good as the right to reboot the node.
const MODE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
pub enum WishError {
    #[error("cannot make an id for the wish")]
    Id(#[source] io::Error),
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the wish cannot be written down")]
    Value(#[from] Junk),
}

/// Hands a wish to the agent of this machine, under a new id. It is on the disk when this returns.
///
/// # Errors
/// It could not be written.
pub fn hand_over(persist_dir: &Path, wish: NodeWish) -> Result<NodeWish, WishError> {
    let folder = persist_dir.join("status").join(LOCAL).join(NodeWish::TYPE);
    let id = next_id(&folder, Timestamp::now()).map_err(WishError::Id)?;
    let path = folder.join(format!("{id}.json"));
    let wish = NodeWish { id, ..wish };
    let text = node_files::write(&wish)?;
    std::fs::create_dir_all(&folder)
        .and_then(|()| host::files::write_durably(&path, MODE, &text))
        .map_err(|source| WishError::Write { path, source })?;
    Ok(wish)
}

/// The wishes that the agent of this machine was handed and has not removed; those that cannot be read
/// are left out.
pub fn handed_over(persist_dir: &Path) -> Vec<NodeWish> {
    let folder = persist_dir.join("status").join(LOCAL).join(NodeWish::TYPE);
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = files.filter_map(|entry| std::fs::read(entry.path()).ok());
    texts.filter_map(|text| node_files::read(&text).ok()).collect()
}

/// The latest wish counts: its id comes after all that are there, also when the clock was set back.
fn next_id(folder: &Path, now: Timestamp) -> io::Result<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let known = names.filter_map(|entry| millis_of(entry.file_name().to_str()?));
    let after = known.max().map_or(0, |last| last.saturating_add(1));
    new_id(u64::try_from(now.as_millisecond()).unwrap_or_default().max(after))
}

/// A UUID of the seventh version: later ones come after earlier ones.
fn new_id(millis: u64) -> io::Result<String> {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let random = random.trim().get(15..).unwrap_or_default();
    Ok(format!("{:08x}-{:04x}-7{random}", millis >> 16 & 0xffff_ffff, millis & 0xffff))
}

/// The time in such an id.
fn millis_of(id: &str) -> Option<u64> {
    let (high, low) = (id.get(..8)?, id.get(9..13)?);
    let digits = |text| u64::from_str_radix(text, 16).ok();
    Some(digits(high)? << 16 | digits(low)?).filter(|_| id.get(13..15) == Some("-7"))
}

/// All wishes that there are.
pub struct Wishes {
    sent: Subscription<NodeWish>,
    local: Subscription<NodeWish>,
    context: Context,
}

impl Wishes {
    pub fn open(context: &Context) -> Self {
        let local = context.files.persistent().watch(LOCAL);
        Self { sent: context.files.watch(AGENT), local, context: context.clone() }
    }

    /// Those of the server first, then the local ones, the latest at the end. `None` until all were
    /// read once.
    pub fn read(&self) -> Option<Vec<Arc<NodeWish>>> {
        let (sent, local) = (self.sent.current()?, self.local.current()?);
        Some(
            sent.values()
                .chain(local.values())
                .filter(|wish| !wish.id.is_empty())
                .cloned()
                .collect(),
        )
    }

    pub async fn changed(&mut self) {
        tokio::select! {
            () = self.sent.changed() => {}
            () = self.local.changed() => {}
        }
    }

    /// Removes the local wishes that are over. What cannot be removed is a fault of the files, and is
    /// tried again.
    pub fn remove_what_is_over(&self, journal: &Journal) {
        let live = |id: &str| {
            let jobs = [&journal.device_operation, &journal.update];
            jobs.into_iter().flatten().any(|job| job.id == id && !job.is_over())
        };
        let local = self.local.current().unwrap_or_default();
        for wish in local.values().filter(|wish| journal.knows(&wish.id) && !live(&wish.id)) {
            let _ = self.context.files.persistent().unpublish::<NodeWish>(LOCAL, &wish.id);
        }
    }
}

/// What kind of device operation a wish is for, if it is one.
pub fn power(kind: &str) -> Option<Power> {
    match kind {
        "reboot" => Some(Power::Reboot),
        "shutdown" => Some(Power::Shutdown),
        _ => None,
    }
}

/// In which boot of this node a wish was taken over, as far as whoever wishes knows.
pub fn taken_in(wish: &NodeWish) -> Option<String> {
    Some(wish.taken_in.clone()).filter(|boot_id| !boot_id.is_empty())
}

/// The kind of a wish for an update.
pub const UPDATE_KIND: &str = "update";

#[cfg(test)]
mod tests {
    use wharf_api::node_files::Uuid;

    use super::*;

    #[test]
    fn ids_are_uuids_in_the_order_of_their_times() {
        let at = |millis| new_id(millis).unwrap();
        let (first, second) = (at(1_800_000_000_000), at(1_800_000_000_001));
        assert!(first < second, "{first} {second}");
        assert_ne!(at(1_800_000_000_000), first);
        assert_eq!(millis_of(&first), Some(1_800_000_000_000));
        assert_eq!(millis_of("0b1a2c3d-4e5f-4071-8293-a4b5c6d7e8f9"), None);
        assert!(first.parse::<Uuid>().is_ok(), "{first}");
        assert_eq!(first.as_bytes()[14], b'7');
    }

    #[test]
    fn a_later_wish_comes_after_an_earlier_one_also_when_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let at = |second| {
            let id = next_id(dir.path(), Timestamp::from_second(second).unwrap()).unwrap();
            std::fs::write(dir.path().join(format!("{id}.json")), "").unwrap();
            id
        };
        let ids = [at(1_800_000_000), at(1_700_000_000), at(0), at(1_900_000_000)];
        assert!(ids.is_sorted(), "{ids:?}");
    }

    #[test]
    fn a_wish_is_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let wish = NodeWish { kind: "reboot".to_owned(), ..NodeWish::default() };
        let wish = hand_over(dir.path(), wish).unwrap();
        let path = format!("status/wharf-local/NodeWish/{}.json", wish.id);
        let text = std::fs::read(dir.path().join(path)).unwrap();
        assert_eq!(node_files::read::<NodeWish>(&text).unwrap(), wish);
        std::fs::write(dir.path().join("status/wharf-local/NodeWish/x.json"), "{").unwrap();
        assert_eq!(handed_over(dir.path()), [wish]);
        assert_eq!(handed_over(&dir.path().join("elsewhere")), []);
    }
}
