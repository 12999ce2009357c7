//! The lock of open-iscsi's database: a second link to a file, which its holder removes.
//!
//! An `iscsiadm` that is killed at the wrong moment leaves the link. Every later `iscsiadm` on the node then waits
//! half a minute for it, until the node is restarted. An attach took 38 s with open-iscsi 2.1.8.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const LOCK: &str = "/run/lock/iscsi/lock.write";
/// A holder has it for the milliseconds of one read or write of the database.
const HELD_LIMIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes the lock if nobody takes or releases it for some seconds.
pub(super) fn remove() {
    remove_after(Path::new(LOCK), HELD_LIMIT);
}

fn remove_after(lock: &Path, limit: Duration) {
    // Each link that is made or removed changes it.
    let changed = || fs::symlink_metadata(lock).ok().map(|facts| (facts.ctime(), facts.ctime_nsec()));
    let Some(first) = changed() else { return };
    let end = Instant::now() + limit;
    while Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
        if changed() != Some(first) {
            return;
        }
    }
    tracing::warn!("the lock of open-iscsi's database is removed: its holder was killed");
    if let Err(error) = fs::remove_file(lock) {
        tracing::warn!("the lock of open-iscsi's database stays: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_nobody_releases_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let [file, lock] = ["lock", "lock.write"].map(|name| directory.path().join(name));
        fs::write(&file, "").unwrap();
        let start = Instant::now();
        remove_after(&lock, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "no lock, no wait");
        fs::hard_link(&file, &lock).unwrap();
        remove_after(&lock, Duration::from_millis(50));
        assert!(file.exists() && !lock.exists());

        // One that others take and release stays theirs.
        fs::hard_link(&file, &lock).unwrap();
        std::thread::scope(|scope| {
            let remover = scope.spawn(|| remove_after(&lock, Duration::from_secs(60)));
            while !remover.is_finished() {
                let _ = fs::remove_file(&lock);
                fs::hard_link(&file, &lock).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(lock.exists());
    }
}
