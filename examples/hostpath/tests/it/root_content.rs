//! The content of a volume: copied by snapshots, clones and groups, also while it is in use; kept when the
//! volume grows. Needs root.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use csi_proto::v1;
use tonic::Code;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private, takes_writes, with_driver, with_driver_on};

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
    let bytes = csi_mount::Host::kernel().mounts().stats(&target).unwrap().bytes.total;
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
    let from_snapshot = copy(of_snapshot(&snapshot), wanted("restored", Some(filesystem), 320 * MIB));
    assert_eq!(restored(&run, from_snapshot.clone()).await.0, "origin");
    let clone = copy(of_volume(&life.id), wanted("clone", Some(filesystem), 480 * MIB));
    let (words, bytes) = restored(&run, clone).await;
    assert_eq!(words, "changed");
    assert!(filesystem.is_empty() || bytes > 400 * MIB, "it is as large as was asked for: {bytes}");
    fs::write(target.join("file"), "the origin still takes writes").unwrap();

    let small = v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange { required_bytes: 0, limit_bytes: MIB as i64 }),
        name: "small".to_owned(),
        ..from_snapshot.clone()
    };
    let refused = run.call(small).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    // The snapshot outlives its volume and the driver process.
    life.end().await;
    driver.restart().await;
    assert_eq!(restored(&run, from_snapshot).await.0, "origin");
    run.assert_clean();
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
    let image = fs::File::options().write(true).open(run.stored("volumes", id, "image")).unwrap();
    let size = image.metadata().unwrap().len();
    image.set_len(0).unwrap();
    image.set_len(size).unwrap();
}

/// The same holds for its clone and for a volume from its snapshot. A clone from before the first stage
/// is formatted.
// spec: create-volume.source-not-supported, validate-volume-capabilities.all-or-none
#[test]
fn a_copy_is_created_only_for_the_filesystem_that_its_source_holds() {
    with_driver(&[], async |run, _driver| {
        let client = run.client();
        for held in ["ext4", "xfs", "btrfs", "data"] {
            let filesystem = (held != "data").then_some(held);
            let mut origin = Life::new(run, wanted(held, filesystem, 320 * MIB)).await.unwrap();
            let target = origin.start().await.unwrap();
            match filesystem {
                Some(_) => fs::write(target.join("file"), held).unwrap(),
                None => {
                    let mut device = fs::File::options().write(true).open(&target).unwrap();
                    device.write_all(&[7; 4096]).unwrap();
                    device.sync_all().unwrap();
                }
            }
            let snapshot = origin.snapshot(&format!("of-{held}")).await.unwrap();
            for (nth, source) in [of_volume(&origin.id), of_snapshot(&snapshot)].into_iter().enumerate() {
                for asked in [Some(""), Some("ext4"), Some("xfs"), Some("btrfs"), None] {
                    let name = format!("{held}-{nth}-{asked:?}");
                    let request = copy(source.clone(), wanted(&name, asked, 320 * MIB));
                    let means = asked.map(|asked| if asked.is_empty() { "ext4" } else { asked });
                    if means.is_none_or(|means| means == held) {
                        let mut copy = Life::new(run, request).await.unwrap();
                        let target = copy.start().await.unwrap();
                        assert!(asked.is_none() || fs::read_to_string(target.join("file")).unwrap() == held);
                        copy.end().await;
                        continue;
                    }
                    let refused = Life::new(run, request).await.map(drop).unwrap_err();
                    assert_eq!(refused.code(), Code::InvalidArgument, "{name}: {refused}");
                    let field = if held == "data" {
                        "volume_content_source"
                    } else {
                        "volume_capabilities[0].mount.fs_type"
                    };
                    assert!(refused.message().starts_with(field), "{name}: {refused}");
                }
            }
            // The volume is confirmed for its own filesystem, and for a caller that names none.
            for asked in ["", "ext4", "xfs", "btrfs"] {
                let request = v1::ValidateVolumeCapabilitiesRequest {
                    volume_id: origin.id.clone(),
                    volume_capabilities: wanted("", Some(asked), 0).volume_capabilities,
                    ..Default::default()
                };
                let answer = client.call(request).await.unwrap();
                let is_confirmed = answer.confirmed.is_some();
                let is_due = held == "data" || asked.is_empty() || asked == held;
                assert_eq!(is_confirmed, is_due, "{held} as {asked:?}: {}", answer.message);
            }
            origin.end().await;
        }
        assert!(volumes(&client).await.is_empty(), "a refused copy leaves nothing");
    });
}

#[test]
fn an_image_that_was_staged_is_never_formatted_again() {
    with_driver(&[], async |run, _driver| {
        let wanted = |name: &str| wanted(name, Some("ext4"), 64 * MIB);
        let mut origin = Life::new(run, wanted("origin")).await.unwrap();
        let mut early = Life::new(run, copy(of_volume(&origin.id), wanted("early"))).await.unwrap();
        origin.start().await.unwrap();
        origin.stop().await.unwrap();
        let snapshot = origin.snapshot("cut").await.unwrap();
        let late = Life::new(run, copy(of_volume(&origin.id), wanted("late"))).await.unwrap();
        let cut = Life::new(run, copy(of_snapshot(&snapshot), wanted("of cut"))).await.unwrap();
        for mut life in [origin, late, cut] {
            lose_content(run, &life.id);
            life.attach("node-1").await.unwrap();
            let refused = life.stage().await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            assert!(refused.message().contains("must already have content"), "{refused}");
            life.unstage().await.unwrap();
        }
        early.start().await.unwrap();
        early.end().await;
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
    with_driver(&[], async |run, _driver| {
        let first = with_file(run, "1", "xfs").await;
        let second = with_file(run, "2", "xfs").await;
        for life in [&first, &second] {
            fs::write(life.target("one").join("file"), "0").unwrap();
        }
        let targets = vec![first.target("one"), second.target("one")];
        let stop = Arc::new(AtomicBool::new(false));
        let counted = Arc::new(AtomicU64::new(0));
        let writer = std::thread::spawn({
            let stop = Arc::clone(&stop);
            let counted = Arc::clone(&counted);
            move || count(&targets, &stop, &counted)
        });
        let mut groups = Vec::new();
        for round in 0..5 {
            let before = counted.load(Ordering::Relaxed);
            while counted.load(Ordering::Relaxed) < before + 3 {
                tokio::task::yield_now().await;
            }
            let request = group(format!("group-{round}"), &[&second.id, &first.id]);
            groups.push(run.call(request).await.unwrap().group_snapshot.unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        for (round, group) in groups.iter().enumerate() {
            let mut read = Vec::new();
            for (at, life) in [&first, &second].into_iter().enumerate() {
                let member = group.snapshots.iter().find(|one| one.source_volume_id == life.id).unwrap();
                let wanted = wanted(&format!("restored-{round}-{at}"), Some("xfs"), 320 * MIB);
                let request = copy(of_snapshot(&member.snapshot_id), wanted);
                read.push(restored(run, request).await.0.parse::<u64>().unwrap());
            }
            let [first, second] = read[..] else { unreachable!() };
            assert!(second <= first && first <= second + 1, "group {round}: {first} and {second}");
        }
        for life in [first, second] {
            life.end().await;
        }
    });
}

// spec: create-volume-group-snapshot.not-together, create-volume-group-snapshot.failure-leaves-nothing
#[test]
fn what_can_not_be_cut_together_is_not() {
    with_driver(&[], async |run, _driver| {
        let mut raw = Life::new(run, wanted("raw", None, MIB)).await.unwrap();
        let idle = Life::new(run, wanted("idle", None, MIB)).await.unwrap();
        raw.start().await.unwrap();
        let refused = run.call(group("group", &[&idle.id, &raw.id])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        assert!(snapshots(&run.client()).await.is_empty(), "nothing of the group is left");
        raw.end().await;
    });
}

// spec: concurrency.simultaneous-calls
#[test]
fn one_volume_in_use_is_copied_many_times_at_once() {
    with_driver(&[], async |run, _driver| {
        let life = with_file(run, "origin", "xfs").await;
        let target = life.target("one");
        // This makes a copy take a while.
        fs::write(target.join("large"), vec![7; 48 << 20]).unwrap();
        let mut calls = tokio::task::JoinSet::new();
        for at in 0..6 {
            let client = run.client();
            let volume = life.volume.clone();
            calls.spawn(async move {
                let name = format!("copy-{at}");
                match at % 3 {
                    0 => {
                        let request =
                            copy(of_volume(&volume.volume_id), wanted(&name, Some("xfs"), 320 * MIB));
                        client.call(request).await.map(drop)
                    }
                    1 => client.call(volume.create_snapshot(name)).await.map(drop),
                    _ => client.call(group(name, &[&volume.volume_id])).await.map(drop),
                }
            });
        }
        while let Some(done) = calls.join_next().await {
            done.unwrap().unwrap();
        }
        takes_writes(&target).await;
        for snapshot in snapshots(&run.client()).await {
            let request = copy(of_snapshot(&snapshot), wanted(&snapshot, Some("xfs"), 320 * MIB));
            assert_eq!(restored(run, request).await.0, "origin");
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
    });
}

/// Allocates all free space of the disk.
fn fill(disk: &Path) {
    use nix::fcntl::{FallocateFlags, fallocate};
    let filler = fs::File::create(disk.join("filler")).unwrap();
    let mut at = 0;
    let mut step = 64 << 20;
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
    with_driver_on(
        || Run::on_xfs(640 << 20),
        &[],
        async |run, _driver| {
            let thick = |name: &str| {
                let mut request = wanted(name, None, 32 * MIB);
                request.parameters.insert("provisioning".to_owned(), "thick".to_owned());
                request
            };
            let write = |id: &str| {
                let image = run.stored("volumes", id, "image");
                let mut file = fs::File::options().write(true).open(image).unwrap();
                std::io::Write::write_all(&mut file, &vec![7; 32 << 20]).and_then(|()| file.sync_all())
            };
            let origin = Life::new(run, thick("origin")).await.unwrap();
            write(&origin.id).unwrap();
            let snapshot = origin.snapshot("cut").await.unwrap();
            let clone = copy(of_volume(&origin.id), wanted("clone", None, 32 * MIB));
            let clone = Life::new(run, clone).await.unwrap();
            let restored = Life::new(run, copy(of_snapshot(&snapshot), thick("restored"))).await.unwrap();
            let thin = copy(of_snapshot(&snapshot), wanted("thin", None, 32 * MIB));
            let thin = Life::new(run, thin).await.unwrap();
            fill(&run.of("data"));
            for life in [&origin, &restored] {
                write(&life.id).unwrap();
            }
            assert!(write(&thin.id).is_err(), "the disk is full");
            fs::remove_file(run.of("data").join("filler")).unwrap();
            for life in [origin, clone, restored, thin] {
                life.delete().await.unwrap();
            }
        },
    );
}

// spec: node.mount-group
#[test]
fn a_group_has_the_files_of_a_volume() {
    with_driver(&[], async |run, _driver| {
        for filesystem in ["xfs", ""] {
            let mut request = wanted("shared", Some(filesystem), 320 * MIB);
            if filesystem.is_empty() {
                request.parameters.insert("kind".to_owned(), "directory".to_owned());
            }
            let mut life = Life::new(run, request).await.unwrap();
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
    });
}
