//! The kit against the driver, with real units over iSCSI on this machine.
//!
//! Not run by `cargo test`: it needs open-iscsi and the kernel's iSCSI target, which `cargo xtask test --kernels` provides.

use std::path::Path;

use csi_conformance::Kit;
use csi_core::Endpoint;
use csi_core::client::Client;
use csi_core::mount::{Mount, Target};

/// The daemon of open-iscsi, which ends with the machine.
fn start_iscsid() {
    for place in ["/etc/iscsi", "/run/lock"] {
        std::fs::create_dir_all(place).unwrap();
    }
    let name = "InitiatorName=iqn.2026-01.org.example:node\n";
    std::fs::write("/etc/iscsi/initiatorname.iscsi", name).unwrap();
    std::fs::write("/etc/iscsi/iscsid.conf", "node.startup = manual\n").unwrap();
    std::mem::forget(std::process::Command::new("iscsid").arg("-f").spawn().unwrap());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !std::fs::read_to_string("/proc/net/unix").unwrap().contains("@ISCSIADM_ABSTRACT_NAMESPACE") {
        assert!(std::time::Instant::now() < end, "iscsid does not listen");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn the_driver_conforms_and_nothing_is_left() {
    test_support::nfsd::raise_loopback();
    Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    start_iscsid();
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let start = || iscsi::plugin(pool.clone(), "127.0.0.1:3260".parse().unwrap()).unwrap();
    drop(start());
    // A driver that starts again finds its target.
    let plugin = start();
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
        (Path::new("/sys/class/iscsi_session"), ""),
        (&pool.join("images"), ""),
        (&pool.join("luns"), ".json"),
        (&pool.join("attached"), ".disk"),
    ] {
        assert!(left(place, end).is_empty(), "{}: {:?}", place.display(), left(place, end));
    }
}
