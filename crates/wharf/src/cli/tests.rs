use clap::{CommandFactory, Parser, error::ErrorKind};

use super::Cli;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_tree_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn the_contracts_lines_are_understood() {
    for line in [
        "wharf server --data-dir D --listen 127.0.0.1:0 --http --store embedded --config F --key-file F --admin-password-file F",
        "wharf server --store etcd://h1,h2",
        "wharf agent --config F",
        "wharf agent status",
        "wharf agent status --run-dir D --output json",
        "wharf agent join-wait --config F --timeout-seconds 60 --config-within-seconds 30",
        "wharf agent join-wait --config F --if-configured",
        "wharf agent reboot",
        "wharf agent reboot --config F --cancel",
        "wharf agent shutdown -o json",
        "wharf agent update --image F --sha256 S",
        "wharf agent update --cancel",
        "wharf --data-dir D user list",
        "wharf user list --data-dir D -o json",
        "wharf user list -o yaml --server https://h --token T --ca F",
        "wharf user add a --role admin",
        "wharf user add a --role viewer --cluster c --cluster d --password-file F",
        "wharf user passwd",
        "wharf user passwd a",
        "wharf user delete a --yes",
        "wharf token create --user a --expires-in 12h",
        "wharf token list",
        "wharf token delete 1 --yes",
        "wharf audit --limit 3",
        "wharf events --follow --since 7",
        "wharf cluster list --only-ready",
        "wharf cluster show demo",
        "wharf node list demo",
        "wharf node cordon demo n1",
        "wharf node uncordon demo n1",
        "wharf node drain demo n1 --plan --jobs wait",
        "wharf node drain demo n1 --cancel",
        "wharf node drain demo n1 --no-wait --timeout 5m --jobs delete --grace-period 30s --delete-unready-after 2m --delete-after 1h --wait-volumes 1m --order-by-priority --cordon-first -o json",
        "wharf node reboot demo n1 --wait",
        "wharf node shutdown demo n1 --cancel",
        "wharf node update demo n1 --image https://h/i --sha256 S",
        "wharf node update demo n1 --cancel",
        "wharf app list demo",
        "wharf app create demo -f F",
        "wharf app delete demo web",
        "wharf app trace demo web",
        "wharf volume list demo",
        "wharf volume show demo pv -o json",
        "wharf volume why demo pv",
        "wharf volume detach demo pv --node n1 --pod default/db-0",
        "wharf volume detach demo pv --force --reason R --yes",
        "wharf members",
        "wharf version",
        "wharf completion bash",
        "wharf context list",
        "wharf context use prod",
        "wharf context show",
        "wharf context delete prod",
        "wharf login --server https://h:1 --user u --password-file - --context c --yes",
        "wharf store backup FILE --data-dir D",
        "wharf store restore FILE --data-dir D --key-file F",
        "wharf store check --store etcd://h",
        "wharf bundle build F --from D -o json",
        "wharf bundle verify F",
        "wharf bundle show F --output yaml",
    ] {
        if let Err(error) = parse(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn bad_usage_is_told_from_help() {
    for (line, kind) in [
        ("wharf nonsense", ErrorKind::InvalidSubcommand),
        ("wharf user add", ErrorKind::MissingRequiredArgument),
        ("wharf user add a", ErrorKind::MissingRequiredArgument),
        ("wharf user add a --role king", ErrorKind::InvalidValue),
        ("wharf user list --nonsense", ErrorKind::UnknownArgument),
        ("wharf user list -o xml", ErrorKind::InvalidValue),
        ("wharf audit --limit -1", ErrorKind::UnknownArgument),
        ("wharf events --since x", ErrorKind::ValueValidation),
        ("wharf login --fingerprint 12", ErrorKind::ValueValidation),
        ("wharf token create --expires-in soon", ErrorKind::ValueValidation),
        ("wharf node drain demo", ErrorKind::MissingRequiredArgument),
        ("wharf node drain demo n1 --plan --cancel", ErrorKind::ArgumentConflict),
        ("wharf node drain demo n1 --cancel --jobs wait", ErrorKind::ArgumentConflict),
        ("wharf node drain demo n1 --jobs maybe", ErrorKind::InvalidValue),
        ("wharf node drain demo n1 --timeout soon", ErrorKind::ValueValidation),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.kind(), kind, "{line}");
        assert_eq!(error.exit_code(), 2, "{line}");
    }
    assert_eq!(parse("wharf --help").unwrap_err().exit_code(), 0);
    assert_eq!(parse("wharf --version").unwrap_err().exit_code(), 0);
}

#[test]
fn options_of_the_server_to_speak_to_may_stand_anywhere() {
    for line in [
        "wharf --data-dir /d user list",
        "wharf user --data-dir /d list",
        "wharf user list --data-dir /d",
    ] {
        let cli = parse(line).unwrap();
        assert_eq!(cli.wish.data_dir.as_deref(), Some(std::path::Path::new("/d")), "{line}");
    }
}

#[test]
fn the_help_of_local_commands_offers_no_remote_server_but_sees_one_that_is_given() {
    let mut root = Cli::command();
    root.build();
    let help =
        |name: &str| root.find_subcommand(name).unwrap().clone().render_long_help().to_string();
    assert!(help("audit").contains("--token"));
    for name in ["server", "agent", "context", "bundle", "store", "completion"] {
        assert!(!help(name).contains("--token"), "{name}");
        assert!(help(name).contains("--data-dir"), "{name}");
    }
    for line in
        ["wharf --server https://x completion bash", "wharf completion bash --server https://x"]
    {
        assert_eq!(parse(line).unwrap().wish.server.as_deref(), Some("https://x"), "{line}");
    }
}

#[test]
fn every_command_says_what_it_is_for() {
    fn visit(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path} has no help");
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            assert!(arg.get_help().is_some(), "{path}: {} has no help", arg.get_id());
        }
        for child in command.get_subcommands() {
            visit(child, &format!("{path} {}", child.get_name()));
        }
    }
    let mut root = Cli::command();
    root.build();
    visit(&root, "wharf");
}
