use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::Digest;
use wharf_bundle::cache::ORIGIN_RELEASE;
use wharf_bundle::catalogue::{COMPONENTS, Component, component, expand, this_arch};
use wharf_bundle::mirror::{Base, fetch};
use wharf_bundle::source::{Selection, build_to};
use wharf_bundle::{Bundle, Error, verify};

use crate::web::serve;
use crate::{BY, names_in, stand_in, write};

/// A mirror of stand-ins in the layout that the projects publish.
fn fill_mirror(root: &Path) {
    for component in COMPONENTS {
        let dir = root.join(component.name).join(format!("v{}", component.version));
        let expand = |text| expand(text, component.version, this_arch());
        match component.release.archive.map(expand) {
            Some(archive) => {
                write_release(component, &dir.join(&archive));
                write_checksum(component, &dir, &archive);
            }
            None => {
                for file in component.files {
                    let name = expand(file.released_as);
                    write(&dir.join(&name), &stand_in(component, component.version, file.path));
                    write_checksum(component, &dir, &name);
                }
            }
        }
    }
}

fn write_release(component: &Component, path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut tar =
        tar::Builder::new(GzEncoder::new(File::create(path).unwrap(), Compression::fast()));
    let mut add = |name: &str, text: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o755);
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    };
    add("README.md", "not wanted");
    for file in component.files {
        let name = expand(file.released_as, component.version, this_arch());
        add(&name, &stand_in(component, component.version, file.path));
    }
    tar.into_inner().unwrap().finish().unwrap();
}

/// As the projects do it: kubernetes with a bare sum, others with names.
fn write_checksum(component: &Component, dir: &Path, file: &str) {
    let sum = sum_of(&dir.join(file));
    let name = component.release.checksums.replace("{file}", file);
    let base_name = file.rsplit('/').next().unwrap();
    let other = "0".repeat(64);
    let text = match component.name {
        "kubernetes" => sum,
        "etcd" => format!("{other}  etcd-other.zip\n{sum}  {base_name}\n"),
        _ => format!("{sum} *{base_name}\n"),
    };
    write(&dir.join(name), &text);
}

fn sum_of(path: &Path) -> String {
    hex::encode(sha2::Sha256::digest(fs::read(path).unwrap()))
}

fn build_from(base: &Base, output: &Path) -> Result<wharf_bundle::Manifest, Error> {
    build_to(base, &Selection::default(), BY, output, &mut |_| {})
}

#[test]
fn a_mirror_in_a_directory_makes_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    fill_mirror(&dir.path().join("mirror"));
    let output = dir.path().join("bundle");
    let base = Base::parse(dir.path().join("mirror").to_str().unwrap()).unwrap();
    let manifest = build_from(&base, &output).unwrap();
    verify(&output).unwrap();
    let in_bundle = |c: &Component| if c.image.is_some() { 1 } else { c.files.len() };
    let files: usize = COMPONENTS.iter().map(in_bundle).sum();
    assert_eq!(manifest.files.len(), files);
    assert_eq!(Bundle::open(&output).unwrap().images().count(), 4, "made here");
    assert!(manifest.created.origin.values().all(|origin| origin == ORIGIN_RELEASE));
    let shim = fs::read_to_string(output.join("bin/containerd-shim-runc-v2")).unwrap();
    assert_eq!(shim, "bin/containerd-shim-runc-v2 of containerd 2.2.9\n");
    assert_eq!(names_in(dir.path()), ["bundle", "mirror"], "nothing else is left");
}

#[test]
fn a_mirror_over_http_makes_the_same_bundle_and_a_broken_download_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    fill_mirror(&dir.path().join("mirror"));
    let local = build_from(&Base::Directory(dir.path().join("mirror")), &dir.path().join("local"));
    let web = serve(&dir.path().join("mirror"), Some("/kubelet"));
    let base = Base::parse(&web.url).unwrap();
    let fetched = build_from(&base, &dir.path().join("fetched")).unwrap();
    assert_eq!(fetched, local.unwrap());
    verify(&dir.path().join("fetched")).unwrap();
    assert_eq!(web.continued.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_wrong_checksum_names_the_file_and_both_sums() {
    let dir = tempfile::tempdir().unwrap();
    let mirror = dir.path().join("mirror");
    fill_mirror(&mirror);
    let runc = mirror.join(format!("runc/v1.4.3/runc.{}", this_arch()));
    let expected = sum_of(&runc);
    File::options().append(true).open(&runc).unwrap().write_all(b"evil").unwrap();
    let web = serve(&mirror, None);
    for base in [Base::Directory(mirror), Base::parse(&web.url).unwrap()] {
        let error = build_from(&base, &dir.path().join("bundle")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::WrongChecksum { .. }), "{text}");
        for part in ["runc.", &expected, &sum_of(&runc)] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert_eq!(names_in(dir.path()), ["mirror"], "nothing is kept");
    }
}

#[test]
fn what_a_mirror_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let web = serve(dir.path(), None);
    let into = dir.path().join("into");
    let kubelet = format!("kubernetes/v1.36.3/bin/linux/{}/kubelet", this_arch());
    let etcd = format!("etcd/v3.6.16/etcd-v3.6.16-linux-{}.tar.gz", this_arch());
    for (name, removed, told) in [
        ("kubernetes", kubelet.clone(), "kubelet is not at"),
        ("kubernetes", kubelet + ".sha256", "kubelet.sha256 is missing"),
        ("etcd", etcd, ".tar.gz is not at"),
        ("etcd", "etcd/v3.6.16/SHA256SUMS".to_owned(), "SHA256SUMS is missing"),
    ] {
        for base in [Base::Directory(dir.path().to_owned()), Base::parse(&web.url).unwrap()] {
            fill_mirror(dir.path());
            fs::remove_file(dir.path().join(&removed)).unwrap();
            let component = component(name).unwrap();
            let base = base.join(name);
            let error = fetch(&base, component, component.version, this_arch(), &into).unwrap_err();
            assert!(error.to_string().contains(told), "{error} (without {removed})");
            fs::remove_dir_all(&into).unwrap();
        }
    }
}

#[test]
fn a_checksum_of_another_file_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    fill_mirror(dir.path());
    let sums = dir.path().join("runc/v1.4.3/runc.sha256sum");
    let text = fs::read_to_string(&sums).unwrap();
    for wrong in [text.replace("runc.", "runc-other."), "short  runc.amd64".into(), String::new()] {
        fs::write(&sums, wrong).unwrap();
        let base = Base::Directory(dir.path().join("runc"));
        let component = component("runc").unwrap();
        let into = dir.path().join("into");
        let error = fetch(&base, component, "1.4.3", this_arch(), &into).unwrap_err();
        assert!(matches!(error, Error::NoChecksum { .. }), "{error}");
    }
}

#[test]
fn a_release_without_a_wanted_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fill_mirror(dir.path());
    // An archive with a good checksum and the files of another project.
    let coredns = dir.path().join("coredns/v1.14.7");
    let name = format!("coredns_1.14.7_linux_{}.tgz", this_arch());
    write_release(component("cni-plugins").unwrap(), &coredns.join(&name));
    write_checksum(component("coredns").unwrap(), &coredns, &name);
    let base = Base::Directory(dir.path().to_owned());
    let error = build_from(&base, &dir.path().join("bundle")).unwrap_err();
    assert_eq!(error.to_string(), format!("{name} holds no coredns"));
}

#[test]
fn a_mirror_may_lack_what_only_development_needs() {
    let dir = tempfile::tempdir().unwrap();
    let mirror = dir.path().join("mirror");
    fill_mirror(&mirror);
    fs::remove_dir_all(mirror.join("kwok")).unwrap();
    let mut notes = Vec::new();
    let base = Base::Directory(mirror);
    let output = dir.path().join("bundle.tar");
    build_to(&base, &Selection::default(), BY, &output, &mut |n| notes.push(n.to_owned())).unwrap();
    assert!(notes.iter().any(|n| n == "kwok 0.8.0 is not there and is left out"), "{notes:?}");
}

#[test]
fn only_directories_and_web_addresses_are_sources() {
    for bad in ["ftp://127.0.0.1/x", "file:///tmp", "/no/such/directory", "", "-o/tmp/x"] {
        assert!(matches!(Base::parse(bad), Err(Error::BadSource(_))), "{bad}");
    }
}
