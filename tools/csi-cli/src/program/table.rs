//! Messages as tables and lines, for people.

use prost_reflect::{DynamicMessage, Kind, ReflectMessage as _, Value};

use super::show::{flatten, texts, visible};

/// What was printed already: the heading of a continued table, and lines that the next message would repeat.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    columns: Vec<String>,
    widths: Vec<usize>,
    fields: Vec<(String, String)>,
}

impl Shown {
    /// A table for a message's list, and one line for each other field. Redact the message first.
    pub(crate) fn lines(&mut self, message: &DynamicMessage) -> Vec<String> {
        let is_list = |kind: &Kind| matches!(kind, Kind::Message(_));
        let list = message.descriptor().fields().find(|field| field.is_list() && is_list(&field.kind()));
        let mut lines = Vec::new();
        let mut fields = Vec::new();
        for (field, value) in visible(message) {
            match &value {
                Value::List(rows) if list.as_ref() == Some(&field) => lines = self.table(rows),
                value => flatten(field.name(), &field, value, message, &mut fields),
            }
        }
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let new = fields.iter().filter(|field| !self.fields.contains(field));
        lines.extend(new.map(|(name, text)| format!("{name:<width$}  {text}").trim_end().to_owned()));
        self.fields = fields;
        lines
    }

    fn table(&mut self, rows: &[Value]) -> Vec<String> {
        let cells: Vec<_> = rows.iter().map(cells).collect();
        let mut columns: Vec<String> = Vec::new();
        for (name, _) in cells.iter().flatten() {
            if !columns.contains(name) {
                columns.push(name.clone());
            }
        }
        let is_new = columns.iter().any(|name| !self.columns.contains(name));
        let mut grid = Vec::new();
        if is_new {
            self.columns = columns;
            self.widths = Vec::new();
            grid.push(headings(&self.columns));
        }
        grid.extend(cells.iter().map(|found| {
            let text =
                |name: &String| found.iter().find(|(other, _)| other == name).map(|(_, text)| text.clone());
            self.columns.iter().map(|name| text(name).unwrap_or_default()).collect()
        }));
        if is_new {
            self.widths = widths(&grid);
        }
        grid.iter().map(|row| line(row, &self.widths)).collect()
    }
}

fn cells(row: &Value) -> Vec<(String, String)> {
    row.as_message().map(texts).unwrap_or_default()
}

/// The headings: the last word of a column's name, if no other column has it.
fn headings(columns: &[String]) -> Vec<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_uppercase();
    let heading = |name: &String| match columns.iter().filter(|other| last(other) == last(name)).count() {
        1 => last(name),
        _ => name.to_uppercase(),
    };
    columns.iter().map(heading).collect()
}

fn widths(grid: &[Vec<String>]) -> Vec<usize> {
    let columns = grid.iter().map(Vec::len).max().unwrap_or_default();
    let width = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    (0..columns).map(|at| grid.iter().map(|row| width(row, at)).max().unwrap_or_default()).collect()
}

pub(crate) fn aligned(grid: &[Vec<String>]) -> Vec<String> {
    let widths = widths(grid);
    grid.iter().map(|row| line(row, &widths)).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}
