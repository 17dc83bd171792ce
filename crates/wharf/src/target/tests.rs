use super::*;
use crate::{context::Context, failure::explain};

struct Fake {
    socket: bool,
    current: Option<&'static str>,
}

const BARE: Fake = Fake { socket: false, current: None };
const LOCAL: Fake = Fake { socket: true, current: Some("prod") };
const REMOTE: Fake = Fake { socket: false, current: Some("prod") };

impl Surroundings for Fake {
    fn default_socket(&self) -> Option<PathBuf> {
        self.socket.then(|| "/default/wharf.sock".into())
    }

    fn contexts(&self) -> anyhow::Result<Contexts> {
        let context = |name: &str| Context {
            server: format!("https://{name}:8443"),
            user: "alice".to_owned(),
            token: format!("token-{name}"),
            expires_at: jiff::Timestamp::UNIX_EPOCH,
            ca: Some(format!("pem-{name}")),
        };
        let names = if self.current.is_some() { &["prod", "test"][..] } else { &[] };
        Ok(Contexts {
            current: self.current.map(str::to_owned),
            contexts: names.iter().map(|n| ((*n).to_owned(), context(n))).collect(),
        })
    }
}

/// A wish from words such as `data-dir=/a` or `token=t`.
fn wish(words: &str) -> Wish {
    let get = |key: &str| {
        words.split_whitespace().find_map(|word| {
            word.split_once('=').filter(|(k, _)| *k == key).map(|(_, value)| value.to_owned())
        })
    };
    Wish {
        data_dir: get("data-dir").map(PathBuf::from),
        server: get("server"),
        token: get("token"),
        ca: get("ca").map(PathBuf::from),
        context: get("context"),
    }
}

fn show(whereto: &Whereto) -> String {
    match whereto {
        Whereto::Socket(path) => path.display().to_string(),
        Whereto::Url { server, token, ca, .. } => {
            let ca = match ca {
                None => "system".to_owned(),
                Some(Ca::File(file)) => file.display().to_string(),
                Some(Ca::Pem(pem)) => pem.clone(),
            };
            format!("{server} {} {ca}", token.as_deref().unwrap_or("-"))
        }
    }
}

#[test]
fn options_beat_environment_beats_default_socket_beats_context() {
    for (flags, env, here, expected) in [
        ("", "", &LOCAL, "/default/wharf.sock"),
        ("", "", &REMOTE, "https://prod:8443 token-prod pem-prod"),
        ("", "data-dir=/e", &LOCAL, "/e/wharf.sock"),
        ("", "context=test", &LOCAL, "https://test:8443 token-test pem-test"),
        ("", "server=https://e", &LOCAL, "https://e - system"),
        ("", "server=https://e token=te ca=/e.pem", &REMOTE, "https://e te /e.pem"),
        ("data-dir=/f", "", &LOCAL, "/f/wharf.sock"),
        ("data-dir=/f", "server=https://e token=te", &LOCAL, "/f/wharf.sock"),
        ("data-dir=/f", "data-dir=/e", &LOCAL, "/f/wharf.sock"),
        ("server=https://f", "data-dir=/e", &LOCAL, "https://f - system"),
        ("server=https://f", "server=https://e token=te ca=/e.pem", &LOCAL, "https://f te /e.pem"),
        (
            "server=https://f token=tf ca=/f.pem",
            "token=te ca=/e.pem",
            &LOCAL,
            "https://f tf /f.pem",
        ),
        ("token=tf", "server=https://e token=te", &LOCAL, "https://e tf system"),
        ("context=test", "data-dir=/e", &LOCAL, "https://test:8443 token-test pem-test"),
        ("context=test", "token=te ca=/e.pem", &LOCAL, "https://test:8443 token-test pem-test"),
        ("context=test token=tf", "", &LOCAL, "https://test:8443 tf pem-test"),
        ("token=tf", "", &LOCAL, "https://prod:8443 tf pem-prod"),
        ("", "token=te", &LOCAL, "https://prod:8443 te pem-prod"),
        ("ca=/f.pem", "context=test", &LOCAL, "https://test:8443 token-test /f.pem"),
    ] {
        let whereto = decide(&wish(flags), &wish(env), here).unwrap();
        assert_eq!(show(&whereto), expected, "flags {flags:?}, environment {env:?}");
    }
}

#[test]
fn the_context_is_known_when_the_token_is_from_it_and_only_then() {
    for (flags, env, expected) in [
        ("", "", Some("prod")),
        ("context=test", "token=te", Some("test")),
        ("", "context=test", Some("test")),
        ("ca=/f.pem", "", Some("prod")),
        ("token=tf", "", None),
        ("", "context=test token=te", None),
        ("server=https://f", "token=te", None),
    ] {
        let whereto = decide(&wish(flags), &wish(env), &REMOTE).unwrap();
        let Whereto::Url { context, .. } = whereto else { panic!("{whereto:?}") };
        assert_eq!(context.as_deref(), expected, "flags {flags:?}, environment {env:?}");
    }
}

#[test]
fn contradictions_are_usage_errors_that_name_both() {
    for (flags, env, first, second) in [
        ("data-dir=/f server=https://f", "", "--data-dir", "--server"),
        ("data-dir=/f token=tf", "", "--data-dir", "--token"),
        ("data-dir=/f ca=/c", "", "--data-dir", "--ca"),
        ("data-dir=/f context=test", "", "--data-dir", "--context"),
        ("server=https://f context=test", "", "--server", "--context"),
        ("", "data-dir=/e server=https://e", "WHARF_DATA_DIR", "WHARF_SERVER"),
        ("", "data-dir=/e token=te", "WHARF_DATA_DIR", "WHARF_TOKEN"),
        ("token=tf", "data-dir=/e", "--token", "--server"),
    ] {
        let error = decide(&wish(flags), &wish(env), &LOCAL).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(first) && text.contains(second), "{text}");
        assert_eq!(explain(&error).exit, Exit::Usage, "{text}");
    }
}

#[test]
fn a_contradiction_in_the_environment_does_not_matter_when_the_options_decide() {
    let env = wish("data-dir=/e server=https://e");
    assert!(decide(&wish("data-dir=/f"), &env, &BARE).is_ok());
    assert!(decide(&wish("server=https://f"), &env, &BARE).is_ok());
}

#[test]
fn with_nothing_to_go_by_the_error_says_what_to_do() {
    for flags in ["", "token=tf"] {
        let error = decide(&wish(flags), &Wish::default(), &BARE).unwrap_err();
        let explained = explain(&error);
        assert_eq!(explained.exit, Exit::Unreachable);
        let hint = explained.hint.unwrap();
        assert!(hint.contains("wharf server") && hint.contains("wharf login"), "{hint}");
    }
}

#[test]
fn an_unknown_context_is_not_found_and_the_known_ones_are_listed() {
    let error = decide(&wish("context=nope"), &Wish::default(), &LOCAL).unwrap_err();
    let explained = explain(&error);
    assert_eq!(explained.exit, Exit::NotFound);
    assert_eq!(explained.hint.as_deref(), Some("there are: prod, test"));
}

#[test]
fn empty_variables_count_as_unset() {
    let env = Wish::from_env(|name| {
        Some(if name == "WHARF_SERVER" { "https://e" } else { "" }.to_owned())
    });
    assert_eq!(env, wish("server=https://e"));
}

#[test]
fn only_https_leaves_the_machine() {
    for (text, url) in [
        ("https://wharf.example.org:8443", "https://wharf.example.org:8443"),
        ("https://h/", "https://h"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("http://localhost:1", "http://localhost:1"),
    ] {
        assert_eq!(check_url(text).unwrap(), url);
    }
    for text in [
        "",
        "nonsense",
        "host:8443",
        "http://10.0.0.1",
        "http://localhost.example.org",
        "ftp://h",
        "https://u:p@h",
        "https://h?x=1",
        "https://h#x",
        "unix:/run/x",
    ] {
        let error = check_url(text).unwrap_err();
        assert_eq!(explain(&error).exit, Exit::Usage, "{text}");
    }
}

#[test]
fn commands_of_this_machine_take_no_other_server() {
    assert!(wish("data-dir=/d").refuse_remote("wharf server").is_ok());
    for words in ["server=https://x", "token=t", "ca=/c", "context=c"] {
        let error = wish(words).refuse_remote("wharf server").unwrap_err();
        assert_eq!(explain(&error).exit, Exit::Usage, "{words}");
    }
}
