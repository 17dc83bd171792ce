//! Commands: their words, input, output and end.

use std::time::{Duration, Instant};

use wharf_ssh::{Command, Output, Session, SshError};

use crate::server::{DEADLINE, MAY_NOT_SUDO, MAY_SUDO, Server};

fn sh(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}

#[tokio::test]
async fn input_output_and_exit_code_come_through() {
    let server = Server::start();
    let session = server.connect().await;
    let command = sh("cat; echo oops >&2; exit 42").stdin("some\0thing");
    let output = session.exec(&command).await.unwrap();
    let expected = Output {
        exit: 42,
        stdout: b"some\0thing".to_vec(),
        stderr: b"oops\n".to_vec(),
        ..Output::default()
    };
    assert_eq!(output, expected);

    let error = session.run(&command).await.unwrap_err();
    let SshError::Remote { host, command, exit, stderr_tail } = error else { panic!("{error:?}") };
    assert_eq!((host.as_str(), exit, stderr_tail.as_str()), ("host-a", 42, "oops"));
    assert!(command.starts_with("sh -c cat"), "{command}");

    let killed = session.exec(&sh("kill -9 $$")).await.unwrap();
    assert_eq!(killed.exit, 128 + 9);
    let missing = session.exec(&Command::new(["no-such-program"])).await.unwrap();
    assert_eq!(missing.exit, 127);
}

#[tokio::test]
async fn words_arrive_as_they_are() {
    let server = Server::start();
    let session = server.connect().await;
    let words = [
        "",
        " ",
        "a b",
        "'",
        "''",
        "it's",
        "\"",
        "\\",
        "\\'",
        "$HOME",
        "$(id)",
        "`id`",
        "a\nb",
        "\n",
        "*",
        "?",
        "~",
        "~root",
        "[a]",
        "{a,b}",
        "!",
        "!!",
        "#",
        "a#b",
        "&",
        ";",
        "|",
        "<",
        ">",
        "=",
        "a=b",
        "-n",
        "--",
        "%s",
        "ä→\u{1f980}",
        "\t",
        "\r",
        "\u{1b}[31m",
        "a/b-c_d.e:f@g%h+i,j",
    ];
    let argv = ["printf", "%s\\0"].into_iter().chain(words);
    let output = session.run(&Command::new(argv)).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let arrived: Vec<&str> = text.strip_suffix('\0').unwrap().split('\0').collect();
    assert_eq!(arrived, words);
    // A word that looks like an assignment is a command's name all the same.
    assert_eq!(session.exec(&Command::new(["a=b", "true"])).await.unwrap().exit, 127);
}

#[tokio::test]
async fn words_that_no_host_could_take_are_not_sent() {
    let server = Server::start();
    let session = server.connect().await;
    for command in [Command::new(["echo", "a\0b"]), Command::new(Vec::<String>::new())] {
        let error = session.exec(&command).await.unwrap_err();
        assert!(matches!(error, SshError::BadCommand { .. }), "{error:?}");
    }
}

#[test]
fn a_command_is_shown_short_on_one_line_and_without_its_input() {
    let command = Command::new(["sh", "-c", "a\nb"]).stdin("secret");
    assert_eq!(command.shown(), "sh -c a b");
    assert!(!format!("{command:?}").contains("secret"));
    let long = Command::new(["ä".repeat(1000)]).shown();
    assert_eq!(long.chars().count(), 121);
}

#[tokio::test]
async fn input_that_nobody_reads_does_not_hang() {
    let server = Server::start();
    let session = server.connect().await;
    let input = vec![b'x'; 8 * 1024 * 1024];
    let output = session.exec(&Command::new(["true"]).stdin(input)).await.unwrap();
    assert_eq!(output.exit, 0);
    assert_eq!(session.run(&Command::new(["echo", "on"])).await.unwrap().stdout, b"on\n");
}

#[tokio::test]
async fn big_input_and_output_at_once_do_not_block_each_other() {
    let server = Server::start();
    let session = server.connect().await;
    let input: Vec<u8> = (0..8 * 1024 * 1024_u32).map(|n| (n % 251) as u8).collect();
    let output = session.run(&Command::new(["cat"]).stdin(input.clone())).await.unwrap();
    assert!(output.stdout == input, "{} bytes came back", output.stdout.len());
}

#[tokio::test]
async fn output_is_capped() {
    let server = Server::start();
    let session = server.connect().await;
    let long = sh("yes | head -c 40000000; seq 1 20000 >&2");
    let error = session.run(&long).await.unwrap_err();
    assert!(matches!(error, SshError::TooMuch { .. }), "{error:?}");
    let output = session.exec(&long).await.unwrap();
    assert_eq!(output.stdout.len(), 16 * 1024 * 1024);
    assert_eq!(output.stderr.len(), 16 * 1024);
    assert!(output.stdout_truncated && output.stderr_truncated);
    assert!(output.stderr_text().ends_with("\n20000"));

    let short = session.run(&sh("echo out; echo err >&2")).await.unwrap();
    assert!(!short.stdout_truncated && !short.stderr_truncated);
    let endless = Command::new(["yes"]).timeout(Duration::from_secs(1));
    let error = session.exec(&endless).await.unwrap_err();
    assert!(matches!(error, SshError::TimedOut { .. }), "{error:?}");
}

/// Starts a command that writes its process id into a file and then sleeps.
fn sleeper(server: &Server) -> Command {
    let path = server.dir().join("pid");
    Command::new(["sh", "-c", "echo $$ >\"$1\"; exec sleep 600", "sh", path.to_str().unwrap()])
}

async fn wait_until_started(server: &Server) {
    until("the command to start", async || {
        let pid = std::fs::read_to_string(server.dir().join("pid")).unwrap_or_default();
        pid.ends_with('\n')
    })
    .await;
}

async fn wait_until_killed(server: &Server, session: &Session) {
    let pid = std::fs::read_to_string(server.dir().join("pid")).unwrap();
    until("the command to be killed", async || {
        let check = Command::new(["kill", "-0", pid.trim()]);
        session.exec(&check).await.unwrap().exit != 0
    })
    .await;
}

pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < DEADLINE, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_command_is_killed_at_its_deadline() {
    let server = Server::start();
    let session = server.connect().await;
    let begin = Instant::now();
    let error = session.exec(&sleeper(&server).timeout(Duration::from_secs(1))).await.unwrap_err();
    let SshError::TimedOut { host, doing, after } = &error else { panic!("{error:?}") };
    assert_eq!((host.as_str(), *after), ("host-a", Duration::from_secs(1)));
    assert!(doing.starts_with("run `sh -c"), "{doing}");
    wait_until_killed(&server, &session).await;
    // By us, and not by the host's own deadline, which comes ten seconds after ours.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_is_killed_and_gives_its_place_back() {
    let server = Server::start();
    let session = server.connect().await;
    // More than there are places on the connection.
    for _ in 0..20 {
        let _ = std::fs::remove_file(server.dir().join("pid"));
        let command = sleeper(&server);
        tokio::select! {
            result = session.exec(&command) => panic!("{result:?}"),
            () = wait_until_started(&server) => {}
        }
    }
    wait_until_killed(&server, &session).await;
    // Given up at once, while the channel is still being opened.
    for _ in 0..20 {
        let _ = tokio::time::timeout(Duration::from_micros(50), session.exec(&sh("true"))).await;
    }
    assert_eq!(session.run(&Command::new(["echo", "on"])).await.unwrap().stdout, b"on\n");
}

async fn run_at_once(session: &Session, count: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        let session = session.clone();
        tasks.spawn(async move {
            let word = number.to_string();
            let output = session.run(&Command::new(["echo", &word])).await.unwrap();
            assert_eq!(output.stdout_text().trim(), word);
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
}

#[tokio::test]
async fn twenty_commands_run_at_once_on_one_session() {
    let server = Server::start();
    let session = server.connect().await;
    run_at_once(&session, 20).await;

    let begin = Instant::now();
    let rounds = 50;
    for _ in 0..rounds {
        session.run(&Command::new(["true"])).await.unwrap();
    }
    println!("a warm command takes {:?}", begin.elapsed() / rounds);
    let begin = Instant::now();
    run_at_once(&session, 20).await;
    println!("20 warm commands at once take {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_host_that_allows_few_commands_at_once_gets_few() {
    let server = Server::start_with("MaxSessions 2");
    run_at_once(&server.connect().await, 20).await;
}

#[tokio::test]
async fn a_host_that_allows_no_commands_refuses_by_name() {
    let server = Server::start_with("MaxSessions 0");
    let error = server.connect().await.exec(&sh("true")).await.unwrap_err();
    assert!(matches!(error, SshError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_command_that_runs_as_root_by_sudo_is_killed_too() {
    let server = Server::start();
    let session = server.connect_as(MAY_SUDO).await;
    let command = sleeper(&server).as_root();
    tokio::select! {
        result = session.exec(&command) => panic!("{result:?}"),
        () = wait_until_started(&server) => {}
    }
    wait_until_killed(&server, &server.connect().await).await;
}

#[tokio::test]
async fn a_command_whose_connection_is_gone_ends_at_the_hosts_deadline() {
    let server = Server::start();
    let session = server.connect().await;
    let command = sleeper(&server).timeout(Duration::from_secs(1));
    tokio::select! {
        result = session.exec(&command) => panic!("{result:?}"),
        () = wait_until_started(&server) => {}
    }
    server.signal_serving(rustix::process::Signal::KILL);
    wait_until_killed(&server, &server.connect().await).await;
}

#[tokio::test]
async fn root_is_reached_by_sudo_or_the_refusal_names_the_user() {
    let server = Server::start();
    let whoami = Command::new(["id", "-u"]);

    let admin = server.connect_as(MAY_SUDO).await;
    admin.ensure_root().await.unwrap();
    assert_eq!(admin.run(&whoami).await.unwrap().stdout, b"64001\n");
    assert_eq!(admin.run(&whoami.clone().as_root()).await.unwrap().stdout, b"0\n");
    let nasty = Command::new(["printf", "%s", "$(id)'\"\n"]).as_root();
    assert_eq!(admin.run(&nasty).await.unwrap().stdout, b"$(id)'\"\n");

    let guest = server.connect_as(MAY_NOT_SUDO).await;
    let error = guest.ensure_root().await.unwrap_err();
    let SshError::SudoRefused { host, user, stderr } = &error else { panic!("{error:?}") };
    assert_eq!((host.as_str(), user.as_str()), ("host-a", MAY_NOT_SUDO));
    assert!(stderr.contains("sudo"), "{stderr}");
    assert!(error.hint().unwrap().contains("NOPASSWD"));

    let root = server.connect().await;
    root.ensure_root().await.unwrap();
    assert_eq!(root.run(&whoami.as_root()).await.unwrap().stdout, b"0\n");
}
