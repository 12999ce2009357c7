//! What every host answers: the same steps on the kernel and on a simulated node.

mod served;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_mount::flow::block::{FilesystemOrigin, MountCopies, StagePlan, VolumeUsage};
use csi_mount::flow::ephemeral::{Change, Content, EphemeralPlan};
use csi_mount::flow::fuse::FuseDaemon;
use csi_mount::flow::shared::SharedSource;
use csi_mount::{
    DeviceAccess, ErrorKind, Evidence, ExpectedDevice, Filesystem, Grown, Host, IdMap, LoopOptions,
    MountAttributes, MountHealth, MountState, Outcome, OwnedPath, Owner, Removed, Rescan, Unmounted,
};

const MIB: u64 = 1 << 20;
const RW: MountAttributes = MountAttributes::empty();
const RO: MountAttributes = MountAttributes::RDONLY;

/// An open file.
pub(crate) trait Held {}

/// A host, and what a workload and the orchestrator do on it.
pub(crate) trait Bench {
    fn host(&self) -> Host;
    /// A directory of the real system for image files and volumes, which exists on the host too.
    fn root(&self) -> &Path;
    fn create_dir(&self, path: &Path);
    fn exists(&self, path: &Path) -> bool;
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Keeps a file of the mount there open until the result is dropped.
    fn hold(&self, path: &Path) -> Box<dyn Held + '_>;

    /// Makes a symbolic link to a device, as udev does.
    fn link(&self, link: &Path, device: &Path);

    /// A share of a server, whose files outlive each mount of it.
    fn share(&self, name: &str) -> SharedSource;
    /// A daemon that serves a filesystem at this path.
    fn daemon(&self, path: &Path) -> FuseDaemon;
    /// Kills the daemon that serves this path.
    fn kill_daemon(&self, path: &Path);
    /// Has the daemon that serves this path answer nothing any more.
    fn stop_daemon(&self, path: &Path);

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn place(&self, name: &str, volume: &str) -> OwnedPath {
        OwnedPath::new(self.path(name), self.owner(volume))
    }

    fn owner(&self, volume: &str) -> Owner {
        Owner::new("contract.example.org", volume).roots([self.root()])
    }

    fn disk(&self, name: &str, mebibytes: u64) -> PathBuf {
        let image = self.path(name);
        fs::File::create(&image).unwrap().set_len(mebibytes * MIB).unwrap();
        self.host().devices().loop_attach(&image, &LoopOptions::new()).unwrap().path
    }
}

fn kind<T: std::fmt::Debug>(result: csi_mount::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Runs every part of the contract.
pub(crate) fn keep(bench: &dyn Bench) {
    directories(bench);
    owners(bench);
    filesystems(bench);
    conflicts(bench);
    raw_devices(bench);
    expected_devices(bench);
    content(bench);
    filled_targets(bench);
    served::shares(bench);
    served::daemons(bench);
    served::daemons_that_hang(bench);
}

fn directories(bench: &dyn Bench) {
    let host = bench.host();
    let source = bench.path("volume");
    let target = bench.place("dir-target", "v");
    fs::create_dir(&source).unwrap();
    let publish =
        |at: &OwnedPath, attributes| host.directories().publish(&source, at, attributes, IdMap::new());
    assert_eq!(host.mounts().state(target.path()).unwrap(), MountState::Absent);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&target, RO)), ErrorKind::AlreadyMounted, "other attributes");
    let reader = bench.place("dir-reader", "v");
    publish(&reader, RO).unwrap();
    bench.write(&bench.path("dir-target/file"), b"data").unwrap();
    assert_eq!(bench.read(&bench.path("dir-reader/file")).unwrap(), b"data");
    assert_eq!(errno(bench.write(&bench.path("dir-reader/file"), b"x")), nix::libc::EROFS);
    assert_eq!(fs::read(source.join("file")).unwrap(), b"data", "the driver's own view");
    assert!(host.directories().is_same_file(&source, target.path()).unwrap());
    assert!(!host.directories().is_same_file(bench.root(), target.path()).unwrap());
    assert!(host.directories().is_directory(target.path()).unwrap());
    assert_eq!(host.mounts().health(target.path()).unwrap(), MountHealth::Healthy);
    assert!(host.mounts().stats(target.path()).unwrap().bytes.total > 0);

    let elsewhere = bench.place("missing/target", "v");
    assert_eq!(kind(publish(&elsewhere, RW)), ErrorKind::NotFound, "its parent does not exist");
    assert_eq!(host.directories().unpublish(&elsewhere).unwrap(), Removed::WasAbsent);
    let gone = host.directories().publish(&bench.path("no-volume"), &bench.place("t", "v"), RW, IdMap::new());
    assert_eq!(kind(gone), ErrorKind::NotFound);

    assert_eq!(
        kind(host.directories().remove_tree(bench.root())),
        ErrorKind::Busy,
        "volumes are mounted in it"
    );
    let busy = bench.hold(target.path());
    assert_eq!(kind(host.directories().unpublish(&target)), ErrorKind::Busy);
    drop(busy);
    for place in [&target, &reader] {
        assert_eq!(host.directories().unpublish(place).unwrap(), Removed::Removed);
        assert_eq!(host.directories().unpublish(place).unwrap(), Removed::WasAbsent);
        assert!(!bench.exists(place.path()));
    }
    assert_eq!(host.directories().remove_tree(&source).unwrap(), Removed::Removed);
    assert_eq!(host.directories().remove_tree(&source).unwrap(), Removed::WasAbsent);
}

fn owners(bench: &dyn Bench) {
    let host = bench.host();
    let source = bench.path("owned");
    fs::create_dir(&source).unwrap();
    let own = bench.place("owned-target", "v");
    let other = bench.place("owned-target", "w");
    host.directories().publish(&source, &own, RW, IdMap::new()).unwrap();
    assert_eq!(host.mounts().marked_owner(own.path()).unwrap().unwrap().volume, "v");
    let stolen = host.directories().publish(&source, &other, RW, IdMap::new());
    assert_eq!(kind(stolen), ErrorKind::AlreadyMounted);
    assert_eq!(kind(host.directories().unpublish(&other)), ErrorKind::NotOwned);
    assert_eq!(kind(host.mounts().refuse_foreign(&other)), ErrorKind::NotOwned);
    host.mounts().refuse_foreign(&own).unwrap();
    let gone = Owner::new("contract.example.org", "v").volume_is_gone();
    let outside = OwnedPath::new(own.path(), gone);
    assert_eq!(
        kind(host.directories().unpublish(&outside)),
        ErrorKind::NotOwned,
        "gone, and not in its roots"
    );
    let known = bench.owner("v").evidence(Evidence::Directory(source.clone()));
    let known = OwnedPath::new(own.path(), known);
    assert_eq!(host.directories().unpublish(&known).unwrap(), Removed::Removed);
    host.directories().remove_tree(&source).unwrap();
}

fn filesystems(bench: &dyn Bench) {
    let host = bench.host();
    let device = bench.disk("ext4.img", 64);
    bench.create_dir(&bench.path("staging"));
    let staging = bench.place("staging", "v");
    let target = bench.place("target", "v");
    let plan = StagePlan::new(Filesystem::Ext4);
    let publish =
        |at: &OwnedPath, attributes| host.block().publish(staging.path(), at, attributes, IdMap::new());
    assert_eq!(kind(publish(&target, RW)), ErrorKind::NotFound, "nothing is staged");
    assert!(!bench.exists(target.path()));
    assert_eq!(kind(host.block().usage(target.path())), ErrorKind::NotFound);
    let never = host.block().stage(&device, &staging, &plan.clone().never_format());
    assert_eq!(kind(never), ErrorKind::Damaged);

    let staged = host.block().stage(&device, &staging, &plan).unwrap();
    assert_eq!((staged.outcome, staged.origin), (Outcome::Mounted, FilesystemOrigin::Formatted));
    assert_eq!(staged.device, host.devices().number(&device).unwrap());
    let again = host.block().stage(&device, &staging, &plan).unwrap();
    assert_eq!((again.outcome, again.origin), (Outcome::AlreadyMounted, FilesystemOrigin::Existing));
    assert_eq!(host.block().device_of(staging.path()).unwrap(), staged.device);
    assert!(host.mounts().table().unwrap().iter().any(|entry| entry.mount_point == *staging.path()));

    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&target, RO)), ErrorKind::AlreadyMounted);
    bench.write(&bench.path("target/file"), b"kept").unwrap();
    let too_much = vec![1; 80 * MIB as usize];
    assert_eq!(errno(bench.write(&bench.path("target/large"), &too_much)), nix::libc::ENOSPC);
    let (usage, number) = host.block().usage(target.path()).unwrap();
    let VolumeUsage::Filesystem(stats) = usage else { panic!("{usage:?}") };
    assert!(stats.bytes.used > 0 && stats.bytes.total <= 64 * MIB && number == Some(staged.device));

    host.block().trim(target.path(), 0..64 * MIB).unwrap();
    assert_eq!(kind(host.block().trim(&bench.path("no-volume"), 0..1)), ErrorKind::NotFound);
    assert_eq!(kind(host.block().unstage(&staging, Some(&device), MountCopies::Kept)), ErrorKind::Busy);
    // The staging directory was unmounted all the same; the volume is staged again.
    host.block().stage(&device, &staging, &plan).unwrap();
    let image = bench.path("ext4.img");
    fs::File::options().write(true).open(&image).unwrap().set_len(96 * MIB).unwrap();
    host.devices().loop_refresh(&image).unwrap();
    match host.block().expand(target.path()) {
        Ok(grown) => {
            assert!(matches!(grown, Grown::Grown { .. }) && grown.size() > 90 * MIB, "{grown:?}");
            let same = host.block().expand(target.path()).unwrap();
            assert_eq!(same, Grown::Unchanged { size: grown.size() });
        }
        // A mounted ext4 does not grow without CAP_SYS_RESOURCE: the next stage grows it, see below.
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}"),
    }

    assert_eq!(host.block().unpublish(&target).unwrap(), Removed::Removed);
    assert_eq!(host.block().unpublish(&target).unwrap(), Removed::WasAbsent);
    let unstage = || host.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    assert_eq!(unstage(), Unmounted::Unmounted { layers: 1 });
    assert_eq!(unstage(), Unmounted::NotMounted);
    assert!(bench.exists(staging.path()), "the staging directory is the orchestrator's");
    assert_eq!(host.mounts().marked_owner(staging.path()).unwrap(), None);

    // Also after its device was another one for a while.
    assert_eq!(host.devices().loop_detach(&image).unwrap(), 1);
    assert_eq!(host.devices().loop_detach(&image).unwrap(), 0);
    let device = host.devices().loop_attach(&image, &LoopOptions::new()).unwrap().path;
    let staged = host.block().stage(&device, &staging, &plan).unwrap();
    assert_eq!(staged.origin, FilesystemOrigin::Existing);
    assert!(host.mounts().stats(staging.path()).unwrap().bytes.total > 70 * MIB);
    publish(&target, RO).unwrap();
    assert_eq!(bench.read(&bench.path("target/file")).unwrap(), b"kept");
    host.block().unpublish(&target).unwrap();
    host.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    host.devices().loop_detach(&image).unwrap();
}

fn conflicts(bench: &dyn Bench) {
    let host = bench.host();
    let one = bench.disk("one.img", 64);
    let two = bench.disk("two.img", 64);
    bench.create_dir(&bench.path("conflict"));
    let staging = bench.place("conflict", "v");
    let plan = StagePlan::new(Filesystem::Ext4);
    host.block().stage(&one, &staging, &plan).unwrap();
    assert_eq!(kind(host.block().stage(&two, &staging, &plan)), ErrorKind::AlreadyMounted);
    assert_eq!(
        kind(host.block().stage(&one, &bench.place("conflict", "w"), &plan)),
        ErrorKind::AlreadyMounted
    );
    assert_eq!(kind(host.block().unstage(&staging, Some(&two), MountCopies::Kept)), ErrorKind::WrongDevice);
    assert_eq!(
        kind(host.block().unstage(&bench.place("conflict", "w"), Some(&one), MountCopies::Kept)),
        ErrorKind::NotOwned
    );
    host.block().unstage(&staging, Some(&one), MountCopies::Kept).unwrap();
    let other = StagePlan::new(Filesystem::Xfs);
    assert_eq!(kind(host.block().stage(&one, &staging, &other)), ErrorKind::NotBlank);
    let missing = bench.path("no-device");
    let soon = plan.clone().wait_for_device(std::time::Duration::ZERO);
    assert_eq!(kind(host.block().stage(&missing, &staging, &soon)), ErrorKind::NotFound);
    assert_eq!(kind(host.devices().number(&missing)), ErrorKind::NotFound);
    for image in ["one.img", "two.img"] {
        host.devices().loop_detach(&bench.path(image)).unwrap();
    }
}

fn raw_devices(bench: &dyn Bench) {
    let host = bench.host();
    let device = bench.disk("raw.img", 4);
    let writer = bench.place("raw-writer", "v");
    let reader = bench.place("raw-reader", "v");
    let publish = |at: &OwnedPath, access| host.block().publish_device(&device, at, access);
    assert_eq!(publish(&writer, DeviceAccess::ReadWrite).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&writer, DeviceAccess::ReadWrite).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&writer, DeviceAccess::ReadOnly)), ErrorKind::AlreadyMounted);
    assert_eq!(publish(&reader, DeviceAccess::ReadOnly).unwrap(), Outcome::Mounted);
    assert_eq!(host.devices().loop_devices(&device).unwrap().len(), 1, "a read-only device over it");
    let (usage, number) = host.block().usage(writer.path()).unwrap();
    assert_eq!(usage, VolumeUsage::Device { size: 4 * MIB });
    assert_eq!(number, Some(host.devices().number(&device).unwrap()));
    assert_ne!(
        host.block().device_of(reader.path()).unwrap(),
        host.block().device_of(writer.path()).unwrap()
    );
    assert_eq!(kind(host.block().trim(writer.path(), 0..MIB)), ErrorKind::Unsupported);
    assert_eq!(errno(bench.write(reader.path(), b"x")), nix::libc::EPERM);
    bench.write(writer.path(), b"raw").unwrap();

    bench.create_dir(&bench.path("raw-staging"));
    let staging = bench.place("raw-staging", "v");
    assert_eq!(kind(host.block().unstage(&staging, Some(&device), MountCopies::Kept)), ErrorKind::Busy);
    for place in [&reader, &writer] {
        assert_eq!(host.block().unpublish(place).unwrap(), Removed::Removed);
        assert_eq!(host.block().unpublish(place).unwrap(), Removed::WasAbsent);
    }
    assert_eq!(host.devices().loop_devices(&device).unwrap().len(), 0);
    host.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    let plan = StagePlan::new(Filesystem::Ext4);
    assert_eq!(kind(host.block().stage(&device, &staging, &plan)), ErrorKind::NotBlank, "it has data");
    host.devices().loop_detach(&bench.path("raw.img")).unwrap();
}

fn expected_devices(bench: &dyn Bench) {
    let host = bench.host();
    let devices = host.devices();
    let device = bench.disk("expected.img", 64);
    let number = devices.number(&device).unwrap();
    let soon = ExpectedDevice::new().wait_limit(Duration::ZERO);
    let of_number = soon.clone().number(number);
    assert_eq!(devices.find(&of_number).unwrap().as_ref(), Some(&device));
    assert_eq!(devices.wait(&of_number).unwrap(), device);
    assert_eq!(devices.wait_at(&of_number, &device).unwrap(), device);
    assert_eq!(devices.size(&device).unwrap(), 64 * MIB);
    assert_eq!(devices.rescan(&device).unwrap(), Rescan::NotNeeded);

    let link = bench.path("link");
    bench.link(&link, &device);
    assert_eq!(devices.wait_at(&soon, &link).unwrap(), device, "the link is resolved");
    assert_eq!(devices.number(&link).unwrap(), number);

    let other = soon.clone().serial("other");
    assert_eq!(devices.find(&other).unwrap(), None);
    assert_eq!(kind(devices.wait(&other)), ErrorKind::NotFound);
    assert_eq!(kind(devices.wait_at(&other, &device)), ErrorKind::WrongDevice);
    assert_eq!(kind(devices.wait(&soon)), ErrorKind::InvalidInput, "nothing identifies it");
    assert_eq!(kind(devices.wait_at(&soon.clone().min_size(65 * MIB), &device)), ErrorKind::OutOfRange);
    assert_eq!(kind(devices.wait_at(&soon, &bench.path("no-device"))), ErrorKind::NotFound);
    assert_eq!(kind(devices.wait_at(&soon, &bench.path("expected.img"))), ErrorKind::InvalidInput);

    bench.create_dir(&bench.path("expected"));
    let staging = bench.place("expected", "v");
    let plan = StagePlan::new(Filesystem::Ext4);
    let wrong = host.block().stage(&link, &staging, &plan.clone().expect(other));
    assert_eq!(kind(wrong), ErrorKind::WrongDevice);
    let staged = host.block().stage(&link, &staging, &plan.expect(of_number)).unwrap();
    assert_eq!(staged.device, number);
    host.block().unstage(&staging, Some(&link), MountCopies::Kept).unwrap();
    host.devices().loop_detach(&bench.path("expected.img")).unwrap();
}

fn content(bench: &dyn Bench) {
    let host = bench.host();
    let target = bench.place("content", "v");
    let plan = EphemeralPlan::new("v").attributes(RO);
    let one = Content::new().file("key", "one").unwrap();
    assert_eq!(host.ephemeral().publish(&target, &one, &plan).unwrap(), Change::Written);
    assert_eq!(host.ephemeral().publish(&target, &one, &plan).unwrap(), Change::Unchanged);
    let two = Content::new().file("key", "two").unwrap();
    assert_eq!(host.ephemeral().publish(&target, &two, &plan).unwrap(), Change::Written);
    assert_eq!(bench.read(&bench.path("content/key")).unwrap(), b"two");
    assert_eq!(errno(bench.write(&bench.path("content/key"), b"x")), nix::libc::EROFS);
    let other = EphemeralPlan::new("w").attributes(RO);
    assert_eq!(kind(host.ephemeral().publish(&target, &two, &other)), ErrorKind::AlreadyMounted);
    let large = Content::new().file("key", vec![0; 9 * MIB as usize]).unwrap();
    assert_eq!(kind(host.ephemeral().publish(&target, &large, &plan)), ErrorKind::OutOfRange);
    assert_eq!(host.directories().unpublish(&target).unwrap(), Removed::Removed);
}

/// A target with content is refused by each publish, because each unpublish refuses it, and keeps its content.
fn filled_targets(bench: &dyn Bench) {
    let host = bench.host();
    let volume = bench.path("filled-volume");
    fs::create_dir(&volume).unwrap();
    let device = bench.disk("filled.img", 64);
    for directory in ["filled-staging", "filled-share", "filled", "filled-file"] {
        bench.create_dir(&bench.path(directory));
    }
    let staging = bench.place("filled-staging", "v");
    let share = bench.place("filled-share", "v");
    host.block().stage(&device, &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
    host.shared().stage(&share, &bench.share("filled")).unwrap();
    let files = Content::new().file("key", "one").unwrap();
    let none = IdMap::new();
    let plan = EphemeralPlan::new("v");
    let limit = std::time::Duration::from_secs(20);
    let directory = bench.place("filled", "v");
    bench.write(&bench.path("filled/file"), b"of somebody").unwrap();
    let publishes: [(&str, &dyn Fn() -> csi_mount::Result<()>); 6] = [
        ("directory", &|| host.directories().publish(&volume, &directory, RW, none.clone()).map(drop)),
        ("block", &|| host.block().publish(staging.path(), &directory, RW, none.clone()).map(drop)),
        ("shared", &|| host.shared().publish(share.path(), &directory, RW).map(drop)),
        ("shared, not staged", &|| {
            host.shared().publish_directly(&directory, &bench.share("other"), RW).map(drop)
        }),
        ("fuse", &|| host.fuse().publish(share.path(), &directory, RW).map(drop)),
        ("content", &|| host.ephemeral().publish(&directory, &files, &plan).map(drop)),
    ];
    for (name, publish) in publishes {
        assert_eq!(publish().map_err(|error| error.kind()), Err(ErrorKind::Busy), "{name}");
        assert_eq!(bench.read(&bench.path("filled/file")).unwrap(), b"of somebody", "{name}");
    }
    assert_eq!(kind(host.directories().unpublish(&directory)), ErrorKind::Busy);
    assert_eq!(kind(host.block().unpublish(&directory)), ErrorKind::Busy);
    assert_eq!(kind(host.shared().unpublish(&directory, limit)), ErrorKind::Busy);
    assert_eq!(kind(host.fuse().unpublish(&directory)), ErrorKind::Busy);
    assert_eq!(bench.read(&bench.path("filled/file")).unwrap(), b"of somebody");

    let file = bench.place("filled-file/raw", "v");
    bench.write(file.path(), b"of somebody").unwrap();
    host.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    for access in [DeviceAccess::ReadWrite, DeviceAccess::ReadOnly] {
        let published = host.block().publish_device(&device, &file, access);
        assert_eq!(kind(published), ErrorKind::Busy, "{access:?}");
    }
    assert_eq!(kind(host.block().unpublish(&file)), ErrorKind::Busy);
    assert_eq!(bench.read(file.path()).unwrap(), b"of somebody");
    host.shared().unstage(&share, limit).unwrap();
    host.devices().loop_detach(&bench.path("filled.img")).unwrap();
}
