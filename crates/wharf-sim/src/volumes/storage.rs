//! The storage: where two writers would meet.

use wharf_core::volume::{backend::Backend, record::Generation};

/// One image.
pub struct Image {
    pub backend: Backend,
    /// Clients below it are refused, where the backend can.
    pub epoch: Generation,
    pub formatted: bool,
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
        Self { backend, epoch: Generation(0), formatted: false, last: None }
    }

    /// Whether a client of this generation is let in. The newest one shuts the others out.
    pub fn open(&mut self, generation: Generation) -> bool {
        if !self.backend.refuses_old_clients() {
            return true;
        }
        let may = generation >= self.epoch;
        self.epoch = self.epoch.max(generation);
        may
    }

    pub fn fence(&mut self, generation: Generation) {
        self.epoch = self.epoch.max(generation);
    }

    /// Takes a write, or refuses it. An error is the accident that must not happen.
    pub fn write(&mut self, writer: Writer) -> Result<bool, String> {
        let Writer { node, generation } = writer;
        if self.backend.refuses_old_clients() && generation < self.epoch {
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
