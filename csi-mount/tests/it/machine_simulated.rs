//! The simulated node keeps the contract of hosts, as any user; and its faults.

use std::io;
use std::path::Path;

use csi_mount::flow::block::{MountCopies, StagePlan};
use csi_mount::flow::fuse::FuseDaemon;
use csi_mount::flow::shared::SharedSource;
use csi_mount::testing::{FakeDisk, SimulatedNode};
use csi_mount::{
    ErrorKind, ExpectedDevice, Filesystem, Host, IdMap, MountAttributes, MountHealth, MountState, Outcome,
    OwnedPath, Owner, Removed, Result, Unmounted,
};

use crate::machine_contract;
use crate::machine_contract::{Bench, Held};

struct Simulated<'a>(SimulatedNode, &'a Path);

struct OpenFile<'a>(&'a SimulatedNode);

impl Held for OpenFile<'_> {}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.0.close_files();
    }
}

impl Bench for Simulated<'_> {
    fn host(&self) -> Host {
        self.0.host()
    }

    fn root(&self) -> &Path {
        self.1
    }

    fn create_dir(&self, path: &Path) {
        self.0.create_dir(path);
    }

    fn exists(&self, path: &Path) -> bool {
        self.0.exists(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.write(path, bytes)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }

    fn hold(&self, path: &Path) -> Box<dyn Held + '_> {
        self.0.open_file(path);
        Box::new(OpenFile(&self.0))
    }

    fn link(&self, link: &Path, device: &Path) {
        self.0.link(link, device);
    }

    fn share(&self, name: &str) -> SharedSource {
        SharedSource::new("nfs4", format!("server:/{name}"))
    }

    fn daemon(&self, _: &Path) -> FuseDaemon {
        FuseDaemon::new("flatfs")
    }

    fn kill_daemon(&self, path: &Path) {
        self.0.set_health(path, MountHealth::Dead(nix::libc::ENOTCONN));
    }

    fn stop_daemon(&self, path: &Path) {
        self.0.set_health(path, MountHealth::Unresponsive);
    }
}

#[test]
fn the_simulated_node_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    machine_contract::keep(&Simulated(SimulatedNode::new(), &root));
}

fn place(path: &str) -> OwnedPath {
    OwnedPath::new(path, Owner::new("d.example.org", "v").roots(["/pods"]))
}

fn up(node: &SimulatedNode, disk: &Path) -> Result<Outcome> {
    node.host().block().stage(disk, &place("/staging"), &StagePlan::new(Filesystem::Ext4))?;
    let none = MountAttributes::empty();
    node.host().block().publish("/staging".as_ref(), &place("/pods/target"), none, IdMap::new())
}

fn down(node: &SimulatedNode, disk: &Path) -> Result<Unmounted> {
    node.host().block().unpublish(&place("/pods/target"))?;
    node.host().block().unstage(&place("/staging"), Some(disk), MountCopies::Kept)
}

fn node() -> (SimulatedNode, std::path::PathBuf) {
    let node = SimulatedNode::new();
    node.create_dir("/pods");
    node.create_dir("/staging");
    let disk = node.attach_disk("the-volume", 64 << 20);
    (node, disk)
}

#[test]
fn a_killed_process_leaves_what_a_retry_or_an_undo_finishes() {
    for is_undone in [false, true] {
        for steps in 0.. {
            let (node, disk) = node();
            node.crash_after(steps);
            let is_finished = up(&node, &disk).is_ok() && down(&node, &disk).is_ok();
            assert!(is_finished || node.host().mounts().table().is_err(), "nothing works after the kill");
            node.restart();
            if !is_undone {
                up(&node, &disk).unwrap();
                node.write("/pods/target/file", "data").unwrap();
            }
            down(&node, &disk).unwrap();
            assert_eq!(
                node.host().mounts().state("/pods/target".as_ref()).unwrap(),
                MountState::Absent,
                "{steps}"
            );
            assert_eq!(node.host().mounts().table().unwrap().len(), 1, "{steps}");
            if is_finished {
                assert!(steps > 6);
                break;
            }
        }
    }
}

#[test]
fn each_fault_gives_the_error_of_the_real_one() {
    let kind = |result: Result<Outcome>| result.unwrap_err().kind();
    let (node, disk) = node();
    node.remove_tool("mkfs.ext4");
    assert_eq!(kind(up(&node, &disk)), ErrorKind::MissingTool);
    node.install_tool("mkfs.ext4");
    node.fail_next(ErrorKind::Unreadable);
    assert_eq!(kind(up(&node, &disk)), ErrorKind::Unreadable);
    up(&node, &disk).unwrap();
    let write = || node.write("/pods/target/file", "data").unwrap_err().kind();
    node.set_full("/staging", true);
    assert_eq!(write(), io::ErrorKind::StorageFull);
    node.set_full("/staging", false);
    node.set_health("/staging", MountHealth::ReadOnly);
    assert_eq!((write(), kind(up(&node, &disk))), (io::ErrorKind::ReadOnlyFilesystem, ErrorKind::ReadOnly));
    node.set_health("/staging", MountHealth::Unresponsive);
    assert_eq!((write(), kind(up(&node, &disk))), (io::ErrorKind::TimedOut, ErrorKind::Unresponsive));
    assert_eq!(node.host().mounts().stats("/staging".as_ref()).unwrap_err().kind(), ErrorKind::Unresponsive);
    node.remove_disk(&disk);
    assert!(matches!(node.host().mounts().health("/staging".as_ref()).unwrap(), MountHealth::Dead(_)));
    down(&node, &disk).unwrap();
}

/// A disk goes from node to node with its content, and is found wherever it appears.
#[test]
fn a_disk_that_is_attached_is_waited_for_and_keeps_its_content() {
    let (node, _) = node();
    let expected = ExpectedDevice::new().serial("disk-1");
    assert_eq!(node.host().devices().find(&expected).unwrap(), None);
    let device = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.host().devices().wait(&expected).unwrap());
        node.attach_disk("disk-2", 64 << 20);
        node.attach_disk("disk-1", 64 << 20);
        waiting.join().unwrap()
    });
    assert!(node.is_blank(&device));
    up(&node, &device).unwrap();
    node.write("/pods/target/file", "data").unwrap();
    assert_eq!(node.attach_disk("disk-1", 128 << 20), device, "it is attached, and has grown");
    assert!(!node.is_blank(&device));
    assert_eq!(node.host().devices().size(&device).unwrap(), 128 << 20);
    assert_eq!(node.host().block().expand("/pods/target".as_ref()).unwrap().size(), 128 << 20);
    down(&node, &device).unwrap();
    node.remove_disk(&device);

    // Attached again, it has another name.
    let device = node.attach(&FakeDisk::scsi("sda", 3).serial("disk-1").size(128 << 20));
    let by_lun = ExpectedDevice::new().lun(3);
    assert_eq!(node.host().devices().wait(&by_lun).unwrap(), device);
    up(&node, &device).unwrap();
    assert_eq!(node.read("/pods/target/file").unwrap(), b"data");
    node.remove_disk(&device);
    assert!(matches!(node.host().mounts().health("/staging".as_ref()).unwrap(), MountHealth::Dead(_)));
}

#[test]
fn a_reboot_ends_mounts_and_keeps_data() {
    let (node, disk) = node();
    up(&node, &disk).unwrap();
    node.write("/pods/target/file", "data").unwrap();
    node.reboot();
    assert_eq!(node.host().mounts().table().unwrap().len(), 1);
    up(&node, &disk).unwrap();
    assert_eq!(node.read("/pods/target/file").unwrap(), b"data");
}

#[test]
fn servers_and_daemons_keep_their_files_and_are_mounted_again() {
    let (node, _) = node();
    let staging = place("/staging");
    let target = place("/pods/target");
    let none = MountAttributes::empty();
    let limit = std::time::Duration::ZERO;
    let daemon = FuseDaemon::new("flatfs").identity("v 1");
    node.host().fuse().stage(&staging, &daemon).unwrap();
    assert_eq!(node.host().fuse().identity(staging.path()).unwrap(), "v 1");
    node.host().fuse().publish(staging.path(), &target, none).unwrap();
    node.write("/pods/target/file", "data").unwrap();
    assert_eq!(node.host().fuse().unstage(&staging, limit).unwrap_err().kind(), ErrorKind::Busy);
    node.set_health("/staging", MountHealth::Dead(nix::libc::ENOTCONN));
    assert!(node.host().mounts().has_lost_daemon(staging.path()).unwrap());
    let dead = node.host().fuse().publish(staging.path(), &target, none).unwrap_err();
    assert_eq!(dead.kind(), ErrorKind::Unresponsive);
    node.host().fuse().stage(&staging, &daemon).unwrap();
    assert_eq!(node.host().fuse().publish(staging.path(), &target, none).unwrap(), Outcome::Mounted);
    assert_eq!(node.read("/pods/target/file").unwrap(), b"data");
    let other = FuseDaemon::new("flatfs").identity("v 2");
    assert_eq!(node.host().fuse().stage(&staging, &other).unwrap_err().kind(), ErrorKind::AlreadyMounted);
    assert_eq!(node.host().fuse().unpublish(&target).unwrap(), Removed::Removed);
    node.host().fuse().unstage(&staging, limit).unwrap();

    let share = SharedSource::new("nfs4", "server:/export");
    node.host().shared().stage(&staging, &share).unwrap();
    assert_eq!(node.host().shared().stage(&staging, &share).unwrap(), Outcome::AlreadyMounted);
    node.host().shared().publish(staging.path(), &target, MountAttributes::RDONLY).unwrap();
    node.open_file("/pods/target");
    assert_eq!(node.host().shared().unpublish(&target, limit).unwrap_err().kind(), ErrorKind::Busy);
    node.set_health("/staging", MountHealth::Unresponsive);
    assert_eq!(node.host().shared().unpublish(&target, limit).unwrap(), Removed::Removed, "by force");
    assert!(node.host().shared().stage(&staging, &share).is_err());
    node.host().shared().unstage(&staging, limit).unwrap();
}
