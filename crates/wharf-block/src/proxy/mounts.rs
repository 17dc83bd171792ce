//! Mounts of FUSE, and the switch by which the kernel ends all their requests.

use std::{
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount as unmount_one},
};

const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// More mounts on one place than this are not ours.
const MAX_LAYERS: usize = 8;

/// The number by which the kernel calls the connection of the file system that is mounted there. From
/// the list of mounts: to ask the file system itself could hang.
pub fn fuse_minor(mount_point: &Path) -> io::Result<Option<u32>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // The last one is on top.
    Ok(mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (_, minor) = fields.next()?.split_once(':')?;
        if unescaped(fields.nth(1)?) != mount_point {
            return None;
        }
        let kind = line.split(" - ").nth(1)?.split(' ').next()?;
        if kind != "fuse" {
            return None;
        }
        minor.parse().ok()
    }))
}

/// Blanks and the like are written as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        let code = tail.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => bytes.push(*first),
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Takes away every file system of FUSE that is mounted there.
pub fn unmount(mount_point: &Path) -> io::Result<()> {
    for _ in 0..MAX_LAYERS {
        if fuse_minor(mount_point)?.is_none() {
            return Ok(());
        }
        match unmount_one(mount_point, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::BUSY.into())
}

/// Ends all requests of a connection with an error, now and from now on.
pub fn abort(minor: u32) -> io::Result<()> {
    let switch = Path::new(CONNECTIONS).join(minor.to_string()).join("abort");
    if !switch.exists() && !Path::new(CONNECTIONS).join(minor.to_string()).exists() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        match mount("fusectl", CONNECTIONS, "fusectl", flags, None) {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match fs::write(switch, "1") {
        // The connection has ended by itself.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_are_read_from_the_list_of_mounts() {
        assert_eq!(unescaped(r"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescaped("/plain"), Path::new("/plain"));
        assert_eq!(unescaped(r"/end\04"), Path::new(r"/end\04"));
    }

    #[test]
    fn a_mount_of_another_kind_is_none_of_ours() {
        assert_eq!(fuse_minor(Path::new("/proc")).unwrap(), None);
        assert_eq!(fuse_minor(Path::new("/nowhere")).unwrap(), None);
    }
}
