//! The decisions, with ports in a directory that stands for sysfs.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::remote::disk::Disk;
use crate::remote::fc::target::FcTarget;
use crate::remote::multipath::{Multipath, SinglePath};
use crate::remote::paths::{DiskState, Finder};
use crate::remote::scsi::attach::wait_for;
use crate::remote::scsi::decide::View;
use crate::remote::transport::{Connect as _, Transport as _};
use crate::sys::ids::DeviceNumber;

const WWID: &str = "naa.60014051234567890abcdef012345678";
const OTHER: &str = "naa.6001405ffffffffffffffffffffffff";

/// A directory with the attributes of ports, as the kernel writes them.
struct Fake(tempfile::TempDir);

/// The port of a target with this number.
fn wwpn(number: u64) -> Wwpn {
    format!("500601603b204{number:03x}").parse().unwrap()
}

fn initiator(host: u64) -> Wwpn {
    format!("10000090fa0{host:05x}").parse().unwrap()
}

fn disk(ports: &[u64]) -> FcDisk {
    let target = FcTarget::new(3, WWID).unwrap();
    ports.iter().fold(target, |target, port| target.port(wwpn(*port))).disk
}

impl Fake {
    /// A node with two ports.
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        for host in [1, 2] {
            fake.host(host, "Online");
        }
        fake
    }

    fn set(&self, file: &str, content: impl AsRef<[u8]>) {
        let file = self.0.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap_or_default()
    }

    fn host(&self, host: u64, state: &str) {
        self.set(&format!("class/fc_host/host{host}/port_name"), format!("{}\n", initiator(host)));
        self.set(&format!("class/fc_host/host{host}/port_state"), format!("{state}\n"));
        self.set(&format!("class/scsi_host/host{host}/scan"), "");
    }

    /// The port of a target with this number, at the same number and another index.
    fn port(&self, host: u64, port: u64, state: &str) {
        let name = format!("rport-{host}:1-{}", port + 40);
        let class = format!("class/fc_remote_ports/{name}");
        let device = format!("devices/pci0000:00/host{host}/{name}");
        let target = if state == "Not Present" { "-1".to_owned() } else { port.to_string() };
        for (file, text) in [("port_state", state), ("scsi_target_id", &*target)] {
            self.set(&format!("{class}/{file}"), format!("{text}\n"));
        }
        self.set(&format!("{class}/port_name"), format!("{}\n", wwpn(port)));
        self.set(&format!("{device}/uevent"), "");
        let link = self.0.path().join(class).join("device");
        if !link.exists() {
            symlink(self.0.path().join(device), link).unwrap();
        }
    }

    fn place(host: u64, port: u64, lun: u64) -> String {
        let device = format!("devices/pci0000:00/host{host}/rport-{host}:1-{}", port + 40);
        format!("{device}/target{host}:1:{port}/{host}:1:{port}:{lun}")
    }

    /// A unit with a disk, whose minor number is that of the host, the port and the LUN.
    fn unit(&self, (host, port, lun): (u64, u64, u64), wwid: &str, state: &str) -> DeviceNumber {
        let place = Self::place(host, port, lun);
        let name = format!("sd{host}{port}{lun}");
        self.set(&format!("{place}/wwid"), format!("{wwid}\n"));
        for switch in ["rescan", "delete"] {
            self.set(&format!("{place}/{switch}"), "");
        }
        self.set(&format!("{place}/block/{name}/x"), "");
        let number = format!("8:{}", host * 100 + port * 10 + lun);
        self.set(&format!("block/{name}/dev"), format!("{number}\n"));
        self.set(&format!("block/{name}/size"), "2048\n");
        // Without it there is no unit yet.
        self.set(&format!("{place}/state"), format!("{state}\n"));
        DeviceNumber::parse(&number).unwrap()
    }

    fn attached<'r>(&'r self, disk: &'r FcDisk) -> Attached<'r, FcDisk> {
        Attached { sys: self.0.path(), disk, portals: &[] }
    }

    fn view(&self, disk: &FcDisk) -> View {
        View::read(&self.attached(disk)).unwrap()
    }

    /// Waits for the disk, also with one path and no map.
    fn fail_to_wait_for(&self, disk: &FcDisk) -> Error {
        let multipath = Multipath::new(self.0.path());
        let mut finder = Finder::new(Some(&multipath), SinglePath::Allowed);
        wait_for("pvc", &self.attached(disk), Duration::from_secs(60), &mut finder).unwrap_err()
    }

    fn to_scan(&self, disk: &FcDisk) -> Vec<String> {
        self.view(disk).to_scan().map(|nexus| nexus.name.clone()).collect()
    }
}

#[test]
fn a_unit_is_usable_over_a_named_port_that_is_reached() {
    let fake = Fake::new();
    let disk = disk(&[1]);
    assert_eq!(fake.view(&disk).state(), DiskState::Absent, "no port");
    fake.port(1, 1, "Online");
    fake.port(1, 2, "Online");
    assert_eq!(fake.view(&disk).state(), DiskState::Absent);
    // Its name with another number, and at a port that was not named.
    fake.unit((1, 1, 4), WWID, "running");
    fake.unit((1, 2, 3), WWID, "running");
    assert_eq!(fake.view(&disk).state(), DiskState::Absent);
    let number = fake.unit((1, 1, 3), OTHER, "running");
    assert!(matches!(fake.view(&disk).state(), DiskState::Other(name) if name.contains("naa.6001405fff")));
    fake.unit((1, 1, 3), WWID, "running");
    fs::remove_dir_all(fake.0.path().join(Fake::place(1, 2, 3))).unwrap();
    assert_eq!(fake.view(&disk).state(), DiskState::Usable(number));
    for (port, unit) in [("Online", "transport-offline"), ("Blocked", "blocked"), ("Blocked", "running")] {
        fake.port(1, 1, port);
        fake.unit((1, 1, 3), WWID, unit);
        assert!(matches!(fake.view(&disk).state(), DiskState::Unusable(_)), "{port} {unit}");
        assert!(fake.view(&disk).are_paths_dead(), "{port} {unit}");
        let found = fake.attached(&disk).number(None).unwrap();
        assert_eq!(found, Some(number), "a detach finds it");
    }
    fake.port(1, 1, "Marginal");
    fake.unit((1, 1, 3), WWID, "running");
    assert_eq!(fake.view(&disk).state(), DiskState::Usable(number), "a path with errors is one");
}

#[test]
fn one_lun_is_scanned_at_named_ports_that_lack_it() {
    let fake = Fake::new();
    for (host, port, state) in
        [(1, 1, "Online"), (2, 1, "Online"), (1, 2, "Online"), (2, 2, "Blocked"), (1, 3, "Online")]
    {
        fake.port(host, port, state);
    }
    fake.port(2, 3, "Not Present");
    fake.unit((1, 1, 3), WWID, "running");
    fake.unit((1, 2, 4), WWID, "running");
    assert_eq!(fake.to_scan(&disk(&[1, 2])), ["rport-1:1-42", "rport-2:1-41"]);
    assert_eq!(fake.to_scan(&disk(&[3])), ["rport-1:1-43"]);
    // Only over the named ports of this node.
    let bound = FcDisk { initiators: vec![initiator(1)], ..disk(&[1, 2]) };
    assert_eq!(fake.to_scan(&bound), ["rport-1:1-42"]);
    let unknown = FcDisk { initiators: vec![initiator(7)], ..disk(&[1, 2]) };
    assert!(fake.to_scan(&unknown).is_empty());

    let target = FcDisk { lun: 0x4105, ..disk(&[3]) };
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while fake.text("class/scsi_host/host1/scan").is_empty() {
                std::thread::yield_now();
            }
            fake.unit((1, 3, 0x4105), OTHER, "running");
        });
        fake.fail_to_wait_for(&target)
    });
    assert!(error.to_string().contains("naa.6001405fff"), "the unit that came: {error}");
    assert_eq!(fake.text("class/scsi_host/host1/scan"), "1 3 16645");
    assert_eq!(fake.text("class/scsi_host/host2/scan"), "");
}

#[test]
fn every_path_of_the_volume_is_known_by_its_name() {
    let fake = Fake::new();
    let disk = disk(&[1]);
    for (host, port) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        fake.port(host, port, "Online");
    }
    let mut all = vec![fake.unit((1, 1, 3), WWID, "running"), fake.unit((2, 1, 3), WWID, "running")];
    // The kernel has found it at ports that the driver did not name, with whatever number; and another volume.
    all.push(fake.unit((1, 2, 9), WWID, "running"));
    fake.unit((2, 2, 3), OTHER, "running");
    let paths = fake.view(&disk).disks();
    assert_eq!((paths.all(), paths.without), (all, vec![]));
    assert!(matches!(fake.view(&disk).state(), DiskState::SeveralDisks(disks) if disks.len() == 3));
}

#[test]
fn a_unit_of_another_volume_is_asked_and_stays() {
    let fake = Fake::new();
    let disk = disk(&[1]);
    fake.port(1, 1, "Online");
    fake.unit((1, 1, 3), OTHER, "running");
    let error = fake.fail_to_wait_for(&disk);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("naa.6001405fff"), "{error}");
    let written = |switch: &str| fake.text(&format!("{}/{switch}", Fake::place(1, 1, 3)));
    assert_eq!((written("rescan"), written("delete")), ("1".to_owned(), String::new()));
    assert_eq!(fake.text("class/scsi_host/host1/scan"), "");
}

#[test]
fn a_port_that_is_not_reached_is_named() {
    let fake = Fake::new();
    fake.port(1, 1, "Online");
    fake.port(1, 2, "Blocked");
    fake.port(2, 2, "Not Present");
    fake.port(2, 3, "Online");
    let missing = |disk: &FcDisk| super::missing(&Tree::read(fake.0.path()).unwrap(), disk).join("; ");
    assert_eq!(missing(&disk(&[1, 3])), "");
    let two = missing(&disk(&[1, 2]));
    assert!(two.contains("rport-1:1-42 is Blocked, rport-2:1-42 is Not Present"), "{two}");
    assert!(missing(&disk(&[4])).contains(&wwpn(4).to_string()));
    let bound = FcDisk { initiators: vec![initiator(1)], ..disk(&[3]) };
    assert!(missing(&bound).contains("no port of this node sees"), "{}", missing(&bound));
}

#[test]
fn what_the_node_lacks_is_refused_before_anything_is_scanned() {
    let fake = Fake::new();
    let kind = |sys: &Path, target: &FcTarget| target.validate(sys).unwrap_err().kind();
    let target = FcTarget::new(3, WWID).unwrap().allow_single_path();
    assert_eq!(kind(fake.0.path(), &target), ErrorKind::InvalidInput, "no port");
    let target = target.port(wwpn(1));
    target.validate(fake.0.path()).unwrap();
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(kind(empty.path(), &target), ErrorKind::Unsupported, "no adapter");
}

#[test]
fn another_volume_with_the_same_number_is_in_the_way_at_a_common_port() {
    let named = |id: &str, lun, ports: &[u64], initiators: &[u64]| {
        let target =
            ports.iter().fold(FcTarget::new(lun, id).unwrap(), |target, port| target.port(wwpn(*port)));
        let bound = initiators.iter().fold(target, |target, host| target.initiator(initiator(*host)));
        Disk::Fc(bound.disk)
    };
    let one = named(WWID, 3, &[1, 2], &[1]);
    for (found, is_in_the_way) in [
        (named(OTHER, 3, &[2], &[]), true),
        (named(OTHER, 3, &[2], &[1, 2]), true),
        (named(OTHER, 3, &[2], &[2]), false),
        (named(OTHER, 3, &[3], &[]), false),
        (named(OTHER, 4, &[1], &[]), false),
        (named(WWID, 3, &[1], &[]), false),
    ] {
        assert_eq!(found.excludes(&one), is_in_the_way, "{found}");
        assert_eq!(one.excludes(&found), is_in_the_way, "{found}");
    }
    // Ports can be added, and those of before are kept. Another number is another address.
    let mut more = named(WWID, 3, &[3], &[1]);
    assert!(more.is_same(&one) && !named(WWID, 4, &[1], &[1]).is_same(&one));
    more.add_earlier(&one);
    assert_eq!(more, named(WWID, 3, &[3, 1, 2], &[1]));
}

#[test]
fn a_lost_port_is_no_path_and_the_map_stays_known_by_its_record() {
    let fake = Fake::new();
    let disk = disk(&[1]);
    fake.port(1, 1, "Online");
    fake.unit((1, 1, 3), WWID, "running");
    let uuid = format!("mpath-3{}\n", WWID.trim_start_matches("naa."));
    for (file, text) in
        [("dev", "253:7"), ("size", "2048"), ("dm/uuid", &*uuid), ("slaves/sd113/dev", "8:113")]
    {
        fake.set(&format!("block/dm-7/{file}"), text);
    }
    let number = |recorded| fake.attached(&disk).number(recorded).unwrap();
    let map = Some(DeviceNumber::new(253, 7));
    assert_eq!(number(None), map);
    // After dev_loss_tmo the kernel removes the units, and the port has no target any more.
    fs::remove_dir_all(fake.0.path().join(Fake::place(1, 1, 3)).parent().unwrap()).unwrap();
    fake.port(1, 1, "Not Present");
    assert_eq!((number(None), number(Some(WWID))), (None, map));
    assert!(fake.to_scan(&disk).is_empty() && fake.view(&disk).are_paths_dead());
}
