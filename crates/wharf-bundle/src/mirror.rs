//! Release files instead of own builds: from a directory or an http(s) address, by checksum.
//!
//! Below the base of one component lies what the project publishes, under the names that it
//! publishes them by: `v<version>/<file>`. A mirror of everything has one directory for each
//! component: `<base>/<component>/v<version>/<file>`. The layout is listed in
//! docs/adr/0002-bundle-format.md.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;

use crate::catalogue::{self, Component};
use crate::checksum::{Sha256, hash_file};
use crate::manifest::{MAX_FILE_BYTES, MAX_TOTAL_BYTES};
use crate::place::make_parents;
use crate::{Error, IoContext, Result};

/// A list of checksums is a few lines; this bounds what a wrong address can make us read.
const MAX_CHECKSUM_BYTES: u64 = 1 << 20;
/// Each further try continues where the last one broke off.
const FETCH_TRIES: u32 = 4;
/// A hundred megabytes over a slow line; a server that stalls is given up long before.
const FETCH_TIMEOUT_SECONDS: &str = "1800";
/// Below 1000 bytes a second for this long is a stall.
const STALL_SECONDS: &str = "30";
/// What curl answers when the server cannot continue a download in the middle.
const CURL_NO_RANGE: [i32; 2] = [33, 36];
/// What the server says when there is no such file.
const HTTP_NOT_FOUND: &[u8] = b"404";

/// Where release files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Directory(PathBuf),
    Url(String),
}

impl Base {
    /// An address that begins with `http://` or `https://`, or an existing directory.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with("https://") || text.starts_with("http://") {
            return Ok(Self::Url(text.trim_end_matches('/').to_owned()));
        }
        let path = Path::new(text);
        if path.is_dir() {
            Ok(Self::Directory(path.to_owned()))
        } else {
            Err(Error::BadSource(text.to_owned()))
        }
    }

    #[must_use]
    pub fn join(&self, part: &str) -> Self {
        match self {
            Self::Directory(dir) => Self::Directory(dir.join(part)),
            Self::Url(url) => Self::Url(format!("{url}/{part}")),
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Directory(dir) => dir.display().to_string(),
            Self::Url(url) => url.clone(),
        }
    }

    /// Brings a file here. `limit` bounds its size.
    fn bring(&self, file: &str, to: &Path, limit: u64) -> Result<()> {
        make_parents(to)?;
        match self {
            Self::Directory(dir) => {
                let from = dir.join(file);
                if !from.is_file() {
                    let place = self.place();
                    return Err(Error::NotAtSource { file: file.to_owned(), place });
                }
                let reader = File::open(&from).at("read", &from)?;
                let mut writer = File::create(to).at("written", to)?;
                io::copy(&mut reader.take(limit), &mut writer).at("copied", &from)?;
                Ok(())
            }
            Self::Url(url) => download(&format!("{url}/{file}"), to, limit).map_err(|error| {
                if matches!(&error, Error::NotAtSource { .. }) {
                    Error::NotAtSource { file: file.to_owned(), place: url.clone() }
                } else {
                    error
                }
            }),
        }
    }
}

/// Brings the files of one component into `into`, where they get their places of a bundle.
///
/// Guarantees: a file is used only after its own copy here matched the published checksum.
/// On an error `into` holds rubbish; the caller drops it.
///
/// # Errors
/// A file or its checksum is missing, the checksum is wrong, or it cannot be fetched.
pub fn fetch(
    base: &Base,
    component: &Component,
    version: &str,
    arch: &str,
    into: &Path,
) -> Result<()> {
    let base = base.join(&format!("v{version}"));
    let downloads = into.join(".download");
    let expand = |template| catalogue::expand(template, version, arch);
    if let Some(archive) = component.release.archive.map(expand) {
        let local = bring_checked(&base, component, &archive, &downloads)?;
        let wanted: BTreeMap<String, &str> =
            component.files.iter().map(|f| (expand(f.released_as), f.path)).collect();
        extract(&local, &archive, wanted, into)?;
    } else {
        for file in component.files {
            let local = bring_checked(&base, component, &expand(file.released_as), &downloads)?;
            let to = into.join(file.path);
            make_parents(&to)?;
            fs::rename(&local, &to).at("written", &to)?;
        }
    }
    fs::remove_dir_all(&downloads).at("removed", &downloads)
}

fn bring_checked(
    base: &Base,
    component: &Component,
    file: &str,
    downloads: &Path,
) -> Result<PathBuf> {
    let checksum_file = component.release.checksums.replace("{file}", file);
    let no_checksum = |reason| Error::NoChecksum {
        file: file.to_owned(),
        checksum_file: checksum_file.clone(),
        reason,
    };
    let sums = downloads.join("checksums");
    match base.bring(&checksum_file, &sums, MAX_CHECKSUM_BYTES) {
        Ok(()) => {}
        Err(Error::NotAtSource { .. }) => {
            return Err(match base.bring(file, &downloads.join("probe"), MAX_FILE_BYTES) {
                Ok(()) => no_checksum("is missing"),
                Err(error) => error,
            });
        }
        Err(error) => return Err(error),
    }
    let text = fs::read(&sums).at("read", &sums)?;
    let expected = find_checksum(&String::from_utf8_lossy(&text), file)
        .ok_or_else(|| no_checksum("does not name it"))?;

    let local = downloads.join("file");
    base.bring(file, &local, MAX_FILE_BYTES)?;
    let found = hash_file(&local).at("read", &local)?.sha256;
    if found == expected {
        Ok(local)
    } else {
        Err(Error::WrongChecksum { file: format!("{}/{file}", base.place()), expected, found })
    }
}

/// Finds a file's sum among lines of `<sum>  <name>`; a list that is one bare sum is also taken.
fn find_checksum(text: &str, file: &str) -> Option<Sha256> {
    let base_name = |name: &str| name.rsplit('/').next().map(str::to_owned);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| !words.is_empty())
        .collect();
    if let [only] = lines.as_slice()
        && let [sum] = only.as_slice()
    {
        return Sha256::parse(sum);
    }
    lines.iter().find_map(|words| match words.as_slice() {
        [sum, name] if base_name(name.trim_start_matches('*')) == base_name(file) => {
            Sha256::parse(sum)
        }
        _ => None,
    })
}

/// Takes the wanted files out of a release's archive and leaves the rest.
fn extract(
    archive: &Path,
    name: &str,
    mut wanted: BTreeMap<String, &str>,
    into: &Path,
) -> Result<()> {
    let file = File::open(archive).at("read", archive)?;
    let mut tar = tar::Archive::new(GzDecoder::new(file).take(MAX_TOTAL_BYTES));
    for entry in tar.entries().at("read", archive)? {
        let mut entry = entry.at("read", archive)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = path.trim_start_matches("./");
        if !entry.header().entry_type().is_file() {
            continue;
        }
        if let Some(destination) = wanted.remove(path) {
            let to = into.join(destination);
            make_parents(&to)?;
            let mut writer = File::create(&to).at("written", &to)?;
            io::copy(&mut entry, &mut writer).at("written", &to)?;
        }
    }
    match wanted.into_keys().next() {
        Some(wanted) => Err(Error::NotInRelease { file: name.to_owned(), wanted }),
        None => Ok(()),
    }
}

/// Fetches by curl, which every Debian has and which knows proxies and certificates of the machine.
fn download(url: &str, to: &Path, limit: u64) -> Result<()> {
    _ = fs::remove_file(to);
    let failed = |reason: String| Error::Fetch { url: url.to_owned(), reason };
    let mut last = String::new();
    for _ in 0..FETCH_TRIES {
        let output = curl(url, to, limit)
            .output()
            .map_err(|e| failed(format!("curl cannot be started ({e}); install Debian's curl")))?;
        if output.status.success() {
            return Ok(());
        }
        last = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.stdout == HTTP_NOT_FOUND {
            let (file, place) = (url.to_owned(), url.to_owned());
            return Err(Error::NotAtSource { file, place });
        }
        match output.status.code() {
            Some(code) if CURL_NO_RANGE.contains(&code) => _ = fs::remove_file(to),
            Some(_) => {}
            // Ended by a signal: whoever interrupted it does not want another try.
            None => return Err(failed("curl was interrupted".to_owned())),
        }
    }
    Err(failed(last))
}

fn curl(url: &str, to: &Path, limit: u64) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--silent", "--show-error", "--location", "--globoff"])
        .args(["--max-redirs", "5", "--connect-timeout", "20"])
        .args(["--max-time", FETCH_TIMEOUT_SECONDS])
        .args(["--speed-limit", "1000", "--speed-time", STALL_SECONDS])
        .args(["--max-filesize", &limit.to_string(), "--continue-at", "-"])
        .args(["--proto", "=http,https"])
        // An address that began with https must not be led away from it.
        .args(["--proto-redir", if url.starts_with("https:") { "=https" } else { "=http,https" }])
        .args(["--write-out", "%{http_code}", "--output"])
        .arg(to)
        .args(["--url", url])
        .stdin(Stdio::null());
    curl
}
