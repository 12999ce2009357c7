//! What is measured, and at which sizes.

use crate::{Contestant, Engine};

/// One thing that is done.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// What is done, in a few words: unique.
    pub name: &'static str,
    /// What grows: `mounts`, `clients`. Empty where nothing does.
    pub unit: &'static str,
    /// How large it is: one run each. `[0]` where nothing grows.
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

    /// Measures it at this size.
    pub fn run(&self, size: usize, engine: &mut dyn Engine) {
        (self.run)(&mut Bench { engine }, size);
    }
}

/// Where a subject brings its contestants.
pub struct Bench<'e> {
    engine: &'e mut dyn Engine,
}

impl Bench<'_> {
    /// Measures them beside each other.
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
