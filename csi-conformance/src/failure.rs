//! Why a test failed: what was sent, what came, what was due.

use std::fmt;

use csi_proto::escape;

/// Why a test failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The call, without secrets, in protobuf's text format: the last one, where the failure is of what they all did.
    pub sent: String,
    /// What came instead.
    pub came: String,
    /// What was due.
    pub due: String,
    /// The calls that the test had made by then, in their order.
    pub calls: String,
}

impl Failure {
    pub(crate) fn new(due: impl Into<String>, came: impl Into<String>) -> Self {
        Self { sent: String::new(), came: came.into(), due: due.into(), calls: String::new() }
    }

    pub(crate) fn sent(mut self, sent: impl Into<String>) -> Self {
        self.sent = sent.into();
        self
    }
}

/// A line for each part, without anything of the driver that a terminal acts on.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.sent.is_empty() {
            writeln!(f, "sent: {}", escape::terminal(&self.sent))?;
        }
        writeln!(f, "came: {}", escape::terminal(&self.came))?;
        write!(f, "due:  {}", escape::terminal(&self.due))?;
        if !self.calls.is_empty() {
            write!(f, "\ncalls: {}", escape::terminal(&self.calls))?;
        }
        Ok(())
    }
}

/// How a test ends.
pub(crate) type Outcome<T = ()> = Result<T, Box<Failure>>;

/// What came, in words: nothing, or it.
pub(crate) fn or_nothing<T: fmt::Debug>(came: &Option<T>) -> String {
    came.as_ref().map_or_else(|| "nothing".to_owned(), |came| format!("{came:?}"))
}

/// Fails unless it holds.
pub(crate) fn check(holds: bool, due: &str, came: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Box::new(Failure::new(due, came()))) }
}
