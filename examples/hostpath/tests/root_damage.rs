//! Real damage is reported by the controller and by the node, in the form of v1.13.0 and in that of
//! v1.12.0. After a repair it is no longer reported. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use csi_core::client::Client;
use csi_mount::LoopDevice;
use csi_proto::v1;
use nix::mount::{MsFlags, mount};
use support::life::{Life, of_snapshot, of_volume};
use support::{MIB, Run, in_private, wanted};

fn image(run: &Run, life: &Life<'_>) -> std::path::PathBuf {
    run.of("data").join("volumes").join(&life.id).join("image")
}

/// The volumes that the health list has, and those whose condition is abnormal.
async fn listed(client: &Client) -> (Vec<String>, Vec<String>) {
    let request = v1::ControllerListVolumeHealthRequest::default();
    let unwell = client.controller().controller_list_volume_health(request).await.unwrap().into_inner();
    let all = client.controller().list_volumes(v1::ListVolumesRequest::default()).await.unwrap().into_inner();
    #[allow(deprecated, reason = "the form of v1.12.0 is what this looks at")]
    let abnormal = |entry: &v1::list_volumes_response::Entry| {
        entry.status.as_ref().unwrap().volume_condition.as_ref().unwrap().abnormal
    };
    (
        unwell.entries.into_iter().map(|health| health.volume_id).collect(),
        all.entries
            .iter()
            .filter(|entry| abnormal(entry))
            .map(|entry| entry.volume.clone().unwrap().volume_id)
            .collect(),
    )
}

async fn storage(client: &Client) -> Vec<String> {
    let request = v1::NodeGetStorageHealthRequest::default();
    let answer = client.node().node_get_storage_health(request).await.unwrap().into_inner();
    answer.backend_health.into_iter().map(|entry| entry.reason).collect()
}

fn none() -> Vec<String> {
    Vec::new()
}

// spec: controller-get-volume-health.current, controller-list-volume-health.only-unwell
// spec: volume-health.entry-stays, list-volumes.condition
#[test]
fn an_image_that_is_gone_or_cut_off_is_lost_data() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let mut hurt = Life::new(&run, wanted("hurt", None, 8 * MIB)).await.unwrap();
        let well = Life::new(&run, wanted("well", None, 8 * MIB)).await.unwrap();
        hurt.start().await.unwrap();
        assert_eq!(hurt.wrong().await, (none(), none()));
        assert_eq!(listed(&run.client()).await, (none(), none()));

        let image = image(&run, &hurt);
        File::options().write(true).open(&image).unwrap().set_len(4 * MIB).unwrap();
        let reasons = vec!["ImageTruncated".to_owned()];
        assert_eq!(hurt.wrong().await, (reasons.clone(), reasons));
        File::options().write(true).open(&image).unwrap().set_len(8 * MIB).unwrap();
        assert_eq!(hurt.wrong().await, (none(), none()), "it is as large again");

        fs::rename(&image, run.of("aside")).unwrap_or_else(|_| fs::remove_file(&image).unwrap());
        let reasons = vec!["ContentMissing".to_owned()];
        assert_eq!(hurt.wrong().await, (reasons.clone(), reasons));
        let ids = vec![hurt.id.clone()];
        assert_eq!(listed(&run.client()).await, (ids.clone(), ids), "and the other volume is not");
        // The rest of the damaged volume is deleted all the same.
        hurt.end().await;
        well.delete().await.unwrap();
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

/// A truncated image that is extended to its old size has zeros where data was, and nobody could notice
/// any more.
#[test]
fn what_is_cut_off_is_neither_copied_nor_filled_up() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let hurt = Life::new(&run, wanted("hurt", None, 8 * MIB)).await.unwrap();
        let snapshot = hurt.snapshot("whole").await.unwrap();
        let images = [image(&run, &hurt), run.of("data").join("snapshots").join(&snapshot).join("image")];
        let cut_to = |bytes| {
            for image in &images {
                File::options().write(true).open(image).unwrap().set_len(bytes).unwrap();
            }
        };
        let client = run.client();
        let thick = v1::ControllerModifyVolumeRequest {
            volume_id: hurt.id.clone(),
            mutable_parameters: [("provisioning".to_owned(), "thick".to_owned())].into(),
            ..Default::default()
        };
        let copy = |name: &str, volume_content_source| v1::CreateVolumeRequest {
            volume_content_source,
            ..wanted(name, None, 8 * MIB)
        };
        let group = v1::CreateVolumeGroupSnapshotRequest {
            name: "group".to_owned(),
            source_volume_ids: vec![hurt.id.clone()],
            ..Default::default()
        };
        let allocated =
            v1::GetMetadataAllocatedRequest { snapshot_id: snapshot.clone(), ..Default::default() };
        let all = async || {
            vec![
                hurt.expand(16 * MIB).await.map(drop),
                client.controller().controller_modify_volume(thick.clone()).await.map(drop),
                hurt.snapshot("cut off").await.map(drop),
                client.controller().create_volume(copy("clone", of_volume(&hurt.id))).await.map(drop),
                client.controller().create_volume(copy("restored", of_snapshot(&snapshot))).await.map(drop),
                client.group_controller().create_volume_group_snapshot(group.clone()).await.map(drop),
                client.snapshot_metadata().get_metadata_allocated(allocated.clone()).await.map(drop),
            ]
        };
        cut_to(4 * MIB);
        for (at, done) in all().await.into_iter().enumerate() {
            let refused = done.expect_err("it is damaged");
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{at}: {refused:?}");
            assert!(refused.message().contains("4194304 bytes instead of 8388608"), "{at}: {refused:?}");
        }
        assert!(images.iter().all(|image| image.metadata().unwrap().len() == 4 * MIB), "left as they were");
        assert_eq!(listed(&client).await.0, std::slice::from_ref(&hurt.id));
        cut_to(8 * MIB);
        // All calls succeed now. Only the result of the first one, the expand, is not checked.
        for (at, done) in all().await.into_iter().enumerate().skip(1) {
            done.unwrap_or_else(|refused| panic!("{at}: {refused:?}"));
        }
        driver.kill().await.unwrap();
    });
}

#[test]
fn a_directory_that_is_gone_is_lost_data() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&["--kind=directory"]).await;
        let mut life = Life::new(&run, wanted("hurt", Some(""), MIB)).await.unwrap();
        let target = life.start().await.unwrap();
        fs::write(target.join("file"), "x").unwrap();
        assert_eq!(life.wrong().await, (none(), none()));
        life.unpublish(&target).await.unwrap();
        let content = run.of("data").join("volumes").join(&life.id).join("directory");
        fs::rename(&content, content.with_file_name("elsewhere")).unwrap();
        assert_eq!(life.wrong().await.0, ["ContentMissing"]);
        assert!(life.publish("one").await.is_err(), "what is lost is not published");
        fs::rename(content.with_file_name("elsewhere"), &content).unwrap();
        let target = life.publish("one").await.unwrap();
        assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
        assert_eq!(life.wrong().await, (none(), none()));
        life.end().await;
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

fn remount(path: &Path, flags: MsFlags) {
    mount(None::<&str>, path, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
}

// spec: node-get-volume-health.current, node-get-volume-stats.condition
#[test]
fn a_filesystem_that_turned_read_only_or_died_is_told() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let mut life = Life::new(&run, wanted("hurt", Some("xfs"), 320 * MIB)).await.unwrap();
        let target = life.start().await.unwrap();
        assert_eq!(life.wrong().await, (none(), none()));
        // Sets the filesystem itself read-only, as the kernel does after an error. The mount at the target
        // still allows writes.
        remount(&life.staging(), MsFlags::MS_RDONLY);
        assert_eq!(life.wrong().await.1, ["FilesystemReadOnly"]);
        remount(&life.staging(), MsFlags::empty());
        assert_eq!(life.wrong().await, (none(), none()));

        let shut_down = Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&target).status().unwrap();
        assert!(shut_down.success());
        assert_eq!(life.wrong().await.1, ["FilesystemDead"]);
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: life.id.clone(),
            volume_path: target.to_str().unwrap().to_owned(),
            ..Default::default()
        };
        #[allow(deprecated, reason = "the form of v1.12.0 is what this looks at")]
        if let Ok(answer) = run.client().node().node_get_volume_stats(request).await {
            assert!(answer.into_inner().volume_condition.unwrap().abnormal);
        }
        life.end().await;
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

#[test]
fn a_device_that_went_away_is_told() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let mut life = Life::new(&run, wanted("hurt", None, 8 * MIB)).await.unwrap();
        life.start().await.unwrap();
        LoopDevice::detach_all(image(&run, &life)).unwrap();
        assert_eq!(life.wrong().await, (none(), vec!["DeviceGone".to_owned()]));
        life.end().await;
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

#[test]
fn a_full_disk_is_told_of_volumes_and_of_the_storage() {
    in_private(async || {
        let run = Run::on_tmpfs(64 * MIB);
        let mut driver = run.start(&[]).await;
        let mut life = Life::new(&run, wanted("one", None, 32 * MIB)).await.unwrap();
        life.start().await.unwrap();
        assert_eq!((life.wrong().await, storage(&run.client()).await), ((none(), none()), none()));
        let capacity = async || {
            let request = v1::GetCapacityRequest::default();
            let told = run.client().controller().get_capacity(request).await.unwrap().into_inner();
            (told.available_capacity as u64, told.maximum_volume_size)
        };
        assert_eq!(capacity().await, (32 * MIB, Some(32 << 20)), "what is promised counts");
        let filler = run.of("data").join("filler");
        File::create(&filler).unwrap();
        take_room(&filler, 56 * MIB);
        assert_eq!(
            (life.wrong().await.0, storage(&run.client()).await),
            (vec!["PoolFull".to_owned()], vec!["PoolFull".to_owned()])
        );
        let (free, most) = capacity().await;
        assert!(free <= 8 * MIB && most.is_none(), "and what others wrote: {free}, {most:?}");
        // A thick volume needs the space immediately.
        let mut thick = wanted("thick", None, 16 * MIB);
        thick.parameters.insert("provisioning".to_owned(), "thick".to_owned());
        let refused = run.client().controller().create_volume(thick.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
        fs::remove_file(&filler).unwrap();
        assert_eq!((life.wrong().await.0, storage(&run.client()).await), (none(), none()));
        let thick = Life::new(&run, thick).await.unwrap();
        thick.delete().await.unwrap();
        life.end().await;
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

fn take_room(path: &Path, bytes: u64) {
    let file = File::options().write(true).open(path).unwrap();
    nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, bytes as i64).unwrap();
}

/// Probes until the answer is as expected, for at most 30 s: Probe returns the result of a check that runs
/// every second.
async fn probed_until(
    run: &Run,
    is_due: impl Fn(&Result<(), tonic::Status>) -> bool,
) -> Result<(), tonic::Status> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let probed = run.client().identity().probe(v1::ProbeRequest {}).await.map(drop);
        if is_due(&probed) || std::time::Instant::now() > end {
            return probed;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

// spec: probe.unhealthy
#[test]
fn a_data_directory_that_is_gone_ends_its_health() {
    in_private(async || {
        let run = Run::new();
        let mut driver = run.start(&[]).await;
        let life = Life::new(&run, wanted("volume", None, MIB)).await.unwrap();
        assert_eq!(storage(&run.client()).await, none());
        fs::rename(run.of("data"), run.of("aside")).unwrap();
        let ids = vec![life.id.clone()];
        assert_eq!(listed(&run.client()).await, (ids.clone(), ids));
        let request =
            v1::ControllerGetVolumeHealthRequest { volume_id: life.id.clone(), ..Default::default() };
        let told =
            run.client().controller().controller_get_volume_health(request).await.unwrap().into_inner();
        let reasons: Vec<_> =
            told.volume_health.unwrap().health_statuses.into_iter().map(|entry| entry.reason).collect();
        assert_eq!(reasons, ["DataDirectoryGone"]);
        assert_eq!(storage(&run.client()).await, ["DataDirectoryGone"]);
        let probed = probed_until(&run, Result::is_err).await.unwrap_err();
        assert_eq!(probed.code(), tonic::Code::FailedPrecondition, "{probed:?}");
        let data = run.of("data").display().to_string();
        assert!(probed.message().contains(&data) && probed.message().contains("No such file"), "{probed:?}");
        fs::rename(run.of("aside"), run.of("data")).unwrap();
        assert_eq!(storage(&run.client()).await, none());
        probed_until(&run, Result::is_ok).await.unwrap();
        assert_eq!(listed(&run.client()).await, (none(), none()));
        life.delete().await.unwrap();
        driver.kill().await.unwrap();
    });
}
