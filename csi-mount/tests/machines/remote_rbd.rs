//! Images of a real Ceph cluster, by the kernel's client: attach, grow, detach, and what must not happen.
//!
//! The tests run in an emulated machine next to a cluster: `cargo xtask test --systems ceph`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use csi_mount::internal::flow::block::{StagePlan, expand, publish_device, stage, unpublish, unstage};
use csi_mount::remote::{RbdTarget, RemoteDisks};
use csi_mount::{DeviceAccess, ErrorKind, Filesystem, Target};
use test_support::ceph::{Cluster as _, Daemon, IMAGE_NODE, IMAGES};

use crate::rbd_cluster::{Rbd, mapped, names, timed};

const MIB: u64 = 1 << 20;

/// How long reads and writes wait for a silent cluster. Under load an OSD answers after several seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

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

    fn target(&self, name: &str) -> Target {
        Target::new(self.directory.path().join(name)).unwrap()
    }

    fn assert_nothing_left(&self) {
        assert_eq!((mapped(), names(&self.directory.path().join("remote"))), (vec![], vec![]));
    }
}

/// The key is in nothing that the kernel shows, and not in the records.
fn assert_key_is_nowhere(node: &Node, key: &str) {
    let record = node.directory.path().join("remote/pvc.disk");
    let mut files = vec!["/proc/keys".into(), "/proc/self/mountinfo".into(), record];
    for id in mapped() {
        files.push(Path::new("/sys/bus/rbd/devices").join(id).join("config_info"));
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        assert!(!text.contains(key), "{}: {text}", file.display());
    }
    // The key of the process that mapped ended with it.
    assert!(!fs::read_to_string("/proc/keys").unwrap().contains("csi-mount"));
}

fn lives(rbd: &Rbd, node: &Node, filesystem: Filesystem) {
    let image = rbd.image("csi-pvc", 320);
    let staging = node.target("staging");
    let device = timed("attach", || node.disks.attach("pvc", &image)).0.unwrap();
    assert_key_is_nowhere(node, &rbd.cluster.key(IMAGE_NODE));
    stage(device.path(), &staging, &StagePlan::new(filesystem).expect(image.expected())).unwrap();
    fs::write(staging.path().join("file"), "content").unwrap();
    // Again, with the volume in use.
    assert_eq!(node.disks.attach("pvc", &image).unwrap().number(), device.number());
    assert_eq!(node.disks.device("pvc").unwrap().unwrap().number(), device.number());
    assert_eq!(node.disks.detach("pvc").unwrap_err().kind(), ErrorKind::Busy);

    rbd.run(&["resize", "--pool", IMAGES, "csi-pvc", "--size", "400M"]);
    assert_eq!(node.disks.refresh("pvc").unwrap(), 400 * MIB);
    assert_eq!(device.size().unwrap(), 400 * MIB);
    expand(staging.path()).unwrap();

    unstage(&staging, Some(device.path())).unwrap();
    drop(device);
    let detached = timed("detach", || node.disks.detach("pvc")).0.unwrap();
    assert_eq!(detached.disconnected, ["rbd0"], "{detached}");
    assert!(detached.not_flushed.is_none() && detached.kept.is_none(), "{detached}");
    node.assert_nothing_left();
    node.disks.detach("pvc").unwrap();

    // What was written is there when it comes back, and raw.
    let device = node.disks.attach("pvc", &image).unwrap();
    let raw = File::options().write(true).open(device.path()).unwrap();
    raw.write_all_at(b"raw", 399 * MIB).unwrap();
    drop(raw);
    let published = node.target("published");
    publish_device(device.path(), &published, DeviceAccess::ReadWrite).unwrap();
    assert_eq!(node.disks.detach("pvc").unwrap_err().kind(), ErrorKind::Busy);
    unpublish(&published).unwrap();
    drop(device);
    // The last write was not synchronized: the detach does it.
    node.disks.detach("pvc").unwrap();
    let device = node.disks.attach("pvc", &image).unwrap();
    let mut bytes = [0; 3];
    File::open(device.path()).unwrap().read_exact_at(&mut bytes, 399 * MIB).unwrap();
    assert_eq!(&bytes, b"raw");
    stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
    assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
    unstage(&staging, Some(device.path())).unwrap();
    drop(device);
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
    rbd.run(&["rm", "--pool", IMAGES, "csi-pvc"]);
}

#[test]
fn a_volume_lives() {
    let rbd = Rbd::start();
    let node = Node::new();
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        lives(&rbd, &node, filesystem);
    }
}

#[test]
fn a_clone_lives_beside_its_origin() {
    let rbd = Rbd::start();
    let node = Node::new();
    let image = rbd.image("csi-origin", 320);
    let [origin, clone] = ["origin", "clone"].map(|name| node.target(name));
    let disk = node.disks.attach("origin", &image).unwrap();
    stage(disk.path(), &origin, &StagePlan::new(Filesystem::Xfs).expect(image.expected())).unwrap();
    fs::write(origin.path().join("file"), "of both").unwrap();
    File::open(origin.path().join("file")).unwrap().sync_all().unwrap();
    // Made while the origin is mounted, with its UUID.
    rbd.run(&["snap", "create", &format!("{IMAGES}/csi-origin@s")]);
    let [from, to] = ["csi-origin@s", "csi-clone"].map(|name| format!("{IMAGES}/{name}"));
    rbd.run(&["clone", "--rbd-default-clone-format=2", &from, &to]);
    let second = rbd.target("csi-clone");

    let copy = node.disks.attach("clone", &second).unwrap();
    assert_ne!(copy.number(), disk.number());
    // A disk is not taken for another one, which is not mapped.
    let plan = StagePlan::new(Filesystem::Xfs).never_format();
    let absent = rbd.target_with("csi-clone", "10a3").expected();
    let error = stage(copy.path(), &clone, &plan.clone().expect(absent)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
    stage(copy.path(), &clone, &plan.expect(second.expected())).unwrap();
    assert_eq!(fs::read_to_string(clone.path().join("file")).unwrap(), "of both");
    fs::write(clone.path().join("own"), "of the clone").unwrap();
    assert!(!origin.path().join("own").exists());
    unstage(&origin, Some(disk.path())).unwrap();
    drop(disk);
    node.disks.detach("origin").unwrap();
    assert_eq!(fs::read_to_string(clone.path().join("own")).unwrap(), "of the clone");
    unstage(&clone, Some(copy.path())).unwrap();
    drop(copy);
    node.disks.detach("clone").unwrap();
    node.assert_nothing_left();
}

#[test]
fn what_the_cluster_refuses_is_named_and_nothing_stays() {
    let rbd = Rbd::start();
    let node = Node::new();
    let image = rbd.image("csi-pvc", 64);
    let wrong = "AQBgmRxlAAAAABAAHf1YsTmDP7P5Q7kKzuxq9A==";
    rbd.run(&["create", "--pool", IMAGES, "plain", "--size", "64M", "--image-feature=layering"]);
    let other_pool = csi_mount::remote::RbdPool::new(&rbd.fsid, "nothing", rbd.pool_id).unwrap();
    let other_pool = RbdTarget::new(other_pool, "csi-pvc", "10a3").unwrap().monitor(rbd.cluster.monitor());
    for (what, target, kind) in [
        ("wrong key", image.clone().user(IMAGE_NODE, wrong).unwrap(), ErrorKind::WrongKey),
        ("no rights", image.clone().user("nobody", &rbd.cluster.key("nobody")).unwrap(), ErrorKind::WrongKey),
        ("no such image", rbd.target_with("nothing", "10a3"), ErrorKind::NotFound),
        (
            "no such pool",
            other_pool.user(IMAGE_NODE, &rbd.cluster.key(IMAGE_NODE)).unwrap(),
            ErrorKind::NotFound,
        ),
        // The image of an earlier volume, with its name.
        ("another image", rbd.target_with("csi-pvc", "10a3"), ErrorKind::WrongDevice),
        ("no exclusive-lock", rbd.target("plain").exclusive(), ErrorKind::Unsupported),
    ] {
        let (result, took) = timed(what, || node.disks.attach("pvc", &target));
        let error = result.unwrap_err();
        assert!(error.kind() == kind && took < Duration::from_secs(60), "{what}: {error:?}");
        assert!(!format!("{error:?}").contains(wrong), "{error:?}");
        node.assert_nothing_left();
    }
    drop(node.disks.attach("pvc", rbd.target("plain")).unwrap());
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

#[test]
fn the_lock_of_another_client_is_respected_and_that_of_a_dead_one_is_taken_over() {
    let rbd = Rbd::start();
    let node = Node::new();
    let image = rbd.image("csi-pvc", 64).exclusive();
    let at = format!("{IMAGES}/csi-pvc");
    // A client that wants to be asked by nobody.
    rbd.run(&["lock", "add", &at, "other"]);
    let (result, took) = timed("locked by another program", || node.disks.attach("pvc", &image));
    let error = result.unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && took < Duration::from_secs(60), "{error:?}");
    node.assert_nothing_left();
    let locks = rbd.run(&["lock", "ls", &at]);
    let locker = locks.split_whitespace().find(|word| word.starts_with("client.")).unwrap();
    rbd.run(&["lock", "rm", &at, "other", locker]);

    // This node has it: a second client of the kernel is refused.
    let device = node.disks.attach("pvc", &image).unwrap();
    let held = rbd.run(&["lock", "ls", &at]);
    assert!(held.contains("client."), "{held}");
    let second = || second_client(&rbd, "exclusive,lock_timeout=20");
    let error = timed("a second client", second).0.unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(30 | 110 | 16)), "{error}");
    assert_eq!(mapped().len(), 1);
    drop(device);
    node.disks.detach("pvc").unwrap();

    // A client that is killed while it writes: its lock is taken over when the cluster has given it up.
    let bench = ["-s", "KILL", "5", "rbd", "bench", "--io-type", "write", "--io-total", "64G", &at];
    assert!(rbd.cluster.run("timeout", &bench).is_none());
    assert!(rbd.run(&["lock", "ls", &at]).contains("client."));
    let (result, took) = timed("the other client has died", || node.disks.attach("pvc", &image));
    result.unwrap();
    assert!(took < Duration::from_secs(75), "{took:?}");
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

/// Maps the image by another client of this kernel, as another node does.
fn second_client(rbd: &Rbd, options: &str) -> io::Result<()> {
    let monitor = rbd.cluster.monitor();
    let key = rbd.cluster.key(IMAGE_NODE);
    let line = format!("{monitor} noshare,name={IMAGE_NODE},secret={key},{options} {IMAGES} csi-pvc -");
    File::options().write(true).open("/sys/bus/rbd/add_single_major")?.write_all(line.as_bytes())
}

/// What another program maps, it also unmaps.
#[test]
fn a_map_of_another_program_is_used_and_stays() {
    let rbd = Rbd::start();
    let node = Node::new();
    let image = rbd.image("csi-pvc", 64);
    second_client(&rbd, "exclusive").unwrap();
    let before = mapped();
    drop(node.disks.attach("pvc", &image).unwrap());
    let detached = node.disks.detach("pvc").unwrap();
    assert!(detached.disconnected.is_empty() && detached.kept.is_some(), "{detached}");
    assert_eq!(mapped(), before);
    fs::write("/sys/bus/rbd/remove_single_major", &before[0]).unwrap();
}

/// Each step with a volume that is staged, while a part of the cluster is silent.
fn silent(daemon: Daemon, is_killed: bool) {
    let rbd = Rbd::start();
    let node = Node::new();
    let limit = Some(REQUEST_TIMEOUT);
    let [image, other] = ["csi-pvc", "csi-other"].map(|name| rbd.image(name, 64).request_timeout(limit));
    let staging = node.target("staging");
    let device = node.disks.attach("pvc", &image).unwrap();
    stage(device.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
    fs::write(staging.path().join("file"), "content").unwrap();
    rustix::fs::sync();
    if is_killed {
        rbd.cluster.kill(daemon);
    } else {
        rbd.cluster.stop(daemon);
    }
    let how = format!("RBD | {daemon:?} {}", if is_killed { "killed" } else { "stopped" });
    let file = staging.path().join("new");
    let workload = thread::spawn({
        let how = how.clone();
        move || {
            let write = || {
                File::create(&file).and_then(|mut file| {
                    file.write_all(b"new")?;
                    file.sync_all()
                })
            };
            timed(&format!("{how} | the workload"), write).0.is_ok()
        }
    });
    thread::sleep(Duration::from_secs(1));
    let path = staging.path();
    let bound = Duration::from_secs(100);
    let step = |what: &str, took: Duration| assert!(took < bound, "{what}: {took:?}");
    step("stats", timed(&format!("{how} | stats"), || csi_mount::internal::stats(path)).1);
    step("device", timed(&format!("{how} | device"), || node.disks.device("pvc")).1);
    step("refresh", timed(&format!("{how} | refresh"), || node.disks.refresh("pvc")).1);
    step("attach", timed(&format!("{how} | attach another"), || node.disks.attach("other", &other)).1);
    step("detach", timed(&format!("{how} | detach the other"), || node.disks.detach("other")).1);
    let (unstaged, took) = timed(&format!("{how} | unstage"), || unstage(&staging, Some(device.path())));
    step("unstage", took);
    drop((device, unstaged));
    let mut rounds = 0;
    let detached = loop {
        let (result, took) = timed(&format!("{how} | detach"), || node.disks.detach("pvc"));
        step("detach", took);
        rounds += 1;
        match result {
            Ok(detached) => break Some(detached),
            Err(_) if rounds == 5 => break None,
            Err(_) => {}
        }
    };
    let was_written = workload.join().unwrap();
    if is_killed {
        rbd.cluster.start_again(daemon);
    } else {
        rbd.cluster.go_on(daemon);
    }
    // What was refused is done now.
    if let Some(detached) = &detached {
        println!("{how} | detached | {detached}");
        let is_lost = detached.not_flushed.is_some();
        assert!(was_written || is_lost || matches!(daemon, Daemon::Osd), "{detached}");
    }
    let eventually = |what: &str, mut work: Box<dyn FnMut() -> csi_mount::Result<()> + '_>| {
        let end = std::time::Instant::now() + Duration::from_secs(180);
        while let Err(error) = work() {
            assert!(std::time::Instant::now() < end, "{what}: {error}");
            thread::sleep(Duration::from_millis(200));
        }
    };
    eventually("unstage", Box::new(|| unstage(&staging, None).map(drop)));
    eventually("detach", Box::new(|| node.disks.detach("pvc").map(drop)));
    eventually("detach", Box::new(|| node.disks.detach("other").map(drop)));
    eventually(
        "nothing is mapped",
        Box::new(|| match mapped()[..] {
            [] => Ok(()),
            _ => node.disks.detach("pvc").map(drop),
        }),
    );
    node.assert_nothing_left();
    let device = node.disks.attach("pvc", &image).unwrap();
    stage(device.path(), &staging, &StagePlan::new(Filesystem::Ext4).never_format()).unwrap();
    assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
    unstage(&staging, Some(device.path())).unwrap();
    drop(device);
    node.disks.detach("pvc").unwrap();
    node.assert_nothing_left();
}

#[test]
fn the_monitor_is_stopped() {
    silent(Daemon::Monitor, false);
}

#[test]
fn the_monitor_is_killed() {
    silent(Daemon::Monitor, true);
}

#[test]
fn the_osd_is_stopped() {
    silent(Daemon::Osd, false);
}
