//! Rows of results, for people and for programs.

use std::fs;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::{Output, plot};

/// One result. The ratio is in the direction in which smaller is better, whatever the unit.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub name: String,
    pub ours: f64,
    pub peer: Option<f64>,
    pub peer_name: Option<String>,
    pub unit: &'static str,
    pub ratio: Option<f64>,
    pub goal: Option<f64>,
    pub met: Option<bool>,
    pub detail: String,
}

impl Row {
    /// A figure without a peer.
    pub fn alone(name: &str, ours: f64, unit: &'static str) -> Row {
        Row {
            name: name.to_owned(),
            ours,
            peer: None,
            peer_name: None,
            unit,
            ratio: None,
            goal: None,
            met: None,
            detail: String::new(),
        }
    }

    /// More is better.
    pub fn rate(name: &str, ours: f64, peer_name: &str, peer: f64, unit: &'static str) -> Row {
        Row::alone(name, ours, unit).against(peer_name, peer, peer / ours)
    }

    /// Less is better.
    pub fn cost(name: &str, ours: f64, peer_name: &str, peer: f64, unit: &'static str) -> Row {
        Row::alone(name, ours, unit).against(peer_name, peer, ours / peer)
    }

    fn against(self, peer_name: &str, peer: f64, ratio: f64) -> Row {
        Row { peer: Some(peer), peer_name: Some(peer_name.to_owned()), ratio: Some(ratio), ..self }
    }

    /// The largest ratio that is good enough.
    pub fn goal(self, goal: f64) -> Row {
        // A ratio of nothing by nothing is no number, and meets no goal.
        let met = self.ratio.is_some_and(|ratio| ratio <= goal);
        Row { goal: Some(goal), met: Some(met), ..self }
    }

    pub fn detail(self, detail: String) -> Row {
        Row { detail, ..self }
    }
}

#[derive(Debug)]
pub struct Report {
    name: &'static str,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(name: &'static str) -> Report {
        Report { name, rows: Vec::new() }
    }

    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Prints the rows and writes the files.
    pub fn finish(&self, output: &Output) -> Result<()> {
        if output.json {
            for row in &self.rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else {
            println!("{}", self.table());
        }
        fs::create_dir_all(&output.out)
            .with_context(|| format!("cannot make {}", output.out.display()))?;
        let json = output.out.join(format!("{}.json", self.name));
        fs::write(&json, serde_json::to_vec_pretty(&self.rows)?)?;
        let svg = output.out.join(format!("{}.svg", self.name));
        fs::write(&svg, plot::render_svg(&self.rows))?;
        eprintln!("written: {} and {}", json.display(), svg.display());
        self.judge(output.strict)
    }

    fn judge(&self, strict: bool) -> Result<()> {
        let missed: Vec<&Row> = self.rows.iter().filter(|row| row.met == Some(false)).collect();
        for row in &missed {
            let peer = row.peer_name.as_deref().unwrap_or_default();
            let (ratio, goal) = (row.ratio.unwrap_or(f64::NAN), row.goal.unwrap_or(f64::NAN));
            eprintln!("missed: {} against {peer}: ratio {ratio:.3}, goal {goal:.3}", row.name);
        }
        if strict && !missed.is_empty() {
            bail!("{} of the goals are missed", missed.len());
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["", "ours", "peer", "", "unit", "ratio", "goal", "", "detail"]);
        for row in &self.rows {
            let met = match row.met {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            };
            let ratio = |ratio: Option<f64>| ratio.map(|r| format!("{r:.3}")).unwrap_or_default();
            table.add_row([
                row.name.clone(),
                number(row.ours),
                row.peer.map(number).unwrap_or_default(),
                row.peer_name.clone().unwrap_or_default(),
                row.unit.to_owned(),
                ratio(row.ratio),
                ratio(row.goal),
                met.to_owned(),
                row.detail.clone(),
            ]);
        }
        for column in [1, 2, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// Three or more digits that count, and no more.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_ratio_is_better_for_rates_and_for_costs() {
        let rate = Row::rate("a", 300.0, "b", 100.0, "1/s").goal(1.0 / 3.0);
        let cost = Row::cost("a", 1.0, "b", 2.0, "ms").goal(1.0 / 3.0);
        assert_eq!((rate.met, cost.met), (Some(true), Some(false)));
        assert!((cost.ratio.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_meets_no_goal() {
        assert_eq!(Row::rate("a", 0.0, "b", 0.0, "1/s").goal(0.5).met, Some(false));
    }

    #[test]
    fn json_rows_have_the_promised_keys() {
        let row = serde_json::to_value(Row::alone("a", 1.0, "ms")).unwrap();
        for key in ["name", "ours", "peer", "peer_name", "unit", "ratio", "goal", "met"] {
            assert!(row.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_strict_report_fails_on_a_missed_goal() {
        let mut report = Report::new("test");
        report.add(Row::cost("a", 1.0, "b", 2.0, "ms").goal(0.1));
        assert!(report.judge(true).is_err());
        assert!(report.judge(false).is_ok());
    }
}
