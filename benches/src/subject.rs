//! The subjects and their sizes.

use crate::{Contestant, Engine};

/// One kind of work.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// The work in a few words; unique.
    pub name: &'static str,
    /// The unit of the size: `mounts`, `clients`. Empty if there is only one size.
    pub unit: &'static str,
    /// The sizes, with one run for each. `[0]` if there is only one.
    pub sizes: &'static [usize],
    run: fn(&mut Bench<'_>, usize),
}

impl Subject {
    pub(crate) const fn new(name: &'static str, run: fn(&mut Bench<'_>, usize)) -> Self {
        Self { name, unit: "", sizes: &[0], run }
    }

    pub(crate) const fn over(self, unit: &'static str, sizes: &'static [usize]) -> Self {
        Self { unit, sizes, ..self }
    }

    /// Measures the subject at this size.
    pub fn run(&self, size: usize, engine: &mut dyn Engine) {
        (self.run)(&mut Bench { engine }, size);
    }
}

/// Receives the contestants of a subject.
pub struct Bench<'e> {
    engine: &'e mut dyn Engine,
}

impl Bench<'_> {
    /// Measures these contestants against each other.
    pub fn compare<'a>(&mut self, contestants: impl IntoIterator<Item = Contestant<'a>>) {
        let mut contestants: Vec<_> = contestants.into_iter().collect();
        self.engine.compare(&mut contestants);
    }
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bench")
    }
}
