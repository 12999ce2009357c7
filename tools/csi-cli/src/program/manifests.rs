//! `csi manifests`: the Kubernetes manifests of any driver, from what it reports on its socket.

use std::io;

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use csi_deploy::{DiscoverError, Driver, Error, Options, Output, manifests};

use super::common::{self, Common};
use super::exit;
use super::output::{Stop, print_error};

pub(crate) const NAME: &str = "manifests";

const EXAMPLES: &str = "\
Examples:
  csi manifests --image registry.example.org/files-csi:1.0.0 --to deploy/base
  csi manifests --image registry.example.org/files-csi:1.0.0 --single | kubectl apply -f -
  csi manifests --classic --arg=--endpoint=$(CSI_ENDPOINT) --node-arg=--nodeid=$(NODE_ID) \\
      --image registry.example.org/other-csi:1.0.0 --single

Kubernetes replaces $(CSI_ENDPOINT) and $(NODE_ID) in arguments; protect them from the shell.";

pub(crate) fn command() -> Command {
    let command = Command::new(NAME).arg(common::controller_argument());
    Output::augment_args(Options::augment_args(command))
        .about("Make the driver's Kubernetes manifests from the capabilities that it reports")
        .after_help(EXAMPLES)
}

pub(crate) async fn run(matches: &ArgMatches, common: &Common) -> Result<(), Stop> {
    let read = |error: clap::Error| Stop::Usage(error.to_string());
    let options = Options::from_arg_matches(matches).map_err(read)?;
    let output = Output::from_arg_matches(matches).map_err(read)?;
    let sockets = common.sockets().await?;
    let driver = Driver::discover(&sockets.node, &sockets.controller).await.map_err(undiscovered)?;
    let made = manifests(&driver, &options).map_err(|error| Stop::Usage(error.to_string()))?;
    output.write(&made, &mut io::stdout(), &mut io::stderr()).map_err(unwritten)
}

fn undiscovered(error: DiscoverError) -> Stop {
    match error {
        DiscoverError::Refused { code, .. } => {
            print_error(&error.to_string());
            Stop::Exit(exit::refused(code))
        }
        other => Stop::Usage(other.to_string()),
    }
}

fn unwritten(error: Error) -> Stop {
    match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => Stop::ReaderGone,
        Error::Io { source, path } => {
            Stop::OutputFailed(io::Error::new(source.kind(), format!("{}: {source}", path.display())))
        }
        other => Stop::Usage(other.to_string()),
    }
}
