//! The driver as a process, its FUSE program, and a volume's whole life on a real mount, also when the
//! program and the driver are killed. Needs root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::{Host, MountHealth, mounts};
use csi_core::proto::v1;
use test_support::driver::{Driver, on_tmpfs};
use test_support::process::{fuse_daemons, kill, until};
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

#[test]
fn a_volume_outlives_its_program_and_the_driver() {
    on_tmpfs(live);
}

/// Kills the programs of a failed test.
struct NoPrograms<'a>(&'a Path);

impl Drop for NoPrograms<'_> {
    fn drop(&mut self) {
        kill(&fuse_daemons(self.0));
    }
}

async fn live(place: &Path) {
    let _no_programs = NoPrograms(place);
    let root = place.join("root");
    let mut program = Command::new(env!("CARGO_BIN_EXE_fuse"));
    program.arg("--endpoint").arg(place.join("csi.sock"));
    program.args(["--node-id=n", "--log-level=error", "--root"]).arg(&root);
    let mut driver = Driver::start(program, place.join("csi.sock")).await;
    let client = driver.client();
    let capability = v1::VolumeCapability::mount(Mode::SingleNodeWriter);
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let volume_id = client.call(create).await.unwrap().volume.unwrap().volume_id;
    let staging = place.join("staging");
    let pod = place.join("pod");
    fs::create_dir(&staging).unwrap();
    let mut volume = VolumeUse::new(volume_id, capability.clone()).staged_at(&staging);
    let targets = [Target::new(&pod)];
    let absent = VolumeUse::new("absent", capability).staged_at(&staging);
    assert_eq!(absent.stage(&client).await.unwrap_err().code(), Code::NotFound);
    for _ in 0..2 {
        volume.attach_stage_publish(&client, &targets).await.unwrap();
    }
    assert_eq!(fuse_daemons(place).len(), 1);
    use_files(&pod);

    // The program is killed: the next publish replaces it, and the written data is there.
    kill(&fuse_daemons(place));
    until("the mount is dead", || {
        matches!(Host::kernel().mounts().health(&pod).unwrap(), MountHealth::Dead(_))
    });
    volume.publish(&client, &targets).await.unwrap();
    assert_eq!(fs::read_to_string(pod.join("kept")).unwrap(), "data");

    // The driver is killed: its volumes stay.
    driver.kill();
    assert_eq!(fs::read_to_string(pod.join("kept")).unwrap(), "data");
    driver.start_again().await;
    volume.publish(&client, &targets).await.unwrap();
    assert_eq!(fuse_daemons(place).len(), 1, "it was found again");

    for _ in 0..2 {
        volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    }
    assert!(fuse_daemons(place).is_empty() && !mounts().unwrap().iter().any(|entry| entry.fs_type == "fuse"));
    client.call(volume.delete_volume()).await.unwrap();
    assert_eq!(fs::read_dir(root).unwrap().count(), 0);
}

/// Uses files as a workload does.
fn use_files(pod: &Path) {
    fs::write(pod.join("kept"), "data").unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|index| (index * 7 / 5) as u8).collect();
    fs::write(pod.join("large"), &large).unwrap();
    assert_eq!(fs::read(pod.join("large")).unwrap(), large);
    assert_eq!(pod.join("large").metadata().unwrap().size(), 3_000_000);
    fs::write(pod.join("large"), "short").unwrap();
    assert_eq!(fs::read_to_string(pod.join("large")).unwrap(), "short");
    (0..500).for_each(|index| fs::write(pod.join(format!("file-{index:03}")), "").unwrap());
    assert_eq!(fs::read_dir(pod).unwrap().count(), 502);
    (0..500).for_each(|index| fs::remove_file(pod.join(format!("file-{index:03}"))).unwrap());
    fs::remove_file(pod.join("large")).unwrap();
    assert!(!pod.join("large").exists());
    fs::write(pod.join("large"), "again").unwrap();
    assert_eq!(fs::read_to_string(pod.join("large")).unwrap(), "again");
    assert!(fs::create_dir(pod.join("directory")).is_err(), "it is flat");
    assert!(fs::File::options().create_new(true).write(true).open(pod.join("kept")).is_err());
}

#[test]
fn help_and_a_missing_store_are_explained() {
    let output = Command::new(env!("CARGO_BIN_EXE_flatfs")).arg("--help").output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Usage"));
    let output =
        Command::new(env!("CARGO_BIN_EXE_flatfs")).args(["/no/such/store", "/mnt"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("create it first"), "{output:?}");
}
