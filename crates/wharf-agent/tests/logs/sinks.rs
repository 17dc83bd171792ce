//! Sinks that refuse, hang, answer garbage, or have no room.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned, crypto::aws_lc_rs::default_provider,
    pki_types::PrivateKeyDer,
};
use serde_json::json;
use tempfile::TempDir;
use wharf_testbed::{process::free_port, wait_for};

use crate::{
    APP,
    common::{Agent, put},
    disorder, numbers,
};

/// A sink that fails is left alone for up to half a minute.
const DEADLINE: Duration = Duration::from_secs(120);

/// A container that says numbers, as its runtime writes them.
struct Container {
    dir: TempDir,
    said: u64,
}

impl Container {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), said: 0 }
    }

    fn say(&mut self, count: u64) {
        let folder = self.dir.path().join("eve-kube-app_web-0b1a2-x_11-22/main");
        fs::create_dir_all(&folder).unwrap();
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(folder.join("0.log")).unwrap();
        for _ in 0..count {
            self.said += 1;
            let said = self.said;
            let line = format!("2026-01-02T03:04:05.{said:09}Z stdout F line {said}\n");
            file.write_all(line.as_bytes()).unwrap();
        }
    }

    /// An agent that hands its words on.
    fn agent(&self, sinks: &str) -> Agent {
        self.agent_trusting(sinks, None)
    }

    fn agent_trusting(&self, sinks: &str, authorities: Option<&Path>) -> Agent {
        let pods = self.dir.path().display();
        let more = format!("[logs]\npods_dir = '{pods}'\n{sinks}");
        let agent = Agent::start_trusting(None, &more, authorities);
        let file = format!("zedagent/AppInstanceConfig/{APP}.json");
        agent.publish(&file, &json!({ "DisplayName": "web" }));
        agent
    }

    fn wait_until_all_are_in(&self, path: &Path) {
        let mut last = None;
        let came = wait_for("all lines", DEADLINE, || {
            let text = fs::read_to_string(path).unwrap_or_default();
            last = disorder(&numbers(&text), self.said);
            Ok(last.is_none().then_some(()))
        });
        assert!(came.is_ok(), "{last:?}");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Hangs,
    SpeaksGarbage,
    Refuses,
    /// Takes what comes, but never says so.
    TakesAndHangs,
    /// The same, and ends the connection.
    TakesAndBreaks,
    Takes,
}

/// A web server that takes lines, or does not.
#[derive(Clone)]
struct Receiver {
    mood: Arc<Mutex<Mood>>,
    taken: Arc<Mutex<String>>,
    /// The key of each POST, with the body.
    posts: Arc<Mutex<Vec<(String, String)>>>,
}

impl Receiver {
    fn listen(port: u16) -> Self {
        Self::listen_by(port, |stream| stream)
    }

    fn listen_by<S: Read + Write>(
        port: u16,
        speak: impl Fn(TcpStream) -> S + Clone + Send + 'static,
    ) -> Self {
        let receiver = Self {
            mood: Arc::new(Mutex::new(Mood::Hangs)),
            taken: Arc::default(),
            posts: Arc::default(),
        };
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let server = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (server, speak) = (server.clone(), speak.clone());
                std::thread::spawn(move || {
                    let mut stream = speak(stream);
                    while server.serve(&mut stream).is_some() {}
                });
            }
        });
        receiver
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn taken(&self) -> String {
        self.taken.lock().unwrap().clone()
    }

    /// `None` ends the connection.
    fn serve(&self, stream: &mut (impl Read + Write)) -> Option<()> {
        let mut reader = BufReader::new(&mut *stream);
        let (mut length, mut key) = (0, String::new());
        let mut head = String::new();
        while reader.read_line(&mut head).ok()? > 2 {
            let line = head.lines().last().unwrap_or_default().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if let Some(value) = line.strip_prefix("idempotency-key: ") {
                key = value.trim().to_owned();
            }
        }
        assert!(head.starts_with("POST /in?of=node HTTP/1.1\r\n"), "{head}");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body = String::from_utf8(body).unwrap();
        let mood = *self.mood.lock().unwrap();
        if matches!(mood, Mood::Takes | Mood::TakesAndHangs | Mood::TakesAndBreaks) {
            self.taken.lock().unwrap().push_str(&body);
        }
        self.posts.lock().unwrap().push((key, body));
        let answer = match mood {
            Mood::Hangs | Mood::TakesAndHangs => {
                // Until the other side has enough.
                let _ = reader.read(&mut [0]);
                return None;
            }
            Mood::TakesAndBreaks => return None,
            Mood::SpeaksGarbage => "\0\x01garbage\r\n\r\n\r\n",
            Mood::Refuses => "HTTP/1.1 507 No Room\r\ncontent-length: 2\r\n\r\nno",
            Mood::Takes => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        };
        stream.write_all(answer.as_bytes()).ok()
    }
}

#[test]
fn a_web_server_that_does_not_take_lines_is_a_fault_loses_none_and_delays_no_other_sink() {
    let mut container = Container::new();
    let port = free_port().unwrap();
    let url = format!("http://127.0.0.1:{port}/in?of=node");
    let file = container.dir.path().join("out/apps.log");
    let mut agent = container.agent(&format!("file = '{}'\nurl = '{url}'", file.display()));
    let expect = |agent: &Agent, words: &str| {
        let mut last = None;
        let came = wait_for("the fault", DEADLINE, || {
            last = agent.fault(&url);
            Ok(last.as_ref().is_some_and(|fault| fault.contains(words)).then_some(()))
        });
        assert!(came.is_ok(), "{last:?} instead of {words}");
    };
    container.say(10);
    expect(&agent, "no connection to 127.0.0.1");
    container.wait_until_all_are_in(&file);
    let receiver = Receiver::listen(port);
    for (mood, words) in [
        (Mood::Hangs, "has not taken them within 10 s"),
        (Mood::SpeaksGarbage, "the connection to 127.0.0.1 broke"),
        (Mood::Refuses, "was answered with 507"),
    ] {
        receiver.is(mood);
        container.say(10);
        expect(&agent, words);
        container.wait_until_all_are_in(&file);
    }
    agent.restart();
    receiver.is(Mood::Takes);
    let all = |said: u64| {
        let mut last = None;
        let came = wait_for("all lines", DEADLINE, || {
            let mut taken = numbers(&receiver.taken());
            taken.dedup();
            last = disorder(&taken, said);
            Ok(last.is_none().then_some(()))
        });
        assert!(came.is_ok(), "{last:?}");
    };
    all(40);
    wait_for("no fault", DEADLINE, || Ok(agent.works("logs").then_some(()))).unwrap();

    // What was taken on a connection that broke comes again as the same POST.
    receiver.is(Mood::TakesAndBreaks);
    container.say(5);
    let came = |times: usize| {
        wait_for("them to be taken again", DEADLINE, || {
            let taken = numbers(&receiver.taken());
            let same = taken.iter().filter(|number| **number == 41).count();
            Ok((same >= times && taken.last() == Some(&45)).then_some(()))
        })
        .unwrap();
    };
    came(2);
    receiver.is(Mood::Takes);
    came(3);
    let posts = receiver.posts.lock().unwrap().clone();
    for (key, body) in &posts {
        assert_eq!(key.len(), 64, "{key}");
        assert!(posts.iter().all(|(other, same)| (key == other) == (body == same)));
    }

    // What was taken when the agent was killed comes again, with the same numbers.
    let before = receiver.taken().lines().count();
    receiver.is(Mood::TakesAndHangs);
    container.say(5);
    wait_for("them to be taken", DEADLINE, || {
        Ok((numbers(&receiver.taken()).last() == Some(&50)).then_some(()))
    })
    .unwrap();
    agent.restart();
    receiver.is(Mood::Takes);
    wait_for("them to be taken again", DEADLINE, || {
        Ok((numbers(&receiver.taken()).len() >= before + 10).then_some(()))
    })
    .unwrap();
    let taken = receiver.taken();
    let again: Vec<&str> = taken.lines().skip(before + 5).collect();
    let first: Vec<&str> = taken.lines().skip(before).take(5).collect();
    assert_eq!(again[again.len() - 5..], first);
    container.wait_until_all_are_in(&file);
}

#[test]
fn an_encrypted_web_server_gets_lines_only_if_its_authority_is_trusted() {
    let mut container = Container::new();
    let of_address = || rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (known, other) = (of_address(), of_address());
    let authorities = container.dir.path().join("authorities.pem");
    fs::write(&authorities, other.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(known.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![known.cert.der().clone()], key);
    let config = Arc::new(config.unwrap());
    let port = free_port().unwrap();
    let receiver = Receiver::listen_by(port, move |stream| {
        StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream)
    });
    receiver.is(Mood::Takes);
    let url = format!("https://127.0.0.1:{port}/in?of=node");
    let agent = container.agent_trusting(&format!("url = '{url}'"), Some(&authorities));
    container.say(10);
    let mut last = None;
    let came = wait_for("the fault", DEADLINE, || {
        last = agent.fault(&url);
        Ok(last.as_ref().is_some_and(|fault| fault.contains("certificate")).then_some(()))
    });
    assert!(came.is_ok(), "{last:?}");
    assert_eq!(receiver.taken(), "");
    fs::write(&authorities, known.cert.pem()).unwrap();
    wait_for("all lines", DEADLINE, || {
        Ok(disorder(&numbers(&receiver.taken()), 10).is_none().then_some(()))
    })
    .unwrap();
    wait_for("no fault", DEADLINE, || Ok(agent.works("logs").then_some(()))).unwrap();
}

/// A small file system; gone with the value.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "wharf-test"]).arg(&path);
        assert!(mount.status().unwrap().success());
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_disk_without_room_is_a_fault_and_every_line_is_there_once_when_there_is_room_again() {
    let mut container = Container::new();
    let disk = Disk::mount(container.dir.path().join("disk"));
    let file = disk.0.join("apps.log");
    let mut agent = container.agent(&format!("file = '{}'", file.display()));
    container.say(20);
    container.wait_until_all_are_in(&file);
    // There is room for some of what follows.
    fs::write(disk.0.join("filler"), vec![0; 48 << 10]).unwrap();
    container.say(100);
    let subject = file.display().to_string();
    let full = |agent: &Agent| {
        wait_for("the fault", DEADLINE, || {
            let fault = agent.fault(&subject).unwrap_or_default();
            Ok(fault.contains("No space left").then_some(()))
        })
        .unwrap();
    };
    full(&agent);
    assert!(fs::read_to_string(&file).unwrap().lines().count() > 20, "it was cut in the middle");
    agent.restart();
    full(&agent);
    fs::remove_file(disk.0.join("filler")).unwrap();
    container.wait_until_all_are_in(&file);
    wait_for("no fault", DEADLINE, || Ok(agent.works("logs").then_some(()))).unwrap();
}

#[test]
fn a_folder_of_logs_that_is_missing_is_a_fault_until_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (pods, out) = (dir.path().join("pods"), dir.path().join("apps.log"));
    let (pods, out) = (pods.display(), out.display());
    let agent = Agent::start(None, &format!("[logs]\npods_dir = '{pods}'\nfile = '{out}'"));
    let subject = pods.to_string();
    let app = json!({ "DisplayName": "web", "IsDesignatedNodeID": true });
    agent.publish(&format!("zedagent/AppInstanceConfig/{APP}.json"), &app);
    wait_for("the fault", DEADLINE, || Ok(agent.fault(&subject).map(|_| ()))).unwrap();
    put(&dir.path().join("pods/readme"), b"");
    wait_for("no fault", DEADLINE, || Ok(agent.works("logs").then_some(()))).unwrap();
}
