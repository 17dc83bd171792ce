//! Real loop devices of this machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use common::{Attached, MIB, Mounted, image, mkfs};
use rustix::mount::MountFlags;
use tempfile::TempDir;
use wharf_block::{
    loops::{self, Error, FileId, Observed, Options},
    shutdown,
};

const PLAIN: Options = Options { read_only: false, direct_io: false, tag: "test-plain-1" };

/// The file as it is on its disk and in its cache.
fn content(file: &File) -> Vec<u8> {
    let mut file = file;
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_written_to_the_device_is_in_the_file_and_it_is_found_again_by_file_and_tag() {
    let dir = TempDir::new().unwrap();
    let (path, file) = image(dir.path(), "disk", MIB);
    let id = FileId::of(&file).unwrap();
    let attached = Attached::new(&file, "test-found-7");
    assert!(attached.0.direct_io, "the disk of this machine can do it");

    let mut device = OpenOptions::new().write(true).open(&attached.0.path).unwrap();
    device.write_all(&[7; 4096]).unwrap();
    device.sync_all().unwrap();
    drop(device);
    assert_eq!(content(&file)[..4097], [&[7; 4096][..], &[0]].concat());

    assert_eq!(loops::find(id, "test-found-7").unwrap(), attached.found());
    fs::remove_file(path).unwrap();
    assert_eq!(loops::find(id, "test-found-7").unwrap(), attached.found(), "deleted");
    assert_eq!(loops::find(id, "test-found-8").unwrap(), [], "another generation");
    let other = FileId { inode: id.inode + 1, ..id };
    assert_eq!(loops::find(other, "test-found-7").unwrap(), [], "another file");

    loops::detach(&attached.0).unwrap();
    assert_eq!(loops::find(id, "test-found-7").unwrap(), []);
    loops::detach(&attached.0).unwrap();
}

#[test]
fn a_device_in_use_is_reported_and_goes_away_with_its_last_user() {
    let dir = TempDir::new().unwrap();
    let (_, file) = image(dir.path(), "disk", MIB);
    let attached = Attached::new(&file, "test-busy-1");
    let user = File::open(&attached.0.path).unwrap();
    let number = attached.0.number;
    let busy = loops::detach(&attached.0);
    assert!(matches!(busy, Err(Error::Busy { number: n }) if n == number), "{busy:?}");
    assert_eq!(loops::find(attached.0.file, "test-busy-1").unwrap(), attached.found());
    drop(user);
    assert_eq!(loops::find(attached.0.file, "test-busy-1").unwrap(), []);
}

#[test]
fn a_device_of_another_file_or_tag_is_never_touched() {
    let dir = TempDir::new().unwrap();
    let (_, file) = image(dir.path(), "disk", MIB);
    let attached = Attached::new(&file, "test-mine-2");
    for (file, tag) in [
        (FileId { inode: attached.0.file.inode + 1, ..attached.0.file }, "test-mine-2"),
        (attached.0.file, "test-mine-1"),
    ] {
        let other = loops::Device { file, tag: tag.to_owned(), ..attached.0.clone() };
        loops::detach(&other).unwrap();
        loops::cut(&other).unwrap();
        let grown = loops::grow(&other);
        assert!(matches!(grown, Err(Error::NotOurs { .. })), "{grown:?}");
    }
    assert_eq!(loops::find(attached.0.file, "test-mine-2").unwrap(), attached.found());
    assert_eq!(content(&File::open(&attached.0.path).unwrap()).len() as u64, MIB, "not cut");
}

#[test]
fn a_read_only_device_refuses_writes_and_says_so() {
    let dir = TempDir::new().unwrap();
    let (path, _) = image(dir.path(), "disk", MIB);
    let file = File::open(path).unwrap();
    let options = Options { read_only: true, direct_io: false, tag: "test-ro-1" };
    let attached = Attached(loops::attach(&file, options).unwrap());
    let opened = OpenOptions::new().write(true).open(&attached.0.path);
    let denied = opened.and_then(|mut device| device.write_all(&[1; 512]));
    assert!(denied.is_err(), "{denied:?}");
    let expected = Observed::Known { device: attached.0.clone(), read_only: true };
    assert!(loops::list().unwrap().contains(&expected));
}

#[test]
fn direct_io_gives_way_where_the_file_system_cannot_do_it() {
    let dir = TempDir::new().unwrap();
    let ramfs = Mounted(dir);
    rustix::mount::mount("none", ramfs.path(), "ramfs", MountFlags::empty(), None).unwrap();
    let (_, file) = image(ramfs.path(), "disk", MIB);
    let attached = Attached::new(&file, "test-direct-1");
    assert!(!attached.0.direct_io);
}

#[test]
fn a_device_grows_with_its_file() {
    let dir = TempDir::new().unwrap();
    let (_, file) = image(dir.path(), "disk", MIB);
    let attached = Attached::new(&file, "test-grow-1");
    file.set_len(3 * MIB).unwrap();
    loops::grow(&attached.0).unwrap();
    let size = File::open(&attached.0.path).unwrap().seek(SeekFrom::End(0)).unwrap();
    assert_eq!(size, 3 * MIB);
}

#[test]
fn devices_that_come_and_go_do_not_count_as_silent() {
    const ROUNDS: usize = 100;
    let dir = TempDir::new().unwrap();
    let (_, file) = image(dir.path(), "image", MIB);
    let is_over = AtomicBool::new(false);
    let (ours, silent) = thread::scope(|scope| {
        let coming_and_going = scope.spawn(|| {
            let attach = |_| Attached(loops::attach(&file, PLAIN).unwrap()).0.number;
            let ours: BTreeSet<u32> = (0..ROUNDS).map(attach).collect();
            is_over.store(true, Ordering::SeqCst);
            ours
        });
        let mut silent = BTreeSet::new();
        while !is_over.load(Ordering::SeqCst) && !coming_and_going.is_finished() {
            silent.extend(loops::list().unwrap().into_iter().filter_map(|seen| match seen {
                Observed::Silent { number, .. } => Some(number),
                Observed::Known { .. } => None,
            }));
        }
        (coming_and_going.join().unwrap(), silent)
    });
    // Others may have devices that hang.
    assert!(ours.is_disjoint(&silent), "{silent:?}");
}

#[test]
fn many_at_once_get_a_device_each() {
    const MANY: usize = 24;
    let dir = TempDir::new().unwrap();
    let together = Barrier::new(MANY);
    let attached: Vec<Attached> = thread::scope(|scope| {
        let tasks: Vec<_> = (0..MANY)
            .map(|task| {
                let (dir, together) = (dir.path(), &together);
                scope.spawn(move || {
                    let (_, file) = image(dir, &task.to_string(), MIB);
                    together.wait();
                    let attached = Attached(loops::attach(&file, PLAIN).unwrap());
                    assert_eq!(loops::find(attached.0.file, PLAIN.tag).unwrap(), attached.found());
                    attached
                })
            })
            .collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    let mut numbers: Vec<u32> = attached.iter().map(|attached| attached.0.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), MANY);
}

/// Writes, flushes, cuts in the middle of writing, and looks that the image stays as it is.
fn nothing_reaches_the_image_after_a_cut(kind: &str, direct_io: bool) {
    let dir = TempDir::new().unwrap();
    let (_, file) = image(dir.path(), "disk", 320 * MIB);
    let options = Options { read_only: false, direct_io, tag: "test-cut-1" };
    let attached = Attached(loops::attach(&file, options).unwrap());
    mkfs(kind, &attached.0.path);
    let mounted = Mounted::new(&attached.0.path, kind);
    // Names and sizes are in the journal after a flush, and at their place only much later.
    for number in 0..200 {
        fs::write(mounted.path().join(format!("file-{number}")), vec![3; 20_000]).unwrap();
    }
    let flushed = mounted.path().join("file-0");
    File::open(&flushed).unwrap().sync_all().unwrap();
    fs::write(mounted.path().join("not-flushed"), vec![4; 50_000]).unwrap();

    shutdown::cut(mounted.path(), &attached.0).unwrap();
    let before = content(&file);

    let late = OpenOptions::new().write(true).open(&flushed);
    let late = late.and_then(|mut file| file.write_all(b"late").and_then(|()| file.sync_all()));
    assert!(late.is_err(), "{late:?}");
    let raw = OpenOptions::new().read(true).write(true).open(&attached.0.path);
    let raw =
        raw.and_then(|mut device| device.write_all(&[9; 4096]).and_then(|()| device.sync_all()));
    assert!(raw.is_err(), "{raw:?}");
    drop(mounted);
    loops::detach(&attached.0).unwrap();
    assert!(before == content(&file), "the image changed after the cut");
}

#[test]
fn nothing_reaches_the_image_of_an_ext4_after_a_cut() {
    nothing_reaches_the_image_after_a_cut("ext4", true);
}

#[test]
fn nothing_reaches_the_image_of_an_ext4_after_a_cut_without_direct_io() {
    nothing_reaches_the_image_after_a_cut("ext4", false);
}

#[test]
fn nothing_reaches_the_image_of_an_xfs_after_a_cut() {
    nothing_reaches_the_image_after_a_cut("xfs", true);
}

/// A directory in which nothing is mounted any more lies on a file system of somebody else.
#[test]
fn only_the_file_system_of_the_device_that_is_meant_is_shut_down_and_thawed() {
    let dir = TempDir::new().unwrap();
    let (_, file) = image(dir.path(), "disk", 320 * MIB);
    let options = Options { read_only: false, direct_io: true, tag: "test-only-1" };
    let attached = Attached(loops::attach(&file, options).unwrap());
    mkfs("xfs", &attached.0.path);
    let mounted = Mounted::new(&attached.0.path, "xfs");
    let below = mounted.path().join("below");
    fs::create_dir(&below).unwrap();
    assert!(!shutdown::shut_down_only(&below, "7:4095").unwrap());
    fs::write(below.join("file"), "goes on").unwrap();

    let frozen = std::process::Command::new("fsfreeze").arg("-f").arg(mounted.path()).status();
    assert!(frozen.unwrap().success());
    let device = format!("7:{}", attached.0.number);
    let waiting = std::thread::spawn(move || fs::write(below.join("waits"), "x"));
    assert!(shutdown::shut_down_only(mounted.path(), &device).unwrap());
    assert!(waiting.join().unwrap().is_err(), "who waited comes loose, with an error");
}

#[test]
fn a_file_system_that_cannot_be_shut_down_is_named() {
    let tmpfs = Mounted::new("none".as_ref(), "tmpfs");
    let refused = shutdown::shut_down(tmpfs.path());
    assert!(matches!(refused, Err(shutdown::Error::NotSupported(_))), "{refused:?}");
}
