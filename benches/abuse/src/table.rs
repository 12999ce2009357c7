//! The result as a table.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::loads::{Load, Scale};
use crate::meter::{Seen, Series};

/// One load, and the measurements under it.
pub(crate) struct Row<'a> {
    pub(crate) load: &'a Load,
    pub(crate) scale: Scale,
    pub(crate) seen: Seen,
}

const HEAD: &str = "\
| load | what it does | calls: p50 / p99 ms | failed | probes: p50 / p99 ms | failed | memory before, \
during, after: MB | descriptors |
|---|---|---|---|---|---|---|---|
";
/// The marks around the table in the document.
const BEGIN: &str = "<!-- begin: written by cargo xtask abuse -->\n";
const END: &str = "<!-- end -->\n";

pub(crate) fn table(rows: &[Row<'_>]) -> String {
    let mut text = HEAD.to_owned();
    for Row { load, scale, seen } in rows {
        let what = load.what.replace("{}", &scale.of(load.full).to_string());
        let [before, during, after] =
            [seen.before, seen.during, seen.after].map(|bytes| format!("{:.1}", bytes as f64 / 1e6));
        let _ = writeln!(
            text,
            "| {} | {what} | {} | {} | {before}, {during}, {after} | {} |",
            load.name,
            series(&seen.calls),
            series(&seen.probes),
            seen.descriptors,
        );
    }
    text
}

fn series(series: &Series) -> String {
    let quantile = |part| series.quantile(part).map_or("–".to_owned(), milliseconds);
    format!("{} / {} | {} of {}", quantile(0.5), quantile(0.99), series.failed, series.count())
}

fn milliseconds(took: Duration) -> String {
    format!("{:.2}", took.as_secs_f64() * 1e3)
}

/// Writes the table between the marks of the document.
pub(crate) fn write(path: &Path, table: &str) -> std::io::Result<()> {
    let document = std::fs::read_to_string(path)?;
    let place = document.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = place else {
        return Err(std::io::Error::other(format!(
            "{} does not contain the marks for the table",
            path.display()
        )));
    };
    std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}"))
}
