//! The program `csi`: its command line, its commands, its exit status.

mod call;
mod capabilities;
mod common;
mod completion;
mod exit;
mod fields;
mod lifecycle;
mod manifests;
mod meanings;
mod new;
mod output;
mod pages;
mod rpc;
mod rpcs;
mod secrets;
mod show;
mod table;
mod values;
mod whole_request;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Command};
use csi_proto::escape;
use csi_proto::internal::HIDDEN;

use common::Common;
use output::{Stop, print_error};
use values::ValueError;

const EXAMPLES: &str = "\
Examples:
  export CSI_ENDPOINT=unix:///run/csi/csi.sock
  csi capabilities
  csi controller create-volume --name pvc-1 --capability rwo,mount,ext4 --size 1Gi
  csi controller list-volumes --all --output json
  csi node publish-volume --help
  csi lifecycle --capability rwo,mount,xfs --size 512Mi --grown 1Gi
  csi manifests --image registry.example.org/driver:1.0.0 --to deploy/base
  csi new files --template directory
  source <(csi completion bash)

Secrets are never given by value: use --secrets-file FILE or --secrets-env KEY=VARIABLE. If the
driver repeats a secret, no output or error shows it: not as given, in another case, in base64 or
in hexadecimal. If the driver changes a secret in any other way, the result is shown.
";

/// Runs the program and returns its exit status. The first argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            // clap's message repeats the wrong value, which can be a secret.
            let reason = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
            if let Some(ValueError::Secret(reason)) = reason {
                print_error(reason);
                return exit::USAGE;
            }
            let error = escaped(error);
            // The reader can be gone already, as in `csi --help | head -1`.
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE } else { exit::DONE };
        }
    };
    match dispatch(&matches) {
        Ok(()) | Err(Stop::ReaderGone) => exit::DONE,
        Err(Stop::Exit(status)) => status,
        Err(Stop::OutputFailed(error)) => {
            print_error(&format!("the output can't be written: {error}"));
            exit::FAILED
        }
        Err(Stop::Usage(reason)) => {
            print_error(&reason);
            exit::USAGE
        }
    }
}

/// The error with its values from the command line escaped and shortened: they can be text that was pasted. The value
/// of a flag for secrets is left out.
fn escaped(mut error: clap::Error) -> clap::Error {
    let is_secret = matches!(error.get(ContextKind::InvalidArg),
        Some(ContextValue::String(flag)) if flag.starts_with("--secret"));
    let changed: Vec<(ContextKind, ContextValue)> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(_) if is_secret && kind == ContextKind::InvalidValue => {
                Some((kind, ContextValue::String(HIDDEN.to_owned())))
            }
            ContextValue::String(text) => {
                Some((kind, ContextValue::String(escape::message(text).into_owned())))
            }
            ContextValue::Strings(all) => {
                let all = all.iter().map(|text| escape::message(text).into_owned()).collect();
                Some((kind, ContextValue::Strings(all)))
            }
            _ => None,
        })
        .collect();
    for (kind, value) in changed {
        error.insert(kind, value);
    }
    error
}

pub(crate) fn command() -> Command {
    let services = rpcs::GROUPS.map(|(service, name, about)| {
        let rpcs = rpcs::of(service).map(|rpc| rpc::command(rpc, name));
        Command::new(name)
            .about(about)
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(rpcs)
    });
    Command::new("csi")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A client for any CSI driver: makes calls, shows capabilities, runs a volume's life cycle")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(common::arguments())
        .subcommands(services)
        .subcommands([capabilities::command(), lifecycle::command()])
        .subcommands([manifests::command(), new::command(), completion::command()])
        .after_help(format!("{EXAMPLES}\n{}", exit::HELP))
}

fn dispatch(matches: &ArgMatches) -> Result<(), Stop> {
    let (name, inner) = matches.subcommand().unwrap_or_else(|| unreachable!("clap asks for one"));
    match name {
        completion::NAME => return completion::run(inner),
        new::NAME => return new::run(inner),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Stop::Usage(format!("the runtime does not start: {error}")))?;
    let done = runtime.block_on(async {
        match name {
            capabilities::NAME => capabilities::run(inner, &Common::read(inner)?).await,
            lifecycle::NAME => lifecycle::run(inner, &Common::read(inner)?).await,
            manifests::NAME => manifests::run(inner, &Common::read(inner)?).await,
            service => {
                let (name, inner) = inner.subcommand().unwrap_or_else(|| unreachable!("clap asks for one"));
                let rpc = rpcs::named(service, name).unwrap_or_else(|| unreachable!("clap knows the names"));
                rpc::run(rpc, inner, &Common::read(inner)?).await
            }
        }
    });
    // A query of a dead volume can hang on a thread of its own. The exit does not wait for it.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_does_not_contradict_itself() {
        command().debug_assert();
    }

    /// Every command, in any depth.
    fn all(command: Command) -> Vec<Command> {
        let inner = command.get_subcommands().cloned().flat_map(all).collect::<Vec<_>>();
        [vec![command], inner].concat()
    }

    #[test]
    fn no_help_is_documentation_for_programmers() {
        for mut command in all(command()) {
            let help = command.render_long_help().to_string();
            for part in ["[`", "](", "::"] {
                assert!(!help.contains(part), "{}: {help}", command.get_name());
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line_that_is_taken() {
        let lines = EXAMPLES.lines().filter_map(|line| line.strip_prefix("  csi "));
        let mut examples: Vec<String> = lines.map(str::to_owned).collect();
        assert!(examples.len() >= 6);
        for (service, group, _) in rpcs::GROUPS {
            examples.extend(rpcs::of(service).map(|rpc| rpc::example(rpc, group)["csi ".len()..].to_owned()));
        }
        for example in examples.iter().filter(|example| !example.ends_with("--help")) {
            let words = std::iter::once("csi").chain(example.split_whitespace());
            if let Err(error) = command().try_get_matches_from(words) {
                panic!("{example}: {error}");
            }
        }
    }
}
