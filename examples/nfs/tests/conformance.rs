//! The kit against the controller, with a local directory as the share. `mounted` runs it on real mounts.

mod support;

use csi_conformance::{Kit, Pairs};
use nfs::VolumeArgs;
use support::*;

#[test]
fn the_controller_conforms_and_nothing_is_left() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let places = Places::new();
        let kit = Kit::new(places.endpoint()).strict().parameters(class_of_share());
        let plugin = places.controller(&VolumeArgs::default());
        let report = with_plugin(plugin, &places, async |_| kit.run().await.unwrap()).await;
        println!("{}", report.text());
        report.assert_ok();
        assert!(report.passed() >= 30, "{}", report.summary());
        let left: Vec<_> =
            std::fs::read_dir(places.of("share")).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(left.iter().all(|entry| entry.file_name() == ".csi-nfs"), "{left:?}");
    });
}

fn class_of_share() -> Pairs {
    Pairs::parse("[CreateVolume]\nserver=192.0.2.7\nshare=/export").unwrap()
}
