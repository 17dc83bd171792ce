//! New base systems on their way to this node: fetched, then checked, then there.
//!
//! One at a time: whoever wants another gives the older one up. An image lies under its checksum, so
//! that one that is there already need not be fetched again.

mod http;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};
use wharf_api::node_files::NodeWish;
use wharf_core::{node::requester::Image, words::chain};

use super::changed;
use crate::host;

/// Larger ones are not written by anybody who knows what a base system is.
const LARGEST: u64 = 16 << 30;
/// So much is left on the disk for everything else.
const RESERVE: u64 = 256 << 20;
/// After so much more the disk is looked at again.
const LOOK_AT_DISK: u64 = 16 << 20;
/// For the next piece of an image.
const SILENCE: Duration = Duration::from_secs(60);
/// A source that fails is asked again so often, with this pause.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("its checksum is not given as 64 hexadecimal digits")]
    BadChecksum,
    #[error("its checksum is {found}, not {wanted}")]
    Differs { found: String, wanted: String },
    #[error("it is larger than {} GiB", LARGEST >> 30)]
    TooLarge,
    #[error("the disk under {} has no room for it", path.display())]
    DiskFull { path: PathBuf },
    #[error("nothing came for {} s", SILENCE.as_secs())]
    Silent,
    #[error("cannot read {from}")]
    Source {
        from: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Http(#[from] http::HttpError),
}

impl ImageError {
    /// Whether asking again may help.
    fn may_pass(&self) -> bool {
        match self {
            Self::Silent => true,
            Self::Http(error) => error.may_pass(),
            Self::BadChecksum
            | Self::Differs { .. }
            | Self::TooLarge
            | Self::DiskFull { .. }
            | Self::Source { .. }
            | Self::Write { .. } => false,
        }
    }
}

/// The image that is wanted now.
pub struct Images {
    folder: PathBuf,
    wanted: Option<Wanted>,
}

struct Wanted {
    wish: NodeWish,
    state: watch::Receiver<Image>,
    _task: AbortOnDropHandle<()>,
}

impl Images {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, wanted: None }
    }

    /// From now on this one is wanted, or none.
    pub fn want(&mut self, wish: Option<&NodeWish>) {
        let same = |wanted: &Wanted, wish: &NodeWish| {
            let known = &wanted.wish;
            known.id == wish.id && known.image == wish.image && known.sha256 == wish.sha256
        };
        match (&self.wanted, wish) {
            (Some(wanted), Some(wish)) if same(wanted, wish) => {}
            (_, None) => self.wanted = None,
            (_, Some(wish)) => {
                let (told, state) = watch::channel(Image::Fetching);
                let task = tokio::spawn(prepare(wish.clone(), self.folder.clone(), told));
                let task = AbortOnDropHandle::new(task);
                self.wanted = Some(Wanted { wish: wish.clone(), state, _task: task });
            }
        }
    }

    /// How far the image of a wish is.
    pub fn state(&self, id: &str) -> Image {
        let wanted = self.wanted.as_ref().filter(|wanted| wanted.wish.id == id);
        wanted.map_or(Image::Fetching, |wanted| wanted.state.borrow().clone())
    }

    /// Where the image of a wish lies once it is loaded.
    pub fn path(&self, wish: &NodeWish) -> PathBuf {
        self.folder.join(wish.sha256.to_lowercase())
    }

    pub async fn changed(&mut self) {
        match &mut self.wanted {
            Some(wanted) => changed(&mut wanted.state).await,
            None => std::future::pending().await,
        }
    }
}

async fn prepare(wish: NodeWish, folder: PathBuf, told: watch::Sender<Image>) {
    let (id, from) = (wish.id.as_str(), wish.image.as_str());
    info!(id, from, "baseOsHandleStatusUpdateUUID: the image is fetched");
    match fetch(&wish, &folder, &told).await {
        Ok(()) => {
            info!(id, from, "baseOsHandleStatusUpdateUUID: the image is there");
            told.send_replace(Image::Loaded);
        }
        Err(error) => {
            let reason = format!("the image {from} cannot be used: {}", chain(&error));
            warn!(id, reason, "baseOsHandleStatusUpdateUUID: the image failed");
            told.send_replace(Image::Failed(reason));
        }
    }
}

async fn fetch(
    wish: &NodeWish,
    folder: &Path,
    told: &watch::Sender<Image>,
) -> Result<(), ImageError> {
    let wanted = wish.sha256.to_lowercase();
    if wanted.len() != 64 || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(ImageError::BadChecksum);
    }
    let (place, half) = (folder.join(&wanted), folder.join(format!("{wanted}.part")));
    make_room(folder, &wanted).map_err(|source| write_error(folder, source))?;
    if sum(&place).await.is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let mut tries = 1;
    while let Err(error) = download(&wish.image, &half).await {
        if !error.may_pass() || tries >= TRIES {
            let _ = std::fs::remove_file(&half);
            return Err(error);
        }
        warn!(from = wish.image, reason = chain(&error), "fetching the image is tried again");
        tries += 1;
        sleep(PAUSE).await;
    }
    told.send_replace(Image::Loading);
    let found = sum(&half).await.map_err(|source| write_error(&half, source))?;
    if found != wanted {
        let _ = std::fs::remove_file(&half);
        return Err(ImageError::Differs { found, wanted });
    }
    let renamed = std::fs::rename(&half, &place);
    let durable = renamed.and_then(|()| std::fs::File::open(folder)?.sync_all());
    durable.map_err(|source| write_error(&place, source))
}

/// Of what was fetched before only the wanted one is kept.
fn make_room(folder: &Path, wanted: &str) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != wanted {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Beside the other tasks: an image is large.
async fn sum(path: &Path) -> io::Result<String> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || host::files::file_sha256(&path)).await?
}

async fn download(from: &str, to: &Path) -> Result<(), ImageError> {
    let file = File::create(to).await.map_err(|source| write_error(to, source))?;
    let mut sink = Sink { file, path: to, written: 0, looked: 0 };
    sink.look_at_disk()?;
    if from.starts_with("http://") || from.starts_with("https://") {
        let mut body =
            timeout(SILENCE, http::get(from)).await.map_err(|_| ImageError::Silent)??;
        while let Some(piece) =
            timeout(SILENCE, body.next()).await.map_err(|_| ImageError::Silent)??
        {
            sink.take(&piece).await?;
        }
    } else {
        copy(from, &mut sink).await?;
    }
    sink.file.sync_all().await.map_err(|source| write_error(to, source))
}

async fn copy(from: &str, sink: &mut Sink<'_>) -> Result<(), ImageError> {
    let failed = |source| ImageError::Source { from: from.to_owned(), source };
    let metadata = tokio::fs::metadata(from).await.map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut file = File::open(from).await.map_err(failed)?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = file.read(&mut buffer).await.map_err(failed)?;
        if count == 0 {
            return Ok(());
        }
        sink.take(buffer.get(..count).unwrap_or_default()).await?;
    }
}

struct Sink<'a> {
    file: File,
    path: &'a Path,
    written: u64,
    /// So much was written when the disk was last looked at.
    looked: u64,
}

impl Sink<'_> {
    async fn take(&mut self, piece: &[u8]) -> Result<(), ImageError> {
        self.written = self.written.saturating_add(piece.len() as u64);
        if self.written > LARGEST {
            return Err(ImageError::TooLarge);
        }
        if self.written.saturating_sub(self.looked) >= LOOK_AT_DISK {
            self.looked = self.written;
            self.look_at_disk()?;
        }
        self.file.write_all(piece).await.map_err(|source| write_error(self.path, source))
    }

    fn look_at_disk(&self) -> Result<(), ImageError> {
        let disk =
            rustix::fs::statvfs(self.path).map_err(|error| write_error(self.path, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let full = || ImageError::DiskFull { path: self.path.to_owned() };
        if free < RESERVE { Err(full()) } else { Ok(()) }
    }
}

fn write_error(path: &Path, source: io::Error) -> ImageError {
    ImageError::Write { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::TcpListener;

    use super::*;

    /// Of something else.
    const SUM: &str = "00000000000000000000000000000000000000000000000000000000000000ff";

    fn wish(image: &str, sha256: &str) -> NodeWish {
        let (image, sha256) = (image.to_owned(), sha256.to_owned());
        NodeWish { id: "os-2".to_owned(), image, sha256, ..NodeWish::default() }
    }

    async fn end(images: &mut Images) -> Image {
        loop {
            match images.state("os-2") {
                Image::Fetching | Image::Loading => images.changed().await,
                state => return state,
            }
        }
    }

    /// Serves these answers, one to each connection.
    async fn serve(answers: Vec<String>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                assert_ne!(stream.read(&mut request).await.unwrap(), 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn an_image_is_taken_from_a_file_if_its_checksum_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("base.img");
        std::fs::write(&source, "new base").unwrap();
        let sum = host::files::file_sha256(&source).unwrap();
        let source = source.display().to_string();
        let mut images = Images::new(dir.path().join("images"));
        std::fs::create_dir(dir.path().join("images")).unwrap();
        std::fs::write(dir.path().join("images/older"), "old").unwrap();
        for (sum, expected) in
            [(SUM, "its checksum is"), ("abc", "not given as 64 hexadecimal digits")]
        {
            images.want(None);
            images.want(Some(&wish(&source, sum)));
            let Image::Failed(reason) = end(&mut images).await else { panic!("{sum} is taken") };
            assert!(reason.contains(expected), "{reason}");
        }
        let wanted = wish(&source, &sum.to_uppercase());
        images.want(Some(&wanted));
        assert_eq!(end(&mut images).await, Image::Loaded);
        assert_eq!(std::fs::read_to_string(images.path(&wanted)).unwrap(), "new base");
        let left = std::fs::read_dir(dir.path().join("images")).unwrap().count();
        assert_eq!(left, 1, "the older one and halves are gone");
        // It is there: the source is not asked again.
        std::fs::remove_file(&source).unwrap();
        images.want(None);
        images.want(Some(&wanted));
        assert_eq!(end(&mut images).await, Image::Loaded);
    }

    #[tokio::test]
    async fn an_image_is_fetched_over_http_and_through_a_redirection() {
        let dir = tempfile::tempdir().unwrap();
        let sum = host::files::sha256(b"new base");
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nnew base";
        let elsewhere = serve(vec![ok.to_owned()]).await;
        let moved = format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{elsewhere}/b.img\r\nContent-Length: 0\r\n\r\n"
        );
        let first = serve(vec![moved]).await;
        let mut images = Images::new(dir.path().join("images"));
        let wanted = wish(&format!("http://{first}/a.img"), &sum);
        images.want(Some(&wanted));
        assert_eq!(end(&mut images).await, Image::Loaded);
        assert_eq!(std::fs::read_to_string(images.path(&wanted)).unwrap(), "new base");

        let missing = serve(vec!["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()]);
        images.want(Some(&wish(&format!("http://{}/c.img", missing.await), SUM)));
        let Image::Failed(reason) = end(&mut images).await else { panic!("it is there") };
        assert!(reason.contains("404"), "{reason}");
        // One that breaks off is asked for again.
        let half = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nnew";
        let address = serve(vec![half.to_owned(), ok.to_owned()]).await;
        std::fs::remove_file(images.path(&wanted)).unwrap_or_default();
        images.want(Some(&wish(&format!("http://{address}/d.img"), &sum)));
        assert_eq!(end(&mut images).await, Image::Loaded);
    }
}
