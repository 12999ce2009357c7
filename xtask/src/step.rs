//! One command of a longer run: announced, timed, and on failure printed so that it can be repeated. And why a
//! command failed, as text for the user.

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Cargo, as a user calls it.
///
/// `cargo run` describes this program's package in variables. A build script that reads them, as that of `ring`, would
/// run again whenever they change, and everything that depends on it would be built again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A cargo command, and its name in the output.
pub(crate) struct Step {
    name: String,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Step {
    pub(crate) fn cargo<S: Into<String>>(name: impl Into<String>, args: impl IntoIterator<Item = S>) -> Self {
        Self { name: name.into(), args: args.into_iter().map(Into::into).collect(), env: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Runs the command in the workspace's root, with its output on ours.
    pub(crate) fn run(&self, root: &Path) -> Result<(), Failure> {
        timed(&self.name, || {
            let status = cargo()
                .args(&self.args)
                .envs(self.env.iter().map(|(name, value)| (name, value)))
                .current_dir(root)
                .status()?;
            if status.success() {
                return Ok(());
            }
            Err(Failure::new(format!("{status}; repeat it with:\n  {self}")))
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}='{value}' ")?;
        }
        write!(f, "cargo")?;
        for arg in &self.args {
            write!(f, " {arg}")?;
        }
        Ok(())
    }
}

/// What a program that succeeds prints.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command.output().map_err(|error| Failure::new(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{command:?}: {}\n{said}", output.status)))
}

/// Announces work, does it, and prints how long it took.
pub(crate) fn timed(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    println!("==> {name}");
    let start = Instant::now();
    let result = work();
    let seconds = start.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            println!("==> {name}: ok, {seconds:.1} s\n");
            Ok(())
        }
        Err(failure) => Err(failure.within(&format!("==> {name}: failed after {seconds:.1} s"))),
    }
}

/// A part of a run and its time, on a line of its own.
pub(crate) fn time_line(part: &str, time: Duration) -> String {
    format!("{:>8.1} s  {part}\n", time.as_secs_f64())
}

/// A message and an exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// A failure of something that was run or checked: exit status 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 1 }
    }

    /// A request that the command or the machine can't fulfil: exit status 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }

    /// The same failure, with its context in front.
    pub(crate) fn within(self, context: &str) -> Self {
        Self { message: format!("{context}\n{}", self.message), ..self }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_prints_as_the_command_that_repeats_it() {
        let step = Step::cargo("docs", ["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(step.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failure_names_the_step() {
        let failure = timed("x", || Err(Failure::new("why"))).expect_err("it failed");
        let text = failure.to_string();
        assert!(text.starts_with("==> x: failed after 0.0 s\nwhy"), "{text}");
    }
}
