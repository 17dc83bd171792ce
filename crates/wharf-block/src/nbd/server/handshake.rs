//! From the greeting to the open export, on the server's side.

use std::{
    io::{self, Write},
    net::TcpStream,
    time::Instant,
};

use super::{
    HANDSHAKE, Shared,
    gate::{self, Admission, Role},
};
use crate::nbd::{
    Export,
    control::{Answer, Ask, Code, Failure},
    wire::{
        EXPORT_FLUSH, EXPORT_FUA, EXPORT_HAS_FLAGS, EXPORT_MULTI_CONN, EXPORT_READ_ONLY,
        EXPORT_TRIM, EXPORT_WRITE_ZEROES, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Fields,
        INFO_BLOCK_SIZE, INFO_EXPORT, MAGIC, MAX_OPTION, MAX_PAYLOAD, OPT_ABORT, OPT_EXPORT_NAME,
        OPT_GO, OPT_INFO, OPT_LIST, OPT_WHARF, OPTION_MAGIC, REP_ACK, REP_ERR_INVALID,
        REP_ERR_POLICY, REP_ERR_SHUTDOWN, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN, REP_ERR_UNSUP,
        REP_INFO, Until, option_reply,
    },
};

/// An agent asks for some things over one connection; more than this is no handshake.
const MAX_OPTIONS: usize = 1000;

/// Session names are random numbers in our own clients.
const MAX_SESSION: usize = 64;

struct Handshake<'a> {
    shared: &'a Shared,
    wire: Until<'a>,
    /// What [`Ask::Join`] said.
    role: Role,
    zeroes: bool,
}

/// Speaks with the client until it is let into an image; `None` when it leaves or is sent away.
pub(super) fn run(shared: &Shared, stream: &TcpStream) -> io::Result<Option<Admission>> {
    let mut wire = Until { stream, deadline: Instant::now() + HANDSHAKE };
    let mut greeting = Vec::new();
    greeting.extend_from_slice(&MAGIC.to_be_bytes());
    greeting.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    greeting.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    wire.write_all(&greeting)?;
    let flags = u32::from_be_bytes(wire.array()?);
    if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
        return Ok(None);
    }
    let zeroes = flags & u32::from(FLAG_NO_ZEROES) == 0;
    let mut handshake = Handshake { shared, wire, role: Role::Guest, zeroes };
    for _ in 0..MAX_OPTIONS {
        match handshake.next_option()? {
            Next::Go(admission) => return Ok(Some(admission)),
            Next::Leave => return Ok(None),
            Next::Stay => {}
        }
        // A connection that is in use for orders lives as long as they come.
        handshake.wire.deadline = Instant::now() + HANDSHAKE;
    }
    Ok(None)
}

enum Next {
    Stay,
    Leave,
    Go(Admission),
}

impl Handshake<'_> {
    fn next_option(&mut self) -> io::Result<Next> {
        if u64::from_be_bytes(self.wire.array()?) != OPTION_MAGIC {
            return Ok(Next::Leave);
        }
        let option = u32::from_be_bytes(self.wire.array()?);
        let length = u32::from_be_bytes(self.wire.array()?);
        if length > MAX_OPTION {
            self.reply(option, REP_ERR_TOO_BIG, b"the option is too long")?;
            return Ok(Next::Leave);
        }
        let data = self.wire.vec(length)?;
        match option {
            OPT_EXPORT_NAME => self.export_name(&data),
            OPT_GO => self.go(&data),
            OPT_INFO => self.info(&data),
            OPT_WHARF => self.ask(&data),
            OPT_ABORT => {
                self.reply(option, REP_ACK, b"")?;
                Ok(Next::Leave)
            }
            // Whoever may use an image has been told its name and its generation.
            OPT_LIST => self.stay(option, REP_ERR_POLICY, b"images are not listed to guests"),
            _ => self.stay(option, REP_ERR_UNSUP, b"this option is not known here"),
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        self.wire.write_all(&option_reply(option, kind, data))
    }

    fn stay(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<Next> {
        self.reply(option, kind, data)?;
        Ok(Next::Stay)
    }

    /// The old way to open an export, which has no words for a refusal.
    fn export_name(&mut self, name: &[u8]) -> io::Result<Next> {
        let export = std::str::from_utf8(name).ok().and_then(Export::parse);
        let Some(Ok(admission)) = export.map(|export| self.enter(&export)) else {
            return Ok(Next::Leave);
        };
        let mut answer = Vec::new();
        answer.extend_from_slice(&admission.image.size().to_be_bytes());
        answer.extend_from_slice(&self.export_flags().to_be_bytes());
        if self.zeroes {
            answer.extend_from_slice(&[0; 124]);
        }
        self.wire.deadline = Instant::now() + HANDSHAKE;
        self.wire.write_all(&answer)?;
        Ok(Next::Go(admission))
    }

    fn go(&mut self, data: &[u8]) -> io::Result<Next> {
        let Some((export, wants_block_size)) = wanted(data) else {
            return self.stay(OPT_GO, REP_ERR_INVALID, b"an export is called IMAGE@GENERATION");
        };
        match self.enter(&export) {
            Ok(admission) => {
                self.wire.deadline = Instant::now() + HANDSHAKE;
                self.describe(OPT_GO, admission.image.size(), wants_block_size)?;
                Ok(Next::Go(admission))
            }
            Err(failure) => self.refuse(OPT_GO, &failure),
        }
    }

    fn info(&mut self, data: &[u8]) -> io::Result<Next> {
        let Some((export, wants_block_size)) = wanted(data) else {
            return self.stay(OPT_INFO, REP_ERR_INVALID, b"an export is called IMAGE@GENERATION");
        };
        let image = self.shared.store.image(&export.image).and_then(|image| {
            gate::check(&image, export.generation)?;
            Ok(image)
        });
        match image {
            Ok(image) => {
                self.describe(OPT_INFO, image.size(), wants_block_size)?;
                Ok(Next::Stay)
            }
            Err(failure) => self.refuse(OPT_INFO, &failure),
        }
    }

    fn enter(&self, export: &Export) -> Result<Admission, Failure> {
        let socket = self
            .wire
            .stream
            .try_clone()
            .map_err(|e| Failure::disk("keeping the connection", &e))?;
        let image = self.shared.store.image(&export.image)?;
        gate::admit(&image, export.generation, self.role.clone(), socket)
    }

    fn refuse(&mut self, option: u32, failure: &Failure) -> io::Result<Next> {
        let kind = match failure.code {
            Code::Fenced => REP_ERR_POLICY,
            Code::Missing => REP_ERR_UNKNOWN,
            Code::Exists | Code::Invalid => REP_ERR_INVALID,
            Code::Waiting | Code::Failed => REP_ERR_SHUTDOWN,
        };
        self.wire.deadline = Instant::now() + HANDSHAKE;
        self.stay(option, kind, failure.message.as_bytes())
    }

    fn describe(&mut self, option: u32, size: u64, block_size: bool) -> io::Result<()> {
        let mut export = INFO_EXPORT.to_be_bytes().to_vec();
        export.extend_from_slice(&size.to_be_bytes());
        export.extend_from_slice(&self.export_flags().to_be_bytes());
        self.reply(option, REP_INFO, &export)?;
        if block_size {
            let mut sizes = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [1, 4096, MAX_PAYLOAD] {
                sizes.extend_from_slice(&size.to_be_bytes());
            }
            self.reply(option, REP_INFO, &sizes)?;
        }
        self.reply(option, REP_ACK, b"")
    }

    fn export_flags(&self) -> u16 {
        let writes = match self.role {
            Role::Writer { .. } => EXPORT_FUA | EXPORT_TRIM | EXPORT_WRITE_ZEROES,
            Role::Reader | Role::Guest => EXPORT_READ_ONLY,
        };
        EXPORT_HAS_FLAGS | EXPORT_FLUSH | EXPORT_MULTI_CONN | writes
    }

    fn ask(&mut self, data: &[u8]) -> io::Result<Next> {
        let answer = match serde_json::from_slice(data) {
            Ok(ask) => self.carry_out(ask).unwrap_or_else(Answer::Failed),
            Err(error) => Answer::Failed(Failure::new(Code::Invalid, error.to_string())),
        };
        self.wire.deadline = Instant::now() + HANDSHAKE;
        let answer = serde_json::to_vec(&answer)?;
        self.stay(OPT_WHARF, OPT_WHARF, &answer)
    }

    fn carry_out(&mut self, ask: Ask) -> Result<Answer, Failure> {
        let store = &self.shared.store;
        match ask {
            Ask::Join { session, .. } if session.len() > MAX_SESSION => {
                Err(Failure::new(Code::Invalid, "the session's name is too long"))
            }
            Ask::Join { session, slot, read_only } => {
                self.role = if read_only { Role::Reader } else { Role::Writer { session, slot } };
                Ok(Answer::Joined { boot: self.shared.boot.clone() })
            }
            Ask::Create { image, size } => Ok(Answer::Image(store.create(&image, size)?)),
            Ask::Own { image, owner } => Ok(Answer::Image(store.own(&image, &owner)?)),
            Ask::Delete { image, generation } => {
                store.delete(&image, generation)?;
                Ok(Answer::Deleted)
            }
            Ask::Grow { image, size, generation } => {
                Ok(Answer::Image(store.grow(&image, size, generation)?))
            }
            Ask::List { after } => {
                let (images, more) = store.list(after.as_ref())?;
                Ok(Answer::Images { images, more })
            }
            Ask::Epoch { image } => Ok(Answer::Image(store.info(&image)?)),
            Ask::Fence { image, generation } => Ok(Answer::Image(store.fence(&image, generation)?)),
        }
    }
}

/// The export that is meant, and whether the client wants to know the sizes of requests.
fn wanted(data: &[u8]) -> Option<(Export, bool)> {
    let mut fields = Fields(data);
    let length = fields.be32()?;
    let name = fields.take(usize::try_from(length).ok()?)?;
    let export = Export::parse(std::str::from_utf8(name).ok()?)?;
    let mut block_size = false;
    for _ in 0..fields.be16()? {
        block_size |= fields.be16()? == INFO_BLOCK_SIZE;
    }
    Some((export, block_size))
}
