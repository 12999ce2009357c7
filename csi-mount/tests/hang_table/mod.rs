//! A table of what hangs.

pub(crate) mod calls;
pub(crate) mod fate;

use std::time::{Duration, Instant};

/// Rows as they come, in Markdown.
#[derive(Default)]
pub(crate) struct Table(Vec<[String; 2]>);

impl Table {
    pub(crate) fn row(&mut self, what: impl ToString, outcome: impl ToString) {
        self.0.push([what.to_string(), outcome.to_string()]);
    }

    /// Runs what has to come to its end within the limit; `tell` says in words how it went, or panics where it went
    /// wrong.
    pub(crate) fn bounded<T>(
        &mut self,
        what: &str,
        limit: Duration,
        run: impl FnOnce() -> T,
        tell: impl FnOnce(&T) -> String,
    ) {
        let start = Instant::now();
        let result = run();
        let took = start.elapsed();
        self.row(what, format!("{}, {:.1} s", tell(&result), took.as_secs_f64()));
        assert!(took < limit, "{what} took {took:?}");
    }

    pub(crate) fn print(&self, columns: [&str; 2]) {
        println!("\n| {} | {} |\n|---|---|", columns[0], columns[1]);
        for [what, outcome] in &self.0 {
            println!("| {what} | {outcome} |");
        }
    }
}
