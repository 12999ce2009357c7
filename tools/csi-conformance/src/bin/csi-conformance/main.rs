//! The program: a run of the kit from the command line.

mod args;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _, stderr, stdout};
use std::path::Path;
use std::pin::{Pin, pin};
use std::process::ExitCode;

use args::{Args, Format};
use clap::Parser as _;
use csi_conformance::{CouldNotRun, Kit, Level, Progress, Report};
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
            tell(&format!("csi-conformance: {}\n", escape::terminal(&reason)));
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

async fn run(args: Args) -> Result<ExitCode, String> {
    let kit = args.kit()?;
    let journal = args.journal()?;
    if args.list {
        for test in kit.tests() {
            let rules = test.rules.join(", ");
            let line = format!("{:<52} {} [{}; {}; {rules}]", test.id, test.title, test.level, test.section);
            print(&format!("{line}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.clean_up {
        return clean_up(kit, journal.as_deref()).await;
    }
    for path in [&args.tap, &args.junit].into_iter().flatten() {
        can_be_written(path)?;
    }
    let is_live = args.format == Format::Text;
    let report = stoppable(|stopped| kit.run_until(stopped, |progress| watch(&progress, is_live))).await?;
    hint_at_clean_up(journal.as_deref());
    write(args.tap.as_deref(), &report, Report::tap)?;
    write(args.junit.as_deref(), &report, Report::junit)?;
    match args.format {
        Format::Text => print(&format!("{}\n", report.summary()))?,
        Format::Tap => print(&report.tap())?,
        Format::Junit => print(&report.junit())?,
    }
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

/// Runs until the end, or until Ctrl-C and the clean-up after it. A second Ctrl-C ends it at once.
async fn stoppable<T, R: Future<Output = Result<T, CouldNotRun>>>(
    run: impl FnOnce(Pin<Box<dyn Future<Output = ()>>>) -> R,
) -> Result<T, String> {
    let mut stop = Stop::new().map_err(|error| format!("signals can't be caught: {error}"))?;
    let (stop_run, told) = tokio::sync::oneshot::channel::<()>();
    // If the sender of the stop signal is dropped, the run continues to its end.
    let stopped = async {
        if told.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let mut run = pin!(run(Box::pin(stopped)));
    let result = tokio::select! {
        result = &mut run => result,
        () = stop.asked() => {
            tell("stopped; undoing what was created (Ctrl-C again leaves this to --clean-up)\n");
            let _ = stop_run.send(());
            tokio::select! {
                result = &mut run => result,
                () = stop.asked() => return Err("objects are left; --clean-up removes them".to_owned()),
            }
        }
    };
    result.map_err(|error| error.to_string())
}

/// A closed or full standard output is an error, and no panic: then the run has ended and left nothing.
fn print(text: &str) -> Result<(), String> {
    let mut output = stdout().lock();
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    written.map_err(|error| format!("standard output: {error}"))
}

/// Prints what is not part of the report. A failure has no other place: `eprint!` would panic.
fn tell(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Checked before a long run, not after it.
fn can_be_written(path: &Path) -> Result<(), String> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

async fn clean_up(kit: Kit, journal: Option<&Path>) -> Result<ExitCode, String> {
    if let Some(journal) = journal.filter(|journal| !journal.exists()) {
        let text = format!("no run left anything: {} does not exist", journal.display());
        tell(&format!("{}\n", escape::terminal(&text)));
    }
    let left = kit.clean_up().await.map_err(|error| error.to_string())?;
    left.iter().for_each(|what| tell(&format!("not undone: {}\n", escape::terminal(what))));
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// A run that has undone everything removes its journal.
fn hint_at_clean_up(journal: Option<&Path>) {
    if journal.is_some_and(Path::exists) {
        tell("not everything was undone: the same command with --clean-up tries again\n");
    }
}

/// SIGINT (Ctrl-C), SIGTERM, or SIGHUP, as when the connection to the terminal is lost.
struct Stop([Signal; 3]);

impl Stop {
    fn new() -> std::io::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn asked(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

fn watch(progress: &Progress<'_>, is_live: bool) {
    match progress {
        Progress::Begins(test, at, of) if stderr().is_terminal() => {
            tell(&format!("\r\x1b[K[{at}/{of}] {}", test.id));
        }
        Progress::Ended(entry) => {
            if stderr().is_terminal() {
                tell("\r\x1b[K");
            }
            if is_live {
                // The summary at the end reports the error.
                let _ = print(&format!("{}\n", entry.text()));
            }
        }
        _ => {}
    }
}

fn write(path: Option<&Path>, report: &Report, form: fn(&Report) -> String) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, form(report)).map_err(|error| format!("{}: {error}", path.display()))
}
