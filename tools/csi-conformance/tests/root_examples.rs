//! The examples under the kit, on real mounts and devices. Needs root.
#![cfg(target_os = "linux")]

#[path = "it/support/mod.rs"]
mod support;

use clap::Parser as _;
use csi_conformance::Pairs;
use support::*;

#[test]
fn dirs_conforms_and_nothing_is_left() {
    in_private(async || {
        let places = Places::new();
        let plugin = dirs::plugin(places.of("volumes"));
        let kit = places.kit().mount_flags(["nosuid", "noexec"]);
        let report = conforms(plugin, &places, kit).await;
        assert!(report.passed() >= 35, "{}", report.summary());
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
        assert!(!places.of("journal").exists());
    });
}

#[test]
fn block_conforms_and_nothing_is_left() {
    in_private(async || {
        let places = Places::new();
        let plugin = block::plugin(places.of("volumes"));
        // XFS, because a mounted ext4 grows only with CAP_SYS_RESOURCE.
        let kit = places.kit().fs_type("xfs").size(320 << 20);
        let report = conforms(plugin, &places, kit).await;
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
        let endpoint = format!("--endpoint={}", places.endpoint("csi.sock"));
        let flags = Flags::parse_from(["secrets", &endpoint, "--node-id=node-1"]);
        let kit = places.kit().ephemeral(Pairs::default());
        let report = conforms(secrets::plugin(&flags.args), &places, kit).await;
        assert!(report.passed() >= 20, "{}", report.summary());
        assert_eq!(places.left(), Vec::<std::path::PathBuf>::new());
    });
}

/// Its volumes are images or directories, as their use requires. Only directories have modes of several nodes, and only
/// images have blocks.
#[test]
fn a_driver_with_two_sorts_of_volumes_conforms() {
    in_private(async || {
        let places = Places::new();
        let data = format!("--data={}", places.of("volumes").display());
        for kind in ["image", "directory"] {
            let kind = format!("--kind={kind}");
            let flags = ["hostpath", "--node-id=node-1", "--peer=node-2", &kind, &data];
            let plugin = hostpath::plugin(&hostpath::Args::parse_from(flags)).unwrap();
            let tests = ["create-volume", "get-capacity", "metadata", "concurrency.streams"];
            let kit = tests.into_iter().fold(places.kit(), csi_conformance::Kit::only);
            conforms(plugin, &places, kit).await;
        }
    });
}

/// The pool is smaller than a volume of the run.
#[test]
fn the_reason_is_shown_why_there_are_no_volumes_to_test() {
    in_private(async || {
        let places = Places::new();
        let data = format!("--data={}", places.of("volumes").display());
        let flags = ["hostpath", "--node-id=node-1", "--pool=small=1Mi", &data];
        let plugin = hostpath::plugin(&hostpath::Args::parse_from(flags)).unwrap();
        let kit = places.kit().only("node-use.data-stays").only("identity.probe");
        let report = with_plugin(plugin, &places.endpoint("csi.sock"), kit.run()).await.unwrap();
        let text = report.text();
        let words = "n/a     node-use.data-stays: no volume could be created (--size, ";
        assert!(text.contains(words) && text.contains("ResourceExhausted"), "{text}");
    });
}
