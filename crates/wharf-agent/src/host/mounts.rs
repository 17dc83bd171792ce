//! What is mounted where, and its end.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount as unmount2};

use super::root::Root;

/// One line of mountinfo, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub id: u64,
    /// On which mount it lies.
    pub parent: u64,
    pub point: PathBuf,
    pub kind: String,
    /// As `major:minor`.
    pub device: String,
    /// Which directory of the file system is shown there.
    pub root: PathBuf,
}

/// Whoever cannot read this must not take it for "nothing is mounted".
pub(crate) fn all(root: &Root) -> io::Result<Vec<Mount>> {
    of_process(root, "self")
}

/// What a process sees.
pub(crate) fn of_process(root: &Root, process: &str) -> io::Result<Vec<Mount>> {
    fs::read(root.path(&format!("/proc/{process}/mountinfo"))).map(|text| parse(&text))
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: number, parent, device, root and
/// place are the first five words, the kind comes after the lone dash.
fn parse(text: &[u8]) -> Vec<Mount> {
    let parse_line = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ');
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        let path = |word: &[u8]| std::ffi::OsString::from_vec(unescape(word)).into();
        let (id, parent) = (text(words.next()?), text(words.next()?));
        let device = text(words.next()?);
        let root = path(words.next()?);
        let point = path(words.next()?);
        let kind = text(words.skip_while(|word| *word != b"-").nth(1)?);
        Some(Mount {
            id: id.parse().ok()?,
            parent: parent.parse().ok()?,
            point,
            kind,
            device,
            root,
        })
    };
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Everything mounted below the directory, in the order in which it was mounted, so that the last
/// can go first; with `itself` also what is mounted on the directory.
pub(crate) fn below(root: &Root, directory: &Path, itself: bool) -> io::Result<Vec<PathBuf>> {
    let Some(directory) = resolved(directory)? else { return Ok(Vec::new()) };
    let inside = |point: &Path| point.starts_with(&directory) && (itself || point != directory);
    let points = all(root)?.into_iter().map(|mount| mount.point);
    Ok(points.filter(|point| inside(point)).collect())
}

pub(crate) fn is_point(root: &Root, directory: &Path) -> io::Result<bool> {
    let directory = resolved(directory)?;
    Ok(all(root)?.into_iter().any(|mount| Some(mount.point) == directory))
}

/// The path as the kernel names mounts: links above it are followed, it itself is not. `None` when
/// there is nothing on the way to it.
pub(crate) fn resolved(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path.to_owned()));
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which mount a path is on. Two mounts of one file system differ in this and in nothing else.
pub(crate) fn id(path: &Path) -> io::Result<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::MNT_ID)?;
    match found.stx_mask & StatxFlags::MNT_ID.bits() {
        0 => Err(io::Error::other("the kernel does not say on which mount it is")),
        _ => Ok(found.stx_mnt_id),
    }
}

/// Busy mounts are detached: nobody new sees them, and they end with their last user.
pub(crate) fn unmount(point: &Path) -> io::Result<()> {
    let gone = |error: rustix::io::Errno| error == rustix::io::Errno::INVAL;
    match unmount2(point, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // Not mounted any more: it went with another one.
        Err(error) if gone(error) || error == rustix::io::Errno::NOENT => Ok(()),
        Err(_) => Ok(unmount2(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fake_root, put};
    use super::*;

    #[test]
    fn mounts_are_found_below_a_directory_that_is_reached_through_a_link() {
        let (directory, root) = fake_root();
        let point = directory.path().join("data/lib/kubelet/pods/1/volume");
        fs::create_dir_all(&point).unwrap();
        std::os::unix::fs::symlink("data", directory.path().join("var")).unwrap();
        let line = format!("9 1 8:1 /x {} rw - ext4 /dev/sda1 rw\n", point.display());
        put(directory.path(), "/proc/self/mountinfo", &line);
        let kubelet = root.path("/var/lib/kubelet");
        assert_eq!(below(&root, &kubelet, true).unwrap(), [point]);
        assert!(is_point(&root, &kubelet.join("pods/1/volume")).unwrap());
        assert_eq!(
            below(&root, &root.path("/nowhere/at/all"), true).unwrap(),
            [""; 0].map(PathBuf::from)
        );
        fs::remove_file(root.path("/proc/self/mountinfo")).unwrap();
        assert!(below(&root, &kubelet, true).is_err(), "unknown is not none");
    }

    #[test]
    fn what_is_on_another_mount_is_told_by_its_number() {
        let of = |path: &str| id(Path::new(path)).unwrap();
        assert_ne!(of("/proc"), of("/"));
        assert_eq!(of("/proc/self"), of("/proc"));
    }

    #[test]
    fn mount_points_are_read_with_their_kind_and_their_spaces() {
        let text = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            90 22 0:50 / /run/wharf/a\\040b rw - overlay overlay rw\n";
        let mounts = parse(text);
        let mount = |id, parent, device: &str, point: &str, kind: &str| Mount {
            id,
            parent,
            point: point.into(),
            kind: kind.to_owned(),
            device: device.to_owned(),
            root: "/".into(),
        };
        assert_eq!(mounts[0], mount(22, 1, "8:1", "/", "ext4"));
        assert_eq!(mounts[1], mount(90, 22, "0:50", "/run/wharf/a b", "overlay"));
    }
}
