//! The kit against the driver, with real namespaces over TCP on this machine.
//!
//! Not run by `cargo test`: it needs the kernel's NVMe target, which `cargo xtask test --kernels` provides.

use std::path::Path;

use csi_conformance::Kit;
use csi_core::Endpoint;
use csi_core::client::Client;
use csi_core::mount::remote::NvmeHost;
use csi_core::mount::{Mount, Target};

#[test]
fn the_driver_conforms_and_nothing_is_left() {
    test_support::nfsd::raise_loopback();
    Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    let host = NvmeHost::new("nqn.2026-01.org.example:node", "3f2504e0-4f89-41d3-9a0c-0305e82c3301").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    // The driver's target stays. Other tests on this machine have theirs at 4420.
    let portal = "127.0.0.1:4460".parse().unwrap();
    let plugin = nvme_tcp::plugin(pool.clone(), portal, host).unwrap();
    let endpoint: Endpoint =
        format!("unix://{}", directory.path().join("csi.sock").display()).parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = endpoint.clone();
        let server =
            tokio::spawn(async move { plugin.serve_until(&served, async { drop(stopped.await) }).await });
        Client::new(&endpoint).ready(std::time::Duration::from_secs(30)).await.unwrap();
        let [staging, target] = ["staging", "target"].map(|name| directory.path().join(name));
        for place in [&staging, &target] {
            std::fs::create_dir(place).unwrap();
        }
        let kit = Kit::new(endpoint).strict().staging(staging).target(target);
        let report = kit.run().await.unwrap();
        println!("{}", report.text());
        report.assert_ok();
        assert!(report.passed() >= 80, "{}", report.summary());
        drop(stop);
        server.await.unwrap().unwrap();
    });
    let left = |directory: &Path, end: &str| {
        let names = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(end)).collect::<Vec<_>>()
    };
    for (place, end) in [
        (Path::new("/sys/class/nvme"), ""),
        (&pool.join("images"), ""),
        (&pool.join("luns"), ".json"),
        (&pool.join("attached"), ".disk"),
    ] {
        assert!(left(place, end).is_empty(), "{}: {:?}", place.display(), left(place, end));
    }
}
