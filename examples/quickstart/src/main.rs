//! Starts a driver in a process of its own and calls it as an orchestrator does. It prints one line a step.
//!
//! Run `cargo run -p quickstart`, as root or as an ordinary user; `--help` lists the options.
#![forbid(unsafe_code)]

mod args;
mod cleanup;
mod driver;
mod namespace;
mod run;

use std::io::Write as _;
use std::process::ExitCode;

use args::Command;

/// The exit status of a quickstart that could not start.
const COULD_NOT_START: u8 = 2;

fn main() -> ExitCode {
    let run = match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Driver(role)) => return driver::main(&role),
        Ok(Command::Help) => {
            // The reader can be gone already, as in `quickstart --help | head -1`.
            let _ = std::io::stdout().write_all(args::HELP.as_bytes());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Run(run)) => run,
        Err(reason) => {
            eprintln!("quickstart: {reason}\n\n{}", args::USAGE);
            return ExitCode::from(COULD_NOT_START);
        }
    };
    // unshare(CLONE_NEWUSER) needs a process with one thread, so this runs before the runtime starts others.
    let started = namespace::enter(run.keep).and_then(|privileges| {
        let plan = run::Plan::new(&run, privileges)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("the runtime does not start: {error}"))?;
        let done = runtime.block_on(run::run(&plan));
        // A query of a dead volume can hang on a thread of its own. The exit does not wait for it.
        runtime.shutdown_background();
        done
    });
    match started {
        Ok(status) => ExitCode::from(status),
        Err(reason) => {
            eprintln!("quickstart: {reason}");
            ExitCode::from(COULD_NOT_START)
        }
    }
}
