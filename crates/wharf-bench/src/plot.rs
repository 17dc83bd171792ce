//! The rows that have a peer, as a picture: two bars each, and the ratio with its goal.

use std::fmt::Write;

use crate::report::{Row, number};

const WIDTH: f64 = 860.0;
const LABEL_WIDTH: f64 = 280.0;
const BAR_WIDTH: f64 = 330.0;
const ROW_HEIGHT: f64 = 54.0;
const TOP: f64 = 46.0;

/// Readable on light and on dark paper, and by people who do not tell red from green.
const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #57606a }
  .name { font-weight: 600 } .value { font-size: 12px } .met { fill: #2f81f7 } .missed { fill: #d1701f }
  .ours { fill: #2f81f7 } .peer { fill: #8c959f }
  @media (prefers-color-scheme: dark) { text { fill: #b1bac4 } }
";

pub fn render_svg(rows: &[Row]) -> String {
    let compared: Vec<(&Row, f64)> =
        rows.iter().filter_map(|row| row.peer.map(|peer| (row, peer))).collect();
    let height = TOP + ROW_HEIGHT * compared.len() as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<style>{STYLE}</style>\n"
    );
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<rect class=\"ours\" x=\"{LABEL_WIDTH}\" y=\"14\" width=\"12\" height=\"12\"/>\
         <text x=\"{0}\" y=\"25\">Wharf</text>\
         <rect class=\"peer\" x=\"{1}\" y=\"14\" width=\"12\" height=\"12\"/>\
         <text x=\"{2}\" y=\"25\">the other</text>",
        LABEL_WIDTH + 18.0,
        LABEL_WIDTH + 80.0,
        LABEL_WIDTH + 98.0
    );
    for (place, (row, peer)) in compared.into_iter().enumerate() {
        let top = TOP + ROW_HEIGHT * place as f64;
        render_row(&mut svg, row, peer, top);
    }
    svg.push_str("</svg>\n");
    svg
}

fn render_row(svg: &mut String, row: &Row, peer: f64, top: f64) {
    let longest = row.ours.max(peer).max(f64::MIN_POSITIVE);
    let length = |value: f64| (value / longest * BAR_WIDTH).clamp(1.0, BAR_WIDTH);
    let name = escape(&row.name);
    let peer_name = escape(row.peer_name.as_deref().unwrap_or_default());
    let _ = writeln!(
        svg,
        "<text class=\"name\" x=\"12\" y=\"{}\">{name}</text><text class=\"value\" x=\"12\" y=\"{}\">against {peer_name}</text>",
        top + 14.0,
        top + 31.0
    );
    for (class, value, y) in [("ours", row.ours, top + 2.0), ("peer", peer, top + 20.0)] {
        let length = length(value);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{length:.1}\" height=\"14\" rx=\"2\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{}\">{} {}</text>",
            LABEL_WIDTH + length + 6.0,
            y + 11.0,
            number(value),
            escape(row.unit)
        );
    }
    if let (Some(ratio), Some(goal), Some(met)) = (row.ratio, row.goal, row.met) {
        let (class, word) = if met { ("met", "met") } else { ("missed", "missed") };
        let _ = writeln!(
            svg,
            "<text class=\"{class}\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{ratio:.3} of {goal:.3}: {word}</text>",
            WIDTH - 12.0,
            top + 45.0
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_two_bars_for_each_row_with_a_peer() {
        let rows =
            [Row::alone("alone", 1.0, "ms"), Row::cost("a < b", 1.0, "b & c", 2.0, "ms").goal(0.4)];
        let svg = render_svg(&rows);
        assert_eq!(svg.matches("<rect").count(), 2 + 2);
        assert!(svg.contains("a &lt; b") && svg.contains("b &amp; c") && svg.contains("missed"));
        assert!(!svg.contains("alone"));
    }
}
