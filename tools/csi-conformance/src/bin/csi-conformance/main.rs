//! The program: a run of the kit from the command line.

mod args;

use std::fs::File;
use std::io::IsTerminal as _;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;

use args::{Args, Format};
use clap::Parser as _;
use csi_conformance::{Kit, Level, Progress, Report, Soak};
use csi_proto::escape;
use tokio::signal::unix::{Signal, SignalKind, signal};

const FAILED: u8 = 1;
const COULD_NOT_RUN: u8 = 2;
/// With `--strict`: only rules failed that are not a MUST.
const NOT_STRICT: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("csi-conformance: {}", escape::terminal(&reason));
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

async fn run(args: Args) -> Result<ExitCode, String> {
    let kit = args.kit()?;
    if args.list {
        for test in kit.tests() {
            let rules = test.rules.join(", ");
            println!("{:<52} {} [{}; {}; {rules}]", test.id, test.title, test.level, test.section);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.clean_up {
        return clean_up(kit).await;
    }
    if let Some(time) = args.soak {
        let soak = Soak::new(time).clients(args.soak_clients.into());
        let soak = args.soak_pid.into_iter().fold(soak, Soak::pid);
        let mut stop = Stop::new().map_err(|error| format!("signals can't be caught: {error}"))?;
        let report = kit.soak(soak, stop.asked()).await.map_err(|error| error.to_string())?;
        println!("{report}");
        return Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
    }
    for path in [&args.tap, &args.junit].into_iter().flatten() {
        can_be_written(path)?;
    }
    let mut stop = Stop::new().map_err(|error| format!("signals can't be caught: {error}"))?;
    let is_live = args.format == Format::Text;
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    // If the sender of the stop signal is dropped, the run continues to its end.
    let stopped = async {
        if told.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let mut run = pin!(kit.run_until(stopped, |progress| watch(&progress, is_live)));
    let report = tokio::select! {
        report = &mut run => report,
        () = stop.asked() => {
            eprintln!("stopped; undoing what was created (Ctrl-C again leaves this to --clean-up)");
            let _ = tell.send(());
            tokio::select! {
                report = &mut run => report,
                () = stop.asked() => return Err("objects are left; --clean-up removes them".to_owned()),
            }
        }
    };
    let report = report.map_err(|error| error.to_string())?;
    match args.format {
        Format::Text => println!("{}", report.summary()),
        Format::Tap => print!("{}", report.tap()),
        Format::Junit => print!("{}", report.junit()),
    }
    write(args.tap.as_deref(), &report, Report::tap)?;
    write(args.junit.as_deref(), &report, Report::junit)?;
    if report.is_ok() {
        return Ok(ExitCode::SUCCESS);
    }
    let status = if report.failed_at(Level::Must).next().is_some() {
        FAILED
    } else if report.stopped || report.passed() == 0 {
        COULD_NOT_RUN
    } else {
        NOT_STRICT
    };
    Ok(ExitCode::from(status))
}

/// Checked before a long run, not after it.
fn can_be_written(path: &Path) -> Result<(), String> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

async fn clean_up(kit: Kit) -> Result<ExitCode, String> {
    let left = kit.clean_up().await.map_err(|error| error.to_string())?;
    left.iter().for_each(|what| eprintln!("not undone: {}", escape::terminal(what)));
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// SIGINT (Ctrl-C) or SIGTERM.
struct Stop(Signal, Signal);

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self(signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
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
