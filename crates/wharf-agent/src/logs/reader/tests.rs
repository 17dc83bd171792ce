use std::{
    fs::{self, File, OpenOptions},
    io::Write,
};

use flate2::{Compression, write::GzEncoder};
use tempfile::TempDir;

use super::*;
use crate::logs::file::FileSink;

const APP: &str = "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
const POD: &str = "eve-kube-app_web-0b1a2-x7k2p_11-22";

fn apps() -> Vec<App> {
    let (uuid, kube_name) = (APP.to_owned(), "web-0b1a2".to_owned());
    vec![App { uuid, kube_name, designated: true, silent: false }]
}

/// A container's folder, as kubelet and runtime keep it.
struct Container {
    folder: PathBuf,
    restarts: u32,
    clock: u64,
}

impl Container {
    fn new(root: &Path, pod: &str, name: &str) -> Self {
        let folder = root.join(pod).join(name);
        fs::create_dir_all(&folder).unwrap();
        let new = Self { folder, restarts: 0, clock: 0 };
        File::create(new.current()).unwrap();
        new
    }

    fn current(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.restarts))
    }

    fn stamp(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn write(&mut self, stream: &str, tag: &str, text: &str) {
        let nanos = self.stamp();
        let line = format!("2026-01-02T03:04:05.{nanos:09}Z {stream} {tag} {text}\n");
        let mut file = OpenOptions::new().append(true).open(self.current()).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    /// The older ones are compressed, the new one is begun.
    fn rotate(&mut self) {
        let mine = format!("{}.log.", self.restarts);
        for entry in fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with(&mine) && !name.ends_with(".gz") {
                let to = self.folder.join(format!("{name}.gz"));
                let mut encoder = GzEncoder::new(File::create(to).unwrap(), Compression::fast());
                encoder.write_all(&fs::read(&path).unwrap()).unwrap();
                encoder.finish().unwrap();
                fs::remove_file(path).unwrap();
            }
        }
        let time = self.stamp();
        let to = self.folder.join(format!("{}.log.20260102-{time:06}", self.restarts));
        fs::rename(self.current(), to).unwrap();
        File::create(self.current()).unwrap();
    }

    fn restart(&mut self) {
        self.restarts += 1;
        File::create(self.current()).unwrap();
    }
}

fn texts(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.line.text.clone()).collect()
}

/// Looks so often that nothing more is waited for.
fn read_all(reader: &mut Reader, now: &mut Instant) -> Vec<String> {
    read_of(&apps(), reader, now)
}

fn read_of(apps: &[App], reader: &mut Reader, now: &mut Instant) -> Vec<String> {
    let mut found = Vec::new();
    for _ in 0..40 {
        *now += Duration::from_secs(2);
        reader.look(apps, *now);
        loop {
            let (entries, more) = reader.read();
            found.extend(texts(&entries));
            if !more {
                break;
            }
        }
        assert_eq!(reader.faults(), []);
    }
    found
}

fn reader(dir: &TempDir, now: Instant) -> Reader {
    Reader::new(dir.path(), "eve-kube-app", BTreeMap::new(), now)
}

#[test]
fn only_containers_of_applications_are_read() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    let rows = [
        (POD, "main"),
        ("eve-kube-app_other-x_33", "main"),
        ("kube-system_web-0b1a2-x_44", "main"),
        ("eve-kube-app_virt-launcher-web-0b1a2abc-x_55", "compute"),
        ("eve-kube-app_virt-launcher-web-0b1a2abc-x_55", "guest-console-log"),
    ];
    for (pod, container) in rows {
        Container::new(dir.path(), pod, container).write(
            "stdout",
            "F",
            &format!("{pod} {container}"),
        );
    }
    let mut found = read_all(&mut reader(&dir, now), &mut now);
    found.sort();
    assert_eq!(
        found,
        [
            "eve-kube-app_virt-launcher-web-0b1a2abc-x_55 guest-console-log".to_owned(),
            format!("{POD} main")
        ]
    );
}

#[test]
fn what_comes_later_is_found_in_pods_that_are_known_already() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    Container::new(dir.path(), POD, "main").write("stdout", "F", "main");
    let mut reader = reader(&dir, now);
    for _ in 0..3 {
        reader.look(&[], now);
        assert_eq!(texts(&reader.read().0), [""; 0], "it belongs to no application yet");
    }
    assert_eq!(read_all(&mut reader, &mut now), ["main"]);
    Container::new(dir.path(), POD, "second").write("stdout", "F", "second");
    assert_eq!(read_all(&mut reader, &mut now), ["second"]);
    let other = "eve-kube-app_web-0b1a2-other_33-44";
    Container::new(dir.path(), other, "main").write("stdout", "F", "other");
    assert_eq!(read_all(&mut reader, &mut now), ["other"]);
}

#[test]
fn more_containers_than_are_read_are_a_fault_until_there_is_room() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    for number in 0..=MOST_CONTAINERS {
        fs::create_dir_all(dir.path().join(POD).join(format!("c{number:03}"))).unwrap();
    }
    let mut reader = reader(&dir, now);
    for _ in 0..4 {
        reader.look(&apps(), now);
        assert_eq!(reader.faults().len(), 1);
    }
    let read: Vec<PathBuf> = reader.tails.iter().map(|tail| tail.folder.clone()).collect();
    fs::remove_dir(&read[0]).unwrap();
    reader.look(&apps(), now);
    now += FORGOTTEN;
    reader.look(&apps(), now);
    reader.faults();
    reader.look(&apps(), now);
    assert_eq!((reader.faults().len(), reader.tails.len()), (0, MOST_CONTAINERS));
}

#[test]
fn what_a_pod_said_last_is_read_when_it_and_its_application_are_gone() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut container = Container::new(dir.path(), POD, "main");
    container.write("stdout", "F", "hello");
    let mut reader = reader(&dir, now);
    assert_eq!(read_all(&mut reader, &mut now), ["hello"]);
    container.write("stdout", "F", "good");
    container.write("stdout", "P", "bye");
    fs::remove_dir_all(dir.path().join(POD)).unwrap();
    reader.look(&[], now);
    assert_eq!(texts(&reader.read().0), ["good", "bye"]);
    assert_eq!(reader.cursors().len(), 1);
    reader.look(&[], now + FORGOTTEN);
    assert_eq!(reader.cursors().len(), 0);
}

#[test]
fn a_last_line_without_an_end_comes_when_nothing_follows_it() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut container = Container::new(dir.path(), POD, "main");
    container.write("stderr", "P", "died of");
    let mut reader = reader(&dir, now);
    reader.look(&apps(), now);
    assert_eq!(reader.read().0.len(), 0);
    assert_eq!(read_all(&mut reader, &mut now), ["died of"]);
    // A rotation writes what has no end yet, and nothing may follow.
    container.write("stdout", "P", "ready? ");
    container.rotate();
    assert_eq!(read_all(&mut reader, &mut now), ["ready? "]);
    container.write("stdout", "F", "yes");
    assert_eq!(read_all(&mut reader, &mut now), ["yes"]);
}

#[test]
fn a_container_that_says_much_does_not_keep_others_waiting() {
    let (dir, now) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut loud = Container::new(dir.path(), POD, "a");
    for _ in 0..3 * MOST_LINES {
        loud.write("stdout", "F", &"x".repeat(200));
    }
    Container::new(dir.path(), POD, "b").write("stdout", "F", "quiet");
    let mut reader = reader(&dir, now);
    reader.look(&apps(), now);
    let (entries, more) = reader.read();
    assert!(more, "there is a limit");
    assert!(entries.iter().any(|entry| entry.line.text == "quiet"));
    assert!(entries.len() < 2 * MOST_LINES, "{}", entries.len());
}

#[test]
fn a_folder_that_is_not_there_is_a_fault_and_nothing_is_forgotten() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    let root = dir.path().join("pods");
    let mut container = Container::new(&root, POD, "main");
    container.write("stdout", "F", "1");
    let mut reader = Reader::new(&root, "eve-kube-app", BTreeMap::new(), now);
    assert_eq!(read_all(&mut reader, &mut now), ["1"]);
    let stored = reader.cursors();
    fs::rename(&root, dir.path().join("away")).unwrap();
    let mut reader = Reader::new(&root, "eve-kube-app", stored, now);
    reader.look(&apps(), now);
    let faults = reader.faults();
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].0, root.display().to_string());
    let elsewhere: Vec<App> =
        apps().into_iter().map(|app| App { designated: false, ..app }).collect();
    reader.look(&elsewhere, now);
    assert_eq!(reader.faults(), [], "no application is meant for this node");
    fs::rename(dir.path().join("away"), &root).unwrap();
    container.write("stdout", "F", "2");
    assert_eq!(read_all(&mut reader, &mut now), ["2"]);
}

#[test]
fn an_application_whose_logs_nobody_wants_is_not_read_until_somebody_does() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut container = Container::new(dir.path(), POD, "main");
    container.write("stdout", "F", "1");
    let mut reader = reader(&dir, now);
    assert_eq!(read_all(&mut reader, &mut now), ["1"]);
    let silent: Vec<App> = apps().into_iter().map(|app| App { silent: true, ..app }).collect();
    container.write("stdout", "F", "2");
    assert_eq!(read_of(&silent, &mut reader, &mut now), [""; 0]);
    let mut reader = Reader::new(dir.path(), "eve-kube-app", reader.cursors(), now);
    assert_eq!(read_of(&silent, &mut reader, &mut now), [""; 0], "after a restart too");
    assert_eq!(read_of(&[], &mut reader, &mut now), [""; 0], "taken away, it stays so");
    let (text, number) = ("2".to_owned(), 2);
    reader.look(&apps(), now);
    let (entries, _) = reader.read();
    let found = entries.iter().map(|entry| (entry.line.text.clone(), entry.line.number));
    assert_eq!(found.collect::<Vec<_>>(), [(text, number)], "once, under its number");
}

#[test]
fn a_file_that_is_cut_off_is_read_from_its_new_beginning() {
    let (dir, mut now) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut container = Container::new(dir.path(), POD, "main");
    container.write("stdout", "F", "one and a half");
    let mut reader = reader(&dir, now);
    assert_eq!(read_all(&mut reader, &mut now), ["one and a half"]);
    File::create(container.current()).unwrap();
    assert_eq!(read_all(&mut reader, &mut now), Vec::<String>::new());
    container.write("stdout", "F", "two");
    assert_eq!(read_all(&mut reader, &mut now), ["two"]);
}

/// Chance that is the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The agent's part, with its disk.
struct Agent<'a> {
    root: &'a Path,
    path: PathBuf,
    stored: BTreeMap<String, Cursor>,
    reader: Reader,
    sink: FileSink,
    moved: u32,
    /// So often it could have been moved since.
    worked: u32,
    /// How often it had been moved and how long it was when the cursors were stored.
    noted: (u32, u64),
}

impl<'a> Agent<'a> {
    fn new(root: &'a Path, path: PathBuf, now: Instant) -> Self {
        let reader = Reader::new(root, "eve-kube-app", BTreeMap::new(), now);
        let sink = FileSink::new(&path);
        Self {
            root,
            path,
            stored: BTreeMap::new(),
            reader,
            sink,
            moved: 0,
            worked: 0,
            noted: (0, 0),
        }
    }

    /// Hands on what there is. It may be killed before that is noted, in the middle of a line too.
    async fn work(&mut self, now: Instant, chance: &mut Chance) {
        self.reader.look(&apps(), now);
        let (entries, _) = self.reader.read();
        if !entries.is_empty() {
            self.sink.deliver(Arc::new(entries)).await.unwrap();
        }
        match chance.below(6) {
            0 => {
                self.cut(chance);
                self.start(now);
            }
            1 => {
                self.rotate();
                self.start(now);
            }
            2 => {
                self.note();
                self.rotate();
            }
            3 => {
                self.note();
                self.start(now);
            }
            _ => self.note(),
        }
    }

    fn note(&mut self) {
        self.stored = self.reader.cursors();
        self.noted = (self.moved, self.length());
    }

    fn length(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// As if it was killed while it wrote: what was noted is there.
    fn cut(&mut self, chance: &mut Chance) {
        let noted = if self.noted.0 == self.moved { self.noted.1 } else { 0 };
        let length = self.length();
        if length > noted {
            let file = OpenOptions::new().write(true).open(&self.path).unwrap();
            file.set_len(length - chance.below(length - noted + 1)).unwrap();
        }
    }

    fn start(&mut self, now: Instant) {
        // As it is on the disk.
        let stored = serde_json::to_vec(&self.stored).unwrap();
        let stored = serde_json::from_slice(&stored).unwrap();
        self.reader = Reader::new(self.root, "eve-kube-app", stored, now);
        self.sink = FileSink::new(&self.path);
    }

    /// Not more often than who comes back reads on: the last three that were moved are looked at.
    fn rotate(&mut self) {
        self.worked += 1;
        if self.path.exists() && self.worked >= 8 {
            self.worked = 0;
            self.moved += 1;
            fs::rename(&self.path, self.moved_to(self.moved)).unwrap();
        }
    }

    fn moved_to(&self, number: u32) -> PathBuf {
        PathBuf::from(format!("{}.{number:04}", self.path.display()))
    }

    /// All that was ever written, by container.
    fn written(&self) -> BTreeMap<String, Vec<String>> {
        let mut all = BTreeMap::<String, Vec<String>>::new();
        let files = (1..=self.moved).map(|number| self.moved_to(number));
        for path in files.chain([self.path.clone()]) {
            let text = fs::read_to_string(path).unwrap_or_default();
            // Half a line is what the next start takes away.
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["appuuid"], APP);
                let name = line["containername"].as_str().unwrap().to_owned();
                all.entry(name).or_default().push(line["msg"].as_str().unwrap().to_owned());
            }
        }
        all
    }
}

/// Where two differ first.
fn differs(
    found: &BTreeMap<String, Vec<String>>,
    expected: &BTreeMap<String, Vec<String>>,
) -> String {
    for (name, lines) in expected {
        let others = found.get(name).map(Vec::as_slice).unwrap_or_default();
        let same = lines.iter().zip(others).take_while(|(one, other)| one == other).count();
        if (same, same) != (lines.len(), others.len()) {
            let (one, other) = (lines.get(same), others.get(same));
            return format!("{name} has {other:?} as line {same} instead of {one:?}");
        }
    }
    String::new()
}

#[tokio::test]
async fn every_line_comes_once_and_in_order_whatever_is_rotated_restarted_and_killed() {
    for seed in 1..25 {
        let (pods, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut chance, mut now) = (Chance(seed), Instant::now());
        let mut containers = ["a", "b"].map(|name| Container::new(pods.path(), POD, name));
        let mut said = BTreeMap::from(["a", "b"].map(|name| (name.to_owned(), Vec::new())));
        let mut agent = Agent::new(pods.path(), out.path().join("apps.log"), now);
        for number in 0..400 {
            let which = chance.below(2) as usize;
            let (container, name) = (&mut containers[which], ["a", "b"][which]);
            match chance.below(24) {
                0 => container.rotate(),
                1 => container.restart(),
                2..=5 => {
                    now += Duration::from_millis(chance.below(3000));
                    agent.work(now, &mut chance).await;
                }
                6 => {
                    // A rotation in the middle of a line.
                    let text = format!("{number} first and second");
                    container.write("stdout", "P", &format!("{number} first "));
                    container.rotate();
                    container.write("stdout", "F", "and second");
                    said.get_mut(name).unwrap().push(text);
                }
                _ => {
                    // The same words again and again, too.
                    let word = if chance.below(3) == 0 { 7 } else { number };
                    let text = format!("line {word}");
                    container.write(
                        if chance.below(2) == 0 { "stdout" } else { "stderr" },
                        "F",
                        &text,
                    );
                    said.get_mut(name).unwrap().push(text);
                }
            }
        }
        let mut patience = 0;
        while agent.written() != said {
            patience += 1;
            assert!(patience < 100, "seed {seed}: {}", differs(&agent.written(), &said));
            now += Duration::from_secs(2);
            agent.work(now, &mut chance).await;
        }
        // And nothing more comes.
        for _ in 0..20 {
            now += Duration::from_secs(2);
            agent.work(now, &mut chance).await;
        }
        // What was cut off at last is written again.
        agent.reader.look(&apps(), now);
        let entries = agent.reader.read().0;
        if !entries.is_empty() {
            agent.sink.deliver(Arc::new(entries)).await.unwrap();
        }
        assert_eq!(differs(&agent.written(), &said), "", "seed {seed}");
    }
}
