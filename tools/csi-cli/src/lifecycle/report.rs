//! The output for people: one line per step, and a summary.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use csi_proto::escape;
use csi_proto::internal::Redactor;
use serde_json::json;

use super::undo::UndoResult;

/// The width of the column with the calls; the longest name is ValidateVolumeCapabilities.
const NAME: usize = 26;
const TEXT: usize = 40;
/// The width of everything before a line's text.
const INDENT: usize = 8 + NAME + 1;

/// How long a step took.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The time of the first call.
    pub first: Duration,
    /// The time of the second, repeated call, if there was one.
    pub again: Option<Duration>,
}

// The parameters of a terminal's SGR sequence.
const GOOD: &str = "32";
const BAD: &str = "1;31";
const OTHER: &str = "33";
const HEADING: &str = "1";
const FAINT: &str = "2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Coloured,
    /// For programs: one JSON object per line.
    Json,
}

impl Style {
    fn paint(self, colour: &str, text: &str) -> String {
        match self {
            Self::Coloured if !text.is_empty() => format!("\x1b[{colour}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// Prints the lines, and counts them.
#[derive(Debug)]
pub struct Report {
    style: Style,
    hidden: Redactor,
    start: Instant,
    steps: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

impl Report {
    /// Reports to standard output, in colour on a terminal unless NO_COLOR is set.
    pub fn new() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let coloured = std::io::stdout().is_terminal() && !unwanted;
        let style = if coloured { Style::Coloured } else { Style::Plain };
        Self { style, hidden: Redactor::default(), start: Instant::now(), steps: 0 }
    }

    /// Switches to one JSON object per line, for programs.
    #[must_use]
    pub fn json(self) -> Self {
        Self { style: Style::Json, ..self }
    }

    pub(crate) fn hide(&mut self, hidden: &Redactor) {
        self.hidden.add_all(hidden);
    }

    /// The text as printed: without hidden values, and for people without terminal control characters.
    fn shown(&self, text: &str) -> String {
        let text = self.hidden.scrub(text);
        match self.style {
            Style::Json => text,
            _ => escape::terminal(&text).into_owned(),
        }
    }

    /// Prints the title of the steps that follow.
    pub fn heading(&self, text: &str) {
        match self.style {
            Style::Json => {}
            style => {
                print("");
                print(&style.paint(HEADING, &self.shown(text)));
            }
        }
    }

    pub(crate) fn part(&self, text: &str) {
        let text = self.shown(text);
        match self.style {
            Style::Json => print_json(&json!({ "volume": text })),
            style => {
                print("");
                print(&format!("  {}", style.paint(HEADING, &text)));
            }
        }
    }

    /// Reports a step that succeeded.
    pub fn ok(&mut self, name: &str, text: &str, timing: Timing) {
        self.steps += 1;
        self.line(GOOD, "ok", name, text, Some(timing));
    }

    /// Reports something that is left out, and why.
    pub fn left_out(&mut self, name: &str, why: &str) {
        self.line(OTHER, "--", name, why, None);
    }

    /// Reports a step that failed, why, and the last lines that the driver printed.
    pub fn failed(&mut self, name: &str, why: &str, log: &[String]) {
        self.line(BAD, "FAIL", name, why, None);
        for line in log {
            self.detail(&format!("driver: {line}"));
        }
    }

    /// Prints a line that belongs to the previous one.
    pub fn detail(&self, text: &str) {
        let text = self.shown(text);
        match self.style {
            Style::Json => print_json(&json!({ "detail": text })),
            style => print(&format!("        {}", style.paint(FAINT, &text))),
        }
    }

    /// Prints a command for people to run.
    pub fn command(&self, text: &str) {
        let text = self.shown(text);
        match self.style {
            Style::Json => print_json(&json!({ "command": text })),
            _ => print(&format!("  {text}")),
        }
    }

    /// Prints what was undone, what was not, and the commands that undo what is left.
    pub(crate) fn undone(&self, undone: &UndoResult) {
        for done in &undone.done {
            self.detail(done);
        }
        for failed in &undone.failed {
            self.detail(&format!("not undone: {failed}"));
        }
        if !undone.left.is_empty() {
            self.heading("these commands undo what is left:");
            undone.left.iter().for_each(|command| self.command(command));
        }
    }

    /// Prints the last line of a run without failures.
    pub fn all_well(&self, left: &str) {
        let text =
            format!("success: {} steps in {}", self.steps, duration(self.start.elapsed()).trim_start());
        self.summary(GOOD, &text, left);
    }

    /// Prints the last line of a run that ended early.
    pub fn ended(&self, why: &str, left: &str) {
        let text = format!("{why}, after {} successful steps", self.steps);
        self.summary(BAD, &text, left);
    }

    fn summary(&self, colour: &str, text: &str, left: &str) {
        let text = self.shown(text);
        let left = self.shown(left);
        match self.style {
            Style::Json => {
                let end = json!({ "well": colour == GOOD, "end": text, "left": left, "steps": self.steps });
                print_json(&end);
            }
            style => {
                print("");
                print(&format!("{}; {left}", style.paint(colour, &text)));
            }
        }
    }

    fn line(&self, colour: &str, mark: &str, name: &str, text: &str, timing: Option<Timing>) {
        let text = self.shown(text);
        if self.style == Style::Json {
            let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
            let again = timing.and_then(|timing| timing.again).map(milliseconds);
            let first = timing.map(|timing| milliseconds(timing.first));
            let outcome = match mark {
                "--" => "left out",
                other => &other.to_lowercase(),
            };
            let name = name.trim();
            let line =
                json!({ "step": name, "outcome": outcome, "text": text, "ms": first, "again_ms": again });
            return print_json(&line);
        }
        let mark = self.style.paint(colour, &format!("{mark:<4}"));
        let mut lines = wrapped(&text).into_iter();
        let first = lines.next().unwrap_or_default();
        let times = timing.map(|timing| {
            let again = timing.again.map(|again| format!("   again {}", duration(again)));
            self.style.paint(FAINT, &format!("{}{}", duration(timing.first), again.unwrap_or_default()))
        });
        let line = format!("  {mark}  {name:<NAME$} {first:<TEXT$} {}", times.unwrap_or_default());
        print(line.trim_end());
        for more in lines {
            print(&format!("{:INDENT$}{more}", ""));
        }
    }
}

/// Errors of the output are ignored: a reader that is gone must not stop the clean-up.
fn print(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

fn print_json(value: &serde_json::Value) {
    print(&escape::json(&value.to_string()));
}

/// Breaks text into lines of at most the column's width, unless a word is longer.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= TEXT => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The duration of a step, right-aligned.
fn duration(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    if milliseconds < 1000.0 {
        format!("{milliseconds:>6.1} ms")
    } else {
        format!("{:>7.2} s", milliseconds / 1e3)
    }
}

/// A size with its unit, for example 512 MiB.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scaled = bytes as f64;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(scaled.fract() > 0.0 && unit > 0);
    format!("{scaled:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_for_people() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(512 << 20), "512 MiB");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size((1 << 30) + (1 << 29)), "1.5 GiB");
        assert_eq!(duration(Duration::from_micros(41_230)), "  41.2 ms");
        assert_eq!(duration(Duration::from_millis(1_230)), "   1.23 s");
    }

    #[test]
    fn long_texts_go_on_below() {
        let text = "CONTROLLER_SERVICE VOLUME_EXPANSION_ONLINE and more";
        assert_eq!(wrapped(text), ["CONTROLLER_SERVICE", "VOLUME_EXPANSION_ONLINE and more"]);
        assert!(wrapped("").is_empty());
    }

    #[test]
    fn plain_output_has_no_codes() {
        assert_eq!(Style::Plain.paint(BAD, "FAIL"), "FAIL");
        assert_eq!(Style::Coloured.paint(GOOD, "ok"), "\x1b[32mok\x1b[0m");
    }
}
