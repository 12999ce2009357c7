//! The contestants of a comparison, and how their time is measured.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The kind of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This toolkit.
    Ours,
    /// The minimum: the fewest calls to the kernel, or tonic alone, for the same end state. Ratios are
    /// relative to it.
    Bare,
    /// An external program.
    Program,
    /// Another crate.
    Crate,
    /// `k8s.io/mount-utils`, in Go.
    MountUtils,
}

impl Kind {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Bare => "bare",
            Self::Program => "program",
            Self::Crate => "crate",
            Self::MountUtils => "mount-utils",
        }
    }
}

type Run<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

/// One implementation of the subject.
pub struct Contestant<'a> {
    /// Its name in results; together with the kind it is unique in its subject.
    pub name: &'static str,
    /// What it is made of.
    pub kind: Kind,
    pub(crate) run: Run<'a>,
}

impl<'a> Contestant<'a> {
    /// This toolkit. `run` does the work the given number of times and returns the total duration.
    pub fn ours(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { name, kind: Kind::Ours, run: Box::new(run) }
    }

    /// Like [`ours`](Self::ours), for the bare minimum.
    pub fn bare(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { kind: Kind::Bare, ..Self::ours(name, run) }
    }

    /// Like [`ours`](Self::ours), for an external program.
    pub fn program(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { kind: Kind::Program, ..Self::ours(name, run) }
    }

    /// Like [`ours`](Self::ours), for another crate.
    pub fn other(name: &'static str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { kind: Kind::Crate, ..Self::ours(name, run) }
    }

    /// Does the work this number of times, and returns the total duration.
    pub fn run(&mut self, times: u64) -> Duration {
        (self.run)(times)
    }
}

impl std::fmt::Debug for Contestant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.kind.name())
    }
}

/// Measures work that can be repeated without preparation: the clock is read before and after the loop.
pub fn looped<T>(mut work: impl FnMut() -> T) -> impl FnMut(u64) -> Duration {
    move |times| {
        let begun = Instant::now();
        for _ in 0..times {
            std::hint::black_box(work());
        }
        begun.elapsed()
    }
}

/// Measures work that must be prepared and undone each time, outside the measured time: the clock is read
/// around `work` alone.
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

/// Runs a program to its end.
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
