//! All subjects, one file per part of the toolkit.

mod bind;
mod calls;
mod devices;
mod filesystems;
mod table;
mod texts;
mod volume;

use crate::Subject;

/// The number of mounts in the namespace, to show whether the result depends on it.
const MOUNTS: &[usize] = &[10, 100, 1000, 10_000];
/// The same, for work that takes milliseconds.
const SOME_MOUNTS: &[usize] = &[10, 1000, 10_000];

/// All subjects, grouped by part.
pub const ALL: &[Subject] = &[
    Subject::new("publish read-only", bind::read_only).over("mounts", MOUNTS),
    Subject::new("bind", bind::plain).over("mounts", &[1000]),
    Subject::new("bind recursively, read-only", bind::recursive).over("mounts", &[1000]),
    Subject::new("unmount", bind::unmount).over("mounts", SOME_MOUNTS),
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
    Subject::new("grow xfs, mounted", filesystems::grow_xfs).over("mounts", SOME_MOUNTS),
    Subject::new("loop attach", devices::loop_attach),
    Subject::new("loop detach", devices::loop_detach),
    Subject::new("first stage", volume::first_stage).over("MiB", &[64, 10 * 1024]),
    Subject::new("stage an existing ext4", volume::stage_again).over("mounts", SOME_MOUNTS),
    Subject::new("stage to unstage", volume::whole_life),
    Subject::new("rpc publish", calls::publish).over("clients", &[1, 2, 4, 8, 16, 32, 64, 128, 256]),
    Subject::new("rpc question", calls::question).over("clients", &[1, 32]),
    Subject::new("rpc publish, many volumes", calls::volumes).over("volumes", &[1, 100, 10_000, 100_000]),
    Subject::new("rpc publish, parameters", calls::parameters).over("bytes", &[0, 1024, 4096]),
    Subject::new("read a request", texts::request_subject).over("bytes", &[256, 4096]),
    Subject::new("debug with secrets", texts::debug).over("bytes", &[256, 4096]),
];
