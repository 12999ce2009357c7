//! iSCSI with asymmetric access (ALUA), against the kernel's own target with two portal groups.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

use std::time::Duration;

use crate::iscsi_target::{Lio, disks, node_records, sessions, writes};
use crate::remote_alua::Site;

#[test]
fn access_states_flip_under_load() {
    let lio = Lio::with_two_groups("alua", 1);
    let unit = lio.unit(0).replacement_timeout(Duration::from_secs(3));
    let site = Site {
        unit_soon: unit.clone().wait_limit(Duration::from_secs(5)).into(),
        unit: unit.into(),
        set_access: &|path, state| lio.set_access(0, path, state),
        writes,
        disks,
    };
    site.flip_access_states_under_load();
    assert_eq!((sessions(), node_records()), (vec![], vec![]));
}
