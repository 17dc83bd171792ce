//! Mounts and file systems of volumes. Everything here may block.

#[cfg(test)]
mod in_a_guest;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use wharf_block::shutdown;
use wharf_core::volume::{
    journal::Signature,
    options::{Flag, Options},
};

use crate::host::{
    mounts::{self, Mount},
    root::Root,
};

/// Making a file system of some terabytes takes seconds; a storage that is slower is broken.
const MKFS: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_secs(20);
/// Of what a program said, people read the beginning.
const LONGEST_WORD: usize = 400;
/// Processes that are killed end soon, or hang in the kernel.
const END_TURNS: usize = 40;
const END_PAUSE: Duration = Duration::from_millis(50);
/// What is made where nobody said anything.
pub const DEFAULT_FS: &str = "ext4";

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("cannot {what}")]
    Call {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} failed: {said}")]
    Program { program: String, said: String },
    #[error("there is no {program} on this node; install the package {package} there")]
    Missing { program: String, package: &'static str },
}

impl KernelError {
    pub fn call(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Call { what: what.into(), source: source.into() }
    }
}

pub type Result<T> = std::result::Result<T, KernelError>;

/// All mounts that this process sees.
pub fn mounts() -> Result<Vec<Mount>> {
    let all = mounts::all(&Root::machine());
    all.map_err(|source| KernelError::call("read the table of mounts", source))
}

/// Whether something is mounted at this very place.
pub fn is_mounted(at: &Path) -> Result<bool> {
    Ok(mounts()?.iter().any(|mount| mount.point == at))
}

/// Whether some container still has what is mounted there.
pub fn is_in_a_container(staged: &Mount) -> bool {
    !users(staged, &seats(staged, &mounts().unwrap_or_default(), &[])).is_empty()
}

/// Ends all writing of the file system that is mounted in our own directory, if one is.
pub fn shut_down(staging: &Path) -> Result<()> {
    let all = mounts()?;
    let is_it = |mount: &&Mount| mount.point == staging && mount.root == Path::new("/");
    if let Some(staged) = all.iter().rfind(is_it) {
        // Its device has the last word.
        let _ = shutdown::shut_down_only(staging, &staged.device);
    }
    Ok(())
}

/// Where a directory that is used as it is shows.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    pub directory: &'a Path,
    pub staging: &'a Path,
    /// The directories of pods that have it.
    pub binds: &'a [PathBuf],
    /// What is above the directories of all pods.
    pub pods: &'a Path,
}

/// Takes a directory away from all containers: from the places of pods first, so that one that is started
/// meanwhile finds nothing there; then from those who have it, by their end; then from our own. That
/// comes last, because by it the others are known.
pub fn take_away(shown: &Shown) -> Result<()> {
    let ours = mounts()?;
    let Some(staged) = shown.staged(&ours) else { return Ok(()) };
    let is_bound = |mount: &&Mount| is_of(&staged, mount) && mount.point.starts_with(shown.pods);
    for bound in ours.iter().rev().filter(is_bound) {
        unmount_all(&bound.point, true)?;
    }
    end_users(&staged, &seats(&staged, &ours, shown.binds))?;
    unmount_all(shown.staging, true)
}

impl Shown<'_> {
    /// As it is mounted in our own directory; and once it is not any more, as it would be.
    fn staged(&self, ours: &[Mount]) -> Option<Mount> {
        let found = ours.iter().find(|mount| mount.point == self.staging).cloned();
        found.or_else(|| {
            let (device, root) = seat_at(self.directory, ours)?;
            let (point, kind) = (self.staging.to_owned(), String::new());
            Some(Mount { id: 0, parent: 0, point, kind, device: device.to_owned(), root })
        })
    }
}

/// Ends every process of a container that has the staged directory, and sees that none is left.
fn end_users(staged: &Mount, seats: &[Seat]) -> Result<()> {
    let what = || format!("end the users of {}", staged.point.display());
    for _ in 0..END_TURNS {
        let users = users(staged, seats);
        if users.is_empty() {
            return Ok(());
        }
        for user in users {
            // By the handle, so that nobody else gets what is meant for it; one that ended is well.
            let ended = pidfd_open(user, PidfdFlags::empty())
                .and_then(|user| pidfd_send_signal(user, Signal::KILL));
            if let Err(error) = ended
                && error != Errno::SRCH
            {
                return Err(KernelError::call(what(), error));
            }
        }
        std::thread::sleep(END_PAUSE);
    }
    Err(KernelError::call(what(), io::Error::from(io::ErrorKind::TimedOut)))
}

/// The processes with other mounts than ours that use the staged one. What cannot be looked at has
/// ended meanwhile.
fn users(staged: &Mount, seats: &[Seat]) -> Vec<Pid> {
    let machine = Root::machine();
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let ours = namespace(Path::new("/proc/self"));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut judged = BTreeMap::new();
    let mut is_user = |process: &fs::DirEntry| {
        let Some(other) = namespace(&process.path()).filter(|other| Some(other) != ours.as_ref())
        else {
            return false;
        };
        let judged = judged.entry(other).or_insert_with(|| {
            let name = process.file_name();
            let theirs = mounts::of_process(&machine, &name.to_string_lossy()).unwrap_or_default();
            decide_view(staged, seats, &theirs)
        });
        match judged {
            View::Without => false,
            View::Uses => true,
            View::SeesOurs(ids) => has_open(&process.path(), ids),
        }
    };
    let users =
        processes.filter(|process| number(process).is_some()).filter(|process| is_user(process));
    users.filter_map(|process| number(&process)).collect()
}

/// How somebody with mounts of its own sees the staged directory.
#[derive(Debug, PartialEq, Eq)]
enum View {
    /// Not at all, or as another agent of ours does: mounted at the same place.
    Without,
    /// It was given to it.
    Uses,
    /// Only by looking into our own mounts, these of its: it has all of the host's files, or kubelet's
    /// directory. It is as a program of the host, and uses what it has open.
    SeesOurs(BTreeSet<u64>),
}

/// A mount that was copied with what lies above it is still mounted on the same directory as ours. What
/// a container was given is mounted on a directory of the container.
fn decide_view(staged: &Mount, seats: &[Seat], theirs: &[Mount]) -> View {
    let found: Vec<&Mount> = theirs.iter().filter(|mount| is_of(staged, mount)).collect();
    if found.is_empty() || found.iter().any(|mount| mount.point == staged.point) {
        return View::Without;
    }
    let is_copy = |mount: &&Mount| seat(mount, theirs).is_some_and(|seat| seats.contains(&seat));
    if found.iter().all(is_copy) {
        return View::SeesOurs(found.iter().map(|mount| mount.id).collect());
    }
    View::Uses
}

/// Whether a mount shows the staged directory, or a part of it: a container may be given a directory of
/// the volume alone (`subPath`).
fn is_of(staged: &Mount, mount: &Mount) -> bool {
    mount.device == staged.device && mount.root.starts_with(&staged.root)
}

/// A directory by its file system and its place there.
type Seat<'a> = (&'a str, PathBuf);

/// On what the staged directory is mounted here, or was a moment ago.
fn seats<'a>(staged: &Mount, ours: &'a [Mount], binds: &[PathBuf]) -> Vec<Seat<'a>> {
    let now = ours.iter().filter(|mount| is_of(staged, mount)).filter_map(|it| seat(it, ours));
    now.chain(binds.iter().filter_map(|bind| seat_at(bind, ours))).collect()
}

/// The directory on which it is mounted.
fn seat<'a>(mount: &Mount, all: &'a [Mount]) -> Option<Seat<'a>> {
    let parent = all.iter().find(|one| one.id == mount.parent)?;
    let below = mount.point.strip_prefix(&parent.point).ok()?;
    Some((&parent.device, parent.root.join(below)))
}

/// The directory that is at a path, below what is mounted there.
fn seat_at<'a>(path: &Path, all: &'a [Mount]) -> Option<Seat<'a>> {
    let is_above = |mount: &&Mount| path != mount.point && path.starts_with(&mount.point);
    let parent =
        all.iter().filter(is_above).max_by_key(|mount| mount.point.components().count())?;
    let below = path.strip_prefix(&parent.point).ok()?;
    Some((&parent.device, parent.root.join(below)))
}

/// Whether a process has a file open on one of these mounts.
fn has_open(process: &Path, mounts: &BTreeSet<u64>) -> bool {
    let files = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    let mount_of = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).ok()?;
        let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        number.trim().parse::<u64>().ok()
    };
    files.filter_map(mount_of).any(|mount| mounts.contains(&mount))
}

fn number(process: &fs::DirEntry) -> Option<Pid> {
    Pid::from_raw(process.file_name().to_str()?.parse().ok()?)
}

/// What is on a device, if `wanted` is to be there.
pub fn signature(device: &Path, wanted: &str) -> Result<Signature> {
    let failed = |source| KernelError::call(format!("read {}", device.display()), source);
    let seen = magic(device).map_err(failed)?;
    let known = match seen {
        Magic::Whole(found) if found == or_default(wanted) => return Ok(Signature::Ready),
        Magic::Whole(found) => Some(found),
        Magic::Unfinished(_) | Magic::None => None,
    };
    // Whatever else there is, the system's own tool knows the names of all.
    let path = device.display().to_string();
    let ran = Root::machine()
        .run("blkid", &["-p", "-o", "value", "-s", "TYPE", "-s", "PTTYPE", &path], LOOK)
        .map_err(|source| KernelError::call("run blkid", source))?;
    let found = ran.stdout.split_whitespace().next().map(str::to_owned);
    Ok(match found.or_else(|| known.map(str::to_owned)) {
        // Nothing else is on it than what nobody can ever have mounted: it is made again.
        Some(found) if seen == Magic::Unfinished(&found) => Signature::Blank,
        Some(found) if found == or_default(wanted) => Signature::Ready,
        Some(found) => Signature::Foreign(found),
        None if ran.success || !ran.stderr.trim().is_empty() => {
            Signature::Foreign("something unknown".to_owned())
        }
        None => Signature::Blank,
    })
}

/// A file system by its magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Magic<'a> {
    None,
    Whole(&'a str),
    /// Whoever was making it was killed, or lost power.
    Unfinished(&'a str),
}

/// In the super block of xfs. `mkfs.xfs` writes the magic number with this set, and clears it with its
/// last write; the kernel mounts none with it. `mke2fs` needs no such thing: it writes the super block
/// last, after all else is on the disk (seen with `strace`), so that an unfinished one is blank.
const XFS_IN_PROGRESS: usize = 126;

/// ext4 and xfs by their magic numbers, without a process: every mount looks.
fn magic(device: &Path) -> io::Result<Magic<'static>> {
    let mut file = File::open(device)?;
    let mut start = [0; 512];
    if file.read_exact(&mut start).is_err() {
        return Err(io::Error::other("the device is empty or does not answer"));
    }
    if start.starts_with(b"XFSB") {
        let is_whole = start.get(XFS_IN_PROGRESS) == Some(&0);
        return Ok(if is_whole { Magic::Whole("xfs") } else { Magic::Unfinished("xfs") });
    }
    let mut super_block = [0; 128];
    file.seek(SeekFrom::Start(1024))?;
    if file.read_exact(&mut super_block).is_err() {
        return Ok(Magic::None);
    }
    let is_ext = super_block.get(56..58) == Some(&[0x53, 0xef]);
    // Extents, or 64 bits: older brothers have neither.
    let incompatible = super_block.get(96).copied().unwrap_or_default();
    let is_ext4 = is_ext && incompatible & 0xc0 != 0;
    Ok(if is_ext4 { Magic::Whole("ext4") } else { Magic::None })
}

fn or_default(fs_type: &str) -> &str {
    if fs_type.is_empty() { DEFAULT_FS } else { fs_type }
}

/// Makes the file system, over whatever an earlier attempt left.
pub fn format(device: &Path, fs_type: &str) -> Result<()> {
    let path = device.display().to_string();
    let (program, arguments) = match or_default(fs_type) {
        "xfs" => ("mkfs.xfs", vec!["-f", "-q", "-K", &path]),
        _ => ("mkfs.ext4", vec!["-F", "-q", "-m", "0", "-E", "nodiscard", &path]),
    };
    run(program, &arguments)
}

/// How large a device is.
pub fn size(device: &Path) -> Result<u64> {
    let size = File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    size.map_err(|source| KernelError::call(format!("measure {}", device.display()), source))
}

/// Whether a device that is mounted was given a size of nothing: what is written to it is lost. The kernel's
/// own list answers also where the device does not.
pub fn is_cut_off(device: &Path) -> bool {
    let name = device.file_name().map(Path::new).unwrap_or(device);
    let size = fs::read_to_string(Path::new("/sys/class/block").join(name).join("size"));
    size.is_ok_and(|sectors| sectors.trim() == "0")
}

/// How much a file system has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub bytes: Count,
    pub inodes: Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub total: u64,
    pub used: u64,
    /// For others than root.
    pub available: u64,
}

pub fn room(at: &Path) -> Result<Room> {
    let seen = rustix::fs::statvfs(at)
        .map_err(|error| KernelError::call(format!("ask about {}", at.display()), error))?;
    let count = |total: u64, free: u64, available: u64, unit: u64| Count {
        total: total.saturating_mul(unit),
        used: total.saturating_sub(free).saturating_mul(unit),
        available: available.saturating_mul(unit),
    };
    Ok(Room {
        bytes: count(seen.f_blocks, seen.f_bfree, seen.f_bavail, seen.f_frsize),
        inodes: count(seen.f_files, seen.f_ffree, seen.f_favail, 1),
    })
}

/// How large the file system on a device is, by its own word. What is not known counts as whole.
pub fn fs_size(device: &Path) -> Result<u64> {
    let failed = |source| KernelError::call(format!("read {}", device.display()), source);
    let mut start = [0; 2048];
    File::open(device).and_then(|mut file| file.read_exact(&mut start)).map_err(failed)?;
    let bytes = |at: usize, length: usize| start.get(at..at + length).unwrap_or_default();
    let little =
        |at: usize| bytes(at, 4).iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let big = |at: usize, length: usize| {
        bytes(at, length).iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    Ok(match bytes(0, 4) {
        b"XFSB" => big(8, 8).saturating_mul(big(4, 4)),
        _ if bytes(1024 + 56, 2) == [0x53, 0xef] => {
            let blocks = little(1024 + 4) | little(1024 + 336) << 32;
            blocks.saturating_mul(1024 << little(1024 + 24).min(6))
        }
        _ => u64::MAX,
    })
}

/// Lets the file system have all of a device that has grown.
pub fn grow(device: &Path, staged: &Path, fs_type: &str) -> Result<()> {
    match or_default(fs_type) {
        "xfs" => run("xfs_growfs", &[&staged.display().to_string()]),
        _ => run("resize2fs", &[&device.display().to_string()]),
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let ran =
        Root::machine().run(program, arguments, MKFS).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => {
                let package = if program.contains("xfs") { "xfsprogs" } else { "e2fsprogs" };
                KernelError::Missing { program: program.to_owned(), package }
            }
            _ => KernelError::call(format!("run {program}"), source),
        })?;
    if ran.success {
        return Ok(());
    }
    let said = ran.stderr.trim();
    let said = said.get(..said.floor_char_boundary(LONGEST_WORD)).unwrap_or_default();
    Err(KernelError::Program { program: program.to_owned(), said: said.replace('\n', " ") })
}

/// Mounts a device at our own directory. One that cannot be written to and was not unmounted well is
/// read as it is, without its journal.
pub fn stage(
    device: &Path,
    at: &Path,
    fs_type: &str,
    read_only: bool,
    options: &Options,
) -> Result<()> {
    let what = || format!("mount {} at {}", device.display(), at.display());
    fs::create_dir_all(at).map_err(|source| KernelError::call(what(), source))?;
    let fs_type = or_default(fs_type);
    let flags = flags(read_only, options);
    let try_with = |options: &str| {
        let data = std::ffi::CString::new(options).unwrap_or_default();
        mount(device, at, fs_type, flags, Some(data.as_c_str()))
    };
    let mounted = match try_with(&options.data) {
        Err(_) if read_only => {
            let without = if fs_type == "xfs" { "norecovery" } else { "noload" };
            let joined = [options.data.as_str(), without].into_iter().filter(|one| !one.is_empty());
            try_with(&joined.collect::<Vec<_>>().join(","))
        }
        mounted => mounted,
    };
    mounted.map_err(|error| KernelError::call(what(), error))
}

fn flags(read_only: bool, options: &Options) -> MountFlags {
    let own = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let of_options = options.flags.iter().map(|flag| match flag {
        Flag::ReadOnly => MountFlags::RDONLY,
        Flag::NoAccessTimes => MountFlags::NOATIME,
        Flag::NoDirectoryAccessTimes => MountFlags::NODIRATIME,
        Flag::RelativeAccessTimes => MountFlags::RELATIME,
        Flag::StrictAccessTimes => MountFlags::STRICTATIME,
        Flag::LazyTimes => MountFlags::LAZYTIME,
        Flag::NoDevices => MountFlags::NODEV,
        Flag::NoPrograms => MountFlags::NOEXEC,
        Flag::NoSetUser => MountFlags::NOSUID,
        Flag::Synchronous => MountFlags::SYNCHRONOUS,
        Flag::SynchronousDirectories => MountFlags::DIRSYNC,
    });
    of_options.fold(own, MountFlags::union)
}

/// Shows a directory, or what is mounted there, at another place. The kernel copies no flags of a
/// directory that is no mount, and forgets all when one is changed: they are set again.
pub fn bind(from: &Path, to: &Path, read_only: bool, options: &Options) -> Result<()> {
    let what = || format!("bind {} to {}", from.display(), to.display());
    fs::create_dir_all(to).map_err(|source| KernelError::call(what(), source))?;
    mount_bind(from, to).map_err(|error| KernelError::call(what(), error))?;
    let flags = flags(read_only, options);
    if flags.is_empty() {
        return Ok(());
    }
    let again = mount_remount(to, MountFlags::BIND | flags, "");
    again.map_err(|error| {
        // A directory that can be written to is not what was asked for.
        let _ = unmount(to, UnmountFlags::DETACH);
        KernelError::call(what(), error)
    })
}

/// Unmounts everything at a directory. One that is busy stays, unless `detach` lets its users keep
/// what they have open.
pub fn unmount_all(at: &Path, detach: bool) -> Result<()> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    loop {
        match unmount(at, flags | UnmountFlags::NOFOLLOW) {
            // Mounts on top of each other go one by one.
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => {
                return Err(KernelError::call(format!("unmount {}", at.display()), error));
            }
        }
    }
}

/// Takes a mount point of ours away, once nothing is mounted there.
pub fn remove_point(at: &Path) {
    // One that stays is used again.
    let _ = fs::remove_dir(at);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const STAGED: &str = "/k/plugins/mounts/pv";
    const POD: &str = "/k/pods/u/volumes/pv";

    fn mount(id: u64, parent: u64, device: &str, root: &str, point: &str) -> Mount {
        let kind = "ext4".to_owned();
        Mount {
            id,
            parent,
            point: point.into(),
            kind,
            device: device.to_owned(),
            root: root.into(),
        }
    }

    #[test]
    fn who_sees_a_volume_by_looking_at_the_host_is_no_container_that_was_given_it() {
        let staged = mount(3, 2, "8:9", "/all", STAGED);
        let host = [
            mount(1, 0, "8:1", "/", "/"),
            mount(2, 1, "8:2", "/disk", "/k"),
            staged.clone(),
            mount(4, 2, "8:9", "/all", POD),
        ];
        let below = |top: &str, path: &str| format!("{top}{path}");
        let container = mount(50, 40, "0:77", "/", "/");
        let given = mount(60, 50, "8:9", "/all", "/data");
        // All of the host's files, as those have who measure it.
        let all = |top: &str| {
            vec![
                container.clone(),
                mount(51, 50, "8:1", "/", top),
                mount(52, 51, "8:2", "/disk", &below(top, "/k")),
                mount(53, 52, "8:9", "/all", &below(top, STAGED)),
                mount(54, 52, "8:9", "/all", &below(top, POD)),
            ]
        };
        let of_host = View::SeesOurs([53, 54].into());
        let view = |theirs: &[Mount]| decide_view(&staged, &seats(&staged, &host, &[]), theirs);
        assert_eq!(view(&all("/host")), of_host);
        // The same when the pod's directory is unmounted here already.
        let (after, bind) = (host.get(..3).unwrap_or_default(), [PathBuf::from(POD)]);
        let seats_after = seats(&staged, after, &bind);
        assert_eq!(decide_view(&staged, &seats_after, &all("/host")), of_host);
        // The directories of pods, at the same place, as drivers of other storage have them.
        let pods = [
            container.clone(),
            mount(51, 50, "8:2", "/disk/pods", "/k/pods"),
            mount(52, 51, "8:9", "/all", POD),
        ];
        assert_eq!(view(&pods), View::SeesOurs([52].into()));
        // One that was given it uses it, whatever else it sees.
        let both = [all("/host"), vec![given.clone()]].concat();
        let part = mount(60, 50, "8:9", "/all/part", "/data");
        for theirs in [vec![container.clone(), given.clone()], vec![container.clone(), part], both]
        {
            assert_eq!(view(&theirs), View::Uses);
        }
        // The same path is not the same directory.
        let alike = mount(61, 50, "8:9", "/all", &below("/host", STAGED));
        assert_eq!(view(&[container.clone(), alike]), View::Uses);
        // What it lies on cannot be seen.
        assert_eq!(view(&[given]), View::Uses);
        let other = mount(62, 50, "8:9", "/other", "/data");
        assert_eq!(view(&[container, other]), View::Without);
        assert_eq!(view(&host), View::Without, "another agent");
        // Once it is not staged any more it is known by its path.
        let shared = [mount(1, 0, "8:1", "/", "/"), mount(9, 1, "8:9", "/", "/srv")];
        let shown = Shown {
            directory: Path::new("/srv/all"),
            staging: Path::new(STAGED),
            binds: &[],
            pods: Path::new("/k/pods"),
        };
        let known = shown.staged(&shared).unwrap();
        assert_eq!((known.device, known.root), (staged.device.clone(), staged.root.clone()));
    }

    #[test]
    fn what_a_process_has_open_is_told_by_its_mount() {
        let this = Path::new("/proc/self");
        let proc = BTreeSet::from([mounts::id(this).unwrap()]);
        let before = has_open(this, &BTreeSet::from([u64::MAX]));
        let _open = File::open("/proc/self/status").unwrap();
        assert!(!before && has_open(this, &proc));
    }

    #[test]
    fn file_systems_are_known_by_their_magic_and_what_is_foreign_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let file = File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(signature(&image, "").unwrap(), Signature::Blank);
        format(&image, "").unwrap();
        assert_eq!(signature(&image, "ext4").unwrap(), Signature::Ready);
        assert_eq!(fs_size(&image).unwrap(), 64 << 20);
        assert_eq!(signature(&image, "xfs").unwrap(), Signature::Foreign("ext4".to_owned()));
        let missing = run("mkfs.xfs.none", &[]).unwrap_err().to_string();
        assert!(missing.contains("no mkfs.xfs.none on this node; install the package xfsprogs"));
    }

    /// As `mkfs.xfs` leaves it when the power is cut: blkid calls it xfs, and no kernel mounts it.
    #[test]
    fn a_file_system_that_was_not_made_to_its_end_is_made_again() {
        wharf_testbed::debian::ensure("file systems", &[("mkfs.xfs", "xfsprogs")]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let file = File::create(&image).unwrap();
        file.set_len(320 << 20).unwrap();
        format(&image, "xfs").unwrap();
        assert_eq!(signature(&image, "xfs").unwrap(), Signature::Ready);
        file.write_all_at(&[1], XFS_IN_PROGRESS as u64).unwrap();
        for wanted in ["xfs", "ext4"] {
            assert_eq!(signature(&image, wanted).unwrap(), Signature::Blank, "{wanted}");
        }
        let mut start = [0; 512];
        File::open(&image).unwrap().read_exact_at(&mut start, 0).unwrap();
        format(&image, "ext4").unwrap();
        file.write_all_at(&start, 0).unwrap();
        let found = signature(&image, "xfs").unwrap();
        assert!(matches!(found, Signature::Foreign(_)), "something else is there, too: {found:?}");
    }
}
