//! The text of a condition for the caller, and the error below it for the log.

use std::fmt;
use std::sync::Arc;

pub(super) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a condition holds: a text for the caller, and optionally the error that caused it, for the log.
///
/// The text must not contain secrets. `"text".into()` and `format!(..).into()` create one without a cause.
#[derive(Debug, Clone)]
pub struct Reason {
    text: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Reason {
    /// Creates a reason with this text for the caller; the source and its own sources go only to the log.
    pub fn because(text: impl Into<String>, source: impl Into<Source>) -> Self {
        Self { text: text.into(), source: Some(source.into().into()) }
    }

    /// Creates a reason from an error: the caller sees its text, its sources go to the log.
    pub fn from_error(error: impl Into<Source>) -> Self {
        let source = error.into();
        Self { text: source.to_string(), source: Some(source.into()) }
    }

    /// Returns the text for the caller.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, source: None }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}
