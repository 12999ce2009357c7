//! `cargo xtask pictures`: the pictures of the documents, drawn from tables in the tree.
//!
//! A picture has no fact of its own. A test compares each file with a new drawing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::svg::Svg;

/// The height of a line of text.
const LINE: f64 = 16.0;
/// The space around a text in its box.
const PAD: f64 = 8.0;
/// The mean width of a character, a little more than it is.
const CHARACTER: f64 = 6.6;

const INK: &str = "#495057";
const PLAIN: &str = "#e7f5ff";
const LIFTED: &str = "#fff4e6";
const EMPTY: &str = "#f8f9fa";

/// Writes all pictures.
pub(crate) fn write(root: &Path) -> Result<(), Failure> {
    for (path, picture) in all(root)? {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, picture)?;
    }
    Ok(())
}

/// Each picture's file, and the picture.
fn all(root: &Path) -> Result<Vec<(PathBuf, String)>, Failure> {
    let read = |path: &str| fs::read_to_string(root.join(path));
    let architecture = read("ARCHITECTURE.md")?;
    let admission = read("csi-core/docs/admission.md")?;
    let mut flows = Vec::new();
    for (flow, title) in FLOWS {
        flows.extend(chains(&read(&format!("csi-mount/src/flow/{flow}/mod.rs"))?, title));
    }
    let pictures = [
        ("call-path", call_path(&architecture)?),
        ("layers", layers(&architecture)?),
        ("volume-life", volume_life(&flows)?),
        ("admission", exclusions(&admission)?),
        ("quickstart", terminal(&read("docs/pictures/quickstart.txt")?)),
    ];
    let folder = root.join("docs/pictures");
    Ok(pictures.map(|(name, svg)| (folder.join(name).with_extension("svg"), sized(&svg))).into())
}

/// With its own size, so that a browser only makes it smaller.
fn sized(svg: &str) -> String {
    let size = svg.split_once("viewBox=\"0 0 ").and_then(|(_, rest)| rest.split_once('"'));
    let (width, height) = size.and_then(|(size, _)| size.split_once(' ')).unwrap_or_default();
    svg.replacen("<svg ", &format!("<svg width=\"{width}\" height=\"{height}\" "), 1)
}

fn missing(what: &str) -> Failure {
    Failure::new(format!("no {what} to draw from"))
}

/// The rows of the first table in a text, without its head, as cells.
fn table(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().map(|line| line.trim_start_matches("//! "));
    let rows = lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let inner = row.strip_prefix('|').unwrap_or(row).strip_suffix('|').unwrap_or(row);
        inner.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// Markdown without its marks: backticks, and links to items or pages.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        // A link to a function ends with brackets of its own.
        let mut depth = 1;
        let end = after.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    plain.push_str(rest);
    plain.replace(['`', '[', ']'], "")
}

/// Breaks a text into lines of at most this width.
fn wrap(text: &str, width: f64) -> Vec<String> {
    let most = (width / CHARACTER) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A box with a text, or two: its place and size are known before it is drawn.
struct Label {
    lines: Vec<String>,
    width: f64,
}

impl Label {
    fn new(text: &str, width: f64) -> Self {
        Self { lines: wrap(text, width - 2.0 * PAD), width }
    }

    fn height(&self) -> f64 {
        self.lines.len() as f64 * LINE + 2.0 * PAD - 4.0
    }

    fn draw(&self, svg: &mut Svg, x: f64, y: f64, fill: &str) {
        svg.rectangle(x, y, self.width, self.height(), fill);
        for (at, line) in self.lines.iter().enumerate() {
            svg.text(x + PAD, y + PAD + 9.0 + at as f64 * LINE, "start", line);
        }
    }
}

fn arrow_down(svg: &mut Svg, x: f64, y: f64, length: f64) {
    svg.line((x, y), (x, y + length), INK);
    svg.line((x - 4.0, y + length - 5.0), (x, y + length), INK);
    svg.line((x + 4.0, y + length - 5.0), (x, y + length), INK);
}

/// Boxes from top to bottom with arrows between them. Returns where the last one ends.
fn draw_chain(svg: &mut Svg, labels: &[(Label, &str)], x: f64, mut y: f64) -> f64 {
    for (at, (label, fill)) in labels.iter().enumerate() {
        if at > 0 {
            arrow_down(svg, x + label.width / 2.0, y, ARROW);
            y += ARROW;
        }
        label.draw(svg, x, y, fill);
        y += label.height();
    }
    y
}

const ARROW: f64 = 16.0;

fn chain_height(labels: &[(Label, &str)]) -> f64 {
    let arrows = labels.len().saturating_sub(1) as f64 * ARROW;
    labels.iter().map(|(label, _)| label.height()).sum::<f64>() + arrows
}

/// The path of a call, as ARCHITECTURE.md lists it.
fn call_path(architecture: &str) -> Result<String, Failure> {
    let (_, rest) =
        architecture.split_once("The path of a call:").ok_or_else(|| missing("path of a call"))?;
    let block = rest.split("```").nth(1).ok_or_else(|| missing("path of a call"))?;
    let block = block.trim_start_matches("text");
    let steps = block.split('→').map(|step| plain(step.trim())).filter(|step| !step.is_empty());
    let labels: Vec<(Label, &str)> = steps
        .map(|step| {
            let fill = if step.starts_with("the driver") { LIFTED } else { PLAIN };
            (Label::new(&step, 440.0), fill)
        })
        .collect();
    let mut svg = Svg::new(480.0, chain_height(&labels) + 40.0);
    draw_chain(&mut svg, &labels, 20.0, 20.0);
    Ok(svg.end())
}

/// The layers of both crates, the highest on top.
fn layers(architecture: &str) -> Result<String, Failure> {
    const WIDTH: f64 = 640.0;
    const NAME: f64 = 150.0;
    let mut rows = Vec::new();
    for (name, fill) in [("csi-core", PLAIN), ("csi-mount", LIFTED)] {
        let heading = format!("### {name}\n");
        let (_, part) = architecture.split_once(&heading).ok_or_else(|| missing(&heading))?;
        let mut layers = table(part);
        layers.retain(|cells| cells[0].starts_with('`'));
        layers.reverse();
        rows.push((name.to_owned(), Vec::new(), fill));
        for cells in layers {
            let lines = wrap(&plain(&cells[1]), WIDTH - NAME - 40.0 - 2.0 * PAD);
            rows.push((plain(&cells[0]), lines, fill));
        }
    }
    let height = |lines: &[String]| lines.len().max(1) as f64 * LINE + 10.0;
    let total: f64 = rows.iter().map(|(_, lines, _)| height(lines) + 3.0).sum();
    let mut svg = Svg::new(WIDTH, total + 40.0);
    let mut y = 20.0;
    for (name, lines, fill) in &rows {
        if !lines.is_empty() {
            svg.rectangle(20.0, y, WIDTH - 40.0, height(lines), fill);
        }
        svg.text(28.0, y + 16.0, "start", name);
        for (at, line) in lines.iter().enumerate() {
            svg.text(20.0 + NAME, y + 16.0 + at as f64 * LINE, "start", line);
        }
        y += height(lines) + 3.0;
    }
    Ok(svg.end())
}

/// The flows of csi-mount, and what a volume of each is.
const FLOWS: [(&str, &str); 4] = [
    ("block", "block device"),
    ("shared", "server"),
    ("fuse", "FUSE program"),
    ("ephemeral", "files in memory"),
];

/// A volume's steps: the kind of volume, and each step with what it does.
struct Chain {
    title: String,
    steps: Vec<(String, String)>,
}

/// The columns of a flow's table.
fn chains(source: &str, title: &str) -> Vec<Chain> {
    let rows = table(source);
    let Some((head, steps)) = rows.split_first() else { return Vec::new() };
    let column = |at: usize| {
        let name = &head[at];
        let title = if name.is_empty() { title.to_owned() } else { format!("{title}: {name}") };
        let steps = steps.iter().filter(|cells| !cells[0].starts_with('-'));
        Chain { title, steps: steps.map(|cells| (cells[0].clone(), plain(&cells[at]))).collect() }
    };
    (1..head.len()).map(column).collect()
}

/// The steps of a volume on the node, one column for each kind.
fn volume_life(chains: &[Chain]) -> Result<String, Failure> {
    const COLUMN: f64 = 200.0;
    const AT_ONCE: usize = 3;
    if chains.len() < FLOWS.len() || chains.iter().any(|chain| chain.steps.len() < 3) {
        return Err(missing("steps of a volume"));
    }
    let labels = |chain: &Chain| -> Vec<(Label, &str)> {
        let head = (Label::new(&chain.title, COLUMN), LIFTED);
        let steps = chain.steps.iter().map(|(name, what)| match what.as_str() {
            "" => (Label::new(&format!("no {name}"), COLUMN), EMPTY),
            what if what == name => (Label::new(name, COLUMN), PLAIN),
            what if what.starts_with(&format!("{name}:")) => (Label::new(what, COLUMN), PLAIN),
            what => (Label::new(&format!("{name}: {what}"), COLUMN), PLAIN),
        });
        std::iter::once(head).chain(steps).collect()
    };
    let rows: Vec<Vec<Vec<(Label, &str)>>> =
        chains.chunks(AT_ONCE).map(|some| some.iter().map(labels).collect()).collect();
    let height =
        |row: &Vec<Vec<(Label, &str)>>| row.iter().map(|chain| chain_height(chain)).fold(0.0, f64::max);
    let total: f64 = rows.iter().map(|row| height(row) + 30.0).sum();
    let mut svg = Svg::new(20.0 + AT_ONCE as f64 * (COLUMN + 20.0), total + 20.0);
    let mut y = 20.0;
    for row in &rows {
        for (at, chain) in row.iter().enumerate() {
            draw_chain(&mut svg, chain, 20.0 + at as f64 * (COLUMN + 20.0), y);
        }
        y += height(row) + 30.0;
    }
    Ok(svg.end())
}

/// Which operations exclude each other, as a grid.
fn exclusions(document: &str) -> Result<String, Failure> {
    const NAMES: f64 = 290.0;
    const CELL: f64 = 24.0;
    let (_, part) = document.split_once("## Who excludes whom").ok_or_else(|| missing("exclusions"))?;
    let mut rows = table(part);
    rows.retain(|cells| cells[0].starts_with(|c: char| c.is_ascii_digit()));
    if rows.is_empty() {
        return Err(missing("exclusions"));
    }
    // "`M` the volume's name, `v` the volume, …", up to the first full stop.
    let legend = part.split_once("each other:").and_then(|(_, rest)| rest.split_once('.'));
    let legend = legend.ok_or_else(|| missing("legend"))?.0;
    let legend: Vec<String> = legend.split(',').map(|entry| plain(&entry.replace('\n', " "))).collect();
    let width = NAMES + rows.len() as f64 * CELL + 20.0;
    let bottom = 40.0 + rows.len() as f64 * CELL;
    let mut svg = Svg::new(width, bottom + 30.0 + legend.len().div_ceil(2) as f64 * LINE + 20.0);
    for (at, cells) in rows.iter().enumerate() {
        let y = 40.0 + at as f64 * CELL;
        svg.text(16.0, y + 16.0, "start", &cells[0]);
        svg.text(NAMES + (at as f64 + 0.5) * CELL, 32.0, "middle", &(at + 1).to_string());
        for (column, cell) in cells[1..].iter().enumerate() {
            let x = NAMES + column as f64 * CELL;
            let is_free = cell == "·";
            let fill = if is_free { EMPTY } else { colour(cell) };
            svg.rectangle(x, y, CELL - 2.0, CELL - 2.0, fill);
            if !is_free {
                svg.text(x + CELL / 2.0 - 1.0, y + 15.0, "middle", cell);
            }
        }
    }
    svg.text(16.0, bottom + 20.0, "start", "They exclude each other if they have this in common:");
    for (at, entry) in legend.iter().enumerate() {
        let x = 16.0 + (at % 2) as f64 * width / 2.0;
        svg.text(x, bottom + 40.0 + (at / 2) as f64 * LINE, "start", entry.trim());
    }
    Ok(svg.end())
}

/// The output of a program, as a terminal shows it.
fn terminal(text: &str) -> String {
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    let height = text.lines().count() as f64 * LINE + 24.0;
    let mut svg = Svg::new(widest as f64 * 7.3 + 24.0, height);
    for (at, line) in text.lines().enumerate() {
        // Columns hold only with every space, and browsers drop ordinary ones.
        svg.text(12.0, 24.0 + at as f64 * LINE, "start", &line.replace(' ', "\u{a0}"));
    }
    svg.end().replacen("sans-serif", "monospace", 1)
}

/// Names before the objects exist, objects of the controller, and objects of the node.
fn colour(letters: &str) -> &'static str {
    match letters {
        "M" | "S" | "G" => "#d3f9d8",
        "p" | "t" | "vp" => "#ffe8cc",
        _ => "#d0ebff",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
    }

    #[test]
    fn every_picture_is_drawn_from_the_current_tables() {
        for (path, picture) in all(root()).expect("tables") {
            let file = fs::read_to_string(&path).unwrap_or_default();
            assert!(file == picture, "{} is stale: run `cargo xtask pictures`", path.display());
        }
    }

    #[test]
    fn a_changed_table_changes_its_picture() {
        let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document");
        let changed = text.replace("| `ids.rs` | the types", "| `ids.rs` | all types");
        assert_ne!(layers(&text).expect("layers"), layers(&changed).expect("layers"));
        assert!(layers("").is_err() && call_path("").is_err() && exclusions("").is_err());
    }

    #[test]
    fn markdown_becomes_plain_text() {
        assert_eq!(plain("[`stats`](crate::stats()), the same"), "stats, the same");
        assert_eq!(plain("[`stage`]: mount, see [b](c)."), "stage: mount, see b.");
        assert_eq!(wrap("one two three", 8.0 * CHARACTER), ["one two", "three"]);
    }
}
