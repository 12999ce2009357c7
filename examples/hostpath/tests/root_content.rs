//! What is in a volume: copied by snapshots, clones and groups, also while it is in use; kept through growth; taken by inline
//! volumes. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use csi_proto::v1;
use support::life::{Life, of_snapshot, of_volume};
use support::{MIB, Run, capability, in_private, wanted};
use tonic::Code;

/// A volume with this file in it, published.
async fn with_file<'a>(run: &'a Run, name: &str, filesystem: &str) -> Life<'a> {
    let mut life = Life::new(run, wanted(name, Some(filesystem), 320 * MIB)).await.unwrap();
    let target = life.start().await.unwrap();
    fs::write(target.join("file"), name).unwrap();
    life
}

/// What a new volume of this source has in its file.
async fn restored(run: &Run, request: v1::CreateVolumeRequest) -> (String, u64) {
    let mut life = Life::new(run, request).await.unwrap();
    let target = life.start().await.unwrap();
    let words = fs::read_to_string(target.join("file")).unwrap();
    let bytes = csi_mount::stats(&target).unwrap().bytes.total;
    life.end().await;
    (words, bytes)
}

async fn copies_hold_what_was_written(run: Run, flags: &[&str], filesystem: &str) {
    let mut driver = run.start(flags).await;
    let life = with_file(&run, "origin", filesystem).await;
    let target = life.target("one");
    // While it is in use, and without anybody having synced it.
    let snapshot = life.snapshot("cut").await.unwrap();
    fs::write(target.join("file"), "changed").unwrap();
    let from_snapshot = v1::CreateVolumeRequest {
        volume_content_source: of_snapshot(&snapshot),
        ..wanted("restored", Some(filesystem), 320 * MIB)
    };
    assert_eq!(restored(&run, from_snapshot.clone()).await.0, "origin");
    let clone = v1::CreateVolumeRequest {
        volume_content_source: of_volume(&life.id),
        ..wanted("clone", Some(filesystem), 480 * MIB)
    };
    let (words, bytes) = restored(&run, clone).await;
    assert_eq!(words, "changed");
    assert!(filesystem.is_empty() || bytes > 400 * MIB, "it is as large as was asked for: {bytes}");
    fs::write(target.join("file"), "the origin still takes writes").unwrap();

    let small = v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange { required_bytes: 0, limit_bytes: MIB as i64 }),
        name: "small".to_owned(),
        ..from_snapshot.clone()
    };
    let refused = run.client().controller().create_volume(small).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    // The snapshot outlives its volume, and the driver.
    life.end().await;
    driver.kill().await.unwrap();
    let mut driver = run.start(flags).await;
    assert_eq!(restored(&run, from_snapshot).await.0, "origin");
    run.assert_clean();
    driver.kill().await.unwrap();
}

// spec: create-volume.from-snapshot, create-volume.from-volume
// spec: create-volume.larger-than-source, create-snapshot.cut-before-answer
// spec: delete-volume.snapshots-live-on
#[test]
fn copies_of_images_hold_what_was_written() {
    in_private(async || {
        copies_hold_what_was_written(Run::on_tmpfs(64 << 30), &[], "xfs").await;
        // With blocks that are shared.
        copies_hold_what_was_written(Run::on_xfs(4 << 30), &[], "ext4").await;
    });
}

// spec: create-volume.from-snapshot, create-volume.from-volume
#[test]
fn copies_of_directories_hold_what_was_written() {
    in_private(async || {
        copies_hold_what_was_written(Run::on_tmpfs(64 << 30), &["--kind=directory"], "").await;
    });
}

/// A workload that counts, in a file of each volume in turn: at one moment the second is never ahead of the first.
fn count(targets: &[std::path::PathBuf], stop: &AtomicBool, counted: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let next = counted.load(Ordering::Relaxed) + 1;
        for target in targets {
            let file = fs::File::create(target.join("part")).unwrap();
            std::io::Write::write_all(&mut &file, next.to_string().as_bytes()).unwrap();
            file.sync_all().unwrap();
            fs::rename(target.join("part"), target.join("file")).unwrap();
        }
        counted.store(next, Ordering::Relaxed);
    }
}

#[test]
fn a_group_is_cut_at_one_moment_of_its_writers() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let (first, second) = (with_file(&run, "1", "xfs").await, with_file(&run, "2", "xfs").await);
        for life in [&first, &second] {
            fs::write(life.target("one").join("file"), "0").unwrap();
        }
        let targets = vec![first.target("one"), second.target("one")];
        let (stop, counted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writer = std::thread::spawn({
            let (stop, counted) = (Arc::clone(&stop), Arc::clone(&counted));
            move || count(&targets, &stop, &counted)
        });
        let mut groups = Vec::new();
        for round in 0..5 {
            let before = counted.load(Ordering::Relaxed);
            while counted.load(Ordering::Relaxed) < before + 3 {
                tokio::task::yield_now().await;
            }
            let request = v1::CreateVolumeGroupSnapshotRequest {
                name: format!("group-{round}"),
                source_volume_ids: vec![second.id.clone(), first.id.clone()],
                ..Default::default()
            };
            let made = run.client().group_controller().create_volume_group_snapshot(request).await.unwrap();
            groups.push(made.into_inner().group_snapshot.unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        for (round, group) in groups.iter().enumerate() {
            let mut read = Vec::new();
            for (at, life) in [&first, &second].into_iter().enumerate() {
                let member = group.snapshots.iter().find(|one| one.source_volume_id == life.id).unwrap();
                let request = v1::CreateVolumeRequest {
                    volume_content_source: of_snapshot(&member.snapshot_id),
                    ..wanted(&format!("restored-{round}-{at}"), Some("xfs"), 320 * MIB)
                };
                read.push(restored(&run, request).await.0.parse::<u64>().unwrap());
            }
            let [first, second] = read[..] else { unreachable!() };
            assert!(second <= first && first <= second + 1, "group {round}: {first} and {second}");
        }
        for life in [first, second] {
            life.end().await;
        }
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

// spec: create-volume-group-snapshot.not-together, create-volume-group-snapshot.failure-leaves-nothing
#[test]
fn what_can_not_be_cut_together_is_not() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let mut raw = Life::new(&run, wanted("raw", None, MIB)).await.unwrap();
        let idle = Life::new(&run, wanted("idle", None, MIB)).await.unwrap();
        raw.start().await.unwrap();
        let request = v1::CreateVolumeGroupSnapshotRequest {
            name: "group".to_owned(),
            source_volume_ids: vec![idle.id.clone(), raw.id.clone()],
            ..Default::default()
        };
        let refused =
            run.client().group_controller().create_volume_group_snapshot(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        let left =
            run.client().controller().list_snapshots(v1::ListSnapshotsRequest::default()).await.unwrap();
        assert!(left.into_inner().entries.is_empty(), "nothing of the group is left");
        raw.end().await;
        driver.kill().await.unwrap();
    });
}

fn inline(run: &Run, id: &str, kind: &str, filesystem: &str) -> v1::NodePublishVolumeRequest {
    let attributes = [
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "pod"),
        ("kind", kind),
        ("size", "320Mi"),
    ];
    v1::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: run.of("target").join(id).to_str().unwrap().to_owned(),
        volume_capability: Some(capability(Some(filesystem), 1)),
        volume_context: attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Default::default()
    }
}

fn kept_inline(run: &Run) -> usize {
    let all = fs::read_dir(run.of("data").join("inline")).unwrap().flatten();
    all.filter(|entry| !entry.file_name().to_str().unwrap().starts_with('.')).count()
}

#[test]
fn inline_volumes_live_as_long_as_their_pod() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        for (id, kind, filesystem) in [("csi-1", "directory", ""), ("csi-2", "image", "xfs")] {
            let request = inline(&run, id, kind, filesystem);
            let target = Path::new(&request.target_path).to_owned();
            run.client().node().node_publish_volume(request.clone()).await.unwrap();
            fs::write(target.join("file"), "x").unwrap();
            // The kubelet publishes again and again, and the driver is restarted in between.
            driver.kill().await.unwrap();
            driver = run.start(&[]).await;
            run.client().node().node_publish_volume(request).await.unwrap();
            assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
            let stats = v1::NodeGetVolumeStatsRequest {
                volume_id: id.to_owned(),
                volume_path: target.to_str().unwrap().to_owned(),
                ..Default::default()
            };
            let usage = run.client().node().node_get_volume_stats(stats).await.unwrap().into_inner().usage;
            assert!(kind == "directory" || usage[0].total < 400 << 20, "of the size that was asked for");
            assert_eq!(kept_inline(&run), 1);
            let gone = v1::NodeUnpublishVolumeRequest {
                volume_id: id.to_owned(),
                target_path: target.to_str().unwrap().to_owned(),
            };
            for _ in 0..2 {
                run.client().node().node_unpublish_volume(gone.clone()).await.unwrap();
            }
            assert_eq!(kept_inline(&run), 0, "{kind}");
            run.assert_clean();
        }
        driver.kill().await.unwrap();
    });
}

// spec: node.mount-group
#[test]
fn a_group_has_the_files_of_a_volume() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        for filesystem in ["xfs", ""] {
            let mut request = wanted("shared", Some(filesystem), 320 * MIB);
            if filesystem.is_empty() {
                request.parameters.insert("kind".to_owned(), "directory".to_owned());
            }
            let mut life = Life::new(&run, request).await.unwrap();
            let Some(v1::volume_capability::AccessType::Mount(mount)) = &mut life.capability.access_type
            else {
                unreachable!()
            };
            mount.volume_mount_group = "2345".to_owned();
            let target = life.start().await.unwrap();
            let root = target.metadata().unwrap();
            assert_eq!((root.gid(), root.mode() & 0o2070), (2345, 0o2070), "{filesystem:?}");
            life.end().await;
        }
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}
