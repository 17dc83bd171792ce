//! Documents on a directory that plays a host.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use wharf_core::install::host::{
    Action, Bundled, Content, Directory, File, Grown, HostDocument, Link, Unit, Wanted, place,
    uploaded_path,
};

use super::testing::{answering, fake_root, put};
use super::{Root, apply, files, remove};

fn text_file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), mode: 0o600, content: Content::Text(text.to_owned()) }
}

fn bundled_file(path: &str, content: &str) -> File {
    let sha256 = files::sha256(content.as_bytes());
    let bundled = Bundled { path: format!("bin/{content}"), sha256, size: content.len() as u64 };
    File { path: path.to_owned(), mode: 0o755, content: Content::Bundled(bundled) }
}

fn document() -> HostDocument {
    HostDocument {
        cluster: "one".to_owned(),
        sysctls: BTreeMap::from([("net.ipv4.ip_forward".to_owned(), "1".to_owned())]),
        directories: vec![Directory { path: "/etc/wharf/pki".to_owned(), mode: 0o700 }],
        files: vec![
            text_file("/etc/wharf/pki/ca.key", "secret"),
            text_file("/etc/foreign.d/sub/wharf.conf", "a"),
            bundled_file("/opt/wharf/bin/etcd", "etcd"),
        ],
        links: vec![Link { path: "/opt/wharf/bin/e".to_owned(), target: "etcd".to_owned() }],
        grown: Grown {
            directories: ["/var/lib/kubelet", "/var/log/pods", "/run/wharf/containerd"]
                .map(str::to_owned)
                .to_vec(),
            ..Grown::default()
        },
        ..HostDocument::default()
    }
}

/// A host with what every host has, and with an uploaded file.
fn host() -> (tempfile::TempDir, Root) {
    let (directory, root) = fake_root();
    put(directory.path(), "/etc/hostname", "host\n");
    put(directory.path(), "/etc/foreign.d/other.conf", "theirs");
    put(directory.path(), "/proc/sys/net/ipv4/ip_forward", "0\n");
    for path in ["/opt", "/var/log", "/var/lib/kubelet"] {
        fs::create_dir_all(root.path(path)).unwrap();
    }
    put(directory.path(), &uploaded_path(&files::sha256(b"etcd")), "etcd");
    (directory, root)
}

/// Every path with its mode, content or target, and the moment of its last change.
fn contents(base: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut next = vec![base.to_owned()];
    while let Some(directory) = next.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let what = if metadata.is_dir() {
                next.push(path.clone());
                "directory".to_owned()
            } else if metadata.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else {
                fs::read_to_string(&path).unwrap()
            };
            let mode = metadata.permissions().mode();
            let name = path.strip_prefix(base).unwrap().display().to_string();
            // The lock comes and goes in it.
            let changed = match name == "run" {
                true => std::time::SystemTime::UNIX_EPOCH,
                false => metadata.modified().unwrap(),
            };
            all.insert(name, format!("{mode:o} {changed:?} {what}"));
        }
    }
    all
}

fn without_times(all: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let plain = |text: String| {
        let end = text.find("} ").map_or(0, |end| end + 2);
        format!("{} {}", &text[..text.find(' ').unwrap()], &text[end..])
    };
    all.into_iter().map(|(path, text)| (path, plain(text))).collect()
}

fn subjects(changes: &[wharf_core::install::host::Change]) -> Vec<&str> {
    changes.iter().map(|change| change.subject.as_str()).collect()
}

#[test]
fn the_first_document_is_carried_out_and_the_second_time_nothing_is_written() {
    let (directory, root) = host();
    let report = apply(&root, &document(), false);
    assert_eq!(report.failure, None);
    let read = |path: &str| fs::read_to_string(root.path(path)).unwrap();
    assert_eq!(read("/etc/wharf/pki/ca.key"), "secret");
    assert_eq!(read("/proc/sys/net/ipv4/ip_forward"), "1");
    let mode = |path: &str| fs::metadata(root.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("/etc/wharf/pki"), mode("/etc/wharf/pki/ca.key")), (0o700, 0o600));
    assert_eq!(mode("/etc/foreign.d/sub"), 0o755);
    let target = |path: &str| fs::read_link(root.path(path)).unwrap().display().to_string();
    assert_eq!(target("/opt/wharf/bin/etcd"), uploaded_path(&files::sha256(b"etcd")));
    assert_eq!(target("/opt/wharf/bin/e"), "etcd");

    let before = contents(directory.path());
    let again = apply(&root, &document(), false);
    assert_eq!((again.failure, again.changes), (None, Vec::new()));
    assert_eq!(contents(directory.path()), before, "not even a file of our own was written");
}

#[test]
fn a_dry_run_says_the_same_and_writes_nothing() {
    let (directory, root) = host();
    let before = contents(directory.path());
    let said = apply(&root, &document(), true);
    assert_eq!(contents(directory.path()), before);
    let done = apply(&root, &document(), false);
    assert_eq!(said.changes, done.changes);
    let before = contents(directory.path());
    let said = remove(&root, true);
    assert_eq!(contents(directory.path()), before);
    assert_eq!(subjects(&said.changes), subjects(&remove(&root, false).changes));
}

#[test]
fn a_removal_leaves_what_was_there_before_and_can_be_repeated() {
    let (directory, root) = host();
    fs::remove_dir_all(root.path(place::PROGRAMS)).unwrap();
    let before = without_times(contents(directory.path()));
    put(directory.path(), &uploaded_path(&files::sha256(b"etcd")), "etcd");
    assert_eq!(apply(&root, &document(), false).failure, None);
    put(directory.path(), "/var/lib/kubelet/pods/1/etc-hosts", "grown");
    put(directory.path(), "/var/log/pods/1/0.log", "grown");
    put(directory.path(), "/run/wharf/containerd/state", "grown");
    let report = remove(&root, false);
    assert_eq!(report.leftovers, []);
    let mut after = without_times(contents(directory.path()));
    // The fake kernel keeps the line's end that ours does not write.
    let forward = "proc/sys/net/ipv4/ip_forward";
    assert_eq!(after[forward].trim_end(), before[forward].trim_end());
    after.insert(forward.to_owned(), before[forward].clone());
    assert_eq!(after, before);
    let again = remove(&root, false);
    assert_eq!((again.changes, again.leftovers), (Vec::new(), Vec::new()));
}

#[test]
fn files_that_were_only_uploaded_are_removed_too() {
    let (_directory, root) = host();
    let report = remove(&root, false);
    assert_eq!(report.leftovers, []);
    assert_eq!(subjects(&report.changes), ["/opt/wharf/files", place::PROGRAMS]);
    assert!(!root.path(place::PROGRAMS).exists());
}

#[test]
fn what_others_have_put_into_our_places_stays_with_and_without_a_record() {
    for applied in [false, true] {
        let (directory, root) = host();
        let theirs =
            ["/opt/wharf/bin/wharf-server", "/opt/wharf/share/notes", "/etc/wharf/server.toml"];
        put(directory.path(), theirs[0], "theirs");
        if applied {
            let etcd = Directory { path: "/var/lib/wharf/etcd".to_owned(), mode: 0o700 };
            let mut document = document();
            document.directories.push(etcd);
            assert_eq!(apply(&root, &document, false).failure, None);
            put(directory.path(), "/var/lib/wharf/etcd/member/wal", "ours");
        }
        // A server was installed on the same machine since.
        put(directory.path(), theirs[1], "theirs");
        put(directory.path(), theirs[2], "theirs");
        put(directory.path(), "/var/lib/wharf/wharf.db", "theirs");
        assert_eq!(remove(&root, false).leftovers, []);
        let left = contents(directory.path());
        let file = |path: &&String| path.contains("wharf") && root.path(path).is_file();
        let left: Vec<String> = left.keys().filter(file).map(|path| format!("/{path}")).collect();
        let [server, notes, toml] = theirs;
        assert_eq!(left, [toml, server, notes, "/var/lib/wharf/wharf.db"], "{applied}");
    }
}

#[test]
fn what_looks_like_ours_but_has_no_record_is_named_and_left() {
    let (directory, root) = host();
    let unit = "/etc/systemd/system/wharf-etcd.service";
    put(directory.path(), unit, "[Service]");
    put(directory.path(), "/etc/systemd/system/wharf-server.service", "[Service]");
    put(directory.path(), "/var/lib/wharf/etcd/member/wal", "x");
    let report = remove(&root, false);
    let left: Vec<&str> = report.leftovers.iter().map(|left| left.item.as_str()).collect();
    assert_eq!(left, [unit, "/var/lib/wharf/etcd"]);
    assert!(root.path(unit).exists() && root.path("/var/lib/wharf/etcd/member/wal").exists());
}

#[test]
fn nothing_is_removed_below_units_that_do_not_stop() {
    let (directory, root) = host();
    fs::create_dir_all(root.path(place::UNITS)).unwrap();
    let unit = Unit {
        name: "wharf-one.service".to_owned(),
        text: "[Service]\n".to_owned(),
        wanted: Wanted::Present,
        inputs: Vec::new(),
    };
    assert_eq!(
        apply(&root, &HostDocument { units: vec![unit], ..document() }, false).failure,
        None
    );
    put(directory.path(), "/var/lib/kubelet/pods/1/file", "x");
    let before = without_times(contents(directory.path()));
    let deaf = answering(&directory, vec![("systemctl show", Err("no bus\nof systemd"))]);
    let report = remove(&deaf, false);
    assert_eq!(report.changes, []);
    let left: Vec<&str> = report.leftovers.iter().map(|left| left.item.as_str()).collect();
    assert_eq!(left, ["units", place::MADE]);
    assert!(report.leftovers[0].reason.contains("of systemd"), "with all that was said");
    assert_eq!(without_times(contents(directory.path())), before);
    assert_eq!(remove(&root, false).leftovers, []);
}

#[test]
fn a_table_or_route_that_cannot_be_looked_for_is_a_leftover() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    let answers = vec![("nft list tables", Err("no netlink")), ("ip route show", Err("broken"))];
    let report = remove(&answering(&directory, answers), false);
    let left: Vec<&str> = report.leftovers.iter().map(|left| left.reason.as_str()).collect();
    assert_eq!(left[..2], ["no netlink", "broken"]);
    assert!(root.path(place::MADE).exists());
}

#[test]
fn forwarding_stays_on_under_bridges_of_others_and_that_is_no_leftover() {
    let bridge = "5: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\n";
    for (bridges, forwarding) in [("", "0"), (bridge, "1")] {
        let (directory, root) = host();
        apply(&root, &document(), false);
        let answers = vec![("ip -4 -o addr show type bridge", Ok(bridges))];
        let report = remove(&answering(&directory, answers), false);
        assert_eq!(report.leftovers, []);
        let now = fs::read_to_string(root.path("/proc/sys/net/ipv4/ip_forward")).unwrap();
        assert_eq!(now, forwarding);
        assert_eq!(report.notes.iter().any(|note| note.contains("docker0")), forwarding == "1");
    }
}

#[test]
fn of_what_runtimes_share_only_our_own_entries_go() {
    let (directory, root) = host();
    put(directory.path(), "/var/log/pods/theirs_pod_9/0.log", "theirs");
    let mut document = document();
    document
        .grown
        .directories
        .extend(["/var/lib/wharf/containerd", "/var/log/containers"].map(str::to_owned));
    let shared = ["/run/containerd/s", "/run/containerd", "/var/lib/cni/results", "/var/lib/cni"];
    document.grown.shared = shared.map(str::to_owned).to_vec();
    assert_eq!(apply(&root, &document, false).failure, None);
    put(directory.path(), "/var/lib/kubelet/pods/7/etc-hosts", "ours");
    put(directory.path(), "/var/log/pods/default_pod_7/0.log", "ours");
    let sandboxes = "/var/lib/wharf/containerd/io.containerd.grpc.v1.cri/sandboxes";
    put(directory.path(), &format!("{sandboxes}/abc/hostname"), "ours");
    put(directory.path(), "/var/lib/cni/results/cni-loopback-abc-lo", "ours");
    put(directory.path(), "/var/lib/cni/results/wharf-old-eth0", "ours");
    let task = "/run/wharf/containerd/io.containerd.runtime.v2.task/k8s.io/abc/address";
    put(directory.path(), task, "unix:///run/containerd/s/ab12");
    put(directory.path(), "/run/containerd/s/ab12", "ours");
    // Somebody has installed Docker since.
    put(directory.path(), "/run/containerd/containerd.sock", "theirs");
    put(directory.path(), "/var/lib/cni/results/bridge-xyz-eth0", "theirs");
    assert_eq!(remove(&root, false).leftovers, []);
    let left = contents(directory.path());
    let is_shared = |path: &&String| {
        ["run/containerd", "var/lib/cni", "var/log/"].iter().any(|place| path.starts_with(place))
    };
    let files = left.keys().filter(is_shared).filter(|path| root.path(path).is_file());
    let theirs = [
        "run/containerd/containerd.sock",
        "var/lib/cni/results/bridge-xyz-eth0",
        "var/log/pods/theirs_pod_9/0.log",
    ];
    assert_eq!(files.collect::<Vec<_>>(), theirs);
    assert!(!root.path("/run/containerd/s").exists() && !root.path("/var/log/containers").exists());
}

#[test]
fn shared_directories_that_we_caused_go_when_they_are_empty() {
    let (directory, root) = host();
    fs::create_dir_all(root.path("/var/lib/cni")).unwrap();
    let mut document = document();
    document.grown.shared =
        ["/run/containerd", "/var/lib/cni/results", "/var/lib/cni"].map(str::to_owned).to_vec();
    assert_eq!(apply(&root, &document, false).failure, None);
    fs::create_dir_all(root.path("/run/containerd")).unwrap();
    put(directory.path(), "/var/lib/cni/results/wharf-a-eth0", "ours");
    assert_eq!(remove(&root, false).leftovers, []);
    assert!(!root.path("/run/containerd").exists() && !root.path("/var/lib/cni/results").exists());
    assert!(root.path("/var/lib/cni").exists(), "it was there before us");
}

#[test]
fn another_cluster_of_the_same_name_is_refused() {
    let (directory, root) = host();
    apply(&root, &HostDocument { identity: "1".to_owned(), ..document() }, false);
    let before = contents(directory.path());
    let other = HostDocument { identity: "2".to_owned(), ..document() };
    let failure = apply(&root, &other, false).failure.unwrap();
    assert!(failure.message.contains("another cluster that is named one"), "{failure:?}");
    assert!(failure.hint.unwrap().contains("wharf agent host remove"));
    assert_eq!(contents(directory.path()), before);
}

#[test]
fn another_clusters_host_is_refused_and_nothing_is_touched() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    let before = contents(directory.path());
    let other = HostDocument { cluster: "two".to_owned(), ..document() };
    let failure = apply(&root, &other, false).failure.unwrap();
    assert!(failure.message.contains("one") && failure.message.contains("two"), "{failure:?}");
    assert!(failure.hint.is_some());
    assert_eq!(contents(directory.path()), before);
}

#[test]
fn a_file_of_somebody_else_is_refused_and_nothing_is_touched() {
    let (directory, root) = host();
    put(directory.path(), "/etc/foreign.d/sub/wharf.conf", "theirs");
    let before = contents(directory.path());
    let report = apply(&root, &document(), false);
    let failure = report.failure.unwrap();
    assert!(failure.message.contains("/etc/foreign.d/sub/wharf.conf"), "{failure:?}");
    assert!(!failure.message.contains("theirs") && failure.detail.is_empty());
    assert_eq!(contents(directory.path()), before);
}

#[test]
fn a_file_of_the_bundle_that_is_missing_is_named_before_anything_is_touched() {
    let (directory, root) = host();
    let mut document = document();
    document.files.push(bundled_file("/opt/wharf/bin/kubelet", "kubelet"));
    let before = contents(directory.path());
    let failure = apply(&root, &document, false).failure.unwrap();
    assert!(failure.message.contains("bin/kubelet"), "{failure:?}");
    assert_eq!(contents(directory.path()), before);
}

#[test]
fn what_a_later_document_no_longer_names_is_removed_and_its_setting_restored() {
    let (_directory, root) = host();
    apply(&root, &document(), false);
    let mut later = document();
    later.files.retain(|file| file.path != "/etc/foreign.d/sub/wharf.conf");
    later.links.clear();
    later.sysctls.clear();
    let report = apply(&root, &later, false);
    assert_eq!(report.failure, None);
    let removed = ["net.ipv4.ip_forward", "/etc/foreign.d/sub/wharf.conf", "/opt/wharf/bin/e"];
    assert_eq!(subjects(&report.changes), removed);
    assert!(!root.path("/etc/foreign.d/sub/wharf.conf").exists());
    assert_eq!(fs::read_to_string(root.path("/proc/sys/net/ipv4/ip_forward")).unwrap(), "0");
    assert_eq!(apply(&root, &later, false).changes, []);
}

#[test]
fn a_file_of_ours_that_was_edited_is_written_again_with_its_mode() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    put(directory.path(), "/etc/foreign.d/sub/wharf.conf", "edited");
    let key = root.path("/etc/wharf/pki/ca.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let report = apply(&root, &document(), false);
    assert_eq!(report.failure, None);
    let written = ["/etc/wharf/pki/ca.key", "/etc/foreign.d/sub/wharf.conf"];
    assert_eq!(subjects(&report.changes), written);
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_place_that_held_something_before_keeps_it() {
    let (directory, root) = host();
    put(directory.path(), "/var/lib/wharf/wharf.db", "a server's data");
    put(directory.path(), "/etc/wharf/server.toml", "a server's configuration");
    let mut document = document();
    let etcd = Directory { path: "/var/lib/wharf/etcd".to_owned(), mode: 0o700 };
    document.directories.push(etcd);
    assert_eq!(apply(&root, &document, false).failure, None);
    put(directory.path(), "/var/lib/wharf/etcd/member/wal", "grown");
    assert_eq!(remove(&root, false).leftovers, []);
    let left = contents(directory.path());
    let ours = |path: &&String| path.starts_with("var/lib/wharf") || path.starts_with("etc/wharf");
    let left: Vec<&String> = left.keys().filter(ours).collect();
    let theirs = ["etc/wharf", "etc/wharf/server.toml", "var/lib/wharf", "var/lib/wharf/wharf.db"];
    assert_eq!(left, theirs);
}

#[test]
fn a_directory_of_ours_with_something_of_others_stays_and_is_reported() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    put(directory.path(), "/etc/foreign.d/sub/theirs.conf", "theirs");
    let report = remove(&root, false);
    let left: Vec<&str> = report.leftovers.iter().map(|left| left.item.as_str()).collect();
    assert_eq!(left, ["/etc/foreign.d/sub"]);
    assert!(root.path("/etc/foreign.d/sub/theirs.conf").exists());
    assert!(!root.path(place::MADE).exists(), "another try could do no more");
}

#[test]
fn a_directory_of_ours_that_became_a_link_is_not_followed() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    put(directory.path(), "/srv/wharf.conf", "theirs");
    fs::remove_dir_all(root.path("/etc/foreign.d/sub")).unwrap();
    symlink(root.path("/srv"), root.path("/etc/foreign.d/sub")).unwrap();
    let report = remove(&root, false);
    assert!(root.path("/srv/wharf.conf").exists());
    let left: Vec<&str> = report.leftovers.iter().map(|left| left.item.as_str()).collect();
    assert_eq!(left, ["/etc/foreign.d/sub/wharf.conf", place::MADE]);
}

#[test]
fn what_could_not_be_removed_is_removed_by_the_next_try() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    put(directory.path(), "/var/lib/kubelet/pods/1/volume/precious", "x");
    let point = root.path("/var/lib/kubelet/pods/1/volume");
    let line = format!("9 1 8:1 / {} rw - ext4 /dev/sda1 rw\n", point.display());
    put(directory.path(), "/proc/self/mountinfo", &line);
    // The directory is no mount, so it is "unmounted", and stays in the fake kernel's list.
    let report = remove(&root, false);
    let left: Vec<&str> = report.leftovers.iter().map(|left| left.item.as_str()).collect();
    assert_eq!(left, ["/var/lib/kubelet/pods/1/volume", place::MADE]);
    assert!(point.join("precious").exists());
    put(directory.path(), "/proc/self/mountinfo", "");
    assert_eq!(remove(&root, false).leftovers, []);
    assert!(root.path("/var/lib/kubelet").exists() && !point.exists());
    assert!(!root.path(place::DATA).exists());
}

#[test]
fn the_record_goes_last_and_an_empty_place_is_taken_away_without_it() {
    let (_directory, root) = host();
    apply(&root, &document(), false);
    let changes = remove(&root, false).changes;
    let last = subjects(&changes).into_iter().rev().take(2).collect::<Vec<_>>();
    assert_eq!(last, [place::DATA, place::MADE]);
    fs::create_dir_all(root.path(place::DATA)).unwrap();
    assert_eq!(subjects(&remove(&root, false).changes), [place::DATA]);
    assert!(!root.path(place::DATA).exists());
}

#[test]
fn a_disk_that_was_mounted_on_a_place_is_emptied_and_stays_mounted() {
    let (directory, root) = host();
    fs::create_dir_all(root.path(place::DATA)).unwrap();
    let point = root.path(place::DATA);
    let line = format!("9 1 8:1 / {} rw - ext4 /dev/sdb1 rw\n", point.display());
    put(directory.path(), "/proc/self/mountinfo", &line);
    apply(&root, &document(), false);
    assert!(root.path(place::MADE).exists());
    assert_eq!(remove(&root, false).leftovers, []);
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
}

#[test]
fn a_place_with_nothing_but_our_half_written_record_is_ours() {
    let half = "/var/lib/wharf/.made.json.wharf-new";
    let (directory, root) = host();
    put(directory.path(), half, "{");
    let all = ["/opt/wharf/files", place::PROGRAMS, half, place::DATA];
    assert_eq!(subjects(&remove(&root, false).changes), all);
    let (directory, root) = host();
    put(directory.path(), half, "{");
    apply(&root, &document(), false);
    assert_eq!(remove(&root, false).leftovers, []);
    assert!(!root.path(place::DATA).exists());
}

#[test]
fn what_a_crash_left_half_written_is_removed_too() {
    let (directory, root) = host();
    apply(&root, &document(), false);
    put(directory.path(), "/etc/foreign.d/sub/.wharf.conf.wharf-new", "half");
    fs::remove_file(root.path("/etc/foreign.d/sub/wharf.conf")).unwrap();
    assert_eq!(remove(&root, false).leftovers, []);
    assert!(!root.path("/etc/foreign.d/sub").exists());
    assert!(root.path("/etc/foreign.d/other.conf").exists());
}

#[test]
fn units_of_a_host_that_was_installed_in_part_leave_the_boot() {
    let (_directory, root) = host();
    let mut made = super::made::Made::new("one", "");
    made.units = ["wharf-a.service", "wharf-b.service"].map(str::to_owned).to_vec();
    made.store(&root).unwrap();
    let wants = root.path("/etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    symlink("/etc/systemd/system/wharf-a.service", wants.join("wharf-a.service")).unwrap();
    symlink("/etc/systemd/system/theirs.service", wants.join("theirs.service")).unwrap();
    assert_eq!(remove(&root, false).leftovers, []);
    assert!(!wants.join("wharf-a.service").is_symlink());
    assert!(wants.join("theirs.service").is_symlink());
}

#[test]
fn a_document_that_would_write_or_later_remove_what_a_machine_needs_is_refused() {
    let (directory, root) = host();
    let before = contents(directory.path());
    for path in ["/etc/../x/y", "/usr/bin/sh", "relative/path", "/top"] {
        let files = vec![text_file(path, "x")];
        let report = apply(&root, &HostDocument { files, ..document() }, false);
        assert!(report.failure.is_some(), "{path}");
    }
    for path in ["/", "/etc", "/var/lib", "/var/lib/docker"] {
        let grown = Grown { directories: vec![path.to_owned()], ..Grown::default() };
        let report = apply(&root, &HostDocument { grown, ..document() }, false);
        assert!(report.failure.is_some(), "{path}");
    }
    assert_eq!(contents(directory.path()), before);
}

#[test]
fn a_report_never_holds_a_files_content() {
    let (_directory, root) = host();
    let report = apply(&root, &document(), false);
    assert!(report.changes.iter().any(|change| change.action == Action::WriteFile));
    assert!(!serde_json::to_string(&report).unwrap().contains("secret"));
    assert!(!fs::read_to_string(root.path(place::MADE)).unwrap().contains("secret"));
}
