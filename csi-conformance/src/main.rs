//! The program: a run of the kit from the command line.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use csi_conformance::{Endpoint, Kit, MountAccess, Pairs, Progress, Report};

/// Tests a CSI driver on a socket.
///
/// Exit status: 0 all that applies passed, 1 something failed, 2 the run could not take place.
#[derive(Debug, Parser)]
#[command(name = "csi-conformance", version)]
struct Args {
    /// The driver's socket, unix:///run/csi/csi.sock say.
    #[arg(long, env = "CSI_ENDPOINT", required_unless_present = "list")]
    endpoint: Option<Endpoint>,
    /// The controller's socket, where it is another one.
    #[arg(long)]
    controller_endpoint: Option<Endpoint>,
    /// An existing directory in which volumes are staged.
    #[arg(long)]
    staging: Option<PathBuf>,
    /// An existing directory in which volumes are published. Without it no volume is put on this node.
    #[arg(long)]
    target: Option<PathBuf>,
    /// The driver mounts where this program does not see it: call, and don't look.
    #[arg(long)]
    no_mount_access: bool,
    /// Run the tests alone whose id, rule or section holds this text (several times: any of them).
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Leave out the tests whose id, rule or section holds this text.
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// List the tests with their rules, and run none.
    #[arg(long)]
    list: bool,
    /// A file of lines key=value, with [CreateVolume] and the like as headings for one RPC alone.
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    /// Parameters of volumes and snapshots, in the same form.
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Mutable parameters that the driver takes, in the same form.
    #[arg(long, value_name = "FILE")]
    mutable_parameters: Option<PathBuf>,
    /// The filesystem of volumes.
    #[arg(long, default_value = "")]
    fs_type: String,
    /// The size of volumes in MiB.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(i64).range(1..1 << 30))]
    size: i64,
    /// How many seconds a call may take.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    /// What goes to standard output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the report as TAP to this file too.
    #[arg(long, value_name = "FILE")]
    tap: Option<PathBuf>,
    /// Write the report as JUnit XML to this file too.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Where the run notes what it makes; a file in the temporary directory without.
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Finish a run that died: undo what its journal names.
    #[arg(long)]
    clean_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Tap,
    Junit,
}

const FAILED: u8 = 1;
const COULD_NOT_RUN: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("csi-conformance: {reason}");
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

async fn run(args: Args) -> Result<ExitCode, String> {
    // `--list` needs no driver.
    let nowhere: Endpoint = "/nowhere".parse().map_err(|error| format!("{error}"))?;
    let kit = kit(&args, args.endpoint.clone().unwrap_or(nowhere))?;
    if args.list {
        for test in kit.tests() {
            println!("{:<52} {} [{}; {}]", test.id, test.title, test.section, test.rules.join(", "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.clean_up {
        let left = kit.clean_up().await.map_err(|error| error.to_string())?;
        left.iter().for_each(|what| eprintln!("not undone: {what}"));
        return Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
    }
    let is_live = args.format == Format::Text;
    let report = tokio::select! {
        report = kit.clone().run_watched(|progress| watch(&progress, is_live)) => report.map_err(|error| error.to_string())?,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("stopped; undoing what was made");
            let left = kit.clean_up().await.map_err(|error| error.to_string())?;
            left.iter().for_each(|what| eprintln!("not undone: {what}"));
            return Ok(ExitCode::from(COULD_NOT_RUN));
        }
    };
    match args.format {
        Format::Text => println!("{}", report.summary()),
        Format::Tap => print!("{}", report.tap()),
        Format::Junit => print!("{}", report.junit()),
    }
    write(args.tap.as_deref(), &report, Report::tap)?;
    write(args.junit.as_deref(), &report, Report::junit)?;
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn watch(progress: &Progress<'_>, is_live: bool) {
    match progress {
        Progress::Begins(test, at, of) if std::io::stderr().is_terminal() => {
            eprint!("\r\x1b[K[{at}/{of}] {}", test.id);
        }
        Progress::Ended(entry) => {
            if std::io::stderr().is_terminal() {
                eprint!("\r\x1b[K");
            }
            if is_live {
                println!("{}", entry.text());
            }
        }
        _ => {}
    }
}

fn write(path: Option<&Path>, report: &Report, form: fn(&Report) -> String) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, form(report)).map_err(|error| format!("{}: {error}", path.display()))
}

fn kit(args: &Args, endpoint: Endpoint) -> Result<Kit, String> {
    let journal = args.journal.clone().unwrap_or_else(|| default_journal(&endpoint));
    let mut kit = Kit::new(endpoint)
        .secrets(pairs(args.secrets.as_deref())?)
        .parameters(pairs(args.parameters.as_deref())?)
        .mutable_parameters(pairs(args.mutable_parameters.as_deref())?)
        .fs_type(&args.fs_type)
        .size(args.size << 20)
        .deadline(Duration::from_secs(args.deadline))
        .journal(journal)
        .mount_access(if args.no_mount_access { MountAccess::Elsewhere } else { MountAccess::Here });
    if let Some(controller) = &args.controller_endpoint {
        kit = kit.controller(controller.clone());
    }
    if let Some(staging) = &args.staging {
        kit = kit.staging(staging);
    }
    if let Some(target) = &args.target {
        kit = kit.target(target);
    }
    kit = args.only.iter().fold(kit, Kit::only);
    Ok(args.skip.iter().fold(kit, Kit::skip))
}

/// One a driver, so that a later run finds what an earlier one left.
fn default_journal(endpoint: &Endpoint) -> PathBuf {
    let name: String =
        endpoint.to_string().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    std::env::temp_dir().join(format!("csi-conformance-{name}.journal"))
}

fn pairs(path: Option<&Path>) -> Result<Pairs, String> {
    let Some(path) = path else { return Ok(Pairs::default()) };
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Pairs::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}
