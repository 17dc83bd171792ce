//! The worker's threads and the block server: each has a connection of its own and what it took at once
//! under way, and does not give up before the bound.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{
    Health, IMAGE, Options, Place, hold,
    state::{self, Told},
};
use crate::{
    fuse::Disk,
    nbd::{
        Export,
        client::{Connection, Control, Error, Identity, Piece},
    },
};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The server is asked at this pace whether it is there and whether we are still let in, so that both
/// are known also while nobody reads or writes.
const HEARTBEAT: Duration = Duration::from_secs(2);
const HEARTBEAT_ANSWER: Duration = Duration::from_secs(5);

/// Why a volume is given up for good.
const LOST: &str = "the block server's machine was started anew, and what was not flushed is lost";

/// One order for zeros; the kernel may ask for more at once than the protocol can say.
const ZERO_PIECE: u32 = 1 << 30;

/// What has to be known of the image before the server is reached again, by the next worker too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub size: u64,
    /// Which run of the server's machine has what we wrote and did not flush.
    pub boot: Option<String>,
}

/// What all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    place: Place,
    options: Options,
    session: String,
    told: Told,
    /// Whether the server has ever let this worker in.
    joined: AtomicBool,
    size: AtomicU64,
    kept: Mutex<Kept>,
}

/// What is known of the image, and whether its server's machine has something of ours that is not on its
/// disk.
#[derive(Debug)]
struct Kept {
    known: Known,
    /// Counts what was written, each when it was answered.
    written: u64,
    /// So much of it was answered before a flush began that has succeeded.
    flushed: u64,
}

impl Kept {
    fn is_of(&self, boot: &str) -> bool {
        self.known.boot.as_deref() == Some(boot)
    }
}

impl Shared {
    pub fn new(
        place: &Place,
        options: Options,
        session: String,
        known: Option<Known>,
    ) -> io::Result<Self> {
        let reason = "the server was not reached yet".to_owned();
        Ok(Self {
            place: place.clone(),
            options,
            session,
            told: Told::new(place, Health::Reconnecting { reason })?,
            joined: AtomicBool::new(false),
            size: AtomicU64::new(known.as_ref().map_or(0, |known| known.size)),
            kept: Mutex::new(Kept {
                // What the worker before us has flushed is not known.
                written: u64::from(known.is_some()),
                flushed: 0,
                known: known.unwrap_or(Known { size: 0, boot: None }),
            }),
        })
    }

    fn tell(&self, health: Health) {
        let line = format!("{health:?}");
        if self.told.set(health) {
            hold::log(&self.place, &line);
        }
    }

    fn works(&self) {
        if !self.told.is_well() {
            self.tell(Health::Serving);
        }
    }

    fn lost(&self, error: &Error) {
        match self.told.get() {
            Health::Serving => self.tell(Health::Reconnecting { reason: sentence(error) }),
            Health::Reconnecting { .. } | Health::Dead { .. } | Health::Fenced { .. } => {}
        }
    }

    fn dead(&self, error: &Error) {
        self.tell(Health::Dead { reason: sentence(error), for_good: false });
    }

    fn fenced(&self, error: &Error) {
        self.tell(Health::Fenced { reason: sentence(error) });
    }

    /// Whether it makes sense to try.
    fn admits(&self) -> bool {
        self.told.is_well()
            || match self.told.get() {
                Health::Serving | Health::Reconnecting { .. } => true,
                Health::Dead { .. } | Health::Fenced { .. } => false,
            }
    }

    /// Looks whether the server's machine still has what we wrote. A flush that is under way has put
    /// nothing on the disk yet.
    fn check_boot(&self, boot: &str) -> bool {
        let mut kept = self.kept();
        if kept.is_of(boot) {
            return true;
        }
        if kept.known.boot.is_some() && kept.written > kept.flushed {
            drop(kept);
            self.lost_what_was_written();
            return false;
        }
        kept.known.boot = Some(boot.to_owned());
        self.remember(&kept.known);
        true
    }

    /// Notes a write that the server has answered in this run of its machine. Another connection may have
    /// found a later run since, which does not have it.
    fn wrote(&self, boot: &str) -> Result<(), Error> {
        let mut kept = self.kept();
        kept.written += 1;
        if kept.is_of(boot) {
            return Ok(());
        }
        drop(kept);
        self.lost_what_was_written();
        Err(Error::Protocol(LOST))
    }

    fn lost_what_was_written(&self) {
        self.tell(Health::Dead { reason: LOST.to_owned(), for_good: true });
    }

    fn resize(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        let mut kept = self.kept();
        kept.known.size = size;
        self.remember(&kept.known);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, known: &Known) {
        if let Err(error) = state::write(&self.place.file(IMAGE), known) {
            hold::log(&self.place, &format!("what is known of the image was not written: {error}"));
        }
    }

    /// Asks how the image is, again and again. Never returns.
    pub fn keep_asking(&self) -> ! {
        let mut control = None;
        let mut failing_since = None;
        loop {
            // A connection may have been ended for its age alone; then a new one answers.
            let fresh = control.is_none();
            let mut answer = self.ask(&mut control);
            if answer.is_err() && !fresh {
                control = None;
                answer = self.ask(&mut control);
            }
            match answer {
                Ok(()) => failing_since = None,
                Err(error) => {
                    control = None;
                    let since = *failing_since.get_or_insert_with(Instant::now);
                    if error.is_fenced() {
                        self.fenced(&error);
                    } else if since.elapsed() > self.options.dead_after {
                        self.dead(&error);
                    } else {
                        self.lost(&error);
                    }
                }
            }
            let well = failing_since.is_none();
            thread::sleep(if well { HEARTBEAT } else { LONGEST_PAUSE });
        }
    }

    fn ask(&self, control: &mut Option<Control>) -> Result<(), Error> {
        let control = match control {
            Some(control) => control,
            None => control.insert(Control::connect(&self.options.address, HEARTBEAT_ANSWER)?),
        };
        let info = control.epoch(&self.options.image)?;
        if info.epoch > self.options.generation {
            let failure = crate::nbd::control::Failure::fenced(
                &self.options.image,
                self.options.generation,
                info.epoch,
            );
            return Err(failure.into());
        }
        if self.size.load(Ordering::Acquire) == 0 {
            self.resize(info.size);
        }
        // The threads say it too, but there may be nothing to do for them for long.
        if self.joined.load(Ordering::Acquire) {
            self.works();
        }
        Ok(())
    }
}

fn sentence(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// One thread's way to the server.
#[derive(Debug)]
pub(super) struct Link<'a> {
    shared: &'a Shared,
    slot: u32,
    connection: Option<Connection>,
}

impl<'a> Link<'a> {
    pub fn new(shared: &'a Shared, slot: u32) -> Self {
        Self { shared, slot, connection: None }
    }

    /// Opens the connection before there is a request, and learns the size of the image.
    pub fn open(&mut self) -> Result<(), Errno> {
        self.carry_out(|_| Ok(()))
    }

    /// Has the server do it once, or more than once: all requests mean the same when they are repeated,
    /// and the server begins a repetition only after the first has ended.
    fn carry_out(
        &mut self,
        mut request: impl FnMut(&mut Connection) -> Result<(), Error>,
    ) -> Result<(), Errno> {
        let deadline = Instant::now() + self.shared.options.dead_after;
        let mut pause = FIRST_PAUSE;
        while self.shared.admits() {
            let error = match self.connected(deadline).and_then(&mut request) {
                Ok(()) => {
                    self.shared.works();
                    return Ok(());
                }
                Err(Error::Remote(code)) => {
                    self.shared.works();
                    return Err(Errno::from_raw_os_error(i32::try_from(code).unwrap_or(5)));
                }
                Err(error) => error,
            };
            self.connection = None;
            if error.is_fenced() {
                self.shared.fenced(&error);
            } else if Instant::now() >= deadline {
                self.shared.dead(&error);
            } else {
                self.shared.lost(&error);
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Err(Errno::IO)
    }

    fn connected(&mut self, deadline: Instant) -> Result<&mut Connection, Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(deadline)?,
        };
        Ok(self.connection.insert(connection))
    }

    fn connect(&self, deadline: Instant) -> Result<Connection, Error> {
        let options = &self.shared.options;
        let export = Export { image: options.image.clone(), generation: options.generation };
        let identity = Identity {
            session: self.shared.session.clone(),
            slot: self.slot,
            read_only: options.read_only,
        };
        let within = deadline.saturating_duration_since(Instant::now());
        if within.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        let connection = Connection::open(&options.address, &export, &identity, within)?;
        connection.answer_within(options.dead_after)?;
        if !self.shared.check_boot(&connection.boot) {
            return Err(Error::Protocol(LOST));
        }
        if self.shared.size.load(Ordering::Acquire) == 0 {
            self.shared.resize(connection.size);
        }
        self.shared.joined.store(true, Ordering::Release);
        Ok(connection)
    }
}

impl Disk for Link<'_> {
    fn size(&self) -> u64 {
        self.shared.size.load(Ordering::Acquire)
    }

    fn read_only(&self) -> bool {
        self.shared.options.read_only
    }

    fn read(&mut self, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), Errno> {
        self.carry_out(|connection| connection.read_each(pieces))
    }

    fn write(&mut self, pieces: &mut [Piece<&[u8]>]) -> Result<(), Errno> {
        let shared = self.shared;
        self.carry_out(|connection| {
            connection.write_each(pieces, false)?;
            shared.wrote(&connection.boot)
        })
    }

    fn flush(&mut self) -> Result<(), Errno> {
        // What is answered while we flush stays unflushed.
        let written = self.shared.kept().written;
        self.carry_out(Connection::flush)?;
        let mut kept = self.shared.kept();
        kept.flushed = kept.flushed.max(written);
        Ok(())
    }

    fn zero(&mut self, offset: u64, length: u64, keep_room: bool) -> Result<(), Errno> {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let piece = u32::try_from(end - at).unwrap_or(ZERO_PIECE).min(ZERO_PIECE);
            let shared = self.shared;
            self.carry_out(|connection| {
                connection.zero(at, piece, keep_room)?;
                shared.wrote(&connection.boot)
            })?;
            at += u64::from(piece);
        }
        Ok(())
    }

    fn grow(&mut self, size: u64) -> Result<(), Errno> {
        let Options { address, image, generation, dead_after, .. } = &self.shared.options;
        let grown = Control::connect(address, *dead_after)
            .and_then(|mut control| control.grow(image, size, *generation));
        match grown {
            Ok(info) => {
                self.shared.resize(info.size);
                Ok(())
            }
            Err(error) => {
                hold::log(&self.shared.place, &format!("growing: {}", sentence(&error)));
                Err(Errno::IO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::ImageName;

    fn shared(dir: &tempfile::TempDir, known: Option<Known>) -> Shared {
        let options = Options {
            address: "127.0.0.1:1".to_owned(),
            image: ImageName::new("one").unwrap(),
            generation: 1,
            read_only: false,
            dead_after: Duration::from_secs(1),
            threads: 1,
        };
        Shared::new(&Place::new(dir.path()), options, "session".to_owned(), known).unwrap()
    }

    #[test]
    fn a_server_that_has_lost_unflushed_writes_is_never_used_again() {
        let dir = tempfile::TempDir::new().unwrap();
        let shared = shared(&dir, None);
        assert!(shared.check_boot("first"));
        assert!(shared.check_boot("second"), "nothing was written");
        shared.wrote("second").unwrap();
        assert!(shared.check_boot("second"));
        assert!(!shared.check_boot("third"));
        shared.works();
        assert!(!shared.admits());
        assert!(matches!(shared.told.get(), Health::Dead { for_good: true, .. }));
    }

    #[test]
    fn a_write_that_was_answered_before_the_loss_and_noted_after_it_is_lost_too() {
        let dir = tempfile::TempDir::new().unwrap();
        let shared = shared(&dir, None);
        assert!(shared.check_boot("first"));
        assert!(shared.check_boot("second"), "nobody has noted anything yet");
        assert!(shared.wrote("first").is_err());
        assert!(matches!(shared.told.get(), Health::Dead { for_good: true, .. }));
    }

    #[test]
    fn a_worker_trusts_nothing_that_the_one_before_may_have_written() {
        let dir = tempfile::TempDir::new().unwrap();
        let known = Known { size: 4096, boot: Some("first".to_owned()) };
        assert!(!shared(&dir, Some(known.clone())).check_boot("second"));
        assert!(shared(&dir, Some(known)).check_boot("first"));
    }

    #[test]
    fn who_is_fenced_stays_so_and_who_is_dead_may_come_back() {
        let dir = tempfile::TempDir::new().unwrap();
        let shared = shared(&dir, None);
        assert!(shared.admits());
        shared.works();
        shared.dead(&Error::Protocol("test"));
        assert!(!shared.admits());
        shared.lost(&Error::Protocol("test"));
        assert!(!shared.admits(), "a lost connection is no news to the dead");
        shared.works();
        assert!(shared.admits());
        shared.fenced(&Error::Protocol("test"));
        shared.works();
        assert!(!shared.admits());
    }
}
