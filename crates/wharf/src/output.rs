//! What commands print: tables for people, the API's resources as JSON or YAML for programs.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

#[cfg(feature = "full")]
pub use resource::{list, one};

#[cfg(feature = "full")]
mod resource;

// How a command prints its result. (Not a doc comment: it would take the place of the command's.)
#[derive(Debug, clap::Args)]
pub struct Output {
    /// How to print the result
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    pub format: Format,
}

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
const COLUMN_GAP: usize = 2;

/// Stdout cannot be written; a type of its own so that a closed pipe is told from other faults.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output")]
pub struct WriteError(#[source] pub io::Error);

/// Prints rows under their heads.
pub fn table<const N: usize>(
    columns: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    let head = columns.map(str::to_owned);
    text(&render(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))
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
/// cells are wrapped, and a line stays a record. Only a cell that has several lines takes more.
fn render<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.lines().map(UnicodeWidthStr::width).fold(*width, usize::max);
        }
    }
    let mut text = String::new();
    for row in rows {
        let height = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0).max(1);
        for number in 0..height {
            let mut missing = 0;
            for (width, cell) in widths.iter().zip(row) {
                let part = cell.lines().nth(number).unwrap_or_default();
                if !part.is_empty() {
                    text.extend(std::iter::repeat_n(' ', missing));
                    text.push_str(part);
                    missing = 0;
                }
                missing += width - part.width() + COLUMN_GAP;
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_a_line_for_each_row_with_columns_under_their_heads() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let text = render(&[
            row(["NAME", "WHAT IT IS", "SINCE"]),
            row(["a", &"long ".repeat(60), ""]),
            row(["日本", "", "now"]),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("NAME  WHAT IT IS   "), "{text}");
        assert!(lines[1].starts_with("a     long long"), "{text}");
        assert_eq!(lines[2].find("now"), lines[0].find("SINCE").map(|place| place + 2), "{text}");
        assert!(lines.iter().all(|line| !line.ends_with("  ")), "{text}");
    }

    #[test]
    fn a_cell_of_several_lines_stays_in_its_column() {
        let rows = [["Reason:".to_owned(), "one\ntwo".to_owned()]];
        assert_eq!(render(&rows), "Reason:  one\n         two\n");
    }
}
