//! Everything that is logged, at every level, as text.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

/// Keeps everything that is logged, from TRACE up.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<String>>);

impl Log {
    /// Starts to record all threads. Allowed once per process.
    pub fn of_process() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).expect("one log a test binary");
        log
    }

    /// Starts to record this thread, until the guard is dropped.
    pub fn of_thread() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// The text logged since the last call.
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn line(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Line)) {
        let mut line = Line(format!("{} {}", metadata.level(), metadata.target()));
        record(&mut line);
        line.0.push('\n');
        self.0.lock().unwrap().push_str(&line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.line(span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line("recorded".to_owned());
        values.record(&mut line);
        line.0.push('\n');
        self.0.lock().unwrap().push_str(&line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.line(event.metadata(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
