//! The storage: where two writers would meet.

use std::collections::BTreeSet;

use wharf_core::volume::{backend::Backend, record::Generation};

/// One image.
pub struct Image {
    pub backend: Backend,
    /// Who comes with an older grant is not let in, where the backend can.
    epoch: Generation,
    pub formatted: bool,
    /// Who was let in, and who was shut out again, by node and grant.
    clients: BTreeSet<(usize, Generation)>,
    blocked: BTreeSet<(usize, Generation)>,
    /// The grant and the node of the last write that was taken.
    last: Option<(Generation, usize)>,
}

/// Somebody who writes.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    pub node: usize,
    pub generation: Generation,
}

impl Image {
    pub fn new(backend: Backend) -> Self {
        let (clients, blocked) = (BTreeSet::new(), BTreeSet::new());
        Self { backend, epoch: Generation(0), formatted: false, clients, blocked, last: None }
    }

    /// Whether a client is let in. It is the newest one then.
    pub fn open(&mut self, node: usize, generation: Generation) -> bool {
        if !self.backend.refuses_old_clients() {
            return true;
        }
        let may = generation >= self.epoch;
        self.epoch = self.epoch.max(generation);
        if may {
            self.clients.insert((node, generation));
        }
        may
    }

    /// Shuts out all clients of older grants, those that are in and those that come.
    pub fn fence(&mut self, generation: Generation) {
        self.epoch = self.epoch.max(generation);
        let old = self.clients.iter().filter(|(_, client)| *client < generation);
        self.blocked.extend(old.copied());
    }

    /// A block server of our own looks at the grant of every write; Ceph at its list of clients that
    /// are shut out, to which a newer client does not add the older ones.
    fn refuses(&self, writer: Writer) -> bool {
        match self.backend {
            Backend::Proxy => writer.generation < self.epoch,
            Backend::Rbd => self.blocked.contains(&(writer.node, writer.generation)),
            Backend::Loopfile | Backend::Dir => false,
        }
    }

    /// Takes a write, or refuses it. An error is the accident that must not happen.
    pub fn write(&mut self, writer: Writer) -> Result<bool, String> {
        let Writer { node, generation } = writer;
        if self.refuses(writer) {
            return Ok(false);
        }
        if let Some((newest, by)) = self.last
            && (generation < newest || (generation == newest && node != by))
        {
            return Err(format!(
                "node {node} wrote by grant {generation} after node {by} wrote by grant {newest}"
            ));
        }
        self.last = Some((generation, node));
        Ok(true)
    }
}
