//! Why a test failed: the request, the answer, and the expected answer.

use std::fmt;

use csi_proto::escape;

/// Why a test failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The request, without secrets, in protobuf's text format. If the failure concerns several calls, this
    /// is the last one.
    pub(crate) sent: String,
    pub(crate) actual: String,
    pub(crate) expected: String,
    /// The calls that the test made before the failure, in order.
    pub(crate) calls: String,
    /// Whether the driver only had no room for what the test needs. This says nothing about its subject.
    pub(crate) lacks_room: bool,
}

impl Failure {
    pub(crate) fn new(expected: impl Into<String>, actual: impl Into<String>) -> Self {
        Self {
            sent: String::new(),
            actual: actual.into(),
            expected: expected.into(),
            calls: String::new(),
            lacks_room: false,
        }
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
        writeln!(f, "actual: {}", escape::terminal(&self.actual))?;
        write!(f, "expected: {}", escape::terminal(&self.expected))?;
        if !self.calls.is_empty() {
            write!(f, "\ncalls: {}", escape::terminal(&self.calls))?;
        }
        Ok(())
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Box<Failure>>;

pub(crate) fn or_nothing<T: fmt::Debug>(actual: &Option<T>) -> String {
    actual.as_ref().map_or_else(|| "nothing".to_owned(), |actual| format!("{actual:?}"))
}

pub(crate) fn check(holds: bool, expected: &str, actual: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Box::new(Failure::new(expected, actual()))) }
}
