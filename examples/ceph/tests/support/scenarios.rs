//! What is tested with a client of the driver.

use std::fmt::Debug;
use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use csi_conformance::Pairs;
use test_support::ceph::Daemon;
use test_support::driver;
use tonic::{Code, Status};

use super::*;

/// The test kit.
pub(crate) async fn conforms(bed: &Bed) {
    let user = |secrets: &BTreeMap<String, String>| {
        format!("userID={}\nuserKey={}\n", secrets["userID"], secrets["userKey"])
    };
    let provisioner = user(&bed.provisioner);
    let node = user(&bed.node);
    let text = format!("{provisioner}[NodeStageVolume]\n{node}[NodePublishVolume]\n{node}");
    let secrets = Pairs::parse(&text).unwrap();
    match bed.which {
        CephClient::Fuse => driver::conforms(&bed.directory, |kit| kit.secrets(secrets), 70).await,
        // The controller is slow in an emulated machine, and is the same with each client of CephFS.
        CephClient::Kernel | CephClient::Rbd => {
            driver::conforms(&bed.directory, |kit| kit.secrets(secrets).only("Node"), 20).await;
        }
    }
    let left = bed.ceph.command(&["config-key", "ls"]).unwrap();
    assert!(!left.contains("csi/"), "{left}");
    match bed.which {
        CephClient::Rbd => assert_eq!(bed.ceph.run("rbd", &["ls", IMAGES]).unwrap(), ""),
        CephClient::Fuse | CephClient::Kernel => {
            let list = ["fs", "subvolume", "ls", test_support::ceph::FILESYSTEM, "--group_name", "csi"];
            assert_eq!(bed.ceph.command(&list).unwrap(), "[]");
        }
    }
}

/// Sizes, growth, snapshots and clones.
pub(crate) async fn lives(bed: &Bed) {
    let volume = bed.create("v", 8 * MIB, None).await.unwrap();
    assert_eq!(bed.create("v", 8 * MIB, None).await.unwrap(), volume);
    let used = bed.used(&volume);
    for _ in 0..2 {
        used.bring().await;
    }
    bed.keys_are_nowhere();
    assert_eq!(used.stats().await.unwrap(), 8 * MIB);
    assert_eq!(used.health().await.unwrap(), [""; 0]);
    write(&used.target.join("file"), b"first").unwrap();
    let full = fill(&used.target.join("big"));
    println!("{:?} | over the quota | {full}", bed.which);
    assert!(full.contains("122"), "EDQUOT: {full}");
    assert_eq!(bed.expand("v", 64 * MIB).await.unwrap(), 64 * MIB);
    let end = Instant::now() + LIMIT;
    while used.stats().await.unwrap() != 64 * MIB {
        assert!(Instant::now() < end, "the new size is seen");
    }
    fs::remove_file(used.target.join("big")).unwrap();

    let snapshot = bed.snapshot("s", "v").await.unwrap();
    assert!(snapshot.ready_to_use && snapshot.size_bytes == 64 * MIB);
    write(&used.target.join("file"), b"second").unwrap();
    // Of the directory above, so its name has a number added.
    let names = fs::read_dir(used.target.join(".snap")).unwrap().map(|entry| entry.unwrap().path());
    let seen = names.last().unwrap();
    assert_eq!(fs::read(seen.join("file")).unwrap(), b"first", "{}", seen.display());

    let restored = bed.create("restored", 80 * MIB, of_snapshot("s")).await.unwrap();
    let copied = bed.create("copied", 64 * MIB, of_volume("v")).await.unwrap();
    used.take_away().await;
    // The snapshot does not need its volume.
    bed.delete("v").await.unwrap();
    let later = bed.create("later", 64 * MIB, of_snapshot("s")).await.unwrap();
    for (volume, content, size) in [(&restored, "first", 80), (&copied, "second", 64), (&later, "first", 64)]
    {
        let used = bed.used(volume);
        used.bring().await;
        assert_eq!(used.stats().await.unwrap(), size * MIB, "{}", volume.volume_id);
        assert_eq!(fs::read_to_string(used.target.join("file")).unwrap(), content, "{}", volume.volume_id);
        used.take_away().await;
        bed.delete(&volume.volume_id).await.unwrap();
    }
    for _ in 0..2 {
        bed.delete_snapshot("s").await.unwrap();
    }
    let left = bed.ceph.command(&["config-key", "ls"]).unwrap();
    assert!(!left.contains("csi/"), "{left}");
}

/// Images: sizes, growth, snapshots and copies, and a raw one.
pub(crate) async fn images_live(bed: &Bed) {
    let volume = bed.create("v", 64 * MIB, None).await.unwrap();
    assert_eq!(bed.create("v", 64 * MIB, None).await.unwrap(), volume);
    let used = bed.used(&volume);
    for _ in 0..2 {
        used.bring().await;
    }
    bed.keys_are_nowhere();
    let before = used.stats().await.unwrap();
    write(&used.target.join("file"), b"first").unwrap();
    // In use.
    assert_eq!(bed.delete("v").await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(bed.expand("v", 128 * MIB).await.unwrap(), 128 * MIB);
    used.expand(128 * MIB).await.unwrap();
    assert!(used.stats().await.unwrap() > before + 32 * MIB);

    let snapshot = bed.snapshot("s", "v").await.unwrap();
    assert!(snapshot.ready_to_use && snapshot.size_bytes == 128 * MIB);
    write(&used.target.join("file"), b"second").unwrap();
    let restored = bed.create("restored", 160 * MIB, of_snapshot("s")).await.unwrap();
    let copied = bed.create("copied", 128 * MIB, of_volume("v")).await.unwrap();
    // Beside the origin, which is still mounted.
    for (volume, content) in [(&restored, "first"), (&copied, "second")] {
        let used = bed.used(volume);
        used.bring().await;
        assert_eq!(fs::read_to_string(used.target.join("file")).unwrap(), content, "{}", volume.volume_id);
        used.take_away().await;
        bed.delete(&volume.volume_id).await.unwrap();
    }
    used.take_away().await;
    // An image shares its data with its snapshots.
    assert_eq!(bed.delete("v").await.unwrap_err().code(), Code::FailedPrecondition);
    for _ in 0..2 {
        bed.delete_snapshot("s").await.unwrap();
    }
    bed.delete("v").await.unwrap();

    let volume = bed.create("raw", 64 * MIB, None).await.unwrap();
    let used = bed.used_as(&volume, v1::VolumeCapability::block(Mode::SingleNodeWriter));
    for content in [b"one", b"two"] {
        used.bring().await;
        let disk = File::options().write(true).open(&used.target).unwrap();
        disk.write_all_at(content, 63 * MIB as u64).unwrap();
        drop(disk);
        used.unpublish_at(&used.target).await.unwrap();
        used.unstage().await.unwrap();
        used.bring().await;
        let mut found = [0; 3];
        File::open(&used.target).unwrap().read_exact_at(&mut found, 63 * MIB as u64).unwrap();
        assert_eq!(&found, content);
        used.unpublish_at(&used.target).await.unwrap();
        used.unstage().await.unwrap();
    }
    bed.delete("raw").await.unwrap();
    let left = bed.ceph.command(&["config-key", "ls"]).unwrap();
    assert!(!left.contains("csi/"), "{left}");
    assert_eq!(bed.ceph.run("rbd", &["ls", IMAGES]).unwrap(), "");
}

/// A wrong key, a user without rights, no such directory, no monitor.
pub(crate) async fn refuses(bed: &Bed) {
    let volume = bed.create("v", 8 * MIB, None).await.unwrap();
    let mut used = bed.used(&volume);
    let wrong = "AQBgmRxlAAAAABAAHf1YsTmDP7P5Q7kKzuxq9A==";
    for (user, key, path, part) in [
        (NODE, wrong, None, ""),
        (PROVISIONER, &*bed.ceph.key(PROVISIONER), None, ""),
        (NODE, &bed.ceph.key(NODE), Some("/volumes/csi/nothing"), ""),
        (NODE, &bed.ceph.key(NODE), Some("/elsewhere"), ""),
    ] {
        used.secrets = secrets(user, key);
        used.volume.volume_context = volume.volume_context.clone();
        if let Some(path) = path {
            used.volume.volume_context.insert("path".to_owned(), path.to_owned());
        }
        let begun = Instant::now();
        let error = used.stage().await.unwrap_err();
        let case = format!("{user}, {}, {path:?}", if key == wrong { "wrong key" } else { "right key" });
        println!(
            "{:?} | {case} | {:?} {:.1?}: {}",
            bed.which,
            error.code(),
            begun.elapsed(),
            error.message()
        );
        assert!(error.message().contains(part) && !format!("{error:?}").contains(key), "{case}: {error}");
        // Only the kernel's client is told that a key is wrong.
        let is_told = bed.which == CephClient::Kernel && key == wrong;
        assert!(!is_told || error.code() == Code::Unauthenticated, "{error}");
    }
    let mut request = v1::DeleteVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    for (secrets, code) in [
        // With the first version of the protocol a wrong key is not answered.
        (secrets(PROVISIONER, wrong), Code::Unavailable),
        (secrets(NODE, &bed.ceph.key(NODE)), Code::PermissionDenied),
        (map(&[]), Code::Unauthenticated),
    ] {
        request.secrets = secrets;
        let error = bed.client.call(request.clone()).await.unwrap_err();
        println!("delete | {:?}: {}", error.code(), error.message());
        assert!(error.code() == code && !format!("{error:?}").contains(wrong), "{error}");
    }
    bed.ceph.kill(Daemon::Monitor);
    used.secrets = bed.node.clone();
    used.volume.volume_context = volume.volume_context.clone();
    let begun = Instant::now();
    let staged = used.stage().await.unwrap_err();
    println!(
        "{:?} | no monitor | {:?} {:.1?}: {}",
        bed.which,
        staged.code(),
        begun.elapsed(),
        staged.message()
    );
    let begun = Instant::now();
    let deleted = bed.delete("v").await.unwrap_err();
    println!("delete | no monitor | {:?} {:.1?}: {}", deleted.code(), begun.elapsed(), deleted.message());
    assert_eq!(deleted.code(), Code::Unavailable);
    bed.ceph.start_again(Daemon::Monitor);
    bed.delete("v").await.unwrap();
}

/// A daemon of the cluster is stopped or killed under a volume that is in use. Every step ends. Then the daemon
/// comes back, and the volume is used again.
pub(crate) async fn outlives(bed: &Bed, daemon: Daemon, is_killed: bool) {
    let volume = bed.create("v", 64 * MIB, None).await.unwrap();
    let other = bed.create("w", 8 * MIB, None).await.unwrap();
    let used = bed.used(&volume);
    let other = bed.used(&other);
    used.bring().await;
    write(&used.target.join("file"), b"file").unwrap();
    let second = bed.directory.join("target-second");
    if is_killed {
        bed.ceph.kill(daemon);
    } else {
        bed.ceph.stop(daemon);
    }
    let target = used.target.clone();
    let workload = std::thread::spawn(move || {
        let begun = Instant::now();
        (write(&target.join("new"), b"new"), begun.elapsed())
    });
    let mut rows = vec![
        ("stats", bounded(used.stats()).await),
        ("health", bounded(used.health()).await),
        ("publish again", bounded(used.publish_at(&second)).await),
        ("unpublish it", bounded(used.unpublish_at(&second)).await),
        ("stage again", bounded(used.stage()).await),
        ("stage another", bounded(other.stage()).await),
        ("unstage another", bounded(other.unstage()).await),
        ("unpublish", bounded(used.unpublish_at(&used.target)).await),
        ("unstage", bounded(used.unstage()).await),
    ];
    if is_killed {
        bed.ceph.start_again(daemon);
    } else {
        bed.ceph.go_on(daemon);
    }
    let (written, took) = workload.join().unwrap();
    rows.push(("its workload", format!("{} after {took:.1?}", said(&written))));
    let how = if is_killed { "killed" } else { "stopped" };
    rows.iter().for_each(|(what, found)| println!("{:?} | {daemon:?} {how} | {what} | {found}", bed.which));
    // What was refused while the workload used it is done now.
    for volume in [&used, &other] {
        volume.take_away().await;
    }
    bed.nothing_is_left();
    fs::create_dir(&used.staging).unwrap();
    // A metadata server that was killed waits for its earlier clients before it takes new ones.
    let begun = Instant::now();
    while let Err(error) = used.stage().await {
        assert!(begun.elapsed() < LIMIT, "{error}");
    }
    println!("{:?} | {daemon:?} {how} | staged after its return | ok {:.1?}", bed.which, begun.elapsed());
    used.bring().await;
    assert_eq!(fs::read(used.target.join("file")).unwrap(), b"file");
    used.take_away().await;
    // The manager has lost its own session with the metadata server, perhaps: the caller repeats the call.
    let begun = Instant::now();
    for id in ["v", "w"] {
        while let Err(error) = bed.delete(id).await {
            assert!(error.code() == Code::Unavailable && begun.elapsed() < LIMIT, "{error}");
        }
    }
    println!("{:?} | {daemon:?} {how} | deleted | ok {:.1?}", bed.which, begun.elapsed());
}

/// Does a step, and says how and when it ended.
async fn bounded<T: Debug>(step: impl Future<Output = Result<T, Status>>) -> String {
    let begun = Instant::now();
    let said = match step.await {
        Ok(value) => format!("ok {value:?}").replace(" ()", ""),
        Err(status) if matches!(status.code(), Code::Unknown | Code::Unimplemented) => panic!("{status}"),
        Err(status) => format!("{:?}", status.code()),
    };
    assert!(begun.elapsed() < LIMIT, "{said}");
    format!("{said} {:.1?}", begun.elapsed())
}

fn said<T>(result: &io::Result<T>) -> String {
    result.as_ref().err().map_or("ok".to_owned(), io::Error::to_string)
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Writes until it fails, and returns the error. The client checks the quota when it opens a file and as it
/// writes, so it can be late.
fn fill(path: &Path) -> String {
    let mut file = File::options().create_new(true).write(true).open(path).unwrap();
    for _ in 0..64 {
        if let Err(error) = file.write_all(&[1; MIB as usize]).and_then(|()| file.sync_all()) {
            return error.to_string();
        }
    }
    "no error".to_owned()
}
