//! What is mounted where, and its end.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount as unmount2};

use super::super::root::Root;

/// One line of mountinfo, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub point: PathBuf,
    pub kind: String,
}

pub(super) fn all(root: &Root) -> Vec<Mount> {
    let text = fs::read(root.path("/proc/self/mountinfo")).unwrap_or_default();
    parse(&text)
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: the fifth word is the place,
/// the kind comes after the lone dash.
fn parse(text: &[u8]) -> Vec<Mount> {
    let parse_line = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ');
        let point = unescape(words.nth(4)?);
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        let kind = String::from_utf8_lossy(kind).into_owned();
        Some(Mount { point: std::ffi::OsString::from_vec(point).into(), kind })
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
pub(super) fn below(root: &Root, directory: &Path, itself: bool) -> Vec<PathBuf> {
    let inside = |point: &Path| point.starts_with(directory) && (itself || point != directory);
    all(root).into_iter().map(|mount| mount.point).filter(|point| inside(point)).collect()
}

/// Busy mounts are detached: nobody new sees them, and they end with their last user.
pub(super) fn unmount(point: &Path) -> io::Result<()> {
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
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_kind_and_their_spaces() {
        let text = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            90 22 0:50 / /run/wharf/a\\040b rw - overlay overlay rw\n";
        let mounts = parse(text);
        assert_eq!(mounts[0], Mount { point: "/".into(), kind: "ext4".to_owned() });
        assert_eq!(mounts[1], Mount { point: "/run/wharf/a b".into(), kind: "overlay".to_owned() });
    }
}
