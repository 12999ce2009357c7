//! The filesystems of servers and daemons.

use std::time::Duration;

use csi_mount::{
    ErrorKind, MountAttributes, MountHealth, MountState, Outcome, OwnedPath, Removed, Unmounted,
};

use super::{Bench, RO, RW, errno, kind};

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn shares(bench: &dyn Bench) {
    let host = bench.host();
    let steps = host.shared();
    let share = bench.share("export");
    let other = bench.share("other");
    bench.create_dir(&bench.path("share"));
    let staging = bench.place("share", "v");
    let target = bench.place("share-target", "v");
    let publish = |at: &OwnedPath, attributes| steps.publish(staging.path(), at, attributes);
    assert_eq!(kind(publish(&target, RW)), ErrorKind::NotFound, "nothing is staged");
    assert!(!bench.exists(target.path()));
    let elsewhere = bench.place("missing/share", "v");
    assert_eq!(kind(steps.stage(&elsewhere, &share)), ErrorKind::NotFound, "its parent does not exist");

    assert_eq!(steps.stage(&staging, &share).unwrap(), Outcome::Mounted);
    assert_eq!(steps.stage(&staging, &share).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(steps.stage(&staging, &other)), ErrorKind::AlreadyMounted, "another share");
    let stolen = bench.place("share", "w");
    assert_eq!(kind(steps.stage(&stolen, &share)), ErrorKind::AlreadyMounted, "another volume");
    assert_eq!(kind(steps.unstage(&stolen, LIMIT)), ErrorKind::NotOwned);
    assert_eq!(host.mounts().health(staging.path()).unwrap(), MountHealth::Healthy);
    assert!(host.mounts().stats(staging.path()).unwrap().bytes.total > 0);

    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&target, RO)), ErrorKind::AlreadyMounted);
    let reader = bench.place("share-reader", "v");
    publish(&reader, RO).unwrap();
    bench.write(&bench.path("share-target/file"), b"shared").unwrap();
    assert_eq!(bench.read(&bench.path("share-reader/file")).unwrap(), b"shared");
    assert_eq!(errno(bench.write(&bench.path("share-reader/file"), b"x")), nix::libc::EROFS);

    let busy = bench.hold(&bench.path("share-target"));
    assert_eq!(kind(steps.unpublish(&target, LIMIT)), ErrorKind::Busy);
    drop(busy);
    for place in [&target, &reader] {
        assert_eq!(steps.unpublish(place, LIMIT).unwrap(), Removed::Removed);
        assert_eq!(steps.unpublish(place, LIMIT).unwrap(), Removed::WasAbsent);
    }
    assert_eq!(steps.unstage(&staging, LIMIT).unwrap(), Unmounted::Unmounted { layers: 1 });
    assert_eq!(steps.unstage(&staging, LIMIT).unwrap(), Unmounted::NotMounted);
    assert!(bench.exists(staging.path()), "the staging directory is the orchestrator's");

    // Without staging, and with the files that the server has kept.
    assert_eq!(steps.publish_directly(&target, &share, RO).unwrap(), Outcome::Mounted);
    assert_eq!(steps.publish_directly(&target, &share, RO).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(steps.publish_directly(&target, &share, RW)), ErrorKind::AlreadyMounted);
    assert_eq!(bench.read(&bench.path("share-target/file")).unwrap(), b"shared");
    assert_eq!(errno(bench.write(&bench.path("share-target/file"), b"x")), nix::libc::EROFS);
    assert_eq!(steps.unpublish(&target, LIMIT).unwrap(), Removed::Removed);
}

pub(super) fn daemons(bench: &dyn Bench) {
    let host = bench.host();
    let steps = host.fuse();
    bench.create_dir(&bench.path("fuse"));
    let staging = bench.place("fuse", "v");
    let target = bench.place("fuse-target", "v");
    let reader = bench.place("fuse-reader", "v");
    let daemon = || bench.daemon(staging.path());
    let publish = |at: &OwnedPath, attributes| steps.publish(staging.path(), at, attributes);
    assert_eq!(kind(publish(&target, RW)), ErrorKind::NotFound, "nothing is staged");
    assert_eq!(steps.identity(staging.path()), None);

    let served = daemon().identity("v 1");
    assert_eq!(steps.stage(&staging, &served).unwrap(), Outcome::Mounted);
    assert_eq!(steps.stage(&staging, &served).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(steps.identity(staging.path()).unwrap(), "v 1");
    assert_eq!(kind(steps.stage(&staging, &daemon().identity("v 2"))), ErrorKind::AlreadyMounted);
    assert_eq!(kind(steps.stage(&bench.place("fuse", "w"), &served)), ErrorKind::AlreadyMounted);
    assert_eq!(kind(steps.unstage(&bench.place("fuse", "w"), LIMIT)), ErrorKind::NotOwned);
    assert_eq!(host.mounts().health(staging.path()).unwrap(), MountHealth::Healthy);
    assert!(!host.mounts().has_lost_daemon(staging.path()).unwrap());

    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&target, RO)), ErrorKind::AlreadyMounted);
    publish(&reader, RO).unwrap();
    let table = host.mounts().table().unwrap();
    for (place, is_read_only) in [(&staging, false), (&target, false), (&reader, true)] {
        let entry = table.iter().find(|entry| entry.mount_point == *place.path()).unwrap();
        assert_eq!(entry.fs_type, "fuse");
        assert_eq!(entry.attributes.contains(MountAttributes::RDONLY), is_read_only, "{entry:?}");
    }

    assert_eq!(kind(steps.unstage(&staging, LIMIT)), ErrorKind::Busy, "it is published");
    assert_eq!(host.mounts().health(target.path()).unwrap(), MountHealth::Healthy, "nothing was done");
    bench.kill_daemon(staging.path());
    assert!(host.mounts().has_lost_daemon(staging.path()).unwrap());
    let dead = MountHealth::Dead(nix::libc::ENOTCONN);
    assert_eq!(host.mounts().health(target.path()).unwrap(), dead);
    assert_eq!(kind(publish(&target, RW)), ErrorKind::Unresponsive, "it is to be staged again");
    assert_eq!(steps.stage(&staging, &served).unwrap(), Outcome::Mounted);
    assert_eq!(host.mounts().health(target.path()).unwrap(), dead, "a stage binds no target");
    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(host.mounts().health(target.path()).unwrap(), MountHealth::Healthy);

    for place in [&target, &reader] {
        assert_eq!(steps.unpublish(place).unwrap(), Removed::Removed);
        assert_eq!(steps.unpublish(place).unwrap(), Removed::WasAbsent);
    }
    assert_eq!(steps.unstage(&staging, LIMIT).unwrap(), Unmounted::Unmounted { layers: 1 });
    assert_eq!(steps.unstage(&staging, LIMIT).unwrap(), Unmounted::NotMounted);
    assert_eq!(steps.identity(staging.path()), None);
    assert!(bench.exists(staging.path()));
}

pub(super) fn daemons_that_hang(bench: &dyn Bench) {
    let host = bench.host();
    let steps = host.fuse();
    let staging = bench.place("fuse", "v");
    let target = bench.place("fuse-target", "v");
    let served = bench.daemon(staging.path()).identity("v 1");
    let other = bench.place("fuse-reader", "v");
    let publish = |at| steps.publish(staging.path(), at, RW);
    steps.stage(&staging, &served).unwrap();
    publish(&target).unwrap();
    bench.stop_daemon(staging.path());
    assert_eq!(kind(publish(&other)), ErrorKind::Unresponsive);
    assert!(!bench.exists(other.path()));
    assert!(!host.mounts().has_lost_daemon(staging.path()).unwrap(), "it can answer again");
    assert_eq!(steps.unpublish(&target).unwrap(), Removed::Removed);
    steps.unstage(&staging, LIMIT).unwrap();
    assert_eq!(host.mounts().state(target.path()).unwrap(), MountState::Absent);
}
