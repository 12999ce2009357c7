//! An iSCSI target of the kernel (LIO) on 127.0.0.1, with loop devices as its units, and `iscsid`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use csi_mount::remote::{IscsiTarget, LunId, RemoteTarget};

use crate::devices::{Image, eventually, run, start_daemon};
use crate::lio::{self, CONFIG, Disks, make, names, serial, set, text, wwid};
pub(crate) use crate::lio::{disks, lun, luns, states};
use crate::multipath_node::{active, maps, paths};
use crate::remote_bed::Bed;

/// Of a target with two networks.
pub(crate) const ADDRESSES: [[u8; 4]; 2] = [[10, 1, 0, 1], [10, 2, 0, 1]];

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

/// How many writes the disk of each address got, where the machine shows one unit.
pub(crate) fn writes() -> [u64; 2] {
    ADDRESSES.map(|address| {
        let address = std::net::Ipv4Addr::from(address).to_string();
        lio::writes(|unit| {
            let session = unit.ancestors().nth(2).unwrap();
            let mut connections = names(session).into_iter().filter(|name| name.starts_with("connection"));
            connections.any(|name| {
                let connection = session.join(&name).join("iscsi_connection").join(&name);
                text(connection.join("persistent_address")) == address
            })
        })
    })
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

fn prepare() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        run("ip", &["link", "set", "lo", "up"]);
        lio::prepare();
        fs::create_dir_all(Path::new(CONFIG).join("iscsi")).unwrap();
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

/// A target with its own portals and units.
pub(crate) struct Lio {
    pub(crate) iqn: String,
    disks: Disks,
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
        let disks = Disks::new(name, units);
        let target = Self { iqn: iqn(name), disks, groups, name: name.to_owned() };
        target.start();
        target
    }

    /// Whether the node has multipathd.
    fn has_maps(&self) -> bool {
        self.groups[0][0].ip() == IpAddr::from(ADDRESSES[0])
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

    /// Lets the target listen at this port.
    pub(crate) fn open(&self, port: u16) {
        make(self.group().join("np").join(address(port).to_string()));
    }

    pub(crate) fn close(&self, port: u16) {
        fs::remove_dir(self.group().join("np").join(address(port).to_string())).unwrap();
    }

    /// Makes the target with its units.
    pub(crate) fn make(&self) {
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
        for index in 0..self.disks.images.len() {
            self.map(lun(index), index);
        }
    }

    /// Lets the portals answer.
    pub(crate) fn answer(&self) {
        self.places().for_each(|place| set(place.join("enable"), "1"));
    }

    /// Gives the unit this number.
    pub(crate) fn map(&self, lun: u64, index: usize) {
        self.map_place(lun, &self.disks.place(index));
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
        self.disks.set_access(index, group, &self.places().nth(group).unwrap(), state);
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
        self.unit_at(lun(index), index)
    }

    /// The unit with this index, at this number.
    pub(crate) fn unit_at(&self, lun: u64, index: usize) -> IscsiTarget {
        unit_of(&self.name, lun, index, &self.groups.concat())
    }
}

/// With two addresses the node has multipathd.
impl Bed for Lio {
    /// A session with a map says soon that it is lost.
    fn volume(&self, index: usize) -> RemoteTarget {
        let unit = self.unit(index);
        if self.has_maps() { unit.replacement_timeout(Duration::from_secs(3)).into() } else { unit.into() }
    }

    fn image(&self, index: usize) -> &Image {
        &self.disks.images[index]
    }

    fn grow(&self, index: usize, mebibytes: u64) {
        self.disks.images[index].grow_to(mebibytes);
    }

    fn paths(&self) -> usize {
        if self.has_maps() { ADDRESSES.len() } else { 1 }
    }

    fn working(&self) -> usize {
        if self.has_maps() { live().min(active()) } else { live() }
    }

    /// Without its address, or without the loopback network, no packet of a path arrives.
    fn set_path(&self, path: usize, works: bool) {
        if self.has_maps() {
            set_address(ADDRESSES[path], works);
        } else {
            run("ip", &["link", "set", "lo", if works { "up" } else { "down" }]);
        }
    }

    /// Takes the target away, except its disks.
    fn stop(&self) {
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

    /// Makes the target with its units, and lets its portals answer.
    fn start(&self) {
        self.make();
        self.answer();
    }

    fn disk_prefix(&self) -> &'static str {
        if self.has_maps() { "/dev/dm-" } else { "/dev/sd" }
    }

    /// Only the units that were asked for, once for each session.
    fn assert_shows(&self, volumes: &[usize]) {
        let mut units = volumes.repeat(self.paths());
        units.sort_unstable();
        let units: Vec<u64> = units.into_iter().map(lun).collect();
        let sessions = if volumes.is_empty() { 0 } else { self.paths() };
        assert_eq!((live(), luns()), (sessions, units));
        if self.has_maps() {
            assert_eq!(maps().len(), volumes.len());
            assert!(volumes.len() != 1 || paths() == 2);
        }
    }

    fn left(&self) -> Vec<String> {
        let sessions = sessions().into_iter().map(|(name, state)| format!("{name} is {state}"));
        let files = disks().into_iter().chain(node_records()).map(|path| path.display().to_string());
        let units = luns().into_iter().map(|lun| format!("the LUN {lun}"));
        let maps = if self.has_maps() { maps() } else { Vec::new() };
        sessions.chain(files).chain(units).chain(maps.into_iter().map(|(name, _)| name)).collect()
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

impl Drop for Lio {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?} {:?}", sessions(), disks());
            let log = fs::read_to_string("/tmp/iscsid.log").unwrap_or_default();
            println!("iscsid: {}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
            // The next test starts on a machine without sessions.
            log_out_by_hand();
        }
        self.stop();
    }
}
