//! A Fibre Channel target of the kernel (LIO over libfc), with loop devices as its units. The fabric is FCoE
//! between virtual Ethernet devices: this machine has a port for each of two networks, and so has the target.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_mount::remote::{FcTarget, RemoteTarget, Wwpn};

use crate::devices::{Image, eventually, run};
use crate::lio::{self, CONFIG, Disks, make, names, serial, set, text, wwid};
pub(crate) use crate::lio::{disks, lun, luns, states};
use crate::multipath_node::{active, maps};
use crate::remote_bed::Bed;

const NETWORKS: [u8; 2] = [0, 1];

/// The states of the target's ports, with their names, as this machine's ports show them.
pub(crate) fn ports() -> Vec<(Wwpn, String)> {
    let class = Path::new("/sys/class/fc_remote_ports");
    let all = names(class).into_iter().map(|name| class.join(name));
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
        lio::writes(|unit| {
            let address = unit.file_name().unwrap().to_str().unwrap();
            let host = format!("host{}", address.split(':').next().unwrap());
            let port = Path::new("/sys/class/fc_host").join(host).join("port_name");
            text(port) == initiator(network).to_string()
        })
    })
}

fn is_online(wwpn: Wwpn) -> bool {
    let class = Path::new("/sys/class/fc_remote_ports");
    let mut all = names(class).into_iter().map(|name| class.join(name));
    all.any(|place| {
        text(place.join("port_name")) == wwpn.to_string() && text(place.join("port_state")) == "Online"
    })
}

/// Makes the networks and their ports, which stay for the tests that follow.
fn prepare() {
    lio::prepare();
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
    disks: Disks,
    /// The networks in which the units are mapped.
    pub(crate) networks: Vec<u8>,
    name: String,
}

impl Lio {
    /// Units of 300 MiB, mapped at this many ports. They are mapped after the login, so the kernel has not
    /// scanned them.
    pub(crate) fn new(name: &str, units: usize, ports: u8) -> Self {
        prepare();
        eventually("the ports", || (live() == NETWORKS.len()).then_some(()));
        let disks = Disks::new(name, units);
        let target = Self { disks, networks: (0..ports).collect(), name: name.to_owned() };
        (0..units).for_each(|index| target.map(lun(index), index));
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

    /// Gives the unit this number, at each port.
    pub(crate) fn map(&self, lun: u64, index: usize) {
        for network in &self.networks {
            let place = group(*network).join(format!("lun/lun_{lun}"));
            make(&place);
            symlink(self.disks.place(index), place.join("disk")).unwrap();
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
        self.disks.set_access(index, network, &group(NETWORKS[network]), state);
    }

    /// What a driver says about the unit with this index, with all ports.
    pub(crate) fn unit(&self, index: usize) -> FcTarget {
        self.unit_at(lun(index), index)
    }

    /// The unit with this index, at this number.
    pub(crate) fn unit_at(&self, lun: u64, index: usize) -> FcTarget {
        unit_of(&self.name, lun, index, &self.networks)
    }

    pub(crate) fn without_ports(&self, lun: u64, index: usize) -> FcTarget {
        unit_of(&self.name, lun, index, &[])
    }
}

/// With two ports the node has multipathd.
impl Bed for Lio {
    fn volume(&self, index: usize) -> RemoteTarget {
        let unit = self.unit(index);
        if self.networks.len() == 1 { unit.allow_single_path().into() } else { unit.into() }
    }

    fn image(&self, index: usize) -> &Image {
        &self.disks.images[index]
    }

    fn grow(&self, index: usize, mebibytes: u64) {
        self.disks.images[index].grow_to(mebibytes);
    }

    fn paths(&self) -> usize {
        self.networks.len()
    }

    /// The kernel logs in at the ports, and no attachment does.
    fn connections(&self) -> usize {
        0
    }

    fn working(&self) -> usize {
        live().min(active())
    }

    fn set_path(&self, path: usize, works: bool) {
        let before = live();
        set_link(self.networks[path], works);
        eventually("the port", || ((live() > before) == works).then_some(()));
    }

    fn stop(&self) {
        self.networks.iter().for_each(|network| set_link(*network, false));
    }

    fn start(&self) {
        self.networks.iter().for_each(|network| set_link(*network, true));
    }

    fn disk_prefix(&self) -> &'static str {
        if self.networks.len() == 1 { "/dev/sd" } else { "/dev/dm-" }
    }

    /// Only the units that were asked for, once for each port.
    fn assert_shows(&self, volumes: &[usize]) {
        let mut units = volumes.repeat(self.paths());
        units.sort_unstable();
        assert_eq!(luns(), units.into_iter().map(lun).collect::<Vec<_>>());
    }

    fn left(&self) -> Vec<String> {
        let disks = disks().into_iter().map(|disk| disk.display().to_string());
        let maps = maps().into_iter().map(|(name, _)| name);
        disks.chain(maps).chain(luns().into_iter().map(|lun| format!("the LUN {lun}"))).collect()
    }
}

/// What a driver says about a unit of the target with this name, with the ports of these networks.
pub(crate) fn unit_of(target: &str, lun: u64, index: usize, networks: &[u8]) -> FcTarget {
    let wwid = wwid(&serial(target, index));
    let unit = FcTarget::new(lun, &wwid).unwrap().wait_limit(Duration::from_secs(60));
    networks.iter().fold(unit, |unit, network| unit.port(port(*network)))
}

/// Deletes all units that this machine shows, used or not.
pub(crate) fn delete_all() {
    for unit in lio::units() {
        let _ = fs::write(unit.join("delete"), "1");
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
        let luns: Vec<u64> = names(group(0).join("lun"))
            .iter()
            .filter_map(|name| name.strip_prefix("lun_")?.parse().ok())
            .collect();
        luns.iter().for_each(|lun| self.unmap(*lun));
    }
}
