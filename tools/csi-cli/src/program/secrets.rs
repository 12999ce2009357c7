//! Secrets on the command line: given by a file or an environment variable, never by value.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, ValueHint};

use csi_proto::internal::{Redactor, TOKENS_KEY};
use serde_json::Value;

use super::values;
use crate::secrets::parse;
use csi_proto::Pairs;

const REFUSED: &str = "every process on the machine can read secrets on the command line: give them with \
                       --secrets-file FILE or --secrets-env KEY=VARIABLE, and change the secrets that were \
                       given here";

pub(crate) fn arguments() -> [Arg; 3] {
    [
        Arg::new("secrets-file")
            .long("secrets-file")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
            .long_help(
                "Secrets: lines of key=value, or a JSON object; - for standard input.\nA line [CreateVolume] \
                 begins the secrets of only this RPC",
            )
            .help("Secrets: lines of key=value, or a JSON object; - for standard input"),
        Arg::new("secrets-env")
            .long("secrets-env")
            .value_name("KEY=VARIABLE")
            .action(ArgAction::Append)
            .value_parser(ValueParser::from(values::variable))
            .help("The secret KEY is in this environment variable (repeatable)"),
        // Other tools have this flag. It is accepted here so that no message of the parser shows its value.
        Arg::new("secrets")
            .long("secrets")
            .alias("secret")
            .hide(true)
            .num_args(0..)
            .action(ArgAction::Append)
            .allow_hyphen_values(true),
    ]
}

/// Reads the secrets.
///
/// # Errors
/// Says what is wrong, and never shows a secret.
pub(crate) fn read(matches: &ArgMatches) -> Result<Pairs, String> {
    if matches.contains_id("secrets") {
        return Err(REFUSED.to_owned());
    }
    let mut secrets = match matches.get_one::<PathBuf>("secrets-file") {
        Some(path) => of_file(path)?,
        None => Pairs::default(),
    };
    for (key, variable) in matches.get_many::<(String, String)>("secrets-env").into_iter().flatten() {
        // If a secret was written in place of the variable's name, the message does not repeat it.
        let value = std::env::var(variable).map_err(|_| {
            format!(
                "--secrets-env {key}=…: the environment has no such variable, or its value is not UTF-8; \
                     write the name of a variable"
            )
        })?;
        secrets.set(key, value);
    }
    Ok(secrets)
}

fn of_file(path: &Path) -> Result<Pairs, String> {
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    text_of(path)
        .map_err(|error| error.to_string())
        .and_then(|text| parse(&text))
        .map_err(|reason| format!("the secrets in {name}: {reason}"))
}

/// Checks that standard input is read only once.
///
/// # Errors
/// When both the request and the secrets are read from it.
pub(crate) fn check_standard_input(matches: &ArgMatches) -> Result<(), String> {
    let is_there =
        |name| matches.try_get_one::<PathBuf>(name).ok().flatten().is_some_and(|path| path == Path::new("-"));
    if is_there("request") && is_there("secrets-file") {
        Err("--request and --secrets-file can't both be standard input: use a file for one of them"
            .to_owned())
    } else {
        Ok(())
    }
}

/// The content of a file, or of standard input for `-`.
///
/// # Errors
/// When it can't be read.
pub(crate) fn text_of(path: &Path) -> std::io::Result<String> {
    if path != Path::new("-") {
        return std::fs::read_to_string(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map(|_| text)
}

/// Adds everything that can be a secret in a JSON request to `hidden`, in any form, because the JSON might
/// not be a valid request.
pub(crate) fn hide(value: &Value, hidden: &mut Redactor) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if key.to_lowercase().ends_with("secrets") || key == TOKENS_KEY {
                    hide_all(value, hidden);
                } else {
                    hide(value, hidden);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| hide(value, hidden)),
        _ => {}
    }
}

fn hide_all(value: &Value, hidden: &mut Redactor) {
    match value {
        Value::String(text) => hidden.add([text]),
        Value::Array(values) => values.iter().for_each(|value| hide_all(value, hidden)),
        Value::Object(fields) => fields.values().for_each(|value| hide_all(value, hidden)),
        Value::Number(number) => hidden.add([&number.to_string()]),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_request_is_hidden_whatever_form_it_has() {
        let request = r#"{"secrets": {"a": "canary-1", "b": ["canary-2"]}, "x": {"volumeContext":
            {"csi.storage.k8s.io/serviceAccount.tokens": "canary-3"}}, "y": [{"secrets": "canary-4"}]}"#;
        let mut hidden = Redactor::default();
        hide(&serde_json::from_str(request).unwrap(), &mut hidden);
        assert_eq!(hidden.scrub("canary-1 canary-2 canary-3 canary-4 ok"), "*** *** *** *** ok");
    }
}
