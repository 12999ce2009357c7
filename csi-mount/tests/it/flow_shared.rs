//! Shared filesystems: mounted once, bound for each workload, and released whatever their server does. Tmpfs
//! and ext4 stand for the share of a server. FUSE daemons that hang or are gone stand for the server.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use csi_mount::internal::flow::shared::{SharedSource, publish, publish_directly, stage, unpublish, unstage};
use csi_mount::internal::{STATS_TIME_LIMIT, health, mount_state, stats};
use csi_mount::{
    ErrorKind, MountAttributes, MountHealth, MountOptions, MountState, Outcome, Removed, Target, Unmounted,
};

use crate::devices::{Image, refused, run};
use crate::fuse_support::{SilentDaemon, answer_init, bounded, fuse};
use crate::mount_support::{layers, mount_count, sandbox};

const PATIENT: Duration = Duration::from_secs(40);

fn target(place: &Path, name: &str) -> Target {
    Target::new(place.join(name)).unwrap()
}

/// Stages, publishes twice and undoes everything, for one kind of source.
fn round(place: &Path, source: &SharedSource) {
    let before = mount_count();
    let staging = target(place, "staging");
    let rw = target(place, "rw");
    let ro = target(place, "ro");
    assert_eq!(stage(&staging, source).unwrap(), Outcome::Mounted);
    assert_eq!(stage(&staging, source).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(publish(staging.path(), &rw, MountAttributes::empty()).unwrap(), Outcome::Mounted);
    assert_eq!(publish(staging.path(), &rw, MountAttributes::empty()).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(publish(staging.path(), &ro, MountAttributes::RDONLY).unwrap(), Outcome::Mounted);
    refused(publish(staging.path(), &ro, MountAttributes::empty()), ErrorKind::AlreadyMounted);
    assert_eq!(mount_count(), before + 3);

    fs::write(rw.path().join("file"), "shared").unwrap();
    assert_eq!(fs::read_to_string(ro.path().join("file")).unwrap(), "shared");
    let refused = fs::write(ro.path().join("file"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(stats(ro.path()).unwrap().bytes.total > 0);

    for target in [&rw, &ro] {
        assert_eq!(unpublish(target).unwrap(), Removed::Removed);
        assert_eq!(unpublish(target).unwrap(), Removed::WasAbsent);
    }
    assert_eq!(unstage(&staging).unwrap(), Unmounted::Unmounted { layers: 1 });
    assert_eq!(unstage(&staging).unwrap(), Unmounted::NotMounted);
    assert_eq!((staging.path().exists(), mount_count()), (true, before));
}

#[test]
fn tmpfs_passes_all_steps() {
    sandbox(|place| round(place, &SharedSource::new("tmpfs", "server:/export/")));
}

#[test]
fn a_filesystem_on_a_device_passes_all_steps() {
    let image = Image::new(32);
    run("mkfs.ext4", &["-q", image.path().to_str().unwrap()]);
    let source = SharedSource::new("ext4", image.path().to_str().unwrap());
    sandbox(|place| round(place, &source));
}

#[test]
fn one_volume_is_mounted_at_many_targets_at_once() {
    sandbox(|place| {
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    let source = SharedSource::new("tmpfs", "server:/at-once");
                    let target = target(place, &format!("pod-{number}"));
                    publish_directly(&target, &source, MountAttributes::empty()).unwrap();
                });
            }
        });
        let mounts = csi_mount::mounts().unwrap();
        assert_eq!(mounts.iter().filter(|entry| entry.source == "server:/at-once").count(), 8);
    });
}

#[test]
fn only_the_same_source_counts_as_staged() {
    sandbox(|place| {
        let staging = target(place, "staging");
        stage(&staging, &SharedSource::new("tmpfs", "server:/one")).unwrap();
        let noexec = MountOptions::parse(["noexec"]).unwrap();
        for other in [
            SharedSource::new("tmpfs", "server:/two"),
            SharedSource::new("ramfs", "server:/one"),
            SharedSource::new("tmpfs", "server:/one").options(noexec),
        ] {
            assert_eq!(stage(&staging, &other).unwrap_err().kind(), ErrorKind::AlreadyMounted, "{other:?}");
        }
        assert_eq!(layers(staging.path()), 1);
    });
}

#[test]
fn a_failed_mount_leaves_nothing_and_shows_no_secret() {
    sandbox(|place| {
        let staging = target(place, "staging");
        let options = MountOptions::parse(["password=hunter2"]).unwrap();
        let source = SharedSource::new("tmpfs", "server:/export").options(options);
        let error = stage(&staging, &source).unwrap_err();
        assert!(!format!("{error:?} {source:?}").contains("hunter2"), "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!staging.path().exists());
        refused(stage(&staging, &SharedSource::new("no-such-fs", "server:/export")), ErrorKind::Unsupported);
        // Its server could hang, so it is not mounted again without the options: the kernel named the wrong one.
        let options = MountOptions::parse(["nonesuch"]).unwrap();
        refused(
            stage(&staging, &SharedSource::new("fuse", "server").options(options)),
            ErrorKind::InvalidOption,
        );
    });
}

/// Returns a source whose server is the given FUSE device.
fn served_by(device: &fs::File) -> SharedSource {
    let options = MountOptions::parse(["rootmode=40000", "user_id=0", "group_id=0"]).unwrap();
    let options = options.with_option("fd", &device.as_raw_fd().to_string()).unwrap();
    SharedSource::new("fuse", "silent").options(options)
}

#[test]
fn a_server_that_is_gone_is_found_and_its_mounts_are_replaced() {
    sandbox(|place| {
        let staging = target(place, "staging");
        let one = target(place, "one");
        staging.create_dir().unwrap();
        let server = fuse(&staging);
        answer_init(&server);
        one.create_dir().unwrap();
        csi_mount::Bind::new(staging.path()).at(&one).unwrap();
        drop(server);
        assert!(matches!(health(staging.path()).unwrap(), MountHealth::Dead(_)));
        let lost = mount_state(staging.path()).unwrap();

        let error = refused(
            bounded(PATIENT, || publish(staging.path(), &one, MountAttributes::empty())),
            ErrorKind::Unresponsive,
        );
        assert!(error.to_string().contains("unstage it and stage it again"), "{error}");

        let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        assert_eq!(bounded(PATIENT, || stage(&staging, &served_by(&server))).unwrap(), Outcome::Mounted);
        assert_ne!(mount_state(staging.path()).unwrap(), lost);
        assert_eq!(layers(staging.path()), 1);
        drop(server);
        assert!(bounded(PATIENT, || unpublish(&one)).is_ok());
        bounded(PATIENT, || unstage(&staging)).unwrap();
        assert_eq!((layers(staging.path()), one.path().exists()), (0, false));
    });
}

#[test]
fn a_target_of_a_lost_mount_is_bound_again() {
    sandbox(|place| {
        let staging = target(place, "staging");
        let one = target(place, "one");
        one.create_dir().unwrap();
        let server = fuse(&one);
        answer_init(&server);
        drop(server);
        stage(&staging, &SharedSource::new("tmpfs", "server:/export")).unwrap();
        let published = bounded(PATIENT, || publish(staging.path(), &one, MountAttributes::empty()));
        assert_eq!(published.unwrap(), Outcome::Mounted);
        assert_eq!((layers(one.path()), health(one.path()).unwrap()), (1, MountHealth::Healthy));
    });
}

#[test]
fn a_server_that_hangs_is_queried_once() {
    sandbox(|place| {
        let staging = target(place, "staging");
        staging.create_dir().unwrap();
        let device = fuse(&staging);
        answer_init(&device);
        let source = SharedSource::new("fuse", "silent");
        refused(bounded(2 * STATS_TIME_LIMIT, || stage(&staging, &source)), ErrorKind::Unresponsive);
        drop(device);
        unstage(&staging).unwrap();
    });
}

#[test]
fn a_server_that_hangs_delays_no_step() {
    sandbox(|place| {
        let staging = target(place, "staging");
        let one = target(place, "one");
        for target in [&staging, &one] {
            target.create_dir().unwrap();
        }
        let daemon = SilentDaemon::mount(&staging);
        let other = SilentDaemon::mount(&one);
        refused(
            bounded(PATIENT, || publish(staging.path(), &one, MountAttributes::empty())),
            ErrorKind::Unresponsive,
        );
        assert!(
            matches!(mount_state(one.path()).unwrap(), MountState::Mounted(_)),
            "it may be back any moment"
        );
        refused(
            bounded(PATIENT, || stage(&staging, &SharedSource::new("fuse", "silent"))),
            ErrorKind::Unresponsive,
        );
        assert_eq!(bounded(PATIENT, || stats(staging.path())).unwrap_err().kind(), ErrorKind::Unresponsive);
        assert_eq!(bounded(PATIENT, || unpublish(&one)).unwrap(), Removed::Removed);
        bounded(PATIENT, || unstage(&staging)).unwrap();
        assert_eq!(layers(staging.path()), 0);
        daemon.taken();
        other.taken();
    });
}
