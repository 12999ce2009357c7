//! The driver's log, on standard error.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use csi_proto::escape;
use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::choice::choice;
use crate::error::{Error, Result};
use crate::server::{Failure, ServeError};

/// The format of the log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    #[default]
    Text,
    /// For machines: one JSON object per line, with the call's request id, RPC and subject in `span`.
    Json,
}

choice!(LogFormat of "log format": Text = "text", Json = "json");

/// Writes the log of the whole process to standard error.
///
/// `levels` is a level, for example `debug`, or several levels with their modules, in the syntax of
/// `RUST_LOG`: `info,csi_core=debug`. At `debug` and `trace` the log contains requests, with their secrets
/// hidden.
///
/// Each event is one line: control characters in names, paths and messages are escaped
/// ([`csi_proto::escape`]).
///
/// A driver with its own subscriber, for example for OpenTelemetry, does not need this function.
///
/// - spec: `process.logs-to-standard-streams`
///
/// # Errors
/// [`ServeError`] when a level does not exist, or the process already has a log.
pub fn init_log(format: LogFormat, levels: &str) -> Result<(), ServeError> {
    let targets = targets(levels).map_err(Failure::Log)?;
    let lines = lines(format, io::stderr().is_terminal(), io::stderr);
    tracing_subscriber::registry()
        .with(lines.with_filter(targets))
        .try_init()
        .map_err(|error| Failure::Log(error.to_string()).into())
}

/// Reads the levels. `Targets` takes an unknown word for the name of a module: the log would be empty.
pub(crate) fn targets(levels: &str) -> Result<Targets, String> {
    const LEVELS: &str = "off, error, warn, info, debug, trace";
    for directive in levels.split(',') {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "log level {level:?} is not one of {LEVELS}; for one module write info,csi_core=debug"
            ));
        }
    }
    levels.parse().map_err(|error| format!("log levels {levels:?}: {error}"))
}

/// Writes each event as one line, whatever text its fields have.
fn lines<S, W>(
    format: LogFormat,
    is_terminal: bool,
    open: impl Fn() -> W + Send + Sync + 'static,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: Write + 'static,
{
    let lines = tracing_subscriber::fmt::layer();
    match format {
        LogFormat::Text => lines
            .with_ansi(is_terminal)
            .fmt_fields(debug_fn(write_field).delimited(" "))
            .with_writer(open)
            .boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .with_writer(move || EscapedJson(open()))
            .boxed(),
    }
}

/// Writes a field of an event or a span. `Display` values, such as paths and errors, arrive here unescaped.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = escape::terminal(&value);
    match field.name() {
        "message" => writer.write_str(&value),
        name => write!(writer, "{}={value}", name.trim_start_matches("r#")),
    }
}

/// Escapes what JSON allows in a string and a terminal interprets. The layer writes one whole line at a time.
struct EscapedJson<W>(W);

impl<W: Write> Write for EscapedJson<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(escape::json(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat) -> String {
        let buffer = Buffer::default();
        let written = buffer.clone();
        let subscriber = tracing_subscriber::registry().with(lines(format, false, move || buffer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let hostile = "a\nERROR forged\u{1b}[2J\u{202e}\u{9b}";
            let path = std::path::Path::new(hostile);
            let error = io::Error::other(hostile);
            let _span = tracing::info_span!("csi", request = 1, subject = hostile).entered();
            tracing::info!(at = %path.display(), %error, ?path, hostile, "{hostile}");
        });
        let written = written.0.lock().unwrap();
        String::from_utf8(written.clone()).unwrap()
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_with_the_levels() {
        for good in ["info", "off", "WARN", "info,csi_core=debug", "csi_core::call=trace"] {
            assert!(targets(good).is_ok(), "{good}");
        }
        for (bad, word) in [
            ("verbose", "\"verbose\""),
            ("csi_core", "\"csi_core\""),
            ("info,csi_core=loud", "\"loud\""),
            ("info, debug", "\" debug\""),
            ("info,", "\"\""),
            ("", "\"\""),
        ] {
            let error = targets(bad).unwrap_err();
            assert!(error.contains(word) && error.contains("warn, info, debug"), "{bad}: {error}");
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_its_fields_contain() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = logged(format);
            let line = text.strip_suffix('\n').unwrap();
            assert!(!line.contains(['\n', '\r', '\u{1b}', '\u{202e}', '\u{9b}']), "{text}");
            assert_eq!(line.matches("forged").count(), 6, "{text}");
        }
        let text = logged(LogFormat::Text);
        assert!(text.contains(r"INFO csi{request=1 subject="), "{text}");
        assert!(text.contains(r"at=a\nERROR forged\u{1b}[2J\u{202e}\u{9b} error=a\n"), "{text}");
    }
}
