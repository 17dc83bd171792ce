use super::*;

fn app(uuid: &str, kube_name: &str) -> App {
    let (uuid, kube_name) = (uuid.to_owned(), kube_name.to_owned());
    App { uuid, kube_name, designated: false, silent: false }
}

#[test]
fn a_log_belongs_to_the_application_with_the_longest_name_and_of_a_machine_only_its_console() {
    let apps = [app("a", "web-0b1a2"), app("b", "web-0b1a2-00000"), app("c", "vm-11111")];
    let rows = [
        ("web-0b1a2-7d9f-x", "main", Some("a")),
        ("web-0b1a2-00000-7d9f-x", "main", Some("b")),
        ("virt-launcher-vm-11111abcde-x", "guest-console-log", Some("c")),
        ("virt-launcher-vm-11111abcde-x", "compute", None),
        ("coredns-5", "main", None),
    ];
    for (pod, container, expected) in rows {
        let found = app_of(pod, container, &apps).map(|app| app.uuid.as_str());
        assert_eq!(found, expected, "{pod} {container}");
    }
}

#[test]
fn folders_and_files_are_known_by_their_names() {
    let folder = PodFolder::parse("eve-kube-app_web-0b1a2-x_12-34").unwrap();
    assert_eq!(folder.namespace, "eve-kube-app");
    assert_eq!((folder.pod.as_str(), folder.uid.as_str()), ("web-0b1a2-x", "12-34"));
    for other in ["a_b", "a_b_", "a_b_c_d", ""] {
        assert_eq!(PodFolder::parse(other), None, "{other}");
    }
    let names = [
        "1.log",
        "10.log",
        "0.log",
        "0.log.20260102-030405.gz",
        "0.log.20260102-030405",
        "0.log.20260101-030405.gz",
        "0.log.20260103-030405.tmp",
        "0.log.gz",
        "x.log",
        "0.txt",
        "1.log.20260104-030405",
    ];
    let files = LogFile::all(names.into_iter());
    let names: Vec<String> = files.iter().map(LogFile::name).collect();
    assert_eq!(
        names,
        [
            "0.log.20260101-030405.gz",
            "0.log.20260102-030405",
            "0.log",
            "1.log.20260104-030405",
            "1.log",
            "10.log"
        ]
    );
}

#[test]
fn a_file_is_known_by_its_first_line_once_that_is_whole() {
    assert_eq!(first_line(b""), None);
    assert_eq!(first_line(b"2026 stdout F hal"), None);
    let known = first_line(b"2026 stdout F hal\n");
    assert!(known.is_some());
    assert_eq!(first_line(b"2026 stdout F hal\nmore"), known);
    assert_ne!(first_line(b"2026 stdout F ha\n"), known);
    let long = [b'x'; 500];
    let known = first_line(&long);
    assert!(known.is_some());
    assert_eq!(first_line(&long[..BEGINNING]), known);
}

fn seen(restarts: u32, first: u64) -> Seen {
    Seen { restarts, first: (first > 0).then_some(first) }
}

#[test]
fn reading_goes_on_where_it_stood_or_with_the_oldest_that_is_left() {
    let at = |restarts, file: u64| Cursor {
        restarts,
        file: (file > 0).then_some(file),
        ..Cursor::default()
    };
    let begin = |file, lost| Some(Place::Begin { file, lost });
    let rows = [
        ("nothing is there", at(0, 0), vec![], None),
        ("it has not said anything", at(0, 0), vec![seen(0, 0)], None),
        ("it is new", at(0, 0), vec![seen(0, 5), seen(0, 6)], begin(0, false)),
        (
            "it is new and was started often",
            at(0, 0),
            vec![seen(3, 5), seen(4, 6)],
            begin(0, false),
        ),
        (
            "it was rotated",
            at(0, 6),
            vec![seen(0, 5), seen(0, 6), seen(0, 7)],
            Some(Place::Here(1)),
        ),
        ("all were rotated away", at(0, 2), vec![seen(0, 5), seen(0, 6)], begin(0, true)),
        (
            "the same beginning in another start",
            at(1, 6),
            vec![seen(0, 6), seen(1, 6)],
            Some(Place::Here(1)),
        ),
        (
            "started again and thrown away",
            at(1, 2),
            vec![seen(0, 1), seen(2, 0), seen(3, 4)],
            begin(2, true),
        ),
        ("only older ones", at(2, 2), vec![seen(0, 1), seen(1, 4)], None),
    ];
    for (name, cursor, files, expected) in rows {
        assert_eq!(cursor.place(&files), expected, "{name}");
    }
}

const A: &str = "2026-01-02T03:04:05.000000006Z stdout";
const B: &str = "2026-01-02T03:04:06Z stderr";

fn texts(lines: &[Line]) -> Vec<(u64, &str)> {
    lines.iter().map(|line| (line.number, line.text.as_str())).collect()
}

#[test]
fn lines_are_taken_when_they_are_whole_and_pieces_are_put_together_by_their_stream() {
    let mut cursor = Cursor::new("a");
    let log = format!("{A} P on\n{B} F other\n{A} P e, \n{A} F one\r\n{B} F \n{B} F\n{B} F ha");
    let lines = cursor.take(log.as_bytes());
    assert_eq!(texts(&lines), [(1, "other"), (2, "one, one"), (3, ""), (4, "")]);
    assert_eq!(lines[1].time, "2026-01-02T03:04:05.000000006Z".parse().unwrap());
    assert_eq!(cursor.offset as usize, log.rfind('\n').unwrap() + 1);
    let rest = format!("{B} F half\n");
    assert_eq!(texts(&cursor.take(rest.as_bytes())), [(5, "half")]);
}

#[test]
fn a_line_that_a_rotation_cut_goes_on_in_the_next_file_but_not_in_the_next_start() {
    let mut cursor = Cursor::new("a");
    assert_eq!(cursor.begin(0, 1), []);
    assert_eq!(cursor.take(format!("{A} P be\n").as_bytes()), []);
    // As it is stored and read.
    let stored = serde_json::to_string(&cursor).unwrap();
    let mut cursor: Cursor = serde_json::from_str(&stored).unwrap();
    assert_eq!(cursor.begin(0, 2), []);
    assert_eq!(cursor.offset, 0);
    assert_eq!(
        texts(&cursor.take(format!("{A} F gun\n{A} P last words\n").as_bytes())),
        [(1, "begun")]
    );
    assert!(cursor.has_begun());
    assert_eq!(texts(&cursor.begin(1, 3)), [(2, "last words")]);
    assert!(!cursor.has_begun());
}

#[test]
fn what_is_too_long_comes_in_parts_and_junk_comes_as_it_is() {
    let mut cursor = Cursor::new("a");
    let piece = format!("{A} P {}\n", "x".repeat(LONGEST_LINE / 4));
    let lines = cursor.take(piece.repeat(9).as_bytes());
    assert_eq!(lines.iter().map(|line| line.text.len()).collect::<Vec<_>>(), [LONGEST_LINE; 2]);
    assert_eq!(cursor.end()[0].text.len(), LONGEST_LINE / 4);

    let time = "2026-01-02T03:04:06Z".parse().unwrap();
    cursor.take(format!("{B} F known\n").as_bytes());
    let lines = cursor.take(b"\xff no time\n2026-01-02T03:04:09Z stdout X a\n\n");
    assert_eq!(
        texts(&lines),
        [(5, "\u{fffd} no time"), (6, "2026-01-02T03:04:09Z stdout X a"), (7, "")]
    );
    assert!(lines.iter().all(|line| line.time == time));

    assert_eq!(cursor.take(&[b'y'; LONGEST_PIECE - 1]), []);
    assert_eq!(cursor.take(&[b'y'; LONGEST_PIECE])[0].text.len(), LONGEST_PIECE);
}

#[test]
fn a_letter_that_was_cut_in_two_is_whole_again() {
    let mut cursor = Cursor::new("a");
    let mut log = format!("{A} P gr").into_bytes();
    log.push("ü".as_bytes()[0]);
    log.extend_from_slice(format!("\n{A} F ").as_bytes());
    log.push("ü".as_bytes()[1]);
    log.extend_from_slice("n\n".as_bytes());
    assert_eq!(texts(&cursor.take(&log)), [(1, "grün")]);
}
