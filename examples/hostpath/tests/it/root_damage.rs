//! Real damage is reported by the controller and by the node, in the form of v1.13.0 and in that of
//! v1.12.0. After a repair it is no longer reported. Needs root.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use csi_core::client::Client;
use csi_mount::internal::LoopDevice;
use csi_proto::v1;
use nix::mount::{MsFlags, mount};
use tonic::Code;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, loops_below, with_driver, with_driver_on};

fn image(run: &Run, life: &Life<'_>) -> std::path::PathBuf {
    run.stored("volumes", &life.id, "image")
}

/// The volumes that the health list has, and those whose condition is abnormal.
async fn listed(client: &Client) -> (Vec<String>, Vec<String>) {
    let request = v1::ControllerListVolumeHealthRequest::default();
    let unwell = client.call(request).await.unwrap();
    let all = client.call(v1::ListVolumesRequest::default()).await.unwrap();
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
    let answer = client.call(request).await.unwrap();
    answer.backend_health.into_iter().map(|entry| entry.reason).collect()
}

fn none() -> Vec<String> {
    Vec::new()
}

/// Its blocks would be in use until the next boot.
#[test]
fn a_volume_whose_directory_is_gone_leaves_no_device() {
    with_driver(&[], async |run, mut driver| {
        // A raw device is mounted nowhere that would show it.
        let cases = [
            ("removed", None),
            ("removed", Some("xfs")),
            ("renamed", Some("xfs")),
            ("renamed and removed", Some("xfs")),
        ];
        for (how, filesystem) in cases {
            let mut life = Life::new(run, wanted(how, filesystem, 320 * MIB)).await.unwrap();
            life.start().await.unwrap();
            let content = run.of("data").join("volumes").join(&life.id);
            let aside = run.of("data").join("aside");
            if how != "removed" {
                fs::rename(&content, &aside).unwrap();
            }
            match how {
                "renamed" => {}
                "removed" => fs::remove_dir_all(&content).unwrap(),
                _ => fs::remove_dir_all(&aside).unwrap(),
            }
            driver.restart().await;
            life.unpublish(&life.target("one")).await.unwrap();
            life.unstage().await.unwrap();
            assert_eq!(loops_below(&run.of("data")), Vec::<String>::new(), "{how}, {filesystem:?}");
            let _ = fs::remove_dir_all(&aside);
        }
    });
}

// spec: controller-get-volume-health.current, controller-list-volume-health.only-unwell
// spec: volume-health.entry-stays, list-volumes.condition
#[test]
fn an_image_that_is_gone_or_cut_off_is_lost_data() {
    with_driver(&[], async |run, _driver| {
        let mut hurt = Life::new(run, wanted("hurt", None, 8 * MIB)).await.unwrap();
        let well = Life::new(run, wanted("well", None, 8 * MIB)).await.unwrap();
        hurt.start().await.unwrap();
        assert_eq!(hurt.wrong().await, (none(), none()));
        assert_eq!(listed(&run.client()).await, (none(), none()));

        let image = image(run, &hurt);
        File::options().write(true).open(&image).unwrap().set_len(4 * MIB).unwrap();
        let reasons = vec!["ImageTruncated".to_owned()];
        assert_eq!(hurt.wrong().await, (reasons.clone(), reasons));
        File::options().write(true).open(&image).unwrap().set_len(8 * MIB).unwrap();
        assert_eq!(hurt.wrong().await, (none(), none()), "it is as large again");

        // A deletion would remove the link only, and a copy follows none.
        let moved = image.with_extension("moved");
        fs::rename(&image, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &image).unwrap();
        let missing = vec!["ContentMissing".to_owned()];
        assert_eq!(hurt.wrong().await, (missing.clone(), missing));
        let refused = hurt.snapshot("of a link").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        fs::rename(&moved, &image).unwrap();
        assert_eq!(hurt.wrong().await, (none(), none()), "it is a file again");

        fs::rename(&image, run.of("aside")).unwrap_or_else(|_| fs::remove_file(&image).unwrap());
        let reasons = vec!["ContentMissing".to_owned()];
        assert_eq!(hurt.wrong().await, (reasons.clone(), reasons));
        let ids = vec![hurt.id.clone()];
        assert_eq!(listed(&run.client()).await, (ids.clone(), ids), "and the other volume is not");
        // The rest of the damaged volume is deleted all the same.
        hurt.end().await;
        well.delete().await.unwrap();
    });
}

/// A truncated image that is extended to its old size has zeros where data was, and nobody could notice
/// any more.
#[test]
fn what_is_cut_off_is_neither_copied_nor_filled_up() {
    with_driver(&[], async |run, _driver| {
        let hurt = Life::new(run, wanted("hurt", None, 8 * MIB)).await.unwrap();
        let snapshot = hurt.snapshot("whole").await.unwrap();
        let images = [image(run, &hurt), run.stored("snapshots", &snapshot, "image")];
        let cut_to = |bytes| {
            for image in &images {
                File::options().write(true).open(image).unwrap().set_len(bytes).unwrap();
            }
        };
        let client = run.client();
        let thick = modification(&hurt.id, &[("provisioning", "thick")]);
        let wanted = |name: &str| wanted(name, None, 8 * MIB);
        let allocated =
            v1::GetMetadataAllocatedRequest { snapshot_id: snapshot.clone(), ..Default::default() };
        let all = async || {
            vec![
                hurt.expand(16 * MIB).await.map(drop),
                client.call(thick.clone()).await.map(drop),
                hurt.snapshot("cut off").await.map(drop),
                client.call(copy(of_volume(&hurt.id), wanted("clone"))).await.map(drop),
                client.call(copy(of_snapshot(&snapshot), wanted("restored"))).await.map(drop),
                client.call(group("group", &[&hurt.id])).await.map(drop),
                client.snapshot_metadata().get_metadata_allocated(allocated.clone()).await.map(drop),
            ]
        };
        cut_to(4 * MIB);
        for (at, done) in all().await.into_iter().enumerate() {
            let refused = done.expect_err("it is damaged");
            assert_eq!(refused.code(), Code::FailedPrecondition, "{at}: {refused:?}");
            assert!(refused.message().contains("4194304 bytes instead of 8388608"), "{at}: {refused:?}");
        }
        assert!(images.iter().all(|image| image.metadata().unwrap().len() == 4 * MIB), "left as they were");
        assert_eq!(listed(&client).await.0, std::slice::from_ref(&hurt.id));
        cut_to(8 * MIB);
        // All calls succeed now. Only the result of the first one, the expand, is not checked.
        for (at, done) in all().await.into_iter().enumerate().skip(1) {
            done.unwrap_or_else(|refused| panic!("{at}: {refused:?}"));
        }
    });
}

#[test]
fn a_directory_that_is_gone_is_lost_data() {
    with_driver(&["--kind=directory"], async |run, _driver| {
        let mut life = Life::new(run, wanted("hurt", Some(""), MIB)).await.unwrap();
        let target = life.start().await.unwrap();
        fs::write(target.join("file"), "x").unwrap();
        assert_eq!(life.wrong().await, (none(), none()));
        life.unpublish(&target).await.unwrap();
        let content = run.stored("volumes", &life.id, "directory");
        fs::rename(&content, content.with_file_name("elsewhere")).unwrap();
        assert_eq!(life.wrong().await.0, ["ContentMissing"]);
        assert!(life.publish("one").await.is_err(), "what is lost is not published");
        fs::rename(content.with_file_name("elsewhere"), &content).unwrap();
        let target = life.publish("one").await.unwrap();
        assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
        assert_eq!(life.wrong().await, (none(), none()));
        life.end().await;
    });
}

fn remount(path: &Path, flags: MsFlags) {
    mount(None::<&str>, path, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
}

// spec: node-get-volume-health.current, node-get-volume-stats.condition
#[test]
fn a_filesystem_that_turned_read_only_or_died_is_told() {
    with_driver(&[], async |run, _driver| {
        let mut life = Life::new(run, wanted("hurt", Some("xfs"), 320 * MIB)).await.unwrap();
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
        #[allow(deprecated, reason = "the form of v1.12.0 is what this looks at")]
        if let Ok(answer) = run.call(life.volume.node_get_volume_stats(&target)).await {
            assert!(answer.volume_condition.unwrap().abnormal);
        }
        // Every call names the cause.
        let copy = copy(of_volume(&life.id), wanted("copy", Some("xfs"), 320 * MIB));
        let calls = [
            (life.volume.stage(&life.node).await, Code::Unavailable),
            (life.publish("one").await.map(drop), Code::Unavailable),
            (life.expand_on_node(320 * MIB).await, Code::Unavailable),
            // After UNAVAILABLE from a call that creates, the orchestrator would wait for a result.
            (life.snapshot("of the dead").await.map(drop), Code::Internal),
            (run.call(copy).await.map(drop), Code::Internal),
        ];
        for (refused, code) in calls {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), code, "{refused:?}");
            assert!(refused.message().contains("the filesystem is dead: Input/output error"), "{refused:?}");
        }
        life.end().await;
    });
}

#[test]
fn a_device_that_went_away_is_told() {
    with_driver(&[], async |run, _driver| {
        let mut life = Life::new(run, wanted("hurt", None, 8 * MIB)).await.unwrap();
        life.start().await.unwrap();
        let image = image(run, &life);
        let node = LoopDevice::find(&image).unwrap()[0].path().to_owned();
        LoopDevice::detach_all(&image).unwrap();
        // Nobody else on this machine gets the number while its node is still bound at the target.
        let other = run.of("other");
        File::create(&other).unwrap().set_len(MIB).unwrap();
        losetup(&[&node, &other]);
        assert_eq!(life.wrong().await, (none(), vec!["DeviceGone".to_owned()]));
        life.end().await;
        losetup(&[Path::new("--detach"), &node]);
    });
}

fn losetup(args: &[&Path]) {
    assert!(Command::new("losetup").args(args).status().unwrap().success());
}

#[test]
fn a_full_disk_is_told_of_volumes_and_of_the_storage() {
    with_driver_on(
        || Run::on_tmpfs(64 * MIB),
        &[],
        async |run, _driver| {
            let mut life = Life::new(run, wanted("one", None, 32 * MIB)).await.unwrap();
            life.start().await.unwrap();
            assert_eq!((life.wrong().await, storage(&run.client()).await), ((none(), none()), none()));
            let capacity = async || {
                let request = v1::GetCapacityRequest::default();
                let told = run.call(request).await.unwrap();
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
            let refused = run.call(thick.clone()).await.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
            fs::remove_file(&filler).unwrap();
            assert_eq!((life.wrong().await.0, storage(&run.client()).await), (none(), none()));
            let thick = Life::new(run, thick).await.unwrap();
            thick.delete().await.unwrap();
            life.end().await;
        },
    );
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
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let probed = run.call(v1::ProbeRequest {}).await.map(drop);
        if is_due(&probed) || std::time::Instant::now() > end {
            return probed;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

// spec: probe.unhealthy
#[test]
fn a_data_directory_that_is_gone_ends_its_health() {
    with_driver_on(Run::new, &[], async |run, _driver| {
        let life = Life::new(run, wanted("volume", None, MIB)).await.unwrap();
        assert_eq!(storage(&run.client()).await, none());
        fs::rename(run.of("data"), run.of("aside")).unwrap();
        let ids = vec![life.id.clone()];
        assert_eq!(listed(&run.client()).await, (ids.clone(), ids));
        assert_eq!(life.wrong_at_controller().await, ["DataDirectoryGone"]);
        assert_eq!(storage(&run.client()).await, ["DataDirectoryGone"]);
        let probed = probed_until(run, Result::is_err).await.unwrap_err();
        assert_eq!(probed.code(), Code::FailedPrecondition, "{probed:?}");
        let data = run.of("data").display().to_string();
        assert!(probed.message().contains(&data) && probed.message().contains("No such file"), "{probed:?}");
        fs::rename(run.of("aside"), run.of("data")).unwrap();
        assert_eq!(storage(&run.client()).await, none());
        probed_until(run, Result::is_ok).await.unwrap();
        assert_eq!(listed(&run.client()).await, (none(), none()));
        life.delete().await.unwrap();
    });
}

/// Makes the text that a record gets, of its own and of another object's.
type Damage = fn(&str, &str) -> String;

/// What can happen to a record.
const RECORD_DAMAGES: [(&str, Damage); 5] = [
    ("empty", |_, _| String::new()),
    ("truncated", |whole, _| whole[..whole.len() / 2].to_owned()),
    ("garbage", |_, _| "\0no json".to_owned()),
    ("older format", |whole, _| whole.replace("\"kind\"", "\"type\"")),
    ("wrong owner", |_, other| other.to_owned()),
];

/// A volume whose record can't be read ends on its node, because its mounts are known. It counts neither as detached
/// nor as deleted, no second one gets its name, and a repaired record makes everything possible again.
#[test]
fn a_record_that_cannot_be_read_is_neither_lost_nor_in_the_way() {
    with_driver(&[], async |run, mut driver| {
        let other = Life::new(run, wanted("other", Some("ext4"), 64 * MIB)).await.unwrap();
        let record_of = |id: &str| run.stored("volumes", id, "record.json");
        for (number, (name, damage)) in RECORD_DAMAGES.into_iter().enumerate() {
            let (kind, filesystem) = [("image", "ext4"), ("directory", "")][number % 2];
            let mut request = wanted("hurt", Some(filesystem), 64 * MIB);
            request.parameters = map(&[("kind", kind)]);
            let mut hurt = Life::new(run, request.clone()).await.unwrap();
            let target = hurt.start().await.unwrap();
            fs::write(target.join("file"), "data").unwrap();
            let record = record_of(&hurt.id);
            let whole = fs::read_to_string(&record).unwrap();
            let damaged = damage(&whole, &fs::read_to_string(record_of(&other.id)).unwrap());
            assert_ne!(damaged, whole, "{name}");
            driver.kill();
            fs::write(&record, &damaged).unwrap();
            fs::write(record.with_file_name(".new-1-0"), "{").unwrap();
            driver.start_again().await;
            assert!(!record.with_file_name(".new-1-0").exists(), "{name}: a killed process left it");

            for _ in 0..2 {
                hurt.unpublish(&target).await.unwrap_or_else(|refused| panic!("{name}: {refused}"));
                hurt.unstage().await.unwrap_or_else(|refused| panic!("{name}: {refused}"));
            }
            let client = run.client();
            let new = wanted("new", Some("ext4"), 64 * MIB);
            let refused = [
                hurt.attach("node-1").await,
                hurt.detach("node-1").await,
                hurt.delete().await,
                hurt.stage().await,
                hurt.expand(128 * MIB).await.map(drop),
                hurt.snapshot("cut").await.map(drop),
                client.call(request).await.map(drop),
                client.call(new).await.map(drop),
            ];
            for (at, refused) in refused.into_iter().enumerate() {
                let refused = refused.expect_err(name);
                assert_eq!(refused.code(), Code::Internal, "{name}, {at}: {refused:?}");
                assert!(refused.message().contains(record.to_str().unwrap()), "{name}, {at}: {refused:?}");
            }
            assert_eq!(fs::read_to_string(&record).unwrap(), damaged, "{name}: it is left for its repair");

            driver.kill();
            fs::write(&record, &whole).unwrap();
            driver.start_again().await;
            hurt.stage().await.unwrap();
            let target = hurt.publish("one").await.unwrap();
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data", "{name}");
            hurt.end().await;
        }
        other.delete().await.unwrap();
    });
}

/// A group is deleted with all its members or not at all, and a snapshot with a damaged record is not gone.
#[test]
fn a_snapshot_whose_record_cannot_be_read_keeps_its_group() {
    with_driver(&[], async |run, mut driver| {
        let volume = Life::new(run, wanted("source", None, 8 * MIB)).await.unwrap();
        let create = group("group", &[&volume.id]);
        let group = run.call(create.clone()).await.unwrap();
        let group = group.group_snapshot.unwrap();
        let member = group.snapshots[0].snapshot_id.clone();
        let delete = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: vec![member.clone()],
            ..Default::default()
        };
        let of = |store: &str, id: &str| run.stored(store, id, "record.json");
        for record in [of("snapshots", &member), of("groups", &group.group_snapshot_id)] {
            let whole = fs::read_to_string(&record).unwrap();
            driver.kill();
            fs::write(&record, &whole[..whole.len() / 2]).unwrap();
            driver.start_again().await;
            let client = run.client();
            let refused =
                [client.call(delete.clone()).await.map(drop), client.call(create.clone()).await.map(drop)];
            for refused in refused {
                let refused = refused.unwrap_err();
                assert_eq!(refused.code(), Code::Internal, "{refused:?}");
                assert!(refused.message().contains(record.to_str().unwrap()), "{refused:?}");
            }
            assert!(of("snapshots", &member).with_file_name("image").exists());
            driver.kill();
            fs::write(&record, whole).unwrap();
            driver.start_again().await;
        }
        run.call(delete).await.unwrap();
        assert!(!of("snapshots", &member).exists());
        volume.delete().await.unwrap();
    });
}
