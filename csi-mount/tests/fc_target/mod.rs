//! A Fibre Channel target of the kernel (LIO over libfc), with loop devices as its units. The fabric is FCoE
//! between virtual Ethernet devices: this machine has a port for each of two networks, and so has the target.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::remote::{FcTarget, Wwpn};
use csi_mount::{Mount, Target};

use crate::devices::{Image, MIB, run};

const CONFIG: &str = "/sys/kernel/config/target";
const DISKS: &str = "core/fileio_0";
const NETWORKS: [u8; 2] = [0, 1];

pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: {:?} {:?}", ports(), disks());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn text(place: impl AsRef<Path>) -> String {
    fs::read_to_string(place).unwrap_or_default().trim().to_owned()
}

fn names(place: &str) -> Vec<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The states of the target's ports, with their names, as this machine's ports show them.
pub(crate) fn ports() -> Vec<(Wwpn, String)> {
    let class = Path::new("/sys/class/fc_remote_ports");
    let all = names(class.to_str().unwrap()).into_iter().map(|name| class.join(name));
    let targets = NETWORKS.map(|network| port(network).to_string());
    let all = all.filter(|place| targets.contains(&text(place.join("port_name"))));
    // Where the target has no group, its port is an ordinary one. Until the login it is not known what it is.
    let state = |place: &PathBuf| match &*text(place.join("port_state")) {
        "Online" if !text(place.join("roles")).contains("FCP Target") => "no target".to_owned(),
        state => state.to_owned(),
    };
    all.map(|place| (text(place.join("port_name")).parse().unwrap(), state(&place))).collect()
}

/// How many ports of the target are reached.
pub(crate) fn live() -> usize {
    ports().iter().filter(|(_, state)| state == "Online").count()
}

/// The SCSI disks of this machine, as `/dev/sda`.
pub(crate) fn disks() -> Vec<PathBuf> {
    let names = names("/sys/block").into_iter().filter(|name| name.starts_with("sd"));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The LUNs that the node shows, disks or not.
pub(crate) fn luns() -> Vec<u64> {
    let units = names("/sys/bus/scsi/devices").into_iter();
    let units = units.filter(|name| !name.starts_with("host") && !name.starts_with("target"));
    let mut luns: Vec<u64> = units.filter_map(|name| name.rsplit(':').next()?.parse().ok()).collect();
    luns.sort_unstable();
    luns
}

/// The states of the units.
pub(crate) fn states() -> Vec<String> {
    let units = names("/sys/bus/scsi/devices").into_iter();
    units
        .map(|name| text(Path::new("/sys/bus/scsi/devices").join(name).join("state")))
        .filter(|state| !state.is_empty())
        .collect()
}

fn set(place: impl AsRef<Path>, value: &str) {
    let place = place.as_ref();
    fs::write(place, value).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

fn make(place: impl AsRef<Path>) {
    let place = place.as_ref();
    fs::create_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

/// The name of the target's port in this network, and of this machine's: the address of its device.
pub(crate) fn port(network: u8) -> Wwpn {
    format!("2000 0200 0000 02{network:02x}").replace(' ', "").parse().unwrap()
}

pub(crate) fn initiator(network: u8) -> Wwpn {
    format!("2000 0200 0000 01{network:02x}").replace(' ', "").parse().unwrap()
}

/// With colons between the bytes, as the target's directories are named.
fn in_config(wwpn: Wwpn) -> String {
    let digits = wwpn.to_string();
    let bytes: Vec<&str> = (2..18).step_by(2).map(|index| &digits[index..index + 2]).collect();
    bytes.join(":")
}

/// Connects this machine's port to this network, or takes the cable out.
///
/// Nothing may be written at that moment: the target's driver (`ft_prlo`) then waits without limit for data that does
/// not come, and libfc's work for all ports with it.
pub(crate) fn set_link(network: u8, is_up: bool) {
    run("ip", &["link", "set", &format!("fci{network}"), if is_up { "up" } else { "down" }]);
    // A target that did not notice it would keep its session, also with the settings of another test.
    let is_lost = || !is_online(port(network)) && !is_online(initiator(network));
    eventually("both sides notice it", || (is_up || is_lost()).then_some(()));
}

/// How many writes the disk of each network got, where the machine shows one unit.
pub(crate) fn writes() -> [u64; 2] {
    NETWORKS.map(|network| {
        let is_of_network = |disk: &PathBuf| {
            let device = fs::canonicalize(disk.join("device")).unwrap();
            let address = device.file_name().unwrap().to_str().unwrap().to_owned();
            let host = format!("host{}", address.split(':').next().unwrap());
            let port = Path::new("/sys/class/fc_host").join(host).join("port_name");
            text(port) == initiator(network).to_string()
        };
        let mut disks =
            disks().into_iter().map(|disk| Path::new("/sys/block").join(disk.file_name().unwrap()));
        let disk = disks.find(is_of_network).expect("a disk of the network");
        text(disk.join("stat")).split_whitespace().nth(4).unwrap().parse().unwrap()
    })
}

fn is_online(wwpn: Wwpn) -> bool {
    let class = Path::new("/sys/class/fc_remote_ports");
    let mut all = names(class.to_str().unwrap()).into_iter().map(|name| class.join(name));
    all.any(|place| {
        text(place.join("port_name")) == wwpn.to_string() && text(place.join("port_state")) == "Online"
    })
}

/// Makes the networks and their ports, which stay for the tests that follow.
fn prepare() {
    if !Path::new(CONFIG).exists() {
        Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    }
    if !Path::new(CONFIG).join("core/fileio_0").exists() {
        make(Path::new(CONFIG).join(DISKS));
    }
    if Path::new("/sys/class/net/fci0").exists() {
        return;
    }
    make(Path::new(CONFIG).join("fc"));
    for network in NETWORKS {
        // Before the first login: the kernel never scans a port that was no target at first and becomes one.
        let [target, group, access] = [target_port(network), group(network), access(network)];
        [target, group, access].iter().for_each(make);
        let [own, other] = ["fci", "fct"].map(|name| format!("{name}{network}"));
        let [own_address, address] = ["01", "02"].map(|end| format!("02:00:00:00:{end}:{network:02x}"));
        let peer = ["peer", "name", &*other, "address", &*address];
        run("ip", &[&["link", "add", &own, "address", &own_address, "type", "veth"], &peer[..]].concat());
        for device in [&own, &other] {
            // Room for a frame of Fibre Channel.
            run("ip", &["link", "set", device, "mtu", "2500"]);
            run("ip", &["link", "set", device, "up"]);
            set("/sys/bus/fcoe/ctlr_create", device);
            let place = eventually("the controller", || {
                let net = Path::new("/sys/class/net").join(device);
                let found = fs::read_dir(net).unwrap().flatten().map(|entry| entry.path());
                found.into_iter().find(|place| place.to_string_lossy().contains("ctlr_"))
            });
            // Without a switch: the ports find each other. Older kernels compare small letters only.
            if fs::write(place.join("mode"), "VN2VN").is_err() {
                set(place.join("mode"), "vn2vn");
            }
            set(place.join("enabled"), "1");
        }
    }
}

fn target_port(network: u8) -> PathBuf {
    Path::new(CONFIG).join("fc").join(in_config(port(network)))
}

fn group(network: u8) -> PathBuf {
    target_port(network).join("tpgt_1")
}

/// What this machine's port sees.
fn access(network: u8) -> PathBuf {
    group(network).join("acls").join(in_config(initiator(network)))
}

pub(crate) struct Lio {
    pub(crate) images: Vec<Image>,
    /// The networks in which the units are mapped.
    pub(crate) networks: Vec<u8>,
    name: String,
}

impl Lio {
    /// Units of 300 MiB, mapped at this many ports. They are mapped after the login, so the kernel has not
    /// scanned them.
    pub(crate) fn new(name: &str, units: usize, ports: u8) -> Self {
        prepare();
        let mut target = Self { images: Vec::new(), networks: (0..ports).collect(), name: name.to_owned() };
        eventually("the ports", || (live() == NETWORKS.len()).then_some(()));
        for _ in 0..units {
            target.add(300);
        }
        target
    }

    /// Ends all connections. The kernel connects again, and scans what is mapped.
    pub(crate) fn log_in_again(&self) {
        for is_up in [false, true] {
            NETWORKS.iter().for_each(|network| set_link(*network, is_up));
            let wanted = if is_up { NETWORKS.len() } else { 0 };
            eventually("the ports", || (live() == wanted).then_some(()));
        }
    }

    fn disk(&self, index: usize) -> PathBuf {
        Path::new(CONFIG).join(DISKS).join(format!("{}-{index}", self.name))
    }

    /// The number of a unit.
    pub(crate) fn lun(index: usize) -> u64 {
        index as u64 + 1
    }

    /// Adds a unit of this many MiB, and returns its index.
    pub(crate) fn add(&mut self, mebibytes: u64) -> usize {
        let index = self.images.len();
        self.images.push(Image::new(mebibytes));
        make(self.disk(index));
        let file = self.images[index].path().display();
        let control = format!("fd_dev_name={file},fd_dev_size={},fd_buffered_io=1", mebibytes * MIB);
        set(self.disk(index).join("control"), &control);
        set(self.disk(index).join("wwn/vpd_unit_serial"), &serial(&self.name, index));
        set(self.disk(index).join("enable"), "1");
        self.map(Self::lun(index), index);
        index
    }

    /// Gives the unit this number, at each port.
    pub(crate) fn map(&self, lun: u64, index: usize) {
        for network in &self.networks {
            let place = group(*network).join(format!("lun/lun_{lun}"));
            make(&place);
            symlink(self.disk(index), place.join("disk")).unwrap();
            let seen = access(*network).join(format!("lun_{lun}"));
            make(&seen);
            symlink(&place, seen.join("unit")).unwrap();
        }
    }

    /// Takes the unit with this number away.
    pub(crate) fn unmap(&self, lun: u64) {
        for network in &self.networks {
            let seen = access(*network).join(format!("lun_{lun}"));
            let place = group(*network).join(format!("lun/lun_{lun}"));
            if place.exists() {
                fs::remove_file(seen.join("unit")).unwrap();
                fs::remove_dir(seen).unwrap();
                fs::remove_file(place.join("disk")).unwrap();
                fs::remove_dir(place).unwrap();
            }
        }
    }

    /// Gives the port of this network a state of its own for the unit (ALUA), with the kernel's number of the state.
    pub(crate) fn set_access(&self, index: usize, network: usize, state: u8) {
        const IMPLICIT: &str = "1";
        let group = self.disk(index).join(format!("alua/net{network}"));
        if !group.exists() {
            make(&group);
            set(group.join("tg_pt_gp_id"), &(network + 1).to_string());
            set(group.join("alua_access_type"), IMPLICIT);
            let lun =
                self::group(NETWORKS[network]).join(format!("lun/lun_{}/alua_tg_pt_gp", Self::lun(index)));
            set(lun, &format!("net{network}"));
        }
        set(group.join("alua_access_state"), &state.to_string());
    }

    pub(crate) fn grow(&self, index: usize, mebibytes: u64) {
        self.images[index].grow_to(mebibytes);
    }

    /// What a driver says about the unit with this index, with all ports.
    pub(crate) fn unit(&self, index: usize) -> FcTarget {
        self.unit_at(Self::lun(index), index)
    }

    /// The unit with this index, at this number.
    pub(crate) fn unit_at(&self, lun: u64, index: usize) -> FcTarget {
        unit_of(&self.name, lun, index, &self.networks)
    }

    pub(crate) fn without_ports(&self, lun: u64, index: usize) -> FcTarget {
        unit_of(&self.name, lun, index, &[])
    }
}

/// What a driver says about a unit of the target with this name, with the ports of these networks.
pub(crate) fn unit_of(target: &str, lun: u64, index: usize, networks: &[u8]) -> FcTarget {
    let wwid = wwid(&serial(target, index));
    let unit = FcTarget::new(lun, &wwid).unwrap().wait_limit(Duration::from_secs(60));
    networks.iter().fold(unit, |unit, network| unit.port(port(*network)))
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

/// Deletes all units that this machine shows, used or not.
pub(crate) fn delete_all() {
    for name in names("/sys/bus/scsi/devices") {
        let _ = fs::write(Path::new("/sys/bus/scsi/devices").join(name).join("delete"), "1");
    }
}

impl Drop for Lio {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?} {:?} {:?}", ports(), luns(), states());
        }
        // The next test starts without units.
        NETWORKS.iter().for_each(|network| set_link(*network, true));
        delete_all();
        let luns: Vec<u64> = names(group(0).join("lun").to_str().unwrap())
            .iter()
            .filter_map(|name| name.strip_prefix("lun_")?.parse().ok())
            .collect();
        luns.iter().for_each(|lun| self.unmap(*lun));
        for index in 0..self.images.len() {
            for network in NETWORKS {
                let _ = fs::remove_dir(self.disk(index).join(format!("alua/net{network}")));
            }
            let removed = fs::remove_dir(self.disk(index));
            assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
    }
}
