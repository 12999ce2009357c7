//! The driver's log, on standard error.

use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::ServeError;

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

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Text, Self::Json]
            .into_iter()
            .find(|format| format.to_string() == text)
            .ok_or_else(|| format!("log format {text:?} is not one of text, json"))
    }
}

/// Writes the log of the whole process to standard error.
///
/// `levels` is a level, for example `debug`, or several levels with their modules, in the syntax of
/// `RUST_LOG`: `info,csi_core=debug`. At `debug` and `trace` the log contains requests, with their secrets
/// hidden.
///
/// A driver with its own subscriber, for example for OpenTelemetry, does not need this function.
///
/// - spec: `process.logs-to-standard-streams`
///
/// # Errors
/// [`ServeError::Log`] when `levels` can't be parsed, or the process already has a log.
pub fn init_log(format: LogFormat, levels: &str) -> Result<(), ServeError> {
    let targets = levels.parse::<Targets>().map_err(|error| {
        ServeError::Log(format!("levels {levels:?}: {error}; give info, or info,csi_core=debug"))
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(targets))
        .try_init()
        .map_err(|error| ServeError::Log(error.to_string()))
}
