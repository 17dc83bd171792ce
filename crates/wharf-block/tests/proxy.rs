//! The proxy with real FUSE, real loop devices and real file systems, over a block server that is
//! killed, stopped and taken away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use common::{Attached, BlockServer, MIB, Mounted, ensure_tools, mkfs, wait_for};
use rustix::process::Signal;
use tempfile::TempDir;
use wharf_block::{
    loops,
    nbd::ImageName,
    proxy::{self, Error, Health, Observed, Options, Program},
};
use wharf_testbed::{devices, place::Place};

const SOON: Duration = Duration::from_secs(30);

fn program() -> Program {
    Program { path: PathBuf::from(env!("CARGO_BIN_EXE_wharf-block")), arguments: Vec::new() }
}

/// A proxy that is stopped with this value, by force if need be.
struct Proxied {
    dir: Place,
    options: Options,
}

impl Proxied {
    fn new(server: &BlockServer, image: &ImageName, generation: u64, dead_after: Duration) -> Self {
        let options = Options {
            address: server.address.clone(),
            image: image.clone(),
            generation,
            read_only: false,
            dead_after,
            threads: 4,
        };
        Self { dir: Place::new().unwrap(), options }
    }

    fn started(server: &BlockServer, image: &ImageName, dead_after: Duration) -> Self {
        let proxied = Self::new(server, image, 1, dead_after);
        proxied.start().unwrap();
        proxied
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn start(&self) -> Result<proxy::Started, Error> {
        self.start_by(&program())
    }

    fn start_by(&self, program: &Program) -> Result<proxy::Started, Error> {
        proxy::start(program, &self.run_dir(), &self.options)
    }

    fn observe(&self) -> Observed {
        proxy::observe(&self.run_dir()).unwrap().unwrap()
    }

    fn health(&self) -> Option<Health> {
        self.observe().health
    }

    fn disk(&self) -> PathBuf {
        self.run_dir().join("mnt/disk")
    }

    fn attach(&self) -> Attached {
        let disk = OpenOptions::new().read(true).write(true).open(self.disk()).unwrap();
        Attached::new(&disk, &format!("{}@{}", self.options.image, self.options.generation))
    }

    /// Kills the worker and waits until another serves.
    fn kill_worker(&self) {
        let before = self.observe();
        before.worker.as_ref().unwrap().kill().unwrap();
        wait_for("a new worker", SOON, || {
            let now = self.observe();
            now.worker.is_some() && now.worker != before.worker && now.health.is_some()
        });
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.run_dir().join("log"));
            eprintln!("the proxy's log: {}", log.unwrap_or_default());
            let _aborted = proxy::abort(&self.run_dir());
        }
        let stopped = proxy::stop(&self.run_dir());
        assert!(stopped.is_ok() || thread::panicking(), "{stopped:?}");
    }
}

/// Writes and verifies for some seconds; the device is a raw one.
fn fio(device: &Path, seconds: u32) -> Child {
    ensure_tools();
    Command::new("fio")
        .args(["--name=verify", "--rw=randwrite", "--bsrange=4k-256k", "--size=48m"])
        .args(["--ioengine=libaio", "--iodepth=16", "--direct=1", "--fsync=100"])
        .args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--time_based"])
        .args([format!("--runtime={seconds}"), format!("--filename={}", device.display())])
        .current_dir(std::env::temp_dir())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn assert_verified(fio: Child) {
    let output = fio.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{said}\n{errors}");
    assert!(said.contains("err= 0"), "{said}");
}

#[test]
fn workers_that_are_killed_cost_no_error_and_no_byte() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    let attached = proxied.attach();
    assert!(attached.0.direct_io);
    let mut fio = fio(&attached.0.path, 4);
    let mut kills = 0;
    while fio.try_wait().unwrap().is_none() && kills < 12 {
        proxied.kill_worker();
        kills += 1;
        thread::sleep(Duration::from_millis(150));
    }
    assert!(kills >= 3, "only {kills} workers were killed under way");
    assert_verified(fio);
    assert_eq!(proxied.observe().starts, kills + 1);
    assert_eq!(proxied.health(), Some(Health::Serving));
}

/// As an upgrade does it, and what another version may have written.
#[test]
fn a_program_that_is_replaced_under_a_writer_costs_no_error_and_unknown_options_are_passed_over() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let proxied = Proxied::new(&server, &image, 1, Duration::from_secs(30));
    let copy = TempDir::new().unwrap();
    let installed = copy.path().join("wharf-block");
    fs::copy(program().path, &installed).unwrap();
    proxied.start_by(&Program { path: installed.clone(), arguments: Vec::new() }).unwrap();
    let attached = proxied.attach();
    let mut fio = fio(&attached.0.path, 10);
    let fresh = copy.path().join("fresh");
    fs::copy(program().path, &fresh).unwrap();
    fs::rename(&fresh, &installed).unwrap();
    proxied.kill_worker();

    let file = proxied.run_dir().join("options.json");
    let text = fs::read_to_string(&file).unwrap();
    let newer = text.replacen('{', "{\"of_a_later_version\":[1],", 1);
    fs::write(copy.path().join("options"), newer).unwrap();
    fs::rename(copy.path().join("options"), &file).unwrap();
    proxied.kill_worker();
    assert!(fio.try_wait().unwrap().is_none(), "all of it was under the writer");
    assert_verified(fio);
    assert_eq!(proxied.observe().options, proxied.options);
    assert_eq!(proxied.start().unwrap().disk, proxied.disk(), "the agent after it finds it");
}

/// The kernel lets nobody do so who lacks the capability, as root of a test machine may.
#[test]
fn a_worker_does_not_make_the_kernel_wait_for_itself_or_says_why() {
    const MEMALLOC_NOIO: u64 = 0x0008_0000;
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    let worker = proxied.observe().worker.unwrap().pid;
    let has = rustix::thread::capabilities(None).unwrap().effective;
    if !has.contains(rustix::thread::CapabilitySet::SYS_RESOURCE) {
        let log = fs::read_to_string(proxied.run_dir().join("log")).unwrap();
        assert!(log.contains("may wait for itself when memory is short"), "{log}");
        return;
    }
    for thread in fs::read_dir(format!("/proc/{worker}/task")).unwrap() {
        let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        assert_ne!(fields[6].parse::<u64>().unwrap() & MEMALLOC_NOIO, 0, "{stat}");
    }
}

#[test]
fn a_server_that_is_killed_in_mid_write_and_comes_back_costs_no_error() {
    let mut server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    let attached = proxied.attach();
    let fio = fio(&attached.0.path, 3);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(400));
        server.kill();
        wait_for("the loss to be told", SOON, || {
            matches!(proxied.health(), Some(Health::Reconnecting { .. }))
        });
        server.run();
        wait_for("the return to be told", SOON, || proxied.health() == Some(Health::Serving));
    }
    assert_verified(fio);
}

#[test]
fn a_proxy_outlives_a_killed_starter_and_is_found_by_the_next() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let proxied = Proxied::new(&server, &image, 1, Duration::from_secs(30));
    let mut starter = Command::new(program().path)
        .args(["start".as_ref(), proxied.run_dir().as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let options = serde_json::to_string(&proxied.options).unwrap();
    writeln!(starter.stdin.as_ref().unwrap(), "{options}").unwrap();
    let mut disk = String::new();
    BufReader::new(starter.stdout.take().unwrap()).read_line(&mut disk).unwrap();
    let attached = proxied.attach();
    let before = proxied.observe();
    let fio = fio(&attached.0.path, 1);
    starter.kill().unwrap();
    starter.wait().unwrap();
    assert_verified(fio);

    assert_eq!(proxied.start().unwrap().disk.to_str().unwrap(), disk.trim());
    let after = proxied.observe();
    assert_eq!((&after.holder, &after.worker), (&before.holder, &before.worker), "the same");
    let holder = before.holder.unwrap().pid;
    let stat = fs::read_to_string(format!("/proc/{holder}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_eq!(fields[3], holder.to_string(), "it leads a session of its own");
    for number in 0..3 {
        let open = fs::read_link(format!("/proc/{holder}/fd/{number}")).unwrap();
        let ours = open.starts_with(proxied.run_dir()) || open == Path::new("/dev/null");
        assert!(ours, "{open:?} is of the starter");
    }

    let other = Options { generation: 2, ..proxied.options.clone() };
    let refused = proxy::start(&program(), &proxied.run_dir(), &other);
    assert!(matches!(refused, Err(Error::Different(_))), "{refused:?}");
}

/// Writes one file again and again with a flush after each, until it fails.
fn write_until_error(dir: &Path) -> std::io::Error {
    let path = dir.join("canary");
    for turn in 0u64.. {
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&turn.to_le_bytes()).and_then(|()| file.sync_all())
        });
        if let Err(error) = written {
            return error;
        }
    }
    unreachable!()
}

#[test]
fn a_server_that_stays_away_is_reported_and_cut_within_the_bound() {
    let mut server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let dead_after = Duration::from_secs(2);
    let proxied = Proxied::started(&server, &image, dead_after);
    let attached = proxied.attach();
    mkfs("ext4", &attached.0.path);
    let mounted = Mounted::new(&attached.0.path, "ext4");
    let dir = mounted.path().to_owned();
    let writer = thread::spawn(move || write_until_error(&dir));
    wait_for("a first write", SOON, || mounted.path().join("canary").exists());
    server.kill();
    let begun = Instant::now();
    let error = writer.join().unwrap();
    assert!(error.raw_os_error().is_some(), "{error:?}");
    assert!(begun.elapsed() < dead_after * 4, "{:?}", begun.elapsed());
    let health = proxied.health();
    assert!(matches!(health, Some(Health::Dead { for_good: false, .. })), "{health:?}");
    drop(mounted);
    loops::detach(&attached.0).unwrap();
    server.run();
    wait_for("the return to be told", SOON, || proxied.health() == Some(Health::Serving));
    let mut disk = File::open(proxied.disk()).unwrap();
    disk.seek(SeekFrom::Start(1024)).unwrap();
    disk.read_exact(&mut [0; 1024]).unwrap();
}

#[test]
fn a_flush_under_way_when_the_servers_machine_starts_anew_is_no_success() {
    let mut server = BlockServer::start();
    let image = server.create("one", MIB);
    server.kill();
    server.run_in_boot("first");
    let proxied = Proxied::started(&server, &image, SOON * 2);
    let disk = OpenOptions::new().read(true).write(true).open(proxied.disk()).unwrap();
    disk.write_all_at(&[1; 4096], 0).unwrap();
    disk.sync_data().unwrap();
    // Nothing is lost that was flushed.
    server.kill();
    server.run_in_boot("second");
    disk.write_all_at(&[2; 4096], 0).unwrap();

    server.signal(Signal::STOP);
    let flushed = thread::scope(|scope| {
        let (began, begun) = mpsc::channel();
        let disk = &disk;
        let flush = scope.spawn(move || {
            began.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            disk.sync_data()
        });
        let flusher = Path::new("/proc").join(begun.recv().unwrap()).join("stat");
        let state = || fs::read_to_string(&flusher).unwrap();
        wait_for("the flush to wait", SOON, || !state().contains(") R "));
        server.kill();
        server.run_in_boot("third");
        flush.join().unwrap()
    });
    assert_eq!(flushed.unwrap_err().raw_os_error(), Some(5));
    let health = proxied.health();
    assert!(matches!(health, Some(Health::Dead { for_good: true, .. })), "{health:?}");
    assert!(disk.write_all_at(&[3; 4096], 0).is_err());
}

#[test]
fn a_writer_that_hangs_on_a_stopped_server_is_freed_by_an_abort() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(120));
    let attached = proxied.attach();
    mkfs("ext4", &attached.0.path);
    let mounted = Mounted::new(&attached.0.path, "ext4");
    let dir = mounted.path().to_owned();
    let writer = thread::spawn(move || write_until_error(&dir));
    wait_for("a first write", SOON, || mounted.path().join("canary").exists());
    server.signal(Signal::STOP);
    // The device still says who it is, and the proxy how it is.
    wait_for("the silence to be told", SOON, || {
        matches!(proxied.health(), Some(Health::Reconnecting { .. }))
    });
    assert_eq!(loops::find(attached.0.file, &attached.0.tag).unwrap(), attached.found());
    assert!(!writer.is_finished(), "it hangs");
    let begun = Instant::now();
    proxy::abort(&proxied.run_dir()).unwrap();
    writer.join().unwrap();
    let left = proxied.observe();
    assert_eq!((left.holder, left.worker), (None, None), "nobody is left who could send");
    drop(mounted);
    loops::detach(&attached.0).unwrap();
    proxy::stop(&proxied.run_dir()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(proxy::observe(&proxied.run_dir()).unwrap(), None);
    assert!(!proxied.run_dir().exists());
}

#[test]
fn a_higher_generation_ends_a_proxy_in_mid_write_and_none_of_its_bytes_come_after() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    let attached = proxied.attach();
    let device = attached.0.path.clone();
    let writer = thread::spawn(move || {
        let mut device = OpenOptions::new().write(true).open(device).unwrap();
        for turn in 1..=u8::MAX {
            let written = device
                .seek(SeekFrom::Start(0))
                .and_then(|_| device.write_all(&vec![turn; 32 * MIB as usize]))
                .and_then(|()| device.sync_all());
            if written.is_err() {
                return turn;
            }
        }
        panic!("nobody cut the writer");
    });
    let first_byte = || {
        let mut byte = [0];
        File::open(server.image_file(&image)).unwrap().read_exact(&mut byte).unwrap();
        byte[0]
    };
    wait_for("a second turn", SOON, || first_byte() > 1);
    let mut next = server.open(&image, 2, "another").unwrap();
    let before = fs::read(server.image_file(&image)).unwrap();
    assert!(writer.join().unwrap() > 1);
    assert!(matches!(proxied.health(), Some(Health::Fenced { .. })));
    // What the loop device has not written yet is dropped, and does not come through.
    loops::detach(&attached.0).unwrap();
    assert!(before == fs::read(server.image_file(&image)).unwrap(), "the image changed");
    next.flush().unwrap();
    let again = proxied.start();
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
}

#[test]
fn a_proxy_that_nobody_uses_tells_of_the_loss_and_the_return_of_its_server() {
    let mut server = BlockServer::start();
    let image = server.create("one", MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    server.kill();
    wait_for("the loss to be told", SOON, || {
        matches!(proxied.health(), Some(Health::Reconnecting { .. }))
    });
    server.run();
    wait_for("the return to be told", SOON, || proxied.health() == Some(Health::Serving));
}

#[test]
fn a_proxy_that_nobody_uses_learns_that_it_is_shut_out() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    server.control().fence(&image, 2).unwrap();
    wait_for("the fence to be told", SOON, || {
        matches!(proxied.health(), Some(Health::Fenced { .. }))
    });
    let error = File::open(proxied.disk()).unwrap().read(&mut [0; 512]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
}

#[test]
fn an_xfs_is_whole_on_the_next_generation_and_a_disk_grows() {
    let server = BlockServer::start();
    let image = server.create("one", 320 * MIB);
    let text = vec![b'x'; 3 * MIB as usize];
    {
        let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
        let attached = proxied.attach();
        mkfs("xfs", &attached.0.path);
        let mounted = Mounted::new(&attached.0.path, "xfs");
        fs::write(mounted.path().join("text"), &text).unwrap();
    }
    let proxied = Proxied::new(&server, &image, 2, Duration::from_secs(30));
    proxied.start().unwrap();
    let attached = proxied.attach();
    {
        let mounted = Mounted::new(&attached.0.path, "xfs");
        assert!(fs::read(mounted.path().join("text")).unwrap() == text);
    }
    proxy::grow(&proxied.run_dir(), 400 * MIB).unwrap();
    loops::grow(&attached.0).unwrap();
    let size = File::open(&attached.0.path).unwrap().seek(SeekFrom::End(0)).unwrap();
    assert_eq!(size, 400 * MIB);
    let mut device = OpenOptions::new().write(true).open(&attached.0.path).unwrap();
    device.seek(SeekFrom::Start(400 * MIB - 4096)).unwrap();
    device.write_all(&[7; 4096]).unwrap();
    device.sync_all().unwrap();
    drop(device);
    proxied.kill_worker();
    let mut last = [0];
    let mut file = File::open(server.image_file(&image)).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.read_exact(&mut last).unwrap();
    assert_eq!(last, [7]);
    let smaller = proxy::grow(&proxied.run_dir(), MIB);
    assert!(smaller.is_err(), "a disk never becomes smaller");
}

#[test]
fn readers_of_one_generation_are_several_and_cannot_write() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let mut writer = server.open(&image, 1, "writer").unwrap();
    writer.write(0, &[5; 4096], true).unwrap();
    writer.close();
    let readers = [0, 1].map(|_| {
        let mut proxied = Proxied::new(&server, &image, 2, Duration::from_secs(30));
        proxied.options.read_only = true;
        proxied.start().unwrap();
        proxied
    });
    for reader in &readers {
        let mut byte = [0];
        File::open(reader.disk()).unwrap().read_exact(&mut byte).unwrap();
        assert_eq!(byte, [5]);
        let mut disk = OpenOptions::new().write(true).open(reader.disk()).unwrap();
        assert_eq!(disk.write(&[1; 512]).unwrap_err().raw_os_error(), Some(30));
    }
}

#[test]
fn what_cannot_start_leaves_nothing_behind() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    server.control().fence(&image, 5).unwrap();
    let fenced = Proxied::new(&server, &image, 4, Duration::from_secs(5));
    let refused = fenced.start();
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    let mut away = Proxied::new(&server, &image, 6, Duration::from_millis(500));
    away.options.address = "127.0.0.1:1".to_owned();
    let unreachable = away.start();
    assert!(matches!(unreachable, Err(Error::Unreachable(_))), "{unreachable:?}");
    let missing = ImageName::new("two").unwrap();
    let missing = Proxied::new(&server, &missing, 1, Duration::from_millis(500));
    let unreachable = missing.start();
    assert!(matches!(unreachable, Err(Error::Unreachable(_))), "{unreachable:?}");
    for proxied in [&fenced, &away, &missing] {
        assert!(!proxied.run_dir().exists());
        assert_eq!(proxy::observe(&proxied.run_dir()).unwrap(), None);
    }
}

#[test]
fn a_proxy_in_use_is_not_stopped_and_a_hung_worker_is_ended() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let proxied = Proxied::started(&server, &image, Duration::from_secs(30));
    let attached = proxied.attach();
    let busy = proxy::stop(&proxied.run_dir());
    assert!(matches!(busy, Err(Error::Busy(_))), "{busy:?}");
    assert_eq!(proxied.health(), Some(Health::Serving));
    loops::detach(&attached.0).unwrap();
    let worker = proxied.observe().worker.unwrap();
    let pid = rustix::process::Pid::from_raw(worker.pid as i32).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    proxy::stop(&proxied.run_dir()).unwrap();
    assert!(!worker.is_alive());
    assert!(!proxied.run_dir().exists());
}

/// A test was killed while the server of its device was stopped: whoever syncs all disks would hang. Whoever
/// makes the next place for devices takes it away.
#[test]
fn what_a_killed_test_left_is_taken_away_by_the_next() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let (place, mut owner) = Place::of_another().unwrap();
    let long = Duration::from_secs(600);
    let options = Proxied::new(&server, &image, 1, long).options.clone();
    let run_dir = place.join("state/proxies/pv-1");
    let started = proxy::start(&program(), &run_dir, &options).unwrap();
    let disk = OpenOptions::new().read(true).write(true).open(&started.disk).unwrap();
    let options = loops::Options { read_only: false, direct_io: true, tag: "test-killed" };
    let device = loops::attach(&disk, options).unwrap();
    drop(disk);
    server.signal(Signal::STOP);
    let path = device.path.clone();
    let hung = thread::spawn(move || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(&[1; 4096], 0)?;
        file.sync_all()
    });
    let under_way = format!("/sys/block/loop{}/inflight", device.number);
    wait_for("the write to be on its way", SOON, || {
        let counts = fs::read_to_string(&under_way).unwrap();
        counts.split_whitespace().nth(1) != Some("0")
    });
    assert_eq!(devices::workers(&place).len(), 2, "one holds the device, and one works");

    let _early = Place::new().unwrap();
    assert_eq!(devices::workers(&place).len(), 2, "its owner lives");
    owner.kill().unwrap();
    owner.wait().unwrap();
    // Others who begin with a test may be at it, too.
    wait_for("the place to go", SOON, || {
        let _next = Place::new().unwrap();
        !place.exists()
    });
    assert!(hung.join().unwrap().is_err(), "who waited is told");
    assert_eq!(devices::workers(&place), []);
    assert_eq!(devices::mounts(&place), Vec::<String>::new());
    wait_for("the device to go", SOON, || devices::loop_devices(&place).is_empty());
}
