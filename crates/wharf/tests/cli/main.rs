//! The command line against a real server process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../../../wharf-server/tests/common/apiserver.rs"]
mod apiserver;
mod app;
mod node;
mod repair;
#[path = "../../../wharf-server/tests/common/volumes.rs"]
mod storage;
mod volume;
mod world;

use std::{os::unix::fs::PermissionsExt, process::Stdio};

use apiserver::World as Kubernetes;
use wharf_testbed::process::{Process, Signal};
use world::{DEADLINE, PASSWORD, World};

fn names(list: &serde_json::Value) -> Vec<String> {
    let mut names: Vec<String> =
        list.as_array().unwrap().iter().map(|u| u["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn users_live_from_add_to_delete() {
    let world = World::with_server();
    let added = world.local(&["user", "add", "alice", "--role", "admin"]).ok();
    let password = added.stdout.trim_end();
    assert!(password.len() >= 12 && !password.contains(char::is_whitespace), "{added:?}");
    assert!(added.stderr.contains("once"), "{added:?}");

    let file = world.password_file();
    let bob =
        ["user", "add", "bob", "--role", "viewer", "--cluster", "c", "--password-file", &file];
    let made = world.local(&[&bob[..], &["-o", "json"]].concat()).json();
    assert_eq!((made["name"].as_str(), made["role"].as_str()), (Some("bob"), Some("viewer")));
    assert_eq!(made["clusters"], serde_json::json!(["c"]));
    assert!(made.get("password").is_none(), "{made}");
    world.local(&bob).fails(4, "");

    let list = world.local(&["user", "list", "-o", "json"]).json();
    assert_eq!(names(&list), ["admin", "alice", "bob"]);
    let yaml = world.local(&["user", "list", "-o", "yaml"]).ok();
    let same: serde_json::Value = serde_saphyr::from_str(&yaml.stdout).unwrap();
    assert_eq!(same, list);
    let table = world.local(&["user", "list"]).ok().stdout;
    assert!(table.lines().next().unwrap().contains("ROLE"), "{table}");
    assert!(table.lines().any(|l| l.contains("bob") && l.contains("viewer")), "{table}");
    assert!(!table.contains('\u{1b}'), "no colour in a pipe: {table:?}");

    std::fs::write(world.path("new"), "another long password").unwrap();
    let new = world.path("new").display().to_string();
    world.local(&["user", "passwd", "bob", "--password-file", &new]).ok();
    world.local(&["user", "passwd", "nobody", "--password-file", &new]).fails(3, "");
    world.local(&["user", "passwd", "--password-file", &new]).fails(2, "NAME");
    world.local(&["user", "passwd", "bob"]).fails(2, "--password-file");

    world.local(&["user", "delete", "bob"]).fails(2, "--yes");
    assert_eq!(names(&world.local(&["user", "list", "-o", "json"]).json()).len(), 3);
    world.local(&["user", "delete", "bob", "--yes"]).ok();
    world.local(&["user", "delete", "bob", "--yes"]).fails(3, "");
    world.local(&["user", "delete", "..", "--yes"]).fails(2, "");
    assert_eq!(names(&world.local(&["user", "list", "-o", "json"]).json()), ["admin", "alice"]);
}

#[test]
fn the_audit_log_tells_what_was_done_but_no_secret() {
    let world = World::with_server();
    let file = world.password_file();
    let added = world.local(&["user", "add", "alice", "--role", "admin"]).ok();
    world.local(&["user", "add", "bob", "--role", "viewer", "--password-file", &file]).ok();
    let token = world.local(&["token", "create", "--user", "alice"]).ok().stdout;
    world.local(&["user", "delete", "bob", "--yes"]).ok();

    let audit = world.local(&["audit", "-o", "json"]).ok();
    let records = audit.json();
    let actions: Vec<&str> =
        records.as_array().unwrap().iter().map(|r| r["action"].as_str().unwrap()).collect();
    assert_eq!(actions[..4], ["user.delete", "token.create", "user.create", "user.create"]);
    assert_eq!(records[0]["resource"], "user/bob");
    assert_eq!(records[0]["origin"], "socket");
    for secret in [added.stdout.trim_end(), token.trim_end(), PASSWORD] {
        assert!(!secret.is_empty() && !audit.stdout.contains(secret), "{secret} in {audit:?}");
    }
    let short = world.local(&["audit", "--limit", "2", "-o", "json"]).json();
    assert_eq!(short.as_array().unwrap(), &records.as_array().unwrap()[..2]);
    let table = world.local(&["audit"]).ok().stdout;
    assert!(table.contains("user.delete") && table.contains("user/bob"), "{table}");
}

#[test]
fn a_login_pins_the_authority_after_somebody_said_so() {
    let world = World::with_server();
    let (url, file) = (world.url(), world.password_file());
    let login = ["login", "--server", &url, "--password-file", &file, "--context", "test"];
    let with = |more: &[&str]| world.run(&[&login[..], more].concat());

    let asked = with(&[]).fails(2, "--fingerprint");
    let shown = asked.stderr.lines().find_map(|l| l.trim().strip_prefix("SHA-256 ")).unwrap();
    let wrong = shown.replace(|c: char| c.is_ascii_hexdigit(), "0");
    with(&["--fingerprint", &wrong]).fails(4, "in between");
    assert!(!world.path(".config/wharf/contexts.toml").exists(), "nothing was remembered");
    with(&["--fingerprint", shown]).ok();

    let contexts = world.path(".config/wharf/contexts.toml");
    let mode = std::fs::metadata(&contexts).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&contexts).unwrap().contains(PASSWORD));
    let list = world.run(&["user", "list", "--context", "test", "-o", "json"]).json();
    assert_eq!(names(&list), ["admin"]);
    with(&[]).ok(); // The authority is known now.

    let shown = world.run(&["context", "list", "-o", "json"]).json();
    assert_eq!(shown[0]["name"], "test");
    assert_eq!(shown[0]["current"], true);
    assert!(shown[0].get("token").is_none(), "{shown}");
    world.run(&["context", "show"]).ok();
    world.run(&["context", "use", "nope"]).fails(3, "test");
    world.run(&["context", "delete", "test"]).fails(2, "--yes");
    world.run(&["context", "delete", "test", "--yes"]).ok();
    world.run(&["user", "list", "--context", "test"]).fails(3, "wharf login");
}

#[test]
fn rights_end_where_the_role_ends() {
    let world = World::with_server();
    let (url, file) = (world.url(), world.password_file());
    let ca = world.data_dir().join("tls/ca.pem").display().to_string();
    world.local(&["user", "add", "vera", "--role", "viewer", "--password-file", &file]).ok();
    let to = ["--server", &url, "--ca", &ca];
    let remote = |args: &[&str]| world.run(&[args, &to[..]].concat());

    let login = ["login", "--user", "vera", "--context", "vera", "--password-file"];
    remote(&[&login[..], &[&file]].concat()).ok();
    let vera = |args: &[&str]| world.run(&[args, &["--context", "vera"]].concat());
    assert_eq!(vera(&["cluster", "list", "-o", "json"]).json(), serde_json::json!([]));
    vera(&["user", "list"]).fails(4, "");
    vera(&["user", "add", "eve", "--role", "admin"]).fails(4, "");
    vera(&["cluster", "show", "nope"]).fails(3, "");

    std::fs::write(world.path("wrong"), "not the password").unwrap();
    let wrong = world.path("wrong").display().to_string();
    let refused = remote(&[&login[..], &[&wrong]].concat()).fails(4, "password");
    assert!(!refused.stderr.contains("wharf login"), "no advice in a circle: {refused:?}");
    remote(&["user", "list"]).fails(4, "wharf login");
    remote(&["user", "list", "--token", "wharf.vera.1.x"]).fails(4, "wharf login");

    let token = vera(&["token", "create", "--description", "ci", "--expires-in", "2h"]).ok().stdout;
    let token = token.trim_end();
    assert_eq!(
        remote(&["cluster", "list", "-o", "json", "--token", token]).json(),
        serde_json::json!([])
    );
    let tokens = vera(&["token", "list", "-o", "json"]).ok();
    assert!(!tokens.stdout.contains(token), "{tokens:?}");
    let tokens = tokens.json();
    let tokens = tokens.as_array().unwrap();
    let mine = tokens.iter().find(|t| t["description"] == "ci").unwrap();
    vera(&["token", "delete", mine["id"].as_str().unwrap(), "--yes"]).ok();
    remote(&["cluster", "list", "--token", token]).fails(4, "wharf login");

    std::fs::write(world.path("new"), "another long password").unwrap();
    let new = world.path("new").display().to_string();
    let passwd = ["user", "passwd", "--password-file", &new, "--old-password-file"];
    vera(&[&passwd[..], &[&wrong]].concat()).fails(4, "");
    vera(&[&passwd[..], &[&file]].concat()).ok();
    vera(&["cluster", "list"]).ok();
}

#[test]
fn who_changes_the_own_password_stays_logged_in() {
    let world = World::with_server();
    let (url, file) = (world.url(), world.password_file());
    let ca = world.data_dir().join("tls/ca.pem").display().to_string();
    let to = ["--server", &url, "--ca", &ca];
    let login = ["login", "--context", "test", "--password-file", &file];
    world.run(&[&login[..], &to[..]].concat()).ok();
    let token = world.run(&["token", "create", "--context", "test"]).ok().stdout;
    let given = [&to[..], &["--token", token.trim_end()]].concat();
    world.run(&[&["user", "list"], &given[..]].concat()).ok();

    std::fs::write(world.path("new"), "another long password").unwrap();
    let new = world.path("new").display().to_string();
    let passwd = ["user", "passwd", "--context", "test"];
    let files = ["--old-password-file", &file, "--password-file", &new];
    let changed = world.run(&[&passwd[..], &files].concat()).ok();
    assert!(changed.stderr.contains("context test"), "{changed:?}");
    world.run(&["user", "list", "--context", "test"]).ok();
    world.run(&[&["user", "list"], &given[..]].concat()).fails(4, "wharf login");
    let contexts = std::fs::read_to_string(world.path(".config/wharf/contexts.toml")).unwrap();
    assert!(!contexts.contains("another long password"));

    // A token that the caller has elsewhere cannot be replaced there.
    let token = world.run(&["token", "create", "--context", "test"]).ok().stdout;
    let given = [&to[..], &["--token", token.trim_end()]].concat();
    let back = ["user", "passwd", "admin", "--old-password-file", &new, "--password-file", &file];
    let changed = world.run(&[&back[..], &given[..]].concat()).ok();
    assert!(changed.stderr.contains("no longer holds"), "{changed:?}");
    world.run(&["user", "list", "--context", "test"]).fails(4, "wharf login");
}

#[test]
fn an_authority_that_changed_is_an_error_until_the_new_one_is_named() {
    let mut world = World::with_server();
    let (url, address, file) = (world.url(), world.address(), world.password_file());
    let login = ["login", "--server", &url, "--password-file", &file, "--context"];
    let to = |context: &'static str| [&login[..], &[context]].concat();
    world.run(&[&to("test")[..], &["--yes"]].concat()).ok();
    world.kill_server();
    std::fs::remove_dir_all(world.data_dir().join("tls")).unwrap();
    world.start(&address, &[]);

    let contexts = world.path(".config/wharf/contexts.toml");
    let before = std::fs::read_to_string(&contexts).unwrap();
    world.run(&["user", "list", "--context", "test"]).fails(5, "wharf login");
    let asked = world.run(&to("test")).fails(2, "--fingerprint");
    assert!(asked.stderr.contains("WARNING"), "{asked:?}");
    // A yes is for the first contact, whatever the context is called.
    for context in ["test", "second"] {
        let refused = world.run(&[&to(context)[..], &["--yes"]].concat()).fails(2, "--fingerprint");
        assert!(refused.stderr.contains("WARNING"), "{refused:?}");
        assert!(!refused.stderr.contains("--yes"), "{refused:?}");
    }
    // That the system knows the new authority is no reason to forget the pinned one.
    let mut command = world.command(&to("test"));
    let known = command.env("SSL_CERT_FILE", world.data_dir().join("tls/ca.pem"));
    let ran = known.stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(std::fs::read_to_string(&contexts).unwrap(), before, "the pin is as it was");

    let shown = asked.stderr.lines().find_map(|l| l.trim().strip_prefix("SHA-256 ")).unwrap();
    world.run(&[&to("test")[..], &["--fingerprint", shown]].concat()).ok();
    world.run(&["user", "list", "--context", "test"]).ok();

    // The system does not know the authority, and nothing is pinned for a bare address.
    world.run(&["user", "list", "--server", &url, "--token", "t"]).fails(5, "wharf login");
}

#[test]
fn plain_http_is_for_loopback() {
    let mut world = World::empty();
    world.start("127.0.0.1:0", &["--http"]);
    let (url, file) = (format!("http://{}", world.address()), world.password_file());
    let login = ["login", "--server", &url, "--context", "plain", "--password-file", "-"];
    world.run_with_input(&login, PASSWORD).ok();
    world.run(&["user", "list", "--context", "plain"]).ok();
    let https = url.replace("http:", "https:");
    world.run(&["login", "--server", &https, "--password-file", &file, "--yes"]).fails(5, "");
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let mut world = World::with_server();
    world.kill_server();
    assert!(world.data_dir().join("wharf.sock").exists(), "the stale socket is the point");
    world.local(&["user", "list"]).fails(5, "wharf server --data-dir");
    world.run(&["user", "list", "--data-dir", "nowhere"]).fails(5, "wharf server --data-dir");
    world.run(&["user", "list", "--server", "https://127.0.0.1:1", "--token", "t"]).fails(5, "");
    let version = world.local(&["version", "-o", "json"]).json();
    assert_eq!(version["server"], serde_json::Value::Null);

    world.start("127.0.0.1:0", &[]);
    let version = world.local(&["version", "-o", "json"]).json();
    assert_eq!(version["server"], version["client"]);
}

#[test]
fn a_server_that_takes_no_more_connections_need_not_be_started() {
    let world = World::empty();
    std::fs::create_dir(world.data_dir()).unwrap();
    let busy = std::os::unix::net::UnixListener::bind(world.data_dir().join("wharf.sock")).unwrap();
    // As a server does that has its limit: the connection is taken and closed at once.
    std::thread::spawn(move || {
        while let Ok((connection, _)) = busy.accept() {
            drop(connection);
        }
    });
    let ran = world.local(&["user", "list"]).fails(5, "try again");
    assert!(!ran.stderr.contains("wharf server"), "{ran:?}");
}

#[test]
fn events_are_followed_over_a_restart_until_ctrl_c() {
    let mut world = World::with_server();
    let dir = world.data_dir().display().to_string();
    let mut command = world.command(&["events", "--follow", "--since", "0", "-o", "json"]);
    command.args(["--data-dir", &dir]);
    let mut follow = Process::spawn(command).unwrap();
    follow.wait_for_output("user/admin", DEADLINE).unwrap();
    world.local(&["user", "add", "alice", "--role", "admin"]).ok();
    follow.wait_for_output("user/alice", DEADLINE).unwrap();

    world.kill_server();
    follow.wait_for_output("going on after revision", DEADLINE).unwrap();
    world.start("127.0.0.1:0", &[]);
    world.local(&["user", "add", "bob", "--role", "admin"]).ok();
    follow.wait_for_output("user/bob", DEADLINE).unwrap();
    follow.signal(Signal::INT).unwrap();
    assert_eq!(follow.wait(DEADLINE).unwrap().code(), Some(0));

    let output = follow.output();
    let events: Vec<serde_json::Value> = output
        .lines()
        .filter(|l| l.starts_with('{'))
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let created = |name: &str| {
        let resource = format!("user/{name}");
        let of = |e: &&serde_json::Value| e["type"] == "user.created" && e["resource"] == *resource;
        events.iter().filter(of).count()
    };
    assert_eq!(["admin", "alice", "bob"].map(created), [1, 1, 1], "{output}");

    let replayed = world.local(&["events"]).ok().stdout;
    assert!(
        replayed.lines().any(|l| l.contains("user.created") && l.contains("user/bob")),
        "{replayed}"
    );
    world.local(&["events", "-o", "yaml"]).fails(2, "");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = World::with_server();
    let dir = world.data_dir().display().to_string();
    for args in [&["user", "list"][..], &["completion", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = world.command(&[args, &["--data-dir", &dir]].concat());
        let output = command.stdout(writer).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn bad_usage_ends_with_2_and_touches_nothing() {
    let world = World::empty();
    for args in [
        &[][..],
        &["nonsense"],
        &["user", "add", "alice"],
        &["user", "list", "-o", "xml"],
        &["user", "list", "--server", "http://192.0.2.1", "--token", "t"],
        &["user", "list", "--data-dir", "d", "--server", "https://h"],
        &["server", "--token", "t"],
        &["server", "--listen", "nowhere"],
        &["login"],
    ] {
        let ran = world.run(args).exits(2);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
    let agent = world.run(&["agent", "--config", "x"]).exits(2);
    assert!(agent.stderr.contains("cannot read the configuration file x"), "{agent:?}");
    let left: Vec<_> =
        std::fs::read_dir(world.home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["password"]);
}

#[test]
fn the_environment_names_the_server_too() {
    let world = World::with_server();
    let output = world
        .command(&["user", "list", "-o", "json"])
        .env("WHARF_DATA_DIR", world.data_dir())
        .output()
        .unwrap();
    assert_eq!(names(&serde_json::from_slice(&output.stdout).unwrap()), ["admin"]);
    let version = world
        .command(&["version", "-o", "json"])
        .env("WHARF_SERVER", world.url())
        .env("WHARF_CA", world.data_dir().join("tls/ca.pem"))
        .output()
        .unwrap();
    let version: serde_json::Value = serde_json::from_slice(&version.stdout).unwrap();
    assert_eq!(version["server"], version["client"]);
}

#[test]
fn a_backup_of_a_running_server_comes_back_elsewhere() {
    let mut world = World::with_server();
    world.local(&["user", "add", "alice", "--role", "admin"]).ok();
    let backup = ["store", "backup", "wharf.backup"];
    let moved = world.local(&[&backup[..], &["-o", "json"]].concat()).json();
    assert!(moved["records"].as_u64().unwrap() > 1, "{moved}");
    world.local(&backup).fails(4, "");
    world.local(&["user", "add", "too-late", "--role", "admin"]).ok();
    let report = world.local(&["store", "check", "-o", "json"]).json();
    assert_eq!(report["records"]["user"], 3, "{report}");
    assert_eq!(report["problems"], serde_json::json!([]));

    world.local(&["store", "restore", "wharf.backup"]).fails(4, "");
    world.run(&["store", "restore", "nothing", "--data-dir", "new"]).fails(3, "");
    for command in [&["store", "check"][..], &["store", "backup", "other.backup"]] {
        let ran = world.run(&[command, &["--data-dir", "new"]].concat()).fails(3, "--data-dir");
        assert!(ran.stderr.contains("there is no store in new"), "{ran:?}");
    }
    world.kill_server();
    std::fs::rename(world.data_dir(), world.path("old")).unwrap();
    let restored = world.local(&["store", "restore", "wharf.backup"]).ok();
    assert!(restored.stderr.contains("seal.key"), "the key is no part of it: {restored:?}");
    assert_eq!(world.local(&["store", "check"]).exit, 1, "the secrets cannot be opened");
    world.local(&["server", "--listen", "127.0.0.1:0"]).fails(1, "--key-file");
    std::fs::copy(world.path("old/seal.key"), world.data_dir().join("seal.key")).unwrap();
    world.local(&["store", "check"]).ok();
    world.start("127.0.0.1:0", &[]);
    let users = world.local(&["user", "list", "-o", "json"]).json();
    assert_eq!(names(&users), ["admin", "alice"]);
}

#[test]
fn a_damaged_store_is_reported_and_ends_with_1() {
    let mut world = World::with_server();
    world.kill_server();
    world.local(&["store", "check"]).ok();
    std::fs::remove_file(world.data_dir().join("seal.key")).ok();
    let file = std::fs::read_dir(world.data_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "db"))
        .unwrap();
    std::fs::write(&file, vec![b'x'; 8192]).unwrap();
    let ran = world.local(&["store", "check"]).exits(1);
    assert!(ran.stderr.contains("error: ") && ran.stderr.contains("hint: "), "{ran:?}");
}
