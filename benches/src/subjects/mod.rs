//! The subjects and their sizes, one file per part of the toolkit.

mod bind;
mod calls;
mod devices;
mod filesystems;
mod table;
mod volume;

use crate::{Contestant, Engine};

/// The number of mounts in the namespace, to show whether the result depends on it.
const MOUNTS: &[usize] = &[10, 1000, 10_000];

/// All subjects, grouped by part.
pub const ALL: &[Subject] = &[
    Subject::new("publish read-only", bind::read_only).over("mounts", MOUNTS),
    Subject::new("bind", bind::plain).over("mounts", &[1000]),
    Subject::new("bind recursively, read-only", bind::recursive).over("mounts", &[1000]),
    Subject::new("unmount", bind::unmount).over("mounts", MOUNTS),
    Subject::new("mount tmpfs", filesystems::tmpfs).over("mounts", &[1000]),
    Subject::new("mount ext4", filesystems::ext4),
    Subject::new("mount_state", table::state).over("mounts", MOUNTS),
    Subject::new("table of mounts", table::all).over("mounts", MOUNTS),
    Subject::new("look up one mount", table::one).over("mounts", MOUNTS),
    Subject::new("stats", filesystems::stats),
    Subject::new("probe blank", devices::probe_blank).over("MiB", &[64, 10 * 1024]),
    Subject::new("probe written zeros", devices::probe_zeros).over("MiB", &[512]),
    Subject::new("probe ext4", devices::probe_ext4),
    Subject::new("probe xfs", devices::probe_xfs),
    Subject::new("probe random data", devices::probe_random),
    Subject::new("grow ext4, unmounted", filesystems::grow_ext4),
    Subject::new("grow xfs, mounted", filesystems::grow_xfs).over("mounts", MOUNTS),
    Subject::new("loop attach", devices::loop_attach),
    Subject::new("loop detach", devices::loop_detach),
    Subject::new("first stage", volume::first_stage).over("MiB", &[64, 10 * 1024]),
    Subject::new("stage an existing ext4", volume::stage_again).over("mounts", MOUNTS),
    Subject::new("stage to unstage", volume::whole_life),
    Subject::new("rpc publish", calls::publish).over("clients", &[1, 32, 256]),
    Subject::new("rpc question", calls::question).over("clients", &[1, 32]),
    Subject::new("rpc publish, many volumes", calls::volumes).over("volumes", &[1, 100_000]),
    Subject::new("rpc publish, parameters", calls::parameters).over("bytes", &[0, 4096]),
    Subject::new("read a request", calls::request_subject).over("bytes", &[256, 4096]),
    Subject::new("debug with secrets", calls::debug).over("bytes", &[256, 4096]),
];

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
