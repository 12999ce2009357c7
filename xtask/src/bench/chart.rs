//! Charts of a record, as SVG.

use super::record::{Record, Subject};
use super::table::{duration, number};
use crate::svg::Svg;

/// The kinds, with their names in the legend and their colours, which also differ in lightness.
const KINDS: [(&str, &str, &str); 5] = [
    ("bare", "bare calls or tonic alone", "#9aa5b1"),
    ("ours", "this toolkit", "#d9480f"),
    ("crate", "other crates", "#4c6ef5"),
    ("program", "programs", "#2b8a3e"),
    ("mount-utils", "mount-utils (Go)", "#7048e8"),
];

fn colour(kind: &str) -> &'static str {
    KINDS.iter().find(|(name, ..)| *name == kind).map_or("#000000", |(.., colour)| colour)
}

fn legend(svg: &mut Svg, y: f64) {
    for (at, (_, words, colour)) in KINDS.iter().enumerate() {
        let x = 16.0 + at as f64 * 175.0;
        svg.rectangle(x, y - 10.0, 12.0, 12.0, colour);
        svg.text(x + 18.0, y, "start", words);
    }
}

const WIDTH: f64 = 900.0;
const NAMES: f64 = 300.0;
const BAR: f64 = 14.0;

/// The time of every contestant, with each subject at one size, as bars on a logarithmic scale.
pub(crate) fn bars(record: &Record) -> String {
    let subjects = one_size_each(record);
    let bars: usize = subjects.iter().map(|subject| subject.contestants.len()).sum();
    let height = 60.0 + bars as f64 * BAR + subjects.len() as f64 * 26.0;
    let mut svg = Svg::new(WIDTH, height);
    legend(&mut svg, 24.0);
    let most = subjects.iter().flat_map(|subject| &subject.contestants).map(|one| one.ratio.median);
    let scale = (WIDTH - NAMES - 130.0) / most.fold(10.0, f64::max).log10();
    let mut y = 56.0;
    for subject in subjects {
        let base = if subject.base() == "bare" { "" } else { " (to ours)" };
        svg.text(8.0, y, "start", &format!("{}{base}", subject.title()));
        y += 6.0;
        for contestant in &subject.contestants {
            let ratio = contestant.ratio.median;
            let length = (ratio.max(1.0).log10() * scale).max(2.0);
            svg.text(NAMES - 8.0, y + 10.0, "end", &contestant.name);
            svg.rectangle(NAMES, y + 1.0, length, BAR - 3.0, colour(&contestant.kind));
            let said = format!("{} × ({})", number(ratio), duration(contestant.nanoseconds.median));
            svg.text(NAMES + length + 6.0, y + 10.0, "start", &said);
            y += BAR;
        }
        y += 20.0;
    }
    svg.end()
}

/// One size of each subject: with sizes in mounts the largest one up to 1,000, otherwise the first.
fn one_size_each(record: &Record) -> Vec<&Subject> {
    let mut chosen: Vec<&Subject> = Vec::new();
    for subject in &record.subjects {
        match chosen.iter_mut().find(|known| known.name == subject.name) {
            Some(known) if subject.size <= 1000 && subject.unit == "mounts" => *known = subject,
            Some(_) => {}
            None => chosen.push(subject),
        }
    }
    chosen
}

const PLOT: (f64, f64) = (280.0, 190.0);
const COLUMNS: usize = 3;

/// A plot for each subject with several sizes: time by size, with both scales logarithmic.
pub(crate) fn scale(record: &Record) -> String {
    let mut plots: Vec<Vec<&Subject>> = Vec::new();
    for subject in &record.subjects {
        match plots.iter_mut().find(|plot| plot[0].name == subject.name) {
            Some(plot) => plot.push(subject),
            None => plots.push(vec![subject]),
        }
    }
    plots.retain(|plot| plot.len() > 1);
    let rows = plots.len().div_ceil(COLUMNS);
    let mut svg = Svg::new(WIDTH, 50.0 + rows as f64 * (PLOT.1 + 20.0));
    legend(&mut svg, 24.0);
    for (at, plot) in plots.iter().enumerate() {
        let x = 16.0 + (at % COLUMNS) as f64 * (PLOT.0 + 15.0);
        let y = 50.0 + (at / COLUMNS) as f64 * (PLOT.1 + 20.0);
        draw(&mut svg, plot, (x, y));
    }
    svg.end()
}

fn draw(svg: &mut Svg, plot: &[&Subject], (left, top): (f64, f64)) {
    let first = plot[0];
    svg.text(left, top + 12.0, "start", &format!("{}, by {}", first.name, first.unit));
    let (x0, y0, x1, y1) = (left + 52.0, top + 24.0, left + PLOT.0, top + PLOT.1 - 30.0);
    let size = |subject: &Subject| (subject.size.max(1) as f64).log10();
    let times = || plot.iter().flat_map(|subject| &subject.contestants).map(|one| one.nanoseconds.median);
    let lowest = times().fold(f64::INFINITY, f64::min).log10().floor();
    let highest = times().fold(0.0, f64::max).log10().ceil().max(lowest + 1.0);
    let (least, most) = (size(first), plot.last().map_or(1.0, |last| size(last)));
    let across = |value: f64| x0 + (value - least) / (most - least).max(0.1) * (x1 - x0);
    let up = |time: f64| y1 - (time.log10() - lowest) / (highest - lowest) * (y1 - y0);

    let mut power = lowest;
    while power <= highest {
        let y = up(10f64.powf(power));
        svg.line((x0, y), (x1, y), "#dee2e6");
        let words = duration(10f64.powf(power)).replace(".00", "").replace(".0", "");
        svg.text(x0 - 6.0, y + 4.0, "end", &words);
        power += 1.0;
    }
    let step = plot.len().div_ceil(5);
    for subject in plot.iter().step_by(step) {
        svg.text(across(size(subject)), y1 + 16.0, "middle", &subject.size.to_string());
    }
    for contestant in &first.contestants {
        let points: Vec<(f64, f64)> = plot
            .iter()
            .filter_map(|subject| {
                let same = subject.contestants.iter().find(|other| other.name == contestant.name)?;
                Some((across(size(subject)), up(same.nanoseconds.median)))
            })
            .collect();
        for pair in points.windows(2) {
            svg.line(pair[0], pair[1], colour(&contestant.kind));
        }
        for (x, y) in points {
            svg.rectangle(x - 2.5, y - 2.5, 5.0, 5.0, colour(&contestant.kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::record;

    #[test]
    fn charts_have_everyone() {
        let mut both = record("a < b", 10, &[2.0]);
        both.subjects.extend(record("a < b", 10_000, &[2.0]).subjects);
        let bars = bars(&both);
        assert!(
            bars.starts_with("<svg ") && bars.ends_with("</svg>\n") && bars.contains("a &lt; b, 10 mounts")
        );
        assert_eq!(bars.matches(&format!("fill=\"{}\"", colour("ours"))).count(), 2, "the legend and a bar");
        let plots = scale(&both);
        assert!(plots.contains("a &lt; b, by mounts") && plots.contains(">10000<"));
        assert_eq!(
            plots.matches(&format!("stroke=\"{}\"", colour("ours"))).count(),
            1,
            "a line between two sizes"
        );
        assert!(!plots.contains("NaN") && !plots.contains("inf"));
    }
}
