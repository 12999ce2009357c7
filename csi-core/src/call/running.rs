//! The running calls by name, for the log of a plugin that stops.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use csi_proto::Rpc;
use csi_proto::escape;

/// How many calls are named; the others are counted.
const NAMED: usize = 20;

struct Entry {
    rpc: Rpc,
    subject: Box<str>,
    since: Instant,
}

/// The calls whose driver's method runs, by request number. An entry stays until the method returns, even
/// if the caller has left.
#[derive(Default)]
pub(crate) struct Running(Mutex<BTreeMap<u64, Entry>>);

impl Running {
    pub(super) fn enter(self: &Arc<Self>, request: u64, rpc: Rpc, subject: &str) -> Entered {
        let entry = Entry { rpc, subject: subject.into(), since: Instant::now() };
        self.calls().insert(request, entry);
        Entered { running: Arc::clone(self), request }
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls that run now, the oldest first. `None` if there are none.
    pub(crate) fn list(&self) -> Option<List> {
        let calls = self.calls();
        let list = calls.iter().map(|(request, entry)| {
            let subject = match &*entry.subject {
                "" => String::new(),
                subject => format!(" {}", escape::terminal(subject)),
            };
            (format!("{}{subject} (request {request})", entry.rpc), entry.since.elapsed())
        });
        (!calls.is_empty()).then(|| List(list.collect()))
    }
}

/// Prints as `NodeStageVolume v1 (request 7) since 12.3s`, and so on.
pub(crate) struct List(Vec<(String, Duration)>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (name, took)) in self.0.iter().take(NAMED).enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{name} since {:.1}s", took.as_secs_f64())?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

/// A running call, registered until this value is dropped.
pub(super) struct Entered {
    running: Arc<Running>,
    request: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.calls().remove(&self.request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_named_and_what_is_done_is_not() {
        let running: Arc<Running> = Arc::default();
        assert!(running.list().is_none());
        let first = running.enter(7, Rpc::NodeStageVolume, "v\x1b[2J");
        let second = running.enter(3, Rpc::GetCapacity, "");
        let text = running.list().unwrap().to_string();
        let due = r"GetCapacity (request 3) since 0.0s, NodeStageVolume v\u{1b}[2J (request 7) since 0.0s";
        assert_eq!(text, due);
        drop((first, second));
        assert!(running.list().is_none());
        let _many: Vec<_> = (0..25).map(|id| running.enter(id, Rpc::DeleteVolume, "v")).collect();
        let text = running.list().unwrap().to_string();
        assert!(text.ends_with("(request 19) since 0.0s and 5 more"), "{text}");
    }
}
