//! Resources of the API: as tables, or as they are.

use serde::Serialize;

use super::{Format, data, render, table, text};

/// Prints a list: a row for each item, or the items themselves.
pub fn list<T: Serialize, const N: usize>(
    format: Format,
    items: &[T],
    columns: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> anyhow::Result<()> {
    match format {
        Format::Table => table(columns, items.iter().map(row)),
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
            let rows = fields(item).into_iter().map(|(name, value)| [format!("{name}:"), value]);
            text(&render(&rows.collect::<Vec<_>>()))
        }
        Format::Json | Format::Yaml => data(format, item),
    }
}
