//! NVMe over TCP, and over RDMA by the same tests, against the kernel's own target on this machine: attach, grow,
//! detach, and what must not happen.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules, and not with `cargo test` alone.

mod devices;
mod nvme_target;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use csi_mount::flow::block::{StagePlan, expand, stage, unstage};
use csi_mount::remote::{NvmeTarget, RemoteDisks};
use csi_mount::{ErrorKind, Filesystem, Target};
use devices::{MIB, under_load};
use nvme_target::{Nvmet, controllers, disconnect_by_hand, disks, eventually, live};

struct Node {
    directory: tempfile::TempDir,
    disks: RemoteDisks,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        Self { directory, disks }
    }

    /// The names of the records.
    fn records(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path().join("remote")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with(".lock-")).collect()
    }

    fn staging(&self, name: &str) -> Target {
        Target::new(self.directory.path().join(name)).unwrap()
    }

    fn assert_nothing_left(&self) {
        assert_eq!((controllers(), self.records()), (vec![], vec![]));
        assert!(disks().is_empty(), "{:?}", disks());
    }
}

fn stage_at(node: &Node, name: &str, target: &NvmeTarget, filesystem: Filesystem) -> Target {
    let device = node.disks.attach(name, target).unwrap();
    let staging = node.staging(&format!("staging-{}", name.replace('/', "-")));
    stage(device.path(), &staging, &StagePlan::new(filesystem).expect(target.expected())).unwrap();
    staging
}

#[test]
fn a_volume_lives_on_one_portal_and_on_two() {
    for (ports, filesystem) in [(1, Filesystem::Ext4), (2, Filesystem::Xfs)] {
        let (node, nvmet) = (Node::new(), Nvmet::new("life", 2, ports));
        for index in 0..2 {
            let target = nvmet.target(index);
            let start = Instant::now();
            let staging = stage_at(&node, "pvc/1", &target, filesystem);
            println!("{ports} portals: attached and staged in {:?}", start.elapsed());
            assert_eq!(live(), usize::from(ports));
            fs::write(staging.path().join("file"), "content").unwrap();
            // Again, with the volume in use.
            let device = node.disks.attach("pvc/1", &target).unwrap();
            assert_eq!(node.disks.device("pvc/1").unwrap().unwrap().number(), device.number());
            let error = node.disks.detach("pvc/1").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");

            assert_eq!(node.disks.refresh("pvc/1").unwrap(), 300 * MIB);
            nvmet.grow(index, 400);
            assert_eq!(node.disks.refresh("pvc/1").unwrap(), 400 * MIB);
            assert_eq!(device.size().unwrap(), 400 * MIB);
            expand(staging.path()).unwrap();

            unstage(&staging, Some(device.path())).unwrap();
            drop(device);
            let start = Instant::now();
            let detached = node.disks.detach("pvc/1").unwrap();
            println!("detached in {:?}: {detached}", start.elapsed());
            assert_eq!(detached.disconnected.len(), usize::from(ports));
            assert!(detached.not_flushed.is_none() && detached.kept.is_none());
            node.assert_nothing_left();
            assert!(node.disks.device("pvc/1").unwrap().is_none());
            assert!(node.disks.detach("pvc/1").unwrap().disconnected.is_empty(), "again");

            // What was written is there when it comes back, and raw.
            let device = node.disks.attach("pvc/1", &target).unwrap();
            assert_eq!(device.size().unwrap(), 400 * MIB);
            let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
            raw.write_all_at(b"raw", 399 * MIB).unwrap();
            drop(raw);
            stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
            assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
            unstage(&staging, Some(device.path())).unwrap();
            drop(device);
            node.disks.detach("pvc/1").unwrap();
            assert_eq!(nvmet.images[index].read(399 * MIB, 3), b"raw");
        }
    }
}

#[test]
fn ten_volumes_of_one_subsystem_come_and_go_in_any_order() {
    let (node, nvmet) = (Node::new(), Nvmet::new("ten", 10, 2));
    let name = |index: usize| format!("pvc-{index}");
    for order in [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 2, 5, 0, 7, 1, 8, 3, 6, 4]] {
        let numbers: Vec<_> = std::thread::scope(|scope| {
            let attach = |index: usize| {
                let (node, nvmet) = (&node, &nvmet);
                move || node.disks.attach(&name(index), nvmet.target(index)).unwrap().number()
            };
            let all: Vec<_> = (0..10).map(|index| scope.spawn(attach(index))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(live(), 2);
        for (position, index) in order.into_iter().enumerate() {
            for left in &order[position..] {
                let device = node.disks.device(&name(*left)).unwrap().expect("it is attached");
                assert_eq!(device.number(), numbers[*left]);
                device.size().unwrap();
            }
            let detached = node.disks.detach(&name(index)).unwrap();
            assert_eq!(detached.disconnected.len(), if position == 9 { 2 } else { 0 }, "{detached}");
            // An attach of another volume meets no disconnect.
            if position == 4 {
                node.disks.attach(&name(index), nvmet.target(index)).unwrap();
                node.disks.detach(&name(index)).unwrap();
            }
        }
        node.assert_nothing_left();
    }
    // Two volumes that come and go at the same time.
    std::thread::scope(|scope| {
        for index in 0..2 {
            let (node, nvmet) = (&node, &nvmet);
            scope.spawn(move || {
                for _ in 0..10 {
                    let device = node.disks.attach(&name(index), nvmet.target(index)).unwrap();
                    let mut bytes = [0; 4096];
                    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 0).unwrap();
                    drop(device);
                    node.disks.detach(&name(index)).unwrap();
                }
            });
        }
    });
    node.assert_nothing_left();
}

/// Connects as an administrator, or another driver, does.
fn connect_by_hand(nvmet: &Nvmet, port: u16) {
    let options = format!(
        "transport={},traddr={},trsvcid={port},nqn={},hostnqn={},hostid={}",
        nvme_target::transport(),
        nvme_target::address(port).ip(),
        nvmet.nqn,
        nvme_target::HOST_NQN,
        nvme_target::HOST_ID
    );
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/nvme-fabrics")
        .and_then(|mut file| std::io::Write::write_all(&mut file, options.as_bytes()))
        .unwrap();
}

#[test]
fn what_others_use_stays_connected() {
    let (node, nvmet) = (Node::new(), Nvmet::new("others", 2, 2));
    // A controller that somebody else connected is used, and stays; the other one is this volume's.
    connect_by_hand(&nvmet, 4420);
    drop(node.disks.attach("own", nvmet.target(0)).unwrap());
    assert_eq!(live(), 2);
    let detached = node.disks.detach("own").unwrap();
    assert_eq!((detached.disconnected.len(), live()), (1, 1), "{detached}");
    disconnect_by_hand();

    // Another volume of the subsystem, which no record names: mounted, and only open.
    drop(node.disks.attach("own", nvmet.target(0)).unwrap());
    drop(node.disks.attach("other", nvmet.target(1)).unwrap());
    let path = node.disks.device("other").unwrap().unwrap().path().to_owned();
    fs::remove_file(node.directory.path().join("remote/other.disk")).unwrap();
    let staging = node.staging("other");
    stage(&path, &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
    let detached = node.disks.detach("own").unwrap();
    assert!(detached.kept.as_ref().is_some_and(|why| why.contains("mounted")), "{detached}");
    assert_eq!((detached.disconnected.len(), live()), (0, 2));
    unstage(&staging, Some(&path)).unwrap();
    disconnect_by_hand();

    drop(node.disks.attach("own", nvmet.target(0)).unwrap());
    let other = eventually("the other disk", || {
        disks().into_iter().find(|disk| *disk != node.disks.device("own").unwrap().unwrap().path())
    });
    let mut opener = std::process::Command::new("sleep")
        .arg("1000")
        .stdin(fs::File::open(other).unwrap())
        .spawn()
        .unwrap();
    let detached = node.disks.detach("own").unwrap();
    assert!(detached.kept.as_ref().is_some_and(|why| why.contains("sleep")), "{detached}");
    assert_eq!(live(), 2);
    opener.kill().unwrap();
    opener.wait().unwrap();
    disconnect_by_hand();
    node.assert_nothing_left();
}

#[test]
fn a_reused_number_is_another_volume() {
    let (node, nvmet) = (Node::new(), Nvmet::new("reused", 2, 1));
    let target = nvmet.target(0).wait_limit(Duration::from_secs(3));
    let before = node.disks.attach("pvc", &target).unwrap();
    drop(before);
    // The namespace with the number 1 is another volume now.
    nvmet.rename(0, 8);
    eventually("the kernel sees it", || node.disks.device("pvc").unwrap().is_none().then_some(()));
    assert_eq!(node.disks.refresh("pvc").unwrap_err().kind(), ErrorKind::Unresponsive);
    let error = node.disks.attach("pvc", &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    println!("{error}");
    node.assert_nothing_left();
    // Under one name there is one namespace.
    drop(node.disks.attach("pvc", nvmet.target(8)).unwrap());
    let error = node.disks.attach("pvc", nvmet.target(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_number_that_was_reused_in_silence_is_another_volume() {
    let (node, nvmet) = (Node::new(), Nvmet::new("silence", 3, 1));
    drop(node.disks.attach("other", nvmet.target(2)).unwrap());
    for index in [0, 1] {
        let target = nvmet.target(index);
        drop(node.disks.attach("pvc", &target).unwrap());
        // The target announces no change, and the kernel still has the old name.
        let [(name, _)] = &controllers()[..] else { panic!("{:?}", controllers()) };
        devices::run("nvme", &["set-feature", &format!("/dev/{name}"), "--feature-id=0x0b", "--value=0"]);
        nvmet.rename(index, 8 + index);
        assert!(node.disks.device("pvc").unwrap().is_some(), "the kernel does not know it");
        let error = node.disks.refresh("pvc").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
        let short = target.wait_limit(Duration::from_secs(3));
        let error = node.disks.attach("pvc", &short).unwrap_err();
        println!("{error}");
        assert!([ErrorKind::NotFound, ErrorKind::WrongDevice].contains(&error.kind()), "{error}");
        assert_eq!(node.records(), ["other.disk"]);
    }
    node.disks.detach("other").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_namespace_that_comes_late_is_waited_for() {
    let (node, nvmet) = (Node::new(), Nvmet::new("late", 1, 1));
    nvmet.set_enabled(0, false);
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| node.disks.attach("pvc", nvmet.target(0)).unwrap());
        eventually("the connection", || (live() == 1).then_some(()));
        nvmet.set_enabled(0, true);
        assert_eq!(attaching.join().unwrap().size().unwrap(), 300 * MIB);
    });
    node.disks.detach("pvc").unwrap();
    // Nobody listens: nothing is left, and the portal is named.
    nvmet.close(4420);
    let error = node.disks.attach("pvc", nvmet.target(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert!(error.to_string().contains(&nvme_target::address(4420).to_string()), "{error}");
    node.assert_nothing_left();
}

#[test]
fn paths_go_and_come_back_under_load() {
    let (node, nvmet) = (Node::new(), Nvmet::new("paths", 1, 2));
    // One portal is down: the other is enough, and a later call adds the path.
    nvmet.close(4421);
    let device = node.disks.attach("pvc", nvmet.target(0)).unwrap();
    assert_eq!(live(), 1);
    nvmet.open(4421);
    assert_eq!(node.disks.attach("pvc", nvmet.target(0)).unwrap().number(), device.number());
    assert_eq!(live(), 2);
    under_load(&device, || {
        nvmet.close(4420);
        eventually("one path is left", || (live() == 1).then_some(()));
        nvmet.open(4420);
        eventually("it is back", || (live() == 2).then_some(()));
        for state in ["inaccessible", "non-optimized", "persistent-loss", "optimized"] {
            nvmet.set_access(4420, state);
            let file = "ana_state";
            eventually(state, || {
                let found = fs::read_dir("/sys/class/nvme").unwrap().flatten().flat_map(|controller| {
                    fs::read_dir(controller.path()).unwrap().flatten().map(|path| path.path().join(file))
                });
                found
                    .filter_map(|path| fs::read_to_string(path).ok())
                    .any(|text| text.trim() == state)
                    .then_some(())
            });
        }
        // Both are down for five seconds: the writes wait.
        nvmet.close(4420);
        nvmet.close(4421);
        std::thread::sleep(Duration::from_secs(5));
        nvmet.open(4420);
        nvmet.open(4421);
        eventually("both are back", || (live() == 2).then_some(()));
    });
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    // Without access nothing is returned.
    nvmet.set_access(4420, "inaccessible");
    nvmet.set_access(4421, "inaccessible");
    let error = node.disks.attach("pvc", nvmet.target(0).wait_limit(Duration::from_secs(3))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert!(error.to_string().contains("inaccessible"), "{error}");
    node.assert_nothing_left();
}

#[test]
fn dead_paths_do_not_keep_a_volume() {
    let (node, nvmet) = (Node::new(), Nvmet::new("dead", 1, 2));
    for ctrl_loss in [600, 3] {
        let target = nvmet.target(0).ctrl_loss_tmo(Duration::from_secs(ctrl_loss));
        let device = node.disks.attach("pvc", &target).unwrap();
        nvmet.close(4420);
        nvmet.close(4421);
        if ctrl_loss == 3 {
            eventually("the kernel gives up", || controllers().is_empty().then_some(()));
        } else {
            eventually("no path is left", || (live() == 0).then_some(()));
        }
        drop(device);
        let start = Instant::now();
        let detached = node.disks.detach("pvc").unwrap();
        println!("ctrl_loss_tmo {ctrl_loss}: {:?}: {detached}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(100));
        assert!(detached.not_flushed.is_some(), "{detached}");
        eventually("the child of the flush ends", || disks().is_empty().then_some(()));
        node.assert_nothing_left();
        nvmet.open(4420);
        nvmet.open(4421);
    }
}

#[test]
fn a_volume_that_the_kernel_gave_up_is_attached_again() {
    let (node, nvmet) = (Node::new(), Nvmet::new("gone", 2, 2));
    nvmet.images[0].write(4096, b"right");
    let target = nvmet.target(0).ctrl_loss_tmo(Duration::from_secs(3));
    drop(node.disks.attach("pvc", &target).unwrap());
    nvmet.close(4420);
    nvmet.close(4421);
    eventually("the kernel gives up", || controllers().is_empty().then_some(()));
    assert!(node.disks.device("pvc").unwrap().is_none());
    nvmet.open(4420);
    nvmet.open(4421);
    let device = node.disks.attach("pvc", &target).unwrap();
    let mut bytes = [0; 5];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!((&bytes, live()), (b"right", 2));
    drop(device);
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

#[test]
fn a_target_that_restarts_keeps_its_volume() {
    let (node, nvmet) = (Node::new(), Nvmet::new("restarted", 2, 2));
    let device = node.disks.attach("pvc", nvmet.target(0)).unwrap();
    under_load(&device, || {
        nvmet.stop();
        eventually("no path is left", || (live() == 0).then_some(()));
        nvmet.start();
        eventually("both are back", || (live() == 2).then_some(()));
    });
    assert_eq!(node.disks.device("pvc").unwrap().unwrap().number(), device.number());
    drop(device);
    assert!(node.disks.detach("pvc").unwrap().not_flushed.is_none());
    node.assert_nothing_left();
}

#[test]
fn an_attachment_of_an_earlier_boot_is_only_forgotten() {
    let (node, nvmet) = (Node::new(), Nvmet::new("boot", 1, 1));
    drop(node.disks.attach("pvc", nvmet.target(0)).unwrap());
    let file = node.directory.path().join("remote/pvc.disk");
    let text = fs::read_to_string(&file).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&file, text.replace(boot.trim(), "an-earlier-boot")).unwrap();
    assert!(node.disks.device("pvc").unwrap().is_none());
    assert!(node.disks.detach("pvc").unwrap().disconnected.is_empty());
    assert_eq!((live(), node.records()), (1, vec![]));
    disconnect_by_hand();
}

#[test]
fn keys_are_needed_and_not_printed() {
    const RIGHT: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    const WRONG: &str = "DHHC-1:00:nJ2xzcZbFuKnBUKYGkAgnuAsMCFqFVF1W4RsXMkTGLiE0kGm:";
    const TARGETS: &str = "DHHC-1:00:BwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYDWRHm:";
    let (node, nvmet) = (Node::new(), Nvmet::new("keys", 1, 1));
    nvmet.require_key(RIGHT, TARGETS);
    let plain = nvmet.target(0);
    let [wrong, wrong_target] =
        [(WRONG, None), (RIGHT, Some(WRONG))].map(|(own, other)| plain.clone().dhchap(own, other).unwrap());
    for target in [plain.clone(), wrong, wrong_target] {
        let error = node.disks.attach("pvc", &target).unwrap_err();
        println!("{:?}: {error}", error.kind());
        assert!(!format!("{error:?}").contains("DHHC"), "{error}");
        node.assert_nothing_left();
    }
    for of_target in [None, Some(TARGETS)] {
        let target = plain.clone().dhchap(RIGHT, of_target).unwrap();
        let device = node.disks.attach("pvc", target).unwrap();
        assert!(device.size().unwrap() > 0);
        drop(device);
        let record = fs::read_to_string(node.directory.path().join("remote/pvc.disk")).unwrap();
        assert!(!record.contains("DHHC"), "{record}");
        node.disks.detach("pvc").unwrap();
        node.assert_nothing_left();
    }
}

#[test]
fn a_raw_publication_keeps_the_disk() {
    let (node, nvmet) = (Node::new(), Nvmet::new("raw", 1, 1));
    let device = node.disks.attach("pvc", nvmet.target(0)).unwrap();
    let target = node.staging("published");
    csi_mount::flow::block::publish_device(device.path(), &target, csi_mount::DeviceAccess::ReadWrite)
        .unwrap();
    assert_eq!(node.disks.detach("pvc").unwrap_err().kind(), ErrorKind::Busy);
    csi_mount::flow::block::unpublish(&target).unwrap();
    drop(device);
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}
