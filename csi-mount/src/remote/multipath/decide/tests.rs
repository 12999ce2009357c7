//! The decisions, with disks and maps in a directory that stands for `/sys`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::daemon::Daemon;
use super::super::daemon::tests::FakeDaemon;
use super::super::{Found, Multipath, SinglePath};
use super::*;
use crate::testing::FakeDisk;
use crate::testing::disks::FakeDisks;

const WWID: &str = "naa.600508b400105e210000900000490000";
const UUID: &str = "mpath-3600508b400105e210000900000490000";
const OTHER: &str = "naa.600508b400105e210000900000490001";

struct Node {
    directory: tempfile::TempDir,
    disks: FakeDisks,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disks = FakeDisks::new(directory.path());
        Self { directory, disks }
    }

    fn path(&self, name: &str, wwid: &str) -> DeviceNumber {
        let lun = name.bytes().last().unwrap().into();
        self.disks.add(FakeDisk::scsi(name, lun).wwid(wwid).size(64 << 20))
    }

    fn map(&self, name: &str, uuid: &str, paths: &[&str]) -> DeviceNumber {
        self.disks.add(FakeDisk::multipath(name, paths.iter().copied()).wwid(uuid).size(64 << 20))
    }

    fn sys(&self) -> PathBuf {
        self.directory.path().join("sys")
    }

    fn state(&self, live: &[DeviceNumber]) -> Result<State> {
        state(&Sysfs::below(&self.sys()), WWID, live)
    }

    fn multipath(&self, daemon: Daemon) -> Multipath {
        Multipath { sys: self.sys(), daemon }
    }

    fn set(&self, file: &str, text: &str) {
        fs::write(self.sys().join("block").join(file), format!("{text}\n")).unwrap();
    }
}

fn incomplete(map: Option<&str>, missing: &[&str]) -> State {
    let missing = missing.iter().map(|path| (*path).to_owned()).collect();
    State::Incomplete { map: map.map(str::to_owned), missing }
}

fn absent(directory: &Path) -> Daemon {
    Daemon::at(&directory.join("absent"))
}

#[test]
fn a_map_is_used_when_all_live_paths_belong_to_it() {
    let node = Node::new();
    let [first, second] = ["sda", "sdb"].map(|name| node.path(name, WWID));
    assert_eq!(node.state(&[first, second]).unwrap(), incomplete(None, &["sda", "sdb"]));
    let map = node.map("dm-0", UUID, &["sda"]);
    assert_eq!(node.state(&[first]).unwrap(), State::Whole(map));
    assert_eq!(node.state(&[first, second]).unwrap(), incomplete(Some("dm-0"), &["sdb"]), "one came late");
    assert_eq!(node.state(&[]).unwrap(), incomplete(Some("dm-0"), &[]), "no path is live");
    // A path that is dead is not asked for.
    node.map("dm-1", "mpath-3600508b400105e210000900000490009", &[]);
    assert_eq!(node.state(&[first]).unwrap(), State::Whole(map));
    node.set("dm-0/dm/suspended", "1");
    assert_eq!(node.state(&[first]).unwrap(), incomplete(Some("dm-0"), &[]));
    node.set("dm-0/dm/suspended", "0");
    node.set("dm-0/size", "0");
    assert_eq!(node.state(&[first]).unwrap(), incomplete(Some("dm-0"), &[]));
}

#[test]
fn a_path_to_another_disk_is_refused() {
    let node = Node::new();
    let [first, second] = [node.path("sda", WWID), node.path("sdb", OTHER)];
    let wrong = |live: &[DeviceNumber], part: &str| {
        let error = node.state(live).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    wrong(&[first, second], OTHER);
    let map = node.map("dm-0", UUID, &["sda"]);
    assert_eq!(node.state(&[first]).unwrap(), State::Whole(map));
    // The number of sda is given to another disk, beneath the map.
    node.set("sda/device/wwid", OTHER);
    wrong(&[], OTHER);
    let multipath = node.multipath(absent(node.directory.path()));
    assert_eq!(multipath.disk(WWID, &[first]).unwrap_err().kind(), ErrorKind::WrongDevice);
    assert_eq!(multipath.resize(WWID, 64 << 20).unwrap_err().kind(), ErrorKind::WrongDevice);
    // And the other way round: a path of ours is still in the map of the disk that it was.
    let node = Node::new();
    let path = node.path("sda", WWID);
    node.map("dm-0", "mpath-3600508b400105e210000900000490001", &["sda"]);
    let error = node.state(&[path]).unwrap_err();
    assert!(error.to_string().contains("dm-0"), "{error}");
    assert_eq!(error.kind(), ErrorKind::WrongDevice);
}

#[test]
fn a_path_that_is_gone_is_not_asked() {
    let node = Node::new();
    let [first, second] = ["sda", "sdb"].map(|name| node.path(name, WWID));
    let map = node.map("dm-0", UUID, &["sda", "sdb"]);
    let place = fs::canonicalize(node.sys().join("block/sdb")).unwrap();
    fs::remove_dir_all(place).unwrap();
    fs::remove_file(node.sys().join("dev/block").join(second.to_string())).unwrap();
    fs::remove_file(node.sys().join("block/sdb")).unwrap();
    assert_eq!(node.state(&[first]).unwrap(), State::Whole(map));
    assert_eq!(node.state(&[first, second]).unwrap(), State::Whole(map), "it went away just now");
    let multipath = node.multipath(absent(node.directory.path()));
    assert_eq!(multipath.disk(WWID, &[]).unwrap(), Some(map), "also without paths");
}

#[test]
fn names_are_compared_in_each_notation() {
    let node = Node::new();
    let uuid = "9f1b2c3d-0000-4000-8000-00000000002a";
    let path = node.disks.add(FakeDisk::nvme("nvme0n1").wwid(&format!("uuid.{uuid}")));
    let map = node.map("dm-0", &format!("mpath-uuid.{uuid}"), &["nvme0n1"]);
    let sysfs = Sysfs::below(&node.sys());
    assert_eq!(state(&sysfs, &format!("uuid.{uuid}"), &[path]).unwrap(), State::Whole(map));
    assert_eq!(super::map(&sysfs, "eui.0123456789abcdef").unwrap(), None);
}

#[test]
fn without_a_daemon_one_path_is_used_only_if_that_is_allowed() {
    let node = Node::new();
    let [first, second] = ["sda", "sdb"].map(|name| node.path(name, WWID));
    let multipath = node.multipath(absent(node.directory.path()));
    let look = |single, live: &[DeviceNumber]| multipath.search(WWID, single).look(live);
    assert!(matches!(look(SinglePath::Allowed, &[first]), Ok(Found::Disk(found)) if found == first));
    assert!(matches!(look(SinglePath::Allowed, &[]), Ok(Found::NotYet(_))));
    for (single, live) in [
        (SinglePath::Refused, &[first][..]),
        (SinglePath::Refused, &[first, second]),
        (SinglePath::Allowed, &[first, second]),
    ] {
        let error = look(single, live).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{single:?} {live:?} {error}");
        assert!(error.to_string().contains("multipathd does not run"), "{error}");
    }
    assert_eq!(multipath.disk(WWID, &[first]).unwrap(), Some(first));
    assert_eq!(multipath.disk(WWID, &[first, second]).unwrap(), None, "never the first path");
    // A map that exists does not need the daemon.
    let map = node.map("dm-0", UUID, &["sda", "sdb"]);
    assert!(matches!(look(SinglePath::Refused, &[first, second]), Ok(Found::Disk(found)) if found == map));
    assert_eq!(multipath.disk(WWID, &[first]).unwrap(), Some(map));
    multipath.resize(WWID, 64 << 20).unwrap();
    let error = multipath.resize(WWID, 65 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
}

/// Looks until multipathd was asked.
fn until_asked(search: &mut super::super::Search<'_>, live: &[DeviceNumber]) -> Result<Found> {
    search.next -= Duration::from_secs(1);
    search.look(live)
}

#[test]
fn multipathd_is_asked_for_what_is_missing() {
    let node = Node::new();
    let [first, second] = ["sda", "sdb"].map(|name| node.path(name, WWID));
    let fake = FakeDaemon::start(node.directory.path(), |command| match command {
        "show daemon" => "pid 7 idle".to_owned(),
        "show paths raw format \"%d %w\"" => "sdc 3600\nsda 3600508b4".to_owned(),
        "add path sdb" => "blacklisted".to_owned(),
        _ => "ok".to_owned(),
    });
    let multipath = node.multipath(fake.daemon.clone());
    let commands = || std::mem::take(&mut *fake.commands.lock().unwrap());
    let mut search = multipath.search(WWID, SinglePath::Refused);
    assert!(matches!(search.look(&[first, second]), Ok(Found::NotYet(_))), "it has a second");
    assert_eq!(commands(), ["show daemon"]);
    let Ok(Found::NotYet(reason)) = until_asked(&mut search, &[first, second]) else { panic!() };
    assert_eq!(reason.kind(), ErrorKind::Unresponsive);
    let expected = ["add path sda", "add path sdb", "show paths raw format \"%d %w\"", "add map 3600508b4"];
    assert_eq!(commands(), expected);
    let map = node.map("dm-0", UUID, &["sda"]);
    let Ok(Found::NotYet(reason)) = until_asked(&mut search, &[first, second]) else { panic!() };
    assert!(reason.to_string().contains("dm-0 lacks its paths sdb"), "{reason}");
    assert!(reason.to_string().contains("blacklisted"), "{reason}");
    assert_eq!(commands(), ["add path sdb"]);
    assert!(matches!(search.look(&[first]), Ok(Found::Disk(found)) if found == map));
    multipath.forget(&[first, second]);
    assert_eq!(commands(), ["del path sda", "del path sdb"]);
}

#[test]
fn multipathd_forgets_a_path_that_it_refuses() {
    let node = Node::new();
    let path = node.path("sda", WWID);
    let mut is_forgotten = false;
    let fake = FakeDaemon::start(node.directory.path(), move |command| {
        is_forgotten |= command == "del path sda";
        match command {
            "show daemon" => "pid 7 idle".to_owned(),
            "show paths raw format \"%d %w\"" => "sda 3600508b4".to_owned(),
            "add map 3600508b4" if !is_forgotten => "fail".to_owned(),
            _ => "ok".to_owned(),
        }
    });
    let multipath = node.multipath(fake.daemon.clone());
    let mut search = multipath.search(WWID, SinglePath::Refused);
    for expected in [
        &["show daemon", "add path sda", "show paths raw format \"%d %w\"", "add map 3600508b4"][..],
        &["del path sda", "add path sda", "show paths raw format \"%d %w\"", "add map 3600508b4"],
        &["add path sda", "show paths raw format \"%d %w\"", "add map 3600508b4"],
    ] {
        assert!(matches!(until_asked(&mut search, &[path]), Ok(Found::NotYet(_))));
        assert_eq!(std::mem::take(&mut *fake.commands.lock().unwrap()), expected);
    }
}

#[test]
fn multipathd_decides_about_a_single_path_first() {
    let node = Node::new();
    let path = node.path("sda", WWID);
    let mut listed = ["sda", "sda 3600508b4"].into_iter();
    let fake = FakeDaemon::start(node.directory.path(), move |command| match command {
        "show daemon" => "pid 7 idle".to_owned(),
        "show paths raw format \"%d %w\"" => listed.next().unwrap_or_default().to_owned(),
        _ => "ok".to_owned(),
    });
    let multipath = node.multipath(fake.daemon.clone());
    let mut search = multipath.search(WWID, SinglePath::Allowed);
    assert!(matches!(search.look(&[path]), Ok(Found::NotYet(_))));
    assert!(matches!(until_asked(&mut search, &[path]), Ok(Found::NotYet(_))), "it waits for udev");
    assert!(matches!(until_asked(&mut search, &[path]), Ok(Found::Disk(found)) if found == path));
    let mut search = multipath.search(WWID, SinglePath::Allowed);
    assert!(matches!(until_asked(&mut search, &[path]), Ok(Found::Disk(found)) if found == path), "ignored");
    let mut search = multipath.search(WWID, SinglePath::Allowed);
    let map = node.map("dm-0", UUID, &["sda"]);
    assert!(matches!(search.look(&[path]), Ok(Found::Disk(found)) if found == map));
}

#[test]
fn a_map_gets_the_size_of_its_paths() {
    let node = Node::new();
    let path = node.path("sda", WWID);
    node.map("dm-0", UUID, &["sda"]);
    let size = node.sys().join("block/dm-0/size");
    let mut refusals = 2;
    let fake = FakeDaemon::start(node.directory.path(), move |_| {
        refusals -= 1;
        if refusals < 0 {
            fs::write(&size, "196608\n").unwrap();
        }
        if refusals < 0 { "ok".to_owned() } else { "fail".to_owned() }
    });
    let multipath = node.multipath(fake.daemon.clone());
    multipath.resize(WWID, 96 << 20).unwrap();
    assert_eq!(*fake.commands.lock().unwrap(), ["resize map dm-0"; 3]);
    assert_eq!(multipath.disk(WWID, &[path]).unwrap().map(|number| number.major), Some(8));
}
