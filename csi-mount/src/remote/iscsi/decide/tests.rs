//! The decisions, with sessions in a directory that stands for sysfs.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::remote::attach::own_portals;
use crate::remote::disk::Disk;
use crate::remote::paths::{DiskState, common_size};
use crate::remote::record::Record;
use crate::remote::scsi::decide::View;
use crate::remote::transport::Transport as _;
use crate::sys::ids::DeviceNumber;

const IQN: &str = "iqn.2026-01.org.example:s";
const WWID: &str = "naa.60014051234567890abcdef012345678";

/// A directory with the attributes of sessions, as the kernel writes them.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn set(&self, file: &str, content: impl AsRef<[u8]>) {
        let file = self.0.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn session(&self, index: u32, iqn: &str, port: u16, state: &str) {
        let class = format!("class/iscsi_session/session{index}");
        let device = device(index);
        for (file, text) in
            [("targetname", iqn), ("ifacename", "default"), ("state", state), ("target_id", "7")]
        {
            self.set(&format!("{class}/{file}"), format!("{text}\n"));
        }
        let connection = format!("connection{index}:0");
        let connection = format!("{device}/{connection}/iscsi_connection/{connection}");
        self.set(&format!("{connection}/persistent_address"), "10.0.0.1\n");
        self.set(&format!("{connection}/persistent_port"), format!("{port}\n"));
        // Where the target sent the connection.
        self.set(&format!("{connection}/address"), "10.9.9.9\n");
        let link = self.0.path().join(class).join("device");
        if !link.exists() {
            symlink(self.0.path().join(device), link).unwrap();
        }
    }

    /// A unit with a disk, whose minor number is that of the session and the LUN.
    fn unit(&self, index: u32, lun: u64, wwid: &str, state: &str, size: u64) {
        let name = format!("sd{index}{lun}");
        let place = format!("{}/target{index}:0:0/{index}:0:0:{lun}", device(index));
        self.set(&format!("{place}/state"), format!("{state}\n"));
        self.set(&format!("{place}/wwid"), format!("{wwid}\n"));
        self.set(&format!("{place}/vpd_pg80"), b"\0\x80\0\x06vol  1");
        self.set(&format!("{place}/block/{name}/x"), "");
        self.set(&format!("block/{name}/dev"), format!("8:{}\n", u64::from(index) * 100 + lun));
        self.set(&format!("block/{name}/size"), format!("{}\n", size / 512));
    }

    fn tree(&self) -> Tree {
        Tree::read(self.0.path()).unwrap()
    }

    /// The unit of this disk, over the sessions at these ports.
    fn view(&self, disk: &IscsiDisk, ports: &[u16]) -> View {
        View::read(&Attached { sys: self.0.path(), disk, portals: &portals(ports, true) }).unwrap()
    }

    fn state(&self, ports: &[u16]) -> DiskState {
        self.view(&disk(), ports).state()
    }

    /// The number of the disk, by this recorded name.
    fn number(&self, ports: &[u16], recorded: Option<&str>) -> Option<DeviceNumber> {
        let unit = Attached { sys: self.0.path(), disk: &disk(), portals: &portals(ports, true) };
        unit.number(recorded).unwrap()
    }
}

fn device(index: u32) -> String {
    format!("devices/platform/host{index}/session{index}")
}

fn disk() -> IscsiDisk {
    IscsiDisk { iqn: IQN.to_owned(), interface: None, lun: 3, id: LunId::wwid(WWID).unwrap() }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn portals(ports: &[u16], is_own: bool) -> Vec<Portal> {
    ports.iter().map(|port| Portal { address: address(*port), is_own }).collect()
}

#[test]
fn a_unit_is_usable_in_a_live_session_and_by_its_name_and_number() {
    let fake = Fake::new();
    assert_eq!(fake.state(&[1]), DiskState::Absent, "no module is loaded");
    fake.session(1, IQN, 1, "LOGGED_IN");
    assert_eq!(fake.state(&[1]), DiskState::Absent);
    assert_eq!(fake.tree().sessions[0].nexus.target, 7, "without units the session says where they will be");
    // Its name with another number, and its number at another target.
    fake.unit(1, 4, WWID, "running", 1 << 20);
    fake.session(2, "iqn.2026-01.org.example:other", 1, "LOGGED_IN");
    fake.unit(2, 3, WWID, "running", 1 << 20);
    assert_eq!(fake.state(&[1]), DiskState::Absent);
    // Its number, with another name: whatever else is there, it is not returned.
    fake.unit(1, 3, "naa.6001405ffffffffffffffffffffffff", "running", 1 << 20);
    assert!(matches!(fake.state(&[1]), DiskState::Other(name) if name.contains("naa.6001405fff")));
    fake.unit(1, 3, WWID, "running", 1 << 20);
    assert_eq!(fake.state(&[1]), DiskState::Usable(DeviceNumber::new(8, 103)));
    assert_eq!(fake.tree().sessions[0].nexus.target, 0);
    assert_eq!(fake.state(&[2]), DiskState::Absent, "at another portal");
    for (session, unit, size) in [
        ("FAILED", "running", 1 << 20),
        ("FREE", "running", 1 << 20),
        ("LOGGED_IN", "blocked", 1 << 20),
        ("LOGGED_IN", "transport-offline", 1 << 20),
        ("LOGGED_IN", "running", 0),
    ] {
        fake.session(1, IQN, 1, session);
        fake.unit(1, 3, WWID, unit, size);
        assert!(matches!(fake.state(&[1]), DiskState::Unusable(_)), "{session} {unit}");
        assert_eq!(fake.number(&[1], None).unwrap().minor, 103);
    }
}

#[test]
fn each_name_counts_and_no_other() {
    let fake = Fake::new();
    fake.session(1, IQN, 1, "LOGGED_IN");
    fake.unit(1, 3, WWID, "running", 1 << 20);
    let has =
        |id: LunId| matches!(fake.view(&IscsiDisk { id, ..disk() }, &[1]).state(), DiskState::Usable(_));
    let digits = WWID.trim_start_matches("naa.");
    for name in [WWID, digits, &format!("wwn-0x{digits}"), &format!("3{digits}"), &WWID.to_uppercase()] {
        assert!(has(LunId::wwid(name).unwrap()), "{name}");
    }
    assert!(has(LunId::serial("vol  1").unwrap()));
    assert!(!has(LunId::serial("vol 1").unwrap()) && !has(LunId::serial(WWID).unwrap()));
    assert!(!has(LunId::wwid(&digits[..31]).unwrap()));
}

#[test]
fn several_portals_make_several_disks() {
    let fake = Fake::new();
    for index in [1, 2] {
        fake.session(index, IQN, index as u16, "LOGGED_IN");
        fake.unit(index, 3, WWID, "running", u64::from(index) << 20);
    }
    assert_eq!(fake.state(&[1, 2]), DiskState::SeveralDisks(vec!["sd13".into(), "sd23".into()]));
    // The order of the portals counts, and not that of the sessions.
    assert_eq!(fake.state(&[2]), DiskState::Usable(DeviceNumber::new(8, 203)));
    let size = |ports: &[u16]| common_size(fake.view(&disk(), ports).paths().map(|(_, unit)| unit.size));
    assert_eq!(size(&[2]), Ok(2 << 20));
    assert!(size(&[1, 2]).unwrap_err().contains("different sizes"));
    assert!(size(&[]).is_err());
}

#[test]
fn only_sessions_without_the_unit_are_scanned() {
    let fake = Fake::new();
    for (index, state) in [(1, "LOGGED_IN"), (2, "LOGGED_IN"), (3, "FAILED"), (4, "LOGGED_IN")] {
        fake.session(index, if index == 4 { "iqn.other" } else { IQN }, index as u16, state);
    }
    fake.unit(1, 3, WWID, "running", 1 << 20);
    fake.unit(2, 4, WWID, "running", 1 << 20);
    let view = fake.view(&disk(), &[1, 2, 3, 4]);
    let names: Vec<_> = view.to_scan().map(|nexus| nexus.name.as_str()).collect();
    assert_eq!(names, ["session2"]);
}

#[test]
fn an_unwritten_disk_is_deleted_only_without_a_path_that_works() {
    let fake = Fake::new();
    for (session, unit, are_dead) in [
        ("LOGGED_IN", "running", false),
        ("FAILED", "running", true),
        ("FAILED", "blocked", true),
        ("LOGGED_IN", "transport-offline", true),
    ] {
        fake.session(1, IQN, 1, session);
        fake.unit(1, 3, WWID, unit, 1 << 20);
        let found = fake.view(&disk(), &[1]).are_paths_dead();
        assert_eq!(found, are_dead, "{session} {unit}");
    }
}

#[test]
fn only_what_an_attachment_logged_in_is_logged_out() {
    let fake = Fake::new();
    for (index, iqn) in [(1, IQN), (2, IQN), (3, "iqn.other"), (4, IQN)] {
        fake.session(index, iqn, index as u16, "FAILED");
    }
    fake.set("class/iscsi_session/session4/ifacename", "eth1\n");
    let connected = connected(fake.0.path(), &disk()).unwrap();
    assert_eq!(connected, [address(1), address(2), address(4)]);
    let record = |iqn: &str, ports: &[u16]| {
        let disk = Disk::Iscsi(IscsiDisk { iqn: iqn.to_owned(), lun: 9, ..disk() });
        Record::new("b".to_owned(), disk, portals(ports, true))
    };
    let own = |ports: &[u16], records: &[&Record]| {
        let ports: Vec<_> = ports.iter().map(|port| address(*port)).collect();
        let found = own_portals(&ports, &connected, &Disk::Iscsi(disk()), records);
        found.into_iter().map(|portal| portal.is_own).collect::<Vec<_>>()
    };
    // What exists stays somebody else's, unless a volume of the same target made it.
    assert_eq!(own(&[1, 2, 3, 5], &[]), [false, false, true, true]);
    assert_eq!(own(&[1, 2], &[&record(IQN, &[1]), &record("iqn.other", &[2])]), [true, false]);

    let tree = fake.tree();
    let logged_out = |disk: &IscsiDisk, portals: &[Portal]| -> Vec<String> {
        own_sessions(&tree, disk, portals).into_iter().map(|session| session.name().to_owned()).collect()
    };
    // The session 4 is of another interface: an administrator made it.
    assert_eq!(logged_out(&disk(), &portals(&[1, 2, 3, 4], true)), ["session1", "session2"]);
    assert!(logged_out(&disk(), &portals(&[1, 2], false)).is_empty());
    let bound = IscsiDisk { interface: Some("eth1".to_owned()), ..disk() };
    assert_eq!(logged_out(&bound, &portals(&[1, 4], true)), ["session4"]);
}

#[test]
fn another_volume_with_the_same_number_is_in_the_way() {
    let other = |iqn: &str, lun, id: &str| {
        let id = LunId::serial(id).unwrap();
        Disk::Iscsi(IscsiDisk { iqn: iqn.to_owned(), lun, id, ..disk() })
    };
    let one = other(IQN, 3, "a");
    for (found, is_in_the_way) in [
        (other(IQN, 3, "b"), true),
        (other(IQN, 3, "a"), false),
        (other(IQN, 4, "b"), false),
        (other("iqn.other", 3, "b"), false),
    ] {
        assert_eq!(found.excludes(&one), is_in_the_way, "{found}");
    }
}

#[test]
fn the_map_over_all_sessions_is_the_disk() {
    let fake = Fake::new();
    let number = |recorded| fake.number(&[1, 2], recorded);
    fake.session(1, IQN, 1, "LOGGED_IN");
    fake.unit(1, 3, WWID, "running", 1 << 20);
    fake.session(2, IQN, 2, "LOGGED_IN");
    let paths = fake.view(&disk(), &[1, 2]).disks();
    assert_eq!((paths.usable().len(), paths.without), (1, vec!["session2".to_owned()]));
    assert_eq!(number(None), Some(DeviceNumber::new(8, 103)), "the only path");
    fake.unit(2, 3, WWID, "blocked", 1 << 20);
    let paths = fake.view(&disk(), &[1, 2]).disks();
    assert_eq!((paths.all().len(), paths.usable().len(), paths.without), (2, 1, vec![]));
    assert_eq!(number(None), None, "several paths and no map");
    let uuid = format!("mpath-3{}\n", WWID.trim_start_matches("naa."));
    for (file, text) in
        [("dev", "253:7"), ("size", "2048"), ("dm/uuid", &*uuid), ("slaves/sd13/dev", "8:103")]
    {
        fake.set(&format!("block/dm-7/{file}"), text);
    }
    let map = Some(DeviceNumber::new(253, 7));
    assert_eq!(number(None), map);
    // Without a session only the record has the name.
    for index in [1, 2] {
        fs::remove_dir_all(fake.0.path().join(format!("class/iscsi_session/session{index}"))).unwrap();
    }
    assert_eq!((number(None), number(Some(WWID))), (None, map));
}
