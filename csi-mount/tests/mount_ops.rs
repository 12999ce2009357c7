//! The kernel and the model of it behave the same: each test runs against both.

mod fuse_support;
mod mount_support;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use csi_mount::testing::{Model, PeerNamespace};
use csi_mount::{
    Created, Detach, ErrorKind, Kernel, MountAttributes, MountHealth, MountOps, MountOptions, MountState,
    Outcome, Removed, Unmounted,
};
use fuse_support::{answer_init, fuse};
use mount_support::sandbox;

/// A machine with the mount operations of a driver, and with actions of other programs.
trait Machine {
    fn ops(&self) -> &dyn MountOps;
    fn base(&self) -> &Path;
    fn make_dir(&self, path: &Path);
    /// Mounts one more layer without any check.
    fn mount_over(&self, path: &Path);
    /// The attributes of the layers at a path in a second namespace, which receives mounts from this one.
    fn seen_by_peer(&self, path: &Path) -> Vec<MountAttributes>;
    /// Uses the mount at the path while the closure runs.
    fn held(&self, path: &Path, run: &mut dyn FnMut());
    /// Mounts a filesystem whose daemon is gone.
    fn mount_dead(&self, path: &Path);
    fn path(&self, name: &str) -> PathBuf {
        self.base().join(name)
    }
}

fn layers(ops: &dyn MountOps, path: &Path) -> Vec<MountAttributes> {
    let mounts = ops.mounts().unwrap().into_iter().filter(|entry| entry.mount_point == path);
    mounts.map(|entry| entry.attributes).collect()
}

struct Real {
    base: PathBuf,
    peer: PeerNamespace,
}

impl Machine for Real {
    fn ops(&self) -> &dyn MountOps {
        &Kernel
    }
    fn base(&self) -> &Path {
        &self.base
    }
    fn make_dir(&self, path: &Path) {
        fs::create_dir(path).unwrap();
    }
    fn mount_over(&self, path: &Path) {
        rustix::mount::mount("layer", path, "tmpfs", rustix::mount::MountFlags::empty(), c"").unwrap();
    }
    fn seen_by_peer(&self, path: &Path) -> Vec<MountAttributes> {
        let path = path.to_owned();
        self.peer.run(move || layers(&Kernel, &path))
    }
    fn held(&self, path: &Path, run: &mut dyn FnMut()) {
        let open = File::open(path).unwrap();
        run();
        drop(open);
    }
    fn mount_dead(&self, path: &Path) {
        let device = fuse(&csi_mount::Target::new(path).unwrap());
        answer_init(&device);
    }
}

struct InMemory {
    model: Model,
    peer: Model,
}

impl Machine for InMemory {
    fn ops(&self) -> &dyn MountOps {
        &self.model
    }
    fn base(&self) -> &Path {
        Path::new("/base")
    }
    fn make_dir(&self, path: &Path) {
        self.model.make_dirs(path);
    }
    fn mount_over(&self, path: &Path) {
        self.model.mount_over(path);
    }
    fn seen_by_peer(&self, path: &Path) -> Vec<MountAttributes> {
        layers(&self.peer, path)
    }
    fn held(&self, path: &Path, run: &mut dyn FnMut()) {
        self.model.open_file(path);
        run();
        self.model.close_files();
    }
    fn mount_dead(&self, path: &Path) {
        self.model.mount("fuse", Path::new("silent"), &MountOptions::new(), path).unwrap();
        self.model.kill_daemon(path);
    }
}

fn on_both(test: impl Fn(&dyn Machine) + Send + Sync) {
    let model = Model::new();
    model.make_dirs("/base");
    let peer = model.peer();
    test(&InMemory { model, peer });
    sandbox(|sandbox| test(&Real { base: sandbox.to_owned(), peer: PeerNamespace::new() }));
}

const RO: MountAttributes = MountAttributes::RDONLY;
const RW: MountAttributes = MountAttributes::empty();

#[test]
fn a_volume_is_published_once_and_unpublished_once() {
    on_both(|machine| {
        let (ops, source, target) = (machine.ops(), machine.path("source"), machine.path("target"));
        machine.make_dir(&source);
        assert_eq!(ops.state(&target).unwrap(), MountState::Absent);
        assert_eq!(ops.create_dir(&target).unwrap(), Created::Created);
        assert_eq!(ops.create_dir(&target).unwrap(), Created::Existed);
        assert_eq!(ops.state(&target).unwrap(), MountState::NotMounted);
        assert_eq!(ops.health(&target).unwrap(), MountHealth::NotMounted);
        assert_eq!(ops.bind(&source, RO, &target).unwrap(), Outcome::Mounted);
        assert_eq!(ops.bind(&source, RO, &target).unwrap(), Outcome::AlreadyMounted);
        assert_eq!(ops.health(&target).unwrap(), MountHealth::Healthy);
        let stats = ops.stats(&target).unwrap();
        assert!(stats.bytes.available <= stats.bytes.total);
        assert_eq!((layers(ops, &target), machine.seen_by_peer(&target)), (vec![RO], vec![RO]));
        assert_eq!(ops.bind(&source, RW, &target).unwrap_err().kind(), ErrorKind::AlreadyMounted);
        assert_eq!(ops.remove(&target).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(ops.unmount(&target, Detach::Never).unwrap(), Unmounted::Unmounted { layers: 1 });
        assert_eq!(ops.unmount(&target, Detach::Never).unwrap(), Unmounted::NotMounted);
        assert_eq!((layers(ops, &target), machine.seen_by_peer(&target)), (vec![], vec![]));
        assert_eq!(ops.remove(&target).unwrap(), Removed::Removed);
        assert_eq!(ops.remove(&target).unwrap(), Removed::WasAbsent);
    });
}

#[test]
fn a_filesystem_is_mounted_with_what_is_below_it_hidden() {
    on_both(|machine| {
        let (ops, target) = (machine.ops(), machine.path("target"));
        let options = MountOptions::parse(["nosuid", "nodev"]).unwrap();
        let mount = || ops.mount("tmpfs", Path::new("volume"), &options, &target);
        assert_eq!(mount().unwrap_err().kind(), ErrorKind::NotFound);
        machine.make_dir(&target);
        machine.make_dir(&target.join("hidden"));
        assert_eq!(mount().unwrap(), Outcome::Mounted);
        assert_eq!(mount().unwrap(), Outcome::AlreadyMounted);
        assert_eq!(ops.state(&target.join("hidden")).unwrap(), MountState::Absent);
        assert_eq!(machine.seen_by_peer(&target), [options.attributes()]);
        let other = ops.mount("tmpfs", Path::new("other"), &options, &target).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::AlreadyMounted);
        // A bind also has the attributes of its source's mount.
        let bound = machine.path("bound");
        machine.make_dir(&bound);
        ops.bind(&target, RO, &bound).unwrap();
        assert_eq!(layers(ops, &bound), [options.attributes() | RO]);
        ops.unmount(&bound, Detach::Never).unwrap();
        ops.unmount(&target, Detach::Never).unwrap();
        assert_eq!(ops.state(&target.join("hidden")).unwrap(), MountState::NotMounted);
        assert_eq!(ops.remove(&target).unwrap_err().kind(), ErrorKind::Busy, "it is not empty");
        let none = ops.mount("nonefs", Path::new("volume"), &options, &target).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn every_layer_is_unmounted_in_every_namespace() {
    on_both(|machine| {
        let (ops, target) = (machine.ops(), machine.path("target"));
        machine.make_dir(&target);
        (0..3).for_each(|_| machine.mount_over(&target));
        assert_eq!((layers(ops, &target).len(), machine.seen_by_peer(&target).len()), (3, 3));
        assert_eq!(ops.unmount(&target, Detach::Never).unwrap(), Unmounted::Unmounted { layers: 3 });
        assert_eq!((layers(ops, &target).len(), machine.seen_by_peer(&target).len()), (0, 0));
    });
}

#[test]
fn a_busy_mount_stays_unless_a_detach_is_allowed() {
    on_both(|machine| {
        let (ops, target) = (machine.ops(), machine.path("target"));
        machine.make_dir(&target);
        machine.mount_over(&target);
        let inner = target.join("inner");
        machine.make_dir(&inner);
        machine.mount_over(&inner);
        let error = ops.unmount(&target, Detach::Never).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("is mounted below it"), "{error}");
        ops.unmount(&inner, Detach::Never).unwrap();
        machine.held(&target, &mut || {
            for detach in [Detach::Never, Detach::IfUnresponsive] {
                assert_eq!(ops.unmount(&target, detach).unwrap_err().kind(), ErrorKind::Busy);
            }
            assert_eq!(layers(ops, &target).len(), 1);
            assert_eq!(ops.unmount(&target, Detach::IfBusy).unwrap(), Unmounted::Detached);
        });
        assert_eq!(ops.state(&target).unwrap(), MountState::NotMounted);
    });
}

#[test]
fn a_dead_filesystem_is_known_and_unmounted() {
    on_both(|machine| {
        let (ops, target) = (machine.ops(), machine.path("target"));
        machine.make_dir(&target);
        machine.mount_dead(&target);
        assert!(matches!(ops.state(&target).unwrap(), MountState::Mounted(_)));
        assert_eq!(ops.health(&target).unwrap(), MountHealth::Dead(nix::libc::ENOTCONN));
        assert_eq!(ops.stats(&target).unwrap_err().kind(), ErrorKind::Unresponsive);
        let other = machine.path("other");
        machine.make_dir(&other);
        assert_eq!(ops.bind(&target, RW, &other).unwrap(), Outcome::Mounted);
        let again = ops.bind(&target, RW, &other).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Unresponsive, "a dead mount is not done: {again}");
        ops.unmount(&other, Detach::IfUnresponsive).unwrap();
        let unmounted = ops.unmount(&target, Detach::IfUnresponsive).unwrap();
        assert_eq!(unmounted, Unmounted::Unmounted { layers: 1 });
    });
}

/// A forced unmount would end the mount for the other users, who wait for the server to come back.
#[test]
fn a_silent_mount_is_detached_at_one_target_only() {
    let model = Model::new();
    let paths = ["/staging", "/one", "/other"].map(Path::new);
    let [staging, one, other] = paths;
    paths.iter().for_each(|path| model.make_dirs(path));
    model.mount("nfs4", Path::new("server:/volume"), &MountOptions::new(), staging).unwrap();
    for target in [one, other] {
        model.bind(staging, RW, target).unwrap();
    }
    model.stop_answering(staging);
    model.open_file(one);
    assert_eq!(model.unmount(one, Detach::IfUnresponsive).unwrap(), Unmounted::Detached);
    for path in [staging, other] {
        assert_eq!(model.health(path).unwrap(), MountHealth::Unresponsive, "{}", path.display());
    }
}

/// A filesystem on a block device that does not answer is not proven to be dead: its disk can be slow.
#[test]
fn a_silent_filesystem_of_a_block_device_is_not_detached() {
    let model = Model::new();
    let target = Path::new("/target");
    model.make_dirs(target);
    model.mount("btrfs", Path::new("/dev/sda"), &MountOptions::new(), target).unwrap();
    model.stop_answering(target);
    model.open_file(target);
    assert_eq!(model.unmount(target, Detach::IfUnresponsive).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn what_can_not_be_bound_is_refused() {
    on_both(|machine| {
        let (ops, source) = (machine.ops(), machine.path("source"));
        let inside = source.join("inside");
        machine.make_dir(&source);
        machine.make_dir(&inside);
        for (from, onto, kind) in [
            (&*source, &*inside, ErrorKind::InvalidInput),
            (&inside, &source, ErrorKind::InvalidInput),
            (&source, &source, ErrorKind::InvalidInput),
            (&source, Path::new("relative"), ErrorKind::InvalidInput),
            (Path::new(""), &inside, ErrorKind::InvalidInput),
            (&machine.path("absent"), &inside, ErrorKind::NotFound),
            (&source, &machine.path("absent"), ErrorKind::NotFound),
        ] {
            let error = ops.bind(from, RW, onto).unwrap_err();
            assert_eq!(error.kind(), kind, "{from:?} onto {onto:?}: {error}");
        }
        assert_eq!(layers(ops, &inside), []);
    });
}

#[test]
fn what_can_not_be_mounted_is_refused() {
    on_both(|machine| {
        let (ops, target) = (machine.ops(), machine.path("target"));
        machine.make_dir(&target);
        let no_text = Path::new(OsStr::from_bytes(b"/vol\xffume"));
        let invalid = ErrorKind::InvalidInput;
        for (fs_type, source, onto, kind) in [
            ("", Path::new("volume"), &*target, invalid),
            ("tmp\0fs", Path::new("volume"), &target, invalid),
            ("nonefs", Path::new("volume"), &target, ErrorKind::Unsupported),
            ("tmpfs", Path::new(""), &target, invalid),
            ("tmpfs", Path::new("vol\0ume"), &target, invalid),
            ("tmpfs", Path::new("/dev/../volume"), &target, invalid),
            ("tmpfs", no_text, &target, invalid),
            ("tmpfs", Path::new("volume"), no_text, invalid),
            ("tmpfs", Path::new("volume"), Path::new("relative"), invalid),
            ("tmpfs", Path::new("volume"), &machine.path("absent"), ErrorKind::NotFound),
        ] {
            let error = ops.mount(fs_type, source, &MountOptions::new(), onto).unwrap_err();
            assert_eq!(error.kind(), kind, "{fs_type:?} from {source:?} at {onto:?}: {error}");
        }
        for path in [Path::new(""), Path::new("relative"), Path::new("/a/../b"), no_text] {
            assert_eq!(ops.create_dir(path).unwrap_err().kind(), invalid, "{path:?}");
            assert_eq!(ops.bind(path, RW, &target).unwrap_err().kind(), invalid, "{path:?}");
            assert_eq!(ops.state(path).unwrap_err().kind(), invalid, "{path:?}");
            assert_eq!(ops.health(path).unwrap_err().kind(), invalid, "{path:?}");
            assert_eq!(ops.stats(path).unwrap_err().kind(), invalid, "{path:?}");
            assert_eq!(ops.unmount(path, Detach::Never).unwrap_err().kind(), invalid, "{path:?}");
            assert_eq!(ops.remove(path).unwrap_err().kind(), invalid, "{path:?}");
        }
        assert_eq!(layers(ops, &target), []);
    });
}

/// The publish sequence of a driver. It can be repeated.
fn publish(ops: &dyn MountOps) -> csi_mount::Result<()> {
    let (staging, target) = (Path::new("/base/staging"), Path::new("/base/target"));
    ops.create_dir(staging)?;
    ops.mount("ext4", Path::new("/dev/vdb"), &MountOptions::new(), staging)?;
    ops.create_dir(target)?;
    ops.bind(staging, RO, target)?;
    Ok(())
}

fn unpublish(ops: &dyn MountOps) -> csi_mount::Result<()> {
    for path in [Path::new("/base/target"), Path::new("/base/staging")] {
        ops.unmount(path, Detach::Never)?;
        ops.remove(path)?;
    }
    Ok(())
}

#[test]
fn a_retry_repairs_a_crash_between_any_two_steps() {
    let (mut points, mut reboots) = (0, 0);
    for crash in 0.. {
        let model = Model::new();
        model.make_dirs("/base");
        model.crash_after(crash);
        let published = publish(&model).and_then(|()| unpublish(&model));
        let is_rebooted = crash % 2 == 1;
        if published.is_ok() {
            break;
        }
        points += 1;
        reboots += u32::from(is_rebooted);
        if is_rebooted {
            model.reboot();
        } else {
            model.restart();
        }
        publish(&model).unwrap();
        assert_eq!(layers(&model, Path::new("/base/target")), [RO], "crash after {crash}");
        assert_eq!(layers(&model, Path::new("/base/staging")), [RW], "crash after {crash}");
        unpublish(&model).unwrap();
        assert_eq!(model.mounts().unwrap().len(), 1, "crash after {crash}");
    }
    println!("{points} points of a crash, {reboots} of them with a reboot");
    assert!(points > 15, "{points}");
}

#[test]
fn the_model_fails_hangs_and_turns_read_only_on_demand() {
    let model = Model::new();
    model.make_dirs("/base");
    model.fail_next(ErrorKind::Io);
    assert_eq!(publish(&model).unwrap_err().kind(), ErrorKind::Io);
    publish(&model).unwrap();
    model.turn_read_only("/base/staging");
    assert_eq!(model.health(Path::new("/base/staging")).unwrap(), MountHealth::ReadOnly);
    assert_eq!(model.health(Path::new("/base/target")).unwrap(), MountHealth::Healthy, "asked for ro");
    assert_eq!(publish(&model).unwrap_err().kind(), ErrorKind::ReadOnly);
    model.stop_answering("/base/staging");
    for path in ["/base/staging", "/base/target"] {
        assert_eq!(model.health(Path::new(path)).unwrap(), MountHealth::Unresponsive);
        assert_eq!(model.stats(Path::new(path)).unwrap_err().kind(), ErrorKind::Unresponsive);
    }
    let below = model.bind(Path::new("/base/staging/below"), RW, Path::new("/base/target"));
    assert_eq!(below.unwrap_err().kind(), ErrorKind::Unresponsive);
    model.open_file("/base/target");
    assert_eq!(model.unmount(Path::new("/base/target"), Detach::Never).unwrap_err().kind(), ErrorKind::Busy);
    let detached = model.unmount(Path::new("/base/target"), Detach::IfBusy).unwrap();
    assert_eq!(detached, Unmounted::Detached);
    unpublish(&model).unwrap();
}
