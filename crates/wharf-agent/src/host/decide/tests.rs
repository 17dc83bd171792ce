//! Decisions, case by case.

use wharf_core::install::host::{Content, File};

use super::*;

const UNIT: &str = "a.service";

fn unit(wanted: Wanted) -> Unit {
    let inputs = vec!["/etc/wharf/a.conf".to_owned(), "/etc/hosts".to_owned()];
    let text = "[Service]\nExecStart=/bin/true\n".to_owned();
    Unit { name: UNIT.to_owned(), text, wanted, inputs }
}

fn document(wanted: Wanted, input: &str) -> HostDocument {
    let content = Content::Text(input.to_owned());
    let file = File { path: "/etc/wharf/a.conf".to_owned(), mode: 0o600, content };
    HostDocument { files: vec![file], units: vec![unit(wanted)], ..HostDocument::default() }
}

fn observed(active: Activity, fingerprint: Option<String>) -> Observed {
    let state = UnitState { active, fingerprint, ..UnitState::default() };
    Observed { units: BTreeMap::from([(UNIT.to_owned(), state)]), ..Observed::default() }
}

#[test]
fn a_unit_is_started_when_it_is_down_and_anew_when_its_inputs_have_changed() {
    use Activity::{Active, Changing, Failed, Inactive};
    let document = document(Wanted::Started, "x");
    let same = || Some(fingerprint(&unit(Wanted::Started), &document, &Observed::default()));
    let other = || Some("other".to_owned());
    for (active, fingerprint, restart) in [
        (Active, same(), None),
        (Active, other(), Some(true)),
        (Active, None, Some(true)),
        (Changing, same(), Some(false)),
        (Changing, other(), Some(true)),
        (Inactive, same(), Some(false)),
        (Inactive, None, Some(false)),
        (Failed, same(), Some(false)),
    ] {
        let observed = observed(active, fingerprint.clone());
        let starts = decide_starts(&document, &observed);
        let found = starts.first().map(|start| start.restart);
        assert_eq!(found, restart, "{active:?} {fingerprint:?}");
    }
}

#[test]
fn a_unit_that_only_has_to_be_there_is_left_as_it_is() {
    let document = document(Wanted::Present, "x");
    for active in [Activity::Active, Activity::Inactive, Activity::Failed] {
        assert_eq!(decide_starts(&document, &observed(active, None)), []);
    }
}

#[test]
fn every_input_counts_whether_the_document_writes_it_or_not() {
    let unit = unit(Wanted::Started);
    let none = Observed::default();
    let base = fingerprint(&unit, &document(Wanted::Started, "x"), &none);
    assert_ne!(fingerprint(&unit, &document(Wanted::Started, "y"), &none), base);
    let hosts = Found::File { mode: 0o644, sha256: "1".to_owned() };
    let paths = BTreeMap::from([("/etc/hosts".to_owned(), hosts)]);
    let found = Observed { paths, ..Observed::default() };
    assert_ne!(fingerprint(&unit, &document(Wanted::Started, "x"), &found), base);
    let changed = Unit { text: "[Service]\n".to_owned(), ..unit };
    assert_ne!(fingerprint(&changed, &document(Wanted::Started, "x"), &none), base);
}

#[test]
fn a_unit_with_a_place_in_the_boot_is_enabled_also_when_its_file_is_right() {
    let mut document = document(Wanted::Present, "x");
    let made = Made::new("", "");
    let enables = |document: &HostDocument, observed: &Observed| {
        let mut steps = Vec::new();
        decide_unit_files(document, &made, observed, &mut steps).unwrap();
        steps.iter().any(|step| matches!(step, Step::WriteUnit { enable: true, .. }))
    };
    assert!(!enables(&document, &observed(Activity::Active, None)));
    document.units[0].text.push_str("[Install]\nWantedBy=multi-user.target\n");
    assert!(enables(&document, &observed(Activity::Active, None)));
    let mut enabled = observed(Activity::Active, None);
    enabled.units.get_mut(UNIT).unwrap().enabled = true;
    assert!(!enables(&document, &enabled));
}

#[test]
fn the_record_names_things_before_they_are_made_and_forgets_what_was_taken_away() {
    let document = document(Wanted::Present, "x");
    let made = Made::new("", "");
    let observed = Observed::default();
    let steps = decide_ground(&document, &made, &observed, false).unwrap();
    let record = record(&made, &steps, &document, &observed);
    for step in &steps {
        match step {
            Step::MakeDirectory { path, .. } => assert!(record.directories.contains(*path)),
            Step::WriteText { path, .. } => assert!(record.files.contains(*path)),
            Step::WriteUnit { unit, .. } => {
                assert!(record.files.contains(&unit_path(&unit.name)));
                assert!(record.units.contains(&unit.name));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    let empty = HostDocument::default();
    let during = super::record(&record, &[], &empty, &observed);
    assert_eq!(during.units, [UNIT], "still ours until it is gone");
    let done = record_done(&during, &empty);
    assert!(done.files.is_empty() && done.units.is_empty());
}

#[test]
fn a_directory_is_closed_when_it_is_too_open_and_ours_and_never_opened() {
    use wharf_core::install::host::Directory;
    let path = "/etc/wharf/pki";
    let directories = vec![Directory { path: path.to_owned(), mode: 0o711 }];
    let document = HostDocument { directories, ..HostDocument::default() };
    let makes = |mode, made: &Made| {
        let found = Found::Directory { mode, empty: false };
        let paths = [path, "/etc", "/etc/wharf"].map(|path| (path.to_owned(), found.clone()));
        let observed = Observed { paths: paths.into(), ..Observed::default() };
        !decide_ground(&document, made, &observed, false).unwrap().is_empty()
    };
    let (theirs, mut ours) = (Made::new("", ""), Made::new("", ""));
    ours.directories.insert(path.to_owned());
    for (mode, closed) in [(0o755, true), (0o711, false), (0o700, false)] {
        assert_eq!(makes(mode, &ours), closed, "{mode:o}");
        assert!(!makes(mode, &theirs), "{mode:o}");
    }
}

#[test]
fn a_grown_directory_that_was_there_before_is_kept_and_one_of_ours_is_not() {
    let mut document = HostDocument::default();
    document.grown.directories = ["/var/lib/kubelet", "/var/lib/new"].map(str::to_owned).to_vec();
    document.grown.shared = ["/run/containerd", "/var/lib/cni"].map(str::to_owned).to_vec();
    let found = Found::Directory { mode: 0o755, empty: false };
    let there = ["/var/lib/kubelet", "/run/containerd"].map(str::to_owned);
    let paths = there.map(|path| (path, found.clone())).into();
    let observed = Observed { paths, ..Observed::default() };
    let record = record(&Made::new("", ""), &[], &document, &observed);
    let kept: Vec<&String> = record.kept.iter().collect();
    assert_eq!(kept, ["/run/containerd", "/var/lib/kubelet"]);
    // What is there the second time may be ours.
    let paths = [("/var/lib/cni".to_owned(), found)].into();
    let later = Observed { paths, ..Observed::default() };
    assert_eq!(super::record(&record, &[], &document, &later).kept, record.kept);
}
