//! Fibre Channel with asymmetric access (ALUA), against the kernel's own target.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

use std::time::Duration;

use crate::fc_target::{Lio, disks, writes};
use crate::remote_alua::Site;

#[test]
fn access_states_flip_under_load() {
    let lio = Lio::new("alua", 1, 2);
    let site = Site {
        unit: lio.unit(0).into(),
        unit_soon: lio.unit(0).wait_limit(Duration::from_secs(5)).into(),
        set_access: &|path, state| lio.set_access(0, path, state),
        writes,
        disks,
    };
    site.flip_access_states_under_load();
}
