use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use wharf_bundle::archive::{self, pack, unpack};
use wharf_bundle::manifest::MANIFEST_NAME;
use wharf_bundle::mirror::Base;
use wharf_bundle::source::{Selection, build_to};
use wharf_bundle::{Bundle, Error, Problem, verify};

use crate::{BY, names_in, new_bundle};

#[test]
fn a_bundle_survives_packing_and_unpacking() {
    let (dir, bundle) = new_bundle();
    for name in ["one.tar", "one.tar.gz"] {
        let file = dir.path().join(name);
        pack(&bundle, &file).unwrap();
        assert_eq!(&archive::manifest(&file).unwrap(), bundle.manifest());
        assert_eq!(&archive::verify(&file).unwrap(), bundle.manifest());
        let copy = unpack(&file, &dir.path().join(format!("{name}.d"))).unwrap();
        verify(copy.dir()).unwrap();
        assert_eq!(copy.manifest(), bundle.manifest());
    }
    let magic = &fs::read(dir.path().join("one.tar.gz")).unwrap()[..2];
    assert_eq!(magic, [0x1f, 0x8b]);
}

#[test]
fn the_same_bundle_gives_the_same_bytes() {
    let ((dir, bundle), (other_dir, other)) = (new_bundle(), new_bundle());
    let (one, two) = (dir.path().join("x.tar.gz"), other_dir.path().join("x.tar.gz"));
    pack(&bundle, &one).unwrap();
    pack(&other, &two).unwrap();
    assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
}

#[test]
fn a_damaged_file_is_not_packed() {
    let (dir, bundle) = new_bundle();
    fs::write(bundle.dir().join("bin/etcd"), "longer than it was before, by far").unwrap();
    let Err(Error::Damaged(problems)) = pack(&bundle, &dir.path().join("x.tar")) else {
        panic!("packed");
    };
    assert!(matches!(&problems[..], [Problem::Damaged { path, .. }] if path == "bin/etcd"));
    assert_eq!(names_in(dir.path()), ["bundle", "cache"]);
}

#[test]
fn a_damaged_archive_is_refused_by_file_and_leaves_nothing() {
    let (dir, bundle) = new_bundle();
    let file = dir.path().join("x.tar");
    pack(&bundle, &file).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let text = b"cni/bridge of";
    let at = bytes.windows(text.len()).position(|w| w == text).unwrap();
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let Err(Error::Damaged(problems)) = unpack(&file, &dir.path().join("out")) else {
        panic!("unpacked");
    };
    assert!(matches!(&problems[..], [Problem::Damaged { path, .. }] if path == "cni/bridge"));
    assert!(archive::verify(&file).is_err());
    assert_eq!(names_in(dir.path()), ["bundle", "cache", "x.tar"]);
}

#[test]
fn a_cut_archive_is_refused() {
    let (dir, bundle) = new_bundle();
    for name in ["x.tar", "x.tar.gz"] {
        let file = dir.path().join(name);
        pack(&bundle, &file).unwrap();
        let whole = fs::read(&file).unwrap();
        for length in [0, 1, 100, 700, whole.len() / 2] {
            fs::write(&file, &whole[..length]).unwrap();
            assert!(archive::verify(&file).is_err(), "{name} of {length} bytes");
        }
    }
}

#[test]
fn what_is_in_the_way_stays() {
    let (dir, bundle) = new_bundle();
    let file = dir.path().join("x.tar");
    pack(&bundle, &file).unwrap();
    let error = unpack(&file, &dir.path().join("cache")).unwrap_err();
    assert!(matches!(error, Error::OutputExists(_)), "{error}");
    assert!(dir.path().join("cache/assets").is_dir());
}

/// Writes an archive that begins like that of `bundle` and then holds one forged entry.
fn forge(bundle: &Bundle, to: &Path, kind: tar::EntryType, name: &str, size: u64, body: &[u8]) {
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(to).unwrap(), Compression::fast()));
    let manifest = bundle.manifest().to_json();
    let header = |kind, name: &str, size| {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o755);
        header.set_cksum();
        header
    };
    let first = header(tar::EntryType::Regular, MANIFEST_NAME, manifest.len() as u64);
    tar.append(&first, manifest.as_slice()).unwrap();
    tar.append(&header(kind, name, size), body).unwrap();
    tar.into_inner().unwrap().finish().unwrap().flush().unwrap();
}

#[test]
fn forged_entries_are_refused_and_nothing_is_written() {
    let (dir, bundle) = new_bundle();
    let file = dir.path().join("x.tar.gz");
    let size = bundle.file("etcd").unwrap().size;
    let bomb = vec![0; 1 << 20];
    for (kind, name, size, body) in [
        (tar::EntryType::Symlink, "bin/etcd", 0, &b""[..]),
        (tar::EntryType::Link, "bin/etcd", 0, b""),
        (tar::EntryType::Char, "bin/etcd", 0, b""),
        (tar::EntryType::Directory, "bin", 0, b""),
        (tar::EntryType::Regular, "/tmp/wharf-escaped", 1, b"x"),
        (tar::EntryType::Regular, "../escaped", 1, b"x"),
        (tar::EntryType::Regular, "bin/unlisted", 1, b"x"),
        (tar::EntryType::Regular, "bin/etcd", bomb.len() as u64, &bomb),
        (tar::EntryType::Regular, "bin/etcd", size - 1, &bomb[..size as usize - 1]),
        (tar::EntryType::GNULongName, "././@LongLink", bomb.len() as u64, &bomb),
        (tar::EntryType::XHeader, "pax", bomb.len() as u64, &bomb),
    ] {
        forge(&bundle, &file, kind, name, size, body);
        let error = unpack(&file, &dir.path().join("out")).unwrap_err();
        assert!(matches!(error, Error::Archive(_)), "{kind:?} {name}: {error}");
        assert_eq!(names_in(dir.path()), ["bundle", "cache", "x.tar.gz"], "{kind:?} {name}");
    }
    assert!(!Path::new("/tmp/wharf-escaped").exists());
}

#[test]
fn an_archive_that_does_not_begin_with_a_manifest_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.tar");
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut tar::Header::new_ustar(), "bin/etcd", std::io::empty()).unwrap();
    let other_first = tar.into_inner().unwrap();
    let no_tar = vec![7; 2048];
    for bytes in [other_first, no_tar] {
        fs::write(&file, bytes).unwrap();
        let error = archive::verify(&file).unwrap_err();
        let text = "the archive is refused: it does not begin with bundle.json";
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn building_from_components_makes_a_directory_or_an_archive() {
    let (dir, bundle) = new_bundle();
    let from = Base::Directory(dir.path().join("cache/assets"));
    let everything = Selection::default();
    for name in ["made.d", "made.tar", "made.tar.gz"] {
        let output = dir.path().join(name);
        let made = build_to(&from, &everything, BY, &output, &mut |_| {}).unwrap();
        assert_eq!(&made, bundle.manifest(), "{name}");
        let again = build_to(&from, &everything, BY, &output, &mut |_| {}).unwrap_err();
        assert!(matches!(again, Error::OutputExists(_)), "{again}");
    }
    verify(&dir.path().join("made.d")).unwrap();
    archive::verify(&dir.path().join("made.tar.gz")).unwrap();
    let left = names_in(dir.path());
    assert_eq!(left, ["bundle", "cache", "made.d", "made.tar", "made.tar.gz"]);
}

#[test]
fn a_finished_bundle_can_be_packed() {
    let (dir, bundle) = new_bundle();
    let from = Base::Directory(bundle.dir().to_owned());
    let output = dir.path().join("x.tar");
    build_to(&from, &Selection::default(), BY, &output, &mut |_| {}).unwrap();
    archive::verify(&output).unwrap();
    let other = Selection { kubernetes: Some("1.2.3".to_owned()), ..Selection::default() };
    let output = dir.path().join("y.tar");
    let error = build_to(&from, &other, BY, &output, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "the bundle holds Kubernetes 1.36.3, not 1.2.3");
}
