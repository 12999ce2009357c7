//! The kit against the driver, with real namespaces over TCP on this machine.
//!
//! Not run by `cargo test`: it needs the kernel's NVMe target, which `cargo xtask test --kernels` provides.

use std::path::Path;

use csi_core::mount::remote::NvmeHost;
use csi_core::mount::{Mount, Target};
use csi_core::testing::serve;
use test_support::driver::{conforms, is_cut_off_by_its_storage, names};

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_conforms_and_nothing_is_left() {
    test_support::nfsd::raise_loopback();
    Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    let host = NvmeHost::new("nqn.2026-01.org.example:node", "3f2504e0-4f89-41d3-9a0c-0305e82c3301").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    // The driver's target stays. Other tests on this machine have theirs at 4420.
    let portal = "127.0.0.1:4460".parse().unwrap();
    let plugin = nvme_tcp::plugin(pool.clone(), portal, host).unwrap();
    let client = serve(plugin, &directory).await;
    is_cut_off_by_its_storage(&client).await;
    conforms(directory.path(), |kit| kit, 80).await;
    for (place, end) in [
        (Path::new("/sys/class/nvme"), ""),
        (&pool.join("images"), ""),
        (&pool.join("luns"), ".json"),
        (&pool.join("attached"), ".disk"),
    ] {
        let left: Vec<_> = names(place).into_iter().filter(|name| name.ends_with(end)).collect();
        assert!(left.is_empty(), "{}: {left:?}", place.display());
    }
}
