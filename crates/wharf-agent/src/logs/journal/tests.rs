use std::sync::Arc;

use wharf_core::node::logs::Line;

use super::*;
use crate::logs::tail::Source;

fn entry(number: u64, text: &str) -> Entry {
    let (app, pod_uid, container) = ("a".to_owned(), "p".to_owned(), "c".to_owned());
    let time = "2026-01-02T03:04:05Z".parse().unwrap();
    let line = Line { number, time, text: text.to_owned() };
    Entry { source: Arc::new(Source { app, pod_uid, container }), line }
}

#[tokio::test]
async fn each_line_is_one_message_and_none_is_sent_twice_after_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut sink = JournalSink { socket: socket.clone(), taken: 0 };
    let error = sink.deliver(&[entry(1, "x")]).await.unwrap_err();
    assert!(matches!(error, SinkError::Journal { .. }), "{error:?}");

    let journal = UnixDatagram::bind(&socket).unwrap();
    // The second is longer than any message may be.
    let entries = [entry(1, "two\nlines"), entry(2, &"x".repeat(1 << 20))];
    assert!(sink.deliver(&entries).await.is_err());
    let mut buffer = vec![0; 1 << 16];
    let length = journal.recv(&mut buffer).await.unwrap();
    let expected = b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nPRIORITY=6\nSYSLOG_IDENTIFIER=c\n\
        APPUUID=a\nCONTAINERNAME=c\nEVENTTIME=2026-01-02T03:04:05Z\nPODUID=p\nLINE=1\n";
    assert_eq!(&buffer[..length], expected);

    let entries = [entry(1, "two\nlines"), entry(2, "short")];
    sink.deliver(&entries).await.unwrap();
    let length = journal.recv(&mut buffer).await.unwrap();
    assert!(String::from_utf8_lossy(&buffer[..length]).contains("short"));
    assert!(journal.try_recv(&mut buffer).is_err(), "the first is not sent again");
}
