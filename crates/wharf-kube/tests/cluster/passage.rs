//! A way to the API server that tests can block.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A way to the API server that can be frozen while connections through it are open.
pub struct Passage {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    frozen: AtomicBool,
    /// Milliseconds that each piece takes longer.
    slow: AtomicU64,
    swallowed: AtomicUsize,
}

impl Passage {
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", target)).unwrap();
                let ends = [(&client, &server), (&server, &client)];
                for (from, to) in
                    ends.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    let state = shared.clone();
                    std::thread::spawn(move || copy(from, to, &state));
                }
            }
        });
        Self { port, state }
    }

    /// So many pieces of requests and answers have got lost in it.
    pub fn swallowed(&self) -> usize {
        self.state.swallowed.load(Ordering::SeqCst)
    }

    pub fn freeze(&self, frozen: bool) {
        self.state.frozen.store(frozen, Ordering::SeqCst);
    }

    /// From now on each piece of a request or an answer takes so much longer.
    pub fn slow_down(&self, by: Duration) {
        self.state.slow.store(by.as_millis() as u64, Ordering::SeqCst);
    }
}

/// Copies until an end closes; what comes when it is frozen is swallowed.
fn copy(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(state.slow.load(Ordering::SeqCst)));
        if state.frozen.load(Ordering::SeqCst) {
            state.swallowed.fetch_add(1, Ordering::SeqCst);
        } else if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
