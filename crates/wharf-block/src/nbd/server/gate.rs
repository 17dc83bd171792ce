//! Who is in an image, and who may come in.
//!
//! The order is what makes two writers impossible: the epoch is on disk, then those who have to go are
//! cut, then their last requests have ended, and only then the newcomer is let in. A client that was
//! merely paused finds its connection cut and its generation refused when it goes on.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    net::{Shutdown, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{self, AtomicBool},
    },
    time::{Duration, Instant},
};

use super::store::{Image, read_epoch, write_epoch};
use crate::nbd::{
    ImageName,
    control::{Code, Failure},
};

/// How long a newcomer waits for the last requests of others. They are writes and flushes on the
/// server's own disk.
const HANDOVER: Duration = Duration::from_secs(20);

/// Sixteen connections of a writer twice, while one worker follows another, and some readers.
const MAX_MEMBERS: usize = 64;

/// What a client may do, and which others it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    Writer {
        session: String,
        slot: u32,
    },
    /// One of ours: its generation counts as a grant.
    Reader,
    /// Any client of the protocol. It may look, but a typing error in its generation must not shut
    /// the others out.
    Guest,
}

#[derive(Debug)]
pub(super) struct Gate {
    epoch_file: PathBuf,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug)]
struct State {
    epoch: u64,
    /// The image is deleted.
    closed: bool,
    next: u64,
    members: BTreeMap<u64, Arc<Member>>,
}

#[derive(Debug)]
struct Member {
    generation: u64,
    role: Role,
    socket: TcpStream,
    cut: AtomicBool,
}

impl Member {
    fn cut(&self) {
        self.cut.store(true, atomic::Ordering::Release);
        // A connection that is closed already needs no shutdown.
        let _closed = self.socket.shutdown(Shutdown::Both);
    }

    /// Whether this member has to go before one of that generation and role comes in.
    fn gives_way_to(&self, generation: u64, role: &Role) -> bool {
        match self.generation.cmp(&generation) {
            // It came while the other still waited, who is refused when he goes on.
            Ordering::Greater => return false,
            Ordering::Less if *role != Role::Guest => return true,
            _ => {}
        }
        match (&self.role, role) {
            (
                Role::Writer { session: mine, slot: my_slot },
                Role::Writer { session: theirs, slot: their_slot },
            ) => mine != theirs || my_slot == their_slot,
            _ => false,
        }
    }
}

/// A place in an image; given back when it is dropped, which has to be after the last request.
#[derive(Debug)]
pub(super) struct Admission {
    pub image: Arc<Image>,
    id: u64,
    member: Arc<Member>,
}

impl Admission {
    pub fn is_cut(&self) -> bool {
        self.member.cut.load(atomic::Ordering::Acquire)
    }

    pub fn may_write(&self) -> bool {
        matches!(self.member.role, Role::Writer { .. })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.image.gate.lock().members.remove(&self.id);
        self.image.gate.left.notify_all();
    }
}

impl Gate {
    pub fn load(epoch_file: PathBuf) -> Result<Self, Failure> {
        let epoch =
            read_epoch(&epoch_file).map_err(|e| Failure::disk("reading the image's epoch", &e))?;
        let state = State { epoch, closed: false, next: 0, members: BTreeMap::new() };
        Ok(Self { epoch_file, state: Mutex::new(state), left: Condvar::new() })
    }

    pub fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    pub fn members(&self) -> usize {
        self.lock().members.len()
    }

    /// Shuts out everybody below the generation.
    pub fn fence(&self, name: &ImageName, generation: u64) -> Result<(), Failure> {
        let mut state = self.lock();
        if generation > state.epoch {
            self.raise(&mut state, generation)?;
        }
        self.wait_until_gone(state, name, |member| member.generation < generation).map(|_| ())
    }

    /// Shuts out everybody who was ever let in, for good: also from an image that is made later under
    /// the same name. Whoever does not leave in time keeps the image from being closed.
    pub fn close(&self, name: &ImageName, generation: u64) -> Result<(), Failure> {
        let mut state = self.lock();
        if generation < state.epoch {
            return Err(Failure::fenced(name, generation, state.epoch));
        }
        let beyond_all = generation.max(state.epoch.saturating_add(1));
        self.raise(&mut state, beyond_all)?;
        let mut state = self.wait_until_gone(state, name, |_| true)?;
        state.closed = true;
        Ok(())
    }

    fn raise(&self, state: &mut State, generation: u64) -> Result<(), Failure> {
        write_epoch(&self.epoch_file, generation)
            .map_err(|e| Failure::disk("writing the image's epoch", &e))?;
        state.epoch = generation;
        Ok(())
    }

    /// Cuts those who have to go and waits until they have.
    fn wait_until_gone<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        name: &ImageName,
        must_go: impl Fn(&Member) -> bool,
    ) -> Result<MutexGuard<'a, State>, Failure> {
        let deadline = Instant::now() + HANDOVER;
        loop {
            let leaving = state.members.values().filter(|member| must_go(member));
            if leaving.map(|member| member.cut()).count() == 0 {
                return Ok(state);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("an older client of {name} has requests that do not end");
                return Err(Failure::new(Code::Waiting, message));
            }
            let waited = self.left.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one of this generation would be let in now.
pub(super) fn check(image: &Image, generation: u64) -> Result<(), Failure> {
    judge(&image.gate.lock(), image, generation)
}

fn judge(state: &State, image: &Image, generation: u64) -> Result<(), Failure> {
    if state.closed {
        return Err(Failure::missing(&image.name));
    }
    if generation < state.epoch {
        return Err(Failure::fenced(&image.name, generation, state.epoch));
    }
    Ok(())
}

/// Lets a client in, when everybody who has to go before it has gone.
pub(super) fn admit(
    image: &Arc<Image>,
    generation: u64,
    role: Role,
    socket: TcpStream,
) -> Result<Admission, Failure> {
    let gate = &image.gate;
    let mut state = gate.lock();
    judge(&state, image, generation)?;
    if generation > state.epoch && role != Role::Guest {
        gate.raise(&mut state, generation)?;
    }
    let must_go = |member: &Member| member.gives_way_to(generation, &role);
    state = gate.wait_until_gone(state, &image.name, must_go)?;
    // Somebody higher may have come while we waited.
    judge(&state, image, generation)?;
    if state.members.len() >= MAX_MEMBERS {
        let message = format!("{} has {MAX_MEMBERS} connections already", image.name);
        return Err(Failure::new(Code::Waiting, message));
    }
    let member = Member { generation, role, socket, cut: AtomicBool::new(false) };
    let member = Arc::new(member);
    let id = state.next;
    state.next += 1;
    state.members.insert(id, Arc::clone(&member));
    Ok(Admission { image: Arc::clone(image), id, member })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use tempfile::TempDir;

    use super::{super::store::Store, *};

    fn image(dir: &TempDir) -> Arc<Image> {
        let store = Store::open(dir.path()).unwrap();
        let name = ImageName::new("one").unwrap();
        store.create(&name, 1 << 20).unwrap();
        store.image(&name).unwrap()
    }

    fn enter(image: &Arc<Image>, generation: u64) -> Result<Admission, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let role = Role::Writer { session: format!("session-{generation}"), slot: 0 };
        admit(image, generation, role, socket)
    }

    fn wait_for_epoch(image: &Image, epoch: u64) {
        while image.gate.epoch() < epoch {
            thread::yield_now();
        }
    }

    #[test]
    fn an_image_is_there_until_the_last_of_its_clients_has_left() {
        let dir = TempDir::new().unwrap();
        let image = image(&dir);
        let member = enter(&image, 4).unwrap();
        thread::scope(|scope| {
            let close = scope.spawn(|| image.gate.close(&image.name, 4));
            wait_for_epoch(&image, 5);
            assert!(member.is_cut());
            assert_eq!(check(&image, 4).unwrap_err().code, Code::Fenced, "who was in is out");
            check(&image, 5).expect("nobody has closed it yet");
            drop(member);
            close.join().unwrap().unwrap();
        });
        assert_eq!(check(&image, 5).unwrap_err().code, Code::Missing);
    }

    #[test]
    fn one_that_still_waits_does_not_cut_a_higher_that_came_in() {
        let dir = TempDir::new().unwrap();
        let image = image(&dir);
        let enter = |generation: u64| enter(&image, generation);
        let seen = |epoch| wait_for_epoch(&image, epoch);
        // Whether the lower or the higher goes on first is up to the scheduler.
        for round in 1..=100 {
            let old = enter(3 * round).unwrap();
            thread::scope(|scope| {
                let lower = scope.spawn(|| enter(3 * round + 1).map(drop));
                seen(3 * round + 1);
                let higher = scope.spawn(|| enter(3 * round + 2));
                seen(3 * round + 2);
                drop(old);
                let higher = higher.join().unwrap().unwrap();
                assert_eq!(lower.join().unwrap().unwrap_err().code, Code::Fenced);
                assert!(!higher.is_cut(), "round {round}");
            });
        }
    }
}
