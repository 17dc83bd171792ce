use wharf_core::node::logs::Line;

use super::*;
use crate::logs::tail::Source;

fn entries(numbers: std::ops::Range<u64>) -> Arc<Vec<Entry>> {
    let source = Source { app: "a".to_owned(), pod_uid: "p".to_owned(), container: "c".to_owned() };
    let source = Arc::new(source);
    let entry = |number| Entry {
        source: source.clone(),
        line: Line {
            number,
            time: "2026-01-02T03:04:05.000000006Z".parse().unwrap(),
            text: format!("\"{number}\"\n"),
        },
    };
    Arc::new(numbers.map(entry).collect())
}

fn numbers(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let number = |line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["line"].as_u64().unwrap()
    };
    text.lines().map(number).collect()
}

#[tokio::test]
async fn a_line_is_one_json_object_for_its_owner_and_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/apps.log");
    FileSink::new(&path).deliver(entries(1..2)).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "{\"appuuid\":\"a\",\"containername\":\"c\",\
         \"eventtime\":\"2026-01-02T03:04:05.000000006Z\",\"msg\":\"\\\"1\\\"\\n\",\
         \"poduid\":\"p\",\"line\":1}\n"
    );
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777 & !0o640, 0);
}

#[tokio::test]
async fn lines_that_are_there_are_not_written_again_and_half_a_line_is_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("apps.log");
    FileSink::new(&path).deliver(entries(1..4)).await.unwrap();
    FileSink::new(&path).deliver(entries(2..5)).await.unwrap();
    assert_eq!(numbers(&path), [1, 2, 3, 4]);
    let length = std::fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 5).unwrap();
    FileSink::new(&path).deliver(entries(3..6)).await.unwrap();
    assert_eq!(numbers(&path), [1, 2, 3, 4, 5]);
    // Words of somebody else stay.
    std::fs::write(&path, "who wrote this").unwrap();
    FileSink::new(&path).deliver(entries(6..7)).await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("who wrote this\n{\"appuuid\""), "{text}");
}

#[tokio::test]
async fn a_file_that_is_moved_away_or_cut_off_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("apps.log"), dir.path().join("apps.log.1"));
    let mut sink = FileSink::new(&path);
    sink.deliver(entries(1..3)).await.unwrap();
    std::fs::rename(&path, &moved).unwrap();
    sink.deliver(entries(3..4)).await.unwrap();
    assert_eq!((numbers(&moved), numbers(&path)), (vec![1, 2], vec![3]));
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    sink.deliver(entries(4..5)).await.unwrap();
    assert_eq!(numbers(&path), [4]);
    // Killed before it was noted, and moved before it was started again.
    std::fs::rename(&path, &moved).unwrap();
    FileSink::new(&path).deliver(entries(4..6)).await.unwrap();
    assert_eq!((numbers(&moved), numbers(&path)), (vec![4], vec![5]));
}

#[tokio::test]
async fn what_cannot_be_written_to_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path(), Path::new("/dev/full"), Path::new("/proc/self/new/apps.log")] {
        let error = FileSink::new(path).deliver(entries(1..2)).await.unwrap_err();
        assert!(matches!(error, SinkError::File(_)), "{error:?}");
    }
}
