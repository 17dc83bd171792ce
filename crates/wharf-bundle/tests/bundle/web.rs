//! A web server of a few lines, for one directory, on loopback.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

pub struct Web {
    pub url: String,
    pub continued: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Serves `root`; the first answer for a path that ends in `cut` breaks off in the middle.
pub fn serve(root: &Path, cut: Option<&'static str>) -> Web {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, continued) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (root, stopping, counter) = (root.to_owned(), stop.clone(), continued.clone());
    let thread = std::thread::spawn(move || {
        let mut cut = cut;
        for stream in listener.incoming() {
            if stopping.load(Ordering::SeqCst) {
                return;
            }
            // A client that goes away is its own business.
            _ = answer(stream.unwrap(), &root, &mut cut, &counter);
        }
    });
    Web { url, continued, stop, thread: Some(thread) }
}

fn answer(
    mut stream: TcpStream,
    root: &Path,
    cut: &mut Option<&'static str>,
    continued: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap()?;
    let path = request.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
    let mut from = 0;
    for line in lines.by_ref() {
        let line = line?.to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let Ok(body) = fs::read(root.join(&path)) else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    };
    let rest = &body[from..];
    let status = if from > 0 {
        continued.fetch_add(1, Ordering::SeqCst);
        format!(
            "206 Partial Content\r\nContent-Range: bytes {from}-{}/{}",
            body.len() - 1,
            body.len()
        )
    } else {
        "200 OK".to_owned()
    };
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.len());
    stream.write_all(head.as_bytes())?;
    if cut.is_some_and(|end| path.ends_with(end)) {
        *cut = None;
        return stream.write_all(&rest[..rest.len() / 2]);
    }
    stream.write_all(rest)
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for a connection.
        _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        _ = self.thread.take().unwrap().join();
    }
}
