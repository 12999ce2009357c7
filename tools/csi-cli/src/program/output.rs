//! The output of results.

use std::io::{Error, ErrorKind, Write as _};
use std::time::Duration;

use csi_proto::Rpc;
use csi_proto::escape;
use tonic::{Code, Status};

use super::exit;
use csi_proto::internal::Redactor;

/// The longest duration on the command line: timers take no arbitrarily long ones.
const LONGEST: Duration = Duration::from_secs(2 * 365 * 24 * 3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

#[derive(Debug)]
pub(crate) enum Stop {
    /// The reader of the output is gone: `csi … | head`.
    ReaderGone,
    OutputFailed(Error),
    /// A usage error. The text says how to fix it.
    Usage(String),
    /// The reason is printed already. This is the exit status.
    Exit(u8),
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::Usage(reason)
    }
}

impl Stop {
    pub(crate) fn failed(reason: &str) -> Self {
        print_error(reason);
        Self::Exit(exit::FAILED)
    }
}

/// Prints a line, with terminal control characters escaped.
///
/// # Errors
/// When the reader is gone, or the line can't be written.
pub(crate) fn print(line: &str) -> Result<(), Stop> {
    write(&escape::terminal(line))
}

/// Prints JSON on one line, for an output of several values, with terminal control characters escaped.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json_line(value: &serde_json::Value) -> Result<(), Stop> {
    write(&escape::json(&value.to_string()))
}

/// The same, indented, for an output of one value.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Stop> {
    write(&escape::json(&format!("{value:#}")))
}

fn write(text: &str) -> Result<(), Stop> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(output_error)
}

pub(crate) fn output_error(error: Error) -> Stop {
    match error.kind() {
        ErrorKind::BrokenPipe => Stop::ReaderGone,
        _ => Stop::OutputFailed(error),
    }
}

/// Prints a line on standard error, with terminal control characters escaped. Errors are ignored, because
/// there is no other output.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "csi: {}", escape::terminal(line));
}

/// The name of a status code in gRPC's documents, such as NOT_FOUND.
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

const LISTS: [Rpc; 3] = [Rpc::ListVolumes, Rpc::ListSnapshots, Rpc::ControllerListVolumeHealth];

/// What to do about a refusal, where its code alone says it.
fn hint(rpc: Rpc, status: &Status) -> Option<&'static str> {
    Some(match status.code() {
        Code::Unimplemented => {
            "the driver does not offer this call on this socket; `csi capabilities` lists what it offers"
        }
        // The spec's code for a page token that is not valid.
        Code::Aborted if LISTS.contains(&rpc) => "without --starting-token the list begins again",
        Code::Aborted => "another operation on this object is running; try again later",
        Code::DeadlineExceeded => {
            "the driver might still run the operation: the same command joins or repeats it, --timeout waits \
             longer"
        }
        Code::Unauthenticated | Code::PermissionDenied => {
            "give secrets with --secrets-file FILE or --secrets-env KEY=VARIABLE"
        }
        Code::Unavailable => "try the same command again; if the driver has ended, its log says why",
        _ => return None,
    })
}

pub(crate) fn refused(rpc: Rpc, status: &Status, hidden: &Redactor) -> Stop {
    let message = hidden.scrub(status.message());
    print_error(&format!("{rpc}: {}: {message}", code_name(status.code())));
    if let Some(hint) = hint(rpc, status) {
        print_error(hint);
    }
    Stop::Exit(exit::refused(status.code()))
}

/// Parses a duration such as `10s`, `500ms`, `2m` or `1h30m`; a number without a unit is in seconds.
///
/// # Errors
/// When it is not a duration, or is 0 or longer than two years.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let has_unit = text.ends_with(|letter: char| letter.is_ascii_alphabetic());
    let time = humantime::parse_duration(&if has_unit { text.to_owned() } else { format!("{text}s") });
    time.ok()
        .filter(|time| !time.is_zero() && *time <= LONGEST)
        .ok_or_else(|| format!("{text:?} is not a duration: write 10s, 500ms, 2m"))
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
    fn an_aborted_list_has_a_wrong_token_and_waits_for_no_operation() {
        let hint = |rpc| hint(rpc, &Status::aborted("no")).unwrap();
        assert!(hint(Rpc::ListVolumes).contains("--starting-token"));
        assert!(hint(Rpc::DeleteVolume).contains("another operation"));
    }

    #[test]
    fn times() {
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        assert_eq!(duration("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("90").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["", "s", "0", "-1s", "1x", "nan", "inf", "1e99", "５s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
