use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use sha2::Digest;
use wharf_bundle::cache::Cached;
use wharf_bundle::catalogue::{component, this_arch};
use wharf_bundle::manifest::{MANIFEST_NAME, is_image_name};
use wharf_bundle::oci::{self, Image, Node};
use wharf_bundle::{Bundle, Error, Manifest, image};

use crate::{full_cache, names_in, new_bundle};

/// The files of a tar, with their headers.
type Files = BTreeMap<String, (tar::Header, Vec<u8>)>;

fn read_tar(bytes: &[u8]) -> Files {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(bytes).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        assert_eq!(entry.header().mtime().unwrap(), 0, "{path}");
        assert_eq!(entry.header().uid().unwrap(), 0, "{path}");
        files.insert(path, (entry.header().clone(), content));
    }
    files
}

/// Follows a descriptor as an importer does: by digest and size.
fn blob(files: &Files, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let (_, content) = &files[&format!("blobs/sha256/{digest}")];
    assert_eq!(hex::encode(sha2::Sha256::digest(content)), digest);
    assert_eq!(descriptor["size"].as_u64().unwrap(), content.len() as u64);
    content.clone()
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// What an importer makes of an archive: name, configuration and the files of the layer.
fn import(path: &Path) -> (String, Value, Files) {
    let files = read_tar(&fs::read(path).unwrap());
    assert_eq!(json(&files["oci-layout"].1)["imageLayoutVersion"], "1.0.0");
    let index = json(&files["index.json"].1);
    let [entry] = index["manifests"].as_array().unwrap().as_slice() else { panic!("{index}") };
    let manifest = json(&blob(&files, entry));
    assert_eq!(manifest["mediaType"], entry["mediaType"]);
    let config = json(&blob(&files, &manifest["config"]));
    let layer = zstd::decode_all(blob(&files, &manifest["layers"][0]).as_slice()).unwrap();
    let diff_id = format!("sha256:{}", hex::encode(sha2::Sha256::digest(&layer)));
    assert_eq!(config["rootfs"]["diff_ids"][0], diff_id.as_str());
    assert_eq!(files.len(), 5, "nothing else is in it");
    let name = entry["annotations"]["io.containerd.image.name"].as_str().unwrap().to_owned();
    (name, config, read_tar(&layer))
}

#[test]
fn a_bundle_holds_images_in_place_of_the_programs_that_run_in_pods() {
    let (_dir, bundle) = new_bundle();
    let images: Vec<_> = bundle.images().map(|(name, file)| (name, file.path.as_str())).collect();
    assert_eq!(
        images,
        [
            ("wharf.dev/busybox:1.35", "images/busybox.tar"),
            ("wharf.dev/coredns:1.14.7", "images/coredns.tar"),
            ("wharf.dev/metrics-server:0.9.0", "images/metrics-server.tar"),
            ("wharf.dev/pause:1", "images/pause.tar"),
        ]
    );
    for gone in ["bin/coredns", "bin/pause", "bin/busybox", "bin/metrics-server"] {
        assert_eq!(bundle.file_at(gone), None);
    }
    assert_eq!(bundle.file_at("bin/kubelet").unwrap().image, None);
    for (name, file) in bundle.images() {
        assert_eq!(import(&bundle.path_of(file)).0, name);
    }
    let (name, archive) = bundle.image_of("coredns").unwrap();
    let (_, config, layer) = import(&bundle.path_of(archive));
    assert_eq!((name, archive.version.as_str()), ("wharf.dev/coredns:1.14.7", "1.14.7"));
    assert_eq!(config["architecture"], this_arch());
    assert_eq!(config["config"]["Entrypoint"][0], "/coredns");
    let (header, program) = &layer["coredns"];
    assert_eq!((header.mode().unwrap(), header.size().unwrap()), (0o755, program.len() as u64));
    assert_eq!(program, b"bin/coredns of coredns 1.14.7\n");
    assert_eq!(layer["tmp/"].0.mode().unwrap(), 0o1777);
    assert_eq!(bundle.image_of("kubernetes"), None);
}

#[test]
fn busybox_answers_to_every_name_in_its_list() {
    let (_dir, bundle) = new_bundle();
    let (_, archive) = bundle.image_of("busybox").unwrap();
    let (_, config, layer) = import(&bundle.path_of(archive));
    assert_eq!(config["config"]["Cmd"][0], "sh");
    for name in ["bin/sh", "bin/[["] {
        let (header, _) = &layer[name];
        assert_eq!(header.entry_type(), tar::EntryType::Symlink);
        assert_eq!(header.link_name().unwrap().unwrap(), Path::new("busybox"));
    }
    // The list names the program itself too.
    assert_eq!(layer["bin/busybox"].0.entry_type(), tar::EntryType::Regular);
}

#[test]
fn a_name_that_leaves_its_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, components) = full_cache(dir.path());
    let busybox = components.iter().find(|c| c.record.component == "busybox").unwrap();
    for bad in ["../../etc/cron.d/x", "..", "", "a b", "x\u{e9}"] {
        fs::write(busybox.dir.join("share/busybox-commands.txt"), format!("sh\n{bad}\n")).unwrap();
        let error = image::make_in(&dir.path().join("made"), busybox).unwrap_err();
        assert!(matches!(error, Error::BadName { .. }), "{bad:?}: {error}");
    }
}

#[test]
fn the_same_program_gives_the_same_bytes() {
    let ((_one, one), (_two, two)) = (new_bundle(), new_bundle());
    let sums =
        |bundle: &Bundle| -> Vec<_> { bundle.images().map(|(_, file)| file.sha256).collect() };
    assert_eq!(sums(&one).len(), 4);
    assert_eq!(sums(&one), sums(&two));
}

#[test]
fn an_image_in_the_cache_is_made_again_only_when_its_program_or_its_file_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, components) = full_cache(dir.path());
    let of = |name: &str| components.iter().find(|c| c.record.component == name).unwrap();
    let coredns = of("coredns");
    assert!(image::lookup(&cache, coredns).is_none());
    let made = image::make(&cache, coredns).unwrap().unwrap();
    assert_eq!(image::lookup(&cache, coredns).unwrap().record, made.record);
    assert_eq!(names_in(&cache.images()), [format!("coredns-1.14.7-{}", this_arch())]);

    let mut other: Cached = coredns.clone();
    other.record.files[0].sha256 = of("pause").record.files[0].sha256;
    assert!(image::lookup(&cache, &other).is_none(), "another program");
    fs::write(made.dir.join("images/coredns.tar"), "damaged").unwrap();
    assert!(image::lookup(&cache, coredns).is_none(), "a damaged file");
    image::make(&cache, coredns).unwrap();
    assert!(image::lookup(&cache, coredns).is_some());

    assert!(image::make(&cache, of("etcd")).unwrap().is_none(), "etcd runs outside of pods");
    assert!(component("etcd").unwrap().image.is_none());
}

#[test]
fn a_program_that_needs_libraries_makes_no_image() {
    let dir = tempfile::tempdir().unwrap();
    // This test itself is a program that the dynamic linker loads.
    let from = std::env::current_exe().unwrap();
    assert!(!oci::is_static(&from).unwrap());
    let tree = BTreeMap::from([("x".to_owned(), Node::Program { from })]);
    let to = dir.path().join("x.tar");
    let image = Image {
        name: "wharf.dev/x:1",
        arch: this_arch(),
        entrypoint: &["/x"],
        command: &[],
        user: "",
        tree,
    };
    let error = oci::write(&image, &to).unwrap_err();
    assert!(matches!(error, Error::NotStatic(_)), "{error}");
    assert_eq!(names_in(dir.path()), Vec::<String>::new(), "nothing is left");
    fs::write(dir.path().join("short"), "#!").unwrap();
    assert!(oci::is_static(&dir.path().join("short")).unwrap());
}

#[test]
fn only_full_names_name_images() {
    for (name, fine) in [
        ("wharf.dev/pause:1", true),
        ("registry.example.org/a/b_c:v1.2-rc.1", true),
        ("pause:1", false),
        ("wharf/pause:1", false),
        ("wharf.dev/pause", false),
        ("wharf.dev/Pause:1", false),
        ("wharf.dev/pause:", false),
        ("wharf.dev/:1", false),
        ("wharf.dev/-x:1", false),
        ("--all", false),
        ("wharf.dev/pause:1 --all", false),
    ] {
        assert_eq!(is_image_name(name), fine, "{name:?}");
    }
}

#[test]
fn a_manifest_with_bad_or_repeated_image_names_is_refused() {
    let (_dir, bundle) = new_bundle();
    let change = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = bundle.manifest().clone();
        change(&mut manifest);
        fs::write(bundle.dir().join(MANIFEST_NAME), manifest.to_json()).unwrap();
        Bundle::open(bundle.dir()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(change(&|_| {}), Ok(()));
    let bad = change(&|m| m.files[0].image = Some("--help".to_owned())).unwrap_err();
    assert!(bad.contains("\"--help\" is not a full name"), "{bad}");
    let pause = Some("wharf.dev/pause:1".to_owned());
    let twice = change(&|m| m.files[0].image = pause.clone()).unwrap_err();
    assert!(twice.contains("wharf.dev/pause:1 is listed twice"), "{twice}");
}

#[test]
fn a_bundle_from_before_there_were_images_is_read() {
    let (_dir, bundle) = new_bundle();
    let mut manifest = bundle.manifest().clone();
    manifest.files.retain(|file| file.image.is_none());
    let text = String::from_utf8(manifest.to_json()).unwrap();
    assert!(!text.contains("image"), "{text}");
    fs::write(bundle.dir().join(MANIFEST_NAME), text).unwrap();
    assert_eq!(Bundle::open(bundle.dir()).unwrap().images().count(), 0);
}
