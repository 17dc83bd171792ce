//! docs/CLI.md, made from the command tree. `cargo xtask update` writes it anew.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory, Id};

use super::Cli;

const HEAD: &str = "\
# The `wharf` command line

Made from the program itself by `cargo xtask update`; do not edit.
";

fn render_reference() -> String {
    let mut root = Cli::command();
    root.build();
    let mut text = HEAD.to_owned();
    text.push_str("\n## Options of every command\n");
    render_arguments(&mut text, root.get_arguments().filter(|arg| arg.is_global_set()));
    render_command(&mut text, &root, "wharf", &globals(&root));
    text
}

fn globals(command: &Command) -> Vec<&Id> {
    command.get_arguments().filter(|arg| arg.is_global_set()).map(Arg::get_id).collect()
}

/// Options that the commands above have already are not said again.
fn render_command(text: &mut String, command: &Command, path: &str, said: &[&Id]) {
    let _ = write!(text, "\n## `{path}`\n\n");
    let about = command.get_long_about().or(command.get_about());
    let _ = writeln!(text, "{}", about.map(ToString::to_string).unwrap_or_default());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = write!(text, "\n```text\n{usage}\n```\n");
    let own = |arg: &&Arg| !arg.is_hide_set() && !said.contains(&arg.get_id());
    render_arguments(text, command.get_arguments().filter(own));
    if let Some(more) = command.get_after_help() {
        let _ = write!(text, "\n```text\n{more}\n```\n");
    }
    let said: Vec<&Id> = said.iter().copied().chain(globals(command)).collect();
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        render_command(text, child, &format!("{path} {}", child.get_name()), &said);
    }
}

fn render_arguments<'a>(text: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let mut rows = String::new();
    for arg in arguments {
        if matches!(arg.get_action(), ArgAction::Help | ArgAction::Version) {
            continue;
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ =
            writeln!(rows, "| `{}` | {}{} |", cell(&spelling(arg)), cell(&help), additions(arg));
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n| argument | meaning |\n|---|---|\n{rows}");
    }
}

/// `-o, --output <FORMAT>`, or `<NAME>` for what has no name of its own.
fn spelling(arg: &Arg) -> String {
    let value = match arg.get_action().takes_values() {
        true => arg
            .get_value_names()
            .and_then(|names| names.first())
            .map_or_else(|| arg.get_id().to_string().to_uppercase(), ToString::to_string),
        false => String::new(),
    };
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    match (names.is_empty(), value.is_empty(), arg.is_required_set()) {
        (true, _, true) => format!("<{value}>"),
        (true, _, false) => format!("[{value}]"),
        (false, true, _) => names.join(", "),
        (false, false, _) => format!("{} <{value}>", names.join(", ")),
    }
}

fn additions(arg: &Arg) -> String {
    let mut text = String::new();
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() {
        let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        let _ = write!(text, "; one of {}", names.join(", "));
    }
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .filter(|value| !value.is_empty())
        .collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(text, " [default: {}]", defaults.join(", "));
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

#[test]
fn the_reference_in_the_docs_is_not_outdated() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CLI.md");
    let made = render_reference();
    if std::env::var_os("WHARF_UPDATE").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        made == written,
        "docs/CLI.md is outdated: run `cargo xtask update` and look at the change"
    );
}
