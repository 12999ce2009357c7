//! What every machine answers: the same steps on the kernel and on a simulated node.

mod served;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use csi_mount::flow::block::{FilesystemOrigin, MountCopies, StagePlan, VolumeUsage};
use csi_mount::flow::ephemeral::{Change, Content, EphemeralPlan};
use csi_mount::flow::fuse::FuseDaemon;
use csi_mount::flow::shared::SharedSource;
use csi_mount::{
    DeviceAccess, ErrorKind, Evidence, Filesystem, Grown, IdMap, LoopOptions, Machine, MountAttributes,
    MountHealth, MountState, Outcome, Owner, Removed, Unmounted, VolumePlace,
};

const MIB: u64 = 1 << 20;
const RW: MountAttributes = MountAttributes::empty();
const RO: MountAttributes = MountAttributes::RDONLY;

/// An open file.
pub(crate) trait Held {}

/// A machine, and what a workload and the orchestrator do on it.
pub(crate) trait Bench {
    fn machine(&self) -> &dyn Machine;
    /// A directory of the real system for image files and volumes, which exists on the machine too.
    fn root(&self) -> &Path;
    fn create_dir(&self, path: &Path);
    fn exists(&self, path: &Path) -> bool;
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Keeps a file of the mount there open until the result is dropped.
    fn hold(&self, path: &Path) -> Box<dyn Held + '_>;

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

    fn place(&self, name: &str, volume: &str) -> VolumePlace {
        VolumePlace::new(self.path(name), self.owner(volume))
    }

    fn owner(&self, volume: &str) -> Owner {
        Owner::new("contract.example.org", volume).roots([self.root()])
    }

    fn disk(&self, name: &str, mebibytes: u64) -> PathBuf {
        let image = self.path(name);
        fs::File::create(&image).unwrap().set_len(mebibytes * MIB).unwrap();
        self.machine().devices().loop_attach(&image, &LoopOptions::new()).unwrap().path
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
    content(bench);
    served::shares(bench);
    served::daemons(bench);
    served::daemons_that_hang(bench);
}

fn directories(bench: &dyn Bench) {
    let machine = bench.machine();
    let (source, target) = (bench.path("volume"), bench.place("dir-target", "v"));
    fs::create_dir(&source).unwrap();
    let publish =
        |at: &VolumePlace, attributes| machine.directories().publish(&source, at, attributes, IdMap::new());
    assert_eq!(machine.mounts().state(target.path()).unwrap(), MountState::Absent);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&target, RO)), ErrorKind::AlreadyMounted, "other attributes");
    let reader = bench.place("dir-reader", "v");
    publish(&reader, RO).unwrap();
    bench.write(&bench.path("dir-target/file"), b"data").unwrap();
    assert_eq!(bench.read(&bench.path("dir-reader/file")).unwrap(), b"data");
    assert_eq!(errno(bench.write(&bench.path("dir-reader/file"), b"x")), nix::libc::EROFS);
    assert_eq!(fs::read(source.join("file")).unwrap(), b"data", "the driver's own view");
    assert!(machine.directories().is_same_file(&source, target.path()).unwrap());
    assert!(!machine.directories().is_same_file(bench.root(), target.path()).unwrap());
    assert!(machine.directories().is_directory(target.path()).unwrap());
    assert_eq!(machine.mounts().health(target.path()).unwrap(), MountHealth::Healthy);
    assert!(machine.mounts().stats(target.path()).unwrap().bytes.total > 0);

    let elsewhere = bench.place("missing/target", "v");
    assert_eq!(kind(publish(&elsewhere, RW)), ErrorKind::NotFound, "its parent does not exist");
    assert_eq!(machine.directories().unpublish(&elsewhere).unwrap(), Removed::WasAbsent);
    let gone =
        machine.directories().publish(&bench.path("no-volume"), &bench.place("t", "v"), RW, IdMap::new());
    assert_eq!(kind(gone), ErrorKind::NotFound);

    assert_eq!(
        kind(machine.directories().remove_tree(bench.root())),
        ErrorKind::Busy,
        "volumes are mounted in it"
    );
    let busy = bench.hold(target.path());
    assert_eq!(kind(machine.directories().unpublish(&target)), ErrorKind::Busy);
    drop(busy);
    for place in [&target, &reader] {
        assert_eq!(machine.directories().unpublish(place).unwrap(), Removed::Removed);
        assert_eq!(machine.directories().unpublish(place).unwrap(), Removed::WasAbsent);
        assert!(!bench.exists(place.path()));
    }
    assert_eq!(machine.directories().remove_tree(&source).unwrap(), Removed::Removed);
    assert_eq!(machine.directories().remove_tree(&source).unwrap(), Removed::WasAbsent);
}

fn owners(bench: &dyn Bench) {
    let machine = bench.machine();
    let source = bench.path("owned");
    fs::create_dir(&source).unwrap();
    let (own, other) = (bench.place("owned-target", "v"), bench.place("owned-target", "w"));
    machine.directories().publish(&source, &own, RW, IdMap::new()).unwrap();
    assert_eq!(machine.mounts().marked_owner(own.path()).unwrap().unwrap().volume, "v");
    let stolen = machine.directories().publish(&source, &other, RW, IdMap::new());
    assert_eq!(kind(stolen), ErrorKind::AlreadyMounted);
    assert_eq!(kind(machine.directories().unpublish(&other)), ErrorKind::NotOwned);
    assert_eq!(kind(machine.mounts().refuse_foreign(&other)), ErrorKind::NotOwned);
    machine.mounts().refuse_foreign(&own).unwrap();
    let gone = Owner::new("contract.example.org", "v").volume_is_gone();
    let outside = VolumePlace::new(own.path(), gone);
    assert_eq!(
        kind(machine.directories().unpublish(&outside)),
        ErrorKind::NotOwned,
        "gone, and not in its roots"
    );
    let known = bench.owner("v").evidence(Evidence::Directory(source.clone()));
    let known = VolumePlace::new(own.path(), known);
    assert_eq!(machine.directories().unpublish(&known).unwrap(), Removed::Removed);
    machine.directories().remove_tree(&source).unwrap();
}

fn filesystems(bench: &dyn Bench) {
    let machine = bench.machine();
    let device = bench.disk("ext4.img", 64);
    bench.create_dir(&bench.path("staging"));
    let (staging, target) = (bench.place("staging", "v"), bench.place("target", "v"));
    let plan = StagePlan::new(Filesystem::Ext4);
    let publish =
        |at: &VolumePlace, attributes| machine.block().publish(staging.path(), at, attributes, IdMap::new());
    assert_eq!(kind(publish(&target, RW)), ErrorKind::NotFound, "nothing is staged");
    assert!(!bench.exists(target.path()));
    assert_eq!(kind(machine.block().usage(target.path())), ErrorKind::NotFound);
    let never = machine.block().stage(&device, &staging, &plan.clone().never_format());
    assert_eq!(kind(never), ErrorKind::Damaged);

    let staged = machine.block().stage(&device, &staging, &plan).unwrap();
    assert_eq!((staged.outcome, staged.origin), (Outcome::Mounted, FilesystemOrigin::Formatted));
    assert_eq!(staged.device, machine.devices().number(&device).unwrap());
    let again = machine.block().stage(&device, &staging, &plan).unwrap();
    assert_eq!((again.outcome, again.origin), (Outcome::AlreadyMounted, FilesystemOrigin::Existing));
    assert_eq!(machine.block().device_of(staging.path()).unwrap(), staged.device);
    assert!(machine.mounts().table().unwrap().iter().any(|entry| entry.mount_point == *staging.path()));

    assert_eq!(publish(&target, RW).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&target, RW).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&target, RO)), ErrorKind::AlreadyMounted);
    bench.write(&bench.path("target/file"), b"kept").unwrap();
    let too_much = vec![1; 80 * MIB as usize];
    assert_eq!(errno(bench.write(&bench.path("target/large"), &too_much)), nix::libc::ENOSPC);
    let (usage, number) = machine.block().usage(target.path()).unwrap();
    let VolumeUsage::Filesystem(stats) = usage else { panic!("{usage:?}") };
    assert!(stats.bytes.used > 0 && stats.bytes.total <= 64 * MIB && number == Some(staged.device));

    assert_eq!(kind(machine.block().unstage(&staging, Some(&device), MountCopies::Kept)), ErrorKind::Busy);
    // The staging directory was unmounted all the same; the volume is staged again.
    machine.block().stage(&device, &staging, &plan).unwrap();
    let image = bench.path("ext4.img");
    fs::File::options().write(true).open(&image).unwrap().set_len(96 * MIB).unwrap();
    machine.devices().loop_refresh(&image).unwrap();
    match machine.block().expand(target.path()) {
        Ok(grown) => {
            assert!(matches!(grown, Grown::Grown { .. }) && grown.size() > 90 * MIB, "{grown:?}");
            let same = machine.block().expand(target.path()).unwrap();
            assert_eq!(same, Grown::Unchanged { size: grown.size() });
        }
        // A mounted ext4 does not grow without CAP_SYS_RESOURCE: the next stage grows it, see below.
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}"),
    }

    assert_eq!(machine.block().unpublish(&target).unwrap(), Removed::Removed);
    assert_eq!(machine.block().unpublish(&target).unwrap(), Removed::WasAbsent);
    let unstage = || machine.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    assert_eq!(unstage(), Unmounted::Unmounted { layers: 1 });
    assert_eq!(unstage(), Unmounted::NotMounted);
    assert!(bench.exists(staging.path()), "the staging directory is the orchestrator's");
    assert_eq!(machine.mounts().marked_owner(staging.path()).unwrap(), None);

    // Also after its device was another one for a while.
    assert_eq!(machine.devices().loop_detach(&image).unwrap(), 1);
    assert_eq!(machine.devices().loop_detach(&image).unwrap(), 0);
    let device = machine.devices().loop_attach(&image, &LoopOptions::new()).unwrap().path;
    let staged = machine.block().stage(&device, &staging, &plan).unwrap();
    assert_eq!(staged.origin, FilesystemOrigin::Existing);
    assert!(machine.mounts().stats(staging.path()).unwrap().bytes.total > 70 * MIB);
    publish(&target, RO).unwrap();
    assert_eq!(bench.read(&bench.path("target/file")).unwrap(), b"kept");
    machine.block().unpublish(&target).unwrap();
    machine.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    machine.devices().loop_detach(&image).unwrap();
}

fn conflicts(bench: &dyn Bench) {
    let machine = bench.machine();
    let (one, two) = (bench.disk("one.img", 64), bench.disk("two.img", 64));
    bench.create_dir(&bench.path("conflict"));
    let staging = bench.place("conflict", "v");
    let plan = StagePlan::new(Filesystem::Ext4);
    machine.block().stage(&one, &staging, &plan).unwrap();
    assert_eq!(kind(machine.block().stage(&two, &staging, &plan)), ErrorKind::AlreadyMounted);
    assert_eq!(
        kind(machine.block().stage(&one, &bench.place("conflict", "w"), &plan)),
        ErrorKind::AlreadyMounted
    );
    assert_eq!(
        kind(machine.block().unstage(&staging, Some(&two), MountCopies::Kept)),
        ErrorKind::WrongDevice
    );
    assert_eq!(
        kind(machine.block().unstage(&bench.place("conflict", "w"), Some(&one), MountCopies::Kept)),
        ErrorKind::NotOwned
    );
    machine.block().unstage(&staging, Some(&one), MountCopies::Kept).unwrap();
    let other = StagePlan::new(Filesystem::Xfs);
    assert_eq!(kind(machine.block().stage(&one, &staging, &other)), ErrorKind::NotBlank);
    let missing = bench.path("no-device");
    let soon = plan.clone().wait_for_device(std::time::Duration::ZERO);
    assert_eq!(kind(machine.block().stage(&missing, &staging, &soon)), ErrorKind::NotFound);
    assert_eq!(kind(machine.devices().number(&missing)), ErrorKind::NotFound);
    for image in ["one.img", "two.img"] {
        machine.devices().loop_detach(&bench.path(image)).unwrap();
    }
}

fn raw_devices(bench: &dyn Bench) {
    let machine = bench.machine();
    let device = bench.disk("raw.img", 4);
    let (writer, reader) = (bench.place("raw-writer", "v"), bench.place("raw-reader", "v"));
    let publish = |at: &VolumePlace, access| machine.block().publish_device(&device, at, access);
    assert_eq!(publish(&writer, DeviceAccess::ReadWrite).unwrap(), Outcome::Mounted);
    assert_eq!(publish(&writer, DeviceAccess::ReadWrite).unwrap(), Outcome::AlreadyMounted);
    assert_eq!(kind(publish(&writer, DeviceAccess::ReadOnly)), ErrorKind::AlreadyMounted);
    assert_eq!(publish(&reader, DeviceAccess::ReadOnly).unwrap(), Outcome::Mounted);
    assert_eq!(machine.devices().loop_devices(&device).unwrap().len(), 1, "a read-only device over it");
    let (usage, number) = machine.block().usage(writer.path()).unwrap();
    assert_eq!(usage, VolumeUsage::Device { size: 4 * MIB });
    assert_eq!(number, Some(machine.devices().number(&device).unwrap()));
    assert_ne!(
        machine.block().device_of(reader.path()).unwrap(),
        machine.block().device_of(writer.path()).unwrap()
    );
    assert_eq!(errno(bench.write(reader.path(), b"x")), nix::libc::EPERM);
    bench.write(writer.path(), b"raw").unwrap();

    bench.create_dir(&bench.path("raw-staging"));
    let staging = bench.place("raw-staging", "v");
    assert_eq!(kind(machine.block().unstage(&staging, Some(&device), MountCopies::Kept)), ErrorKind::Busy);
    for place in [&reader, &writer] {
        assert_eq!(machine.block().unpublish(place).unwrap(), Removed::Removed);
        assert_eq!(machine.block().unpublish(place).unwrap(), Removed::WasAbsent);
    }
    assert_eq!(machine.devices().loop_devices(&device).unwrap().len(), 0);
    machine.block().unstage(&staging, Some(&device), MountCopies::Kept).unwrap();
    let plan = StagePlan::new(Filesystem::Ext4);
    assert_eq!(kind(machine.block().stage(&device, &staging, &plan)), ErrorKind::NotBlank, "it has data");
    machine.devices().loop_detach(&bench.path("raw.img")).unwrap();
}

fn content(bench: &dyn Bench) {
    let machine = bench.machine();
    let target = bench.place("content", "v");
    let plan = EphemeralPlan::new("v").attributes(RO);
    let one = Content::new().file("key", "one").unwrap();
    assert_eq!(machine.ephemeral().publish(&target, &one, &plan).unwrap(), Change::Written);
    assert_eq!(machine.ephemeral().publish(&target, &one, &plan).unwrap(), Change::Unchanged);
    let two = Content::new().file("key", "two").unwrap();
    assert_eq!(machine.ephemeral().publish(&target, &two, &plan).unwrap(), Change::Written);
    assert_eq!(bench.read(&bench.path("content/key")).unwrap(), b"two");
    assert_eq!(errno(bench.write(&bench.path("content/key"), b"x")), nix::libc::EROFS);
    let other = EphemeralPlan::new("w").attributes(RO);
    assert_eq!(kind(machine.ephemeral().publish(&target, &two, &other)), ErrorKind::AlreadyMounted);
    let large = Content::new().file("key", vec![0; 9 * MIB as usize]).unwrap();
    assert_eq!(kind(machine.ephemeral().publish(&target, &large, &plan)), ErrorKind::OutOfRange);
    assert_eq!(machine.directories().unpublish(&target).unwrap(), Removed::Removed);
}
