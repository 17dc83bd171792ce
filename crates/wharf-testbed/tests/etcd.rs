//! A real etcd process.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;

use wharf_testbed::etcd::Etcd;

fn ask(etcd: &Etcd, path: &str, body: &str) -> String {
    let endpoint = etcd.endpoint();
    let mut stream = TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).unwrap();
    let length = body.len();
    let request = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_was_written_is_there_after_a_kill_and_a_stop() {
    let mut etcd = Etcd::start().unwrap();
    let endpoint = etcd.endpoint();
    let written = ask(&etcd, "/v3/kv/put", r#"{"key":"aGVsbG8=","value":"d29ybGQ="}"#);
    assert!(written.contains("revision"), "{written}");
    for stop in [Etcd::kill, Etcd::stop] {
        stop(&mut etcd).unwrap();
        assert!(TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).is_err());
        etcd.restart().unwrap();
        assert_eq!(etcd.endpoint(), endpoint);
        let read = ask(&etcd, "/v3/kv/range", r#"{"key":"aGVsbG8="}"#);
        assert!(read.contains(r#""value":"d29ybGQ=""#), "{read}");
    }
    let data = etcd.data_dir().to_owned();
    assert!(data.join("member").is_dir());
    drop(etcd);
    assert!(!data.exists());
}
