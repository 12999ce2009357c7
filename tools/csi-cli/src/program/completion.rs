//! `csi completion`: a shell's script for completing the command line.

use std::io::Write as _;

use clap::{Arg, ArgMatches, Command, ValueEnum as _, builder::EnumValueParser};
use clap_complete::Shell;

use super::output::{Stop, output_error};

pub(crate) const NAME: &str = "completion";

const EXAMPLES: &str = "\
Examples:
  source <(csi completion bash)
  csi completion zsh > \"${fpath[1]}/_csi\"
  csi completion fish > ~/.config/fish/completions/csi.fish";

pub(crate) fn command() -> Command {
    let shells = Shell::value_variants().iter().map(ToString::to_string).collect::<Vec<_>>();
    let help = format!("The shell: {}", shells.join(", "));
    Command::new(NAME)
        .about("Print a shell's script for command-line completion")
        .arg(
            Arg::new("shell")
                .required(true)
                .value_name("SHELL")
                .value_parser(EnumValueParser::<Shell>::new())
                .hide_possible_values(true)
                .help(help),
        )
        .after_help(EXAMPLES)
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Stop> {
    let shell = *matches.get_one::<Shell>("shell").unwrap_or_else(|| unreachable!("it is required"));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "csi", &mut script);
    let mut output = std::io::stdout().lock();
    output.write_all(&script).and_then(|()| output.flush()).map_err(output_error)
}
