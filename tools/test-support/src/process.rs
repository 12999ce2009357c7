//! Processes that a test did not start itself, and the wait for an event.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long an event can take on a machine that has other work, or under slow emulation.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
///
/// # Panics
/// With this text, when it does not hold within [`LIMIT`].
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Returns the processes for whose directory in `/proc` this holds.
pub fn find(is_wanted: impl Fn(&Path) -> bool) -> Vec<u32> {
    let directories = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let numbered = directories.filter_map(|path| Some((path.file_name()?.to_str()?.parse().ok()?, path)));
    numbered.filter(|(_, path)| is_wanted(path)).map(|(number, _)| number).collect()
}

/// Returns the FUSE daemons that csi-mount started for a place below this directory. It marks them in their
/// environment.
pub fn fuse_daemons(directory: &Path) -> Vec<u32> {
    let mark = format!("CSI_MOUNT_FUSE_AT={}/", directory.display());
    find(|process| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
    })
}

/// Kills these processes. One can have ended meanwhile.
pub fn kill(numbers: &[u32]) {
    for number in numbers {
        let _ = kill_process(Pid::from_raw(*number as i32).unwrap(), Signal::KILL);
    }
}
