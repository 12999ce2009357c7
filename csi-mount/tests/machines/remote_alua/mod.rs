//! A disk with asymmetric access (ALUA): the states of two paths flipped under load, with `scsi_dh_alua` and Debian's
//! multipathd and udevd, whatever the transport.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_mount::ErrorKind;
use csi_mount::remote::{RemoteDisks, RemoteTarget};

use crate::devices::{eventually, under_load};
use crate::multipath_node::{maps, multipathd_for, udevd};

/// The kernel's numbers of the states.
const OPTIMIZED: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;

/// Of `multipath.conf`, as for an array with ALUA.
const SETTINGS: &str = "hardware_handler \"1 alua\"\n prio alua\n path_grouping_policy group_by_prio\n \
     failback immediate\n no_path_retry 60";

/// A unit with two paths, of one transport.
pub(crate) struct Site<'s> {
    pub(crate) unit: RemoteTarget,
    /// The same, with a wait limit of some seconds.
    pub(crate) unit_soon: RemoteTarget,
    /// Gives a path of the unit this state.
    pub(crate) set_access: &'s dyn Fn(usize, u8),
    /// How many writes each path got.
    pub(crate) writes: fn() -> [u64; 2],
    /// The disks of SCSI on this machine.
    pub(crate) disks: fn() -> Vec<PathBuf>,
}

impl Site<'_> {
    /// What the kernel says about its paths: their states and sizes.
    fn states(&self) -> Vec<(String, u64)> {
        let text = |disk: &PathBuf, attribute: &str| {
            let place = Path::new("/sys/block").join(disk.file_name().unwrap()).join(attribute);
            fs::read_to_string(place).unwrap().trim().to_owned()
        };
        let state = |disk| (text(disk, "device/access_state"), text(disk, "size").parse().unwrap());
        (self.disks)().iter().map(state).collect()
    }

    pub(crate) fn flip_access_states_under_load(&self) {
        let _daemons = [udevd(), multipathd_for("find_multipaths no", SETTINGS)];
        let directory = tempfile::tempdir().unwrap();
        let node = RemoteDisks::new(directory.path().join("remote"));
        (self.set_access)(0, OPTIMIZED);
        (self.set_access)(1, NON_OPTIMIZED);
        let device = node.attach("pvc", &self.unit).unwrap();
        println!("{:?}", self.states());
        let states = self.states();
        let is_handled = states.len() == 2 && states.iter().all(|(state, _)| state.starts_with("active/"));
        assert!(is_handled, "the module handles both paths: {states:?}");

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
                (self.set_access)(0, first);
                (self.set_access)(1, second);
                eventually("the writes take the better path", || {
                    let before = (self.writes)();
                    std::thread::sleep(Duration::from_millis(500));
                    let after = (self.writes)();
                    let [used, other] = [used, 1 - used].map(|path: usize| after[path] - before[path]);
                    (used > 0 && other == 0).then_some(())
                });
                // It can be attached again in each state, and no path loses its size by that.
                assert_eq!(node.attach("pvc", &self.unit).unwrap().number(), device.number());
                println!("{:?}", self.states());
                assert!(self.states().iter().all(|(_, size)| *size > 0), "{:?}", self.states());
            }
        });
        (self.set_access)(1, UNAVAILABLE);
        let error = node.refresh("pvc").unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        (self.set_access)(1, NON_OPTIMIZED);
        assert_eq!(node.refresh("pvc").unwrap(), device.size().unwrap());
        drop(device);
        assert!(node.detach("pvc").unwrap().not_flushed.is_none());
        assert_eq!((maps(), (self.disks)()), (vec![], vec![]));

        // One path in standby is enough for an attach; without any access nothing is returned.
        (self.set_access)(0, STANDBY);
        drop(node.attach("pvc", &self.unit).unwrap());
        assert!(node.detach("pvc").unwrap().not_flushed.is_none());
        (self.set_access)(0, UNAVAILABLE);
        (self.set_access)(1, UNAVAILABLE);
        let error = node.attach("pvc", &self.unit_soon).unwrap_err();
        println!("{error}");
        assert!([ErrorKind::Unresponsive, ErrorKind::NotFound].contains(&error.kind()), "{error}");
        assert_eq!((maps(), (self.disks)()), (vec![], vec![]));
        // Access that comes back meanwhile ends the wait.
        std::thread::scope(|scope| {
            let attached = scope.spawn({
                let node = &node;
                let unit = &self.unit;
                move || node.attach("pvc", unit).map(drop)
            });
            eventually("the disks are shown", || ((self.disks)().len() == 2).then_some(()));
            (self.set_access)(0, OPTIMIZED);
            (self.set_access)(1, NON_OPTIMIZED);
            attached.join().unwrap().unwrap();
        });
        assert!(node.detach("pvc").unwrap().not_flushed.is_none());
        assert_eq!((maps(), (self.disks)()), (vec![], vec![]));
    }
}
