//! The examples under the kit, on real mounts and devices. Needs root.
#![cfg(target_os = "linux")]

mod support;

use clap::Parser as _;
use csi_conformance::Pairs;
use support::*;

#[test]
fn dirs_conforms_and_nothing_is_left() {
    in_private(async || {
        let places = Places::new();
        let endpoint = places.endpoint("csi.sock");
        let plugin = dirs::plugin(places.of("volumes"));
        let kit = places.kit(endpoint.clone()).mount_flags(["nosuid", "noexec"]);
        let report = with_plugin(plugin, &endpoint, kit.run()).await.unwrap();
        print(&report);
        report.assert_ok();
        assert!(report.passed() >= 35, "{}", report.summary());
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
        assert!(!places.of("journal").exists());
    });
}

#[test]
fn block_conforms_and_nothing_is_left() {
    in_private(async || {
        let places = Places::new();
        let endpoint = places.endpoint("csi.sock");
        let plugin = block::plugin(places.of("volumes"));
        // XFS, because a mounted ext4 grows only with CAP_SYS_RESOURCE.
        let kit = places.kit(endpoint.clone()).fs_type("xfs").size(320 << 20);
        let report = with_plugin(plugin, &endpoint, kit.run()).await.unwrap();
        print(&report);
        report.assert_ok();
        assert!(report.passed() >= 45, "{}", report.summary());
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
        assert_eq!(mounts_below(&places.of("target")), 0);
        let loops = std::process::Command::new("losetup").arg("-a").output().unwrap();
        let root = places.of("volumes").display().to_string();
        assert!(!String::from_utf8_lossy(&loops.stdout).contains(&root), "a loop device is left");
    });
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: csi_core::DriverArgs,
}

#[test]
fn secrets_conforms_and_nothing_is_left() {
    in_private(async || {
        let places = Places::new();
        let endpoint = places.endpoint("csi.sock");
        let flags =
            Flags::parse_from(["secrets", "--endpoint", &endpoint.to_string(), "--node-id", "node-1"]);
        let kit = places.kit(endpoint.clone()).ephemeral(Pairs::default());
        let report = with_plugin(secrets::plugin(&flags.args), &endpoint, kit.run()).await.unwrap();
        print(&report);
        report.assert_ok();
        assert!(report.passed() >= 20, "{}", report.summary());
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}
