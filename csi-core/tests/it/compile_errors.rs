//! What the compiler says in the mistakes of a first driver: a missing trait, and a missing `#[async_trait]`.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// Each trait that a vendor implements.
const TRAITS: &str = "
    Controller Identity Node BlockDevices Directories EphemeralContent FuseFilesystems SharedFilesystems
    controller::ControllerExpandVolume controller::ControllerGetVolume controller::ControllerGetVolumeHealth
    controller::ControllerListVolumeHealth controller::ControllerModifyVolume controller::CreateDeleteSnapshot
    controller::CreateDeleteVolume controller::GetCapacity controller::GetSnapshot controller::ListSnapshots
    controller::ListVolumes controller::PublishUnpublishVolume group_controller::GroupController
    node::NodeExpandVolume node::NodeGetStorageHealth node::NodeGetVolumeHealth node::NodeGetVolumeStats
    node::StageUnstageVolume snapshot_metadata::SnapshotMetadata";

/// A driver without capabilities.
const DRIVER: &str = "
    use csi_core::{Result, prelude::*};
    pub struct Driver;
    #[async_trait]
    impl Controller for Driver {
        async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> { Ok(None) }
        fn supports(&self, _: &VolumeCapability) -> bool { true }
    }
    ";

/// Checks a program against this build of csi-core, without cargo.
fn check(library: &Path, program: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("driver.rs");
    std::fs::write(&source, program).unwrap();
    let dependencies = library.parent().unwrap();
    Command::new("rustc")
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--out-dir"])
        .arg(directory.path())
        .arg("-L")
        .arg(format!("dependency={}", dependencies.display()))
        .arg("--extern")
        .arg(format!("csi_core={}", library.display()))
        .arg(&source)
        .output()
        .unwrap()
}

/// The newest build of the library that has the feature `mount`: builds with other features are in the same folder.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let mut builds: Vec<(SystemTime, PathBuf)> = folder
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let name = entry.file_name().into_string().unwrap();
            name.starts_with("libcsi_core-") && name.ends_with(".rlib")
        })
        .map(|entry| (entry.metadata().unwrap().modified().unwrap(), entry.path()))
        .collect();
    builds.sort();
    let has_mount = |build: &PathBuf| check(build, "pub use csi_core::BlockNode;").status.success();
    builds.into_iter().rev().map(|(_, build)| build).find(has_mount).expect("this test links to one")
}

fn refused(library: &Path, program: &str) -> String {
    let output = check(library, program);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{program}");
    text
}

#[test]
fn a_missing_trait_is_named_with_the_impl_that_it_needs() {
    let library = library();
    let mut program = "pub struct Bare;\n".to_owned();
    for (at, name) in TRAITS.split_whitespace().enumerate() {
        program +=
            &format!("fn needs{at}<T: csi_core::{name}>() {{}}\npub const _: fn() = needs{at}::<Bare>;\n");
    }
    let text = refused(&library, &program);
    for name in TRAITS.split_whitespace() {
        let name = name.rsplit("::").next().unwrap();
        assert!(text.contains(&format!("`Bare` does not implement `{name}`")), "{name}: {text}");
        assert!(text.contains(&format!("needs `impl {name} for Bare`")), "{name}: {text}");
    }
    assert!(text.contains("write `#[async_trait]` before the `impl`"), "{text}");
}

/// The methods that only declare a capability. One that registers a trait's object compiles with its bound alone.
#[test]
fn a_capability_needs_the_trait_of_its_rpc() {
    let library = library();
    for (method, needs) in [
        ("clone_volume", "CreateDeleteVolume"),
        ("publish_readonly", "PublishUnpublishVolume"),
        ("list_volumes_published_nodes", "ListVolumes"),
        ("modify_while_expanding", "ControllerModifyVolume"),
    ] {
        let call = format!("pub fn call(service: ControllerService<Driver>) {{ drop(service.{method}()); }}");
        let text = refused(&library, &format!("{DRIVER}{call}"));
        assert!(text.contains(&format!("`Driver` does not implement `{needs}`")), "{method}: {text}");
    }
}

/// docs/first-driver.md says what to do about the first lines of both errors.
#[test]
fn a_missing_attribute_is_the_error_that_the_guide_explains() {
    let library = library();
    let text = refused(&library, &DRIVER.replace("#[async_trait]", ""));
    assert!(text.contains("error[E0195]") && text.contains("`lookup`"), "{text}");
    let output = check(&library, DRIVER);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
