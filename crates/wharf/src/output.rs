//! What commands print: tables for people, the API's resources as JSON or YAML for programs.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use jiff::Timestamp;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    // Columns for people. (Not a doc comment: it would blow up the help of every command.)
    #[default]
    Table,
    // The API's resources: an array for a list.
    Json,
    // The same as YAML.
    Yaml,
}

/// Two blanks tell columns apart where a cell may hold one.
const COLUMN_GAP: u16 = 2;

/// Stdout cannot be written; a type of its own so that a closed pipe is told from other faults.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output")]
pub struct WriteError(#[source] pub io::Error);

/// Prints a list: a row for each item, or the items themselves.
pub fn list<T: Serialize, const N: usize>(
    format: Format,
    items: &[T],
    columns: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> anyhow::Result<()> {
    match format {
        Format::Table => {
            let mut table = plain_table();
            table.set_header(columns);
            for item in items {
                table.add_row(row(item));
            }
            line(&render(table))
        }
        Format::Json | Format::Yaml => data(format, &items),
    }
}

/// Prints one thing: a line for each field, or the thing itself.
pub fn one<T: Serialize>(
    format: Format,
    item: &T,
    fields: impl FnOnce(&T) -> Vec<(&'static str, String)>,
) -> anyhow::Result<()> {
    match format {
        Format::Table => {
            let mut table = plain_table();
            for (name, value) in fields(item) {
                table.add_row([format!("{name}:"), value]);
            }
            line(&render(table))
        }
        Format::Json | Format::Yaml => data(format, item),
    }
}

/// A resource for programs; a table has no meaning here and is taken as JSON.
pub fn data<T: Serialize>(format: Format, item: &T) -> anyhow::Result<()> {
    match format {
        Format::Yaml => text(&serde_saphyr::to_string(item)?),
        Format::Json | Format::Table => line(&serde_json::to_string_pretty(item)?),
    }
}

/// One line of data.
pub fn line(line: &str) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

/// Data as it is. It is written at once, so that a reader of a stream sees every line as it comes.
pub fn text(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(WriteError)?;
    Ok(())
}

/// Something for the person who looks on. If nobody can hear it, that is no failure.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Times as people read them in tables; programs get the API's own form.
pub fn time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Without borders and colour, and as wide as its contents: a terminal wraps lines better than
/// cells are wrapped, and a line stays a record.
fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    table
}

fn render(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, COLUMN_GAP));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_a_line_for_each_row_with_columns_under_their_heads() {
        let mut table = plain_table();
        table.set_header(["NAME", "WHAT IT IS"]);
        table.add_row(["a", &"long ".repeat(60)]).add_row(["b", ""]);
        let text = render(table);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], "NAME  WHAT IT IS");
        assert!(lines[1].starts_with("a     long long"), "{text}");
        assert_eq!(lines[2], "b");
    }
}
