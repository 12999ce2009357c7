//! The kit against the controller, with a local directory as the share. `mounted` runs it on real mounts.

mod support;

use csi_conformance::Pairs;
use csi_core::testing::serve;
use nfs::VolumeArgs;
use support::*;
use test_support::driver::{conforms, names};

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_conforms_and_nothing_is_left() {
    let places = Places::new();
    serve(places.controller(&VolumeArgs::default()), places.path()).await;
    let class = Pairs::parse("[CreateVolume]\nserver=192.0.2.7\nshare=/export").unwrap();
    conforms(places.path(), |kit| kit.parameters(class), 30).await;
    assert_eq!(names(&places.of("share")), [".csi-nfs"]);
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_nfs"));
}

#[test]
fn a_driver_without_patience_is_refused() {
    let program = env!("CARGO_BIN_EXE_nfs");
    let refused = std::process::Command::new(program).arg("--server-patience=0").output().unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && text.contains("--server-patience"), "{text}");
}
