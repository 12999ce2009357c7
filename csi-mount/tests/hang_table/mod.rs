//! A table of what hangs.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod calls;
pub(crate) mod fate;

use std::time::{Duration, Instant};

/// Rows in the order in which they are added, printed as Markdown.
#[derive(Default)]
pub(crate) struct Table(Vec<[String; 2]>);

impl Table {
    pub(crate) fn row(&mut self, what: impl ToString, outcome: impl ToString) {
        self.0.push([what.to_string(), outcome.to_string()]);
    }

    /// Returns the name and the outcome of the row with this name, or a dash for an empty name.
    fn beside(&self, what: &str) -> String {
        match self.0.iter().find(|row| row[0] == what) {
            Some([what, outcome]) => format!("{what}: {outcome}"),
            None => {
                assert!(what.is_empty(), "there is no row {what}");
                "–".to_owned()
            }
        }
    }

    /// Runs something that must end within the limit. `tell` describes the result, or panics if it is wrong.
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

/// The outcomes of system calls. Next to each is this crate's own result: the other table's row of that name.
#[derive(Default)]
pub(crate) struct CallTable(Vec<[String; 3]>);

impl CallTable {
    pub(crate) fn row(&mut self, call: impl ToString, outcome: impl ToString, helper: &str) {
        self.0.push([call.to_string(), outcome.to_string(), helper.to_owned()]);
    }

    pub(crate) fn print(&self, what: &str, answers: &Table) {
        println!("\n| {what} | the server is stopped | csi-mount |\n|---|---|---|");
        for [call, outcome, helper] in &self.0 {
            println!("| {call} | {outcome} | {} |", answers.beside(helper));
        }
    }
}
