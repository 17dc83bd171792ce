//! What the kernel does only for a root with all capabilities, which the root of this machine may
//! lack: these tests go on inside a machine with a kernel of its own.

use std::{fs, path::Path, sync::Arc, time::Duration};

use tokio::sync::watch;
use wharf_core::volume::{
    backend::Backend,
    journal::{DeviceStage, Journal, PodStage, PodUse},
    options::Options,
    record::{Entry, Generation},
};
use wharf_testbed::guest::{self, Guest};

use crate::{
    config::Config,
    volumes::{Places, Shared, Volumes, boot_id, kernel, work::use_of},
};

/// An emulated processor is several times slower, and others use the real one as well.
const DEADLINE: Duration = Duration::from_secs(400);
/// What the agent runs.
const PROGRAMS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/usr/sbin/resize2fs", "/usr/sbin/blkid"];
const SMALL: u64 = 64 << 20;
const LARGE: u64 = 256 << 20;

/// The agent of a node without a cluster.
fn node(dir: &Path) -> Arc<Volumes> {
    let settings = Config::default().volumes;
    let shared = Shared {
        places: Places::of_guard(dir.join("state"), dir.join("kubelet"), None),
        policy: settings.policy(),
        terms: settings.terms(),
        scan_every: settings.scan_every(),
        reader: watch::channel(None).1,
        node_identity: watch::channel(None).1,
        tenure: watch::channel(None).1,
        made: Arc::default(),
    };
    shared.volumes("n1").unwrap()
}

/// The journal of a volume that a pod has.
fn journal(directory: &Path) -> Journal {
    let entry = Entry { generation: Generation(1), ..Entry::default() };
    let pod = PodUse {
        mount_dir: "/nowhere".to_owned(),
        pod_uid: "u".to_owned(),
        stage: PodStage::Bound,
        entry: Some(entry),
    };
    Journal {
        volume: "pv".to_owned(),
        storage_cluster: "main".to_owned(),
        image: "one".to_owned(),
        backend: Backend::Loopfile,
        parameters: [("directory".to_owned(), directory.display().to_string())].into(),
        fs_type: "ext4".to_owned(),
        mount_options: String::new(),
        boot_id: boot_id().unwrap(),
        device: DeviceStage::Staging,
        cut: false,
        pods: vec![pod],
    }
}

#[test]
fn ext4_grows_while_it_is_mounted() {
    if !guest::is_here() {
        let mut guest = Guest::new().unwrap().file(Path::new("/etc/mke2fs.conf")).unwrap();
        for program in PROGRAMS {
            guest = guest.program(Path::new(program)).unwrap();
        }
        let name = "volumes::kernel::in_a_guest::ext4_grows_while_it_is_mounted";
        let ended = guest.run_test(name, DEADLINE).unwrap();
        println!("booted in {:?}\n{}", ended.boot, ended.output);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (volumes, journal) = (node(dir.path()), journal(dir.path()));
    volumes.journals.store(&journal).unwrap();
    let used = use_of(&journal, &volumes.boot_id, &volumes.places);
    let storage = volumes.storage(&journal).unwrap();
    storage.create(&journal.image, SMALL).unwrap();
    let device = storage.map(&used).unwrap();
    kernel::format(&device.path, "").unwrap();
    kernel::stage(&device.path, &used.staging, "", false, &Options::default()).unwrap();
    let room = || kernel::room(&used.staging).unwrap().bytes.total;
    fs::write(used.staging.join("old"), "kept").unwrap();
    assert!(room() < SMALL);

    // As the elected agent does it, and then the agent of the node that has it mounted.
    storage.grow(&journal.image, LARGE).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let is_grown = runtime.block_on(volumes.grow(&journal.volume, LARGE)).unwrap();
    assert!(is_grown);
    assert_eq!(kernel::size(&device.path).unwrap(), LARGE);
    assert_eq!(kernel::fs_size(&device.path).unwrap(), LARGE);
    assert!(room() > LARGE / 10 * 9, "{}", room());
    // More than there was room for.
    let new = vec![7; usize::try_from(SMALL).unwrap() + 1];
    fs::write(used.staging.join("new"), &new).unwrap();
    assert_eq!(fs::read_to_string(used.staging.join("old")).unwrap(), "kept");

    kernel::unmount_all(&used.staging, false).unwrap();
    kernel::stage(&device.path, &used.staging, "", false, &Options::default()).unwrap();
    assert!(fs::read(used.staging.join("new")).unwrap() == new);
    kernel::unmount_all(&used.staging, false).unwrap();
    storage.unmap(&used, &device).unwrap();
}
