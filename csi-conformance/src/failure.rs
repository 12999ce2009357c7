//! Why a test failed: the request, the answer, and the expected answer.

use std::fmt;

use csi_proto::escape;

/// Why a test failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The request, without secrets, in protobuf's text format. If the failure concerns several calls, this
    /// is the last one.
    pub sent: String,
    /// The actual answer.
    pub came: String,
    /// The expected answer.
    pub due: String,
    /// The calls that the test made before the failure, in order.
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

/// One line for each part. Terminal control characters from the driver are escaped.
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

/// The result of a test.
pub(crate) type Outcome<T = ()> = Result<T, Box<Failure>>;

/// The value as text, or "nothing".
pub(crate) fn or_nothing<T: fmt::Debug>(came: &Option<T>) -> String {
    came.as_ref().map_or_else(|| "nothing".to_owned(), |came| format!("{came:?}"))
}

/// Fails unless `holds`.
pub(crate) fn check(holds: bool, due: &str, came: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Box::new(Failure::new(due, came()))) }
}
