//! The driver as a process, its FUSE program, and a volume's whole life on a real mount, also when the
//! program and the driver are killed. Needs root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csi_core::mount::testing::private_mount_namespace;
use csi_core::mount::{Mount, MountHealth, Target, health, mounts};
use csi_core::proto::v1;
use tonic::Code;
use tonic::transport::Channel;
use v1::controller_client::ControllerClient;
use v1::node_client::NodeClient;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

/// The driver. If the test fails, the programs that it started are also killed.
struct Driver<'a>(Child, &'a Path);

impl<'a> Driver<'a> {
    fn start(place: &'a Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_fuse"))
            .arg(format!("--endpoint=unix://{}/csi.sock", place.display()))
            .args(["--node-id=n", "--log-level=error", "--root"])
            .arg(place.join("root"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut driver = Self(child, place);
        let end = Instant::now() + Duration::from_secs(30);
        while std::os::unix::net::UnixStream::connect(place.join("csi.sock")).is_err() {
            assert!(Instant::now() < end && driver.0.try_wait().unwrap().is_none(), "it does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        driver
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        if std::thread::panicking() {
            kill_programs(self.1);
        }
    }
}

/// The processes that serve volumes of this directory.
fn programs(place: &Path) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let store = place.join("root").display().to_string();
    let serves = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("flatfs") && line.contains(&store)
    };
    numbers.filter(serves).collect()
}

fn kill_programs(place: &Path) {
    for pid in programs(place) {
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn clients(place: &Path) -> (ControllerClient<Channel>, NodeClient<Channel>) {
    let endpoint = format!("unix://{}/csi.sock", place.display());
    let channel = tonic::transport::Endpoint::from_shared(endpoint).unwrap().connect_lazy();
    (ControllerClient::new(channel.clone()), NodeClient::new(channel))
}

#[test]
fn a_volume_outlives_its_program_and_the_driver() {
    let place = tempfile::tempdir().unwrap().keep();
    private_mount_namespace(|| {
        Mount::new("tmpfs", "test").at(&Target::new(&place).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(&place));
    });
    fs::remove_dir(&place).unwrap();
}

async fn live(place: &Path) {
    let driver = Driver::start(place);
    let (mut controller, mut node) = clients(place);
    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let volume_id = controller.create_volume(create).await.unwrap().into_inner().volume.unwrap().volume_id;
    let (staging, pod) = (place.join("staging"), place.join("pod"));
    fs::create_dir(&staging).unwrap();
    let stage = v1::NodeStageVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability.clone()),
        ..Default::default()
    };
    let publish = v1::NodePublishVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging.display().to_string(),
        target_path: pod.display().to_string(),
        volume_capability: Some(capability),
        ..Default::default()
    };
    let absent = v1::NodeStageVolumeRequest { volume_id: "absent".into(), ..stage.clone() };
    assert_eq!(node.node_stage_volume(absent).await.unwrap_err().code(), Code::NotFound);
    for _ in 0..2 {
        node.node_stage_volume(stage.clone()).await.unwrap();
        node.node_publish_volume(publish.clone()).await.unwrap();
    }
    assert_eq!(programs(place).len(), 1);
    use_files(&pod);

    // The program is killed: the next publish replaces it, and the written data is there.
    kill_programs(place);
    eventually("the mount is dead", || matches!(health(&pod).unwrap(), MountHealth::Dead(_)));
    node.node_publish_volume(publish.clone()).await.unwrap();
    assert_eq!(fs::read_to_string(pod.join("kept")).unwrap(), "data");

    // The driver is killed: its volumes stay.
    drop(driver);
    assert_eq!(fs::read_to_string(pod.join("kept")).unwrap(), "data");
    let driver = Driver::start(place);
    let (mut controller, mut node) = clients(place);
    node.node_publish_volume(publish).await.unwrap();
    assert_eq!(programs(place).len(), 1, "it was found again");

    let unpublish = v1::NodeUnpublishVolumeRequest {
        volume_id: volume_id.clone(),
        target_path: pod.display().to_string(),
    };
    let unstage = v1::NodeUnstageVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging.display().to_string(),
    };
    for _ in 0..2 {
        node.node_unpublish_volume(unpublish.clone()).await.unwrap();
        node.node_unstage_volume(unstage.clone()).await.unwrap();
    }
    assert!(programs(place).is_empty() && !mounts().unwrap().iter().any(|entry| entry.fs_type == "fuse"));
    let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
    controller.delete_volume(delete).await.unwrap();
    assert_eq!(fs::read_dir(place.join("root")).unwrap().count(), 0);
    drop(driver);
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
    for program in [env!("CARGO_BIN_EXE_fuse"), env!("CARGO_BIN_EXE_flatfs")] {
        let output = Command::new(program).arg("--help").output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Usage"));
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_flatfs")).args(["/no/such/store", "/mnt"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("create it first"), "{output:?}");
}
