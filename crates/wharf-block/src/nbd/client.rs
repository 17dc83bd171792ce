//! The client's side: one connection to an export, and orders to the server.

use std::{
    io::{self, BufReader, IoSlice, Write},
    net::{TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

use rustix::net::sockopt;

use super::{
    Export, ImageName,
    control::{Answer, Ask, Code, Failure, ImageInfo},
    wire::{
        CMD_DISC, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
        CMD_WRITE_ZEROES, EXPORT_READ_ONLY, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Fields,
        INFO_EXPORT, MAGIC, MAX_OPTION, MAX_PAYLOAD, OPT_GO, OPT_WHARF, OPTION_MAGIC,
        OPTION_REPLY_MAGIC, REP_ACK, REP_ERR_POLICY, REP_ERR_UNKNOWN, REP_ERROR, REP_INFO, Reply,
        Request, Until, option, read_head, read_whole, write_parts,
    },
};

/// Small reads come with their headers, many in one call of the kernel.
const READ_AHEAD: usize = 128 << 10;

/// The infos before an export is open; the protocol knows less than ten kinds.
const MAX_INFOS: usize = 16;

const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server has said no.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// One request went wrong at the server; the connection is as good as before.
    #[error("the block server answered with error {0}")]
    Remote(u32),
    #[error("what came is not the protocol: {0}")]
    Protocol(&'static str),
    #[error("the connection to the block server")]
    Io(#[from] io::Error),
}

impl Error {
    /// Whether it is settled that this generation is shut out.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Refused(Failure { code: Code::Fenced, .. }))
    }

    /// Whether there is no such image.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused(Failure { code: Code::Missing, .. }))
    }
}

/// Which connection of which client; see [`Ask::Join`].
#[derive(Debug, Clone)]
pub struct Identity {
    pub session: String,
    pub slot: u32,
    pub read_only: bool,
}

/// A piece of the image that is read or written, and what came of it.
#[derive(Debug)]
pub struct Piece<B> {
    pub offset: u64,
    pub bytes: B,
    /// What the server says of this one: an error number of Linux, or zero.
    pub error: u32,
}

impl<B> Piece<B> {
    pub fn new(offset: u64, bytes: B) -> Self {
        Self { offset, bytes, error: 0 }
    }

    fn outcome(&self) -> Result<(), Error> {
        if self.error == 0 { Ok(()) } else { Err(Error::Remote(self.error)) }
    }
}

/// An open export. After an error that is not [`Error::Remote`] it is of no use any more.
#[derive(Debug)]
pub struct Connection {
    incoming: BufReader<TcpStream>,
    cookie: u64,
    pub size: u64,
    pub read_only: bool,
    /// Which run of the server's machine; see [`Answer::Joined`].
    pub boot: String,
}

impl Connection {
    /// Opens the export. `within` bounds the way in, and every later answer unless that is changed.
    pub fn open(
        address: &str,
        export: &Export,
        identity: &Identity,
        within: Duration,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + within;
        let stream = dial(address, deadline)?;
        let mut wire = Until { stream: &stream, deadline };
        greet(&mut wire)?;
        let Identity { session, slot, read_only } = identity.clone();
        let Answer::Joined { boot } = ask(&mut wire, &Ask::Join { session, slot, read_only })?
        else {
            return Err(Error::Protocol("another answer than to joining"));
        };
        let (size, flags) = go(&mut wire, export)?;
        // What is under way when the connection ends must not arrive later.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).map_err(io::Error::from)?;
        let incoming = BufReader::with_capacity(READ_AHEAD, stream);
        let read_only = flags & EXPORT_READ_ONLY != 0;
        let connection = Self { incoming, cookie: 0, size, read_only, boot };
        connection.answer_within(within)?;
        Ok(connection)
    }

    /// An answer that takes longer is an error of the connection.
    pub fn answer_within(&self, within: Duration) -> Result<(), Error> {
        self.incoming.get_ref().set_read_timeout(Some(within))?;
        Ok(self.incoming.get_ref().set_write_timeout(Some(within))?)
    }

    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let mut piece = Piece::new(offset, buffer);
        self.read_each(std::slice::from_mut(&mut piece))?;
        piece.outcome()
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> Result<(), Error> {
        let mut piece = Piece::new(offset, bytes);
        self.write_each(std::slice::from_mut(&mut piece), durable)?;
        piece.outcome()
    }

    /// Asks for all of them before the first answer is read. Requests to read are small and so are
    /// answers to writes; that is why one call does only the one or the other: with both, each side
    /// could wait for the other to read.
    pub fn read_each(&mut self, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), Error> {
        let mut asked = Vec::with_capacity(pieces.len() * Request::SIZE);
        let before = self.cookie;
        for piece in &*pieces {
            let length = payload(piece.bytes.len())?;
            asked.extend(self.request(CMD_READ, 0, piece.offset, length).encode());
        }
        self.incoming.get_ref().write_all(&asked)?;
        for (piece, cookie) in pieces.iter_mut().zip(before + 1..) {
            piece.error = self.receive(cookie, piece.bytes.len() > READ_AHEAD)?;
            if piece.error == 0 {
                read_whole(&mut self.incoming, piece.bytes)?;
            }
        }
        Ok(())
    }

    /// The same for writes.
    pub fn write_each(&mut self, pieces: &mut [Piece<&[u8]>], durable: bool) -> Result<(), Error> {
        let flags = if durable { CMD_FLAG_FUA } else { 0 };
        let before = self.cookie;
        let mut heads = Vec::with_capacity(pieces.len());
        for piece in &*pieces {
            let length = payload(piece.bytes.len())?;
            heads.push(self.request(CMD_WRITE, flags, piece.offset, length).encode());
        }
        let mut parts: Vec<IoSlice> = heads
            .iter()
            .zip(&*pieces)
            .flat_map(|(head, piece)| [IoSlice::new(head), IoSlice::new(piece.bytes)])
            .collect();
        write_parts(self.incoming.get_ref(), &mut parts)?;
        for (piece, cookie) in pieces.iter_mut().zip(before + 1..) {
            piece.error = self.receive(cookie, false)?;
        }
        Ok(())
    }

    /// What was written on any connection is on the server's disk after this.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.order(CMD_FLUSH, 0, 0, 0)
    }

    pub fn zero(&mut self, offset: u64, length: u32, keep_room: bool) -> Result<(), Error> {
        let flags = if keep_room { CMD_FLAG_NO_HOLE } else { 0 };
        self.order(CMD_WRITE_ZEROES, flags, offset, length)
    }

    pub fn trim(&mut self, offset: u64, length: u32) -> Result<(), Error> {
        self.order(CMD_TRIM, 0, offset, length)
    }

    /// Leaves in good order.
    pub fn close(mut self) {
        // The server sees the end of the connection anyway.
        let leave = self.request(CMD_DISC, 0, 0, 0);
        let _gone = self.incoming.get_ref().write_all(&leave.encode());
    }

    /// One that carries no data.
    fn order(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Result<(), Error> {
        let request = self.request(command, flags, offset, length);
        self.incoming.get_ref().write_all(&request.encode())?;
        match self.receive(request.cookie, false)? {
            0 => Ok(()),
            error => Err(Error::Remote(error)),
        }
    }

    fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Request {
        self.cookie += 1;
        Request { flags, command, cookie: self.cookie, offset, length }
    }

    /// The error number of the next reply, which has to be the one to this request. `large`: so is what
    /// comes after it.
    fn receive(&mut self, cookie: u64, large: bool) -> Result<u32, Error> {
        let header = read_head::<{ Reply::SIZE }>(&mut self.incoming, large)?;
        let reply = Reply::decode(&header).ok_or(Error::Protocol("no reply"))?;
        if reply.cookie != cookie {
            return Err(Error::Protocol("a reply to another request"));
        }
        Ok(reply.error)
    }
}

fn payload(length: usize) -> Result<u32, Error> {
    u32::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_PAYLOAD)
        .ok_or(Error::Protocol("a request is too long"))
}

/// A connection for orders. It may be used for several, one after the other, within seconds.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    within: Duration,
}

impl Control {
    pub fn connect(address: &str, within: Duration) -> Result<Self, Error> {
        let deadline = Instant::now() + within;
        let stream = dial(address, deadline)?;
        greet(&mut Until { stream: &stream, deadline })?;
        Ok(Self { stream, within })
    }

    pub fn create(&mut self, image: &ImageName, size: u64) -> Result<ImageInfo, Error> {
        self.image(&Ask::Create { image: image.clone(), size })
    }

    /// Makes the image the owner's, if it is nobody's. Whose it is then is in the answer.
    pub fn own(&mut self, image: &ImageName, owner: &str) -> Result<ImageInfo, Error> {
        self.image(&Ask::Own { image: image.clone(), owner: owner.to_owned() })
    }

    pub fn delete(&mut self, image: &ImageName, generation: u64) -> Result<(), Error> {
        match self.ask(&Ask::Delete { image: image.clone(), generation })? {
            Answer::Deleted => Ok(()),
            _ => Err(Error::Protocol("another answer than to deleting")),
        }
    }

    pub fn grow(
        &mut self,
        image: &ImageName,
        size: u64,
        generation: u64,
    ) -> Result<ImageInfo, Error> {
        self.image(&Ask::Grow { image: image.clone(), size, generation })
    }

    /// Every image of the server.
    pub fn list(&mut self) -> Result<Vec<ImageInfo>, Error> {
        let mut all: Vec<ImageInfo> = Vec::new();
        loop {
            let after = all.last().map(|info| info.image.clone());
            let Answer::Images { images, more } = self.ask(&Ask::List { after })? else {
                return Err(Error::Protocol("another answer than to listing"));
            };
            let empty = images.is_empty();
            all.extend(images);
            if !more || empty {
                return Ok(all);
            }
        }
    }

    pub fn epoch(&mut self, image: &ImageName) -> Result<ImageInfo, Error> {
        self.image(&Ask::Epoch { image: image.clone() })
    }

    /// When this returns nobody below the generation can change the image any more, or ever again.
    pub fn fence(&mut self, image: &ImageName, generation: u64) -> Result<ImageInfo, Error> {
        self.image(&Ask::Fence { image: image.clone(), generation })
    }

    fn image(&mut self, order: &Ask) -> Result<ImageInfo, Error> {
        match self.ask(order)? {
            Answer::Image(info) => Ok(info),
            _ => Err(Error::Protocol("another answer than asked for")),
        }
    }

    fn ask(&mut self, order: &Ask) -> Result<Answer, Error> {
        let deadline = Instant::now() + self.within;
        ask(&mut Until { stream: &self.stream, deadline }, order)
    }
}

fn dial(address: &str, deadline: Instant) -> Result<TcpStream, Error> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
                sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE).map_err(io::Error::from)?;
                sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL).map_err(io::Error::from)?;
                sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_COUNT).map_err(io::Error::from)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

fn greet(wire: &mut Until) -> Result<(), Error> {
    let greeting: [u8; 18] = wire.array()?;
    let mut fields = Fields(&greeting);
    if fields.be64() != Some(MAGIC) || fields.be64() != Some(OPTION_MAGIC) {
        return Err(Error::Protocol("no greeting of a block server"));
    }
    let wants = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    if fields.be16().is_none_or(|flags| flags & wants != wants) {
        return Err(Error::Protocol("a block server of the old style"));
    }
    Ok(wire.write_all(&u32::from(wants).to_be_bytes())?)
}

/// The kind of a reply to our option, and what it carries.
fn option_answer(wire: &mut Until, option: u32) -> Result<(u32, Vec<u8>), Error> {
    if u64::from_be_bytes(wire.array()?) != OPTION_REPLY_MAGIC
        || u32::from_be_bytes(wire.array()?) != option
    {
        return Err(Error::Protocol("no reply to the option"));
    }
    let kind = u32::from_be_bytes(wire.array()?);
    let length = u32::from_be_bytes(wire.array()?);
    if length > MAX_OPTION {
        return Err(Error::Protocol("a reply to an option is too long"));
    }
    Ok((kind, wire.vec(length)?))
}

fn ask(wire: &mut Until, ask: &Ask) -> Result<Answer, Error> {
    let body = serde_json::to_vec(ask).map_err(|_| Error::Protocol("an order has no JSON"))?;
    wire.write_all(&option(OPT_WHARF, &body))?;
    let (kind, data) = option_answer(wire, OPT_WHARF)?;
    if kind & REP_ERROR != 0 {
        return Err(refusal(kind, &data).into());
    }
    match serde_json::from_slice(&data) {
        Ok(Answer::Failed(failure)) => Err(failure.into()),
        Ok(answer) => Ok(answer),
        Err(_) => Err(Error::Protocol("an answer that is not ours")),
    }
}

fn go(wire: &mut Until, export: &Export) -> Result<(u64, u16), Error> {
    let name = export.to_string();
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&0u16.to_be_bytes());
    wire.write_all(&option(OPT_GO, &data))?;
    let mut described = None;
    for _ in 0..MAX_INFOS {
        let (kind, data) = option_answer(wire, OPT_GO)?;
        match kind {
            REP_ACK => return described.ok_or(Error::Protocol("an export without a size")),
            REP_INFO => {
                let mut fields = Fields(&data);
                if fields.be16() == Some(INFO_EXPORT) {
                    described = fields.be64().zip(fields.be16());
                }
            }
            _ => return Err(refusal(kind, &data).into()),
        }
    }
    Err(Error::Protocol("too many infos"))
}

fn refusal(kind: u32, data: &[u8]) -> Failure {
    let code = match kind {
        REP_ERR_POLICY => Code::Fenced,
        REP_ERR_UNKNOWN => Code::Missing,
        _ => Code::Failed,
    };
    Failure::new(code, String::from_utf8_lossy(data))
}
