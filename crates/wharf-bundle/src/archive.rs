//! A bundle as one file: a plain ustar archive, optionally through gzip.
//!
//! The manifest is the first entry. Everything after it must be a plain file that the manifest
//! lists, of the listed size: so a reader knows the size of the whole before it writes a byte, and
//! links, absolute paths and bombs are refused when their header is seen.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::checksum::HashingReader;
use crate::manifest::{FileEntry, MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Mode};
use crate::place::{Staging, make_parents, refuse_existing};
use crate::{Bundle, Error, IoContext, Problem, Result};

const BUFFER_BYTES: usize = 256 * 1024;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Writes a bundle into one file; gzip when the name ends in `.gz` or `.tgz`.
///
/// Guarantees: each file is checked while it is written, the archive appears whole or not at all,
/// and the same bundle gives the same bytes.
///
/// # Errors
/// A file is not what the manifest says, or the disk refuses.
pub fn pack(bundle: &Bundle, output: &Path) -> Result<()> {
    let staging = Staging::beside(output)?;
    let partial = staging.path().join("archive");
    let file =
        BufWriter::with_capacity(BUFFER_BYTES, File::create(&partial).at("written", &partial)?);
    let name = output.to_string_lossy();
    let finished = if name.ends_with(".gz") || name.ends_with(".tgz") {
        // Go programs shrink to two fifths at the fastest level; more effort gains little.
        let gzip = write_entries(bundle, GzEncoder::new(file, Compression::fast()))?;
        gzip.finish().at("written", &partial)?
    } else {
        write_entries(bundle, file)?
    };
    let file = finished.into_inner().map_err(io::IntoInnerError::into_error);
    file.and_then(|file| file.sync_all()).at("written", &partial)?;
    fs::rename(&partial, output).at("written", output)
}

fn write_entries<W: Write>(bundle: &Bundle, writer: W) -> Result<W> {
    let mut tar = tar::Builder::new(writer);
    let manifest = bundle.manifest().to_json();
    let mut header = header_for(manifest.len() as u64, Mode::DATA);
    let path = bundle.dir().join(MANIFEST_NAME);
    tar.append_data(&mut header, MANIFEST_NAME, manifest.as_slice()).at("packed", &path)?;
    for entry in &bundle.manifest().files {
        let path = bundle.path_of(entry);
        let damaged = |problem| Err(Error::Damaged(vec![problem]));
        match path.symlink_metadata() {
            Ok(metadata) if !metadata.is_file() => {
                let kind = "a link or directory";
                return damaged(Problem::NotAFile { path: entry.path.clone(), kind });
            }
            Ok(_) => {}
            Err(_) => return damaged(Problem::Missing { path: entry.path.clone() }),
        }
        let file = File::open(&path).at("read", &path)?;
        let mut reader = HashingReader::new(file);
        let mut header = header_for(entry.size, entry.mode);
        let exact = (&mut reader).take(entry.size);
        tar.append_data(&mut header, &entry.path, exact).at("packed", &path)?;
        // What lies beyond the listed size is hashed too, so that a longer file is damaged as well.
        io::copy(&mut reader, &mut io::sink()).at("read", &path)?;
        let found = reader.finish();
        if found != entry.content() {
            let (path, expected) = (entry.path.clone(), entry.content());
            return damaged(Problem::Damaged { path, expected, found });
        }
    }
    tar.into_inner().at("packed", bundle.dir())
}

/// No owner, no time: the archive depends on nothing but the files.
fn header_for(size: u64, mode: Mode) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(mode.bits());
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(tar::EntryType::Regular);
    header
}

/// Unpacks an archive into a new directory, checking everything on the way.
///
/// # Errors
/// The archive is refused, its files are not what its manifest says, or `destination` holds
/// something already. Nothing is left behind then.
pub fn unpack(archive: &Path, destination: &Path) -> Result<Bundle> {
    refuse_existing(destination)?;
    let staging = Staging::beside(destination)?;
    let manifest = read(archive, |entry, reader| {
        let path = staging.path().join(&entry.path);
        make_parents(&path)?;
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(entry.mode.bits());
        let mut file = options.open(&path).at("written", &path)?;
        io::copy(reader, &mut file).at("written", &path)?;
        use std::os::unix::fs::PermissionsExt;
        // The process's mask may have taken bits away.
        file.set_permissions(fs::Permissions::from_mode(entry.mode.bits())).at("written", &path)
    })?;
    let path = staging.path().join(MANIFEST_NAME);
    fs::write(&path, manifest.to_json()).at("written", &path)?;
    staging.commit(destination)?;
    Bundle::open(destination)
}

/// Checks an archive without unpacking it.
///
/// # Errors
/// As [`unpack`].
pub fn verify(archive: &Path) -> Result<Manifest> {
    read(archive, |_, reader| io::copy(reader, &mut io::sink()).map(|_| ()).at("read", archive))
}

/// Reads only the manifest; the files behind it are not looked at.
///
/// # Errors
/// The archive does not begin with a manifest that is accepted.
pub fn manifest(archive: &Path) -> Result<Manifest> {
    let mut tar = tar::Archive::new(open(archive)?);
    let mut entries = tar.entries().at("read", archive)?.raw(true);
    read_manifest(entries.next(), archive)
}

fn open(archive: &Path) -> Result<Box<dyn Read>> {
    let mut file = File::open(archive).at("read", archive)?;
    let mut magic = Vec::new();
    (&mut file).take(2).read_to_end(&mut magic).at("read", archive)?;
    let whole = io::Cursor::new(magic.clone()).chain(file);
    let whole = BufReader::with_capacity(BUFFER_BYTES, whole);
    Ok(if magic == GZIP_MAGIC { Box::new(GzDecoder::new(whole)) } else { Box::new(whole) })
}

/// Walks through an archive and hands each file to `take`, which must read it to its end.
fn read(
    archive: &Path,
    mut take: impl FnMut(&FileEntry, &mut dyn Read) -> Result<()>,
) -> Result<Manifest> {
    let mut tar = tar::Archive::new(open(archive)?);
    // Raw: extensions such as long names, which a reader would load into memory, stay visible as
    // entries and are refused.
    let mut entries = tar.entries().at("read", archive)?.raw(true);
    let manifest = read_manifest(entries.next(), archive)?;
    let mut open: BTreeMap<&str, &FileEntry> =
        manifest.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let mut problems = Vec::new();
    for entry in entries {
        let entry = entry.at("read", archive)?;
        let path = plain_file_path(&entry)?;
        let Some(file) = open.remove(path.as_str()) else {
            return Err(Error::Archive(format!("{path:?} is not in its manifest, or comes twice")));
        };
        let size = entry.header().size().at("read", archive)?;
        if size != file.size {
            let message = format!("{path} has {size} bytes, its manifest says {}", file.size);
            return Err(Error::Archive(message));
        }
        let mode = entry.header().mode().at("read", archive)?;
        let mut reader = HashingReader::new(entry);
        take(file, &mut reader)?;
        let found = reader.finish();
        if found != file.content() {
            problems.push(Problem::Damaged { path, expected: file.content(), found });
        } else if mode != file.mode.bits() {
            let reason = format!("{path} is packed with mode {mode:04o}, not {}", file.mode);
            problems.push(Problem::BadManifest { reason });
        }
    }
    problems.extend(open.into_keys().map(|path| Problem::Missing { path: path.to_owned() }));
    if problems.is_empty() { Ok(manifest) } else { Err(Error::Damaged(problems)) }
}

fn read_manifest<R: Read>(
    first: Option<io::Result<tar::Entry<'_, R>>>,
    archive: &Path,
) -> Result<Manifest> {
    let not_first = || Error::Archive(format!("it does not begin with {MANIFEST_NAME}"));
    let entry = first.and_then(io::Result::ok).ok_or_else(not_first)?;
    if plain_file_path(&entry)? != MANIFEST_NAME {
        return Err(not_first());
    }
    let size = entry.header().size().at("read", archive)?;
    if size > MAX_MANIFEST_BYTES {
        return Err(Error::Damaged(vec![Problem::too_large_manifest(size)]));
    }
    let mut bytes = Vec::new();
    entry.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes).at("read", archive)?;
    Manifest::from_json(&bytes).map_err(Error::Damaged)
}

fn plain_file_path<R: Read>(entry: &tar::Entry<'_, R>) -> Result<String> {
    let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    if entry.header().entry_type() == tar::EntryType::Regular {
        Ok(path)
    } else {
        let kind = entry.header().entry_type();
        Err(Error::Archive(format!("{path:?} is no plain file but {kind:?}")))
    }
}
