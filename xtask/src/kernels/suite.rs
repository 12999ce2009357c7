//! What a test program needs of an emulated machine, and which of its tests run there.

use super::archive::{Flavour, Version};

/// Names with spaces between them, in groups that several suites share.
pub(crate) type Groups = &'static [&'static str];

/// The single names.
pub(crate) fn names(groups: Groups) -> impl Iterator<Item = &'static str> {
    groups.iter().flat_map(|group| group.split_whitespace())
}

/// A test program, and what it needs of the machine. Base a row on `suites::SUITE`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suite {
    pub(crate) package: &'static str,
    /// The name of an integration test or of a module of one, or `lib` for the unit tests.
    pub(crate) test: &'static str,
    /// The integration test that the module `test` is in. Empty: `test` is one.
    pub(crate) of_program: &'static str,
    /// Kernel modules; their dependencies are added. List also the modules for which the kernel would call
    /// `modprobe` (character sets, ciphers). A name without a module file is assumed to be built in.
    pub(crate) modules: Groups,
    /// The machine's processors: one, unless the tests are about callers at the same moment. With two, the same
    /// tests take half as much time again. Suites with another number run on another machine.
    pub(crate) processors: u8,
    /// The kernel's flavour. Suites of another one run on another machine.
    pub(crate) flavour: Flavour,
    /// Programs and files of this machine. Copied with their libraries; programs are found by name.
    pub(crate) files: Groups,
    /// Packages of Debian's newest release, a program's and those of its libraries. They are copied below
    /// `/newest`, where the program is started by their own loader: this machine's release does not have it.
    pub(crate) newest: &'static str,
    /// Options of the kernel's command line. Suites with other options run on another machine.
    pub(crate) boot: &'static str,
    /// Whether it needs a Ceph cluster outside the machine, and the network to it. Such a suite runs on request only,
    /// and on a machine with the others of its kind.
    pub(crate) has_ceph: bool,
    /// The environment of the tests, with settings that make them small enough for emulation.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// The time limit of one test on a quiet machine, in seconds.
    pub(crate) seconds: u32,
    /// The oldest kernel that it runs on.
    pub(crate) since: Version,
    /// Runs only tests with this in their path. Empty: all.
    pub(crate) only: &'static str,
    /// Whether the tests' output is printed on success too.
    pub(crate) prints_output: bool,
    /// What the gate runs of it. The gate lists the rest as left out.
    pub(crate) in_gate: InGate,
    /// The tests that the first ring of the gate runs of it, by a part of their path.
    pub(crate) in_short: Option<&'static str>,
    /// Tests that do not run on some kernels. They are listed at the end of each run.
    pub(crate) skip: &'static [Skip],
}

/// The tests of a suite that run in the gate. All other runs take the whole suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InGate {
    All,
    /// Those with this in their path.
    Only(&'static str),
    /// None: they take too long.
    Nothing,
    /// None, and another run only if it names the suite, which needs what a machine may not have.
    OnRequest,
}

/// A test that is meaningless on some kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skip {
    pub(crate) test: &'static str,
    /// The first kernel on which it is left out.
    pub(crate) from: Version,
    /// The first later kernel on which it runs again.
    pub(crate) before: Version,
    pub(crate) why: &'static str,
}

impl Skip {
    /// A test that is left out from the first kernel on and runs again on the second one.
    pub(crate) const fn between(
        from: (u32, u32),
        before: (u32, u32),
        test: &'static str,
        why: &'static str,
    ) -> Self {
        Self { test, from: Version::new(from.0, from.1), before: Version::new(before.0, before.1), why }
    }

    /// A test that is left out on every kernel.
    pub(super) const fn everywhere(test: &'static str, why: &'static str) -> Self {
        Self::between((0, 0), (u32::MAX, 0), test, why)
    }
}

impl Suite {
    /// Whether one of the comma-separated names is a part of `package/program`.
    pub(crate) fn is_named(&self, names: &str) -> bool {
        let own = format!("{}/{}", self.package, self.test);
        names.split(',').any(|name| own.contains(name))
    }

    /// What the gate runs of it, if anything.
    pub(crate) fn in_gate(&self) -> Option<Self> {
        match self.in_gate {
            InGate::All => Some(*self),
            InGate::Only(part) => Some(Self { only: part, ..*self }),
            InGate::Nothing | InGate::OnRequest => None,
        }
    }

    /// What the first ring of the gate runs of it, if anything.
    pub(crate) fn in_short(&self) -> Option<Self> {
        self.in_short.map(|part| Self { only: part, ..*self })
    }

    /// The name of its program.
    pub(crate) fn program(&self) -> &'static str {
        if self.of_program.is_empty() { self.test } else { self.of_program }
    }

    /// What the paths of its tests in the program begin with.
    pub(crate) fn module(&self) -> String {
        if self.of_program.is_empty() { String::new() } else { format!("{}::", self.test) }
    }

    /// The tests that are left out on a kernel.
    pub(crate) fn skipped(&self, on: Version) -> impl Iterator<Item = &'static Skip> {
        self.skip.iter().filter(move |skip| (skip.from..skip.before).contains(&on))
    }
}
