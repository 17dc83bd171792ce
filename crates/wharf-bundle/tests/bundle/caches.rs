use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use wharf_bundle::bundle::is_current;
use wharf_bundle::cache::{Cache, Cached};
use wharf_bundle::catalogue::{
    COMPONENTS, KUBERNETES, compare_versions, component, parse_version, this_arch,
};
use wharf_bundle::mirror::Base;
use wharf_bundle::source::{Selection, gather};
use wharf_bundle::{Error, Placement, Problem};

use crate::{BY, add_component, chmod, full_cache, names_in};

fn make_older(path: &Path) {
    let past = SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(path).unwrap().set_modified(past).unwrap();
}

#[test]
fn a_changed_file_of_the_same_size_is_noticed_without_hashing_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    let mut cached = add_component(&cache, component("etcd").unwrap(), "3.6.16");
    cached.check().unwrap();
    let path = cached.dir.join("bin/etcd");
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, bytes).unwrap();
    make_older(&path);
    let Err(Error::Damaged(problems)) = cached.check() else { panic!("not noticed") };
    assert!(matches!(&problems[..], [Problem::Damaged { path, .. }] if path == "bin/etcd"));
}

#[test]
fn the_fast_path_trusts_stamps_alone() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    let mut cached = add_component(&cache, component("etcd").unwrap(), "3.6.16");
    // A wrong sum beside a right stamp: only hashing could tell, and it must not happen.
    cached.record.files[0].sha256 = cached.record.files[1].sha256;
    cached.check().unwrap();
}

#[test]
fn a_file_that_only_looks_different_is_hashed_once_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    let mut cached = add_component(&cache, component("runc").unwrap(), "1.4.3");
    make_older(&cached.dir.join("bin/runc"));
    let before = cached.record.files[0].stamp;
    cached.check().unwrap();
    let stored = Cached::open(&cached.dir).unwrap();
    assert_ne!(stored.record.files[0].stamp, before);
    assert_eq!(stored.record, cached.record);
}

#[test]
fn missing_files_and_modes_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    let mut cached = add_component(&cache, component("etcd").unwrap(), "3.6.16");
    chmod(&cached.dir.join("bin/etcd"), 0o644);
    fs::remove_file(cached.dir.join("bin/etcdctl")).unwrap();
    let Err(Error::Damaged(problems)) = cached.check() else { panic!("not noticed") };
    let [Problem::WrongMode { .. }, Problem::Missing { path }] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert_eq!(path, "bin/etcdctl");
}

#[test]
fn a_bundle_of_links_is_current_until_a_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, components) = full_cache(dir.path());
    let bundle = cache.bundle_dir(KUBERNETES.version, this_arch());
    assert!(!is_current(&components, BY, &bundle));
    for placement in [Placement::Copy, Placement::Link] {
        wharf_bundle::build(&components, BY, &bundle, placement).unwrap();
        assert!(is_current(&components, BY, &bundle), "{placement:?}");
    }
    assert_eq!(names_in(&dir.path().join("bundles")).len(), 1, "the old bundle is gone");
    fs::remove_file(bundle.join("bin/kubectl")).unwrap();
    assert!(!is_current(&components, BY, &bundle));
}

#[test]
fn programs_are_found_in_the_version_of_the_catalogue_or_else_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    assert_eq!(cache.find("kubelet"), None);
    for version in ["1.34.2", "1.34.10", "1.9.9"] {
        add_component(&cache, &KUBERNETES, version);
    }
    let found = || cache.find("kubelet").unwrap().to_string_lossy().into_owned();
    assert!(found().contains("kubernetes-1.34.10-"), "{}", found());
    add_component(&cache, &KUBERNETES, "1.99.0");
    add_component(&cache, &KUBERNETES, KUBERNETES.version);
    assert!(found().contains(&format!("kubernetes-{}-", KUBERNETES.version)), "{}", found());
    assert_eq!(cache.find("no-such-program"), None);
    assert_eq!(cache.find("component.json"), None);
}

#[test]
fn what_an_interrupted_run_left_is_swept_and_never_found() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    let left = dir.path().join("assets/.partial-etcd-3.6.16-amd64-1-0/bin");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("etcd"), "half").unwrap();
    assert_eq!(cache.find("etcd"), None);
    let _lock = cache.lock(|| panic!("nobody else is here")).unwrap();
    assert_eq!(names_in(&dir.path().join("assets")), [".lock"]);
}

#[test]
fn a_second_run_waits_for_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().to_owned());
    let first = cache.lock(|| {}).unwrap();
    let (send, told) = std::sync::mpsc::channel();
    let second = std::thread::spawn(move || cache.lock(move || send.send(()).unwrap()).is_ok());
    told.recv_timeout(Duration::from_secs(10)).expect("the second run says that it waits");
    drop(first);
    assert!(second.join().unwrap());
}

#[test]
fn a_bundle_needs_every_component_but_those_of_development() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, _) = full_cache(dir.path());
    let from = Base::Directory(cache.assets());
    let output = dir.path().join("out");
    let gather = |selection: &Selection| gather(&from, selection, &output, &mut |_| {});
    fs::remove_dir_all(cache.component_dir("kwok", "0.8.0", this_arch())).unwrap();
    assert_eq!(gather(&Selection::default()).unwrap().components.len(), COMPONENTS.len() - 1);
    fs::remove_dir_all(cache.component_dir("runc", "1.4.3", this_arch())).unwrap();
    let error = gather(&Selection::default()).unwrap_err();
    assert_eq!(error.to_string(), "runc 1.4.3 is not there");
    let without = Selection { without: vec!["runc".to_owned()], ..Selection::default() };
    assert_eq!(gather(&without).unwrap().components.len(), COMPONENTS.len() - 2);
    let wrong = Selection { without: vec!["rnc".to_owned()], ..Selection::default() };
    assert!(matches!(gather(&wrong).unwrap_err(), Error::UnknownComponent { .. }));
    let other = Selection { kubernetes: Some("1.35.0".to_owned()), ..without };
    assert_eq!(gather(&other).unwrap_err().to_string(), "kubernetes 1.35.0 is not there");
}

#[test]
fn versions_are_three_numbers_and_ordered_by_them() {
    for good in ["1.36.3", "v1.36.3", "1.37.0-rc.1"] {
        assert!(parse_version(good).is_ok(), "{good}");
    }
    for bad in ["", "1.36", "1.36.x", "1.36.3/..", "../../x", "1.36.3-", "1.36.3-a/b", "1..3"] {
        assert!(parse_version(bad).is_err(), "{bad}");
    }
    let mut versions = ["1.9.9", "1.36.10", "1.36.9", "1.36.10-rc.1"];
    versions.sort_by(|a, b| compare_versions(a, b));
    assert_eq!(versions, ["1.9.9", "1.36.9", "1.36.10-rc.1", "1.36.10"]);
}
