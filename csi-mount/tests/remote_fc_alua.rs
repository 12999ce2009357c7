//! Fibre Channel with asymmetric access (ALUA): the states of two ports flipped under load, with `scsi_dh_alua` and
//! Debian's multipathd and udevd, against the kernel's own target.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

mod devices;
mod fc_target;
mod multipath_node;

use std::fs;
use std::time::Duration;

use csi_mount::ErrorKind;
use csi_mount::remote::RemoteDisks;
use devices::under_load;
use fc_target::{Lio, disks, eventually, writes};
use multipath_node::{maps, multipathd_for, udevd};

/// The kernel's numbers of the states.
const OPTIMIZED: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;

/// Of `multipath.conf`, as for an array with ALUA.
const SETTINGS: &str = "hardware_handler \"1 alua\"\n prio alua\n path_grouping_policy group_by_prio\n \
     failback immediate\n no_path_retry 60";

#[test]
fn access_states_flip_under_load() {
    let _daemons = [udevd(), multipathd_for("find_multipaths no", SETTINGS)];
    let (directory, lio) = (tempfile::tempdir().unwrap(), Lio::new("alua", 1, 2));
    let node = RemoteDisks::new(directory.path().join("remote"));
    lio.set_access(0, 0, OPTIMIZED);
    lio.set_access(0, 1, NON_OPTIMIZED);
    let device = node.attach("pvc", lio.unit(0)).unwrap();
    let states = || -> Vec<String> {
        let state = |disk: &std::path::PathBuf| {
            let name = disk.file_name().unwrap().to_str().unwrap();
            fs::read_to_string(format!("/sys/block/{name}/device/access_state")).unwrap().trim().to_owned()
        };
        disks().iter().map(state).collect()
    };
    println!("{:?}", states());
    assert!(states().iter().all(|state| state.starts_with("active/")), "the module handles both paths");

    under_load(&device, || {
        for (first, second, used) in [
            (OPTIMIZED, NON_OPTIMIZED, 0),
            (NON_OPTIMIZED, OPTIMIZED, 1),
            (OPTIMIZED, STANDBY, 0),
            (STANDBY, OPTIMIZED, 1),
            (NON_OPTIMIZED, UNAVAILABLE, 0),
            (UNAVAILABLE, NON_OPTIMIZED, 1),
            (OPTIMIZED, NON_OPTIMIZED, 0),
        ] {
            lio.set_access(0, 0, first);
            lio.set_access(0, 1, second);
            eventually("the writes take the better port", || {
                let before = writes();
                std::thread::sleep(Duration::from_millis(500));
                let after = writes();
                let [used, other] = [used, 1 - used].map(|network: usize| after[network] - before[network]);
                (used > 0 && other == 0).then_some(())
            });
            println!("{:?}", states());
            // It can be attached again in each state.
            assert_eq!(node.attach("pvc", lio.unit(0)).unwrap().number(), device.number());
        }
    });
    drop(device);
    assert!(node.detach("pvc").unwrap().not_flushed.is_none());
    assert_eq!((maps(), disks()), (vec![], vec![]));

    // One port in standby is enough for an attach; without any access nothing is returned.
    lio.set_access(0, 0, STANDBY);
    drop(node.attach("pvc", lio.unit(0)).unwrap());
    assert!(node.detach("pvc").unwrap().not_flushed.is_none());
    lio.set_access(0, 1, UNAVAILABLE);
    lio.set_access(0, 0, UNAVAILABLE);
    let error = node.attach("pvc", lio.unit(0).wait_limit(Duration::from_secs(5))).unwrap_err();
    println!("{error}");
    assert!([ErrorKind::Unresponsive, ErrorKind::NotFound].contains(&error.kind()), "{error}");
    assert_eq!((maps(), disks()), (vec![], vec![]));
}
