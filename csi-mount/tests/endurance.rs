//! Nothing grows in this process or in the mount table, however often a volume is published and unpublished.

#[path = "it/measure/mod.rs"]
mod measure;
#[path = "it/mount_support/mod.rs"]
mod mount_support;

use std::time::Instant;

use csi_mount::internal::{health, stats};
use csi_mount::{Bind, MountAttributes, MountHealth, Outcome, Removed, Target, Unmounted, unmount};
use measure::{measure, measure_until, rounds};
use mount_support::{sandbox, source};

#[test]
fn many_rounds_leave_nothing_behind() {
    let rounds = rounds(2000);
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        let round = |number: u32| {
            let target = Target::new(sandbox.join("target")).unwrap();
            target.create_dir().unwrap();
            let bind = Bind::new(&source).attributes(MountAttributes::RDONLY | MountAttributes::NOSUID);
            assert_eq!(bind.at(&target).unwrap(), Outcome::Mounted);
            if number.is_multiple_of(100) {
                assert_eq!(health(target.path()).unwrap(), MountHealth::Healthy);
                stats(target.path()).unwrap();
            }
            assert_eq!(unmount(&target).unwrap(), Unmounted::Unmounted { layers: 1 });
            assert_eq!(target.remove().unwrap(), Removed::Removed);
        };
        // These rounds run first, so that everything that is set up only once exists before the measurement.
        (0..rounds / 10).for_each(round);
        let before = measure();
        let start = Instant::now();
        (0..rounds).for_each(round);
        let took = start.elapsed();
        let counted = |measure: measure::Measure| {
            (measure.descriptors, measure.threads, measure.children, measure.mounts)
        };
        let after = measure_until(|found| {
            // Any query reaps the helper processes that have ended.
            stats("/").unwrap();
            counted(*found) == counted(before)
        });
        println!("{rounds} rounds in {took:?}: before {before}; after {after}");
        assert_eq!(counted(after), counted(before));
        assert!(after.memory < before.memory + 1024, "the memory grew");
    });
}
