//! An iSCSI target of the kernel (LIO) on 127.0.0.1, with loop devices as its units, and `iscsid`.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use csi_mount::remote::{IscsiTarget, LunId};
use csi_mount::{Mount, Target};

use crate::devices::{Image, MIB, run, start_daemon};

const CONFIG: &str = "/sys/kernel/config/target";
const DISKS: &str = "core/fileio_0";
/// Of a target with two networks.
pub(crate) const ADDRESSES: [[u8; 4]; 2] = [[10, 1, 0, 1], [10, 2, 0, 1]];

pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: {:?} {:?}", sessions(), disks());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The states of all sessions, by name.
pub(crate) fn sessions() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/class/iscsi_session").unwrap().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path().join("state")).ok()?;
            Some((entry.file_name().into_string().unwrap(), state.trim().to_owned()))
        })
        .collect();
    all.sort();
    all
}

pub(crate) fn live() -> usize {
    sessions().iter().filter(|(_, state)| state == "LOGGED_IN").count()
}

/// The SCSI disks of this machine, as `/dev/sda`.
pub(crate) fn disks() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("sd")).map(|name| Path::new("/dev").join(name)).collect()
}

/// How many writes the disk of each address got, where the machine shows one unit.
pub(crate) fn writes() -> [u64; 2] {
    ADDRESSES.map(|address| {
        let address = std::net::Ipv4Addr::from(address).to_string();
        let is_of_address = |disk: &PathBuf| {
            let unit = fs::canonicalize(disk.join("device")).unwrap();
            let session = unit.ancestors().nth(2).unwrap();
            let entries = fs::read_dir(session).unwrap().flatten().map(|entry| entry.file_name());
            let mut connections = entries.filter(|name| name.to_string_lossy().starts_with("connection"));
            connections.any(|name| {
                let place =
                    session.join(&name).join("iscsi_connection").join(&name).join("persistent_address");
                fs::read_to_string(place).unwrap().trim() == address
            })
        };
        let mut disks =
            disks().into_iter().map(|disk| Path::new("/sys/block").join(disk.file_name().unwrap()));
        let disk = disks.find(is_of_address).expect("a disk of the address");
        let stat = fs::read_to_string(disk.join("stat")).unwrap();
        stat.split_whitespace().nth(4).unwrap().parse().unwrap()
    })
}

/// The LUNs that the node shows, disks or not.
pub(crate) fn luns() -> Vec<u64> {
    let entries = fs::read_dir("/sys/bus/scsi/devices").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut luns: Vec<u64> = names
        .filter(|name| !name.starts_with("host") && !name.starts_with("target"))
        .filter_map(|name| name.rsplit(':').next()?.parse().ok())
        .collect();
    luns.sort_unstable();
    luns
}

/// The records of open-iscsi's database, its empty directories, and the files of a write that was not finished.
pub(crate) fn node_records() -> Vec<PathBuf> {
    fn below(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let found = entries.flat_map(|entry| match entry.path().is_dir() {
            true if fs::read_dir(entry.path()).unwrap().next().is_some() => below(&entry.path()),
            _ => vec![entry.path()],
        });
        found.collect()
    }
    let entries = fs::read_dir("/etc/iscsi").into_iter().flatten().flatten();
    let unfinished = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    below(Path::new("/etc/iscsi/nodes")).into_iter().chain(unfinished.map(|entry| entry.path())).collect()
}

/// Runs `iscsiadm`, as an administrator does.
pub(crate) fn iscsiadm(arguments: &[&str]) {
    run("iscsiadm", arguments);
}

/// Ends all sessions, whatever it takes.
pub(crate) fn log_out_by_hand() {
    let _ = Command::new("iscsiadm").args(["-m", "node", "--logout"]).output();
    let _ = Command::new("iscsiadm").args(["-m", "session", "--logout"]).output();
    let _ = Command::new("iscsiadm").args(["-m", "node", "-o", "delete"]).output();
}

fn set(place: impl AsRef<Path>, value: &str) {
    let place = place.as_ref();
    fs::write(place, value).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

fn make(place: impl AsRef<Path>) {
    let place = place.as_ref();
    fs::create_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

fn prepare() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        run("ip", &["link", "set", "lo", "up"]);
        if !Path::new(CONFIG).exists() {
            Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
        }
        for place in ["core", "iscsi", DISKS] {
            fs::create_dir_all(Path::new(CONFIG).join(place)).unwrap();
        }
        fs::create_dir_all("/etc/iscsi").unwrap();
        fs::create_dir_all("/run/lock").unwrap();
        set("/etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.2026-01.org.example:node\n");
        let settings = [
            "node.session.timeo.replacement_timeout = 120",
            "node.conn[0].timeo.login_timeout = 15",
            "node.conn[0].timeo.logout_timeout = 15",
            "node.conn[0].timeo.noop_out_interval = 2",
            "node.conn[0].timeo.noop_out_timeout = 2",
        ];
        set("/etc/iscsi/iscsid.conf", &(settings.join("\n") + "\n"));
        let log = fs::File::create("/tmp/iscsid.log").unwrap();
        let mut command = Command::new("iscsid");
        command.arg("-f").stdout(log.try_clone().unwrap()).stderr(log).stdin(std::process::Stdio::null());
        // It ends with the machine.
        std::mem::forget(start_daemon(command));
        eventually("iscsid listens", || {
            let listening = fs::read_to_string("/proc/net/unix").unwrap();
            listening.contains("@ISCSIADM_ABSTRACT_NAMESPACE").then_some(())
        });
    });
}

/// A target with its own portals and units. The LUN of a unit is its index plus one, so that no disk has the
/// LUN 0.
pub(crate) struct Lio {
    pub(crate) iqn: String,
    pub(crate) images: Vec<Image>,
    /// The portals of each portal group.
    groups: Vec<Vec<SocketAddr>>,
    name: String,
}

impl Lio {
    pub(crate) fn new(name: &str, units: usize, ports: u16) -> Self {
        prepare();
        Self::at(name, units, vec![(3260..3260 + ports).map(address).collect()])
    }

    /// A target whose two portals have addresses of their own, which can go.
    pub(crate) fn on_two_addresses(name: &str, units: usize) -> Self {
        prepare();
        ADDRESSES.iter().for_each(|address| set_address(*address, true));
        Self::at(name, units, vec![ADDRESSES.map(|address| SocketAddr::from((address, 3260))).to_vec()])
    }

    /// The same, with a portal group for each address, as a controller of an array has.
    pub(crate) fn with_two_groups(name: &str, units: usize) -> Self {
        prepare();
        ADDRESSES.iter().for_each(|address| set_address(*address, true));
        Self::at(name, units, ADDRESSES.map(|address| vec![SocketAddr::from((address, 3260))]).to_vec())
    }

    fn at(name: &str, units: usize, groups: Vec<Vec<SocketAddr>>) -> Self {
        let mut target = Self { iqn: iqn(name), images: Vec::new(), groups, name: name.to_owned() };
        for _ in 0..units {
            target.add_disk(300);
        }
        target.start();
        target
    }

    /// Makes the target with its units, and lets its portals answer.
    pub(crate) fn start(&self) {
        make(self.target());
        for (place, portals) in self.places().zip(&self.groups) {
            make(&place);
            for (name, value) in [
                ("authentication", "0"),
                ("generate_node_acls", "1"),
                ("cache_dynamic_acls", "1"),
                ("demo_mode_write_protect", "0"),
            ] {
                set(place.join("attrib").join(name), value);
            }
            portals.iter().for_each(|portal| make(place.join("np").join(portal.to_string())));
        }
        for index in 0..self.images.len() {
            self.map(Self::lun(index), index);
        }
        self.set_enabled(true);
    }

    /// Takes the target away, except its disks.
    pub(crate) fn stop(&self) {
        for group in self.places() {
            let _ = fs::write(group.join("enable"), "0");
            for place in ["lun", "np"] {
                for entry in fs::read_dir(group.join(place)).into_iter().flatten().flatten() {
                    let _ = fs::remove_file(entry.path().join("disk"));
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
        for place in self.places().chain([self.target()]) {
            let removed = fs::remove_dir(&place);
            assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", place.display());
        }
    }

    fn target(&self) -> PathBuf {
        Path::new(CONFIG).join("iscsi").join(&self.iqn)
    }

    /// The directories of its portal groups.
    fn places(&self) -> impl Iterator<Item = PathBuf> {
        (1..=self.groups.len()).map(|tag| self.target().join(format!("tpgt_{tag}")))
    }

    /// The directory of the first portal group. Most targets have no other.
    fn group(&self) -> PathBuf {
        self.places().next().expect("it has a group")
    }

    fn disk(&self, index: usize) -> PathBuf {
        Path::new(CONFIG).join(DISKS).join(format!("{}-{index}", self.name))
    }

    /// The number of a unit.
    pub(crate) fn lun(index: usize) -> u64 {
        index as u64 + 1
    }

    /// Lets the target listen at this port.
    pub(crate) fn open(&self, port: u16) {
        make(self.group().join("np").join(address(port).to_string()));
    }

    pub(crate) fn close(&self, port: u16) {
        fs::remove_dir(self.group().join("np").join(address(port).to_string())).unwrap();
    }

    /// Ends all connections and refuses new ones, or accepts them.
    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        self.places().for_each(|place| set(place.join("enable"), if is_enabled { "1" } else { "0" }));
    }

    /// Adds a disk of this many MiB.
    fn add_disk(&mut self, mebibytes: u64) {
        let index = self.images.len();
        self.images.push(Image::new(mebibytes));
        make(self.disk(index));
        let file = self.images[index].path().display();
        let control = format!("fd_dev_name={file},fd_dev_size={},fd_buffered_io=1", mebibytes * MIB);
        set(self.disk(index).join("control"), &control);
        set(self.disk(index).join("wwn/vpd_unit_serial"), &serial(&self.name, index));
        set(self.disk(index).join("enable"), "1");
    }

    /// Gives the unit this number.
    pub(crate) fn map(&self, lun: u64, index: usize) {
        self.map_place(lun, &self.disk(index));
    }

    /// Gives the disk with this directory this number.
    pub(crate) fn map_place(&self, lun: u64, disk: &Path) {
        for group in self.places() {
            let place = group.join(format!("lun/lun_{lun}"));
            make(&place);
            symlink(disk, place.join("disk")).unwrap();
        }
    }

    /// Takes the unit with this number away.
    pub(crate) fn unmap(&self, lun: u64) {
        for place in self.places().map(|group| group.join(format!("lun/lun_{lun}"))) {
            if place.exists() {
                fs::remove_file(place.join("disk")).unwrap();
                fs::remove_dir(place).unwrap();
            }
        }
    }

    /// Gives a portal group a state of its own for the unit (ALUA), with the kernel's number of the state.
    pub(crate) fn set_access(&self, index: usize, group: usize, state: u8) {
        const IMPLICIT: &str = "1";
        let access = self.disk(index).join(format!("alua/group{group}"));
        if !access.exists() {
            make(&access);
            set(access.join("tg_pt_gp_id"), &(group + 1).to_string());
            set(access.join("alua_access_type"), IMPLICIT);
            let lun = format!("lun/lun_{}/alua_tg_pt_gp", Self::lun(index));
            set(self.places().nth(group).unwrap().join(lun), &format!("group{group}"));
        }
        set(access.join("alua_access_state"), &state.to_string());
    }

    pub(crate) fn grow(&self, index: usize, mebibytes: u64) {
        self.images[index].grow_to(mebibytes);
    }

    /// Requires this name and secret of the node.
    pub(crate) fn require_chap(&self, name: &str, secret: &str) {
        set(self.group().join("attrib/authentication"), "1");
        set(self.group().join("auth/userid"), name);
        set(self.group().join("auth/password"), secret);
    }

    /// Has this name and secret for nodes that ask for it.
    pub(crate) fn prove_itself(&self, name: &str, secret: &str) {
        set(self.group().join("auth/userid_mutual"), name);
        set(self.group().join("auth/password_mutual"), secret);
    }

    /// What a driver says about the unit with this index, with all portals.
    pub(crate) fn unit(&self, index: usize) -> IscsiTarget {
        self.unit_at(Self::lun(index), index)
    }

    /// The unit with this index, at this number.
    pub(crate) fn unit_at(&self, lun: u64, index: usize) -> IscsiTarget {
        unit_of(&self.name, lun, index, &self.groups.concat())
    }
}

/// What a driver says about a unit of the target with this name.
pub(crate) fn unit_of(target: &str, lun: u64, index: usize, portals: &[SocketAddr]) -> IscsiTarget {
    let serial = serial(target, index);
    let id = match index % 2 {
        0 => LunId::serial(&serial).unwrap(),
        _ => LunId::wwid(&wwid(&serial)).unwrap(),
    };
    let unit = IscsiTarget::new(&iqn(target), lun, id).unwrap().wait_limit(Duration::from_secs(60));
    portals.iter().fold(unit, |unit, portal| unit.portal(*portal))
}

fn iqn(target: &str) -> String {
    format!("iqn.2026-01.org.example:{target}")
}

/// Gives this machine an address, or takes it away: no packet of its connections arrives then.
pub(crate) fn set_address(address: [u8; 4], exists: bool) {
    let address = format!("{}/32", std::net::Ipv4Addr::from(address));
    run("ip", &["addr", if exists { "replace" } else { "del" }, &address, "dev", "lo"]);
}

pub(crate) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn serial(name: &str, index: usize) -> String {
    let letters: String = name.bytes().map(|letter| format!("{letter:02x}")).collect();
    format!("{index:08x}-0000-4000-8000-{letters:0<12.12}")
}

/// LIO makes it from the serial number: its own prefix, and 25 digits.
fn wwid(serial: &str) -> String {
    let digits: String = serial.chars().filter(char::is_ascii_hexdigit).take(25).collect();
    format!("naa.6001405{digits}")
}

impl Drop for Lio {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string("/tmp/iscsid.log").unwrap_or_default();
            println!("iscsid: {}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
            // The next test starts on a machine without sessions.
            log_out_by_hand();
        }
        self.stop();
        for index in 0..self.images.len() {
            for group in 0..self.groups.len() {
                let _ = fs::remove_dir(self.disk(index).join(format!("alua/group{group}")));
            }
            let removed = fs::remove_dir(self.disk(index));
            assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
    }
}
