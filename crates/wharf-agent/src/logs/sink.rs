//! Where lines are handed on to.

use std::{path::PathBuf, sync::Arc};

use wharf_api::log_line::LogLine;

use super::{file::FileSink, http::HttpSink, journal::JournalSink, reader::Entry};
use crate::{config::Logs, web::HttpError};

#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("lines cannot be written to it")]
    File(#[source] std::io::Error),
    #[error("{} does not take them", path.display())]
    Journal {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("lines cannot be sent to it")]
    Http(#[from] HttpError),
    #[error("it has not taken them within {seconds} s")]
    Silent { seconds: u64 },
}

pub enum Sink {
    File(FileSink),
    Journal(JournalSink),
    Http(HttpSink),
}

impl Sink {
    /// Those that are configured.
    pub fn all(config: &Logs) -> Vec<Self> {
        let file = config.file.as_ref().map(|path| Self::File(FileSink::new(path)));
        let journal = config.journal.then(|| Self::Journal(JournalSink::default()));
        let http = config.url.as_ref().map(|url| Self::Http(HttpSink::new(url)));
        [file, journal, http].into_iter().flatten().collect()
    }

    /// As its cursors are stored.
    pub fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Journal(_) => "journal",
            Self::Http(_) => "url",
        }
    }

    /// As a person knows it.
    pub fn subject(&self) -> String {
        match self {
            Self::File(sink) => sink.path().display().to_string(),
            Self::Journal(_) => "the journal".to_owned(),
            Self::Http(sink) => sink.url().to_owned(),
        }
    }

    /// Hands lines on, all of them in their order. After an error the same lines are to be handed on
    /// again.
    pub async fn deliver(&mut self, entries: &Arc<Vec<Entry>>) -> Result<(), SinkError> {
        match self {
            Self::File(sink) => sink.deliver(entries.clone()).await,
            Self::Journal(sink) => sink.deliver(entries).await,
            Self::Http(sink) => sink.deliver(entries).await,
        }
    }
}

/// The line as everybody gets it, with an end.
pub fn render(entry: &Entry, text: &mut Vec<u8>) {
    let line = LogLine {
        appuuid: &entry.source.app,
        containername: &entry.source.container,
        eventtime: entry.line.time,
        msg: &entry.line.text,
        poduid: &entry.source.pod_uid,
        line: entry.line.number,
    };
    // Texts and numbers can always be written to memory.
    let _ = serde_json::to_writer(&mut *text, &line);
    text.push(b'\n');
}
