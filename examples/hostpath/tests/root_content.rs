//! The content of a volume: copied by snapshots, clones and groups, also while it is in use; kept when the
//! volume grows. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use csi_proto::v1;
use support::life::{Life, of_snapshot, of_volume};
use support::{MIB, Run, in_private, wanted};
use tonic::Code;

/// A published volume with this file in it.
async fn with_file<'a>(run: &'a Run, name: &str, filesystem: &str) -> Life<'a> {
    let mut life = Life::new(run, wanted(name, Some(filesystem), 320 * MIB)).await.unwrap();
    let target = life.start().await.unwrap();
    fs::write(target.join("file"), name).unwrap();
    life
}

/// The content of the file in a new volume from this source.
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
    // The volume is in use, and nobody synced it.
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
    // The snapshot outlives its volume and the driver process.
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
        // On XFS copies share their blocks.
        copies_hold_what_was_written(Run::on_xfs(4 << 30), &[], "ext4").await;
    });
}

/// Replaces the content of a volume's image with zeros. The volume must not be staged.
fn lose_content(run: &Run, id: &str) {
    let image = fs::File::options().write(true).open(run.of("data/volumes").join(id).join("image")).unwrap();
    let size = image.metadata().unwrap().len();
    image.set_len(0).unwrap();
    image.set_len(size).unwrap();
}

/// The same holds for its clone and for a volume from its snapshot. A clone from before the first stage
/// is formatted.
#[test]
fn an_image_that_was_staged_is_never_formatted_again() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let wanted = |name: &str| wanted(name, Some("ext4"), 64 * MIB);
        let mut origin = Life::new(&run, wanted("origin")).await.unwrap();
        let early =
            v1::CreateVolumeRequest { volume_content_source: of_volume(&origin.id), ..wanted("early") };
        let mut early = Life::new(&run, early).await.unwrap();
        origin.start().await.unwrap();
        origin.unpublish(&origin.target("one")).await.unwrap();
        origin.unstage().await.unwrap();
        let snapshot = origin.snapshot("cut").await.unwrap();
        let late = v1::CreateVolumeRequest { volume_content_source: of_volume(&origin.id), ..wanted("late") };
        let late = Life::new(&run, late).await.unwrap();
        let cut =
            v1::CreateVolumeRequest { volume_content_source: of_snapshot(&snapshot), ..wanted("of cut") };
        let cut = Life::new(&run, cut).await.unwrap();
        for mut life in [origin, late, cut] {
            lose_content(&run, &life.id);
            life.attach("node-1").await.unwrap();
            let refused = life.stage().await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            assert!(refused.message().contains("must already have content"), "{refused}");
        }
        early.start().await.unwrap();
        early.end().await;
        driver.kill().await.unwrap();
    });
}

// spec: create-volume.from-snapshot, create-volume.from-volume
#[test]
fn copies_of_directories_hold_what_was_written() {
    in_private(async || {
        copies_hold_what_was_written(Run::on_tmpfs(64 << 30), &["--kind=directory"], "").await;
    });
}

/// A workload that writes a counter to a file in each volume in turn. At no moment is the second volume
/// ahead of the first.
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

// spec: concurrency.simultaneous-calls
#[test]
fn one_volume_in_use_is_copied_many_times_at_once() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let life = with_file(&run, "origin", "xfs").await;
        let target = life.target("one");
        // This makes a copy take a while.
        fs::write(target.join("large"), vec![7; 48 << 20]).unwrap();
        let mut calls = tokio::task::JoinSet::new();
        for at in 0..6 {
            let (client, id) = (run.client(), life.id.clone());
            calls.spawn(async move {
                let (name, source) = (format!("copy-{at}"), id.clone());
                match at % 3 {
                    0 => {
                        let request = v1::CreateVolumeRequest {
                            volume_content_source: of_volume(&id),
                            ..wanted(&name, Some("xfs"), 320 * MIB)
                        };
                        client.controller().create_volume(request).await.map(drop)
                    }
                    1 => {
                        let source_volume_id = source;
                        let request =
                            v1::CreateSnapshotRequest { source_volume_id, name, ..Default::default() };
                        client.controller().create_snapshot(request).await.map(drop)
                    }
                    _ => {
                        let source_volume_ids = vec![source];
                        let request = v1::CreateVolumeGroupSnapshotRequest {
                            source_volume_ids,
                            name,
                            ..Default::default()
                        };
                        client.group_controller().create_volume_group_snapshot(request).await.map(drop)
                    }
                }
            });
        }
        while let Some(done) = calls.join_next().await {
            done.unwrap().unwrap();
        }
        takes_writes(&target).await;
        let listed =
            run.client().controller().list_snapshots(v1::ListSnapshotsRequest::default()).await.unwrap();
        for entry in listed.into_inner().entries {
            let snapshot = entry.snapshot.unwrap().snapshot_id;
            let request = v1::CreateVolumeRequest {
                volume_content_source: of_snapshot(&snapshot),
                ..wanted(&snapshot, Some("xfs"), 320 * MIB)
            };
            assert_eq!(restored(&run, request).await.0, "origin");
        }
        // A foreign freeze can be thawed by its owner at any moment, so a snapshot is refused.
        let freeze = |how: &str| {
            assert!(std::process::Command::new("fsfreeze").arg(how).arg(&target).status().unwrap().success());
        };
        freeze("--freeze");
        let refused = life.snapshot("later").await.unwrap_err();
        freeze("--unfreeze");
        assert_eq!(refused.code(), Code::Internal, "{refused:?}");
        life.snapshot("later").await.unwrap();
        takes_writes(&target).await;
        life.end().await;
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

async fn takes_writes(target: &Path) {
    let file = target.join("written");
    let write = tokio::task::spawn_blocking(move || fs::write(file, "x"));
    tokio::time::timeout(Duration::from_secs(20), write).await.expect("it is thawed").unwrap().unwrap();
}

/// Allocates all free space of the disk.
fn fill(disk: &Path) {
    use nix::fcntl::{FallocateFlags, fallocate};
    let filler = fs::File::create(disk.join("filler")).unwrap();
    let (mut at, mut step) = (0, 64 << 20);
    while step >= 4096 {
        match fallocate(&filler, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    filler.sync_all().unwrap();
}

/// A write to a block that copies share needs a new block.
#[test]
fn a_thick_volume_takes_writes_when_the_disk_is_full() {
    in_private(async || {
        let run = Run::on_xfs(640 << 20);
        let mut driver = run.start(&[]).await;
        let thick = |name: &str| {
            let mut request = wanted(name, None, 32 * MIB);
            request.parameters.insert("provisioning".to_owned(), "thick".to_owned());
            request
        };
        let image = |id: &str| run.of("data").join("volumes").join(id).join("image");
        let write = |id: &str| {
            let mut file = fs::File::options().write(true).open(image(id)).unwrap();
            std::io::Write::write_all(&mut file, &vec![7; 32 << 20]).and_then(|()| file.sync_all())
        };
        let origin = Life::new(&run, thick("origin")).await.unwrap();
        write(&origin.id).unwrap();
        let snapshot = origin.snapshot("cut").await.unwrap();
        let clone = v1::CreateVolumeRequest {
            volume_content_source: of_volume(&origin.id),
            ..wanted("clone", None, 32 * MIB)
        };
        let clone = Life::new(&run, clone).await.unwrap();
        let restored =
            v1::CreateVolumeRequest { volume_content_source: of_snapshot(&snapshot), ..thick("restored") };
        let restored = Life::new(&run, restored).await.unwrap();
        let thin = v1::CreateVolumeRequest {
            volume_content_source: of_snapshot(&snapshot),
            ..wanted("thin", None, 32 * MIB)
        };
        let thin = Life::new(&run, thin).await.unwrap();
        fill(&run.of("data"));
        for life in [&origin, &restored] {
            write(&life.id).unwrap();
        }
        assert!(write(&thin.id).is_err(), "the disk is full");
        fs::remove_file(run.of("data").join("filler")).unwrap();
        for life in [origin, clone, restored, thin] {
            life.delete().await.unwrap();
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
            let Some(v1::volume_capability::AccessType::Mount(mount)) =
                &mut life.volume.capability.access_type
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
