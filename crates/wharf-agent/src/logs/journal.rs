//! Lines to the journal of systemd, by its own protocol: one message each.

use std::{io, path::PathBuf, time::Duration};

use tokio::{net::UnixDatagram, time::timeout};

use super::{reader::Entry, sink::SinkError};

const SOCKET: &str = "/run/systemd/journal/socket";
/// For all lines that are handed on at once.
const DEADLINE: Duration = Duration::from_secs(10);

pub struct JournalSink {
    socket: PathBuf,
    /// So many of the lines that are to be handed on again were taken before an error.
    taken: usize,
}

impl Default for JournalSink {
    fn default() -> Self {
        Self { socket: SOCKET.into(), taken: 0 }
    }
}

impl JournalSink {
    pub async fn deliver(&mut self, entries: &[Entry]) -> Result<(), SinkError> {
        match timeout(DEADLINE, self.send(entries)).await {
            Ok(Ok(())) => {
                self.taken = 0;
                Ok(())
            }
            Ok(Err(source)) => Err(SinkError::Journal { path: self.socket.clone(), source }),
            Err(_) => Err(SinkError::Silent { seconds: DEADLINE.as_secs() }),
        }
    }

    async fn send(&mut self, entries: &[Entry]) -> io::Result<()> {
        // Connected, so that a queue that is full is waited for.
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.socket)?;
        for entry in entries.iter().skip(self.taken) {
            socket.send(&message(entry)).await?;
            self.taken += 1;
        }
        Ok(())
    }
}

fn message(entry: &Entry) -> Vec<u8> {
    let (source, line) = (&entry.source, &entry.line);
    // A text may have ends of lines in it, so its length is told.
    let mut message = b"MESSAGE\n".to_vec();
    message.extend_from_slice(&(line.text.len() as u64).to_le_bytes());
    message.extend_from_slice(line.text.as_bytes());
    let (app, pod, container) = (&source.app, &source.pod_uid, &source.container);
    let fields = format!(
        "\nPRIORITY=6\nSYSLOG_IDENTIFIER={container}\nAPPUUID={app}\nCONTAINERNAME={container}\n\
         EVENTTIME={}\nPODUID={pod}\nLINE={}\n",
        line.time, line.number
    );
    message.extend_from_slice(fields.as_bytes());
    message
}

#[cfg(test)]
mod tests;
