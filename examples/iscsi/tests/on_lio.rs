//! The kit against the driver, with real units over iSCSI on this machine.
//!
//! Not run by `cargo test`: it needs open-iscsi and the kernel's iSCSI target, which `cargo xtask test --kernels` provides.

use std::path::Path;

use csi_core::mount::{Mount, Target};
use csi_core::testing::serve;
use test_support::driver::{conforms, is_cut_off_by_its_storage, names};
use test_support::process::until;

/// The daemon of open-iscsi, which ends with the machine.
fn start_iscsid() {
    for place in ["/etc/iscsi", "/run/lock"] {
        std::fs::create_dir_all(place).unwrap();
    }
    let name = "InitiatorName=iqn.2026-01.org.example:node\n";
    std::fs::write("/etc/iscsi/initiatorname.iscsi", name).unwrap();
    std::fs::write("/etc/iscsi/iscsid.conf", "node.startup = manual\n").unwrap();
    std::mem::forget(std::process::Command::new("iscsid").arg("-f").spawn().unwrap());
    until("iscsid listens", || {
        std::fs::read_to_string("/proc/net/unix").unwrap().contains("@ISCSIADM_ABSTRACT_NAMESPACE")
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_conforms_and_nothing_is_left() {
    test_support::nfsd::raise_loopback();
    Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    start_iscsid();
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let start = || iscsi::plugin(pool.clone(), "127.0.0.1:3260".parse().unwrap()).unwrap();
    drop(start());
    // A driver that starts again finds its target.
    let plugin = start();
    let client = serve(plugin, &directory).await;
    is_cut_off_by_its_storage(&client).await;
    conforms(directory.path(), |kit| kit, 80).await;
    for (place, end) in [
        (Path::new("/sys/class/iscsi_session"), ""),
        (&pool.join("images"), ""),
        (&pool.join("luns"), ".json"),
        (&pool.join("attached"), ".disk"),
    ] {
        let left: Vec<_> = names(place).into_iter().filter(|name| name.ends_with(end)).collect();
        assert!(left.is_empty(), "{}: {left:?}", place.display());
    }
}
