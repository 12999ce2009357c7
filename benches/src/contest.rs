//! Those who are compared, and how their time is taken.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a contestant is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This toolkit.
    Ours,
    /// The least that the kernel, or tonic, has to be asked for the same end state: what ratios are to.
    Bare,
    /// A program that is run.
    Program,
    /// Another crate.
    Crate,
}

impl Kind {
    /// As it is written in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Bare => "bare",
            Self::Program => "program",
            Self::Crate => "crate",
        }
    }
}

type Run<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

/// One way to do what the subject is about.
pub struct Contestant<'a> {
    /// What it is called in results; with its kind, unique in its subject.
    pub name: &'static str,
    /// What it is made of.
    pub kind: Kind,
    run: Run<'a>,
}

impl<'a> Contestant<'a> {
    /// This toolkit. `run` does it so many times and says how long that took.
    pub fn ours(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { name, kind: Kind::Ours, run: Box::new(run) }
    }

    /// As [`ours`](Self::ours): what it is compared with.
    pub fn bare(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { kind: Kind::Bare, ..Self::ours(name, run) }
    }

    /// As [`ours`](Self::ours): a program.
    pub fn program(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { kind: Kind::Program, ..Self::ours(name, run) }
    }

    /// As [`ours`](Self::ours): another crate.
    pub fn other(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { kind: Kind::Crate, ..Self::ours(name, run) }
    }

    /// Does it so many times; how long that took in all.
    pub fn run(&mut self, times: u64) -> Duration {
        (self.run)(times)
    }
}

impl std::fmt::Debug for Contestant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.kind.name())
    }
}

/// For what can be repeated as it is: the clock is read at both ends of the loop.
pub fn looped<T>(mut work: impl FnMut() -> T) -> impl FnMut(u64) -> Duration {
    move |times| {
        let begun = Instant::now();
        for _ in 0..times {
            std::hint::black_box(work());
        }
        begun.elapsed()
    }
}

/// For what has to be prepared and undone each time, at nobody's cost: the clock is read around `work` alone.
pub fn each<P, T>(
    mut prepare: impl FnMut() -> P,
    mut work: impl FnMut(P) -> T,
    mut undo: impl FnMut(T),
) -> impl FnMut(u64) -> Duration {
    move |times| {
        let mut taken = Duration::ZERO;
        for _ in 0..times {
            let prepared = prepare();
            let begun = Instant::now();
            let done = std::hint::black_box(work(prepared));
            taken += begun.elapsed();
            undo(done);
        }
        taken
    }
}

/// Runs a program to its end, which has to be a success.
///
/// # Panics
/// When it can't be run, or fails.
pub fn program<S: AsRef<std::ffi::OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) {
    let mut command = Command::new(name);
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
}
