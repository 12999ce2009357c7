//! What every kind of remote disk does, as scenarios on a node with a storage system ([`Bed`]) on this machine.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{StagePlan, expand, publish_device, stage, unpublish, unstage};
use csi_mount::remote::{Detached, RemoteDisks, RemoteTarget};
use csi_mount::{BlockDevice, DeviceAccess, DeviceNumber, ErrorKind, Filesystem, Target};

use crate::devices::{Image, MIB, eventually, under_load};
use crate::multipath_node::Daemon;

/// The name of the attachment in most scenarios.
pub(crate) const NAME: &str = "pvc/1";

/// A storage system with volumes of 300 MiB.
pub(crate) trait Bed: Sync {
    /// The volume with this index, as a driver names it.
    fn volume(&self, index: usize) -> RemoteTarget;

    fn image(&self, index: usize) -> &Image;

    fn grow(&self, index: usize, mebibytes: u64);

    /// How many paths lead to each volume if all work.
    fn paths(&self) -> usize;

    /// How many connections the first attach makes, and the last detach ends.
    fn connections(&self) -> usize {
        self.paths()
    }

    /// How many paths of the only volume work.
    fn working(&self) -> usize;

    /// Cuts a path, or restores it.
    fn set_path(&self, path: usize, works: bool);

    fn stop(&self);

    fn start(&self);

    /// What the names of the node's disks begin with.
    fn disk_prefix(&self) -> &'static str {
        "/dev/"
    }

    /// Checks that the node shows what these attached volumes need.
    fn assert_shows(&self, volumes: &[usize]);

    /// What the node still has of the storage system.
    fn left(&self) -> Vec<String>;
}

/// A node with attachments.
pub(crate) struct Node<B> {
    // The target ends before the daemons.
    pub(crate) bed: B,
    daemons: Vec<Daemon>,
    pub(crate) disks: RemoteDisks,
    directory: tempfile::TempDir,
}

impl<B: Bed> Node<B> {
    pub(crate) fn new(bed: B) -> Self {
        Self::with(Vec::new(), bed)
    }

    /// A node with these daemons; the last one is multipathd.
    pub(crate) fn with(daemons: Vec<Daemon>, bed: B) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disks = RemoteDisks::new(directory.path().join("remote"));
        Self { bed, daemons, disks, directory }
    }

    fn stop_multipathd(&mut self) {
        drop(self.daemons.pop());
    }

    /// The names of the records.
    pub(crate) fn records(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path().join("remote")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with(".lock-")).collect()
    }

    /// The file of a record.
    pub(crate) fn record(&self, name: &str) -> PathBuf {
        self.directory.path().join("remote").join(format!("{}.disk", name.replace('/', "%2F")))
    }

    pub(crate) fn staging(&self, name: &str) -> Target {
        Target::new(self.directory.path().join(name)).unwrap()
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!((self.bed.left(), self.records()), (vec![], vec![]));
    }

    /// Attaches the first volume.
    pub(crate) fn attach(&self) -> BlockDevice {
        self.disks.attach(NAME, self.bed.volume(0)).unwrap()
    }

    pub(crate) fn detach(&self) -> Detached {
        self.disks.detach(NAME).unwrap()
    }

    /// Repeats a detach until it succeeds, as an orchestrator does.
    pub(crate) fn detach_in_time(&self) -> Detached {
        eventually("the detach succeeds", || match self.disks.detach(NAME) {
            Ok(detached) => Some(detached),
            Err(error) => {
                println!("repeated: {error}");
                None
            }
        })
    }

    /// Checks that an attach fails in this way. Returns the error's text.
    pub(crate) fn refuses(&self, name: &str, target: impl Into<RemoteTarget>, kind: ErrorKind) -> String {
        let error = self.disks.attach(name, target).unwrap_err();
        println!("{:?}: {error}", error.kind());
        assert_eq!(error.kind(), kind, "{error}");
        error.to_string()
    }

    fn set_all_paths(&self, work: bool) {
        (0..self.bed.paths()).for_each(|path| self.bed.set_path(path, work));
    }

    fn wait_for_paths(&self, count: usize) {
        eventually(&format!("paths that work: {count}"), || (self.bed.working() == count).then_some(()));
    }

    /// A volume's life: filesystem, growth, detach, and raw.
    pub(crate) fn lives(&self, index: usize, filesystem: Filesystem) {
        let target = self.bed.volume(index);
        let staging = self.staging("staging");
        let start = Instant::now();
        let device = self.disks.attach(NAME, &target).unwrap();
        println!("attached in {:?}", start.elapsed());
        assert!(device.path().to_str().unwrap().starts_with(self.bed.disk_prefix()), "{device:?}");
        self.bed.assert_shows(&[index]);
        stage(device.path(), &staging, &StagePlan::new(filesystem).expect(target.expected())).unwrap();
        fs::write(staging.path().join("file"), "content").unwrap();
        // Again, with the volume in use.
        assert_eq!(self.disks.attach(NAME, &target).unwrap().number(), device.number());
        assert_eq!(self.disks.device(NAME).unwrap().unwrap().number(), device.number());
        let error = self.disks.detach(NAME).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        self.bed.assert_shows(&[index]);

        assert_eq!(self.disks.refresh(NAME).unwrap(), 300 * MIB);
        self.bed.grow(index, 400);
        assert_eq!(self.disks.refresh(NAME).unwrap(), 400 * MIB);
        assert_eq!(device.size().unwrap(), 400 * MIB);
        expand(staging.path()).unwrap();

        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        let start = Instant::now();
        let detached = self.detach();
        println!("detached in {:?}: {detached}", start.elapsed());
        assert!(detached.not_flushed.is_none() && detached.kept.is_none(), "{detached}");
        assert_eq!(detached.disconnected.len(), self.bed.connections());
        self.assert_nothing_left();
        assert!(self.disks.device(NAME).unwrap().is_none());
        assert!(self.detach().disconnected.is_empty(), "again");

        // What was written is there when it comes back, and raw.
        let device = self.disks.attach(NAME, &target).unwrap();
        assert_eq!(device.size().unwrap(), 400 * MIB);
        let raw = fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        raw.write_all_at(b"raw", 399 * MIB).unwrap();
        drop(raw);
        let published = self.staging("published");
        publish_device(device.path(), &published, DeviceAccess::ReadWrite).unwrap();
        assert_eq!(self.disks.detach(NAME).unwrap_err().kind(), ErrorKind::Busy);
        unpublish(&published).unwrap();
        stage(device.path(), &staging, &StagePlan::new(filesystem).never_format()).unwrap();
        assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "content");
        unstage(&staging, Some(device.path())).unwrap();
        drop(device);
        self.detach();
        assert_eq!(self.bed.image(index).read(399 * MIB, 3), b"raw");
        self.assert_nothing_left();
    }

    pub(crate) fn ten_volumes_come_and_go(&self) {
        let name = |index: usize| format!("pvc-{index}");
        let attach = |index: usize| self.disks.attach(&name(index), self.bed.volume(index)).unwrap().number();
        for order in [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 2, 5, 0, 7, 1, 8, 3, 6, 4]] {
            let numbers: Vec<_> = std::thread::scope(|scope| {
                let attach = &attach;
                let all: Vec<_> = (0..10).map(|index| scope.spawn(move || attach(index))).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            self.bed.assert_shows(&order);
            for (position, index) in order.into_iter().enumerate() {
                for left in &order[position..] {
                    let device = self.disks.device(&name(*left)).unwrap().expect("it is attached");
                    assert_eq!(device.number(), numbers[*left]);
                    device.size().unwrap();
                }
                let detached = self.disks.detach(&name(index)).unwrap();
                let ended = if position == 9 { self.bed.connections() } else { 0 };
                assert_eq!(detached.disconnected.len(), ended, "{detached}");
                self.bed.assert_shows(&order[position + 1..]);
                // An attach of another volume meets no disconnect.
                if position == 4 {
                    attach(index);
                    self.disks.detach(&name(index)).unwrap();
                }
            }
            self.assert_nothing_left();
        }
    }

    pub(crate) fn two_volumes_come_and_go_at_the_same_time(&self) {
        std::thread::scope(|scope| {
            for index in 0..2 {
                scope.spawn(move || {
                    let name = format!("pvc-{index}");
                    for _ in 0..10 {
                        let device = self.disks.attach(&name, self.bed.volume(index)).unwrap();
                        read(&device, 0, 4096);
                        drop(device);
                        self.disks.detach(&name).unwrap();
                    }
                });
            }
        });
        self.assert_nothing_left();
    }

    /// Each volume has a map of its own, also if a third one, which nothing uses, has one.
    pub(crate) fn two_volumes_have_their_own_maps(&self) {
        let attach = |index: usize| {
            self.disks.attach(&format!("pvc-{index}"), self.bed.volume(index)).unwrap().number()
        };
        let [first, second] = [0, 1].map(attach);
        assert_ne!(first, second);
        self.bed.assert_shows(&[0, 1]);
        assert!(self.disks.detach("pvc-0").unwrap().kept.is_some());
        assert_eq!(self.disks.device("pvc-1").unwrap().unwrap().number(), second);
        self.bed.assert_shows(&[1]);
        // No event announces these paths again.
        attach(0);
        assert!(self.disks.detach("pvc-1").unwrap().kept.is_some());
        let detached = self.disks.detach("pvc-0").unwrap();
        assert_eq!(detached.disconnected.len(), self.bed.connections(), "{detached}");
        self.assert_nothing_left();
    }

    /// Another volume of the target, which no record names, keeps the connection: mounted, and only open.
    pub(crate) fn a_volume_without_a_record_keeps_the_connection(&self, disconnect_by_hand: fn()) {
        let attach = || {
            drop(self.disks.attach("own", self.bed.volume(0)).unwrap());
            let other = self.disks.attach("other", self.bed.volume(1)).unwrap();
            fs::remove_file(self.record("other")).unwrap();
            other.path().to_owned()
        };
        let detach = |user: &str| {
            let detached = self.disks.detach("own").unwrap();
            assert!(detached.kept.as_ref().is_some_and(|why| why.contains(user)), "{detached}");
            assert!(detached.disconnected.is_empty(), "{detached}");
            self.bed.assert_shows(&[1]);
        };
        let path = attach();
        let staging = self.staging("other");
        stage(&path, &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        detach("mounted");
        unstage(&staging, Some(&path)).unwrap();
        disconnect_by_hand();

        let disk = fs::File::open(attach()).unwrap();
        let mut opener = std::process::Command::new("sleep").arg("1000").stdin(disk).spawn().unwrap();
        detach("sleep");
        opener.kill().unwrap();
        opener.wait().unwrap();
        disconnect_by_hand();
        self.assert_nothing_left();
    }

    /// A volume that appears during the attach is waited for.
    pub(crate) fn a_late_volume_is_waited_for(
        &self,
        target: impl Into<RemoteTarget>,
        is_connected: impl Fn() -> bool,
        appear: impl FnOnce(),
    ) {
        let target = target.into();
        std::thread::scope(|scope| {
            let attaching = scope.spawn(|| self.disks.attach(NAME, target).unwrap().size().unwrap());
            eventually("the connection", || is_connected().then_some(()));
            appear();
            assert_eq!(attaching.join().unwrap(), 300 * MIB);
        });
    }

    /// The second of two paths is missing at the attach: the first one is enough, and a later attach adds the other.
    pub(crate) fn a_late_path_is_added(&self) -> BlockDevice {
        self.bed.set_path(1, false);
        let device = self.attach();
        assert_eq!(self.bed.working(), 1);
        self.bed.set_path(1, true);
        assert_eq!(self.attach().number(), device.number());
        assert_eq!(self.bed.working(), 2);
        device
    }

    /// Each path, all paths, and the whole target go and come back while something is written: no write fails.
    pub(crate) fn paths_go_and_come_back_under_load(&self, device: BlockDevice, and_then: impl FnOnce()) {
        let all = self.bed.paths();
        under_load(&device, || {
            for path in 0..all {
                self.bed.set_path(path, false);
                self.wait_for_paths(all - 1);
                if all > 1 {
                    // The volume can be used and attached again meanwhile.
                    assert_eq!(self.attach().number(), device.number());
                    std::thread::sleep(Duration::from_secs(1));
                }
                self.bed.set_path(path, true);
                self.wait_for_paths(all);
            }
            // The writes wait.
            self.set_all_paths(false);
            self.wait_for_paths(0);
            std::thread::sleep(Duration::from_secs(5));
            self.set_all_paths(true);
            self.wait_for_paths(all);
            self.bed.stop();
            self.wait_for_paths(0);
            self.bed.start();
            self.wait_for_paths(all);
            and_then();
        });
        assert_eq!(self.disks.device(NAME).unwrap().unwrap().number(), device.number());
        drop(device);
        assert!(self.detach().not_flushed.is_none());
        self.assert_nothing_left();
    }

    /// A volume that the kernel gave up is attached again. Returns the numbers of both disks.
    pub(crate) fn is_attached_again(
        &self,
        target: impl Into<RemoteTarget>,
        is_given_up: impl Fn() -> bool,
    ) -> [DeviceNumber; 2] {
        let target = target.into();
        self.bed.image(0).write(4096, b"right");
        let before = self.disks.attach(NAME, &target).unwrap().number();
        self.set_all_paths(false);
        eventually("the kernel gives the volume up", || is_given_up().then_some(()));
        self.set_all_paths(true);
        let device = self.disks.attach(NAME, &target).unwrap();
        assert_eq!(read(&device, 4096, 5), b"right");
        self.wait_for_paths(self.bed.paths());
        let after = device.number();
        drop(device);
        assert!(self.detach().not_flushed.is_none());
        self.assert_nothing_left();
        [before, after]
    }

    /// A volume none of whose paths works is detached all the same, and its writes are reported as possibly lost.
    pub(crate) fn is_detached_without_paths(&self, detach: fn(&Self) -> Detached, limit: Duration) {
        let start = Instant::now();
        let detached = detach(self);
        println!("{:?}: {detached}", start.elapsed());
        assert!(start.elapsed() < limit);
        assert!(detached.not_flushed.is_some(), "{detached}");
        // The child of the flush can still have the disk open.
        eventually("nothing is left", || self.bed.left().is_empty().then_some(()));
        self.assert_nothing_left();
    }

    /// multipathd is needed to attach and to grow, and not to detach.
    pub(crate) fn needs_multipathd(&mut self) {
        drop(self.attach());
        self.stop_multipathd();
        // The map that exists is used, and does not grow.
        assert!(self.disks.device(NAME).unwrap().is_some());
        self.bed.grow(0, 400);
        let error = self.disks.refresh(NAME).unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        assert!(self.detach().not_flushed.is_none());
        self.assert_nothing_left();

        let error = self.refuses(NAME, self.bed.volume(0), ErrorKind::Unsupported);
        assert!(error.contains("multipathd"), "{error}");
        self.assert_nothing_left();
    }

    /// An attachment of an earlier boot is only forgotten: its connection stays.
    pub(crate) fn an_earlier_boot_is_forgotten(&self) {
        drop(self.attach());
        let file = self.record(NAME);
        let text = fs::read_to_string(&file).unwrap();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        fs::write(&file, text.replace(boot.trim(), "an-earlier-boot")).unwrap();
        assert!(self.disks.device(NAME).unwrap().is_none());
        assert!(self.detach().disconnected.is_empty());
        assert_eq!((self.bed.working(), self.records()), (1, vec![]));
    }
}

pub(crate) fn read(device: &BlockDevice, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}
