use std::fs;
use std::os::unix::fs::symlink;

use wharf_bundle::manifest::{MANIFEST_NAME, check_path};
use wharf_bundle::{Bundle, Error, Manifest, Mode, Problem, verify};

use crate::{chmod, new_bundle, write};

#[test]
fn a_new_bundle_is_good_and_lists_its_files() {
    let (_dir, bundle) = new_bundle();
    verify(bundle.dir()).unwrap();
    let containerd: Vec<_> = bundle.files_of("containerd").map(|f| f.name()).collect();
    assert_eq!(containerd, ["containerd", "containerd-shim-runc-v2", "ctr"]);
    let kubelet = bundle.file("kubelet").unwrap();
    assert_eq!(kubelet.version, "1.36.3");
    assert!(bundle.path_of(kubelet).ends_with("bundle/bin/kubelet"));
    let text = fs::read_to_string(bundle.path_of(kubelet)).unwrap();
    assert_eq!(text, "bin/kubelet of kubernetes 1.36.3\n");
}

#[test]
fn a_manifest_survives_writing_and_reading() {
    let (dir, bundle) = new_bundle();
    let manifest = bundle.manifest();
    assert_eq!(&Manifest::from_json(&manifest.to_json()).unwrap(), manifest);
    assert_eq!(fs::read(bundle.dir().join(MANIFEST_NAME)).unwrap(), manifest.to_json());
    let text = String::from_utf8(manifest.to_json()).unwrap();
    assert!(text.contains(r#""mode": "0755""#), "{text}");
    let here = dir.path().to_string_lossy().into_owned();
    assert!(!text.contains(&here), "a manifest names no path of the machine");
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let (_dir, bundle) = new_bundle();
    let at = |path: &str| bundle.dir().join(path);
    let expected = bundle.file("etcd").unwrap().content();
    fs::write(at("bin/etcd"), "bin/etcd of etcd 9.9.99\n").unwrap();
    fs::remove_file(at("bin/ctr")).unwrap();
    fs::remove_file(at("bin/runc")).unwrap();
    symlink("/bin/true", at("bin/runc")).unwrap();
    chmod(&at("bin/kubelet"), 0o4755);
    write(&at("bin/unknown"), "x");

    let problems = verify(bundle.dir()).unwrap_err();
    assert_eq!(problems.len(), 5, "{problems:#?}");
    let path = |p: &str| p.to_owned();
    assert!(problems.contains(&Problem::Missing { path: path("bin/ctr") }));
    assert!(problems.contains(&Problem::Extra { path: path("bin/unknown") }));
    let link = Problem::NotAFile { path: path("bin/runc"), kind: "a symbolic link" };
    assert!(problems.contains(&link));
    let mode = problems.iter().find(|p| matches!(p, Problem::WrongMode { .. })).unwrap();
    assert_eq!(mode.to_string(), "bin/kubelet has mode 4755, expected 0755");
    let Some(Problem::Damaged { path, expected: listed, found }) =
        problems.iter().find(|p| matches!(p, Problem::Damaged { .. }))
    else {
        panic!("{problems:#?}");
    };
    assert_eq!((path.as_str(), *listed), ("bin/etcd", expected));
    assert_ne!(found.sha256, expected.sha256);
}

#[test]
fn a_linked_directory_is_not_followed() {
    let (dir, bundle) = new_bundle();
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(bundle.dir().join("cni"), &elsewhere).unwrap();
    symlink(&elsewhere, bundle.dir().join("cni")).unwrap();
    let problems = verify(bundle.dir()).unwrap_err();
    let link = Problem::NotAFile { path: "cni".to_owned(), kind: "a symbolic link" };
    assert_eq!(problems, [link]);
}

#[test]
fn paths_that_leave_the_bundle_are_refused() {
    for (path, fine) in [
        ("bin/kubelet", true),
        ("images/pause.tar", true),
        ("", false),
        ("/etc/passwd", false),
        ("../x", false),
        ("bin/../../x", false),
        ("bin/..", false),
        ("./bin/x", false),
        ("bin//x", false),
        ("bin/", false),
        ("bin\\x", false),
        ("bin/a\nb", false),
        (MANIFEST_NAME, false),
        (&"x".repeat(101), false),
    ] {
        assert_eq!(check_path(path).is_ok(), fine, "{path:?}");
    }
}

#[test]
fn a_manifest_with_a_bad_entry_is_refused_by_name() {
    let (_dir, bundle) = new_bundle();
    let change = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = bundle.manifest().clone();
        change(&mut manifest);
        fs::write(bundle.dir().join(MANIFEST_NAME), manifest.to_json()).unwrap();
        assert!(Bundle::open(bundle.dir()).is_err());
        let problems = verify(bundle.dir()).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        change(&|m| m.files[0].path = "../../etc/cron.d/x".to_owned()),
        [r#"path "../../etc/cron.d/x" leaves the bundle"#]
    );
    let twice = change(&|m| m.files[1].path = m.files[0].path.clone());
    assert_eq!(twice, [r#"path "bin/containerd" is listed twice"#]);
    let format = change(&|m| m.format = 2);
    assert_eq!(format, ["bundle format 2 is not known here, only 1"]);
    let huge = change(&|m| m.files[0].size = u64::MAX);
    assert_eq!(huge.len(), 2, "{huge:?}");
}

#[test]
fn a_manifest_cannot_ask_for_set_id_bits() {
    assert!(Mode::try_from("4755".to_owned()).is_err());
    assert!(Mode::try_from("rwx".to_owned()).is_err());
    assert_eq!(Mode::try_from("0755".to_owned()), Ok(Mode::EXECUTABLE));
}

#[test]
fn a_directory_without_a_manifest_is_no_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let error = Bundle::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NotABundle(_)), "{error}");
    fs::write(dir.path().join(MANIFEST_NAME), "{").unwrap();
    assert!(matches!(Bundle::open(dir.path()).unwrap_err(), Error::Damaged(_)));
}
