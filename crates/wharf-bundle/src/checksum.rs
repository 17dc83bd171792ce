//! SHA-256 of files, read as a stream and by two threads at once.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use sha2::Digest;

/// Two: a bundle is checked beside other work, and one thread keeps one disk busy already.
const HASHING_THREADS: usize = 2;

/// Large enough that the read calls do not show, small enough for a stack of threads.
const READ_BUFFER_BYTES: usize = 256 * 1024;

/// A SHA-256 sum, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sha256(#[serde(with = "hex::serde")] [u8; 32]);

impl Sha256 {
    /// Reads 64 hexadecimal digits; anything else is `None`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut sum = [0; 32];
        hex::decode_to_slice(text, &mut sum).ok()?;
        Some(Self(sum))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a file holds, as far as a manifest cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub sha256: Sha256,
    pub size: u64,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256 {} ({} bytes)", self.sha256, self.size)
    }
}

/// A reader that hashes what passes through it.
pub(crate) struct HashingReader<R> {
    inner: R,
    hasher: sha2::Sha256,
    size: u64,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: sha2::Sha256::new(), size: 0 }
    }

    pub(crate) fn finish(self) -> Content {
        Content { sha256: Sha256(self.hasher.finalize().into()), size: self.size }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(read) = buffer.get(..count) {
            self.hasher.update(read);
        }
        self.size += count as u64;
        Ok(count)
    }
}

/// A writer that hashes what passes through it.
pub(crate) struct HashingWriter<W> {
    inner: W,
    hasher: sha2::Sha256,
    size: u64,
}

impl<W: Write> HashingWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hasher: sha2::Sha256::new(), size: 0 }
    }

    pub(crate) fn finish(self) -> (W, Content) {
        let content = Content { sha256: Sha256(self.hasher.finalize().into()), size: self.size };
        (self.inner, content)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        if let Some(written) = buffer.get(..count) {
            self.hasher.update(written);
        }
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Hashes what is in memory already.
pub(crate) fn hash_bytes(bytes: &[u8]) -> Content {
    Content { sha256: Sha256(sha2::Sha256::digest(bytes).into()), size: bytes.len() as u64 }
}

/// Hashes one file without holding it in memory.
///
/// # Errors
/// The file cannot be opened or read.
pub fn hash_file(path: &Path) -> io::Result<Content> {
    let mut reader = HashingReader::new(File::open(path)?);
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    while reader.read(&mut buffer)? > 0 {}
    Ok(reader.finish())
}

/// Hashes many files by [`HASHING_THREADS`] threads; the results keep the order of `paths`.
#[must_use]
pub fn hash_files(paths: &[PathBuf]) -> Vec<io::Result<Content>> {
    let next = AtomicUsize::new(0);
    let hashed = Mutex::new(Vec::with_capacity(paths.len()));
    std::thread::scope(|scope| {
        for _ in 0..HASHING_THREADS.min(paths.len()) {
            scope.spawn(|| {
                while let Some((index, path)) = take_next(&next, paths) {
                    let content = hash_file(path);
                    // A poisoned lock means that the other thread died while pushing; its results still count.
                    hashed.lock().unwrap_or_else(|e| e.into_inner()).push((index, content));
                }
            });
        }
    });
    let mut hashed = hashed.into_inner().unwrap_or_else(|e| e.into_inner());
    hashed.sort_unstable_by_key(|(index, _)| *index);
    hashed.into_iter().map(|(_, content)| content).collect()
}

fn take_next<'a>(next: &AtomicUsize, paths: &'a [PathBuf]) -> Option<(usize, &'a PathBuf)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    paths.get(index).map(|path| (index, path))
}
