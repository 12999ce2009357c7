//! Where results go.

use std::io::{Error, ErrorKind, Write as _};
use std::time::Duration;

use csi_core::Rpc;
use csi_proto::escape;
use tonic::{Code, Status};

use super::exit;
use crate::lifecycle::Hidden;

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Why the program ends before its time.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Nobody reads the output any more: `csi … | head`.
    Unread,
    /// The output can't be written.
    Unwritten(Error),
    /// It could not begin; the text says what mends it.
    Usage(String),
    /// It has said why, and this is its exit status.
    Ended(u8),
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::Usage(reason)
    }
}

impl Stop {
    /// A failure that is told here.
    pub(crate) fn failed(reason: &str) -> Self {
        complain(reason);
        Self::Ended(exit::FAILED)
    }
}

/// Writes a line, without anything that a terminal acts on.
///
/// # Errors
/// When nobody reads it, or it can't be written.
pub(crate) fn print(line: &str) -> Result<(), Stop> {
    write(&escape::terminal(line))
}

/// How JSON is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One line, for an output of several values.
    Line,
    /// Indented, for an output that is one value.
    Indented,
}

/// Writes JSON, without anything that a terminal acts on.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &serde_json::Value, layout: Layout) -> Result<(), Stop> {
    let written = match layout {
        Layout::Line => value.to_string(),
        Layout::Indented => format!("{value:#}"),
    };
    write(&escape::json(&written))
}

fn write(text: &str) -> Result<(), Stop> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(broken)
}

/// What an error of the output means.
pub(crate) fn broken(error: Error) -> Stop {
    match error.kind() {
        ErrorKind::BrokenPipe => Stop::Unread,
        _ => Stop::Unwritten(error),
    }
}

/// A line on standard error, without anything that a terminal acts on. There is nowhere else to complain to.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "csi: {}", escape::terminal(line));
}

/// The spec's name of a code, as the wire's documents write it.
pub(crate) fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_uppercase());
    }
    name
}

/// What to do about a refusal, where its code alone says it.
fn hint(status: &Status) -> Option<&'static str> {
    Some(match status.code() {
        Code::Unimplemented => "the driver does not offer this here; `csi capabilities` shows what it does",
        Code::Aborted => "another operation on it is running; try again in a moment",
        Code::DeadlineExceeded => {
            "the driver may be at it still: the same command again goes on from there, --timeout waits longer"
        }
        Code::Unauthenticated | Code::PermissionDenied => {
            "secrets are given with --secrets-file FILE or --secrets-env KEY=VARIABLE"
        }
        Code::Unavailable => "the same command again may go well; if the driver has ended, its log says why",
        _ => return None,
    })
}

/// Complains of a call that was refused, and ends the program.
pub(crate) fn refused(rpc: Rpc, status: &Status, hidden: &Hidden) -> Stop {
    let message = hidden.scrub(status.message());
    complain(&format!("{rpc}: {}: {message}", code_name(status.code())));
    if let Some(hint) = hint(status) {
        complain(hint);
    }
    Stop::Ended(exit::refused(status.code()))
}

/// Reads a time: `10s`, `500ms`, `2m`, `1h`; seconds without a unit.
///
/// # Errors
/// When it is none, or 0.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds = digits.parse::<f64>().map(|number| number * scale).ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero() && time.as_secs() < 1 << 26)
        .ok_or_else(|| format!("{text:?} is no time: write 10s, 500ms, 2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_the_wire() {
        assert_eq!(code_name(Code::Ok), "OK");
        assert_eq!(code_name(Code::FailedPrecondition), "FAILED_PRECONDITION");
        assert_eq!(code_name(Code::NotFound), "NOT_FOUND");
    }

    #[test]
    fn times() {
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        for bad in ["", "s", "0", "-1s", "1x", "nan", "inf", "1e99", "５s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
