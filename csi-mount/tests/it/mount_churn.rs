//! The mount table is read while it changes constantly.

use std::sync::atomic::{AtomicBool, Ordering};

use csi_mount::{Bind, Target, mounts, unmount};

use crate::measure::rounds;
use crate::mount_support::{sandbox, source, target};

const STAYING: usize = 1500;

/// Whatever comes and goes, each mount that stays is in every read exactly once.
#[test]
fn a_table_that_always_changes_is_read() {
    sandbox(|sandbox| {
        let bound = source(sandbox, "source");
        for index in 0..STAYING {
            // The plain system call is used: under emulation the checks for so many mounts take minutes.
            let place = target(sandbox, &format!("t{index}"));
            rustix::mount::mount_bind(&bound, place.path()).unwrap();
        }
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let changing = target(sandbox, &format!("changing{thread}"));
                let bound = &bound;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = Bind::new(bound).at(&changing).unwrap();
                        let _ = unmount(&changing).unwrap();
                    }
                });
            }
            let read = || -> csi_mount::Result<()> {
                for _ in 0..rounds(200) {
                    let table = mounts()?;
                    let staying = table.iter().filter(|entry| {
                        entry
                            .mount_point
                            .file_name()
                            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"t"))
                            && entry.mount_point.starts_with(sandbox)
                            && entry.mount_point != sandbox
                    });
                    assert_eq!(staying.count(), STAYING);
                    let first = Target::new(sandbox.join("t0"))?.mounted()?;
                    assert!(first.is_some());
                }
                Ok(())
            };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            is_over.store(true, Ordering::Relaxed);
            result.unwrap().unwrap();
        });
    });
}
